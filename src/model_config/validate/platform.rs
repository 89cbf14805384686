//! Rows "backend/platform".

use super::super::normalize::ENSEMBLE_PLATFORM;
use super::Findings;
use nereid_wire::inference::ModelConfig;

pub(super) fn check(config: &ModelConfig, findings: &mut Findings) {
    let ModelConfig { name, platform, backend, .. } = config;
    if platform == ENSEMBLE_PLATFORM {
        if !backend.is_empty() {
            let message =
                format!("Ensemble model '{name}' must have platform type '{ENSEMBLE_PLATFORM}' and empty backend type");
            findings.invalid("backend", message);
        }
    } else if backend.is_empty() && platform.is_empty() {
        findings.invalid("backend", format!("must specify 'platform' or 'backend' for '{name}'"));
    } else if backend.is_empty() {
        findings.invalid("platform", format!("unexpected platform type '{platform}' for {name}"));
    } else if backend_of_platform(platform) != known_backend(backend) {
        let message = format!("unexpected 'platform' and 'backend' pair, got:{platform}, {backend}");
        findings.invalid("platform", message);
    }
}

/// The backends that have a platform of their own; for all others a platform has no meaning.
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
