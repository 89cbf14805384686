//! Adds the providers of GPUs to the options of a session.
//!
//! Options are passed to the library as keys and values, so that the library defines them: a newer one has more, and
//! reports unknown ones itself. The stream is passed as an address.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use ort::sys;

use super::options::c_string;
use super::providers::{Options, Provider};
use super::runtime::{Runtime, RuntimeError, filled};
use nereid_gpu::Lanes;
use nereid_request::Status;

/// The device of a session, and the stream on which it computes.
#[derive(Debug, Clone, Copy)]
pub struct OnGpu<'a> {
    pub lanes: &'a Arc<Lanes>,
    /// The providers that compute; `None`: a simulated device, for which the library's provider for the host computes.
    pub providers: Option<&'a [(Provider, Options)]>,
}

/// Fails if the library that was found cannot compute on a GPU.
pub fn require(runtime: &Runtime, providers: &[(Provider, Options)], model: &str) -> Result<(), Status> {
    let known = runtime.available_providers()?;
    let missing =
        providers.iter().map(|(provider, _)| provider.name()).find(|name| !known.iter().any(|one| one == name));
    let Some(missing) = missing else { return Ok(()) };
    Err(Status::unavailable(format!(
        "model '{model}' asks for a GPU, but ONNX Runtime {} at {} was built without {missing} (it has {}). Install \
         one that has it with: {} --gpu",
        runtime.version(),
        runtime.path().display(),
        known.join(", "),
        super::RUNTIME.install_command(),
    )))
}

/// Fails if the library that was found cannot compute with OpenVINO.
pub fn require_openvino(runtime: &Runtime, model: &str) -> Result<(), Status> {
    let known = runtime.available_providers()?;
    if known.iter().any(|one| one == OPENVINO) {
        return Ok(());
    }
    Err(Status::unavailable(format!(
        "model '{model}' asks for the accelerator 'openvino', but ONNX Runtime {} at {} was built without {OPENVINO} \
         (it has {}). Install the Python package onnxruntime-openvino and name its library with \
         --backend-config=onnxruntime,library=<file>, or serve the model with backend \"openvino\"",
        runtime.version(),
        runtime.path().display(),
        known.join(", "),
    )))
}

/// The provider of OpenVINO in the library's list of its providers.
const OPENVINO: &str = "OpenVINOExecutionProvider";

const STREAM: &CStr = c"user_compute_stream";

/// Adds the providers in their order.
///
/// # Safety
/// The options are alive, and the stream outlives the session that is made with them.
pub unsafe fn append(
    runtime: &'static Runtime,
    options: NonNull<sys::OrtSessionOptions>,
    providers: &[(Provider, Options)],
    stream: *mut c_void,
) -> Result<(), RuntimeError> {
    for (provider, provider_options) in providers {
        let strings = OptionStrings::new(provider_options)?;
        match provider {
            // SAFETY: the stream lives as long as the options: this function requires it of its caller.
            Provider::TensorRt => unsafe { append_tensorrt(runtime, options, &strings, stream) }?,
            // SAFETY: the stream lives as long as the options: this function requires it of its caller.
            Provider::Cuda => unsafe { append_cuda(runtime, options, &strings, stream) }?,
        }
    }
    Ok(())
}

/// Keys and values as C strings, for the library to read.
struct OptionStrings {
    texts: Vec<(CString, CString)>,
}

impl OptionStrings {
    fn new(options: &Options) -> Result<OptionStrings, RuntimeError> {
        let text = |(key, value): &(String, String)| Ok((c_string(key.as_bytes())?, c_string(value.as_bytes())?));
        Ok(OptionStrings { texts: options.iter().map(text).collect::<Result<_, RuntimeError>>()? })
    }

    fn keys(&self) -> Vec<*const c_char> {
        self.texts.iter().map(|(key, _)| key.as_ptr()).collect()
    }

    fn values(&self) -> Vec<*const c_char> {
        self.texts.iter().map(|(_, value)| value.as_ptr()).collect()
    }
}

/// # Safety
/// As [`append`].
unsafe fn append_cuda(
    runtime: &'static Runtime,
    options: NonNull<sys::OrtSessionOptions>,
    strings: &OptionStrings,
    stream: *mut c_void,
) -> Result<(), RuntimeError> {
    let api = runtime.api;
    let mut cuda = std::ptr::null_mut();
    // SAFETY: a handle is written to the given place.
    runtime.check(unsafe { (api.CreateCUDAProviderOptions)(&mut cuda) })?;
    let cuda = filled(cuda)?.as_ptr();
    let (keys, values) = (strings.keys(), strings.values());
    // SAFETY: all handles are alive; there are as many keys as values, which the library copies.
    let set =
        runtime.check(unsafe { (api.UpdateCUDAProviderOptions)(cuda, keys.as_ptr(), values.as_ptr(), keys.len()) });
    let added = set
        .and_then(|()| {
            // SAFETY: as above; the stream outlives the session, as the caller guarantees.
            runtime.check(unsafe { (api.UpdateCUDAProviderOptionsWithValue)(cuda, STREAM.as_ptr(), stream) })
        })
        .and_then(|()| {
            // SAFETY: both are alive; the session options copy what they need.
            runtime.check(unsafe { (api.SessionOptionsAppendExecutionProvider_CUDA_V2)(options.as_ptr(), cuda) })
        });
    // SAFETY: made above and released once.
    unsafe { (api.ReleaseCUDAProviderOptions)(cuda) };
    added
}

/// # Safety
/// As [`append`].
unsafe fn append_tensorrt(
    runtime: &'static Runtime,
    options: NonNull<sys::OrtSessionOptions>,
    strings: &OptionStrings,
    stream: *mut c_void,
) -> Result<(), RuntimeError> {
    let api = runtime.api;
    let mut tensorrt = std::ptr::null_mut();
    // SAFETY: a handle is written to the given place.
    runtime.check(unsafe { (api.CreateTensorRTProviderOptions)(&mut tensorrt) })?;
    let tensorrt = filled(tensorrt)?.as_ptr();
    let (keys, values) = (strings.keys(), strings.values());
    // SAFETY: all handles are alive; there are as many keys as values, which the library copies.
    let set = runtime
        .check(unsafe { (api.UpdateTensorRTProviderOptions)(tensorrt, keys.as_ptr(), values.as_ptr(), keys.len()) });
    let added = set
        .and_then(|()| {
            // SAFETY: as above; the stream outlives the session, as the caller guarantees.
            runtime.check(unsafe { (api.UpdateTensorRTProviderOptionsWithValue)(tensorrt, STREAM.as_ptr(), stream) })
        })
        .and_then(|()| {
            let add = api.SessionOptionsAppendExecutionProvider_TensorRT_V2;
            // SAFETY: both are alive; the session options copy what they need.
            runtime.check(unsafe { add(options.as_ptr(), tensorrt) })
        });
    // SAFETY: made above and released once.
    unsafe { (api.ReleaseTensorRTProviderOptions)(tensorrt) };
    added
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnxruntime::fixtures::runtime;
    use crate::onnxruntime::fixtures::with_parameters;
    use crate::onnxruntime::options::SessionOptions;
    use crate::onnxruntime::settings::SessionSettings;
    use nereid_gpu::simulated::{Simulated, Spec};
    use nereid_gpu::{Gpus, Settings};

    #[test]
    fn a_library_without_cuda_says_so_before_a_session_is_made() {
        let Some(runtime) = runtime() else { return };
        let known = runtime.available_providers().unwrap();
        assert!(known.iter().any(|name| name == "CPUExecutionProvider"), "{known:?}");
        if known.iter().any(|name| name == Provider::Cuda.name()) {
            return nereid_test_support::skip::skip("this library computes on GPUs");
        }
        for (providers, missing) in [
            (vec![(Provider::Cuda, Options::new())], "CUDAExecutionProvider"),
            (vec![(Provider::TensorRt, Options::new()), (Provider::Cuda, Options::new())], "TensorrtExecutionProvider"),
        ] {
            let status = require(runtime, &providers, "m").unwrap_err();
            let (version, path) = (runtime.version(), runtime.path().display());
            assert_eq!(
                status.message,
                format!(
                    "model 'm' asks for a GPU, but ONNX Runtime {version} at {path} was built without {missing} (it \
                     has {}). Install one that has it with: nereid runtime install onnxruntime --gpu",
                    known.join(", ")
                )
            );
        }
        assert_eq!(require(runtime, &[], "m"), Ok(()));
        // And the library itself refuses, with its own text.
        let gpus = Gpus::with(Arc::new(Simulated::new(Spec::prompt(1, 1))), &Settings::default());
        let lanes = Lanes::new(gpus.get(0).unwrap(), gpus.pinned()).unwrap();
        let settings = SessionSettings::parse(&with_parameters(&[])).unwrap();
        let providers = [(Provider::Cuda, Options::new())];
        let on_gpu = OnGpu { lanes: &lanes, providers: Some(&providers) };
        let refused = SessionOptions::new(runtime, &settings, Some(on_gpu));
        assert!(refused.err().is_some_and(|error| error.text.contains("CUDA")));
    }
}
