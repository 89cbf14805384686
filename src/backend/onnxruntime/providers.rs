//! The library's CUDA and TensorRT providers, which compute models on GPUs, with their options in the library's terms
//! (contract/backends.md section 4, "Optimization" and "Model parameters").

use crate::ModelContext;
use crate::parameters::{parse_boolean, parse_integer};
use nereid_request::Status;
use nereid_wire::inference::model_optimization_policy::execution_accelerators::Accelerator;

/// A provider of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    TensorRt,
    Cuda,
}

impl Provider {
    /// The name in Triton's log lines.
    pub fn title(self) -> &'static str {
        match self {
            Provider::TensorRt => "TensorRT",
            Provider::Cuda => "CUDA",
        }
    }

    /// The name in the library's list of its providers.
    pub fn name(self) -> &'static str {
        match self {
            Provider::TensorRt => "TensorrtExecutionProvider",
            Provider::Cuda => "CUDAExecutionProvider",
        }
    }
}

/// Keys and values, as they are passed to the library.
pub type Options = Vec<(String, String)>;

/// The configuration of sessions on GPUs. The first provider that supports a node computes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuProviders {
    /// `None`: TensorRT is not enabled.
    pub tensorrt: Option<Options>,
    pub cuda: Options,
}

/// Options that the backend sets itself and a configuration must not.
const OWN_KEYS: [&str; 2] = ["device_id", "user_compute_stream"];
/// Options of the CUDA provider that must be booleans.
const CUDA_BOOLEANS: [&str; 2] = ["do_copy_in_default_stream", "use_ep_level_unified_stream"];

/// Parameters of TensorRT that have another name in the library.
const TENSORRT_RENAMED: [(&str, &str); 3] = [
    ("max_workspace_size_bytes", "trt_max_workspace_size"),
    ("int8_calibration_table_name", "trt_int8_calibration_table_name"),
    ("int8_use_native_calibration_table", "trt_int8_use_native_calibration_table"),
];

/// Parameters of TensorRT that have the same name in the library.
const TENSORRT_PLAIN: [&str; 28] = [
    "trt_max_partition_iterations",
    "trt_min_subgraph_size",
    "trt_dla_enable",
    "trt_dla_core",
    "trt_engine_cache_enable",
    "trt_engine_cache_path",
    "trt_engine_cache_prefix",
    "trt_dump_subgraphs",
    "trt_force_sequential_engine_build",
    "trt_context_memory_sharing_enable",
    "trt_layer_norm_fp32_fallback",
    "trt_timing_cache_enable",
    "trt_timing_cache_path",
    "trt_force_timing_cache",
    "trt_detailed_build_log",
    "trt_build_heuristics_enable",
    "trt_sparsity_enable",
    "trt_builder_optimization_level",
    "trt_auxiliary_streams",
    "trt_tactic_sources",
    "trt_extra_plugin_lib_paths",
    "trt_profile_min_shapes",
    "trt_profile_max_shapes",
    "trt_profile_opt_shapes",
    "trt_cuda_graph_enable",
    "trt_dump_ep_context_model",
    "trt_ep_context_file_path",
    "trt_ep_context_embed_mode",
];

/// Parameters whose values are numbers.
const TENSORRT_INTEGERS: [&str; 6] = [
    "trt_max_partition_iterations",
    "trt_min_subgraph_size",
    "trt_dla_core",
    "trt_builder_optimization_level",
    "trt_auxiliary_streams",
    "trt_ep_context_embed_mode",
];

/// Parameters with boolean values, of which the library accepts fewer spellings.
const TENSORRT_BOOLEANS: [&str; 14] = [
    "trt_int8_use_native_calibration_table",
    "trt_dla_enable",
    "trt_engine_cache_enable",
    "trt_dump_subgraphs",
    "trt_force_sequential_engine_build",
    "trt_context_memory_sharing_enable",
    "trt_layer_norm_fp32_fallback",
    "trt_timing_cache_enable",
    "trt_force_timing_cache",
    "trt_detailed_build_log",
    "trt_build_heuristics_enable",
    "trt_sparsity_enable",
    "trt_cuda_graph_enable",
    "trt_dump_ep_context_model",
];

impl GpuProviders {
    pub fn parse(context: &ModelContext) -> Result<GpuProviders, Status> {
        let optimization = context.config.optimization.as_ref();
        let given = optimization.and_then(|optimization| optimization.execution_accelerators.as_ref());
        let (mut tensorrt, mut cuda) = (None, Options::new());
        for accelerator in given.map(|given| &given.gpu_execution_accelerator[..]).unwrap_or_default() {
            match accelerator.name.as_str() {
                "tensorrt" => tensorrt = Some(tensorrt_options(accelerator)?),
                "cuda" => cuda = cuda_options(accelerator)?,
                other => {
                    return Err(Status::invalid(format!("unknown Execution Accelerator '{other}' is requested")));
                }
            }
        }
        for (key, value) in older_options(context)? {
            set(&mut cuda, key, value);
        }
        Ok(GpuProviders { tensorrt, cuda })
    }

    /// The providers in the order in which they are added, with the options of one device. The stream is not among
    /// them: it is passed as an address.
    pub fn on(&self, device: usize) -> Vec<(Provider, Options)> {
        let with_device = |options: &Options| {
            let mut options = options.clone();
            set(&mut options, OWN_KEYS[0], device.to_string());
            options
        };
        let tensorrt = self.tensorrt.as_ref().map(|options| (Provider::TensorRt, with_device(options)));
        tensorrt.into_iter().chain([(Provider::Cuda, with_device(&self.cuda))]).collect()
    }

    /// Whether runs are recorded as CUDA graphs, which requires tensors at the same addresses in every run.
    pub fn records_graphs(&self) -> bool {
        let is_on = |options: &Options, key: &str| {
            let value = options.iter().find(|(name, _)| name == key);
            value.is_some_and(|(_, value)| parse_boolean(value) == Ok(true))
        };
        is_on(&self.cuda, "enable_cuda_graph")
            || self.tensorrt.as_ref().is_some_and(|options| is_on(options, "trt_cuda_graph_enable"))
    }
}

fn set(options: &mut Options, key: &str, value: String) {
    options.retain(|(known, _)| known != key);
    options.push((key.to_owned(), value));
}

/// Parameters in the order of their names, because a configuration does not keep their order.
fn parameters(accelerator: &Accelerator) -> Vec<(&str, &str)> {
    let mut parameters: Vec<(&str, &str)> =
        accelerator.parameters.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    parameters.sort_unstable();
    parameters
}

fn number_of(is_set: bool) -> String {
    u8::from(is_set).to_string()
}

fn cuda_options(accelerator: &Accelerator) -> Result<Options, Status> {
    let mut options = Options::new();
    for (key, value) in parameters(accelerator) {
        if OWN_KEYS.contains(&key) || value.is_empty() {
            continue;
        }
        let value = match CUDA_BOOLEANS.contains(&key) {
            true => number_of(parse_boolean(value)?),
            false => value.to_owned(),
        };
        options.push((key.to_owned(), value));
    }
    Ok(options)
}

fn tensorrt_options(accelerator: &Accelerator) -> Result<Options, Status> {
    let mut options = Options::new();
    for (key, value) in parameters(accelerator) {
        if key == "precision_mode" {
            options.extend(precision(value)?.map(|key| (key.to_owned(), number_of(true))));
            continue;
        }
        let renamed = TENSORRT_RENAMED.iter().find(|(given, _)| *given == key).map(|(_, name)| *name);
        let Some(name) = renamed.or_else(|| TENSORRT_PLAIN.iter().find(|plain| **plain == key).copied()) else {
            return Err(Status::invalid(format!(
                "unknown parameter '{key}' is provided for TensorRT Execution Accelerator"
            )));
        };
        let value = match name {
            _ if TENSORRT_BOOLEANS.contains(&name) => number_of(parse_boolean(value)?),
            _ if TENSORRT_INTEGERS.contains(&name) => parse_integer(value).map(|_| value.to_owned())?,
            "trt_max_workspace_size" => parse_bytes(value, "unsigned long long integral")?.to_string(),
            _ => value.to_owned(),
        };
        // An empty text leaves the library's default.
        if !value.is_empty() {
            options.push((name.to_owned(), value));
        }
    }
    Ok(options)
}

/// The option that turns a precision on; FP32 is always on.
fn precision(mode: &str) -> Result<Option<&'static str>, Status> {
    match mode {
        "FP32" => Ok(None),
        "FP16" => Ok(Some("trt_fp16_enable")),
        "BF16" => Ok(Some("trt_bf16_enable")),
        "INT8" => Ok(Some("trt_int8_enable")),
        other => Err(Status::invalid(format!("unsupported precision mode '{other}' is requested"))),
    }
}

/// The older CUDA options in a model's parameters, with defaults.
fn older_options(context: &ModelContext) -> Result<[(&'static str, String); 4], Status> {
    let choice = |key: &'static str, names: &[&'static str]| {
        let number = context.parameter(key).map_or(Ok(0), parse_integer)?;
        let name = usize::try_from(number).ok().and_then(|number| names.get(number));
        let unsupported = || Status::invalid(format!("unsupported {key} value '{number}' is requested"));
        Ok::<_, Status>((key, (*name.ok_or_else(unsupported)?).to_owned()))
    };
    let limit = match context.parameter("gpu_mem_limit") {
        None => usize::MAX,
        Some(text) => parse_bytes(text, "integral")?,
    };
    Ok([
        choice("cudnn_conv_algo_search", &["EXHAUSTIVE", "HEURISTIC", "DEFAULT"])?,
        ("gpu_mem_limit", limit.to_string()),
        choice("arena_extend_strategy", &["kNextPowerOfTwo", "kSameAsRequested"])?,
        ("do_copy_in_default_stream", context.parameter("do_copy_in_default_stream").unwrap_or("1").to_owned()),
    ])
}

/// A leading number, as in [`parse_integer`], that may be larger; `kind` of number is how its error names it.
fn parse_bytes(text: &str, kind: &str) -> Result<usize, Status> {
    let digits = text.trim_start();
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    let end = digits.bytes().take_while(u8::is_ascii_digit).count();
    let error = |_| Status::invalid(format!("failed to convert '{text}' to {kind} number"));
    digits[..end].parse().map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnxruntime::fixtures::{context, with_parameters};
    use nereid_wire::inference::model_optimization_policy::ExecutionAccelerators;
    use nereid_wire::inference::{ModelConfig, ModelOptimizationPolicy, ModelParameter};

    fn accelerated(given: &[(&str, &[(&str, &str)])]) -> ModelContext {
        let accelerators = given.iter().map(|(name, parameters)| Accelerator {
            name: (*name).to_owned(),
            parameters: parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        });
        let accelerators = ExecutionAccelerators {
            gpu_execution_accelerator: accelerators.collect(),
            ..ExecutionAccelerators::default()
        };
        let policy = ModelOptimizationPolicy { execution_accelerators: Some(accelerators), ..Default::default() };
        context("m", ModelConfig { optimization: Some(policy), ..ModelConfig::default() })
    }

    fn options(given: &[(&str, &str)]) -> Options {
        given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    const DEFAULTS: [(&str, &str); 4] = [
        ("cudnn_conv_algo_search", "EXHAUSTIVE"),
        ("gpu_mem_limit", "18446744073709551615"),
        ("arena_extend_strategy", "kNextPowerOfTwo"),
        ("do_copy_in_default_stream", "1"),
    ];

    #[test]
    fn a_model_that_says_nothing_gets_cuda_with_the_defaults() {
        let providers = GpuProviders::parse(&with_parameters(&[])).unwrap();
        let expected = [&DEFAULTS[..], &[("device_id", "3")]].concat();
        assert_eq!(providers.on(3), [(Provider::Cuda, options(&expected))]);
        assert!(!providers.records_graphs());
    }

    #[test]
    fn older_parameters_are_translated_and_win() {
        let mut context = accelerated(&[(
            "cuda",
            &[("gpu_mem_limit", "7"), ("cudnn_conv_use_max_workspace", "0"), ("do_copy_in_default_stream", "False")],
        )]);
        for (key, value) in [
            ("cudnn_conv_algo_search", "2"),
            ("gpu_mem_limit", "4294967296"),
            ("arena_extend_strategy", "1"),
            ("do_copy_in_default_stream", "0"),
        ] {
            let value = ModelParameter { string_value: value.to_owned() };
            context.config.parameters.insert(key.to_owned(), value);
        }
        let cuda = GpuProviders::parse(&context).unwrap().cuda;
        let expected = [
            ("cudnn_conv_use_max_workspace", "0"),
            ("cudnn_conv_algo_search", "DEFAULT"),
            ("gpu_mem_limit", "4294967296"),
            ("arena_extend_strategy", "kSameAsRequested"),
            ("do_copy_in_default_stream", "0"),
        ];
        assert_eq!(cuda, options(&expected));
        context.config.parameters.clear();
        let cuda = GpuProviders::parse(&context).unwrap().cuda;
        let expected = [&[("cudnn_conv_use_max_workspace", "0")], &DEFAULTS[..]].concat();
        assert_eq!(cuda, options(&expected), "the defaults win too");
    }

    #[test]
    fn cuda_has_its_own_names_but_for_what_the_backend_sets() {
        let given = [
            ("device_id", "9"),
            ("user_compute_stream", "12345"),
            ("use_ep_level_unified_stream", "ON"),
            ("enable_cuda_graph", "1"),
            ("cudnn_conv1d_pad_to_nc1d", "1"),
            ("prefer_nhwc", ""),
        ];
        let providers = GpuProviders::parse(&accelerated(&[("cuda", &given)])).unwrap();
        let expected =
            [("cudnn_conv1d_pad_to_nc1d", "1"), ("enable_cuda_graph", "1"), ("use_ep_level_unified_stream", "1")];
        let expected = [&expected[..], &DEFAULTS, &[("device_id", "0")]].concat();
        assert_eq!(providers.on(0), [(Provider::Cuda, options(&expected))]);
        assert!(providers.records_graphs());
    }

    #[test]
    fn tensorrt_comes_first_and_its_parameters_are_renamed() {
        let given = [
            ("precision_mode", "FP16"),
            ("max_workspace_size_bytes", "1073741824"),
            ("int8_calibration_table_name", "table"),
            ("int8_use_native_calibration_table", "True"),
            ("trt_engine_cache_enable", "on"),
            ("trt_engine_cache_path", "/tmp/on"),
            ("trt_dla_core", "1"),
        ];
        let providers = GpuProviders::parse(&accelerated(&[("cuda", &[]), ("tensorrt", &given)])).unwrap();
        let [(first, tensorrt), (second, _)] = &providers.on(1)[..] else { panic!("two providers") };
        assert_eq!((*first, *second), (Provider::TensorRt, Provider::Cuda));
        let expected = [
            ("trt_int8_calibration_table_name", "table"),
            ("trt_int8_use_native_calibration_table", "1"),
            ("trt_max_workspace_size", "1073741824"),
            ("trt_fp16_enable", "1"),
            ("trt_dla_core", "1"),
            ("trt_engine_cache_enable", "1"),
            ("trt_engine_cache_path", "/tmp/on"),
            ("device_id", "1"),
        ];
        assert_eq!(*tensorrt, options(&expected));
    }

    #[test]
    fn every_parameter_of_tensorrt_is_taken() {
        for key in TENSORRT_PLAIN {
            let (given, sent) = match key {
                _ if TENSORRT_BOOLEANS.contains(&key) => ("on", "1"),
                _ if TENSORRT_INTEGERS.contains(&key) => ("-1", "-1"),
                _ => ("x", "x"),
            };
            let providers = GpuProviders::parse(&accelerated(&[("tensorrt", &[(key, given)])])).unwrap();
            assert_eq!(providers.tensorrt, Some(options(&[(key, sent)])));
            let empty = GpuProviders::parse(&accelerated(&[("tensorrt", &[(key, "")])]));
            assert_eq!(empty.is_err(), given != "x", "{key}");
        }
        for (mode, expected) in [
            ("FP32", None),
            ("FP16", Some("trt_fp16_enable")),
            ("BF16", Some("trt_bf16_enable")),
            ("INT8", Some("trt_int8_enable")),
        ] {
            let providers = GpuProviders::parse(&accelerated(&[("tensorrt", &[("precision_mode", mode)])])).unwrap();
            let expected: Options = expected.map(|key| (key.to_owned(), "1".to_owned())).into_iter().collect();
            assert_eq!(providers.tensorrt, Some(expected), "{mode}");
        }
    }

    #[test]
    fn what_is_unknown_is_refused_by_its_text() {
        let of = |context: ModelContext| GpuProviders::parse(&context).unwrap_err();
        for (context, text) in [
            (accelerated(&[("xpu", &[])]), "unknown Execution Accelerator 'xpu' is requested"),
            (
                accelerated(&[("tensorrt", &[("trt_fp8", "1")])]),
                "unknown parameter 'trt_fp8' is provided for TensorRT Execution Accelerator",
            ),
            (
                accelerated(&[("tensorrt", &[("precision_mode", "fp16")])]),
                "unsupported precision mode 'fp16' is requested",
            ),
            (
                accelerated(&[("cuda", &[("do_copy_in_default_stream", "maybe")])]),
                "failed to convert 'maybe' to boolean",
            ),
            (
                accelerated(&[("tensorrt", &[("trt_engine_cache_enable", "maybe")])]),
                "failed to convert 'maybe' to boolean",
            ),
            (accelerated(&[("tensorrt", &[("trt_dla_core", "one")])]), "failed to convert 'one' to integral number"),
            (
                accelerated(&[("tensorrt", &[("max_workspace_size_bytes", "much")])]),
                "failed to convert 'much' to unsigned long long integral number",
            ),
            (
                with_parameters(&[("cudnn_conv_algo_search", "3")]),
                "unsupported cudnn_conv_algo_search value '3' is requested",
            ),
            (
                with_parameters(&[("arena_extend_strategy", "-1")]),
                "unsupported arena_extend_strategy value '-1' is requested",
            ),
            (with_parameters(&[("gpu_mem_limit", "much")]), "failed to convert 'much' to integral number"),
        ] {
            let error = of(context);
            assert_eq!((error.code, &*error.message), (nereid_request::Code::InvalidArg, text));
        }
    }
}
