//! The shared-memory ring between the server and a client on the same host: `docs/ipc.md` is its contract.
//!
//! A client has a memory object of its own with two streams of frames ([`nereid_queue::frames`]), one in each
//! direction, and an arena for tensors. The bytes of gRPC calls travel in the frames; bell words and a socket end the
//! sleep of either side. [`ServerEnd`] is used by a shard, [`Client`] by a thread of a client. Neither reads a byte of
//! the object twice: frames are copied out and what is checked is the copy.

mod client;
mod frame;
mod layout;
mod server;

pub use client::{Client, ClientEnd, ClientError, ClientEvent, ClientStatus, Route};
pub use frame::{ClientFrame, DATA_HEAD, ServerFrame, Strings, Violation, encode, from_client, from_server};
pub use layout::{
    HEADER_BYTES, HELLO_BYTES, Layout, MAGIC, RING_BYTES_MAX, RING_BYTES_MIN, ROUTES_MAX, Ring, Sizes, VERSION,
};
pub use server::{Hello, ServerEnd};
