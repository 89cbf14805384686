//! How many instances a model has, of which kind and by which name (rule 6).

use super::super::SupportedGpus;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_instance_group::Kind;
use nereid_wire::inference::{ModelConfig, ModelInstanceGroup};

/// An instance group that a backend prefers for a model that configures none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreferredGroup {
    pub kind: Kind,
    /// 0 where the backend has no preference.
    pub count: i32,
    /// The devices that it prefers; only a group on GPUs may have some.
    pub gpus: Vec<i32>,
}

impl PreferredGroup {
    pub fn new(kind: Kind, count: i32) -> PreferredGroup {
        PreferredGroup { kind, count, gpus: Vec::new() }
    }
}

/// Rule 6 for a host with these GPUs.
///
/// A group on GPUs that do not exist is left as it is: `validate` refuses it with its own error.
pub fn instance_groups(config: &mut ModelConfig, preferred: &[PreferredGroup], gpus: &SupportedGpus) {
    if matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_))) {
        return;
    }
    if config.instance_group.is_empty() {
        config.instance_group.push(synthesised(&config.name, preferred, gpus));
    }
    for (index, group) in config.instance_group.iter_mut().enumerate() {
        if group.name.is_empty() {
            group.name = format!("{}_{index}", config.name);
        }
        if group.kind() == Kind::Auto {
            // Missing devices that it names leave it on the host, where a check reports them.
            let is_there = !gpus.is_empty() && group.gpus.iter().all(|id| gpus.has(*id));
            group.set_kind(if is_there { Kind::Gpu } else { Kind::Cpu });
        }
        let kind = group.kind();
        for preferred in preferred.iter().filter(|preferred| preferred.kind == kind) {
            if kind == Kind::Gpu && group.gpus.is_empty() && !preferred.gpus.is_empty() {
                group.gpus = there_of(preferred, gpus);
                if group.gpus.is_empty() {
                    continue;
                }
            }
            if group.count < 1 && preferred.count > 0 {
                group.count = preferred.count;
            }
        }
        if group.count < 1 {
            group.count = default_instance_count(&config.backend, kind);
        }
        if kind == Kind::Gpu && group.gpus.is_empty() {
            group.gpus = gpus.ids().iter().copied().collect();
        }
    }
}

/// The group of a model that names none: the first preference, in the backend's order, that can be met.
fn synthesised(model: &str, preferred: &[PreferredGroup], gpus: &SupportedGpus) -> ModelInstanceGroup {
    let can_be_met = |group: &&PreferredGroup| match group.kind {
        Kind::Gpu if group.gpus.is_empty() => !gpus.is_empty(),
        Kind::Gpu => !there_of(group, gpus).is_empty(),
        _ => true,
    };
    let choice = preferred.iter().find(can_be_met);
    ModelInstanceGroup {
        name: model.to_owned(),
        kind: choice.map_or(Kind::Auto, |group| group.kind).into(),
        count: choice.map_or(0, |group| group.count),
        gpus: choice.map_or_else(Vec::new, |group| match group.kind {
            Kind::Gpu => there_of(group, gpus),
            // A check has words for devices of a group that cannot have any.
            _ => group.gpus.clone(),
        }),
        ..Default::default()
    }
}

/// Of the devices that a backend prefers, those that there are.
fn there_of(preferred: &PreferredGroup, gpus: &SupportedGpus) -> Vec<i32> {
    preferred.gpus.iter().copied().filter(|id| gpus.has(*id)).collect()
}

/// The default number of instances of a group: one, or two where a CPU model gains from overlapping requests.
pub fn default_instance_count(backend: &str, kind: Kind) -> i32 {
    if kind == Kind::Cpu && matches!(backend, "onnxruntime" | "tensorflow") { 2 } else { 1 }
}
