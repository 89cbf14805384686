//! The settings of the ports for SageMaker and Vertex AI, and the errors in them (contract/http.md sections 8 and 9).

use super::Failure;
use super::options::Options;
use crate::api;
use crate::repository::ModelMap;
use nereid_request::Status;

/// The settings of both ports: SageMaker's, and Vertex AI's where that is on.
pub fn settings(options: &Options, models: &ModelMap) -> Result<(api::SageMaker, Option<api::Vertex>), Failure> {
    let failed = |service: &str, status: Status| {
        Failure::Start(format!("failed to start {service} service: {} - {}", status.code.name(), status.message))
    };
    let clouds = &options.clouds;
    let inference_type = if options.sagemaker.allowed { &*clouds.inference_type } else { "" };
    let sagemaker = api::SageMaker::read(&clouds.ping_mode, &clouds.default_model, inference_type)
        .map_err(|status| failed(SAGEMAKER, status))?;
    let vertex = options.vertex.allowed.then(|| {
        api::Vertex::read(&clouds.health_route, &clouds.predict_route, &options.vertex_default_model, models)
            .map_err(|status| failed(VERTEX, status))
    });
    Ok((sagemaker, vertex.transpose()?))
}

/// As in the log and in the errors of a start.
pub const SAGEMAKER: &str = "Sagemaker";
pub const VERTEX: &str = "Vertex AI";
