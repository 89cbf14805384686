//! The properties of a compiled model that do not depend on requests: which tensor is which, and shapes that are known
//! before a run.

use nereid_backend::rows;
use nereid_model_config::ModelSpec;
use nereid_request::{OutputShape, Shape, Status, Text, format_shape};
use nereid_wire::inference::model_config::SchedulingChoice;

use super::checks::Matched;
use super::runtime::{Dimension, Port};

/// The rows of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// The model does not batch.
    Unbatched,
    /// As many as the requests have.
    Any,
    /// Exactly so many: rows that are missing are padded with zeros.
    Exactly(u64),
}

#[derive(Debug)]
pub struct InputPlan {
    pub input: rows::Input,
    /// As the compiled model has them, the batch included.
    dims: Vec<Dimension>,
}

impl InputPlan {
    /// Refuses a shape that the model cannot take. The library is not asked: with one thread it may not notice.
    pub fn check(&self, model: &str, shape: &[i64]) -> Result<(), Status> {
        let fits = shape.len() == self.dims.len() && self.dims.iter().zip(shape).all(|(dim, size)| dim.admits(*size));
        if fits {
            return Ok(());
        }
        let expected: Shape = self.dims.iter().map(|dim| dim.as_config()).collect();
        Err(Status::invalid(format!(
            "input '{}' has the shape {}, but model '{model}' takes {}",
            self.input.name,
            format_shape(shape),
            format_shape(&expected)
        )))
    }
}

#[derive(Debug)]
pub struct OutputPlan {
    pub output: rows::Output,
    /// Position among the model's outputs.
    pub port: usize,
    /// The shape, if the model fixes it; without the rows where it batches.
    fixed: Option<Shape>,
}

/// The tensors of a model.
#[derive(Debug)]
pub struct Plan {
    /// In the model's order, all of them.
    pub inputs: Vec<InputPlan>,
    /// In the configuration's order.
    pub outputs: Vec<OutputPlan>,
    /// Outputs of the model: the configuration may name fewer.
    pub port_count: usize,
    pub rows: Rows,
    pub max_batch_size: u64,
}

impl Plan {
    /// `input_dims` are those of the compiled model's inputs, and `output_ports` its outputs.
    pub fn new(
        spec: &ModelSpec,
        rows: Rows,
        inputs: &[Matched<'_>],
        input_dims: &[Vec<Dimension>],
        outputs: &[Matched<'_>],
        output_ports: &[Port],
    ) -> Plan {
        let batches = rows != Rows::Unbatched;
        let mut planned: Vec<(usize, InputPlan)> = inputs
            .iter()
            .enumerate()
            .map(|(index, matched)| {
                let (name, datatype) = (matched.spec.name.clone(), matched.datatype);
                let input = rows::Input { name, index, datatype, is_ragged: false };
                let dims = input_dims.get(matched.port).cloned().unwrap_or_default();
                (matched.port, InputPlan { input, dims })
            })
            .collect();
        planned.sort_by_key(|(port, _)| *port);
        let states = match &spec.config.scheduling_choice {
            Some(SchedulingChoice::SequenceBatching(sequence)) => sequence.state.as_slice(),
            _ => &[],
        };
        let outputs = outputs.iter().enumerate().map(|(index, matched)| {
            let dims = output_ports.get(matched.port).and_then(|port| port.dims.as_deref());
            let items = dims.and_then(|dims| dims.get(usize::from(batches)..));
            let fixed = items.and_then(|items| items.iter().map(|dim| dim.fixed()).collect());
            let output = rows::Output {
                name: Text::from(matched.spec.name.as_str()),
                index: if index < spec.outputs.len() { index } else { usize::MAX },
                datatype: matched.datatype,
                shape: OutputShape {
                    dims: Shape::from_slice(&matched.spec.dims),
                    reshape: matched.spec.reshape.as_deref().map(Shape::from_slice),
                },
                is_state: states.iter().any(|state| state.output_name == matched.spec.name),
            };
            OutputPlan { output, port: matched.port, fixed }
        });
        Plan {
            inputs: planned.into_iter().map(|(_, input)| input).collect(),
            outputs: outputs.collect(),
            port_count: output_ports.len(),
            rows,
            max_batch_size: spec.max_batch_size.into(),
        }
    }

    /// The shape of an output for so many rows, if it is known before the run.
    pub fn output_shape(&self, output: &OutputPlan, rows: u64) -> Option<Shape> {
        let items = output.fixed.as_ref()?;
        let rows = match self.rows {
            Rows::Unbatched => return Some(items.clone()),
            Rows::Any => rows,
            Rows::Exactly(rows) => rows,
        };
        let rows = i64::try_from(rows).ok()?;
        Some(std::iter::once(rows).chain(items.iter().copied()).collect())
    }
}
