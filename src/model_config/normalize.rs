//! Defaults for values that a configuration leaves out (contract/model_config.md section 5).
//!
//! Rules 1 to 5 run before any backend is touched; 2 to 5 again after a backend completed the configuration; rule 6,
//! the instance groups, when the backend is loaded and has reported its preferences. All of them are idempotent.

use super::Error;
use super::layout::Layout;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_optimization_policy::PinnedMemoryBuffer;
use nereid_wire::inference::model_sequence_batching::StrategyChoice;
use nereid_wire::inference::model_version_policy::{Latest, PolicyChoice};
use nereid_wire::inference::{ModelConfig, ModelVersionPolicy};

mod backend;
mod instances;

pub use backend::{ModelFile, model_files};
pub use instances::{PreferredGroup, default_instance_count, instance_groups};

/// A sequence without requests for this long is over, unless the configuration sets another time.
pub const DEFAULT_SEQUENCE_IDLE_US: u64 = 1_000_000;

/// Platform of an ensemble, the one kind of model without a backend.
pub const ENSEMBLE_PLATFORM: &str = "ensemble";

/// Rules 1 to 5, on the model that lies in a directory called `directory_name`.
pub fn normalize(config: &mut ModelConfig, directory_name: &str, layout: &Layout) -> Result<(), Error> {
    if config.name.is_empty() {
        directory_name.clone_into(&mut config.name);
    }
    backend::infer(config, directory_name, layout.first_subdirectory.as_deref())?;
    fill_defaults(config);
    Ok(())
}

/// Rules 2 to 5.
pub fn fill_defaults(config: &mut ModelConfig) {
    let policy = config.version_policy.get_or_insert_with(ModelVersionPolicy::default);
    if policy.policy_choice.is_none() {
        policy.policy_choice = Some(PolicyChoice::Latest(Latest { num_versions: 1 }));
    }
    let preferred = |sizes: &mut Vec<i32>| {
        if sizes.is_empty() && config.max_batch_size > 0 {
            sizes.push(config.max_batch_size);
        }
    };
    match &mut config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(dynamic)) => preferred(&mut dynamic.preferred_batch_size),
        Some(SchedulingChoice::SequenceBatching(sequence)) => {
            if sequence.max_sequence_idle_microseconds == 0 {
                sequence.max_sequence_idle_microseconds = DEFAULT_SEQUENCE_IDLE_US;
            }
            if let Some(StrategyChoice::Oldest(oldest)) = &mut sequence.strategy_choice {
                preferred(&mut oldest.preferred_batch_size);
            }
        }
        // An ensemble owns no memory: a check refuses its optimization section altogether.
        Some(SchedulingChoice::EnsembleScheduling(_)) => return,
        None => {}
    }
    let optimization = config.optimization.get_or_insert_default();
    optimization.input_pinned_memory.get_or_insert(PinnedMemoryBuffer { enable: true });
    optimization.output_pinned_memory.get_or_insert(PinnedMemoryBuffer { enable: true });
}

#[cfg(test)]
mod tests;
