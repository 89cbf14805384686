//! Runs with tensors on a device: binding inputs and outputs, and taking the outputs afterwards.
//!
//! The library enqueues its work in the stream that it was given and returns; the caller of the run keeps the tensors
//! until the work is complete. For a simulated device the library computes on the host, at once, and the memory of the
//! device is that of the host.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::CStr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ort::sys;

use super::binding::Lease;
use super::binding::Returns;
use super::element::ElementType;
use super::options::RunOptions;
use super::runtime::{Runtime, RuntimeError, filled};
use super::session::Session;
use super::value::Value;
use nereid_gpu::driver::DeviceAddress;
use nereid_gpu::{DeviceSlice, Gpu};
use nereid_memory::Slice;
use nereid_request::{Shape, Status, element_count, format_shape};

/// The library's description of a kind of memory.
pub struct MemoryInfo {
    runtime: &'static Runtime,
    at: NonNull<sys::OrtMemoryInfo>,
}

// SAFETY: immutable.
unsafe impl Send for MemoryInfo {}

impl MemoryInfo {
    /// The memory of a CUDA device.
    fn cuda(runtime: &'static Runtime, device: usize) -> Result<MemoryInfo, RuntimeError> {
        let device = i32::try_from(device).map_err(|_| RuntimeError::here("the number of a device is too large"))?;
        let mut info = ptr::null_mut();
        // SAFETY: a handle is written to the given place; the name is copied.
        runtime.check(unsafe {
            (runtime.api.CreateMemoryInfo)(
                c"Cuda".as_ptr(),
                sys::OrtAllocatorType::OrtDeviceAllocator,
                device,
                sys::OrtMemType::OrtMemTypeDefault,
                &mut info,
            )
        })?;
        Ok(MemoryInfo { runtime, at: filled(info)? })
    }
}

impl Drop for MemoryInfo {
    fn drop(&mut self) {
        // SAFETY: this handle owns it, and it is not used afterwards.
        unsafe { (self.runtime.api.ReleaseMemoryInfo)(self.at.as_ptr()) }
    }
}

/// The memory of one device, for tensors of the library.
pub struct Memory {
    gpu: Gpu,
    runtime: &'static Runtime,
    /// `None`: that of a simulated device, which the host reads and writes.
    info: Option<MemoryInfo>,
}

impl Memory {
    pub fn new(runtime: &'static Runtime, gpu: &Gpu) -> Result<Memory, RuntimeError> {
        let info = match is_simulated(gpu) {
            true => None,
            false => Some(MemoryInfo::cuda(runtime, gpu.ordinal())?),
        };
        Ok(Memory { gpu: gpu.clone(), runtime, info })
    }

    /// A tensor on the device.
    ///
    /// # Safety
    /// As [`Value::over`], until the work of a run with the value is complete.
    unsafe fn value(
        &self,
        at: DeviceAddress,
        len: usize,
        shape: &[i64],
        element: ElementType,
    ) -> Result<Value, RuntimeError> {
        let (data, info) = match &self.info {
            Some(info) => (ptr::with_exposed_provenance_mut(at.0 as usize), info.at.as_ptr().cast_const()),
            None => {
                let outside = || RuntimeError::here("a tensor lies outside of its device");
                let view = if len == 0 { ptr::dangling_mut() } else { self.view(at, len).ok_or_else(outside)? };
                (view, self.runtime.memory())
            }
        };
        // SAFETY: the memory stays valid as long as the value: this function requires it of its caller.
        unsafe { Value::in_memory(self.runtime, info, data, len, shape, element) }
    }

    fn view(&self, at: DeviceAddress, len: usize) -> Option<*mut u8> {
        self.gpu.driver().host_view(at, len)
    }

    /// The memory in which the library allocates outputs of unknown size.
    fn info(&self) -> *const sys::OrtMemoryInfo {
        self.info.as_ref().map_or_else(|| self.runtime.memory(), |info| info.at.as_ptr().cast_const())
    }
}

/// Whether the device is simulated: then the library computes on the host, in the memory that stands for the device's.
pub fn is_simulated(gpu: &Gpu) -> bool {
    gpu.driver().is_simulated()
}

/// Memory of an input or output, which a flight owns.
#[derive(Debug, Clone, Copy)]
pub struct DeviceRange {
    pub at: DeviceAddress,
    pub len: usize,
}

/// An output that the library allocated.
pub enum AllocatedOutput {
    Device {
        shape: Shape,
        slice: DeviceSlice,
    },
    /// Strings, or a value that is no tensor.
    Host(Value),
}

/// The memory of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Allocation {
    /// The caller's.
    Bound,
    /// The library allocates it, on the host or on the device.
    Open { is_on_host: bool },
}

/// The tensors of one run.
pub struct Binding<'a> {
    session: &'a Session,
    memory: &'a Memory,
    at: NonNull<sys::OrtIoBinding>,
    /// The bound values, dropped after the binding; the library counts references to them too.
    values: Vec<Value>,
    /// The library copies inputs to the device, on a stream of its own.
    has_host_inputs: bool,
    /// For each output its memory.
    allocations: Vec<Allocation>,
}

impl<'a> Binding<'a> {
    pub fn new(session: &'a Session, memory: &'a Memory) -> Result<Binding<'a>, RuntimeError> {
        let runtime = session.runtime();
        let mut binding = ptr::null_mut();
        // SAFETY: the session is alive; a handle is written to the given place.
        runtime.check(unsafe { (runtime.api.CreateIoBinding)(session.as_ptr(), &mut binding) })?;
        let (values, allocations) = (Vec::new(), Vec::new());
        Ok(Binding { session, memory, at: filled(binding)?, values, has_host_inputs: false, allocations })
    }

    /// Binds an input on the host; the library copies it at once to where the model needs it.
    pub fn input(&mut self, name: &CStr, value: &Value) -> Result<(), RuntimeError> {
        self.has_host_inputs = true;
        self.bind(name, value)
    }

    fn bind(&mut self, name: &CStr, value: &Value) -> Result<(), RuntimeError> {
        let runtime = self.session.runtime();
        // SAFETY: all handles are alive; the library counts the value.
        runtime.check(unsafe { (runtime.api.BindInput)(self.at.as_ptr(), name.as_ptr(), value.as_ptr()) })
    }

    /// Binds an input on the device, where its copy has completed.
    ///
    /// # Safety
    /// Until the work of the run is complete the memory stays valid, and is not written.
    pub unsafe fn device_input(
        &mut self,
        name: &CStr,
        range: DeviceRange,
        shape: &[i64],
        element: ElementType,
    ) -> Result<(), RuntimeError> {
        // SAFETY: the memory stays valid until the work of the run is complete: this function requires it of its
        // caller.
        let value = unsafe { self.memory.value(range.at, range.len, shape, element) }?;
        self.bind(name, &value)?;
        self.values.push(value);
        Ok(())
    }

    /// Binds the next output to that memory.
    ///
    /// # Safety
    /// Until the work of the run is complete the memory stays valid, and no other code uses it.
    pub unsafe fn device_output(
        &mut self,
        name: &CStr,
        range: DeviceRange,
        shape: &[i64],
        element: ElementType,
    ) -> Result<(), RuntimeError> {
        let runtime = self.session.runtime();
        // SAFETY: the memory stays valid until the work of the run is complete: this function requires it of its
        // caller.
        let value = unsafe { self.memory.value(range.at, range.len, shape, element) }?;
        // SAFETY: all handles are alive; the library counts the value.
        runtime.check(unsafe { (runtime.api.BindOutput)(self.at.as_ptr(), name.as_ptr(), value.as_ptr()) })?;
        self.values.push(value);
        self.allocations.push(Allocation::Bound);
        Ok(())
    }

    /// Leaves the allocation of the next output to the library, on the host or on the device.
    pub fn open_output(&mut self, name: &CStr, is_on_host: bool) -> Result<(), RuntimeError> {
        let runtime = self.session.runtime();
        let info = if is_on_host { runtime.memory() } else { self.memory.info() };
        // SAFETY: all handles are alive; the library copies the description.
        runtime.check(unsafe { (runtime.api.BindOutputToDevice)(self.at.as_ptr(), name.as_ptr(), info) })?;
        self.allocations.push(Allocation::Open { is_on_host });
        Ok(())
    }

    /// Starts the run; on a simulated device it is complete on return. Returns the outputs that the library allocated,
    /// by number. The caller has kept recordings away (`nereid_gpu::capture`) since before it bound inputs.
    pub fn run(self, options: &RunOptions, returns: &Arc<Returns>) -> Result<Vec<Option<AllocatedOutput>>, Status> {
        let runtime = self.session.runtime();
        if self.has_host_inputs {
            // The library copies them when they are bound, on a stream that is not ordered with the instance's own:
            // this lets the copies end before the run begins. It waits for all work of the device, also that of other
            // models.
            // SAFETY: the binding is alive.
            runtime.check(unsafe { (runtime.api.SynchronizeBoundInputs)(self.at.as_ptr()) })?;
        }
        // SAFETY: all handles are alive, and by the contract of the binding functions bound memory stays until the work
        // is complete.
        let status = unsafe { (runtime.api.RunWithBinding)(self.session.as_ptr(), options.as_ptr(), self.at.as_ptr()) };
        runtime.check(status)?;
        if self.allocations.iter().all(|allocation| *allocation == Allocation::Bound) {
            return Ok(self.allocations.iter().map(|_| None).collect());
        }
        let values = self.take_values()?;
        if values.len() != self.allocations.len() {
            return Err(RuntimeError::here("outputs and their values differ in number").into());
        }
        let outputs = values.into_iter().zip(&self.allocations);
        let output = |(value, allocation): (Value, &Allocation)| match allocation {
            Allocation::Bound => Ok(None),
            Allocation::Open { is_on_host: true } => Ok(Some(AllocatedOutput::Host(value))),
            Allocation::Open { is_on_host: false } => self.allocated_output(value, returns).map(Some),
        };
        outputs.map(output).collect()
    }

    fn take_values(&self) -> Result<Vec<Value>, RuntimeError> {
        let runtime = self.session.runtime();
        let (mut list, mut count) = (ptr::null_mut(), 0);
        // SAFETY: the binding is alive; a list of values, and its length, are written to the given places.
        runtime.check(unsafe {
            (runtime.api.GetBoundOutputValues)(self.at.as_ptr(), runtime.allocator(), &mut list, &mut count)
        })?;
        let Some(list) = NonNull::new(list) else { return Ok(Vec::new()) };
        let values = (0..count).filter_map(|at| {
            // SAFETY: the list has that many values, each owned by the caller.
            let value = NonNull::new(unsafe { list.as_ptr().add(at).read() })?;
            // SAFETY: the list has that many values, each owned by the caller.
            Some(unsafe { Value::from_raw(runtime, value) })
        });
        let values = values.collect();
        // SAFETY: the list came from this allocator; its values have been taken.
        runtime.check(unsafe { (runtime.api.AllocatorFree)(runtime.allocator(), list.as_ptr().cast()) })?;
        Ok(values)
    }

    fn allocated_output(&self, value: Value, returns: &Arc<Returns>) -> Result<AllocatedOutput, Status> {
        let (element, shape) = value.tensor_type()?;
        let size = element.map(|element| element.datatype().byte_size());
        let Some(size) = size.filter(|size| *size > 0) else {
            return Err(RuntimeError::here("an output has another type than the model declares").into());
        };
        let count = element_count(&shape).and_then(|count| usize::try_from(count).ok());
        let len = count
            .and_then(|count| count.checked_mul(size))
            .ok_or_else(|| RuntimeError::here(format!("an output has the shape {}", format_shape(&shape))))?;
        let data = value.data()?;
        let gpu = &self.memory.gpu;
        if self.memory.info.is_none() {
            // SAFETY: the tensor's bytes stay where they are, unwritten, until the lease drops the value.
            let bytes = unsafe { Slice::foreign(data, len, Lease::owner(value, returns)) };
            return Ok(AllocatedOutput::Device { shape, slice: gpu.put(&bytes)? });
        }
        let owner: Arc<dyn Any + Send + Sync> = Lease::owner(value, returns);
        // SAFETY: the tensor stays until the lease drops the value. It is not complete yet: it goes into the flight
        // whose work writes it, and leaves that once it has landed.
        let slice = unsafe { DeviceSlice::foreign(gpu.clone(), DeviceAddress(data.addr() as u64), len, owner) };
        Ok(AllocatedOutput::Device { shape, slice })
    }
}

impl Drop for Binding<'_> {
    fn drop(&mut self) {
        // SAFETY: this handle owns it, and it is not used afterwards.
        unsafe { (self.session.runtime().api.ReleaseIoBinding)(self.at.as_ptr()) }
    }
}

#[cfg(test)]
pub(super) mod tests;
