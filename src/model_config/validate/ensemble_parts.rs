//! Rows "ensemble vs parts": checks that an ensemble fits the models of its steps.
//!
//! Pure functions of configurations, so that they can run at any change of the repository: the caller looks up the
//! models that serve.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Error;
use super::super::datatype::config_name;
use super::super::shape_match::{WILDCARD, format_shape, full_dims};
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_ensembling::Step;

/// The state of the model that a step names.
#[derive(Debug, Clone)]
pub enum StepModel<'a> {
    /// There is no such model, or there are several.
    Unknown,
    /// No version of it serves; why, if its last load failed.
    NotLoaded { reason: Option<String> },
    /// An ensemble that does not fit its own parts, and why.
    Invalid { reason: String },
    /// The versions that serve, with their final configurations.
    Loaded(Vec<(i64, &'a ModelConfig)>),
}

/// How many responses an ensemble that fits its parts sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Some step answers any number of times, and so does the ensemble.
    pub decoupled: bool,
}

/// Holds an ensemble that passed [`super::at_load`] against its parts.
pub fn ensemble_parts<'a>(config: &ModelConfig, part: impl Fn(&Step) -> StepModel<'a>) -> Result<Flow, Error> {
    let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &config.scheduling_choice else {
        return Ok(Flow { decoupled: false });
    };
    let parts: Vec<(&Step, StepModel<'a>)> = ensemble.step.iter().map(|step| (step, part(step))).collect();
    let ensemble = &config.name;
    let mut unknown: Vec<&str> = Vec::new();
    for (step, _) in parts.iter().filter(|(_, part)| matches!(part, StepModel::Unknown)) {
        if !unknown.contains(&step.model_name.as_str()) {
            unknown.push(&step.model_name);
        }
    }
    if !unknown.is_empty() {
        return Err(Error::invalid(format!(
            "ensemble {ensemble} contains models that are not available or ambiguous: {}",
            unknown.join(", ")
        )));
    }
    let mut steps = Vec::with_capacity(parts.len());
    for (step, part) in &parts {
        steps.push((*step, loaded(ensemble, step, part)?));
    }
    check_tensors(config, &steps)?;
    check_flow(config, &steps)
}

/// Refuses an ensemble that is, directly or through other models, a part of itself. `K` identifies a model; `parts_of`
/// lists the models that the steps of an ensemble mean; for any other model, none.
pub fn ensemble_cycle<K: Clone + Ord>(
    ensemble: &K,
    name: impl Fn(&K) -> &str,
    parts_of: impl Fn(&K) -> Vec<K>,
) -> Result<(), Error> {
    let mut pending = vec![ensemble.clone()];
    let mut seen = BTreeSet::new();
    while let Some(model) = pending.pop() {
        let parts = parts_of(&model);
        if parts.iter().any(|part| part == ensemble) {
            let (ensemble, model) = (name(ensemble), name(&model));
            return Err(Error::invalid(format!(
                "circular dependency between ensembles: {ensemble} -> ... -> {model} -> {ensemble}"
            )));
        }
        if seen.insert(model) {
            pending.extend(parts.into_iter().filter(|part| !seen.contains(part)));
        }
    }
    Ok(())
}

/// The configuration of the version that a step requires.
fn loaded<'a>(ensemble: &str, step: &Step, part: &StepModel<'a>) -> Result<&'a ModelConfig, Error> {
    let model = &step.model_name;
    let none = || format!("ensemble '{ensemble}' depends on '{model}' which has no loaded version");
    let message = match part {
        StepModel::Unknown | StepModel::NotLoaded { reason: None } => none(),
        StepModel::NotLoaded { reason: Some(reason) } => {
            format!("{}. Model '{model}' loading failed with error: {reason}", none())
        }
        StepModel::Invalid { reason } => format!(
            "ensemble '{ensemble}' depends on '{model}' which is not valid. Model '{model}' failed with error: {reason}"
        ),
        StepModel::Loaded(versions) => {
            let wanted = if step.model_version == WILDCARD {
                versions.iter().max_by_key(|(version, _)| *version)
            } else {
                versions.iter().find(|(version, _)| *version == step.model_version)
            };
            match wanted {
                Some((_, config)) => return Ok(config),
                None if versions.is_empty() => none(),
                None => format!(
                    "ensemble '{ensemble}' depends on '{model}' whose required version {} is not loaded.",
                    step.model_version
                ),
            }
        }
    };
    Err(Error::invalid(message))
}

/// A tensor's type and shape as the ensemble or one of its models declares them.
struct Claim<'a> {
    model: &'a str,
    data_type: i32,
    dims: &'a [i64],
    batching: bool,
}

impl Claim<'_> {
    /// True also for two shapes that are equal with the batch dimension, which one model declares as such and the other
    /// among its own dimensions.
    fn fits(&self, other: &Claim<'_>) -> bool {
        let same = |ours: &[i64], theirs: &[i64]| {
            let fits = |(a, b): (&i64, &i64)| a == b || *a == WILDCARD || *b == WILDCARD;
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(fits)
        };
        same(self.dims, other.dims)
            || same(&full_dims(self.dims, self.batching), &full_dims(other.dims, other.batching))
    }
}

/// The claims by tensor; later ones are compared with the first.
type Claims<'a> = BTreeMap<&'a str, Claim<'a>>;

fn check_tensors(config: &ModelConfig, steps: &[(&Step, &ModelConfig)]) -> Result<(), Error> {
    let ensemble = config.name.as_str();
    let mut claims: Claims<'_> = BTreeMap::new();
    let own = config.max_batch_size > 0;
    // Behind a `reshape` of the ensemble's own, as its steps see them.
    for input in &config.input {
        let dims = input.reshape.as_ref().map_or(&input.dims, |reshape| &reshape.shape);
        let claim = Claim { model: ensemble, data_type: input.data_type, dims, batching: own };
        agree(ensemble, &mut claims, &input.name, claim)?;
    }
    for output in &config.output {
        let dims = output.reshape.as_ref().map_or(&output.dims, |reshape| &reshape.shape);
        let claim = Claim { model: ensemble, data_type: output.data_type, dims, batching: own };
        agree(ensemble, &mut claims, &output.name, claim)?;
    }
    for (step, part) in steps {
        let model = step.model_name.as_str();
        if part.max_batch_size != 0 && part.max_batch_size < config.max_batch_size {
            return Err(Error::invalid(format!(
                "ensemble {ensemble} allows maximum batch size {}, but it contains model {model} which only allows \
                 maximum batch size to be {}",
                config.max_batch_size, part.max_batch_size
            )));
        }
        check_maps(ensemble, step, part).map_err(Error::invalid)?;
        let batching = part.max_batch_size > 0;
        for input in &part.input {
            if let Some(tensor) = step.input_map.get(&input.name) {
                let claim = Claim { model, data_type: input.data_type, dims: &input.dims, batching };
                agree(ensemble, &mut claims, tensor, claim)?;
            }
        }
        for output in &part.output {
            if let Some(tensor) = step.output_map.get(&output.name) {
                let claim = Claim { model, data_type: output.data_type, dims: &output.dims, batching };
                agree(ensemble, &mut claims, tensor, claim)?;
            }
        }
    }
    Ok(())
}

/// Are the maps of a step about tensors that its model has, and about all that it needs?
fn check_maps(ensemble: &str, step: &Step, part: &ModelConfig) -> Result<(), String> {
    let model = &step.model_name;
    let known: BTreeSet<&str> = part.input.iter().map(|input| &*input.name).collect();
    for (input, tensor) in &step.input_map {
        if !known.contains(&**input) {
            return Err(format!(
                "in ensemble {ensemble}, ensemble tensor {tensor} is mapping to non-existing input {input} in model \
                 {model}"
            ));
        }
    }
    // A map has each key once, so that no input can be mapped to several tensors.
    let unmapped = part.input.iter().find(|input| !input.optional && !step.input_map.contains_key(&input.name));
    if let Some(input) = unmapped {
        return Err(format!(
            "in ensemble {ensemble}, input {} in model {model} is not mapped to any ensemble tensors",
            input.name
        ));
    }
    let known: BTreeSet<&str> = part.output.iter().map(|output| &*output.name).collect();
    let mut tensors = BTreeSet::new();
    for (output, tensor) in &step.output_map {
        if !known.contains(&**output) {
            return Err(format!(
                "in ensemble {ensemble}, ensemble tensor {tensor} is mapped from non-existing output {output} in \
                 model {model}"
            ));
        }
        if !tensors.insert(tensor) {
            return Err(format!(
                "in ensemble {ensemble}, multiple outputs in model {model} are mapped to the same ensemble tensor \
                 {tensor}"
            ));
        }
    }
    Ok(())
}

fn agree<'a>(ensemble: &str, claims: &mut Claims<'a>, tensor: &'a str, claim: Claim<'a>) -> Result<(), Error> {
    let Some(known) = claims.get(tensor) else {
        claims.insert(tensor, claim);
        return Ok(());
    };
    let refused = |what: &str, ours: String, theirs: String| {
        Err(Error::invalid(format!(
            "in ensemble {ensemble}, ensemble tensor {tensor}: inconsistent {what}: {ours} is inferred from model {} \
             while {theirs} is inferred from model {}",
            known.model, claim.model
        )))
    };
    if known.data_type != claim.data_type {
        let name = |number| config_name(number).to_owned();
        return refused("data type", name(known.data_type), name(claim.data_type));
    }
    if !known.fits(&claim) {
        return refused("shape", format_shape(known.dims), format_shape(claim.dims));
    }
    Ok(())
}

/// Follows the tensors from the ensemble's inputs: the last decoupled step before a tensor decides how often it is
/// written, and a step can only join tensors that are written equally often.
fn check_flow(config: &ModelConfig, steps: &[(&Step, &ModelConfig)]) -> Result<Flow, Error> {
    // The last decoupled step before a tensor; `None` for a tensor that is written once.
    let mut sources: BTreeMap<&str, Option<usize>> =
        config.input.iter().map(|input| (input.name.as_str(), None)).collect();
    let mut pending: Vec<usize> = (0..steps.len()).collect();
    let mut decoupled = false;
    loop {
        let before = pending.len();
        let mut waiting = Vec::new();
        for index in pending {
            let Some((step, part)) = steps.get(index) else { continue };
            let inputs: Option<BTreeSet<Option<usize>>> =
                step.input_map.values().map(|tensor| sources.get(tensor.as_str()).copied()).collect();
            let Some(inputs) = inputs else {
                waiting.push(index);
                continue;
            };
            if inputs.len() > 1 {
                return Err(joined(config, &step.model_name));
            }
            let is_decoupled = part.model_transaction_policy.is_some_and(|policy| policy.decoupled);
            decoupled |= is_decoupled;
            let source = if is_decoupled { Some(index) } else { inputs.into_iter().next().flatten() };
            sources.extend(step.output_map.values().map(|tensor| (tensor.as_str(), source)));
        }
        // Tensors that no input leads to were refused with the graph.
        if waiting.is_empty() || waiting.len() == before {
            break;
        }
        pending = waiting;
    }
    // A response of the ensemble joins its outputs as a step joins its inputs.
    let outputs: BTreeSet<_> = config.output.iter().filter_map(|output| sources.get(output.name.as_str())).collect();
    if outputs.len() > 1 {
        return Err(joined(config, &config.name));
    }
    Ok(Flow { decoupled })
}

fn joined(config: &ModelConfig, model: &str) -> Error {
    let ensemble = &config.name;
    Error::invalid(format!(
        "in ensemble {ensemble}, step of model '{model}' receives inputs originated from different decoupled models"
    ))
}

#[cfg(test)]
mod tests;
