//! Response caches and repository agents as shared libraries, driven by the server (contract/c_api.md sections 6 and
//! 7).

mod native_programs {
    #[allow(dead_code)] // What a library checks is told as programs tell it.
    pub mod program;
}

mod shared_libraries {
    mod agents;
    mod caches;
    mod checksum;
    mod official;
}

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll();
}
