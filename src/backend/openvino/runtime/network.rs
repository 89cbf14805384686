//! A model as it was read: its ports, conversions of their element types, and new shapes of its inputs.

use std::ptr::{self, NonNull};

use nereid_request::DataType;

use super::functions::{OvModel, OvPartialShape, OvPort, OvPrePostProcessor, OvStatus};
use super::port::Dimension;
use super::{OpenVinoError, Port, Runtime, filled};

/// The most inputs, or outputs, that are read.
const PORTS_MAX: usize = 65_536;

const INPUTS: &str = "getting input infos";
const OUTPUTS: &str = "getting output infos";

/// A port with the element type that it shall have.
#[derive(Debug)]
pub struct Conversion<'a> {
    pub index: usize,
    /// For errors.
    pub name: &'a str,
    pub datatype: DataType,
}

pub struct Network {
    runtime: &'static Runtime,
    at: NonNull<OvModel>,
}

// SAFETY: a model that was read is data: it may be used and freed on any thread, one at a time.
unsafe impl Send for Network {}

impl Drop for Network {
    fn drop(&mut self) {
        // SAFETY: made by the library for this owner, and freed once.
        unsafe { (self.runtime.functions.ov_model_free)(self.at.as_ptr()) };
    }
}

impl Network {
    pub(super) fn new(runtime: &'static Runtime, at: NonNull<OvModel>) -> Network {
        Network { runtime, at }
    }

    pub(super) fn at(&self) -> *const OvModel {
        self.at.as_ptr()
    }

    /// The inputs in the model's order.
    pub fn inputs(&self) -> Result<Vec<Port>, OpenVinoError> {
        let functions = &self.runtime.functions;
        self.ports(INPUTS, functions.ov_model_inputs_size, functions.ov_model_const_input_by_index)
    }

    /// The outputs in the model's order.
    pub fn outputs(&self) -> Result<Vec<Port>, OpenVinoError> {
        let functions = &self.runtime.functions;
        self.ports(OUTPUTS, functions.ov_model_outputs_size, functions.ov_model_const_output_by_index)
    }

    fn ports(
        &self,
        step: &str,
        size: unsafe extern "C" fn(*const OvModel, *mut usize) -> OvStatus,
        by_index: unsafe extern "C" fn(*const OvModel, usize, *mut *mut OvPort) -> OvStatus,
    ) -> Result<Vec<Port>, OpenVinoError> {
        let mut count = 0;
        // SAFETY: the model is alive; a number is written to the given place.
        self.runtime.check(unsafe { size(self.at(), &mut count) }, step)?;
        if count > PORTS_MAX {
            return Err(OpenVinoError::new(step, format!("the model has {count} ports, at most {PORTS_MAX} are read")));
        }
        let port = |index| {
            let mut port = ptr::null_mut();
            // SAFETY: the model is alive and has more ports than the index says; one is written to the given place.
            self.runtime.check(unsafe { by_index(self.at(), index, &mut port) }, step)?;
            Port::take(self.runtime, filled(port, step)?, step)
        };
        (0..count).map(port).collect()
    }

    /// Gives every input a new shape, in the model's order. On an error the model keeps its shapes.
    pub fn reshape(&mut self, shapes: &[Vec<Dimension>], step: &str) -> Result<(), OpenVinoError> {
        let mut dims: Vec<Vec<_>> = shapes.iter().map(|dims| dims.iter().map(|dim| dim.raw()).collect()).collect();
        let raw: Vec<OvPartialShape> = dims
            .iter_mut()
            .map(|dims| {
                let rank = Dimension::of(i64::try_from(dims.len()).unwrap_or(i64::MAX)).raw();
                OvPartialShape { rank, dims: dims.as_mut_ptr() }
            })
            .collect();
        let indexes: Vec<usize> = (0..raw.len()).collect();
        let reshape = self.runtime.functions.ov_model_reshape_by_port_indexes;
        // SAFETY: the model is alive; as many indexes and shapes as the number says are alive during the call, each
        // with as many dimensions as its rank says.
        let status = unsafe { reshape(self.at(), indexes.as_ptr(), raw.as_ptr(), raw.len()) };
        self.runtime.check(status, step)
    }

    /// The model with inputs of other element types, which it converts.
    pub fn convert_inputs(self, wanted: &[Conversion<'_>]) -> Result<Network, OpenVinoError> {
        if wanted.is_empty() {
            return Ok(self);
        }
        let steps = PrePostProcessor::new(&self, "apply model input preprocessing")?;
        wanted.iter().try_for_each(|one| steps.set_input_type(one))?;
        steps.build()
    }

    /// The model with outputs of other element types, which it converts.
    pub fn convert_outputs(self, wanted: &[Conversion<'_>]) -> Result<Network, OpenVinoError> {
        if wanted.is_empty() {
            return Ok(self);
        }
        let steps = PrePostProcessor::new(&self, "apply model output preprocessing")?;
        wanted.iter().try_for_each(|one| steps.set_output_type(one))?;
        steps.build()
    }
}

/// Steps in front of a model and behind it.
struct PrePostProcessor {
    runtime: &'static Runtime,
    at: NonNull<OvPrePostProcessor>,
    step: &'static str,
}

impl Drop for PrePostProcessor {
    fn drop(&mut self) {
        // SAFETY: made by `PrePostProcessor::new`, and freed once.
        unsafe { (self.runtime.functions.ov_preprocess_prepostprocessor_free)(self.at.as_ptr()) };
    }
}

impl PrePostProcessor {
    fn new(network: &Network, step: &'static str) -> Result<PrePostProcessor, OpenVinoError> {
        let runtime = network.runtime;
        let mut at = ptr::null_mut();
        let create = runtime.functions.ov_preprocess_prepostprocessor_create;
        // SAFETY: the model is alive, and the object holds a reference to it; it is written to the given place.
        runtime.check(unsafe { create(network.at(), &mut at) }, step)?;
        Ok(PrePostProcessor { runtime, at: filled(at, step)?, step })
    }

    fn number(&self, wanted: &Conversion<'_>, step: &str) -> Result<i32, OpenVinoError> {
        let number = self.runtime.elements.number(wanted.datatype);
        number.ok_or_else(|| OpenVinoError::new(step, format!("the library has no type {}", wanted.datatype)))
    }

    fn set_input_type(&self, wanted: &Conversion<'_>) -> Result<(), OpenVinoError> {
        let functions = &self.runtime.functions;
        let step = format!("setting precision for {}", wanted.name);
        let number = self.number(wanted, &step)?;
        let mut input = ptr::null_mut();
        let get = functions.ov_preprocess_prepostprocessor_get_input_info_by_index;
        // SAFETY: the object is alive; a description of the input is written to the given place.
        self.runtime.check(unsafe { get(self.at.as_ptr(), wanted.index, &mut input) }, &step)?;
        let input = filled(input, &step)?.as_ptr();
        let mut tensor = ptr::null_mut();
        // SAFETY: the description is alive; that of its tensor is written to the given place.
        let status = unsafe { (functions.ov_preprocess_input_info_get_tensor_info)(input, &mut tensor) };
        let set = self.runtime.check(status, &step).and_then(|()| {
            let tensor = filled(tensor, &step)?.as_ptr();
            // SAFETY: the description is alive, and the number is one of the library's element types.
            let status = unsafe { (functions.ov_preprocess_input_tensor_info_set_element_type)(tensor, number) };
            let set = self.runtime.check(status, &step);
            // SAFETY: returned by the library for its caller to free, once.
            unsafe { (functions.ov_preprocess_input_tensor_info_free)(tensor) };
            set
        });
        // SAFETY: the library returned it to its caller, which frees it once.
        unsafe { (functions.ov_preprocess_input_info_free)(input) };
        set
    }

    fn set_output_type(&self, wanted: &Conversion<'_>) -> Result<(), OpenVinoError> {
        let functions = &self.runtime.functions;
        let step = format!("setting precision for {}", wanted.name);
        let number = self.number(wanted, &step)?;
        let mut output = ptr::null_mut();
        let get = functions.ov_preprocess_prepostprocessor_get_output_info_by_index;
        // SAFETY: the object is alive; a description of the output is written to the given place.
        self.runtime.check(unsafe { get(self.at.as_ptr(), wanted.index, &mut output) }, &step)?;
        let output = filled(output, &step)?.as_ptr();
        let mut tensor = ptr::null_mut();
        // SAFETY: the output's description is alive; that of its tensor is written to the given place.
        let status = unsafe { (functions.ov_preprocess_output_info_get_tensor_info)(output, &mut tensor) };
        let set = self.runtime.check(status, &step).and_then(|()| {
            let tensor = filled(tensor, &step)?.as_ptr();
            // SAFETY: the tensor's description is alive, and the number is one of the library's element types.
            let status = unsafe { (functions.ov_preprocess_output_set_element_type)(tensor, number) };
            let set = self.runtime.check(status, &step);
            // SAFETY: the caller of the library owns the tensor's description and frees it here alone.
            unsafe { (functions.ov_preprocess_output_tensor_info_free)(tensor) };
            set
        });
        // SAFETY: the caller of the library owns the output's description and frees it here alone.
        unsafe { (functions.ov_preprocess_output_info_free)(output) };
        set
    }

    fn build(self) -> Result<Network, OpenVinoError> {
        let mut at = ptr::null_mut();
        let build = self.runtime.functions.ov_preprocess_prepostprocessor_build;
        // SAFETY: the object is alive; a model, or another reference to it, is written to the given place.
        self.runtime.check(unsafe { build(self.at.as_ptr(), &mut at) }, self.step)?;
        Ok(Network::new(self.runtime, filled(at, self.step)?))
    }
}
