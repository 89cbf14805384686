//! Runs a compiled model on memory of the server.
//!
//! The library keeps pointers to the tensors that were set until others are set. So before a run starts every input
//! and output is a tensor that this run sets, or one with memory of its own that an earlier run has set: no pointer to
//! memory that is gone is ever used.
//!
//! Setting a tensor takes the library about two microseconds, as long as copying some ten kilobytes. So small inputs
//! are copied into a tensor that stays set while the shape stays the same.

use std::ptr::NonNull;

use nereid_memory::{Slice, Target};
use nereid_request::{DataType, Shape};
use smallvec::SmallVec;

use super::functions::OvInferRequest;
use super::tensor::{SETTING, Tensor};
use super::{OpenVinoError, Port, Runtime};

const RUNNING: &str = "running inference - wait";

/// The largest tensor that is copied in order not to set another one.
pub const COPIED_BYTES_MAX: usize = 8 << 10;

/// An input that the model reads where it is.
#[derive(Debug, Clone, Copy)]
pub struct HostInput<'a> {
    pub datatype: DataType,
    pub shape: &'a [i64],
    pub bytes: &'a Slice,
}

/// The memory that an output is written to.
#[derive(Debug)]
pub enum OutputMemory<'a> {
    Host {
        datatype: DataType,
        /// The model may make a smaller one.
        shape: &'a [i64],
        bytes: &'a mut Target,
    },
    /// The library's: read it with [`InferRequest::own_output`].
    Own,
}

pub struct InferRequest {
    runtime: &'static Runtime,
    at: NonNull<OvInferRequest>,
    /// Of each input, the tensor that is set, if it has memory of its own.
    kept: Vec<Option<KeptInput>>,
    /// Of each output, a tensor with memory of the library, and whether it is set.
    own: Vec<(Tensor, bool)>,
}

/// A tensor for inputs of one shape, which are copied into it.
struct KeptInput {
    datatype: DataType,
    shape: Shape,
    tensor: Tensor,
}

// SAFETY: a request may be used and freed on any thread, one at a time: running takes it mutably.
unsafe impl Send for InferRequest {}

impl Drop for InferRequest {
    fn drop(&mut self) {
        // SAFETY: made by the library for this owner, and freed once.
        unsafe { (self.runtime.functions.ov_infer_request_free)(self.at.as_ptr()) };
    }
}

impl InferRequest {
    pub(super) fn new(
        runtime: &'static Runtime,
        at: NonNull<OvInferRequest>,
        input_count: usize,
        outputs: &[Port],
    ) -> Result<InferRequest, OpenVinoError> {
        let kept = std::iter::repeat_with(|| None).take(input_count).collect();
        let mut request = InferRequest { runtime, at, kept, own: Vec::with_capacity(outputs.len()) };
        for output in outputs {
            let number = output.datatype.and_then(|datatype| runtime.elements.number(datatype));
            let number = number.ok_or_else(|| {
                OpenVinoError::new(SETTING, format!("output '{}' has a type that cannot be read", output.name))
            })?;
            let dims = output.dims.as_deref().unwrap_or_default();
            let shape: Shape = dims.iter().map(|dim| dim.fixed().unwrap_or(0)).collect();
            request.own.push((Tensor::owned(runtime, number, &shape)?, false));
        }
        Ok(request)
    }

    /// Runs the model. Inputs and outputs are in the model's order, all of them. The shapes of the outputs are those
    /// that the model made.
    pub fn run(
        &mut self,
        inputs: &[HostInput<'_>],
        outputs: &mut [OutputMemory<'_>],
    ) -> Result<SmallVec<[Shape; 4]>, OpenVinoError> {
        let functions = &self.runtime.functions;
        if (inputs.len(), outputs.len()) != (self.kept.len(), self.own.len()) {
            let text = format!("the model has {} inputs and {} outputs", self.kept.len(), self.own.len());
            return Err(OpenVinoError::new(SETTING, text));
        }
        // Kept until the run has ended.
        let mut bound: SmallVec<[Tensor; 8]> = SmallVec::new();
        for (index, (input, kept)) in inputs.iter().zip(&mut self.kept).enumerate() {
            let HostInput { datatype, shape, bytes } = *input;
            let fits = |kept: &KeptInput| kept.datatype == datatype && kept.shape.as_slice() == shape;
            if let Some(kept) = kept.as_mut().filter(|kept| fits(kept)) {
                kept.tensor.copy_from(bytes)?;
                continue;
            }
            // Another tensor is set now, or the run fails.
            *kept = None;
            if (1..=COPIED_BYTES_MAX).contains(&bytes.len()) {
                let tensor = Tensor::copy_of(self.runtime, datatype, shape, bytes)?;
                let set = functions.ov_infer_request_set_input_tensor_by_index;
                // SAFETY: request and tensor are alive; the request takes a reference of its own.
                self.runtime.check(unsafe { set(self.at.as_ptr(), index, tensor.at()) }, SETTING)?;
                *kept = Some(KeptInput { datatype, shape: Shape::from_slice(shape), tensor });
                continue;
            }
            let memory = bytes.as_ptr().cast_mut();
            // SAFETY: the memory is borrowed until this function returns, and the next run sets other tensors before
            // the library uses the request again. It is an input: the library only reads it.
            let tensor = unsafe { Tensor::over(self.runtime, datatype, shape, memory, bytes.len()) }?;
            let set = functions.ov_infer_request_set_input_tensor_by_index;
            // SAFETY: request and tensor are alive; the request takes a reference of its own.
            self.runtime.check(unsafe { set(self.at.as_ptr(), index, tensor.at()) }, SETTING)?;
            bound.push(tensor);
        }
        let mut written: SmallVec<[Option<Tensor>; 4]> = SmallVec::new();
        for (index, output) in outputs.iter_mut().enumerate() {
            let host = match output {
                OutputMemory::Own => None,
                OutputMemory::Host { datatype, shape, bytes } => {
                    let (memory, len) = (bytes.as_mut_ptr(), bytes.len());
                    // SAFETY: the memory is borrowed mutably until this function returns, and the next run sets other
                    // tensors before the library uses the request again.
                    Some(unsafe { Tensor::over(self.runtime, *datatype, shape, memory, len) }?)
                }
            };
            let own = self.own.get_mut(index);
            let (own, is_set) =
                own.ok_or_else(|| OpenVinoError::new(SETTING, format!("the model has no output {index}")))?;
            let was_set = std::mem::replace(is_set, false);
            let tensor = match &host {
                Some(host) => host.at(),
                None if was_set => {
                    *is_set = true;
                    written.push(None);
                    continue;
                }
                None => own.at(),
            };
            let set = functions.ov_infer_request_set_output_tensor_by_index;
            // SAFETY: the request is alive, and so is the tensor, to which the request takes a reference of its own.
            self.runtime.check(unsafe { set(self.at.as_ptr(), index, tensor) }, SETTING)?;
            *is_set = host.is_none();
            written.push(host);
        }
        // SAFETY: the request is alive, and all its tensors were set to memory that is alive; it runs on one thread at
        // a time, as `&mut self` demands, and the call returns after the run.
        self.runtime.check(unsafe { (functions.ov_infer_request_infer)(self.at.as_ptr()) }, RUNNING)?;
        let shapes = written.iter().zip(&self.own).map(|(host, (own, _))| host.as_ref().unwrap_or(own).shape());
        shapes.collect()
    }

    /// The elements of an output that the last run wrote to memory of the library.
    pub fn own_output(&self, index: usize) -> Result<&[u8], OpenVinoError> {
        let own = self.own.get(index).ok_or_else(|| OpenVinoError::new(SETTING, "the model has no such output"))?;
        own.0.bytes()
    }
}
