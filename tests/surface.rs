//! What the wire offers beyond plain inference: shared memory, streams over HTTP, traces, TLS, restricted groups, and
//! the ports of the clouds (contract/http.md, contract/grpc.md, contract/metrics.md, contract/cli.md).

mod wire_features {
    mod compression;
    mod custom_metrics;
    mod devices;
    mod forwarding;
    mod generate;
    mod gpus;
    mod http_streaming;
    mod keepalive;
    mod metrics;
    mod opentelemetry;
    mod orca;
    mod parameters;
    mod plan_cache;
    mod reflection;
    mod restricted;
    mod sagemaker;
    mod shared_memory;
    mod statistics;
    mod timing;
    mod tls;
    mod trace;
    mod unix_sockets;
    mod vertex;
}

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll();
}
