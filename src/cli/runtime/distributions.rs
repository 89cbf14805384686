//! The runtimes that `nereid runtime install` can bring: the packages that hold them, and the files that are needed.
//!
//! A runtime of Python is made in another way (`super::python`).

use std::path::Path;

use nereid_backend::onnxruntime;
use nereid_backend::runtime_search::{LibraryError, RuntimeKind};
use nereid_fil as fil;
use nereid_pytorch::torch;

/// One package of the index, and its files that a runtime needs.
#[derive(Debug, PartialEq, Eq)]
pub struct Package {
    pub name: &'static str,
    /// The version that this build was tested with.
    pub tested_version: &'static str,
    /// The oldest version that can be used; it limits the choice where the tested one is not offered.
    pub oldest_version: &'static str,
    /// The files, as patterns of paths in the wheel (`*` matches every character, also `/`). Each must match a file;
    /// one that begins with `!` leaves files out.
    pub files: &'static [&'static str],
    /// What paths lose at their start when they are unpacked.
    pub strip: &'static str,
}

/// A runtime as it is installed.
#[derive(Debug)]
pub struct Distribution {
    pub runtime: &'static RuntimeKind,
    /// What it is for, behind its title: `for ONNX models`.
    pub purpose: &'static str,
    /// What `--version` and the folder's name mean is the version of the first package.
    pub packages: &'static [Package],
    /// It computes on GPUs: `--gpu` chooses it.
    pub is_for_gpus: bool,
    /// Opens the library and returns its version.
    pub open: fn(&Path) -> Result<String, LibraryError>,
    /// What else an installation does with the unpacked library, which takes long; the error is a sentence for the
    /// user, and does not undo the installation.
    pub finish: Option<Finish>,
}

/// Gets the library, and a function that reports progress.
pub type Finish = fn(&Path, &mut dyn FnMut(&str)) -> Result<(), String>;

/// The suffix of the folders of installed builds for GPUs.
const GPU_SUFFIX: &str = "-gpu";

/// One value for each entry of [`ALL`].
impl PartialEq for Distribution {
    fn eq(&self, other: &Distribution) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Distribution {
    /// The folder of that version.
    pub fn folder(&self, version: &str) -> String {
        let suffix = if self.is_for_gpus { GPU_SUFFIX } else { "" };
        format!("{version}{suffix}")
    }

    pub fn first(&self) -> &'static Package {
        &self.packages[0]
    }
}

/// All of them.
pub static ALL: [Distribution; 7] = [
    Distribution {
        runtime: &onnxruntime::RUNTIME,
        purpose: "for ONNX models",
        packages: &[Package {
            name: "onnxruntime",
            tested_version: "1.31.1",
            // Older packages hold no library of their own.
            oldest_version: "1.20",
            files: &["onnxruntime/capi/libonnxruntime.so*"],
            strip: "onnxruntime/capi/",
        }],
        is_for_gpus: false,
        open: open_onnxruntime,
        finish: None,
    },
    Distribution {
        runtime: &onnxruntime::RUNTIME,
        purpose: "for ONNX models",
        packages: &[Package {
            name: "onnxruntime-gpu",
            tested_version: "1.31.1",
            oldest_version: "1.20",
            // The library opens its providers from its own folder.
            files: &["onnxruntime/capi/libonnxruntime.so*", "onnxruntime/capi/libonnxruntime_providers_*"],
            strip: "onnxruntime/capi/",
        }],
        is_for_gpus: true,
        open: open_onnxruntime,
        finish: None,
    },
    Distribution {
        runtime: &torch::RUNTIME,
        purpose: "for TorchScript models; a C++ compiler is needed",
        packages: &[
            Package {
                name: "torch",
                tested_version: "2.15.0",
                oldest_version: "2.6",
                // Without the code for GPUs, and with the headers that the interface to it is compiled against.
                files: &[
                    "torch/lib/lib*.so*",
                    "torch/include/ATen/*",
                    "torch/include/c10/*",
                    "torch/include/caffe2/*",
                    "torch/include/torch/*",
                    "torch/version.py",
                    "!torch/lib/*cuda*",
                    "!torch/lib/*nv*",
                    "!torch/lib/libtorch.so",
                    "!torch/lib/libtorch_python.so",
                    "!torch/lib/libshm*",
                ],
                strip: "",
            },
            // The library does not open without these two, even where it computes on the host.
            Package {
                name: "nvidia-cuda-runtime",
                tested_version: "13.5.37",
                oldest_version: "13.0",
                files: &["nvidia/*/lib/libcudart.so*"],
                strip: "",
            },
            Package {
                name: "nvidia-cuda-cupti",
                tested_version: "13.5.25",
                oldest_version: "13.0",
                files: &["nvidia/*/lib/libcupti.so*"],
                strip: "",
            },
        ],
        is_for_gpus: false,
        open: open_pytorch,
        finish: Some(finish_pytorch),
    },
    Distribution {
        runtime: &nereid_openvino::RUNTIME,
        purpose: "for OpenVINO models",
        packages: &[Package {
            name: "openvino",
            tested_version: "2026.4.1",
            oldest_version: "2024.6",
            // The library opens its plug-ins and readers from its own folder. Left out: devices other than the CPU, and
            // readers that only Python uses.
            files: &[
                "openvino/libs/libopenvino.so*",
                "openvino/libs/libopenvino_c.so*",
                "openvino/libs/libopenvino_*_cpu_plugin.so",
                "openvino/libs/libopenvino_auto_plugin.so",
                "openvino/libs/libopenvino_hetero_plugin.so",
                "openvino/libs/libopenvino_ir_frontend.so*",
                "openvino/libs/libopenvino_onnx_frontend.so*",
                "openvino/libs/libopenvino_paddle_frontend.so*",
                "openvino/libs/libopenvino_tensorflow_frontend.so*",
                "openvino/libs/libopenvino_tensorflow_lite_frontend.so*",
                // Threads, and the host's topology.
                "openvino/libs/lib[ht][wb]*",
            ],
            strip: "openvino/libs/",
        }],
        is_for_gpus: false,
        open: nereid_openvino::version,
        finish: None,
    },
    Distribution {
        runtime: &fil::RUNTIME,
        purpose: "for tree models of XGBoost, LightGBM and scikit-learn",
        packages: &[Package {
            name: "treelite",
            tested_version: "4.8.1",
            // Older ones cannot read UBJSON.
            oldest_version: "4.4",
            // The library's search path leads from its own folder to that of OpenMP.
            files: &["treelite/lib/libtreelite.so", "treelite.libs/*"],
            strip: "",
        }],
        is_for_gpus: false,
        open: open_treelite,
        finish: None,
    },
    Distribution {
        runtime: &nereid_tensorflow::RUNTIME,
        purpose: "for SavedModels and graphs of TensorFlow",
        packages: &[Package {
            name: "tensorflow-cpu",
            tested_version: "2.21.0",
            oldest_version: "2.16",
            files: &["tensorflow/libtensorflow_cc.so*", "tensorflow/libtensorflow_framework.so*"],
            strip: "tensorflow/",
        }],
        is_for_gpus: false,
        open: open_tensorflow,
        finish: None,
    },
    Distribution {
        runtime: &nereid_tensorrt::RUNTIME,
        purpose: "for version-compatible plans of TensorRT; the lean runtime",
        packages: &[Package {
            name: "tensorrt-lean-cu13-libs",
            tested_version: "11.4.0.106",
            // Older packages only fetch the library from an index of NVIDIA's.
            oldest_version: "10.15",
            files: &["tensorrt_lean_libs/libnvinfer_lean.so*", "tensorrt_lean_libs/libnvinfer_vc_plugin.so*"],
            strip: "tensorrt_lean_libs/",
        }],
        is_for_gpus: false,
        open: nereid_tensorrt::inspect,
        finish: None,
    },
];

fn open_onnxruntime(path: &Path) -> Result<String, LibraryError> {
    Ok(onnxruntime::inspect(path)?.version)
}

fn open_pytorch(path: &Path) -> Result<String, LibraryError> {
    Ok(torch::open(path)?.version().to_owned())
}

fn finish_pytorch(path: &Path, report: &mut dyn FnMut(&str)) -> Result<(), String> {
    let torch = torch::open(path).map_err(|error| error.to_string())?;
    torch.install_shim(report).map_err(|error| error.to_string())
}

fn open_treelite(path: &Path) -> Result<String, LibraryError> {
    Ok(fil::inspect(path)?.version)
}

fn open_tensorflow(path: &Path) -> Result<String, LibraryError> {
    Ok(nereid_tensorflow::inspect(path)?.version)
}

/// The runtimes by their names in commands, each once.
pub fn names() -> Vec<&'static str> {
    ALL.iter().filter(|one| !one.is_for_gpus).map(|one| one.runtime.name).collect()
}

/// The runtime of this name; the error is a sentence for the user.
pub fn find(name: &str, is_for_gpus: bool) -> Result<&'static Distribution, String> {
    let mut of_name = ALL.iter().filter(|one| one.runtime.name == name).peekable();
    if of_name.peek().is_none() {
        return Err(format!("unknown runtime '{name}'; known runtimes: {}, python", names().join(", ")));
    }
    of_name
        .find(|one| one.is_for_gpus == is_for_gpus)
        .ok_or_else(|| format!("unknown option '--gpu': {name} has no other build for GPUs"))
}
