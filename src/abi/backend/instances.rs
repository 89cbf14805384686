//! `TRITONBACKEND_ModelInstance*`: what an instance can query of the instance group that it belongs to.

use std::ffi::{CStr, c_char};

use crate::abi::border::{deref, entry, lend, put};
use crate::abi::handles::InstanceHandle;
use crate::abi::server::{Error, Message};
use nereid_request::Status;
use nereid_wire::inference::model_instance_group::secondary_device::SecondaryDeviceKind;

/// Entry `index` of `list`.
fn at<'a, T>(list: &'a [T], index: u32, what: &str) -> Result<&'a T, Status> {
    let found = usize::try_from(index).ok().and_then(|index| list.get(index));
    found.ok_or_else(|| {
        let count = list.len();
        Status::invalid(format!("out of bounds index {index}: instance is configured with {count} {what}"))
    })
}

/// # Safety
/// The instance is live and the pointer writable. The message belongs to the server and lives as long as the instance.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceHostPolicy(
    instance: *const InstanceHandle,
    host_policy: *mut *const Message,
) -> *mut Error {
    // SAFETY: `instance` is NULL or live, and `host_policy` is NULL or writable: this function requires that of its
    // caller.
    entry(|| unsafe {
        let message = &raw const deref(instance, "instance")?.host_policy;
        put(host_policy, lend(message, instance))
    })
}

/// # Safety
/// The instance is live and the pointer writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceProfileCount(
    instance: *const InstanceHandle,
    count: *mut u32,
) -> *mut Error {
    // SAFETY: `count` is NULL or writable, and `instance` is NULL or live: this function requires that of its caller.
    entry(|| unsafe { put(count, deref(instance, "instance")?.profiles.len() as u32) })
}

/// # Safety
/// The instance is live and the pointer writable; the name lives as long as the instance.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceProfileName(
    instance: *const InstanceHandle,
    index: u32,
    profile_name: *mut *const c_char,
) -> *mut Error {
    // SAFETY: `profile_name` is NULL or writable: this function requires it of its caller.
    entry(|| unsafe {
        let profile = at(&deref(instance, "instance")?.profiles, index, "profiles")?;
        put(profile_name, profile.as_ptr())
    })
}

/// # Safety
/// The instance is live and the pointer writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceSecondaryDeviceCount(
    instance: *const InstanceHandle,
    count: *mut u32,
) -> *mut Error {
    // SAFETY: `count` is NULL or writable, and `instance` is NULL or live: this function requires that of its caller.
    entry(|| unsafe { put(count, deref(instance, "instance")?.context.group.secondary_devices.len() as u32) })
}

/// # Safety
/// The instance is live and the pointers writable; the kind is a constant text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(
    instance: *const InstanceHandle,
    index: u32,
    kind: *mut *const c_char,
    id: *mut i64,
) -> *mut Error {
    // SAFETY: `instance` is NULL or live, and `kind` and `id` are NULL or writable: this function requires that of its
    // caller.
    entry(|| unsafe {
        let devices = &deref(instance, "instance")?.context.group.secondary_devices;
        let device = at(devices, index, "secondary devices")?;
        let name: &CStr = match device.kind() {
            SecondaryDeviceKind::KindNvdla => c"KIND_NVDLA",
        };
        put(kind, name.as_ptr())?;
        put(id, device.device_id)
    })
}
