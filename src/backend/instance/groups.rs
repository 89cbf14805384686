//! Which instances a configuration defines, which of them may stay when it changes, and on which threads they run.

use crate::{ExecutionPolicy, ModelContext};
use nereid_gpu::Gpu;
use nereid_model_config::{InstanceKind, ModelSpec};
use nereid_request::Status;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_instance_group::Kind;
use nereid_wire::inference::{ModelInstanceGroup, ModelRateLimiter};

/// Bytes of a thread's name that the kernel keeps.
const THREAD_NAME_BYTES_MAX: usize = 15;

/// One instance that the configuration defines.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct InstanceSpec {
    pub name: String,
    pub key: InstanceKey,
    /// Position of its group.
    pub group: usize,
}

/// The properties that make two instances interchangeable: device and all settings of their groups but name and count
/// (contract/schedulers.md section 10).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct InstanceKey {
    group: ModelInstanceGroup,
    pub device: i32,
}

/// Instances that share one thread.
#[derive(Debug, PartialEq)]
pub(super) struct ThreadPlan {
    pub instance_specs: Vec<InstanceSpec>,
    /// Name of the host policy.
    pub policy: String,
    pub is_passive: bool,
    /// Whether they are grouped by their device, even if there is only one yet.
    pub is_device: bool,
    pub thread_name: String,
}

impl InstanceKey {
    pub fn kind(&self) -> Kind {
        self.group.kind()
    }

    /// The settings of its group, without name and count.
    pub fn group(&self) -> &ModelInstanceGroup {
        &self.group
    }

    pub fn rate_limiter(&self) -> Option<&ModelRateLimiter> {
        self.group.rate_limiter.as_ref()
    }

    /// The name of the host policy: the group's, else that of its kind (contract/model_config.md section 2).
    fn policy(&self) -> String {
        match (self.group.host_policy.as_str(), self.kind()) {
            ("", Kind::Gpu) => format!("gpu_{}", self.device),
            ("", Kind::Model) => "model".to_owned(),
            ("", Kind::Cpu | Kind::Auto) => "cpu".to_owned(),
            (named, _) => named.to_owned(),
        }
    }
}

impl ThreadPlan {
    /// The device of its instances, if they have one.
    pub fn gpu(&self, context: &ModelContext) -> Result<Option<Gpu>, Status> {
        let Some(instance_spec) = self.instance_specs.first().filter(|spec| spec.key.kind() == Kind::Gpu) else {
            return Ok(None);
        };
        let (name, device) = (&instance_spec.name, instance_spec.key.device);
        // The configuration was checked against the present devices.
        let gone = || Status::internal(format!("instance '{name}' is for GPU {device}, which the server does not use"));
        let gpu = context.gpus.get(device).ok_or_else(gone)?;
        Ok(Some(gpu.clone()))
    }
}

/// Every instance of a resolved configuration, in its order.
pub(super) fn instance_specs(spec: &ModelSpec) -> Vec<InstanceSpec> {
    let instance_spec = |instance: &nereid_model_config::Instance| {
        let group = spec.config.instance_group.get(instance.group).cloned().unwrap_or_default();
        let group = ModelInstanceGroup { name: String::new(), count: 0, ..group };
        let device = match instance.kind {
            InstanceKind::Gpu(device) => device,
            InstanceKind::Cpu | InstanceKind::Model => 0,
        };
        InstanceSpec { name: instance.name.clone(), key: InstanceKey { group, device }, group: instance.group }
    };
    spec.instances.iter().map(instance_spec).collect()
}

/// Distributes instances over threads: one each, or one for all GPU instances of a device where the backend wants its
/// devices blocked (contract/c_api.md section 5, "Threads"). A sequence stays with its instance, so that a model with a
/// sequence scheduler never shares.
pub(super) fn plan_threads(
    instance_specs: Vec<InstanceSpec>,
    policy: ExecutionPolicy,
    spec: &ModelSpec,
) -> Vec<ThreadPlan> {
    let has_sequences = matches!(spec.config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_)));
    let blocks = policy == ExecutionPolicy::DeviceBlocking && !has_sequences;
    let mut thread_plans: Vec<ThreadPlan> = Vec::new();
    for instance_spec in instance_specs {
        let (policy, is_passive) = (instance_spec.key.policy(), instance_spec.key.group.passive);
        let is_device = blocks && instance_spec.key.kind() == Kind::Gpu && !is_passive;
        let same = |thread_plan: &&mut ThreadPlan| {
            thread_plan.is_device
                && thread_plan.policy == policy
                && thread_plan.instance_specs.iter().all(|one| one.key.device == instance_spec.key.device)
        };
        if is_device && let Some(thread_plan) = thread_plans.iter_mut().find(same) {
            thread_plan.instance_specs.push(instance_spec);
            continue;
        }
        let thread_name = match is_device {
            true => shortened(&spec.name, &format!("_gpu{}", instance_spec.key.device)),
            false => thread_name(&instance_spec, &spec.name),
        };
        thread_plans.push(ThreadPlan {
            instance_specs: vec![instance_spec],
            policy,
            is_passive,
            is_device,
            thread_name,
        });
    }
    thread_plans
}

/// The instance's name, or a shortened name with the suffix that distinguishes it from its siblings.
fn thread_name(instance_spec: &InstanceSpec, model: &str) -> String {
    if instance_spec.name.len() <= THREAD_NAME_BYTES_MAX {
        return instance_spec.name.clone();
    }
    let (group, number) = instance_spec.name.rsplit_once('_').unwrap_or((&instance_spec.name, "0"));
    // A synthesised group has the model's name, and is the only one.
    let suffix = if group == model { format!("_{number}") } else { format!("_{}_{number}", instance_spec.group) };
    shortened(group, &suffix)
}

/// As much of `head` as fits before `tail`.
fn shortened(head: &str, tail: &str) -> String {
    let room = THREAD_NAME_BYTES_MAX.saturating_sub(tail.len());
    let end = (0..=room.min(head.len())).rev().find(|&end| head.is_char_boundary(end)).unwrap_or(0);
    format!("{}{tail}", &head[..end])
}

#[cfg(test)]
mod tests;
