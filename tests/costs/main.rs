//! The cost of a request, in counts: allocations, bytes of a tensor that are copied in user space on the way from the
//! socket to the model and back (docs/design.md, decisions 6 and 7), and system calls.
//!
//! For the first two, the server is this binary itself, started once more: so its allocator and its memcpy are ours,
//! and count per thread, whatever code calls them. The client is another process and appears in no count. Counts cover
//! the requests after the warm-up, and are read while no request is in flight in the server.
//!
//! `NEREID_TEST_STACKS=1` prints the call stacks of the server's allocations, the most frequent first.

#![allow(unsafe_code)] // An allocator and a memcpy need it; see {allocator,copying}.rs.

#[allow(dead_code)] // The clients of the benches, which have no tests of their own; some are more than is needed here.
#[path = "../../benches/side"]
mod side {
    pub mod answer;
    pub mod burst;
    pub mod http;
    pub mod line;
    pub mod load;
    pub mod question;
    pub mod region;
    pub mod request;
    pub mod stream;
    pub mod tensor;
    pub mod unary;
    pub mod varied;
}

mod allocations;
mod allocator;
mod child;
mod copies;
mod copying;
mod ledger;
mod measurement;
mod models;
mod system_calls;
mod varied_requests;

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll(&[]);
}
