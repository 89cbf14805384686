//! Writes answers by their plans, from the responses of models (contract/openai.md sections 1.5 to 1.8 and 3.4).

use std::sync::Arc;

use crate::error::Refusal;
use crate::plan::Plan;
use nereid_memory::{Gather, Pool};
use nereid_request::{Response, Status};

/// The answer to one request, as it is written. Bytes go into a [`Gather`]; of a stream, whole events.
pub struct Answer {}

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The step was as long as a step may be; there is more.
    More,
    /// The response is written, as far as it can be.
    Done,
    /// So is it, and no more of the model's responses are wanted: the model's work is to be cancelled, and
    /// [`Answer::finish`] to be called.
    Enough,
}

impl Answer {
    pub fn new(_plan: Arc<Plan>) -> Answer {
        unimplemented!()
    }

    /// The first event of a stream, if it has one that does not depend on the model.
    pub fn open(&mut self, _pool: &Pool, _out: &mut Gather) {
        unimplemented!()
    }

    /// Takes a response in, to be written in steps. `index`: of several requests, whose response it is. `is_last`: it
    /// has the flag FINAL.
    pub fn begin(&mut self, _index: usize, _response: Response, _is_last: bool) -> Result<(), Refusal> {
        unimplemented!()
    }

    /// Writes a bounded part of the response that was begun.
    pub fn step(&mut self, _pool: &Pool, _out: &mut Gather) -> Result<Progress, Refusal> {
        unimplemented!()
    }

    /// The model of a request (of several, one) has ended without another response.
    pub fn end_without_response(&mut self, _index: usize) -> Result<(), Refusal> {
        unimplemented!()
    }

    /// All responses are there and written: the rest of the answer, in bounded steps. True when it is whole.
    pub fn finish(&mut self, _pool: &Pool, _out: &mut Gather) -> Result<bool, Refusal> {
        unimplemented!()
    }

    /// The events that end a stream that has failed.
    pub fn fail(&mut self, _status: &Status, _pool: &Pool, _out: &mut Gather) {
        unimplemented!()
    }

    /// Tokens that the model has reported so far: of the prompt, and written.
    pub fn tokens(&self) -> (Option<u64>, u64) {
        unimplemented!()
    }
}
