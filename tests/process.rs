//! The process as an operator sees it: flags, exit codes, what it says when a model or a port is wrong, and how it
//! stops (contract/cli.md sections 1, 2, 5, 6, 7).

mod operation {
    mod crash;
    mod engine;
    mod explain;
    mod flags;
    mod instances;
    mod logging;
    mod models;
    mod one_number;
    mod rolling;
    mod service;
    mod stages;
    mod statistics;
    mod stop;
    mod tuning;
    mod warmup;
    mod without;
}

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll();
}
