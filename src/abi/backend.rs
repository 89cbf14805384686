//! `TRITONBACKEND_*`: the functions that a plug-in calls for itself, its models and its instances.
//!
//! The functions for requests and responses are in the modules below.

pub mod factories;
pub mod inputs;
pub mod instances;
pub mod memory_manager;
pub mod memory_usage;
pub mod requests;
pub mod response_statistics;
pub mod responses;
pub mod states;

use std::ffi::{c_char, c_void};
use std::sync::atomic::Ordering;

use super::handles::{AttributeHandle, BackendHandle, InstanceHandle, ModelHandle};
use super::server::{Error, Message};
use crate::abi::backend::memory_manager::MemoryManager;
use crate::abi::border::{deref, deref_mut, entry, lend, null, put};
use crate::abi::casts::readable_request;
use crate::abi::handle_registry;
use crate::server::access::Access;
use nereid_backend::{report_failure, tell_executed};
use nereid_model_config::json;
use nereid_model_config::normalize::{PreferredGroup, fill_defaults};
use nereid_observe::statistics::Execution;
use nereid_request::{Request, Status};
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_instance_group::Kind;

/// Version of the backend half of the interface: major, minor.
pub const BACKEND_API_VERSION: (u32, u32) = (1, 19);

/// `TRITONBACKEND_ExecutionPolicy`.
const BLOCKING: u32 = 0;
pub(crate) const DEVICE_BLOCKING: u32 = 1;

/// `TRITONSERVER_InstanceGroupKind`, in the order of its numbers: the configuration counts GPU before CPU.
const KINDS: [Kind; 4] = [Kind::Auto, Kind::Cpu, Kind::Gpu, Kind::Model];

/// The number of a kind in C.
fn number_of(kind: Kind) -> u32 {
    KINDS.iter().position(|known| *known == kind).unwrap_or(0) as u32
}

/// A larger number is taken for a mistake of the plug-in, such as an endless loop.
const PREFERRED_GROUPS_MAX: usize = 64;
/// Far more devices than a host has.
const PREFERRED_DEVICES_MAX: usize = 1024;

/// Exports getters of the form `(handle, out) -> error`.
macro_rules! getters {
    ($($name:ident($handle:ty, $out:ty) = |$it:ident| $value:expr;)*) => {$(
        /// # Safety
        /// The handle is live and the result pointer writable; what is handed out lives as long as the handle.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(handle: *const $handle, out: *mut $out) -> *mut Error {
            entry(|| {
                // SAFETY: `handle` is NULL or live: this function requires it of its caller.
                let $it = unsafe { deref(handle, "the handle")? };
                // SAFETY: `out` is NULL or writable: this function requires it of its caller.
                unsafe { put(out, $value) }
            })
        }
    )*};
}

/// Exports setters of a user's state pointer.
macro_rules! set_state {
    ($($name:ident($handle:ty);)*) => {$(
        /// # Safety
        /// The handle is live.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(handle: *const $handle, state: *mut c_void) -> *mut Error {
            entry(|| {
                // SAFETY: `handle` is NULL or live: this function requires it of its caller.
                unsafe { deref(handle, "the handle")? }.state.set(state);
                Ok(())
            })
        }
    )*};
}

getters! {
    TRITONBACKEND_BackendName(BackendHandle, *const c_char) = |backend| backend.name.as_ptr();
    TRITONBACKEND_BackendConfig(BackendHandle, *const Message) = |backend| {
        lend(&raw const backend.config, backend)
    };
    TRITONBACKEND_BackendMemoryManager(BackendHandle, *const MemoryManager) = |backend| {
        lend(&raw const backend.memory, backend)
    };
    TRITONBACKEND_BackendExecutionPolicy(BackendHandle, u32) = |backend| {
        backend.execution_policy.load(Ordering::Acquire)
    };
    TRITONBACKEND_BackendState(BackendHandle, *mut c_void) = |backend| backend.state.get();
    TRITONBACKEND_ModelName(ModelHandle, *const c_char) = |model| model.name.as_ptr();
    TRITONBACKEND_ModelVersion(ModelHandle, u64) = |model| model.context.version as u64;
    TRITONBACKEND_ModelAutoCompleteConfig(ModelHandle, bool) = |model| model.context.auto_complete;
    TRITONBACKEND_ModelBackend(ModelHandle, *const BackendHandle) = |model| &raw const *model.backend;
    TRITONBACKEND_ModelState(ModelHandle, *mut c_void) = |model| model.state.get();
    TRITONBACKEND_ModelInstanceName(InstanceHandle, *const c_char) = |instance| instance.name.as_ptr();
    TRITONBACKEND_ModelInstanceKind(InstanceHandle, u32) = |instance| number_of(instance.context.kind);
    TRITONBACKEND_ModelInstanceDeviceId(InstanceHandle, i32) = |instance| instance.context.device;
    TRITONBACKEND_ModelInstanceIsPassive(InstanceHandle, bool) = |instance| instance.context.is_passive;
    TRITONBACKEND_ModelInstanceModel(InstanceHandle, *const ModelHandle) = |instance| &raw const *instance.model;
    TRITONBACKEND_ModelInstanceState(InstanceHandle, *mut c_void) = |instance| instance.state.get();
}

set_state! {
    TRITONBACKEND_BackendSetState(BackendHandle);
    TRITONBACKEND_ModelSetState(ModelHandle);
    TRITONBACKEND_ModelInstanceSetState(InstanceHandle);
}

/// # Safety
/// The pointers are writable or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ApiVersion(major: *mut u32, minor: *mut u32) -> *mut Error {
    // SAFETY: `major` and `minor` are NULL or writable: this function requires that of its caller.
    entry(|| unsafe { put(major, BACKEND_API_VERSION.0).and_then(|()| put(minor, BACKEND_API_VERSION.1)) })
}

/// # Safety
/// The handle is live and the pointers writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_BackendArtifacts(
    backend: *const BackendHandle,
    artifact_type: *mut u32,
    location: *mut *const c_char,
) -> *mut Error {
    // SAFETY: `artifact_type` and `location` are NULL or writable, and `backend` is NULL or live: this function
    // requires that of its caller.
    entry(|| unsafe {
        put(artifact_type, 0)?;
        put(location, deref(backend, "backend")?.directory.as_ptr())
    })
}

/// # Safety
/// The handle is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_BackendSetExecutionPolicy(
    backend: *const BackendHandle,
    policy: u32,
) -> *mut Error {
    entry(|| {
        // SAFETY: `backend` is NULL or live: this function requires it of its caller.
        let backend = unsafe { deref(backend, "backend")? };
        match policy {
            BLOCKING | DEVICE_BLOCKING => backend.execution_policy.store(policy, Ordering::Release),
            _ => return Err(Status::invalid(format!("unknown execution policy {policy}"))),
        }
        Ok(())
    })
}

/// # Safety
/// The handle is live, `device_ids` is readable for `id_count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
    attributes: *mut AttributeHandle,
    kind_number: u32,
    count: u64,
    device_ids: *const u64,
    id_count: u64,
) -> *mut Error {
    entry(|| {
        // SAFETY: `attributes` is NULL or live, and used by this call alone: this function requires it of its caller.
        let handle = unsafe { deref_mut(attributes, "backend_attributes")? };
        let kind = usize::try_from(kind_number).ok().and_then(|kind| KINDS.get(kind)).copied();
        let kind = kind.ok_or_else(|| Status::invalid(format!("unknown instance group kind {kind_number}")))?;
        let groups = &mut handle.attributes.preferred_groups;
        if groups.len() == PREFERRED_GROUPS_MAX {
            let text = format!("a backend may name at most {PREFERRED_GROUPS_MAX} preferred instance groups");
            return Err(Status::invalid(text));
        }
        let gpus = match usize::try_from(id_count) {
            // As many as are given; NULL gives none.
            _ if device_ids.is_null() || id_count == 0 => Vec::new(),
            Ok(count) if count <= PREFERRED_DEVICES_MAX => {
                // SAFETY: not null, and by contract readable for so many numbers.
                let ids = unsafe { std::slice::from_raw_parts(device_ids, count) };
                let id = |id: &u64| {
                    i32::try_from(*id).map_err(|_| Status::invalid(format!("there is no device of the id {id}")))
                };
                ids.iter().map(id).collect::<Result<_, _>>()?
            }
            _ => {
                let text = format!("a preferred instance group may name at most {PREFERRED_DEVICES_MAX} devices");
                return Err(Status::invalid(text));
            }
        };
        groups.push(PreferredGroup { kind, count: i32::try_from(count).unwrap_or(i32::MAX), gpus });
        Ok(())
    })
}

/// # Safety
/// The handle is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(
    attributes: *mut AttributeHandle,
    enabled: bool,
) -> *mut Error {
    entry(|| {
        // SAFETY: `attributes` is NULL or live, and used by this call alone: this function requires it of its caller.
        unsafe { deref_mut(attributes, "backend_attributes")? }.attributes.parallel_instance_loading = enabled;
        Ok(())
    })
}

/// # Safety
/// The model is live and the pointer writable. The server outlives the model, and is not the plug-in's to delete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelServer(
    model: *const ModelHandle,
    server: *mut *const c_void,
) -> *mut Error {
    // SAFETY: `model` is NULL or live, and `server` is NULL or writable: this function requires that of its caller.
    entry(|| unsafe {
        let host = deref(model, "model")?.context.host.as_ptr();
        if host.is_null() {
            return Err(Status::unavailable("the model runs in no server"));
        }
        // It is exposed, not lent by the model: all models get the same handle.
        handle_registry::expose(host.cast::<Access>());
        put(server, host.cast())
    })
}

/// # Safety
/// The handle is live and the pointers writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelRepository(
    model: *const ModelHandle,
    artifact_type: *mut u32,
    location: *mut *const c_char,
) -> *mut Error {
    // SAFETY: `artifact_type` and `location` are NULL or writable, and `model` is NULL or live: this function requires
    // that of its caller.
    entry(|| unsafe {
        put(artifact_type, 0)?;
        put(location, deref(model, "model")?.directory.as_ptr())
    })
}

fn check_config_version(version: u32) -> Result<(), Status> {
    match version {
        1 => Ok(()),
        _ => Err(Status::invalid(format!(
            "model configuration version {version} not supported, supported versions are: 1"
        ))),
    }
}

/// # Safety
/// The handle is live and the result pointer writable; the caller owns the message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelConfig(
    model: *const ModelHandle,
    config_version: u32,
    config: *mut *mut Message,
) -> *mut Error {
    entry(|| {
        // SAFETY: `model` is NULL or live: this function requires it of its caller.
        let model = unsafe { deref(model, "model")? };
        // Checked first: a message without a place to put it would never be deleted.
        if config.is_null() {
            return Err(null("model_config"));
        }
        let text =
            json::write(&model.config.lock().unwrap_or_else(std::sync::PoisonError::into_inner), config_version)?;
        // SAFETY: `config` is NULL or writable: this function requires it of its caller.
        unsafe { put(config, Message::into_raw(&text)) }
    })
}

/// The number of a scheduler's field in the configuration.
fn number_of_choice(choice: &SchedulingChoice) -> u32 {
    match choice {
        SchedulingChoice::DynamicBatching(_) => 11,
        SchedulingChoice::SequenceBatching(_) => 13,
        SchedulingChoice::EnsembleScheduling(_) => 15,
    }
}

/// Adopts what a backend may complete: batch size, inputs, outputs, a scheduler where none was given, and the
/// transaction policy (contract/model_config.md section 5).
///
/// # Safety
/// The handles are live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelSetConfig(
    model: *const ModelHandle,
    config_version: u32,
    config: *const Message,
) -> *mut Error {
    entry(|| {
        check_config_version(config_version)?;
        // SAFETY: `model` and `config` are NULL or live: this function requires that of its caller.
        let (model, message) = unsafe { (deref(model, "model")?, deref(config, "model_config")?) };
        if model.is_sealed.load(Ordering::Acquire) {
            let text = "the model configuration can only be set while the model is initialised";
            return Err(Status::invalid(text));
        }
        let given = json::read(message.json().as_bytes()).map_err(|error| Status::invalid(error.to_string()))?;
        let mut current = model.config.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match (&current.scheduling_choice, given.scheduling_choice) {
            (None, chosen) => current.scheduling_choice = chosen,
            (Some(present), Some(other)) if number_of_choice(present) != number_of_choice(&other) => {
                // Triton's text names the present scheduler twice.
                let number = number_of_choice(present);
                return Err(Status::internal(format!(
                    "Cannot update scheduling choice from {number} to {number} when auto-completing."
                )));
            }
            (Some(_), _) => {}
        }
        current.max_batch_size = given.max_batch_size;
        current.input = given.input;
        current.output = given.output;
        current.model_transaction_policy = given.model_transaction_policy;
        fill_defaults(&mut current);
        *model.completed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(current.clone());
        Ok(())
    })
}

/// # Safety
/// The handles are live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceReportStatistics(
    instance: *const InstanceHandle,
    request: *const Request,
    success: bool,
    exec_start_ns: u64,
    compute_start_ns: u64,
    compute_end_ns: u64,
    exec_end_ns: u64,
) -> *mut Error {
    entry(|| {
        // SAFETY: `instance` is NULL or live, and `request` is NULL or a live request: this function requires that of
        // its caller.
        let (instance, request) = unsafe { (deref(instance, "instance")?, readable_request(request)?) };
        let execution = Execution { exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns };
        match success {
            true => instance.context.report_success(request, &execution),
            false => {
                tell_executed(request, &execution);
                report_failure(&instance.context.statistics, request);
            }
        }
        Ok(())
    })
}

/// # Safety
/// The handle is live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceReportBatchStatistics(
    instance: *const InstanceHandle,
    batch_size: u64,
    exec_start_ns: u64,
    compute_start_ns: u64,
    compute_end_ns: u64,
    exec_end_ns: u64,
) -> *mut Error {
    entry(|| {
        // SAFETY: `instance` is NULL or live: this function requires it of its caller.
        let instance = unsafe { deref(instance, "instance")? };
        let execution = Execution { exec_start_ns, compute_start_ns, compute_end_ns, exec_end_ns };
        instance.context.report_batch(batch_size, &execution);
        Ok(())
    })
}

#[cfg(test)]
mod tests;
