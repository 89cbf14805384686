//! One instance: joins the requests of a payload, runs the model once, and splits its results
//! (contract/frameworks.md section 1a).

use nereid_backend::rows::{self, Batch, Bytes, Computed, Failure, Joined, Produced};
use nereid_backend::{Instance, InstanceContext};
use nereid_clock::now_ns;
use nereid_observe::statistics::Execution;
use nereid_request::{Request, Status};
use nereid_scheduler::Payload;

use super::bindings::{Api, Tensor};
use super::element::{config_name, config_name_of_dtype};
use super::plan::Plan;
use super::runners::Runner;

pub struct AotiInstance {
    context: InstanceContext,
    api: &'static Api,
    runner: Runner,
    plan: Plan,
}

impl AotiInstance {
    pub fn new(context: InstanceContext, api: &'static Api, runner: Runner, plan: Plan) -> AotiInstance {
        AotiInstance { context, api, runner, plan }
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
        let joined = self.plan.inputs.iter().map(|input| batch.join(&input.input)).collect::<Result<Vec<_>, _>>()?;
        let made = self.batch_inputs(batch.requests)?;
        let inputs = self.tensors(&joined, &made).map_err(|text| self.execution_failure(&text))?;
        execution.compute_start_ns = now_ns();
        let results = self.runner.of().container.run(inputs);
        execution.compute_end_ns = now_ns();
        let results = self.read(results.map_err(|text| self.execution_failure(&text))?)?;
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

    /// The tensors that describe the batch, in the order of the plan.
    fn batch_inputs(&self, requests: &[Box<Request>]) -> Result<Vec<Joined>, Status> {
        let pool = &self.context.model.pool;
        let made = self.plan.batch_inputs.iter().map(|input| {
            let sources: Vec<&[i64]> = requests
                .iter()
                .map(|request| rows::find(request, input.plan.source).map(rows::model_shape).unwrap_or_default())
                .collect();
            let (shape, bytes) = input.plan.make(&sources, self.plan.max_batch_size > 0, pool)?;
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

    fn execution_failure(&self, text: &str) -> Status {
        Status::internal(format!("Inductor model instance \"{}\" execution failure: {text}", self.context.name))
    }

    fn read_failure(&self, text: &str) -> Status {
        let instance = &self.context.name;
        Status::internal(format!("Failed to read output tensors for model instance \"{instance}\": {text}"))
    }
}

impl Instance for AotiInstance {
    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        rows::execute(&self.context, payload, self.plan.max_batch_size, |batch| self.run(batch));
        Ok(())
    }
}
