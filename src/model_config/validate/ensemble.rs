//! Row "ensemble graph": required and forbidden fields of an ensemble, and whether its steps connect its inputs to its
//! outputs, as far as its own configuration shows it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::super::normalize::ENSEMBLE_PLATFORM;
use super::Findings;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::{ModelConfig, ModelEnsembling};

pub(super) fn check(config: &ModelConfig, findings: &mut Findings) {
    let model = &config.name;
    let is_ensemble = config.platform == ENSEMBLE_PLATFORM;
    let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &config.scheduling_choice else {
        if is_ensemble {
            let message =
                format!("ensemble scheduling must be set for ensemble {model} whose platform is {ENSEMBLE_PLATFORM}");
            findings.invalid("ensemble_scheduling", message);
        }
        return;
    };
    if !is_ensemble {
        let message =
            format!("ensemble scheduling cannot be set for model '{model}' whose platform is not {ENSEMBLE_PLATFORM}");
        findings.invalid("ensemble_scheduling", message);
        return;
    }
    let misplaced = [
        ("instance_group", "instance group should", !config.instance_group.is_empty()),
        ("optimization", "optimization should", config.optimization.is_some()),
        ("model_warmup", "model_warmup can", !config.model_warmup.is_empty()),
    ];
    for (path, what, _) in misplaced.into_iter().filter(|(_, _, given)| *given) {
        findings.invalid(path, format!("{what} not be specified for ensemble '{model}'"));
    }
    if ensemble.step.is_empty() {
        findings.invalid("ensemble_scheduling.step", format!("must specify 'step' for ensemble '{model}'"));
        return;
    }
    if let Some(graph) = Graph::of(model, ensemble, findings) {
        graph.check(config, findings);
    }
}

/// One tensor of the ensemble.
#[derive(Default)]
struct Tensor<'a> {
    /// A step writes it.
    is_written: bool,
    /// The tensors that the step that writes it reads.
    before: BTreeSet<&'a str>,
    /// The tensors that the steps that read it write.
    after: BTreeSet<&'a str>,
    /// The path of the field that names it first.
    path: String,
}

/// The tensors by name.
struct Graph<'a>(BTreeMap<&'a str, Tensor<'a>>);

impl<'a> Graph<'a> {
    /// `None` if a step is incomplete, because its missing names would cause false findings.
    fn of(model: &str, ensemble: &'a ModelEnsembling, findings: &mut Findings) -> Option<Graph<'a>> {
        let mut tensors: BTreeMap<&str, Tensor<'_>> = BTreeMap::new();
        let mut is_complete = true;
        for (index, step) in ensemble.step.iter().enumerate() {
            let path = format!("ensemble_scheduling.step[{index}]");
            let missing = if step.model_name.is_empty() {
                "model_name"
            } else if step.input_map.is_empty() {
                "input_map"
            } else if step.output_map.is_empty() {
                "output_map"
            } else {
                ""
            };
            if !missing.is_empty() {
                let message = format!("must specify '{missing}' in step {index} of ensemble '{model}'");
                findings.invalid(format!("{path}.{missing}"), message);
                is_complete = false;
                continue;
            }
            for (output, name) in &step.output_map {
                let path = format!("{path}.output_map[{output:?}]");
                let tensor = named(&mut tensors, name, &path);
                if std::mem::replace(&mut tensor.is_written, true) {
                    let message = format!(
                        "ensemble tensor '{name}' can appear in an output map only once for ensemble '{model}' step \
                         {index}"
                    );
                    findings.invalid(path, message);
                    is_complete = false;
                }
                tensor.before.extend(step.input_map.values().map(String::as_str));
            }
            for (input, name) in &step.input_map {
                let tensor = named(&mut tensors, name, &format!("{path}.input_map[{input:?}]"));
                tensor.after.extend(step.output_map.values().map(String::as_str));
            }
        }
        is_complete.then_some(Graph(tensors))
    }

    fn check(&self, config: &ModelConfig, findings: &mut Findings) {
        let model = &config.name;
        let mut is_connected = true;
        let mut refuse = |path: String, message: String| {
            findings.invalid(path, message);
            is_connected = false;
        };
        let mut given = Vec::new();
        for (index, input) in config.input.iter().enumerate() {
            // The unpaired quote is Triton's, here and below.
            match self.0.get_key_value(input.name.as_str()) {
                Some((name, _)) => given.push(*name),
                None => refuse(
                    format!("input[{index}].name"),
                    format!("ensemble input '{}' for ensemble {model}' is not used", input.name),
                ),
            }
        }
        let ready = self.reach(given);
        let mut outputs = BTreeSet::new();
        for (index, output) in config.output.iter().enumerate() {
            let name = output.name.as_str();
            let path = format!("output[{index}].name");
            outputs.insert(name);
            match self.0.get(name) {
                None => refuse(path, format!("ensemble output '{name}' for ensemble {model}' is not used")),
                Some(tensor) if !ready.contains(name) => {
                    let mut message = format!("output '{name}' for ensemble '{model}' is not written");
                    if let Some(lost) = self.origin(tensor, &ready) {
                        message.push_str(": at least one of its depending tensors, '");
                        message.push_str(lost);
                        message.push_str("', is not connected");
                    }
                    refuse(path, message);
                }
                Some(_) => {}
            }
        }
        if !is_connected {
            return;
        }
        for (name, tensor) in self.0.iter().filter(|(name, _)| !outputs.contains(*name)) {
            if !ready.contains(name) || tensor.after.is_empty() {
                let message = format!("ensemble tensor '{name}' is unused in ensemble '{model}'");
                findings.invalid(tensor.path.clone(), message);
            }
        }
    }

    /// Of the tensors that `tensor` waits for, the one at which the others begin to wait.
    fn origin(&self, tensor: &Tensor<'a>, ready: &BTreeSet<&'a str>) -> Option<&'a str> {
        let mut seen = BTreeSet::new();
        let mut origin = None;
        let mut tensor = Some(tensor);
        while let Some(lost) = tensor.and_then(|tensor| {
            let mut waiting = tensor.before.iter().filter(|name| !ready.contains(*name));
            waiting.find(|name| seen.insert(**name))
        }) {
            origin = Some(*lost);
            tensor = self.0.get(lost);
        }
        origin
    }

    /// The tensors that have values once those of `given` have.
    fn reach(&self, given: Vec<&'a str>) -> BTreeSet<&'a str> {
        let mut ready: BTreeSet<&str> = given.iter().copied().collect();
        let mut queue = VecDeque::from(given);
        while let Some(tensor) = queue.pop_front().and_then(|name| self.0.get(name)) {
            for next in &tensor.after {
                let is_ready = |tensor: &Tensor<'_>| tensor.before.iter().all(|name| ready.contains(name));
                if !ready.contains(next) && self.0.get(next).is_some_and(is_ready) {
                    ready.insert(next);
                    queue.push_back(next);
                }
            }
        }
        ready
    }
}

fn named<'t, 'a>(tensors: &'t mut BTreeMap<&'a str, Tensor<'a>>, name: &'a str, path: &str) -> &'t mut Tensor<'a> {
    tensors.entry(name).or_insert_with(|| Tensor { path: path.to_owned(), ..Tensor::default() })
}
