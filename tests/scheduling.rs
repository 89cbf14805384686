//! Schedulers as clients see them: what batches form, in which order answers come, who waits for what and for how long
//! (contract/schedulers.md). Statistics tell what was executed.

mod schedulers {
    mod cache;
    mod decoupled;
    mod dynamic;
    mod ensemble;
    mod ensemble_decoupled;
    mod ensemble_graph;
    mod ensemble_reload;
    mod ensemble_tensors;
    mod rate_limiter;
    mod sequence;
}

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll();
}
