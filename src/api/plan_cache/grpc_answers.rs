//! Responses that look like earlier ones: what they have in common is encoded once.
//!
//! A model answers most requests with the same outputs in the same shapes. All of such a message but the id and the
//! contents stays the same, and checking that it does is several times cheaper than checking texts for UTF-8,
//! measuring the message and writing it.

use smallvec::SmallVec;

use crate::repository::ServedModel;
use nereid_protocol::grpc::ResponseHead;
use nereid_request::{DataType, Parameters, Response, Shape, Text};

/// Looks that a shard remembers.
const KEPT: usize = 8;
/// Longer parameters, or more outputs, are not worth remembering.
const OUTPUTS_MAX: usize = 16;
const PARAMETERS_MAX: usize = 16;
const HEAD_BYTES_MAX: usize = 4096;
/// Unknown looks in a row after which only every so many of them is remembered: models whose every answer is new.
const NOVELTIES_MAX: u32 = 32;
const NOVELTIES_SKIPPED: u32 = 16;

/// The looks of the last responses.
#[derive(Debug, Default)]
pub struct Familiar {
    looks: Vec<Look>,
    /// The place of the one that is forgotten next.
    oldest: usize,
    novelties: u32,
}

#[derive(Debug)]
struct Look {
    name: String,
    version: i64,
    outputs: SmallVec<[(Text, DataType, Shape); 2]>,
    parameters: Parameters,
    head: ResponseHead,
}

impl Look {
    fn is_of(&self, response: &Response, model: &ServedModel) -> bool {
        self.version == model.version
            && self.outputs.len() == response.outputs.len()
            && self.outputs.iter().zip(&response.outputs).all(|((name, datatype, shape), output)| {
                *datatype == output.datatype && *shape == output.shape && *name == output.name
            })
            && self.name == model.name
            && self.parameters.is_same(&response.parameters)
    }
}

impl Familiar {
    /// The head of responses that look like this one.
    pub fn head(&self, response: &Response, model: &ServedModel) -> Option<&ResponseHead> {
        self.looks.iter().find(|look| look.is_of(response, model)).map(|look| &look.head)
    }

    /// Whether a response without a familiar head is to be remembered.
    pub fn is_worth_keeping(&mut self, response: &Response) -> bool {
        self.novelties = self.novelties.saturating_add(1);
        let is_frequent = self.novelties > NOVELTIES_MAX && !self.novelties.is_multiple_of(NOVELTIES_SKIPPED);
        !is_frequent && response.outputs.len() <= OUTPUTS_MAX && response.parameters.len() <= PARAMETERS_MAX
    }

    /// A response had a familiar head.
    pub fn note_known(&mut self) {
        self.novelties = 0;
    }

    pub fn remember(&mut self, response: &Response, model: &ServedModel, head: ResponseHead) {
        if head.len() > HEAD_BYTES_MAX {
            return;
        }
        let outputs = response.outputs.iter();
        let look = Look {
            name: model.name.clone(),
            version: model.version,
            outputs: outputs.map(|output| (output.name.clone(), output.datatype, output.shape.clone())).collect(),
            parameters: response.parameters.clone(),
            head,
        };
        if self.looks.len() < KEPT {
            return self.looks.push(look);
        }
        if let Some(place) = self.looks.get_mut(self.oldest) {
            *place = look;
        }
        self.oldest = (self.oldest + 1) % KEPT;
    }
}
