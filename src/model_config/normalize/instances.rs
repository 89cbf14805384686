//! How many instances a model has, of which kind and by which name (rule 6).

use crate::wire::inference::model_config::SchedulingChoice;
use crate::wire::inference::model_instance_group::Kind;
use crate::wire::inference::{ModelConfig, ModelInstanceGroup};

/// What a backend would choose for a model that names no instance group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreferredGroup {
    pub kind: Kind,
    /// 0 where the backend has no opinion.
    pub count: i32,
    /// The devices that it wants; only a group on GPUs may have some.
    pub gpus: Vec<i32>,
}

impl PreferredGroup {
    pub fn new(kind: Kind, count: i32) -> PreferredGroup {
        PreferredGroup { kind, count, gpus: Vec::new() }
    }
}

/// Rule 6 for a host without GPUs.
///
/// KIND_GPU is left as it is: `validate` refuses it with its own words.
pub fn instance_groups(config: &mut ModelConfig, preferred: &[PreferredGroup]) {
    if matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_))) {
        return;
    }
    if config.instance_group.is_empty() {
        // Preferences are in the backend's order; one for a GPU cannot be met here.
        let choice = preferred.iter().find(|group| group.kind != Kind::Gpu);
        config.instance_group.push(ModelInstanceGroup {
            name: config.name.clone(),
            kind: choice.map_or(Kind::Auto, |group| group.kind).into(),
            count: choice.map_or(0, |group| group.count),
            // A check has words for devices of a group that cannot have any.
            gpus: choice.map(|group| group.gpus.clone()).unwrap_or_default(),
            ..Default::default()
        });
    }
    for (index, group) in config.instance_group.iter_mut().enumerate() {
        if group.name.is_empty() {
            group.name = format!("{}_{index}", config.name);
        }
        if group.kind() == Kind::Auto {
            group.set_kind(Kind::Cpu);
        }
        if group.count < 1 {
            let kind = group.kind();
            group.count = preferred
                .iter()
                .find(|preferred| preferred.kind == kind && preferred.count > 0)
                .map_or_else(|| default_instance_count(&config.backend, kind), |preferred| preferred.count);
        }
    }
}

/// Instances of a group that does not say how many: one, or two where a CPU model gains from overlapping requests.
pub fn default_instance_count(backend: &str, kind: Kind) -> i32 {
    if kind == Kind::Cpu && matches!(backend, "onnxruntime" | "tensorflow") { 2 } else { 1 }
}
