//! The context of one device, and the programs that are compiled for it.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUfunction, CUmodule};

use super::Cuda;
use crate::driver::{Description, DriverError, KernelHandle, Program, Result};

/// See the [module](self).
pub(super) struct Device {
    pub handle: CUdevice,
    /// The primary context, which CUDA's runtime uses too, since its first use. Stored as a number, because it belongs
    /// to no thread.
    context: Mutex<Option<usize>>,
    /// By the program's place in this process.
    kernels: Mutex<HashMap<usize, Compiled>>,
}

struct Compiled {
    module: usize,
    function: usize,
}

/// Bytes for the compiler's log.
const LOG_BYTES: usize = 4096;
/// `CU_JIT_ERROR_LOG_BUFFER` and `CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES`.
const LOG_OPTIONS: [c_uint; 2] = [5, 6];
/// Bytes for a name or an address.
const TEXT_BYTES: usize = 256;

impl Device {
    pub fn new(handle: CUdevice) -> Device {
        Device { handle, context: Mutex::default(), kernels: Mutex::default() }
    }

    /// The context, which the first call makes: it takes memory of the device.
    pub fn context(&self, cuda: &Cuda) -> Result<CUcontext> {
        let mut context = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = *context {
            return Ok(ptr::with_exposed_provenance_mut(context));
        }
        let mut retained: CUcontext = ptr::null_mut();
        // SAFETY: the device is one of the driver's, and the place is ours.
        cuda.check("cuDevicePrimaryCtxRetain", unsafe { (cuda.functions.retain_context)(&mut retained, self.handle) })?;
        *context = Some(retained.expose_provenance());
        Ok(retained)
    }

    /// The context, if the device is in use already.
    pub fn context_in_use(&self) -> Option<CUcontext> {
        let context = *self.context.lock().unwrap_or_else(PoisonError::into_inner);
        context.map(ptr::with_exposed_provenance_mut)
    }

    pub fn describe(&self, cuda: &Cuda) -> Result<Description> {
        let functions = &cuda.functions;
        let text = |call, read: unsafe extern "C" fn(*mut c_char, c_int, CUdevice) -> c_int| {
            let mut text = [0u8; TEXT_BYTES];
            // SAFETY: the buffer is ours, of that length, and longer than the text.
            cuda.check(call, unsafe { read(text.as_mut_ptr().cast(), TEXT_BYTES as c_int, self.handle) })?;
            let len = text.iter().position(|byte| *byte == 0).unwrap_or(TEXT_BYTES);
            Ok(String::from_utf8_lossy(&text[..len]).into_owned())
        };
        let number = |attribute: CUdevice_attribute| {
            let mut number = 0;
            // SAFETY: the place is ours.
            let read = unsafe { (functions.device_attribute)(&mut number, attribute as c_int, self.handle) };
            cuda.check("cuDeviceGetAttribute", read).map(|()| number)
        };
        let (mut memory_bytes, mut uuid) = (0usize, cudarc::driver::sys::CUuuid { bytes: [0; 16] });
        // SAFETY: the places are ours.
        unsafe {
            cuda.check("cuDeviceTotalMem", (functions.device_memory)(&mut memory_bytes, self.handle))?;
            cuda.check("cuDeviceGetUuid", (functions.device_uuid)(&mut uuid, self.handle))?;
        }
        let pci_address = text("cuDeviceGetPCIBusId", functions.device_pci_address)?.to_ascii_lowercase();
        Ok(Description {
            name: text("cuDeviceGetName", functions.device_name)?,
            uuid: uuid_text(uuid.bytes.map(|byte| byte as u8)),
            memory_bytes: memory_bytes as u64,
            compute_capability: (
                number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            numa_node: numa_node("/sys/bus/pci/devices", &pci_address),
            pci_address,
        })
    }

    /// Compiles the program, once. The context is current.
    pub fn load(&self, cuda: &Cuda, program: &'static Program) -> Result<KernelHandle> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let key = ptr::from_ref(program).addr();
        if let Some(compiled) = kernels.get(&key) {
            return Ok(KernelHandle(compiled.function as u64));
        }
        let invalid = |text: &str| DriverError {
            call: "cuModuleLoadDataEx",
            code: DriverError::INVALID_VALUE,
            name: "CUDA_ERROR_INVALID_VALUE".to_owned(),
            text: text.to_owned(),
        };
        let text = CString::new(program.ptx.trim_end_matches('\0')).map_err(|_| invalid("the program holds a zero"))?;
        let name = CString::new(program.name).map_err(|_| invalid("the name holds a zero"))?;
        let mut module: CUmodule = ptr::null_mut();
        let mut log = vec![0u8; LOG_BYTES];
        let (mut options, len) = (LOG_OPTIONS, ptr::without_provenance_mut::<c_void>(LOG_BYTES));
        let mut values = [log.as_mut_ptr().cast::<c_void>(), len];
        // SAFETY: the text ends in a zero, and the two options have the values that they take: a buffer and its length.
        let loaded = unsafe {
            let image = text.as_ptr().cast::<c_void>();
            (cuda.functions.load_module)(&mut module, image, 2, options.as_mut_ptr(), values.as_mut_ptr())
        };
        cuda.check("cuModuleLoadDataEx", loaded).map_err(|mut error| {
            let message = log.split(|byte| *byte == 0).next().unwrap_or_default();
            if !message.is_empty() {
                error.text = format!("{}: {}", error.text, String::from_utf8_lossy(message).trim_end());
            }
            error
        })?;
        let mut function: CUfunction = ptr::null_mut();
        // SAFETY: the module was just loaded.
        let found = unsafe { (cuda.functions.module_function)(&mut function, module, name.as_ptr()) };
        if let Err(error) = cuda.check("cuModuleGetFunction", found) {
            // SAFETY: no other code has the module.
            unsafe { (cuda.functions.unload_module)(module) };
            return Err(error);
        }
        let (module, function) = (module.expose_provenance(), function.expose_provenance());
        kernels.insert(key, Compiled { module, function });
        Ok(KernelHandle(function as u64))
    }

    /// Gives the context back. At the end of a process the driver may have ended before, so its errors are ignored.
    pub fn close(&mut self, cuda: &super::Functions) {
        let context = self.context.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(context) = context else { return };
        let kernels = self.kernels.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: no code has the driver any more, so that no work runs on the device for it.
        unsafe {
            if (cuda.set_context)(ptr::with_exposed_provenance_mut(context)) == 0 {
                for (_, Compiled { module, .. }) in kernels.drain() {
                    (cuda.unload_module)(ptr::with_exposed_provenance_mut(module));
                }
                (cuda.set_context)(ptr::null_mut());
            }
            (cuda.release_context)(self.handle);
        }
    }
}

/// `GPU-5ee1ed00-0000-0000-0000-000000000001`.
fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (index, byte) in bytes.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// The NUMA node of the device, where the host's kernel reports it.
fn numa_node(devices: &str, pci_address: &str) -> Option<usize> {
    let text = std::fs::read_to_string(format!("{devices}/{pci_address}/numa_node")).ok()?;
    // -1: there is none.
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_reads_as_nvml_writes_it() {
        let bytes = [0x5e, 0xe1, 0xed, 0, 0, 1, 2, 3, 4, 5, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff];
        assert_eq!(uuid_text(bytes), "GPU-5ee1ed00-0001-0203-0405-fafbfcfdfeff");
    }

    #[test]
    fn the_node_of_a_device_is_read_from_the_kernel() {
        let directory = std::env::temp_dir().join(format!("nereid-numa-{}", std::process::id()));
        for (name, text) in [("a", "1\n"), ("b", "-1\n"), ("c", "")] {
            std::fs::create_dir_all(directory.join(name)).unwrap();
            std::fs::write(directory.join(name).join("numa_node"), text).unwrap();
        }
        let root = directory.to_str().unwrap();
        let nodes = ["a", "b", "c", "d"].map(|address| numa_node(root, address));
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(nodes, [Some(1), None, None, None]);
    }
}
