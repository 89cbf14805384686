//! The gRPC port of a whole server, met by a peer made of the crate h2 and the messages of proto/ (contract/grpc.md).

mod grpc_port {
    mod errors;
    mod exiting;
    mod forms;
    mod management;
    mod message;
    mod order;
    mod readiness;
    mod recurring;
    mod stream;
    mod transport;
}

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll();
}
