//! One run of a module: joins the inputs of a batch, runs `forward`, checks its result and splits it over the requests
//! (contract/frameworks.md section 1, "Execution").

use smallvec::SmallVec;

use super::plan::{Plan, Target};
use crate::torch::{Input, InputData, Module, Options, Output, Place, Run};
use nereid_backend::rows::{
    self, Batch, Bytes, Computed, EncodedStrings, Failure, Joined, JoinedStrings, Output as Wanted, Produced,
};
use nereid_clock::now_ns;
use nereid_memory::Pool;
use nereid_observe::statistics::Execution;
use nereid_request::{DataType, Response, Shape, Status};

/// An input of the batch, joined.
enum Value {
    Tensor(DataType, Joined),
    Strings(JoinedStrings),
}

/// How batches of one instance are run.
pub struct Runner<'a> {
    pub module: &'a Module,
    pub place: Option<&'a Place>,
    /// Whether the module may compute on GPUs: at its place, or where its file says.
    pub uses_gpus: bool,
    pub options: &'a Options,
}

impl Runner<'_> {
    /// Runs the requests of `batch`; memory comes from `pool`.
    pub fn run(&self, plan: &Plan, batch: &Batch<'_>, pool: &Pool) -> Result<Computed, Failure> {
        let values = join(plan, batch)?;
        let inputs: SmallVec<[Input<'_>; 8]> = values.iter().map(|(target, value)| input(target, value)).collect();
        // On a GPU the library may wait for the whole device.
        let _shared = self.uses_gpus.then(nereid_gpu::capture::shared);
        let compute_start_ns = now_ns();
        // Its text is that of PyTorch, which may take several lines.
        let result = self.module.run(self.place, self.options, &inputs).map_err(|text| execute_failure(&text))?;
        let compute_end_ns = now_ns();
        let answers = split(plan, &result, batch, pool)?;
        Ok((answers, Execution { compute_start_ns, compute_end_ns, ..Execution::default() }))
    }
}

fn execute_failure(text: &str) -> Status {
    Status::internal(format!("PyTorch execute failure: {text}"))
}

fn join<'a>(plan: &'a Plan, batch: &Batch<'_>) -> Result<SmallVec<[(&'a Target, Value); 8]>, Failure> {
    let mut values = SmallVec::new();
    for (input, target) in &plan.inputs {
        let value = match input.datatype {
            DataType::Bytes => Value::Strings(batch.join_strings(input)?),
            datatype => Value::Tensor(datatype, batch.join(input)?),
        };
        values.push((target, value));
    }
    for (described, targets) in &plan.batch_inputs {
        let (shape, bytes) = described.make_for(batch)?;
        for target in targets {
            let joined =
                Joined { elements: rows::elements(&shape).unwrap_or(0), shape: shape.clone(), bytes: bytes.clone() };
            values.push((target, Value::Tensor(described.datatype, joined)));
        }
    }
    Ok(values)
}

fn input<'a>(target: &'a Target, value: &'a Value) -> Input<'a> {
    let data = match value {
        Value::Tensor(datatype, joined) => {
            InputData::Tensor { datatype: *datatype, shape: &joined.shape, bytes: &joined.bytes }
        }
        Value::Strings(strings) => InputData::Strings(strings.iter().collect()),
    };
    Input { argument: target.argument, key: &target.name, data }
}

/// A checked output, with what its bytes need while it is split.
struct Checked<'a> {
    shape: Shape,
    content: Content<'a>,
}

enum Content<'a> {
    Tensor(&'a [u8]),
    Strings(EncodedStrings),
}

/// Every output of the configuration is checked, also one that no request wants.
fn split(
    plan: &Plan,
    result: &Run<'_>,
    batch: &Batch<'_>,
    pool: &Pool,
) -> Result<Vec<Result<Response, Status>>, Status> {
    let checked: SmallVec<[Checked<'_>; 4]> = plan
        .outputs
        .iter()
        .zip(&plan.positions)
        .map(|(output, position)| check(output, *position, result, pool))
        .collect::<Result<_, Status>>()?;
    let produced: SmallVec<[Option<Produced<'_>>; 4]> = checked
        .iter()
        .map(|output| {
            let bytes = match &output.content {
                Content::Tensor(bytes) => Bytes::Borrowed(bytes),
                Content::Strings(strings) => Bytes::Strings(strings),
            };
            Some(Produced { shape: output.shape.clone(), bytes })
        })
        .collect();
    batch.split_scattered(&plan.outputs, &produced, &plan.scatters)
}

fn check<'a>(output: &Wanted, position: usize, result: &'a Run<'_>, pool: &Pool) -> Result<Checked<'a>, Status> {
    let name = &output.name;
    let Some(found) = result.output(position) else {
        return Err(Status::invalid(format!(
            "The output {name} in the model configuration refers to an output index which doesn't exist. This model \
             has {} outputs",
            result.len()
        )));
    };
    let provided = match &found {
        Output::Tensor { datatype, .. } => *datatype,
        Output::Strings(_) => Some(DataType::Bytes),
    };
    if provided != Some(output.datatype) {
        let provided = provided.map_or("<invalid>", DataType::name);
        return Err(Status::invalid(format!(
            "configuration expects datatype TYPE_{} for output '{name}', model provides TYPE_{provided}",
            output.datatype.name()
        )));
    }
    match found {
        Output::Strings(strings) => {
            let encoded = EncodedStrings::encode(strings.iter().copied(), &name.to_str_lossy(), pool)?;
            let count = i64::try_from(strings.len()).unwrap_or(i64::MAX);
            Ok(Checked { shape: Shape::from_slice(&[count]), content: Content::Strings(encoded) })
        }
        Output::Tensor { shape: [], .. } => {
            Err(Status::invalid(format!("output '{name}' is a scalar which is not supported.")))
        }
        Output::Tensor { shape, bytes, .. } => {
            Ok(Checked { shape: Shape::from_slice(shape), content: Content::Tensor(bytes) })
        }
    }
}
