//! Where the outputs of a step should lie: on a device, if all their readers take them there.
//!
//! A step calls this on its own thread while other threads advance the run, so nothing here reads the run's state: the
//! number of a request identifies its step.

use super::Run;
use nereid_request::OutputQuery;
use nereid_request::shared::OutputDestination;

impl Run {
    /// The key of request number `number`, which goes to `step`.
    pub(super) fn key_of(&self, number: u64, step: usize) -> u64 {
        number.wrapping_mul(self.shared.plan.steps.len() as u64).wrapping_add(step as u64)
    }

    pub(super) fn step_of(&self, key: u64) -> usize {
        (key % (self.shared.plan.steps.len() as u64).max(1)) as usize
    }

    /// Where an output of that step should lie.
    pub(super) fn step_destination(&self, step: usize, query: &OutputQuery<'_>) -> OutputDestination {
        let plan = &self.shared.plan;
        let outputs = plan.steps.get(step).map_or(&[][..], |step| &step.outputs);
        let Some((_, tensor)) = outputs.iter().find(|(name, _)| name.as_bytes() == query.name) else {
            return OutputDestination::OnHost;
        };
        let mut readers = self.route.readers(plan, *tensor, 0).peekable();
        let has_readers = readers.peek().is_some();
        let takes = |step: usize| self.models[step].as_ref().is_some_and(|model| model.takes_device_tensors());
        if !readers.all(takes) {
            return OutputDestination::OnHost;
        }
        let answers = self.route.outputs.iter().filter_map(|&index| plan.outputs.get(index));
        let mut wanted = answers.filter(|answer| answer.tensor == *tensor);
        match (wanted.next(), wanted.next()) {
            (None, _) if has_readers => OutputDestination::OnDevice,
            (Some(answer), None) => match self.request.destination_of(&answer.name, query.byte_size) {
                // The client's memory is not written before the response is complete: another value may come before
                // that.
                Ok(OutputDestination::At(_)) if has_readers || !self.route.answers_once() => {
                    OutputDestination::OnDevice
                }
                Ok(destination) => destination,
                // The thread that sends the response finds the same error, and reports it as the ensemble's.
                Err(_) => OutputDestination::OnHost,
            },
            _ => OutputDestination::OnHost,
        }
    }
}
