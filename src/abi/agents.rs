//! `TRITONREPOAGENT_*`: repository agents as shared libraries (contract/c_api.md section 6).

mod library;
mod model;

use std::ffi::{c_char, c_void};

use super::border::{deref, entry, null, put, text};
use super::server::{Error, Message};
use nereid_model_config::json;
use nereid_request::Status;

pub use library::{ACTION, find, libraries};
pub use model::{AgentHandle, AgentModelHandle};

/// Version of the agent interface: major, minor.
pub const AGENT_API_VERSION: (u32, u32) = (0, 1);

/// # Safety
/// The pointers are writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONREPOAGENT_ApiVersion(major: *mut u32, minor: *mut u32) -> *mut Error {
    // SAFETY: `major` and `minor` are NULL or writable: this function requires that of its caller.
    entry(|| unsafe { put(major, AGENT_API_VERSION.0).and_then(|()| put(minor, AGENT_API_VERSION.1)) })
}

/// Dereferences the two handles that most functions take, and checks that the model belongs to the agent.
///
/// # Safety
/// The handles are live or NULL.
unsafe fn both<'a>(agent: *const AgentHandle, model: *const AgentModelHandle) -> Result<&'a AgentModelHandle, Status> {
    // SAFETY: `agent` and `model` are NULL or live: this function requires that of its caller.
    let (_, handle) = unsafe { (deref(agent, "agent")?, deref(model, "model")?) };
    if !handle.is_of(agent) {
        return Err(Status::invalid("the model belongs to another agent"));
    }
    Ok(handle)
}

/// # Safety
/// The handles are live and the pointers writable; the text lives as long as the model's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONREPOAGENT_ModelRepositoryLocation(
    agent: *const AgentHandle,
    model: *const AgentModelHandle,
    artifact_type: *mut u32,
    location: *mut *const c_char,
) -> *mut Error {
    entry(|| {
        // SAFETY: `agent` and `model` are NULL or live: this function requires that of its caller.
        let (kind, place) = unsafe { both(agent, model)? }.place();
        // SAFETY: `artifact_type` and `location` are NULL or writable: this function requires that of its caller.
        unsafe { put(artifact_type, kind).and_then(|()| put(location, place)) }
    })
}

/// # Safety
/// The handles are live and the pointer writable; the text lives as long as the model's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONREPOAGENT_ModelRepositoryLocationAcquire(
    agent: *const AgentHandle,
    model: *const AgentModelHandle,
    artifact_type: u32,
    location: *mut *const c_char,
) -> *mut Error {
    entry(|| {
        // SAFETY: `agent` and `model` are NULL or live: this function requires that of its caller.
        let handle = unsafe { both(agent, model)? };
        // Checked first: without a result pointer nothing must be created.
        if location.is_null() {
            return Err(null("location"));
        }
        // SAFETY: `location` is NULL or writable: this function requires it of its caller.
        unsafe { put(location, handle.acquire(artifact_type)?) }
    })
}

/// # Safety
/// The handles are live, the location is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONREPOAGENT_ModelRepositoryLocationRelease(
    agent: *const AgentHandle,
    model: *const AgentModelHandle,
    location: *const c_char,
) -> *mut Error {
    // SAFETY: `location` is NULL or a C string: this function requires it of its caller.
    entry(|| unsafe { both(agent, model)?.release(text(location, "location")?) })
}

/// # Safety
/// The handles are live, the location is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONREPOAGENT_ModelRepositoryUpdate(
    agent: *const AgentHandle,
    model: *const AgentModelHandle,
    artifact_type: u32,
    location: *const c_char,
) -> *mut Error {
    // SAFETY: `location` is NULL or a C string: this function requires it of its caller.
    entry(|| unsafe { both(agent, model)?.update(artifact_type, text(location, "location")?) })
}

/// # Safety
/// The handles are live and the pointer writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONREPOAGENT_ModelParameterCount(
    agent: *const AgentHandle,
    model: *const AgentModelHandle,
    count: *mut u32,
) -> *mut Error {
    entry(|| {
        // SAFETY: `agent` and `model` are NULL or live: this function requires that of its caller.
        let length = unsafe { both(agent, model)? }.parameters.len();
        // SAFETY: `count` is NULL or writable: this function requires it of its caller.
        unsafe { put(count, u32::try_from(length).unwrap_or(u32::MAX)) }
    })
}

/// # Safety
/// The handles are live and the pointers writable; the texts live as long as the model's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONREPOAGENT_ModelParameter(
    agent: *const AgentHandle,
    model: *const AgentModelHandle,
    index: u32,
    parameter_name: *mut *const c_char,
    parameter_value: *mut *const c_char,
) -> *mut Error {
    entry(|| {
        // SAFETY: `agent` and `model` are NULL or live: this function requires that of its caller.
        let parameters = &unsafe { both(agent, model)? }.parameters;
        let found = usize::try_from(index).ok().and_then(|index| parameters.get(index));
        let (name, value) = found.ok_or_else(|| Status::invalid("index out of range for model parameters"))?;
        // SAFETY: `parameter_name` and `parameter_value` are NULL or writable: this function requires that of its
        // caller.
        unsafe { put(parameter_name, name.as_ptr()).and_then(|()| put(parameter_value, value.as_ptr())) }
    })
}

/// The configuration as the repository contains it, before the server or a backend completes it.
///
/// # Safety
/// The handles are live and the pointer writable; the caller owns the message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONREPOAGENT_ModelConfig(
    agent: *const AgentHandle,
    model: *const AgentModelHandle,
    config_version: u32,
    model_config: *mut *mut Message,
) -> *mut Error {
    entry(|| {
        // SAFETY: `agent` and `model` are NULL or live: this function requires that of its caller.
        let handle = unsafe { both(agent, model)? };
        // Checked first: without a result pointer nothing must be created.
        if model_config.is_null() {
            return Err(null("model_config"));
        }
        // SAFETY: `model_config` is NULL or writable: this function requires it of its caller.
        unsafe { put(model_config, Message::into_raw(&json::write(&handle.config, config_version)?)) }
    })
}

/// Exports the getter and the setter of a user's state pointer.
macro_rules! states {
    ($($get:ident(get), $set:ident(set): $handle:ty, $name:literal;)*) => {$(
        /// # Safety
        /// The handle is live and the pointer writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(handle: *const $handle, state: *mut *mut c_void) -> *mut Error {
            entry(|| {
                // SAFETY: `handle` is NULL or live: this function requires it of its caller.
                let handle = unsafe { deref(handle, $name)? };
                // SAFETY: `state` is NULL or writable: this function requires it of its caller.
                unsafe { put(state, handle.state.get()) }
            })
        }

        /// # Safety
        /// The handle is live.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $set(handle: *const $handle, state: *mut c_void) -> *mut Error {
            entry(|| {
                // SAFETY: `handle` is NULL or live: this function requires it of its caller.
                unsafe { deref(handle, $name)? }.state.set(state);
                Ok(())
            })
        }
    )*};
}

states! {
    TRITONREPOAGENT_State(get),
    TRITONREPOAGENT_SetState(set): AgentHandle, "agent";
    TRITONREPOAGENT_ModelState(get),
    TRITONREPOAGENT_ModelSetState(set): AgentModelHandle, "model";
}
