//! Clients that others wrote, and peers that nobody should write: the wire as the world speaks it.

mod foreign_programs {
    mod curl;
    mod described;
    mod go;
    mod http1_peers;
    mod http2_peers;
    mod in_process;
    mod node;
    mod perf_analyzer;
}

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll();
}
