//! Nereid: an inference server that takes Triton's place on a bare-metal host.
//!
//! ```text
//!             one core, one thread: a SHARD                                  one thread: an INSTANCE WORKER
//!  socket ─► net ─► protocol ─► api ──────────────► scheduler ══ queue ══► backend: instance ─► model
//!    ▲       bytes   messages   what it   Request    checks, admits,       Payload               execute
//!    │                          means                queues               (a batch)                    ▼
//!    └────── net ◄─ protocol ◄─ api ◄──────────── mailbox of the shard ◄═══ queue ═══ Response, Response, … FINAL
//! ```
//!
//! A folder of `src/` with a `Cargo.toml` is a crate: `net` is `nereid_net`. Cargo holds the direction in which crates
//! depend on each other, `tests/tidy.rs` that of the modules of this one, which are what a server adds to them.

pub mod abi;
pub mod api;
pub mod cli;
pub mod native_backends;
pub mod repository;
pub mod server;
