//! The graph of an ensemble, resolved once: tensors and steps by number, and the tensors that each step reads.

use std::collections::BTreeMap;

use crate::mutants::{self, Mutant};
use nereid_model_config::ModelSpec;
use nereid_request::{OutputShape, Request, Shape, Status, Text};
use nereid_wire::inference::model_config::SchedulingChoice;

/// The model that a step names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepModel {
    pub name: String,
    /// Empty without namespaces.
    pub namespace: String,
    /// None: the highest that is ready.
    pub version: Option<i64>,
}

#[derive(Debug)]
pub struct Plan {
    /// The ensemble's.
    pub name: String,
    pub is_batching: bool,
    pub is_decoupled: bool,
    /// Requests of one step in flight over all requests of the ensemble; 0: any number.
    pub in_flight_max: usize,
    /// The tensor of each input of the ensemble.
    pub inputs: Vec<usize>,
    pub outputs: Vec<Output>,
    /// In the order of the configuration.
    pub steps: Vec<Step>,
    pub tensors: Vec<Tensor>,
    /// The steps in an order in which each follows those that it reads from.
    order: Vec<usize>,
}

#[derive(Debug)]
pub struct Output {
    pub name: Text,
    pub tensor: usize,
    /// The shape that clients see, and the one that the steps make where the ensemble has a `reshape`.
    pub shape: OutputShape,
}

impl Output {
    /// The dimensions that a tensor's shape is adapted to where only one side batches.
    pub fn made_dims(&self) -> &[i64] {
        self.shape.reshape.as_ref().unwrap_or(&self.shape.dims)
    }
}

#[derive(Debug)]
pub struct Step {
    pub model: StepModel,
    /// Inputs of the model, and the tensors that they get.
    pub inputs: Vec<(Text, usize)>,
    /// Outputs of the model, and the tensors that they make.
    pub outputs: Vec<(Text, usize)>,
    /// The tensors of the inputs, each once.
    pub reads: Vec<usize>,
    /// Other steps read its outputs, and nothing else.
    pub is_followed: bool,
}

#[derive(Debug)]
pub struct Tensor {
    pub name: String,
    pub writer: Option<usize>,
    /// Each step once.
    pub readers: Vec<usize>,
}

/// The parts of the plan that one request needs (contract/schedulers.md section 5, "pruned").
#[derive(Debug)]
pub struct Route {
    /// By step: it contributes to a requested output.
    pub is_needed: Vec<bool>,
    /// By tensor: it is a requested output.
    pub is_wanted: Vec<bool>,
    /// The requested outputs by their numbers, in the order of the request.
    pub outputs: Vec<usize>,
    /// Their tensors, each once.
    pub wanted: Vec<usize>,
    /// By step: it can run for the first value of its inputs only.
    runs_once: Vec<bool>,
    /// There is one response at most.
    answers_once: bool,
}

impl Plan {
    pub fn new<'a>(spec: &'a ModelSpec) -> Result<Plan, Status> {
        let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &spec.config.scheduling_choice else {
            return Err(Status::internal(format!("model '{}' is no ensemble", spec.name)));
        };
        let mut numbers: BTreeMap<&'a str, usize> = BTreeMap::new();
        let mut tensors: Vec<Tensor> = Vec::new();
        let mut steps = Vec::with_capacity(ensemble.step.len());
        for (at, step) in ensemble.step.iter().enumerate() {
            let mut number = |name: &'a str| match numbers.get(name) {
                Some(&number) => number,
                None => {
                    tensors.push(Tensor { name: name.to_owned(), writer: None, readers: Vec::new() });
                    // At once: the same map may name it again.
                    numbers.insert(name, tensors.len() - 1);
                    tensors.len() - 1
                }
            };
            let mut map = |names: &'a BTreeMap<String, String>| -> Vec<(Text, usize)> {
                names.iter().map(|(ours, tensor)| (Text::from(&**ours), number(tensor))).collect()
            };
            let (inputs, outputs) = (map(&step.input_map), map(&step.output_map));
            let named: Vec<usize> = inputs.iter().map(|(_, tensor)| *tensor).collect();
            let mut reads = named.clone();
            reads.sort_unstable();
            reads.dedup();
            let readers = if mutants::is(Mutant::StepTwice) { &named } else { &reads };
            readers.iter().for_each(|tensor| tensors[*tensor].readers.push(at));
            for (_, tensor) in &outputs {
                tensors[*tensor].writer = Some(at);
            }
            let version = (step.model_version != -1).then_some(step.model_version);
            let model = StepModel { name: step.model_name.clone(), namespace: step.model_namespace.clone(), version };
            steps.push(Step { model, inputs, outputs, reads, is_followed: false });
        }
        let find = |name: &str| {
            let found = numbers.get(name).copied();
            found.ok_or_else(|| Status::internal(format!("ensemble '{}' has no tensor '{name}'", spec.name)))
        };
        let inputs = spec.inputs.iter().map(|input| find(&input.name)).collect::<Result<_, _>>()?;
        let outputs = spec.outputs.iter().map(|output| {
            let reshape = output.reshape.as_deref().map(Shape::from_slice);
            let shape = OutputShape { dims: Shape::from_slice(&output.dims), reshape };
            Ok(Output { name: Text::from(&*output.name), tensor: find(&output.name)?, shape })
        });
        let outputs = outputs.collect::<Result<_, Status>>()?;
        for at in 0..steps.len() {
            steps[at].is_followed = is_followed(at, &steps, &tensors);
        }
        let order = order(&steps, &tensors);
        Ok(Plan {
            name: spec.name.clone(),
            is_batching: spec.is_batching(),
            is_decoupled: spec.decoupled,
            in_flight_max: usize::try_from(ensemble.max_inflight_requests).unwrap_or(usize::MAX),
            inputs,
            outputs,
            steps,
            tensors,
            order,
        })
    }

    /// The route of a validated request.
    pub fn route(&self, request: &Request) -> Route {
        let outputs: Vec<usize> =
            request.outputs.iter().map(|output| output.index).filter(|index| *index < self.outputs.len()).collect();
        let mut is_needed = vec![false; self.steps.len()];
        let mut is_wanted = vec![false; self.tensors.len()];
        let mut pending: Vec<usize> = outputs.iter().map(|&output| self.outputs[output].tensor).collect();
        pending.iter().for_each(|&tensor| is_wanted[tensor] = true);
        let mut wanted = pending.clone();
        wanted.sort_unstable();
        wanted.dedup();
        while let Some(tensor) = pending.pop() {
            if let Some(writer) = self.tensors[tensor].writer
                && !std::mem::replace(&mut is_needed[writer], true)
            {
                pending.extend(&self.steps[writer].reads);
            }
        }
        let runs_once = vec![true; self.steps.len()];
        Route { is_needed, is_wanted, outputs, wanted, runs_once, answers_once: true }
    }
}

fn is_followed(step: usize, steps: &[Step], tensors: &[Tensor]) -> bool {
    let mut readers = steps[step].outputs.iter().flat_map(|(_, tensor)| &tensors[*tensor].readers).peekable();
    let is_own = |tensor: &usize| tensors[*tensor].writer == Some(step);
    readers.peek().is_some() && readers.all(|reader| steps[*reader].reads.iter().all(is_own))
}

/// Steps that wait for each other, which validation refuses, are left out: they never run.
fn order(steps: &[Step], tensors: &[Tensor]) -> Vec<usize> {
    let mut waits: Vec<usize> = steps
        .iter()
        .map(|step| step.reads.iter().filter(|tensor| tensors[**tensor].writer.is_some()).count())
        .collect();
    let mut order: Vec<usize> = (0..steps.len()).filter(|step| waits[*step] == 0).collect();
    let mut next = 0;
    while let Some(&step) = order.get(next) {
        next += 1;
        for (_, tensor) in &steps[step].outputs {
            for &reader in &tensors[*tensor].readers {
                waits[reader] = waits[reader].saturating_sub(1);
                if waits[reader] == 0 {
                    order.push(reader);
                }
            }
        }
    }
    order
}

impl Route {
    /// Finds the tensors that come more than once, because the model of a step is decoupled. A tensor that comes once
    /// has number 0 only, and a step or response that reads it runs for that number only.
    pub fn follow(&mut self, plan: &Plan, is_decoupled: impl Fn(usize) -> bool) {
        let mut comes_once = vec![true; plan.tensors.len()];
        for &step in &plan.order {
            self.runs_once[step] = plan.steps[step].reads.iter().any(|tensor| comes_once[*tensor]);
            let once = self.runs_once[step] && !is_decoupled(step);
            plan.steps[step].outputs.iter().for_each(|(_, tensor)| comes_once[*tensor] = once);
        }
        self.answers_once = self.outputs.iter().any(|output| comes_once[plan.outputs[*output].tensor]);
    }

    /// The steps that can use value `number` of a tensor.
    pub fn readers<'a>(&'a self, plan: &'a Plan, tensor: usize, number: u64) -> impl Iterator<Item = usize> + 'a {
        let readers = plan.tensors[tensor].readers.iter().copied();
        readers.filter(move |step| self.is_needed[*step] && (number == 0 || !self.runs_once[*step]))
    }

    /// Whether a step runs for one value of its inputs only.
    pub fn runs_once(&self, step: usize) -> bool {
        self.runs_once[step]
    }

    /// There is one response at most.
    pub fn answers_once(&self) -> bool {
        self.answers_once
    }

    /// Whether a response can use value `number` of a tensor.
    pub fn is_answer(&self, tensor: usize, number: u64) -> bool {
        self.is_wanted[tensor] && (number == 0 || !self.answers_once)
    }
}
