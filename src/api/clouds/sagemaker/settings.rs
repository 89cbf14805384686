//! What the environment sets for the SageMaker port.

use nereid_request::Status;

/// The settings of the port by environment variables (contract/cli.md section 4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SageMaker {
    /// `/ping` reports whether the server is live, and not whether it is ready.
    pub pings_liveness: bool,
    /// The model behind `/invocations`.
    pub default_model: String,
    pub inference: Inference,
}

/// What `/invocations` does (SAGEMAKER_TRITON_INFERENCE_TYPE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inference {
    Infer,
    Generate,
    GenerateStream,
}

impl SageMaker {
    /// From the variables' values, empty where there are none; Err is why the port cannot start.
    pub fn read(ping_mode: &str, default_model: &str, inference_type: &str) -> Result<SageMaker, Status> {
        let inference = match inference_type {
            "" | "infer" => Inference::Infer,
            "generate" => Inference::Generate,
            "generate_stream" => Inference::GenerateStream,
            other => {
                return Err(Status::invalid(format!(
                    "invalid value for SAGEMAKER_TRITON_INFERENCE_TYPE: '{other}'. Expected 'infer', 'generate' or \
                     'generate_stream'"
                )));
            }
        };
        let default_model = match default_model {
            "" => "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME",
            given => given,
        };
        Ok(SageMaker { pings_liveness: ping_mode == "live", default_model: default_model.to_owned(), inference })
    }
}
