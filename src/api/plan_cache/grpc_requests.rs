//! Requests that come again with another id and other contents: what follows from the rest is found out once.
//!
//! A head that is seen for the second time is learnt: the model that it means, its inputs and outputs as they passed
//! the checks, and how it is to be answered. All of that goes when the shard gets other models. Learnt are only
//! requests of which nothing but the size of the contents matters: none with strings, shared memory or typed contents,
//! none that is watched.

use std::rc::Rc;
use std::sync::{Arc, Weak};

use super::bounds::{GRPC_REQUEST_BYTES_MAX, GRPC_REQUEST_INPUTS_MAX, GRPC_REQUESTS_MAX};
use crate::api::infer::AnswerForm;
use nereid_memory::{Exhausted, Pool, Portions};
use nereid_protocol::grpc::Outline;
use nereid_request::{
    CorrelationId, DataType, InputTensor, Parameters, Queueing, Request, RequestedOutput, Shape, Text,
};
use nereid_scheduler::ServedModel;

/// The heads of one shard.
#[derive(Default)]
pub struct GrpcRequests {
    /// None before the first request.
    places: Vec<PrototypeSlot>,
}

#[derive(Default)]
struct PrototypeSlot {
    /// The hash of the head that fell here last.
    seen: u64,
    prototype: Option<Rc<Prototype>>,
}

/// What equal requests have in common, as bytes.
pub struct RequestKey {
    hash: u64,
    model: Box<[u8]>,
    tensors: Box<[u8]>,
}

/// What follows from a head.
pub struct Prototype {
    head: RequestKey,
    /// Weak: a strong reference would keep the model from ending.
    model: Weak<ServedModel>,
    inputs: Vec<Input>,
    outputs: Vec<RequestedOutput>,
    parameters: Parameters,
    flags: u32,
    correlation_id: CorrelationId,
    queueing: Queueing,
    batch_size: u64,
    pub form: Rc<AnswerForm>,
}

struct Input {
    name: Text,
    datatype: DataType,
    shape: Shape,
    model_shape: Shape,
    index: usize,
    byte_size: usize,
}

impl GrpcRequests {
    /// What is known of requests like this one. If nothing is, its head may be given back, to be learnt when the
    /// request has come as a message.
    pub fn recognise(&mut self, outline: &Outline<'_>) -> Result<Rc<Prototype>, Option<RequestKey>> {
        // Typed contents are part of the head: who learnt that it is in order without raw ones would take both.
        if outline.head_len() > GRPC_REQUEST_BYTES_MAX || outline.contents().next().is_none() {
            return Err(None);
        }
        if self.places.is_empty() {
            self.places.resize_with(GRPC_REQUESTS_MAX, PrototypeSlot::default);
        }
        let hash = outline.hash();
        let Some(place) = self.places.get_mut(hash as usize % GRPC_REQUESTS_MAX) else { return Err(None) };
        if let Some(prototype) = &place.prototype
            && prototype.head.is_of(hash, outline)
        {
            return Ok(Rc::clone(prototype));
        }
        let comes_again = std::mem::replace(&mut place.seen, hash) == hash;
        Err(comes_again.then(|| RequestKey { hash, model: outline.model.into(), tensors: outline.tensors.into() }))
    }

    /// Remembers a request that has passed the checks of `model`.
    pub fn learn(&mut self, head: RequestKey, model: &Arc<ServedModel>, request: &Request, form: &AnswerForm) {
        let whole = |input: &InputTensor| input.data.len() == 1 && input.placement.is_none();
        let is_plain = request.shared.is_none()
            && request.observer.is_none()
            && form.watch.is_none()
            && !form.wants_timing
            && request.inputs.len() <= GRPC_REQUEST_INPUTS_MAX
            && request.inputs.iter().all(|input| input.datatype != DataType::Bytes && whole(input))
            && form.outputs.iter().all(|output| !output.is_shared);
        let Some(place) = self.places.get_mut(head.hash as usize % GRPC_REQUESTS_MAX).filter(|_| is_plain) else {
            return;
        };
        let inputs = request.inputs.iter().map(|input| Input {
            name: input.name.clone(),
            datatype: input.datatype,
            shape: input.shape.clone(),
            model_shape: input.model_shape.clone(),
            index: input.index,
            byte_size: input.byte_size(),
        });
        place.prototype = Some(Rc::new(Prototype {
            head,
            model: Arc::downgrade(model),
            inputs: inputs.collect(),
            outputs: request.outputs.clone(),
            parameters: request.parameters.clone(),
            flags: request.flags,
            correlation_id: request.correlation_id.clone(),
            queueing: request.queueing,
            batch_size: request.batch_size,
            form: Rc::new(form.clone()),
        }));
    }

    /// Models came or went.
    pub fn forget(&mut self) {
        self.places = Vec::new();
    }
}

impl RequestKey {
    fn is_of(&self, hash: u64, outline: &Outline<'_>) -> bool {
        self.hash == hash && *self.tensors == *outline.tensors && *self.model == *outline.model
    }
}

impl Prototype {
    /// `None` once it has ended.
    pub fn model(&self) -> Option<Arc<ServedModel>> {
        self.model.upgrade()
    }

    /// Whether the contents are of the sizes that passed.
    pub fn fits(&self, outline: &Outline<'_>) -> bool {
        let mut given = outline.contents();
        let fits = self.inputs.iter().all(|input| given.next().is_some_and(|given| given.len() == input.byte_size));
        fits && given.next().is_none()
    }

    /// Makes `request` what the head says, with copies of contents that fit.
    pub fn fill(
        &self,
        request: &mut Request,
        outline: &Outline<'_>,
        portions: &mut Portions,
        pool: &Pool,
    ) -> Result<(), Exhausted> {
        if !outline.id.is_empty() {
            request.id = Text::new(outline.id);
        }
        request.inputs.reserve_exact(self.inputs.len());
        for (input, given) in self.inputs.iter().zip(outline.contents()) {
            let mut tensor = InputTensor::new(input.name.clone(), input.datatype, Shape::from_slice(&input.shape));
            tensor.model_shape = Shape::from_slice(&input.model_shape);
            tensor.data.push(portions.copy(pool, given)?);
            tensor.index = input.index;
            request.inputs.push(tensor);
        }
        request.outputs.clone_from(&self.outputs);
        if !self.parameters.is_empty() {
            request.parameters.clone_from(&self.parameters);
        }
        request.flags = self.flags;
        request.correlation_id.clone_from(&self.correlation_id);
        request.queueing = self.queueing;
        request.batch_size = self.batch_size;
        request.ingress.is_checked = true;
        Ok(())
    }
}
