//! What fuzz targets call of the service: the readers of JSON requests, and events.

pub use super::http::events::{framed, wanted};
pub use super::http::generate::request::Reader as GenerateReader;
pub use super::infer::http_request::Decoder;
pub use super::infer::{AnswerForm, Decode, Progress};
pub use super::plan_cache::http_plans::HttpPlans;
pub use super::plan_cache::json_request::{Bounds, JsonRequest};
