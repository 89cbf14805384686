//! What a whole server does with models: how it schedules their requests, loads and unloads them from directories and
//! from buckets, and runs those that are written in Python, beside the official server where that is the judge.

mod cloud;
mod differential;
mod python_backend;
mod repository;
mod scheduling;

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll();
}
