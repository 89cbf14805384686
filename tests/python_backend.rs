//! Python models behind a real server: `model.py` files as Triton's users write them (contract/python_backend.md).

mod python_workers {
    mod calls;
    mod classes;
    mod cost;
    mod devices;
    mod environments;
    mod execution;
    mod faults;
    mod leftovers;
    mod life;
    mod loading;
    mod minilm;
    pub mod models;
    mod numbers;
    mod readiness;
    mod restart;
    mod services;
    mod slow_clients;
    mod soak;
    pub mod trouble;
    mod units;
}

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll();
}
