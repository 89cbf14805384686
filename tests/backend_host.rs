//! The host of backend libraries: what it offers them, when it asks them, and which of them it does not let in
//! (contract/c_api.md section 5).

mod native_programs {
    #[allow(dead_code)] // What a backend checks is told as programs tell it.
    pub mod program;
}

mod hosting {
    pub mod calls;
    pub mod libraries;
    pub mod readiness;
}

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll();
}
