//! Rows "backend/platform".

use super::super::Error;
use super::super::normalize::ENSEMBLE_PLATFORM;
use crate::wire::inference::ModelConfig;

pub(super) fn check(config: &ModelConfig) -> Result<(), Error> {
    let ModelConfig { name, platform, backend, .. } = config;
    if platform == ENSEMBLE_PLATFORM {
        if !backend.is_empty() {
            return Err(Error::invalid(format!(
                "Ensemble model '{name}' must have platform type '{ENSEMBLE_PLATFORM}' and empty backend type"
            )));
        }
        return Ok(());
    }
    if backend.is_empty() {
        return Err(Error::invalid(if platform.is_empty() {
            format!("must specify 'platform' or 'backend' for '{name}'")
        } else {
            format!("unexpected platform type '{platform}' for {name}")
        }));
    }
    if backend_of_platform(platform) != known_backend(backend) {
        return Err(Error::invalid(format!("unexpected 'platform' and 'backend' pair, got:{platform}, {backend}")));
    }
    Ok(())
}

/// The backends that come with a platform of their own; to all others a platform is a word.
fn known_backend(backend: &str) -> Option<&str> {
    Some(backend).filter(|backend| matches!(*backend, "tensorflow" | "tensorrt" | "onnxruntime" | "pytorch"))
}

fn backend_of_platform(platform: &str) -> Option<&'static str> {
    match platform {
        "tensorflow_graphdef" | "tensorflow_savedmodel" => Some("tensorflow"),
        "tensorrt_plan" => Some("tensorrt"),
        "onnxruntime_onnx" => Some("onnxruntime"),
        "pytorch_libtorch" | "libtorch" | "torch_aoti" => Some("pytorch"),
        _ => None,
    }
}
