//! Row "ensemble graph", as far as one configuration alone shows it: what an ensemble must and must not have.

use super::super::Error;
use super::super::normalize::ENSEMBLE_PLATFORM;
use crate::wire::inference::ModelConfig;
use crate::wire::inference::model_config::SchedulingChoice;

pub(super) fn check(config: &ModelConfig) -> Result<(), Error> {
    let model = &config.name;
    let is_ensemble = config.platform == ENSEMBLE_PLATFORM;
    let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &config.scheduling_choice else {
        if is_ensemble {
            return Err(Error::invalid(format!(
                "ensemble scheduling must be set for ensemble {model} whose platform is {ENSEMBLE_PLATFORM}"
            )));
        }
        return Ok(());
    };
    if !is_ensemble {
        return Err(Error::invalid(format!(
            "ensemble scheduling cannot be set for model '{model}' whose platform is not {ENSEMBLE_PLATFORM}"
        )));
    }
    let misplaced = [
        ("instance group should", !config.instance_group.is_empty()),
        ("optimization should", config.optimization.is_some()),
        ("model_warmup can", !config.model_warmup.is_empty()),
    ];
    if let Some((what, _)) = misplaced.into_iter().find(|(_, given)| *given) {
        return Err(Error::invalid(format!("{what} not be specified for ensemble '{model}'")));
    }
    if ensemble.step.is_empty() {
        return Err(Error::invalid(format!("must specify 'step' for ensemble '{model}'")));
    }
    for (index, step) in ensemble.step.iter().enumerate() {
        let missing = if step.model_name.is_empty() {
            "model_name"
        } else if step.input_map.is_empty() {
            "input_map"
        } else if step.output_map.is_empty() {
            "output_map"
        } else {
            continue;
        };
        return Err(Error::invalid(format!("must specify '{missing}' in step {index} of ensemble '{model}'")));
    }
    Ok(())
}
