//! Rows "dynamic" and "cache"; "sequence" is next door.

use super::super::Error;
use super::sequence;
use crate::wire::inference::model_config::SchedulingChoice;
use crate::wire::inference::model_queue_policy::TimeoutAction;
use crate::wire::inference::{ModelConfig, ModelDynamicBatching, ModelQueuePolicy};

pub(super) fn check(config: &ModelConfig) -> Result<(), Error> {
    match &config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(dynamic)) => check_dynamic(config, dynamic)?,
        Some(SchedulingChoice::SequenceBatching(batching)) => sequence::check(config, batching)?,
        Some(SchedulingChoice::EnsembleScheduling(_)) | None => {}
    }
    check_cache(config)
}

/// Batch sizes that a batcher aims at.
pub(super) fn check_preferred(config: &ModelConfig, sizes: &[i32], prefix: &str) -> Result<(), Error> {
    for size in sizes {
        let rule = match *size {
            size if size <= 0 => "be positive",
            size if size > config.max_batch_size => "be <= max batch size",
            _ => continue,
        };
        return Err(Error::invalid(format!("{prefix} must {rule} for {}", config.name)));
    }
    Ok(())
}

fn check_dynamic(config: &ModelConfig, dynamic: &ModelDynamicBatching) -> Result<(), Error> {
    let model = &config.name;
    check_preferred(config, &dynamic.preferred_batch_size, "dynamic batching preferred size")?;
    let levels = dynamic.priority_levels;
    if levels != 0 {
        let valid = 1..=levels;
        if !valid.contains(&dynamic.default_priority_level) {
            return Err(Error::invalid(format!("default priority level must be in range [1, {levels}] for {model}")));
        }
        if dynamic.priority_queue_policy.keys().any(|level| !valid.contains(level)) {
            return Err(Error::invalid(format!(
                "priority queue policy must have priority level in range [1, {levels}] for {model}"
            )));
        }
    }
    if dynamic.preserve_ordering {
        if levels > 1 {
            return Err(Error::invalid(format!(
                "Only one priority level is allowed when 'preserve_ordering' is true for {model}"
            )));
        }
        let delays = |policy: &ModelQueuePolicy| {
            policy.default_timeout_microseconds != 0 && policy.timeout_action() == TimeoutAction::Delay
        };
        if dynamic.default_queue_policy.iter().chain(dynamic.priority_queue_policy.values()).any(delays) {
            return Err(Error::invalid(format!(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for {model}"
            )));
        }
    }
    Ok(())
}

fn check_cache(config: &ModelConfig) -> Result<(), Error> {
    if !config.response_cache.is_some_and(|cache| cache.enable) {
        return Ok(());
    }
    let conflict = if matches!(config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_))) {
        "with sequence batching scheduler"
    } else if config.model_transaction_policy.is_some_and(|policy| policy.decoupled) {
        "with 'decoupled' transaction policy"
    } else {
        return Ok(());
    };
    Err(Error::invalid(format!(
        "Response Cache does not currently support model {} {conflict}. Please disable the response cache.",
        config.name
    )))
}
