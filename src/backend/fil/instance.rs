//! One instance and the payloads that it runs (contract/frameworks.md section 4, "Tensors and results").
//!
//! The requests of a payload are joined by rows, predicted by one call, and split by rows. An error of one request
//! fails that request alone; an error of the prediction is the answer to all, and no request is counted then.

use std::sync::Arc;

use crate::classes::class_of;
use crate::model::Forest;
use crate::plan::{Plan, Planned};
use crate::settings::Task;
use crate::treelite::TreeliteError;
use nereid_backend::rows::{Batch, Bytes, Computed, Failure, Joined, Produced, find, model_shape, rows_of};
use nereid_backend::{Instance, InstanceContext, Mobility};
use nereid_clock::now_ns;
use nereid_observe::statistics::Execution;
use nereid_request::{Status, format_shape};
use nereid_scheduler::Payload;

/// An instance of a tree model.
pub struct FilInstance {
    context: InstanceContext,
    forest: Arc<Forest>,
    plan: Plan,
    /// Scores of all rows, where they are not the output itself.
    scores: Vec<f32>,
}

impl FilInstance {
    pub fn new(context: InstanceContext, forest: Arc<Forest>, plan: Plan) -> FilInstance {
        FilInstance { context, forest, plan, scores: Vec::new() }
    }

    fn run(&mut self, batch: &Batch<'_>) -> Result<Computed, Failure> {
        let mut execution = Execution::default();
        if let Some(status) = &self.plan.wrong_type {
            return Err(Failure::All(status.clone()));
        }
        for (at, request) in batch.requests.iter().enumerate() {
            let shape = find(request, self.plan.input.index).map(model_shape);
            let fits = shape.is_none_or(|shape| {
                shape.len() == 2 && shape.last().is_some_and(|last| usize::try_from(*last) == Ok(self.plan.features))
            });
            if !fits {
                let (shape, features) = (format_shape(shape.unwrap_or_default()), self.plan.features);
                let name = &self.plan.input.name;
                let text = format!("input '{name}' has the shape {shape}, but the forest needs [rows, {features}]");
                return Err(Failure::One(at, Status::invalid(text)));
            }
        }
        let joined = batch.join(&self.plan.input)?;
        execution.compute_start_ns = now_ns();
        let rows = joined.shape.first().and_then(|rows| usize::try_from(*rows).ok()).unwrap_or(0);
        let prediction = self.predict(batch, &joined, rows)?;
        let shapley_values = self.explain(batch, &joined, rows)?;
        execution.compute_end_ns = now_ns();
        let plan = &self.plan;
        let answers = match &plan.shapley_values {
            Some(values) => {
                let outputs = [plan.prediction.output.clone(), values.output.clone()];
                batch.split(&outputs, &[prediction, shapley_values])?
            }
            None => batch.split(std::slice::from_ref(&plan.prediction.output), &[prediction])?,
        };
        Ok((answers, execution))
    }

    /// `None` if no request wants it.
    fn predict(
        &mut self,
        batch: &Batch<'_>,
        joined: &Joined,
        rows: usize,
    ) -> Result<Option<Produced<'static>>, Status> {
        let Plan { prediction, classes, task, .. } = &self.plan;
        if !batch.wants(&prediction.output) {
            return Ok(None);
        }
        let predictor = &self.forest.predictor;
        let mut target = batch.allocate(&prediction.output, byte_size(prediction, rows)?)?;
        let is_scores = !matches!(task, Task::Class { .. }) && prediction.columns == *classes;
        if rows > 0
            && is_scores
            && let Some(predicted) = predictor.predict_bytes(rows, &joined.bytes, &mut target)
        {
            predicted?;
        } else if rows > 0 {
            let count = rows.checked_mul(*classes).ok_or_else(|| too_large(prediction, rows))?;
            self.scores.resize(count, 0.0);
            let scores = &mut self.scores[..];
            predictor.predict_from_bytes(rows, &joined.bytes, scores).unwrap_or_else(unaligned)?;
            target.write_with(|bytes| write(*task, *classes, prediction.columns, scores, bytes));
        }
        Ok(Some(Produced { shape: prediction.shape(rows), bytes: Bytes::Shared(target.freeze()) }))
    }

    fn explain(&self, batch: &Batch<'_>, joined: &Joined, rows: usize) -> Result<Option<Produced<'static>>, Status> {
        let (Some(values), Some(explainer)) = (&self.plan.shapley_values, &self.forest.explainer) else {
            return Ok(None);
        };
        if !batch.wants(&values.output) {
            return Ok(None);
        }
        let mut target = batch.allocate(&values.output, byte_size(values, rows)?)?;
        let row_len = self.plan.features.saturating_mul(size_of::<f32>()).max(1);
        let mut input = vec![0; row_len];
        let mut from = 0;
        target.write_with(|target| {
            for output in target.chunks_exact_mut(values.columns.saturating_mul(size_of::<f32>()).max(1)) {
                if joined.bytes.copy_to(from, &mut input) < row_len {
                    break;
                }
                from += row_len;
                let row: Vec<f32> = floats(&input).collect();
                for (value, bytes) in explainer.explain(&row).into_iter().zip(output.chunks_exact_mut(size_of::<f32>()))
                {
                    bytes.copy_from_slice(&value.to_le_bytes());
                }
            }
        });
        Ok(Some(Produced { shape: values.shape(rows), bytes: Bytes::Shared(target.freeze()) }))
    }
}

fn unaligned() -> Result<(), TreeliteError> {
    Err(TreeliteError("the joined input does not begin at a multiple of 4 bytes".to_owned()))
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four))
}

fn byte_size(planned: &Planned, rows: usize) -> Result<usize, Status> {
    let size = rows.checked_mul(planned.columns).and_then(|count| count.checked_mul(size_of::<f32>()));
    size.ok_or_else(|| too_large(planned, rows))
}

fn too_large(planned: &Planned, rows: usize) -> Status {
    Status::internal(format!("output '{}' of {rows} rows is too large", planned.output.name))
}

/// Writes what the task makes of the scores of each row.
fn write(task: Task, classes: usize, columns: usize, scores: &[f32], target: &mut [u8]) {
    let mut values = target.as_chunks_mut::<4>().0.iter_mut();
    let mut put = |value: f32| {
        if let Some(bytes) = values.next() {
            *bytes = value.to_le_bytes();
        }
    };
    for scores in scores.chunks_exact(classes.max(1)) {
        match (task, scores) {
            (Task::Class { threshold }, scores) => put(class_of(scores, threshold)),
            (_, [score]) if columns == 2 => [1.0 - score, *score].into_iter().for_each(&mut put),
            (_, scores) => scores.iter().copied().for_each(&mut put),
        }
    }
}

impl Instance for FilInstance {
    /// Any thread may predict; with one thread (`cpu_nthread`) it waits for no other, and its time depends on the model
    /// and the rows.
    fn mobility(&self) -> Mobility {
        if self.forest.thread_count == 1 { Mobility::FreeIfShort } else { Mobility::FreeIfAsked }
    }

    fn answers_last(&self) -> bool {
        true
    }

    fn execute(&mut self, payload: &mut Payload) -> Result<(), Status> {
        let exec_start_ns = now_ns();
        let mut requests = payload.take();
        let context = self.context.clone();
        let (limit, batches) = (self.plan.max_batch_size, self.plan.max_batch_size > 0);
        let rows = rows_of(&requests, batches);
        if rows > limit.max(1) {
            let text = format!("batch size {rows} for '{}', max allowed is {limit}", context.name);
            let status = Status::internal(text);
            requests.drain(..).for_each(|request| context.fail(request, status.clone()));
        }
        // Each round but the last removes one request.
        while !requests.is_empty() {
            let computed = self.run(&Batch::new(&requests, batches, &context.model.pool));
            match computed {
                Ok((answers, mut execution)) => {
                    execution.exec_start_ns = exec_start_ns;
                    execution.exec_end_ns = now_ns();
                    // A batch counts requests here, not rows.
                    context.report_batch(requests.len() as u64, &execution);
                    for (request, answer) in requests.drain(..).zip(answers) {
                        match answer {
                            Ok(response) => context.succeed(request, response, &execution),
                            Err(status) => context.fail(request, status),
                        }
                    }
                }
                Err(Failure::One(at, status)) if at < requests.len() => context.fail(requests.remove(at), status),
                Err(Failure::One(_, status) | Failure::All(status)) => {
                    requests.drain(..).for_each(|request| request.fail(status.clone()));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod cost;
#[cfg(test)]
mod older;
#[cfg(test)]
mod tests;
