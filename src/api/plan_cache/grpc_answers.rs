//! Responses that look like earlier ones: what they have in common is encoded once.
//!
//! A model answers most requests with the same outputs in the same shapes. All of such a message but the id and the
//! contents stays the same, and checking that it does is several times cheaper than checking texts for UTF-8,
//! measuring the message and writing it.

use super::answer_key::AnswerKey;
use super::bounds::{GRPC_ANSWER_BYTES_MAX, GRPC_ANSWER_OUTPUTS_MAX, GRPC_ANSWER_PARAMETERS_MAX, GRPC_ANSWERS_MAX};
use nereid_protocol::grpc::ResponseHead;
use nereid_request::Response;
use nereid_scheduler::ServedModel;

/// Unknown heads in a row after which only every so many of them is kept: models whose every answer is new.
const NOVELTIES_MAX: u32 = 32;
const NOVELTIES_SKIPPED: u32 = 16;

/// The heads of the last responses.
#[derive(Debug, Default)]
pub struct GrpcAnswers {
    kept: Vec<Kept>,
    /// The place of the one that gives way next.
    oldest: usize,
    novelties: u32,
    /// Answers whose head was known.
    pub hits: u64,
}

#[derive(Debug)]
struct Kept {
    key: AnswerKey,
    head: ResponseHead,
}

impl GrpcAnswers {
    /// The head of responses with the key of this one.
    pub fn find(&self, response: &Response, model: &ServedModel) -> Option<&ResponseHead> {
        self.kept.iter().find(|kept| kept.key.is_of(model) && kept.key.fits(response)).map(|kept| &kept.head)
    }

    /// Whether the head of a response is to be kept that was not found.
    pub fn is_worth_keeping(&mut self, response: &Response) -> bool {
        self.novelties = self.novelties.saturating_add(1);
        let is_frequent = self.novelties > NOVELTIES_MAX && !self.novelties.is_multiple_of(NOVELTIES_SKIPPED);
        !is_frequent
            && response.outputs.len() <= GRPC_ANSWER_OUTPUTS_MAX
            && response.parameters.len() <= GRPC_ANSWER_PARAMETERS_MAX
    }

    /// A response was written behind a head that was found.
    pub fn note_hit(&mut self) {
        self.novelties = 0;
        self.hits += 1;
    }

    pub fn keep(&mut self, response: &Response, model: &ServedModel, head: ResponseHead) {
        if head.len() > GRPC_ANSWER_BYTES_MAX {
            return;
        }
        let mut key = AnswerKey::default();
        key.set(response, model);
        let kept = Kept { key, head };
        if self.kept.len() < GRPC_ANSWERS_MAX {
            return self.kept.push(kept);
        }
        if let Some(place) = self.kept.get_mut(self.oldest) {
            *place = kept;
        }
        self.oldest = (self.oldest + 1) % GRPC_ANSWERS_MAX;
    }

    /// Models came or went.
    pub fn forget(&mut self) {
        *self = GrpcAnswers { hits: self.hits, ..GrpcAnswers::default() };
    }
}
