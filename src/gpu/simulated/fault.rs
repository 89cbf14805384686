//! The errors of the simulated driver: CUDA's, by number.

use super::super::driver::DriverError;
pub use super::spec::Fault;

pub(super) const INVALID_DEVICE: i32 = 101;
pub(super) const INVALID_HANDLE: i32 = 400;
pub(super) const ILLEGAL_STATE: i32 = 401;
pub(super) const NOT_READY: i32 = 600;
pub(super) const CAPTURED_EVENT: i32 = 907;

/// An error with the driver's name and text.
pub(super) fn error(call: &'static str, code: i32) -> DriverError {
    let (name, text) = match code {
        DriverError::INVALID_VALUE => ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
        DriverError::OUT_OF_MEMORY => ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
        INVALID_DEVICE => ("CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"),
        214 => ("CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"),
        INVALID_HANDLE => ("CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"),
        ILLEGAL_STATE => ("CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"),
        NOT_READY => ("CUDA_ERROR_NOT_READY", "device not ready"),
        DriverError::ILLEGAL_ADDRESS => ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
        701 => ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"),
        702 => ("CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"),
        DriverError::LAUNCH_FAILED => ("CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"),
        CAPTURED_EVENT => {
            ("CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream")
        }
        999 => ("CUDA_ERROR_UNKNOWN", "unknown error"),
        _ => ("CUDA_ERROR", "an error of the simulated device"),
    };
    DriverError { call, code, name: name.to_owned(), text: text.to_owned() }
}
