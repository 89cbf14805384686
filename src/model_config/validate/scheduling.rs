//! Rows "dynamic" and "cache"; "sequence" is next door.

use super::{Findings, sequence};
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_queue_policy::TimeoutAction;
use nereid_wire::inference::{ModelConfig, ModelDynamicBatching, ModelQueuePolicy};

pub(super) fn check(config: &ModelConfig, findings: &mut Findings) {
    match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(dynamic)) => check_dynamic(config, dynamic, findings),
        Some(SchedulingChoice::SequenceBatching(batching)) => sequence::check(config, batching, findings),
        Some(SchedulingChoice::EnsembleScheduling(_)) | None => {}
    }
    check_cache(config, findings);
}

/// Batch sizes that a batcher aims at, which stand at `path`.
pub(super) fn check_preferred(config: &ModelConfig, sizes: &[i32], prefix: &str, path: &str, findings: &mut Findings) {
    for (index, size) in sizes.iter().enumerate() {
        let rule = match *size {
            size if size <= 0 => "be positive",
            size if size > config.max_batch_size => "be <= max batch size",
            _ => continue,
        };
        findings.invalid(format!("{path}[{index}]"), format!("{prefix} must {rule} for {}", config.name));
    }
}

fn check_dynamic(config: &ModelConfig, dynamic: &ModelDynamicBatching, findings: &mut Findings) {
    let model = &config.name;
    let path = "dynamic_batching.preferred_batch_size";
    check_preferred(config, &dynamic.preferred_batch_size, "dynamic batching preferred size", path, findings);
    let levels = dynamic.priority_levels;
    if levels != 0 {
        let valid = 1..=levels;
        if !valid.contains(&dynamic.default_priority_level) {
            let message = format!("default priority level must be in range [1, {levels}] for {model}");
            findings.invalid("dynamic_batching.default_priority_level", message);
        }
        for level in dynamic.priority_queue_policy.keys().filter(|level| !valid.contains(level)) {
            let message = format!("priority queue policy must have priority level in range [1, {levels}] for {model}");
            findings.invalid(format!("dynamic_batching.priority_queue_policy[{level}]"), message);
        }
    }
    if dynamic.preserve_ordering {
        if levels > 1 {
            let message = format!("Only one priority level is allowed when 'preserve_ordering' is true for {model}");
            findings.invalid("dynamic_batching.priority_levels", message);
        }
        let delays = |policy: &ModelQueuePolicy| {
            policy.default_timeout_microseconds != 0 && policy.timeout_action() == TimeoutAction::Delay
        };
        let message =
            format!("Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {model}");
        if dynamic.default_queue_policy.as_ref().is_some_and(delays) {
            findings.invalid("dynamic_batching.default_queue_policy.timeout_action", message.clone());
        }
        if let Some((level, _)) = dynamic.priority_queue_policy.iter().find(|(_, policy)| delays(policy)) {
            findings.invalid(format!("dynamic_batching.priority_queue_policy[{level}].timeout_action"), message);
        }
    }
}

fn check_cache(config: &ModelConfig, findings: &mut Findings) {
    if !config.response_cache.is_some_and(|cache| cache.enable) {
        return;
    }
    let conflict = if matches!(config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_))) {
        "with sequence batching scheduler"
    } else if config.model_transaction_policy.is_some_and(|policy| policy.decoupled) {
        "with 'decoupled' transaction policy"
    } else {
        return;
    };
    let message = format!(
        "Response Cache does not currently support model {} {conflict}. Please disable the response cache.",
        config.name
    );
    findings.invalid("response_cache.enable", message);
}
