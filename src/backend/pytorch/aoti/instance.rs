//! One instance: joins the requests of a payload, runs the model once, and splits its results
//! (contract/frameworks.md section 1a).
//!
//! The model always gets copies of the inputs. A package may write to them, and nothing in it states whether it does:
//! neither its metadata nor an interface of its library; its sources, which newer packages contain, need not be those
//! of the library. On a core with 18 GB/s a copy takes 0.1 us for 4 KiB, 8 us for 588 KiB (an image of 3x224x224) and
//! 0.9 ms for 16 MiB; joined requests are copied anyway.

use std::sync::atomic::{AtomicBool, Ordering};

use nereid_backend::rows::{self, Batch, Bytes, Computed, Copied, Failure, Produced};
use nereid_backend::{Instance, InstanceContext};
use nereid_clock::now_ns;
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

/// One tensor for a run.
struct ModelInput {
    /// Among the inputs of the model.
    position: usize,
    dtype: i32,
    element_size: usize,
    tensor: Copied,
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
        let mut inputs = self.inputs(batch, if is_doubled { 2 } else { 1 })?;
        execution.compute_start_ns = now_ns();
        let mut doubled;
        let mut results = self.compute(&mut inputs);
        if let Err(text) = &results
            && is_single
            && !is_doubled
            && text.contains(TOO_FEW_ROWS)
        {
            self.double_rows();
            doubled = self.inputs(batch, 2)?;
            results = self.compute(&mut doubled);
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

    /// The inputs of the model in its order; `times` 2: the only row twice. Zeros in its place might divide by zero,
    /// which ends the process.
    fn inputs(&self, batch: &Batch<'_>, times: usize) -> Result<Vec<ModelInput>, Failure> {
        let mut inputs = Vec::with_capacity(self.runner.of().container.inputs());
        for input in &self.plan.inputs {
            let tensor = batch.copy(&input.input, times)?;
            let element_size = input.input.datatype.byte_size();
            inputs.push(ModelInput { position: input.position, dtype: input.dtype, element_size, tensor });
        }
        for described in &self.plan.batch_inputs {
            let (shape, bytes) = described.plan.make_for(batch)?;
            for position in &described.positions {
                let tensor = Copied::of(shape.clone(), &bytes, &self.context.model.pool)?;
                let element_size = described.plan.datatype.byte_size();
                inputs.push(ModelInput { position: *position, dtype: described.dtype, element_size, tensor });
            }
        }
        inputs.sort_by_key(|input| input.position);
        Ok(inputs)
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

    fn compute<'a>(&self, inputs: &'a mut [ModelInput]) -> Result<Vec<Tensor<'a>>, String> {
        let tensors = inputs.iter_mut().map(|input| {
            let Copied { shape, bytes } = &mut input.tensor;
            Tensor::over(self.api, bytes, shape, input.dtype, input.element_size)
        });
        self.runner.of().container.run(tensors.collect::<Result<_, _>>()?)
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

impl Instance for AotiInstance {
    fn answers_last(&self) -> bool {
        true
    }

    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        rows::execute(&self.context, payload, self.plan.max_batch_size, |batch| self.run(batch));
        Ok(())
    }
}
