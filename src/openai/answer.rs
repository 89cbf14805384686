//! Writes answers by their plans, from the responses of models (contract/openai.md sections 1.5 to 1.8 and 3.4).
//!
//! A chunk of a stream costs a few copies: what is the same in each of them is made once, and nothing is allocated.
//! Whatever takes long, long texts above all, is done in steps of about 64 KiB.

use std::sync::Arc;

use crate::error::{Compat, Refusal};
use crate::plan::Plan;
use crate::request::Operation;
use nereid_memory::{Gather, Pool};
use nereid_request::{Response, Status};

use outputs::Arrived;
use responses::ResponsesWriter;
use stream::Stream;
use unary::Unary;
use vectors::Vectors;

mod chunks;
mod document;
mod failure;
mod finish;
mod held;
mod message;
mod numbers;
mod outputs;
mod responses;
mod stream;
#[cfg(test)]
mod tests;
mod text;
mod token_logprobs;
mod unary;
mod usage;
mod vectors;

/// The answer to one request, as it is written. Bytes go into a [`Gather`]; an event of a stream whose text is long
/// comes in several steps.
pub struct Answer {
    plan: Arc<Plan>,
    writer: Writer,
}

enum Writer {
    Stream(Box<Stream>),
    Unary(Box<Unary>),
    Responses(Box<ResponsesWriter>),
    Vectors(Box<Vectors>),
}

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
    pub fn new(plan: Arc<Plan>) -> Answer {
        let writer = match plan.operation {
            Operation::Chat | Operation::Completions if plan.stream => Writer::Stream(Box::new(Stream::new(&plan))),
            Operation::Chat | Operation::Completions => Writer::Unary(Box::new(Unary::new(&plan))),
            Operation::Responses => Writer::Responses(Box::new(ResponsesWriter::new(&plan))),
            // The last two are answered without a model.
            Operation::Embeddings
            | Operation::Rerank
            | Operation::Score
            | Operation::Tokenize
            | Operation::Detokenize => Writer::Vectors(Box::default()),
        };
        Answer { plan, writer }
    }

    /// The answer is a stream of events.
    pub fn is_stream(&self) -> bool {
        match self.writer {
            Writer::Stream(_) => true,
            Writer::Responses(_) => self.plan.stream,
            Writer::Unary(_) | Writer::Vectors(_) => false,
        }
    }

    pub fn content_type(&self) -> &'static str {
        if self.is_stream() { "text/event-stream; charset=utf-8" } else { "application/json" }
    }

    /// The stream begins before its model has answered: [`Answer::open`] is to be called, and an error of the model is
    /// one in the stream. Otherwise the first step opens it, so that an error of the first response is a plain one.
    pub fn opens_early(&self) -> bool {
        let is_chat = self.plan.operation == Operation::Chat;
        is_chat && self.plan.compat == Compat::Triton && matches!(self.writer, Writer::Stream(_))
    }

    /// The first event of a stream, if it has one that does not depend on the model and is to be sent before it
    /// answers.
    pub fn open(&mut self, pool: &Pool, out: &mut Gather) {
        let opens_early = self.opens_early();
        if let Writer::Stream(stream) = &mut self.writer
            && opens_early
        {
            stream.open(pool, out);
        }
    }

    /// Takes a response in, to be written in steps. `index`: of several requests, whose response it is. `is_last`: it
    /// has the flag FINAL.
    ///
    /// # Errors
    /// What ends the answer. A stream that has begun is ended by [`Answer::fail_with`].
    pub fn begin(&mut self, index: usize, response: Response, is_last: bool) -> Result<(), Refusal> {
        if let Some(status) = &response.error {
            return Err(self.refusal(status));
        }
        let plan = &*self.plan;
        let arrived = |response| Arrived::new(plan, response, is_last);
        match &mut self.writer {
            Writer::Stream(stream) => stream.begin(arrived(response)?),
            Writer::Unary(unary) => {
                let arrived = unary.wants_outputs(plan).then(|| arrived(response)).transpose()?;
                unary.begin(plan, arrived, is_last)
            }
            Writer::Responses(writer) => {
                writer.begin(arrived(response)?);
                Ok(())
            }
            Writer::Vectors(vectors) => {
                vectors.begin(index, arrived(response)?);
                Ok(())
            }
        }
    }

    /// Writes a bounded part of the response that was begun.
    ///
    /// # Errors
    /// As [`Answer::begin`].
    pub fn step(&mut self, pool: &Pool, out: &mut Gather) -> Result<Progress, Refusal> {
        let plan = &*self.plan;
        match &mut self.writer {
            Writer::Stream(stream) => Ok(stream.step(plan, pool, out)),
            Writer::Unary(unary) => unary.step(pool),
            Writer::Responses(writer) => writer.step(plan, pool, out),
            Writer::Vectors(vectors) => vectors.step(plan, pool),
        }
    }

    /// The model of a request (of several, one) has ended without another response.
    ///
    /// # Errors
    /// It gave too few, or too many. As [`Answer::begin`].
    pub fn end_without_response(&mut self, index: usize) -> Result<(), Refusal> {
        match &mut self.writer {
            // The rest of the answer says so.
            Writer::Stream(_) | Writer::Responses(_) => Ok(()),
            Writer::Unary(unary) => unary.end_without_response(&self.plan),
            Writer::Vectors(vectors) => vectors.end_without_response(index),
        }
    }

    /// All responses are there and written: the rest of the answer, in bounded steps. True when it is whole.
    ///
    /// # Errors
    /// As [`Answer::begin`].
    pub fn finish(&mut self, pool: &Pool, out: &mut Gather) -> Result<bool, Refusal> {
        let plan = &*self.plan;
        match &mut self.writer {
            Writer::Stream(stream) => {
                stream.finish(plan, pool, out);
                Ok(true)
            }
            Writer::Unary(unary) => unary.finish(plan, pool, out),
            Writer::Responses(writer) => Ok(writer.finish(plan, pool, out)),
            Writer::Vectors(vectors) => vectors.finish(plan, pool, out),
        }
    }

    /// What an error of the model is to a client that has nothing of the answer yet.
    pub fn refusal(&self, status: &Status) -> Refusal {
        Refusal::of_status(status, self.plan.compat)
    }

    /// The events that end a stream that has failed.
    pub fn fail(&mut self, status: &Status, pool: &Pool, out: &mut Gather) {
        self.fail_with(&self.refusal(status), pool, out);
    }

    /// The same, for what [`Answer::begin`] and its like return.
    pub fn fail_with(&mut self, refusal: &Refusal, pool: &Pool, out: &mut Gather) {
        match &mut self.writer {
            Writer::Stream(stream) => stream.fail(refusal, pool, out),
            Writer::Responses(writer) if self.plan.stream => {
                writer.fail(&self.plan, failure::message_of(refusal), pool, out);
            }
            Writer::Unary(_) | Writer::Responses(_) | Writer::Vectors(_) => {}
        }
    }

    /// Tokens that the model has reported so far: of the prompt, and written.
    pub fn tokens(&self) -> (Option<u64>, u64) {
        let counts = match &self.writer {
            Writer::Stream(stream) => stream.counts(),
            Writer::Unary(unary) => unary.counts(),
            Writer::Responses(writer) => writer.counts(),
            Writer::Vectors(vectors) => vectors.counts(),
        };
        (counts.prompt, counts.completion.unwrap_or(0))
    }
}
