//! The load generator against real servers: what it sends arrives, what it counts and says is true, and nothing of it
//! stays.

mod load_generator {
    mod encryption;
    mod exits;
    mod input_data;
    mod loads;
    mod plans;
    mod program;
    mod reports;
    mod sequences;
    mod shared_memory;
    mod signals;
    mod trouble;
}

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll();
}
