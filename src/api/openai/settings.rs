//! The settings of OpenAI's interface, shared by all shards.

use std::sync::Arc;

use super::access::Gate;
use super::metrics::Metrics;
use super::models::Models;
use super::threads::Threads;
use nereid_openai::prepare;

/// What serves the interface.
pub struct OpenAi {
    pub prepare: Arc<prepare::Settings>,
    pub gate: Gate,
    pub models: Arc<Models>,
    pub threads: Threads,
    pub metrics: Arc<Metrics>,
    /// `--http-max-input-size`.
    pub input_bytes_max: u64,
    /// Of redirections.
    pub scheme: &'static str,
    /// `--model-control-mode=explicit`.
    pub is_explicit: bool,
    /// The HTTP port serves the routes too.
    pub on_http_port: bool,
    /// `--openai-keep-alive`: how long a stream may be silent; 0: for ever.
    pub keep_alive_ns: u64,
}

impl std::fmt::Debug for OpenAi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenAi")
            .field("gate", &self.gate)
            .field("is_explicit", &self.is_explicit)
            .finish_non_exhaustive()
    }
}
