//! HTTP/1.1: inference with its dialects and answers, and the ports with their routes (contract/http.md).

pub mod answer;
pub mod chunked_replies;
pub mod decode;
pub mod dialect;
pub mod events;
pub mod generate;
pub mod inference;
pub mod inspect_page;
mod int32;
pub mod log;
pub mod metrics_page;
pub mod opening;
pub mod ports;
mod routed;
