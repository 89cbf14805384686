//! The frameworks of the suite: one row for each, with what its backend supports. A backend that is added passes the
//! suite by adding a row here and its files to tests/python/frameworks/make.py.

use super::reference::Function;

/// A framework with its backend, the files of its models, and the limits of what the suite may demand of it.
#[derive(Debug)]
pub struct Framework {
    /// Begins the names of its models.
    pub name: &'static str,
    /// The lines of a configuration that choose the backend, and parameters that all models need.
    pub backend: &'static str,
    /// The folder that make.py writes.
    pub format: Option<Format>,
    pub runtime: Runtime,
    /// Names of tensors without their number.
    pub input: &'static str,
    pub output: &'static str,
    /// Of its model `network`.
    pub function: Function,
    pub models: &'static [ModelKind],
    /// Of the tensors of its model `types`, in their order.
    pub datatypes: &'static [&'static str],
    /// Values of INT64 that the library keeps: OpenVINO computes them in 32 bits on a CPU.
    pub int64_bits: u32,
    pub completion: Option<Completion>,
    /// Part of the error when the two inputs of `add_sub` cannot be added.
    pub mismatch: Option<&'static str>,
    /// What a load of a file says that is none of its files.
    pub broken: &'static [Broken],
    /// The size under which an execution is reported is the number of its requests in place of that of its rows.
    pub counts_requests: bool,
    /// How much the resident memory may grow from the 10th to the 110th load of `network`, in KiB: the slack of
    /// allocators, whose arenas still find their sizes (measured: 1 to 2 MiB, with TensorFlow and AOTInductor up to 5,
    /// which do not become more in further loads). It is at most a tenth of a MiB for each load, which is less than a
    /// session, a compiled model or a package's library.
    pub growth_kib_max: u64,
}

/// The files of a framework's models, as make.py writes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Format {
    /// The argument of make.py.
    pub name: &'static str,
    /// The folder of these files, which may be one of several that the argument writes.
    pub folder: &'static str,
    /// The file of requirements, in tests/python, of the Python that make.py runs with; `None` for any Python.
    pub requirements: Option<&'static str>,
    /// The file or directory of a model, in its version directory.
    pub file: &'static str,
}

/// What executes the models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Runtime {
    /// The server itself.
    Native,
    /// Python with numpy.
    Interpreter,
    /// A library that is searched among the packages of tests/python/`requirements`.
    Library { name: &'static str, requirements: &'static str, is_large: bool },
}

/// Models that a framework may have. `network` is the one that every framework has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ModelKind {
    Network,
    /// Sum and difference of two inputs `[-1, -1]`.
    AddSub,
    /// One input `[-1, -1]` with zero in place of what is above it, computed in the memory of the input if the
    /// framework can do that.
    InPlace,
    /// An identity for each datatype.
    Types,
    /// The second input may be left out, and is then the first `absent`.
    Optional {
        absent: [f32; 2],
    },
    /// Requests of different lengths, to each element of which the number of all elements of the batch is added.
    Ragged,
}

impl ModelKind {
    /// The folder of its files.
    pub fn folder(self) -> &'static str {
        match self {
            ModelKind::Network => "network",
            ModelKind::AddSub => "add_sub",
            ModelKind::InPlace => "in_place",
            ModelKind::Types => "types",
            ModelKind::Optional { .. } => "optional",
            ModelKind::Ragged => "ragged",
        }
    }
}

/// What the backend adds to a configuration that only names it, for the model `add_sub`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Completion {
    pub max_batch_size: i64,
    /// Of each input and output.
    pub dims: &'static [i64],
    pub has_dynamic_batching: bool,
}

/// A kind of file that cannot be loaded as `network`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Broken {
    pub damage: Damage,
    /// Part of the error.
    pub text: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Damage {
    Missing,
    Empty,
    /// Bytes that are no format at all.
    Garbage,
    /// The first half of the file.
    Truncated,
    /// The file of this other framework.
    Foreign(&'static str),
}

const fn broken(damage: Damage, text: &'static str) -> Broken {
    Broken { damage, text }
}

pub const IDENTITY: Framework = Framework {
    name: "identity",
    backend: "backend: \"identity\"",
    format: None,
    runtime: Runtime::Native,
    input: "INPUT",
    output: "OUTPUT",
    function: Function::Copy,
    models: &[ModelKind::Network, ModelKind::Types, ModelKind::Optional { absent: [0., 0.] }],
    datatypes: &[
        "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32",
        "FP64", "BYTES",
    ],
    int64_bits: 64,
    completion: None,
    mismatch: None,
    broken: &[],
    counts_requests: false,
    growth_kib_max: 4096,
};

pub const PYTHON: Framework = Framework {
    name: "python",
    backend: "backend: \"python\"",
    format: Some(Format { name: "python", folder: "python", requirements: None, file: "model.py" }),
    runtime: Runtime::Interpreter,
    input: "INPUT__",
    output: "OUTPUT__",
    function: Function::Network,
    models: &[
        ModelKind::Network,
        ModelKind::AddSub,
        ModelKind::InPlace,
        ModelKind::Types,
        ModelKind::Optional { absent: [10., 20.] },
    ],
    // numpy has no BF16.
    datatypes: &[
        "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
        "BYTES",
    ],
    int64_bits: 64,
    completion: Some(Completion { max_batch_size: 4, dims: &[-1], has_dynamic_batching: false }),
    mismatch: Some("operands could not be broadcast together with shapes (1,3) (1,4)"),
    broken: &[
        broken(Damage::Missing, "model.py"),
        broken(Damage::Empty, "TritonPythonModel"),
        broken(Damage::Garbage, "SyntaxError"),
        broken(Damage::Truncated, "does not implement `execute` method"),
        broken(Damage::Foreign("onnxruntime"), "SyntaxError"),
    ],
    counts_requests: false,
    growth_kib_max: 4096,
};

pub const ONNXRUNTIME: Framework = Framework {
    name: "onnxruntime",
    backend: "backend: \"onnxruntime\"",
    format: Some(Format { name: "onnx", folder: "onnx", requirements: None, file: "model.onnx" }),
    runtime: Runtime::Library { name: "onnxruntime", requirements: "requirements.txt", is_large: false },
    input: "INPUT__",
    output: "OUTPUT__",
    function: Function::Network,
    models: &[
        ModelKind::Network,
        ModelKind::AddSub,
        ModelKind::InPlace,
        ModelKind::Types,
        ModelKind::Optional { absent: [10., 20.] },
        ModelKind::Ragged,
    ],
    datatypes: IDENTITY.datatypes,
    int64_bits: 64,
    completion: Some(Completion { max_batch_size: 4, dims: &[-1], has_dynamic_batching: true }),
    mismatch: Some("onnx runtime error"),
    broken: &[
        broken(Damage::Missing, "unable to find '"),
        broken(Damage::Empty, "onnx runtime error"),
        broken(Damage::Garbage, "onnx runtime error"),
        broken(Damage::Truncated, "onnx runtime error"),
        broken(Damage::Foreign("python"), "onnx runtime error"),
    ],
    counts_requests: false,
    growth_kib_max: 8192,
};

pub const FIL: Framework = Framework {
    name: "fil",
    backend: "backend: \"fil\"\n\
              parameters { key: \"model_type\" value { string_value: \"xgboost_json\" } }\n\
              parameters { key: \"is_classifier\" value { string_value: \"true\" } }\n\
              parameters { key: \"predict_proba\" value { string_value: \"true\" } }",
    format: Some(Format { name: "fil", folder: "fil", requirements: None, file: "xgboost.json" }),
    runtime: Runtime::Library { name: "fil", requirements: "tree_models.txt", is_large: false },
    input: "input__",
    output: "output__",
    function: Function::Forest,
    models: &[ModelKind::Network],
    datatypes: &[],
    int64_bits: 64,
    completion: None,
    mismatch: None,
    broken: &[
        broken(Damage::Missing, "does not exist"),
        broken(Damage::Empty, "Provided JSON could not be parsed as XGBoost model"),
        broken(Damage::Garbage, "Provided JSON could not be parsed as XGBoost model"),
        broken(Damage::Truncated, "Provided JSON could not be parsed as XGBoost model"),
        broken(Damage::Foreign("onnxruntime"), "Provided JSON could not be parsed as XGBoost model"),
    ],
    counts_requests: true,
    growth_kib_max: 4096,
};

pub const OPENVINO: Framework = Framework {
    name: "openvino",
    backend: "backend: \"openvino\"",
    format: Some(Format {
        name: "openvino",
        folder: "openvino",
        requirements: Some("openvino.txt"),
        file: "model.xml",
    }),
    runtime: Runtime::Library { name: "openvino", requirements: "openvino.txt", is_large: false },
    input: "INPUT__",
    output: "OUTPUT__",
    function: Function::Network,
    models: &[ModelKind::Network, ModelKind::AddSub, ModelKind::InPlace, ModelKind::Types],
    datatypes: &["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32"],
    int64_bits: 32,
    completion: Some(Completion { max_batch_size: 0, dims: &[-1, -1], has_dynamic_batching: false }),
    mismatch: Some("openvino error in "),
    broken: &[
        broken(Damage::Missing, "unable to find '"),
        broken(Damage::Empty, "openvino error in reading model : "),
        broken(Damage::Garbage, "openvino error in reading model : "),
        broken(Damage::Truncated, "openvino error in reading model : "),
        broken(Damage::Foreign("python"), "openvino error in reading model : "),
    ],
    counts_requests: false,
    growth_kib_max: 8192,
};

pub const TORCHSCRIPT: Framework = Framework {
    name: "torchscript",
    backend: "backend: \"pytorch\"\nplatform: \"pytorch_libtorch\"",
    format: Some(Format { name: "torchscript", folder: "torchscript", requirements: None, file: "model.pt" }),
    runtime: Runtime::Library { name: "pytorch", requirements: "torch.txt", is_large: true },
    input: "INPUT__",
    output: "OUTPUT__",
    function: Function::Network,
    models: &[ModelKind::Network, ModelKind::AddSub, ModelKind::InPlace, ModelKind::Types, ModelKind::Ragged],
    datatypes: &["BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"],
    int64_bits: 64,
    completion: None,
    mismatch: Some("PyTorch execute failure: "),
    broken: &[
        broken(Damage::Missing, "unable to find '"),
        broken(Damage::Empty, "failed to load model '"),
        broken(Damage::Garbage, "failed to load model '"),
        broken(Damage::Truncated, "failed to load model '"),
        broken(Damage::Foreign("onnxruntime"), "failed to load model '"),
    ],
    counts_requests: false,
    growth_kib_max: 8192,
};

pub const TORCH_AOTI: Framework = Framework {
    name: "torch_aoti",
    backend: "backend: \"pytorch\"\nplatform: \"torch_aoti\"",
    format: Some(Format {
        name: "torch_aoti",
        folder: "torch_aoti",
        requirements: Some("torch.txt"),
        file: "model.pt2",
    }),
    runtime: Runtime::Library { name: "pytorch", requirements: "torch.txt", is_large: true },
    input: "INPUT__",
    output: "OUTPUT__",
    function: Function::Network,
    models: &[ModelKind::Network, ModelKind::AddSub, ModelKind::InPlace, ModelKind::Types],
    datatypes: &["BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"],
    int64_bits: 64,
    completion: None,
    mismatch: Some("execution failure: "),
    broken: &[
        broken(Damage::Missing, "is unreachable or inaccessible."),
        broken(Damage::Empty, "failed to create instance \""),
        broken(Damage::Garbage, "failed to create instance \""),
        broken(Damage::Truncated, "failed to create instance \""),
        broken(Damage::Foreign("torchscript"), "failed to create instance \""),
    ],
    counts_requests: false,
    growth_kib_max: 10240,
};

pub const SAVEDMODEL: Framework = Framework {
    name: "savedmodel",
    backend: "platform: \"tensorflow_savedmodel\"",
    format: Some(Format { name: "tensorflow", folder: "tensorflow", requirements: None, file: "model.savedmodel" }),
    runtime: Runtime::Library { name: "tensorflow", requirements: "tensorflow.txt", is_large: true },
    input: "INPUT__",
    output: "OUTPUT__",
    function: Function::Network,
    models: &[ModelKind::Network, ModelKind::AddSub, ModelKind::InPlace, ModelKind::Types, ModelKind::Ragged],
    datatypes: &[
        "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
        "BYTES",
    ],
    int64_bits: 64,
    completion: Some(Completion { max_batch_size: 4, dims: &[-1], has_dynamic_batching: true }),
    mismatch: Some("Incompatible shapes"),
    broken: &[
        broken(Damage::Missing, "failed to load model"),
        broken(Damage::Empty, "failed to load model"),
        broken(Damage::Garbage, "failed to load model"),
        broken(Damage::Truncated, "failed to load model"),
        broken(Damage::Foreign("onnxruntime"), "failed to load model"),
    ],
    counts_requests: false,
    growth_kib_max: 10240,
};

pub const GRAPHDEF: Framework = Framework {
    name: "graphdef",
    backend: "platform: \"tensorflow_graphdef\"",
    format: Some(Format { name: "tensorflow", folder: "graphdef", requirements: None, file: "model.graphdef" }),
    completion: None,
    broken: &[
        broken(Damage::Missing, "unable to find '"),
        broken(Damage::Empty, "has an empty network"),
        broken(Damage::Garbage, "Invalid GraphDef"),
        broken(Damage::Truncated, "Invalid GraphDef"),
        broken(Damage::Foreign("onnxruntime"), "Invalid GraphDef"),
    ],
    ..SAVEDMODEL
};

/// All frameworks. Those without a library come first.
pub const FRAMEWORKS: [&Framework; 9] =
    [&IDENTITY, &PYTHON, &ONNXRUNTIME, &OPENVINO, &FIL, &TORCHSCRIPT, &TORCH_AOTI, &SAVEDMODEL, &GRAPHDEF];

impl Framework {
    pub fn input(&self, at: usize) -> String {
        format!("{}{at}", self.input)
    }

    pub fn output(&self, at: usize) -> String {
        format!("{}{at}", self.output)
    }

    /// The name of its model of this kind.
    pub fn model(&self, kind: ModelKind) -> String {
        format!("{}_{}", self.name, kind.folder())
    }

    pub fn has(&self, kind: ModelKind) -> bool {
        self.models.contains(&kind)
    }
}
