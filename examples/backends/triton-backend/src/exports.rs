//! What the server calls, for any [`Backend`]. A panic ends here as an error.

#![allow(unsafe_code)]

use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::Arc;

use serde_json::Value;

use crate::error::Error;
use crate::ffi::{self, Failure, Handle, check, raise, tell};
use crate::handles::{Instance, Request};
use crate::{Backend, now_ns};

/// Runs what the server called.
fn entry(body: impl FnOnce() -> Result<(), Error>) -> Failure {
    let outcome = catch_unwind(AssertUnwindSafe(body));
    let outcome = outcome.unwrap_or_else(|_| Err(Error::internal("the backend panicked")));
    outcome.map_or_else(|error| raise(&error), |()| null_mut())
}

/// # Safety
/// The server calls it with its own handle.
pub unsafe fn initialize(_backend: Handle) -> Failure {
    entry(ffi::check_version)
}

/// # Safety
/// As above.
pub unsafe fn describe(attributes: Handle) -> Failure {
    // SAFETY: the attributes live through the call; there is no list of devices.
    entry(|| unsafe {
        let kind = ffi::KIND_CPU;
        check(ffi::TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(attributes, kind, 1, std::ptr::null(), 0))?;
        check(ffi::TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, true))
    })
}

/// A message of the server that is ours.
struct Message(Handle);

impl Drop for Message {
    fn drop(&mut self) {
        // SAFETY: owned until now.
        tell(check(unsafe { ffi::TRITONSERVER_MessageDelete(self.0) }));
    }
}

/// # Safety
/// The model lives.
unsafe fn config_of(model: Handle) -> Result<Value, Error> {
    let mut message = null_mut();
    // SAFETY: by contract, and the result can be written.
    check(unsafe { ffi::TRITONBACKEND_ModelConfig(model, 1, &mut message) })?;
    let message = Message(message);
    let (mut base, mut size): (*const c_char, usize) = (std::ptr::null(), 0);
    // SAFETY: the message lives, and the results can be written.
    check(unsafe { ffi::TRITONSERVER_MessageSerializeToJson(message.0, &mut base, &mut size) })?;
    // SAFETY: so many bytes, which live as long as the message.
    let text = unsafe { std::slice::from_raw_parts(base.cast::<u8>(), size) };
    serde_json::from_slice(text).map_err(|error| Error::internal(format!("the model's configuration: {error}")))
}

/// # Safety
/// The model is being initialised.
unsafe fn set_config(model: Handle, config: &Value) -> Result<(), Error> {
    let text = config.to_string();
    let mut message = null_mut();
    // SAFETY: the text lives through the call, and the result can be written.
    check(unsafe { ffi::TRITONSERVER_MessageNewFromSerializedJson(&mut message, text.as_ptr().cast(), text.len()) })?;
    let message = Message(message);
    // SAFETY: by contract.
    check(unsafe { ffi::TRITONBACKEND_ModelSetConfig(model, 1, message.0) })
}

/// # Safety
/// The server calls it to initialise a model.
pub unsafe fn model_initialize<B: Backend>(model: Handle) -> Failure {
    // SAFETY: by contract.
    entry(|| unsafe {
        let mut config = config_of(model)?;
        let mut may_complete = false;
        check(ffi::TRITONBACKEND_ModelAutoCompleteConfig(model, &mut may_complete))?;
        if may_complete && B::complete(&mut config)? {
            set_config(model, &config)?;
        }
        let made: Box<Arc<B::Model>> = Box::new(Arc::new(B::open(&config)?));
        let state = Box::into_raw(made);
        let kept = check(ffi::TRITONBACKEND_ModelSetState(model, state.cast()));
        if kept.is_err() {
            // Nobody else knows of it.
            drop(Box::from_raw(state));
        }
        kept
    })
}

/// # Safety
/// The model lives and was initialised here.
unsafe fn model_state<B: Backend>(model: Handle) -> Result<*mut Arc<B::Model>, Error> {
    let mut state = null_mut();
    // SAFETY: by contract, and the result can be written.
    check(unsafe { ffi::TRITONBACKEND_ModelState(model, &mut state) })?;
    Ok(state.cast())
}

/// # Safety
/// The server calls it once for a model, and uses the model no more.
pub unsafe fn model_finalize<B: Backend>(model: Handle) -> Failure {
    // SAFETY: by contract; the box was made by `model_initialize`.
    entry(|| unsafe {
        let state = model_state::<B>(model)?;
        // Triton finalises what failed to initialise, too.
        if !state.is_null() {
            drop(Box::from_raw(state));
        }
        Ok(())
    })
}

/// # Safety
/// The server calls it to initialise an instance of a model that was initialised here.
pub unsafe fn instance_initialize<B: Backend>(instance: Handle) -> Failure {
    // SAFETY: by contract.
    entry(|| unsafe {
        let mut model = null_mut();
        check(ffi::TRITONBACKEND_ModelInstanceModel(instance, &mut model))?;
        let shared = Arc::clone(&*model_state::<B>(model)?);
        let state = Box::into_raw(Box::new(B::create(shared, Instance::new(instance))?));
        let kept = check(ffi::TRITONBACKEND_ModelInstanceSetState(instance, state.cast()));
        if kept.is_err() {
            drop(Box::from_raw(state));
        }
        kept
    })
}

/// # Safety
/// The instance lives and was initialised here.
unsafe fn instance_state<B: Backend>(instance: Handle) -> Result<*mut B, Error> {
    let mut state = null_mut();
    // SAFETY: by contract, and the result can be written.
    check(unsafe { ffi::TRITONBACKEND_ModelInstanceState(instance, &mut state) })?;
    Ok(state.cast())
}

/// # Safety
/// The server calls it once for an instance, and uses the instance no more.
pub unsafe fn instance_finalize<B: Backend>(instance: Handle) -> Failure {
    // SAFETY: by contract; the box was made by `instance_initialize`.
    entry(|| unsafe {
        let state = instance_state::<B>(instance)?;
        if !state.is_null() {
            drop(Box::from_raw(state));
        }
        Ok(())
    })
}

/// # Safety
/// The server calls it with `count` requests, for an instance that was initialised here and does not execute now.
pub unsafe fn execute<B: Backend>(instance: Handle, requests: *mut *mut std::ffi::c_void, count: u32) -> Failure {
    // An error may be returned only as long as no request was taken.
    let mut taken = Vec::new();
    let start_ns = now_ns();
    // SAFETY: by contract.
    let failure = entry(|| unsafe {
        let state = &mut *instance_state::<B>(instance)?;
        let list = if count == 0 { &[] } else { std::slice::from_raw_parts(requests, count as usize) };
        taken.extend(list.iter().map(|&request| Request::new(request)));
        let batch = std::mem::take(&mut taken);
        // Requests that a panic drops are answered by their own drop.
        if catch_unwind(AssertUnwindSafe(|| state.execute(batch))).is_err() {
            tell(Err(Error::internal("the backend panicked in an execution")));
        }
        Ok(())
    });
    for request in taken {
        request.fail(&Instance::new(instance), start_ns, Error::internal("the backend panicked"));
    }
    failure
}
