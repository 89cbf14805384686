//! Tests of Triton's C interfaces from both sides: backends, caches and repository agents as shared libraries in the
//! server, and applications that link the server.

mod backend_host;
mod border;
mod embedded;
mod examples;
mod library;
mod native;
mod plugin;

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll(&["border::", "examples::", "library::", "native::"]);
}
