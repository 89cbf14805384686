//! The ports of the clouds (contract/http.md sections 8 and 9): they answer their own routes, and return the route of
//! inference, which the parts behind the HTTP port serve.

pub mod sagemaker;
pub mod sagemaker_models;
pub mod vertex;

use std::sync::Arc;

use super::http::dialect::Dialect;
use super::routes::Route;
use nereid_protocol::http1::Response;

/// The route of a call to such a port. Err: the port's own answer.
pub type CloudRouting<'p> = Result<CloudRoute<'p>, Box<Response>>;

/// The part that answers a call.
pub enum CloudRoute<'p> {
    /// None: the answer comes by mail, or was given.
    Answered,
    /// Inference with a model.
    Infer { model: Arc<str>, dialect: Dialect },
    /// Generation with a model, as a stream or as one answer.
    Generate { model: Arc<str>, streams: bool },
    /// A route of the HTTP port.
    Route(Route<'p>),
    /// The metrics page.
    Metrics,
}
