//! OpenAI's interface over HTTP (contract/openai.md): routes, who may use them, and the calls under way.
//!
//! What a request means and how an answer is written is the crate `nereid_openai`, which does no I/O. A body is read on
//! one of the [threads](threads) of this interface, or on the shard if it is short; its requests go to the models as
//! those of other protocols do, and their responses come back to the [call](call).

pub mod access;
pub mod answering;
pub mod awaiting;
pub mod call;
pub mod cors;
pub mod job;
pub mod limits;
pub mod metrics;
pub mod models;
pub mod pages;
pub mod port;
pub mod repository;
pub mod routes;
pub mod settings;
pub mod threads;

pub use settings::OpenAi;
