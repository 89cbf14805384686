//! Inference over both protocols: what is common to decoding a request and encoding its answer.

pub mod classification;
pub mod grpc_reply;
pub mod grpc_request;
pub mod http_reply;
pub mod http_request;

use std::sync::Arc;

use smallvec::SmallVec;

use super::infer::classification::classify;
use super::packing::Packing;
use crate::memory::Pool;
use crate::repository::ServedModel;
use crate::request::{OutputTensor, Response, Status, Text};

/// How a client wants one output.
#[derive(Debug, Clone)]
pub struct OutputForm {
    pub name: Text,
    /// HTTP: behind the JSON header instead of inside it.
    pub binary: bool,
    /// Number of classes to report; 0: the tensor itself.
    pub class_count: u32,
}

/// How a client wants its answer.
#[derive(Debug, Clone, Default)]
pub struct AnswerForm {
    /// Outputs that were asked for by name; empty: all of them.
    pub outputs: SmallVec<[OutputForm; 2]>,
    /// HTTP: the form of outputs that were not named.
    pub binary_by_default: bool,
    /// gRPC streams: a decoupled model that ends without another response is answered for.
    pub empty_final_response: bool,
    /// gRPC streams: the model's version as the request names it.
    pub version: Text,
    /// How the whole answer is packed, where it is not a message of a stream.
    pub packing: Option<Packing>,
}

impl AnswerForm {
    pub fn of(&self, name: &Text) -> (bool, u32) {
        let named = self.outputs.iter().find(|output| output.name == *name);
        named.map_or((self.binary_by_default, 0), |output| (output.binary, output.class_count))
    }
}

/// Replaces the outputs that the client wants as classes.
pub fn apply_classification(
    response: &mut Response,
    form: &AnswerForm,
    model: &Arc<ServedModel>,
    pool: &Pool,
) -> Result<(), Status> {
    if form.outputs.iter().all(|output| output.class_count == 0) {
        return Ok(());
    }
    for output in &mut response.outputs {
        let (_, count) = form.of(&output.name);
        if count > 0 {
            let labels = model.labels.get(&*output.name.to_str_lossy());
            *output = classify(output, count as usize, model.spec.max_batch_size > 0, labels, pool)?;
        }
    }
    Ok(())
}

/// The bytes of an output in one piece: most are, scattered ones are joined.
pub fn contiguous(output: &OutputTensor, pool: &Pool) -> crate::memory::Slice {
    match &output.data[..] {
        [] => crate::memory::Slice::empty(),
        [piece] => piece.clone(),
        pieces => {
            let len = output.byte_size();
            let mut block = pool.get(len).unwrap_or_else(|_| crate::memory::BlockMut::unpooled(len));
            let mut at = 0;
            for piece in pieces {
                block[at..at + piece.len()].copy_from_slice(piece);
                at += piece.len();
            }
            block.freeze()
        }
    }
}
