//! Row "instance", on a host without GPUs.

use super::super::Error;
use super::super::normalize::ENSEMBLE_PLATFORM;
use crate::wire::inference::model_instance_group::Kind;
use crate::wire::inference::{ModelConfig, ModelInstanceGroup};

pub(super) fn check(config: &ModelConfig) -> Result<(), Error> {
    if config.platform == ENSEMBLE_PLATFORM {
        return Ok(());
    }
    if config.instance_group.is_empty() {
        return Err(Error::invalid(format!("must specify one or more 'instance group's for {}", config.name)));
    }
    config.instance_group.iter().try_for_each(|group| check_group(config, group))
}

fn check_group(config: &ModelConfig, group: &ModelInstanceGroup) -> Result<(), Error> {
    let subject = format!("instance group {} of model {}", group.name, config.name);
    let refused = |what: &str| Err(Error::invalid(format!("{subject} {what}")));
    match group.kind() {
        Kind::Model if !group.gpus.is_empty() => return refused("has kind KIND_MODEL but specifies one or more GPUs"),
        Kind::Cpu if !group.gpus.is_empty() => return refused("has kind KIND_CPU but specifies one or more GPUs"),
        Kind::Gpu => return refused("has kind KIND_GPU but server does not support GPUs"),
        // Normalisation has made a KIND_CPU of it.
        Kind::Auto => return refused("has unexpected kind KIND_AUTO"),
        Kind::Model | Kind::Cpu => {}
    }
    check_profiles(config, group, &subject)
}

fn check_profiles(config: &ModelConfig, group: &ModelInstanceGroup, subject: &str) -> Result<(), Error> {
    if group.profile.is_empty() {
        return Ok(());
    }
    let platform = &config.platform;
    if platform != "tensorrt_plan" {
        // No blank between the platform and the verb: so the text has always been.
        return Err(Error::invalid(format!(
            "{subject} and platform {platform}specifies profile field which is only supported for TensorRT models"
        )));
    }
    match group.profile.iter().find(|profile| profile.parse::<u32>().is_err()) {
        Some(profile) => Err(Error::invalid(format!(
            "{subject} and platform {platform} specifies invalid profile {profile}. The field should contain the \
             string representation of a non-negative integer."
        ))),
        None => Ok(()),
    }
}
