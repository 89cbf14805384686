//! The HTTP port of a whole server, met by scripted peers that send exactly the bytes that a test states
//! (contract/http.md; contract/metrics.md sections 1 to 3).

mod http_port {
    mod classification;
    mod connection;
    mod content_types;
    mod dialect;
    mod errors;
    mod exiting;
    mod forms;
    mod management;
    mod order;
    mod recurring;
    mod validation;
}

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll();
}
