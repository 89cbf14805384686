//! The built-in backends, by their names in configurations.
//!
//! A built-in backend wins over a library of the same name unless the configuration's `runtime` names one
//! (docs/design.md, Plug-ins). The Python backend serves a backend that is a script instead of a library
//! (contract/python_backend.md section 1).

use std::path::PathBuf;
use std::sync::Arc;

use nereid_backend::Backend;
use nereid_backend::affine::AffineBackend;
use nereid_backend::identity::IdentityBackend;
use nereid_backend::onnxruntime::OnnxRuntimeBackend;
use nereid_backend::python::{self, PythonBackend};
use nereid_backend::repeat::RepeatBackend;
use nereid_backend::square::SquareBackend;
use nereid_fil::FilBackend;
use nereid_openvino::OpenVinoBackend;
use nereid_pytorch::PytorchBackend;
use nereid_request::Status;
use nereid_tensorflow::TensorFlowBackend;
use nereid_tensorrt::TensorRtBackend;

/// Names of the built-in backends, sorted.
pub const NATIVE_NAMES: [&str; 11] = [
    "affine",
    "fil",
    "identity",
    "onnxruntime",
    nereid_openvino::NAME,
    python::NAME,
    nereid_pytorch::NAME,
    "repeat",
    "square",
    "tensorflow",
    nereid_tensorrt::NAME,
];

/// Backends that may complete a configuration, even a missing one.
pub const COMPLETING: [&str; 5] =
    ["onnxruntime", nereid_openvino::NAME, python::NAME, "tensorflow", nereid_tensorrt::NAME];

/// `platform` of older configurations and the backend it stands for, if that backend is built in.
pub const NATIVE_PLATFORMS: [(&str, &str); 7] = [
    ("onnxruntime_onnx", "onnxruntime"),
    ("pytorch_libtorch", nereid_pytorch::NAME),
    ("libtorch", nereid_pytorch::NAME),
    ("torch_aoti", nereid_pytorch::NAME),
    ("tensorflow_graphdef", "tensorflow"),
    ("tensorflow_savedmodel", "tensorflow"),
    ("tensorrt_plan", nereid_tensorrt::NAME),
];

/// One value of each built-in backend, for the whole process.
pub struct NativeBackends {
    affine: Arc<AffineBackend>,
    fil: Arc<FilBackend>,
    identity: Arc<IdentityBackend>,
    onnxruntime: Arc<OnnxRuntimeBackend>,
    openvino: Arc<OpenVinoBackend>,
    python: Arc<PythonBackend>,
    pytorch: Arc<PytorchBackend>,
    repeat: Arc<RepeatBackend>,
    square: Arc<SquareBackend>,
    tensorflow: Arc<TensorFlowBackend>,
    tensorrt: Arc<TensorRtBackend>,
}

impl Default for NativeBackends {
    fn default() -> NativeBackends {
        NativeBackends {
            affine: Arc::new(AffineBackend),
            fil: Arc::new(FilBackend),
            identity: Arc::new(IdentityBackend),
            onnxruntime: Arc::new(OnnxRuntimeBackend),
            openvino: Arc::new(OpenVinoBackend),
            python: Arc::new(PythonBackend::new(None)),
            pytorch: Arc::new(PytorchBackend),
            repeat: Arc::new(RepeatBackend),
            square: Arc::new(SquareBackend),
            tensorflow: Arc::new(TensorFlowBackend),
            tensorrt: Arc::new(TensorRtBackend),
        }
    }
}

impl NativeBackends {
    /// The backend of this name, or `None` if a library has to be searched. The call loads nothing.
    pub fn get(&self, name: &str) -> Option<Arc<dyn Backend>> {
        match name {
            "affine" => Some(self.affine.clone()),
            "fil" => Some(self.fil.clone()),
            "identity" => Some(self.identity.clone()),
            "onnxruntime" => Some(self.onnxruntime.clone()),
            nereid_openvino::NAME => Some(self.openvino.clone()),
            python::NAME => Some(self.python.clone()),
            nereid_pytorch::NAME => Some(self.pytorch.clone()),
            "repeat" => Some(self.repeat.clone()),
            "square" => Some(self.square.clone()),
            "tensorflow" => Some(self.tensorflow.clone()),
            nereid_tensorrt::NAME => Some(self.tensorrt.clone()),
            _ => None,
        }
    }

    /// The backend that a configuration names, or `None` if a library or a script has to be searched. The Python
    /// backend may be named with its own runtime.
    pub fn named(&self, backend: &str, runtime: &str) -> Option<Arc<dyn Backend>> {
        let is_own = runtime.is_empty() || (backend, runtime) == (python::NAME, python::SCRIPT);
        if is_own { self.get(backend) } else { None }
    }

    /// The Python-based backend of `directory`.
    pub fn python_based(&self, directory: PathBuf) -> Arc<dyn Backend> {
        Arc::new(PythonBackend::new(Some(directory)))
    }

    pub fn iter(&self) -> impl Iterator<Item = Arc<dyn Backend>> + '_ {
        NATIVE_NAMES.into_iter().filter_map(|name| self.get(name))
    }
}

/// Refuses a version of TensorFlow that has no backend in any release any more, with Triton's text. `settings` are
/// those of `backend`.
pub fn check_version(backend: &str, settings: &[(String, String)]) -> Result<(), Status> {
    let version = settings.iter().find(|(key, _)| key == "version").map(|(_, version)| version.as_str());
    match version.filter(|_| backend == "tensorflow") {
        None | Some("2") => Ok(()),
        Some("1") => {
            let text = "starting from 23.04, Triton no longer supports Tensorflow 1. Please switch to Tensorflow 2.";
            Err(Status::invalid(text))
        }
        Some(other) => Err(Status::invalid(format!("unexpected TensorFlow library version '{other}', expects 2."))),
    }
}

/// The built-in backend that `platform` stands for.
pub fn backend_of_platform(platform: &str) -> Option<&'static str> {
    NATIVE_PLATFORMS.into_iter().find(|(known, _)| *known == platform).map(|(_, backend)| backend)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_model_config::normalize::PreferredGroup;
    use nereid_wire::inference::model_instance_group::Kind;

    #[test]
    fn every_name_leads_to_a_backend_of_that_name() {
        let backends = NativeBackends::default();
        let names: Vec<String> = backends.iter().map(|backend| backend.name().to_owned()).collect();
        assert_eq!(names, NATIVE_NAMES);
        assert!(backends.get("vllm").is_none() && backends.get("").is_none());
        for (platform, name) in NATIVE_PLATFORMS {
            assert_eq!(backend_of_platform(platform), Some(name));
            assert!(backends.get(name).is_some());
        }
        assert_eq!(backend_of_platform("onnxruntime"), None);
        let named = |backend: &str, runtime: &str| backends.named(backend, runtime).map(|one| one.name().to_owned());
        assert_eq!(named("python", ""), Some("python".to_owned()));
        assert_eq!(named("python", "model.py"), Some("python".to_owned()));
        // Its script is one of a Python-based backend.
        let others =
            [("python", "libtriton_python.so"), ("identity", "model.py"), ("pytorch", "model.py"), ("snake", "")];
        for (backend, runtime) in others {
            assert_eq!(named(backend, runtime), None, "{backend} {runtime}");
        }
    }

    #[test]
    fn instance_defaults_are_those_of_the_backends() {
        let backends = NativeBackends::default();
        let groups = |name: &str| backends.get(name).map(|backend| backend.attributes().preferred_groups);
        assert_eq!(groups("identity"), Some(vec![]));
        assert_eq!(groups("openvino"), Some(vec![PreferredGroup::new(Kind::Cpu, 1)]));
        // A group for GPUs comes first if the library that is found can compute there.
        let onnxruntime = groups("onnxruntime").unwrap_or_default();
        assert_eq!(onnxruntime.last(), Some(&PreferredGroup::new(Kind::Cpu, 2)));
        assert_eq!(groups("tensorflow"), Some(vec![PreferredGroup::new(Kind::Cpu, 2)]));
        assert_eq!(groups("tensorrt"), Some(vec![PreferredGroup::new(Kind::Gpu, 1)]));
        let on_either = [PreferredGroup::new(Kind::Gpu, 1), PreferredGroup::new(Kind::Cpu, 1)];
        assert_eq!(groups("python"), Some(on_either.to_vec()));
        let based = backends.python_based("/backends/snake".into());
        assert_eq!(based.name(), "python", "its settings are those of python");
        assert_eq!(based.attributes().preferred_groups, on_either);
        let parallel = backends.iter().filter(|backend| backend.attributes().parallel_instance_loading);
        let parallel: Vec<String> = parallel.map(|backend| backend.name().to_owned()).collect();
        assert_eq!(parallel, ["affine", "fil", "identity", "onnxruntime", "python", "pytorch", "tensorflow"]);
    }
}
