//! Row "instance".

use super::super::SupportedGpus;
use super::super::normalize::ENSEMBLE_PLATFORM;
use super::Findings;
use nereid_wire::inference::model_instance_group::Kind;
use nereid_wire::inference::{ModelConfig, ModelInstanceGroup};

pub(super) fn check(config: &ModelConfig, gpus: &SupportedGpus, findings: &mut Findings) {
    if config.platform == ENSEMBLE_PLATFORM {
        return;
    }
    if config.instance_group.is_empty() {
        let message = format!("must specify one or more 'instance group's for {}", config.name);
        findings.invalid("instance_group", message);
    }
    for (index, group) in config.instance_group.iter().enumerate() {
        if let Err((field, message)) = check_group(config, group, gpus) {
            findings.invalid(format!("instance_group[{index}].{field}"), message);
        }
    }
}

/// The result of a check; the error is a field and its text.
type Refused = Result<(), (&'static str, String)>;

fn check_group(config: &ModelConfig, group: &ModelInstanceGroup, gpus: &SupportedGpus) -> Refused {
    let subject = format!("instance group {} of model {}", group.name, config.name);
    let has_gpus = !group.gpus.is_empty();
    match group.kind() {
        Kind::Model if has_gpus => {
            return Err(("gpus", format!("{subject} has kind KIND_MODEL but specifies one or more GPUs")));
        }
        Kind::Cpu if has_gpus => {
            return Err(("gpus", format!("{subject} has kind KIND_CPU but specifies one or more GPUs")));
        }
        Kind::Gpu => check_gpus(group, gpus, &subject)?,
        // Normalisation has made another kind of it.
        Kind::Auto => return Err(("kind", format!("{subject} has unexpected kind KIND_AUTO"))),
        Kind::Model | Kind::Cpu => {}
    }
    check_profiles(config, group, &subject)
}

fn check_gpus(group: &ModelInstanceGroup, gpus: &SupportedGpus, subject: &str) -> Refused {
    let SupportedGpus::Found { ids, capability_min } = gpus else {
        return Err(("kind", format!("{subject} has kind KIND_GPU but server does not support GPUs")));
    };
    if group.gpus.is_empty() {
        let why = if ids.is_empty() { "no GPUs are available" } else { "specifies no GPUs" };
        return Err(("kind", format!("{subject} has kind KIND_GPU but {why}")));
    }
    let Some(unknown) = group.gpus.iter().find(|id| !ids.contains(id)) else { return Ok(()) };
    let known: Vec<String> = ids.iter().map(i32::to_string).collect();
    let message = format!(
        "{subject} specifies invalid or unsupported gpu id {unknown}. GPUs with at least the minimum required CUDA \
         compute compatibility of {capability_min:.6} are: {}",
        known.join(", ")
    );
    Err(("gpus", message))
}

fn check_profiles(config: &ModelConfig, group: &ModelInstanceGroup, subject: &str) -> Refused {
    if group.profile.is_empty() {
        return Ok(());
    }
    let platform = &config.platform;
    if platform != "tensorrt_plan" {
        // No blank between the platform and the verb: so the text has always been.
        let message = format!(
            "{subject} and platform {platform}specifies profile field which is only supported for TensorRT models"
        );
        return Err(("profile", message));
    }
    match group.profile.iter().find(|profile| profile.parse::<u32>().is_err()) {
        Some(profile) => {
            let message = format!(
                "{subject} and platform {platform} specifies invalid profile {profile}. The field should contain the \
                 string representation of a non-negative integer."
            );
            Err(("profile", message))
        }
        None => Ok(()),
    }
}
