//! Memory of devices and pinned memory through the backend's half of the interface.

use super::*;
use crate::abi::backend::inputs::{TRITONBACKEND_InputBuffer, TRITONBACKEND_InputBufferAttributes};
use crate::abi::backend::memory_manager::{
    MemoryManager, TRITONBACKEND_MemoryManagerAllocate, TRITONBACKEND_MemoryManagerFree,
};
use crate::abi::backend::responses::{
    TRITONBACKEND_OutputBuffer, TRITONBACKEND_ResponseNew, TRITONBACKEND_ResponseOutput, TRITONBACKEND_ResponseSend,
};
use crate::abi::handles::{OutputHandle, ResponseHandle};
use crate::abi::server::buffer_attributes::BufferAttributes;
use nereid_gpu::driver::Driver as _;
use nereid_gpu::simulated::{Simulated, Spec};
use nereid_gpu::{Gpus, IpcAllocation, Settings};
use nereid_request::shared::draft;
use nereid_request::{InputPlacement, InputTensor, SharedMemory, Text};

const CPU: u32 = 0;
const PINNED: u32 = 1;
const GPU: u32 = 2;

fn devices(pinned_pool_bytes: u64) -> (Arc<Simulated>, Arc<Gpus>) {
    let driver = Arc::new(Simulated::new(Spec::prompt(2, 8)));
    let settings = Settings { pinned_pool_bytes, ..Settings::default() };
    (Arc::clone(&driver), Gpus::with(driver, &settings))
}

#[test]
fn each_kind_of_memory_comes_from_its_pool_and_goes_back_as_that_kind() {
    let (driver, gpus) = devices(4096);
    let manager = MemoryManager::new(Pool::new(1 << 20), Arc::clone(&gpus));
    let allocate = |kind: u32, id: i64, size: u64| {
        let mut at = null_mut();
        // SAFETY: manager and result live through the call.
        let error = text(unsafe { TRITONBACKEND_MemoryManagerAllocate(&manager, &mut at, kind, id, size) });
        error.map_or(Ok(at), Err)
    };
    // SAFETY: nothing is used after it is freed here.
    let free = |at, kind, id| text(unsafe { TRITONBACKEND_MemoryManagerFree(&manager, at, kind, id) });
    let (cpu, pinned, gpu) =
        (allocate(CPU, 0, 8).unwrap(), allocate(PINNED, 0, 8).unwrap(), allocate(GPU, 1, 8).unwrap());
    // SAFETY: eight bytes that are ours.
    assert!(gpus.pinned().holds(unsafe { std::slice::from_raw_parts(pinned.cast(), 8) }));
    assert_eq!(gpus.get(1).unwrap().pool_usage().0, 256);
    assert_eq!(manager.in_use(), (3, 24));
    let full = "failed to allocate pinned system memory";
    assert_eq!(allocate(PINNED, 0, 8192).as_ref().map_err(String::as_str), Err(full), "plain memory is no substitute");
    let much = allocate(CPU, 0, u64::MAX / 4);
    assert_eq!(much.as_ref().map_err(String::as_str), Err("CPU memory allocation failed"));
    assert_eq!(allocate(GPU, 2, 8).as_ref().map_err(String::as_str), Err("the server uses no GPU 2"));
    assert_eq!(allocate(3, 0, 8).as_ref().map_err(String::as_str), Err("unknown memory type 3"));
    let strange = |kind| format!("the buffer was not allocated by this memory manager as {kind} memory, or is free");
    assert_eq!(free(gpu, PINNED, 1), Some(strange("CPU_PINNED")));
    assert_eq!(free(gpu, GPU, 0), Some(strange("GPU")), "of another device");
    assert_eq!((free(gpu, GPU, 1), free(gpu, GPU, 1)), (None, Some(strange("GPU"))));
    assert_eq!((free(cpu, CPU, 0), free(pinned, PINNED, 0)), (None, None));
    assert_eq!((manager.in_use(), gpus.get(1).unwrap().pool_usage().0), ((0, 0), 0));
    let _lost = allocate(GPU, 0, 8).unwrap();
    drop(manager);
    assert_eq!(gpus.get(0).unwrap().pool_usage().0, 0, "what was left goes with the manager");
    assert_eq!(driver.violations(), [] as [&str; 0]);
}

#[test]
fn without_a_driver_there_is_neither_pinned_memory_nor_memory_of_devices() {
    let manager = MemoryManager::new(Pool::new(1 << 20), Arc::default());
    for (kind, expected) in [
        (PINNED, "failed to allocate pinned system memory: no pinned memory pool"),
        (GPU, "GPU memory allocation not supported"),
    ] {
        let mut at = null_mut();
        // SAFETY: manager and result live through the call.
        let error = text(unsafe { TRITONBACKEND_MemoryManagerAllocate(&manager, &mut at, kind, 0, 8) });
        assert_eq!(error.as_deref(), Some(expected));
    }
}

#[test]
fn an_input_on_a_device_is_one_buffer_there() {
    let (driver, gpus) = devices(0);
    let memory = SharedMemory::new(Arc::clone(&gpus));
    let handle = driver.ipc_export(1, driver.allocate(1, 16).unwrap()).unwrap();
    memory.register_cuda(b"r", IpcAllocation { handle: &handle, device_id: 1, byte_size: 16 }).unwrap();
    let slice = gpus.regions().get(b"r").unwrap().slice(4, 8).unwrap();
    let mut input = InputTensor::new(Text::from("I"), DataType::Fp32, Shape::from_slice(&[2]));
    input.placement = Some(Box::new(InputPlacement { on_device: Some(slice.clone()), ..InputPlacement::default() }));
    let (mut at, mut size, mut kind, mut id) = (null(), 0, 9, 9);
    // SAFETY: the input and the results live through the calls.
    unsafe {
        let error = TRITONBACKEND_InputBuffer(&input, 0, &mut at, &mut size, &mut kind, &mut id);
        assert_eq!((text(error), at.addr() as u64), (None, slice.address().0));
        assert_eq!((size, kind, id), (8, GPU, 1));
        let error = TRITONBACKEND_InputBuffer(&input, 1, &mut at, &mut size, &mut kind, &mut id);
        assert_eq!(text(error).as_deref(), Some("out of bounds index 1: request has 1 buffers of the input"));
        let mut found: *const BufferAttributes = null();
        assert_eq!(text(TRITONBACKEND_InputBufferAttributes(&input, 0, &mut at, &mut found)), None);
        let found = &*found;
        assert_eq!((found.memory_type, found.memory_type_id, found.byte_size), (GPU, 1, 8));
        let reported = std::slice::from_raw_parts(found.cuda_ipc_handle.cast::<u8>(), 64);
        assert_eq!(reported, handle, "what its client calls the allocation");
    }
}

/// Has a plug-in make one output of `size` bytes in memory of a kind, and says where it got some.
fn output(request: &Request, size: u64, wanted: (u32, i64)) -> (*mut ResponseHandle, *mut c_void, (u32, i64)) {
    let (mut response, mut output): (*mut ResponseHandle, *mut OutputHandle) = (null_mut(), null_mut());
    let (mut at, (mut kind, mut id), shape) = (null_mut(), wanted, [size as i64]);
    // SAFETY: the request lives through the calls, and so do the results.
    unsafe {
        assert_eq!(text(TRITONBACKEND_ResponseNew(&mut response, request)), None);
        let name = c"O".as_ptr();
        let error =
            TRITONBACKEND_ResponseOutput(response, &mut output, name, DataType::Uint8 as u32, shape.as_ptr(), 1);
        assert_eq!(text(error), None);
        assert_eq!(text(TRITONBACKEND_OutputBuffer(output, &mut at, size, &mut kind, &mut id)), None);
    }
    (response, at, (kind, id))
}

#[test]
fn an_output_gets_memory_of_a_device_where_that_is_wanted() {
    let (driver, gpus) = devices(4096);
    let memory = SharedMemory::new(Arc::clone(&gpus));
    let handle = driver.ipc_export(1, driver.allocate(1, 64).unwrap()).unwrap();
    memory.register_cuda(b"r", IpcAllocation { handle: &handle, device_id: 1, byte_size: 64 }).unwrap();
    let send = |response| {
        // SAFETY: the response is live and given up here.
        assert_eq!(text(unsafe { TRITONBACKEND_ResponseSend(response, 1, null()) }), None);
    };
    for (at, wanted, expected) in [
        (8, (GPU, 0), (GPU, 1)),
        // Where nothing may begin, memory of ours does as well, if there is such a device.
        (9, (GPU, 0), (GPU, 0)),
        (9, (GPU, 7), (CPU, 0)),
        (8, (PINNED, 0), (PINNED, 0)),
        (8, (CPU, 0), (CPU, 0)),
    ] {
        let (_answers, mut request) = request(None);
        request.gpus = Some(Arc::clone(&gpus));
        let one = gpus.regions().get(b"r").unwrap();
        let target = one.target(at, 8).unwrap();
        let shared = draft(&mut request.shared, memory.job_thread());
        shared.add_target(Text::from("O"), target.clone());
        shared.add_device_use(one);
        request.share();
        let (response, buffer, place) = output(&request, 8, wanted);
        assert_eq!(place, expected, "{at} {wanted:?}");
        let bytes = [wanted.0 as u8 + 1; 8];
        match place {
            (GPU, id) => {
                assert_eq!(buffer.addr() as u64 == target.address().0, at == 8, "in place where it may be");
                // SAFETY: eight bytes of that device that are the plug-in's.
                let own = unsafe {
                    let address = nereid_gpu::driver::DeviceAddress(buffer.addr() as u64);
                    nereid_gpu::DeviceTarget::foreign(gpus.get(id as i32).unwrap().clone(), address, 8, Arc::new(()))
                };
                own.gpu().put_at(&own, &bytes).unwrap();
            }
            // SAFETY: eight bytes that are the plug-in's.
            _ => unsafe { buffer.cast::<[u8; 8]>().write(bytes) },
        }
        send(response);
        let mut seen = [0; 8];
        let slice = gpus.regions().get(b"r").unwrap().slice(at, 8).unwrap();
        slice.gpu().fetch(&slice, &mut seen).unwrap();
        assert_eq!(seen, bytes, "{at} {wanted:?}");
    }
    // Who answers over the network gets memory of the host, and a server without devices has no other.
    for devices in [Some(Arc::clone(&gpus)), None] {
        let (_answers, mut request) = request(None);
        request.gpus = devices;
        let (response, _, place) = output(&request, 8, (GPU, 0));
        assert_eq!(place, (CPU, 0));
        send(response);
    }
    assert_eq!(driver.violations(), [] as [&str; 0]);
}
