//! `TRITONBACKEND_Model…ReportMemoryUsage`: a backend's report of the memory of its models and instances
//! (contract/metrics.md section 3, `memory_usage`).
//!
//! A report replaces the one before, and ends with the model or the instance. The attributes belong to the backend.

use super::super::handles::{InstanceHandle, ModelHandle};
use crate::abi::border::{deref, entry, null};
use crate::abi::server::Error;
use crate::abi::server::buffer_attributes::BufferAttributes;
use nereid_observe::statistics::{Holder, MemoryKind, MemoryUse};
use nereid_request::Status;

/// Entries of one report: far more than a host has devices.
const USES_MAX: u32 = 1024;

/// `TRITONSERVER_MemoryType`, in the order of its numbers.
const KINDS: [MemoryKind; 3] = [MemoryKind::Cpu, MemoryKind::CpuPinned, MemoryKind::Gpu];

/// # Safety
/// The model is live; `usage` is readable for `usage_size` pointers to live attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelReportMemoryUsage(
    model: *const ModelHandle,
    usage: *const *const BufferAttributes,
    usage_size: u32,
) -> *mut Error {
    entry(|| {
        // SAFETY: `model` is NULL or live: this function requires it of its caller.
        let (model, uses) = unsafe { (deref(model, "model")?, read(usage, usage_size)?) };
        model.context.statistics.memory_reported(Holder::Model, uses);
        Ok(())
    })
}

/// # Safety
/// The instance is live; `usage` is readable for `usage_size` pointers to live attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceReportMemoryUsage(
    instance: *const InstanceHandle,
    usage: *const *const BufferAttributes,
    usage_size: u32,
) -> *mut Error {
    entry(|| {
        // SAFETY: `instance` is NULL or live: this function requires it of its caller.
        let (instance, uses) = unsafe { (deref(instance, "instance")?, read(usage, usage_size)?) };
        instance.context.model.statistics.memory_reported(instance.holder(), uses);
        Ok(())
    })
}

/// # Safety
/// As above.
unsafe fn read(usage: *const *const BufferAttributes, count: u32) -> Result<Vec<MemoryUse>, Status> {
    if count > USES_MAX {
        return Err(Status::invalid(format!("a report of memory usage may have {USES_MAX} entries at most")));
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    if usage.is_null() {
        return Err(null("usage"));
    }
    // SAFETY: not null, and by contract readable for so many pointers.
    let attributes = unsafe { std::slice::from_raw_parts(usage, count as usize) };
    let read = |attributes: &*const BufferAttributes| {
        // SAFETY: by contract null or live.
        let attributes = unsafe { deref(*attributes, "an entry of usage")? };
        let kind = usize::try_from(attributes.memory_type).ok().and_then(|number| KINDS.get(number)).copied();
        let kind = kind.ok_or_else(|| Status::invalid(format!("unknown memory type {}", attributes.memory_type)))?;
        Ok(MemoryUse { kind, id: attributes.memory_type_id, byte_size: attributes.byte_size as u64 })
    };
    attributes.iter().map(read).collect()
}
