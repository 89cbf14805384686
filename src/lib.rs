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

// Under `--cfg loom` only what the models of the lock-free hand-over need is built.
#[cfg(not(loom))]
pub mod abi;
#[cfg(not(loom))]
pub mod api;
#[cfg(not(loom))]
pub mod backend;
#[cfg(not(loom))]
pub mod cli;
#[cfg(not(loom))]
pub mod gpu;
#[cfg(not(loom))]
pub mod instance;
pub mod memory;
#[cfg(not(loom))]
pub mod model_config;
#[cfg(not(loom))]
pub mod net;
#[cfg(not(loom))]
pub mod observe;
#[cfg(not(loom))]
pub mod perf;
#[cfg(not(loom))]
pub mod protocol;
pub mod queue;
#[cfg(not(loom))]
pub mod repository;
#[cfg(not(loom))]
pub mod request;
#[cfg(not(loom))]
pub mod scheduler;
#[cfg(not(loom))]
pub mod server;
#[cfg(not(loom))]
pub mod shard;
#[cfg(not(loom))]
pub mod wire;

/// What unit tests share with the tests of the whole server.
#[cfg(all(test, not(loom)))]
#[path = "../tests/support"]
mod support {
    pub mod python;
    pub mod skip;
}
