//! What foreign code may do wrong at the border to C, and what becomes of it: an error that says so, a log line that
//! names who it was, and a server that goes on (contract/c_api.md sections 4 and 5).

mod misuse {
    mod batching;
    mod compiler;
    mod crashes;
    mod exceptions;
    mod handles;
    mod leaks;
    mod mechanical;
    mod sanitized;
}

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll();
}
