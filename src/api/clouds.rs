//! What the ports of the clouds have in common (contract/http.md sections 8 and 9): they answer what is theirs, and
//! pass inference on to the parts behind the HTTP port.

pub mod sagemaker;
pub mod sagemaker_models;
pub mod vertex;

use std::sync::Arc;

use super::http::dialect::Dialect;
use super::routes::Route;
use nereid_protocol::http1::Response;

/// What a call to such a port is passed on to. Err: the port's own answer.
pub type Passed<'p> = Result<PassedOn<'p>, Box<Response>>;

/// Where a call goes on.
pub enum PassedOn<'p> {
    /// Nowhere: its answer comes by mail, or was given.
    Nowhere,
    /// Inference with a model.
    Infer { model: Arc<str>, dialect: Dialect },
    /// Generation with a model, as a stream or as one answer.
    Generate { model: Arc<str>, streams: bool },
    /// A route of the HTTP port.
    Route(Route<'p>),
    /// The metrics page.
    Metrics,
}
