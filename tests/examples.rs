//! Backends behind Triton's C interface, both ways: those of `examples/backends/` in our server and in the official
//! one, and the official Python backend, as it comes in its package, in ours. Who answers must make no difference.

mod example_backends {
    mod answers;
    mod built;
    mod python;
    mod servers;
    mod streams;
}

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll();
}
