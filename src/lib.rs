//! Nereid: an inference server that takes Triton's place on a bare-metal host.
//!
//! ```text
//!             one core, one thread: a SHARD                                  one thread: an INSTANCE WORKER
//!  socket ─► net ─► protocol ─► api ─► request ──► scheduler ══ queue ══► instance ─► backend (model)
//!    ▲       bytes   messages   what it   Request    admits,               Payload      execute        │
//!    │                          means                queues               (a batch)                    ▼
//!    └────── net ◄─ protocol ◄─ api ◄──────────── mailbox of the shard ◄═══ queue ═══ Response, Response, … FINAL
//! ```
//!
//! The modules below stand in the order in which a request passes them; `use` points that way only, and
//! `tests/tidy.rs` holds the tree to it.

pub mod abi;
pub mod api;
pub mod backend;
pub mod cli;
pub mod gpu;
pub mod instance;
pub mod memory;
pub mod model_config;
pub mod net;
pub mod observe;
pub mod perf;
pub mod protocol;
pub mod queue;
pub mod repository;
pub mod request;
pub mod scheduler;
pub mod server;
pub mod shard;
pub mod wire;

/// What unit tests share with the tests of the whole server.
#[cfg(test)]
#[path = "../tests/support"]
mod support {
    pub mod python;
    pub mod skip;
}
