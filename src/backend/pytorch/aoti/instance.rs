//! One instance: joins the requests of a payload, runs the model once, and splits its results
//! (contract/frameworks.md section 1a).

use std::sync::atomic::{AtomicBool, Ordering};

use nereid_backend::rows::{self, Batch, Bytes, Computed, Failure, Joined, Produced};
use nereid_backend::{Instance, InstanceContext};
use nereid_clock::now_ns;
use nereid_memory::Pool;
use nereid_observe::statistics::Execution;
use nereid_request::Status;
use nereid_scheduler::Payload;

use super::bindings::{Api, Tensor};
use super::plan::Plan;
use super::runners::Runner;
use crate::element::{config_name, config_name_of_dtype};

/// The error of a package's checks for a batch of one row: without further options, torch compiles a dynamic dimension
/// for 2 and more, even if the program was exported for 1.
const TOO_FEW_ROWS: &str = "dim value is too small at 0, ";

/// An instance.
pub struct AotiInstance {
    context: InstanceContext,
    api: &'static Api,
    runner: Runner,
    plan: Plan,
    /// The package's checks refuse a single row, so it is computed twice.
    doubles_rows: AtomicBool,
}

impl AotiInstance {
    pub fn new(context: InstanceContext, api: &'static Api, runner: Runner, plan: Plan) -> AotiInstance {
        AotiInstance { context, api, runner, plan, doubles_rows: AtomicBool::new(false) }
    }

    #[cfg(test)]
    pub fn doubles_rows(&self) -> bool {
        self.doubles_rows.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub fn context(&self) -> &InstanceContext {
        &self.context
    }

    #[cfg(test)]
    pub fn api(&self) -> &'static Api {
        self.api
    }

    #[cfg(test)]
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    fn run(&self, batch: &Batch<'_>) -> Result<Computed, Failure> {
        let mut execution = Execution::default();
        let is_single = self.plan.has_equal_rows && batch.rows() == 1;
        let is_doubled = is_single && self.doubles_rows.load(Ordering::Relaxed);
        let joined = self.join(batch, is_doubled)?;
        let made = self.batch_inputs(batch)?;
        execution.compute_start_ns = now_ns();
        let doubled;
        let mut results = self.compute(&joined, &made);
        if let Err(text) = &results
            && is_single
            && !is_doubled
            && text.contains(TOO_FEW_ROWS)
        {
            self.double_rows();
            doubled = self.join(batch, true)?;
            results = self.compute(&doubled, &made);
        }
        execution.compute_end_ns = now_ns();
        let results = results.map_err(|text| {
            let instance = &self.context.name;
            Status::internal(format!("Inductor model instance \"{instance}\" execution failure: {text}"))
        })?;
        let results = self.read(results)?;
        let produced: Vec<Option<Produced<'_>>> = self
            .plan
            .outputs
            .iter()
            .zip(&self.plan.results)
            .map(|(output, (position, _))| {
                let result = results.get(*position).ok_or("a result is missing")?;
                let bytes = Bytes::Borrowed(result.bytes(output.datatype.byte_size())?);
                Ok(Some(Produced { shape: result.shape()?, bytes }))
            })
            .collect::<Result<_, String>>()
            .map_err(|text| self.read_failure(&text))?;
        Ok((batch.split(&self.plan.outputs, &produced)?, execution))
    }

    /// The inputs of all requests; `is_doubled`: the only row twice.
    fn join(&self, batch: &Batch<'_>, is_doubled: bool) -> Result<Vec<Joined>, Failure> {
        let joined = self.plan.inputs.iter().map(|input| {
            let joined = batch.join(&input.input)?;
            if is_doubled { Ok(twice(joined, &self.context.model.pool)?) } else { Ok(joined) }
        });
        joined.collect()
    }

    /// From now on a single row is computed twice.
    fn double_rows(&self) {
        if !self.doubles_rows.swap(true, Ordering::Relaxed) {
            tracing::info!(
                "model '{}' is compiled for two rows or more, so a single row is computed twice; compile it with \
                 \"aot_inductor.check_lowerbound\": False to compute it once",
                self.context.model.name
            );
        }
    }

    fn compute<'a>(&self, joined: &'a [Joined], made: &'a [Joined]) -> Result<Vec<Tensor<'a>>, String> {
        self.runner.of().container.run(self.tensors(joined, made)?)
    }

    /// The tensors that describe the batch, in the order of the plan.
    fn batch_inputs(&self, batch: &Batch<'_>) -> Result<Vec<Joined>, Status> {
        let made = self.plan.batch_inputs.iter().map(|input| {
            let (shape, bytes) = input.plan.make_for(batch)?;
            let elements = rows::elements(&shape).unwrap_or_default();
            Ok(Joined { shape, elements, bytes })
        });
        made.collect()
    }

    /// The inputs of the model in its order.
    fn tensors<'a>(&self, joined: &'a [Joined], made: &'a [Joined]) -> Result<Vec<Tensor<'a>>, String> {
        let given = self.plan.inputs.iter().zip(joined);
        let given = given.map(|(input, joined)| (input.position, input.dtype, input.input.datatype, joined));
        let described = self.plan.batch_inputs.iter().zip(made).flat_map(|(input, made)| {
            let (dtype, datatype) = (input.dtype, input.plan.datatype);
            input.positions.iter().map(move |position| (*position, dtype, datatype, made))
        });
        let mut tensors = Vec::with_capacity(self.runner.of().container.inputs());
        for (position, dtype, datatype, joined) in given.chain(described) {
            let size = datatype.byte_size();
            tensors.push((position, Tensor::over(self.api, &joined.bytes, &joined.shape, dtype, size)?));
        }
        tensors.sort_by_key(|(position, _)| *position);
        Ok(tensors.into_iter().map(|(_, tensor)| tensor).collect())
    }

    /// The results of the model, with those for outputs of the configuration checked and contiguous.
    fn read<'a>(&self, mut results: Vec<Tensor<'a>>) -> Result<Vec<Tensor<'a>>, Status> {
        let failure = |text: String| self.read_failure(&text);
        for (output, (position, dtype)) in self.plan.outputs.iter().zip(&self.plan.results) {
            let result = results.get(*position).ok_or_else(|| failure("a result is missing".to_owned()))?;
            let described = |text: &str| {
                let instance = &self.context.name;
                failure(format!("Inductor model instance \"{instance}\" output tensor \"{}\" {text}.", output.name))
            };
            let found = result.dtype().map_err(failure)?;
            if found != *dtype {
                let (found, expected) = (config_name_of_dtype(found), config_name(output.datatype));
                let text = format!("has datatype {found} but model configuration expects {expected}");
                return Err(described(&text));
            }
            if result.shape().map_err(failure)?.is_empty() {
                return Err(described("is a scalar which is not supported"));
            }
            if !result.is_on_host().map_err(failure)? {
                return Err(described("is not in memory of the host"));
            }
        }
        for (at, result) in results.iter_mut().enumerate() {
            if self.plan.results.iter().any(|(position, _)| *position == at)
                && let Some(copy) = result.contiguous().map_err(failure)?
            {
                *result = copy;
            }
        }
        Ok(results)
    }

    fn read_failure(&self, text: &str) -> Status {
        let instance = &self.context.name;
        Status::internal(format!("Failed to read output tensors for model instance \"{instance}\": {text}"))
    }
}

/// The same row two times. Zeros in its place might divide by zero, which ends the process.
fn twice(joined: Joined, pool: &Pool) -> Result<Joined, Status> {
    let Joined { mut shape, elements, bytes } = joined;
    let too_large = || Status::internal("an input is too large to be computed twice");
    let len = bytes.len().checked_mul(2).ok_or_else(too_large)?;
    let mut block = pool.get(len)?;
    block.set_len(0);
    block.append(&bytes);
    block.append(&bytes);
    if let Some(rows) = shape.first_mut() {
        *rows = rows.saturating_mul(2);
    }
    Ok(Joined { shape, elements: elements.saturating_mul(2), bytes: block.freeze() })
}

impl Instance for AotiInstance {
    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        rows::execute(&self.context, payload, self.plan.max_batch_size, |batch| self.run(batch));
        Ok(())
    }
}
