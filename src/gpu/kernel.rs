//! Kernels: functions that run on a device.

use super::device::Gpu;
use super::driver::{self, KernelHandle, Program};

/// A program, compiled for one device.
#[derive(Debug, Clone)]
pub struct Kernel {
    gpu: Gpu,
    handle: KernelHandle,
    program: &'static Program,
}

impl Kernel {
    pub(super) fn load(gpu: &Gpu, program: &'static Program) -> driver::Result<Kernel> {
        let handle = gpu.record_if_failed(gpu.driver().load(gpu.ordinal(), program))?;
        Ok(Kernel { gpu: gpu.clone(), handle, program })
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub fn handle(&self) -> KernelHandle {
        self.handle
    }

    pub fn program(&self) -> &'static Program {
        self.program
    }
}
