//! What a request costs, in counts: how often the server asks its allocator for memory, how many of a tensor's bytes
//! are copied in user space on their way from the socket to the model and back (docs/design.md, decisions 6 and 7), and
//! how often the kernel is called.
//!
//! The server of the first two is this binary itself, started once more: so its allocator and its memcpy are ours, and
//! count thread by thread, whatever code calls them. The client is another process and does not appear in any count.
//! A count belongs to requests that came after the warm-up, and is taken while nothing is in flight in the server.
//!
//! `NEREID_TEST_STACKS=1` prints from where the server allocated, most often first.

#![allow(unsafe_code)] // An allocator and a memcpy cannot be had without; see {allocator,copying}.rs.

#[allow(dead_code)] // The clients of the benches; they have more than is needed here.
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

#[test]
fn what_ran_on_io_uring_runs_on_epoll_too() {
    nereid_test_support::variant::run_again_on_epoll();
}
