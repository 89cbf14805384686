//! Flags of the model repository and of the life cycle of models.

use super::{Flag, Group};
use crate::cli::given::ControlMode;
use crate::cli::values::{Value, ValueError};

const REPOSITORY: Group = Group("Model repository");

pub static FLAGS: &[Flag] = &[
    REPOSITORY.set("model-repository", "path", "Directory of models. May be given several times.", |g, v| {
        g.options.model_repositories.push(v.path());
        Ok(())
    }),
    REPOSITORY.set("model-store", "path", "The same as --model-repository.", |g, v| {
        g.options.model_repositories.push(v.path());
        Ok(())
    }),
    REPOSITORY.set(
        "exit-on-error",
        "boolean",
        "Whether a model that fails to load at the start ends the server. Default: true.",
        |g, v| v.boolean().map(|given| g.options.exit_on_error = given),
    ),
    REPOSITORY.switch(
        "disable-auto-complete-config",
        "Do not complete configurations from the model files.",
        |g, _| {
            g.disables_auto_complete = true;
            Ok(())
        },
    ),
    REPOSITORY.set(
        "strict-readiness",
        "boolean",
        "Whether the server is ready only when all its models are. Default: true.",
        |g, v| v.boolean().map(|given| g.options.strict_readiness = given),
    ),
    REPOSITORY.set(
        "model-control-mode",
        "none|poll|explicit",
        "Whether models are loaded once at the start, when the repository changes, or when clients request it. \
         Default: none.",
        |g, v| control_mode(v).map(|given| g.control_mode = given),
    ),
    REPOSITORY.set(
        "repository-poll-secs",
        "integer",
        "Seconds between two polls of the repository in mode poll; 0 is never. Default: 15.",
        |g, v| v.at_least_zero().map(|given| g.poll_secs = given),
    ),
    REPOSITORY.set(
        "load-model",
        "string",
        "Model to load at the start in mode explicit; * is every model. May be given several times.",
        |g, v| {
            g.options.startup_models.push(v.text());
            Ok(())
        },
    ),
    REPOSITORY.set(
        "model-config-name",
        "string",
        "Use configs/NAME.pbtxt of a model, where it has that file, instead of its config.pbtxt.",
        |g, v| config_name(v).map(|given| g.options.model_config_name = Some(given)),
    ),
    REPOSITORY.set(
        "model-load-thread-count",
        "integer",
        "Models that are loaded at the same time, at least 1. Default: 4.",
        |g, v| v.at_least_zero().map(|given| g.options.model_load_thread_count = given.max(1) as usize),
    ),
    REPOSITORY.set(
        "model-load-retry-count",
        "integer",
        "Further attempts to load a model that failed. Default: 0.",
        |g, v| v.at_least_zero().map(|given| g.options.model_load_retry_count = given),
    ),
    REPOSITORY.set(
        "model-namespacing",
        "boolean",
        "Whether models of one name may lie in several repositories. Default: false.",
        |g, v| v.boolean().map(|given| g.options.model_namespacing = given),
    ),
    REPOSITORY.for_gpus(
        "enable-peer-access",
        "boolean",
        "Whether GPUs may read each other's memory. Default: true.",
        |g, v| v.boolean().map(|given| g.options.enable_peer_access = given),
    ),
    REPOSITORY.for_gpus(
        "model-load-gpu-limit",
        "<device>:<fraction>",
        "Share of a GPU's memory beyond which no model is loaded there. May be given several times.",
        |g, v| {
            let (device, fraction) = v.per_device(|fraction| fraction.float())?;
            g.gpu_limits.push((device, fraction));
            Ok(())
        },
    ),
];

fn control_mode(value: Value<'_>) -> Result<ControlMode, ValueError> {
    match value.lower_case().as_str() {
        "none" => Ok(ControlMode::None),
        "poll" => Ok(ControlMode::Poll),
        "explicit" => Ok(ControlMode::Explicit),
        _ => Err(value.unknown_word()),
    }
}

fn config_name(value: Value<'_>) -> Result<String, ValueError> {
    Some(value.text()).filter(|name| !name.is_empty()).ok_or(ValueError::NoConfigName)
}
