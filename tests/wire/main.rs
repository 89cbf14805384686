//! Tests of the ports of a whole server: the HTTP port and the gRPC port byte by byte, features beyond plain inference,
//! and hostile peers.

mod grpc;
mod hostile;
mod http;
mod ipc;
mod overload;
mod surface;

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll(&[
        "surface::custom_metrics::",
        "surface::engine_metrics::",
        "surface::gpus::",
        "surface::inspect_page::",
        "surface::metrics::",
        "surface::opentelemetry::",
        "surface::orca::",
        "surface::sagemaker::",
        "surface::statistics::",
        "surface::trace::",
        "surface::vertex::",
    ]);
}
