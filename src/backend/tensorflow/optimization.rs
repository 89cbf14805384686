//! `optimization` of a model's configuration: just-in-time compilation, and accelerators of GPUs
//! (contract/frameworks.md section 5, "optimization").

use std::collections::BTreeMap;

use super::messages::{AttrChoice, AttrValue, CustomGraphOptimizer, GraphOptions, OptimizerOptions, RewriterConfig};
use nereid_backend::parameters::parse_integer;
use nereid_request::Status;
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_optimization_policy::execution_accelerators::Accelerator;

/// `RewriterConfig.NumIterationsType.ONE`.
const ONE_ITERATION: i32 = 1;
/// `RewriterConfig.Toggle.ON`.
const ON: i32 = 1;

/// What the configuration asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Optimization {
    /// `graph.level`.
    level: i32,
    /// Some accelerator of GPUs is configured.
    pub has_gpu_accelerators: bool,
    /// What they are, or why they are wrong: that concerns only instances that are not on the CPU.
    gpu: Option<Result<GpuAccelerators, Status>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct GpuAccelerators {
    tensorrt: Option<TensorRt>,
    has_mixed_precision: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct TensorRt {
    precision_mode: String,
    minimum_segment_size: i64,
    max_workspace_size_bytes: i64,
    max_cached_engines: i64,
    max_batch_size: i64,
}

impl Optimization {
    pub fn parse(config: &ModelConfig) -> Result<Optimization, Status> {
        let Some(given) = &config.optimization else { return Ok(Optimization::default()) };
        let level = given.graph.as_ref().map_or(0, |graph| graph.level);
        let Some(accelerators) = &given.execution_accelerators else {
            return Ok(Optimization { level, ..Optimization::default() });
        };
        if !accelerators.cpu_execution_accelerator.is_empty() {
            return Err(Status::invalid("CPU Execution Accelerator is not supported in TensorFlow backend"));
        }
        let gpu = &accelerators.gpu_execution_accelerator;
        let max_batch_size = i64::from(config.max_batch_size.max(1));
        let parsed = GpuAccelerators::parse(gpu, max_batch_size);
        Ok(Optimization { level, has_gpu_accelerators: !gpu.is_empty(), gpu: Some(parsed) })
    }

    /// The options of a session; `on_cpu`: without the accelerators.
    pub fn options(&self, on_cpu: bool) -> Result<GraphOptions, Status> {
        let global_jit_level = match self.level {
            -1 => -1,
            1 => 1,
            2.. => 2,
            _ => 0,
        };
        let rewrite_options = match &self.gpu {
            Some(gpu) if !on_cpu => gpu.clone()?.rewrites(),
            _ => None,
        };
        Ok(GraphOptions { optimizer_options: Some(OptimizerOptions { global_jit_level }), rewrite_options })
    }
}

impl GpuAccelerators {
    fn parse(given: &[Accelerator], max_batch_size: i64) -> Result<GpuAccelerators, Status> {
        let mut accelerators = GpuAccelerators::default();
        for accelerator in given {
            match accelerator.name.as_str() {
                "tensorrt" => accelerators.tensorrt = Some(TensorRt::parse(accelerator, max_batch_size)?),
                // Inputs are on the host here; the library copies them to the device, as it does without the hint.
                "gpu_io" => {
                    tracing::info!("inputs and outputs of TensorFlow models stay on the host: 'gpu_io' has no effect")
                }
                "auto_mixed_precision" => accelerators.has_mixed_precision = true,
                other => return Err(Status::invalid(format!("unknown Execution Accelerator '{other}' is requested"))),
            }
        }
        match accelerators.has_mixed_precision && accelerators.tensorrt.is_some() {
            true => Err(Status::invalid("Auto mixed precision can not be set with TFTRT optimization")),
            false => Ok(accelerators),
        }
    }

    fn rewrites(&self) -> Option<RewriterConfig> {
        if let Some(tensorrt) = &self.tensorrt {
            return Some(tensorrt.rewrites());
        }
        self.has_mixed_precision.then(|| RewriterConfig {
            meta_optimizer_iterations: ONE_ITERATION,
            auto_mixed_precision: ON,
            ..RewriterConfig::default()
        })
    }
}

impl TensorRt {
    fn parse(given: &Accelerator, max_batch_size: i64) -> Result<TensorRt, Status> {
        let mut tensorrt = TensorRt {
            precision_mode: "FP32".to_owned(),
            minimum_segment_size: 3,
            max_workspace_size_bytes: 1 << 30,
            max_cached_engines: 100,
            max_batch_size,
        };
        let mut keys: Vec<_> = given.parameters.iter().collect();
        keys.sort();
        for (key, value) in keys {
            let number = || match value.parse::<i64>() {
                Ok(number) => Ok(number),
                // The rest behind a leading number is ignored, as everywhere.
                Err(_) => parse_integer(value).map(i64::from),
            };
            match key.as_str() {
                "precision_mode" if matches!(value.as_str(), "FP32" | "FP16" | "INT8") => {
                    tensorrt.precision_mode.clone_from(value);
                }
                "precision_mode" => {
                    return Err(Status::invalid(format!("unsupported precision mode '{value}' is requested")));
                }
                "minimum_segment_size" => tensorrt.minimum_segment_size = number()?,
                "max_workspace_size_bytes" => tensorrt.max_workspace_size_bytes = number()?,
                "max_cached_engines" => tensorrt.max_cached_engines = number()?,
                other => {
                    return Err(Status::invalid(format!(
                        "unknown parameter '{other}' is provided for TensorRT Execution Accelerator"
                    )));
                }
            }
        }
        Ok(tensorrt)
    }

    /// TensorRT's optimizer between foldings of constants: the change of layouts before it adds constants, and it
    /// leaves some that are not used any more.
    fn rewrites(&self) -> RewriterConfig {
        let value = |value| AttrValue { value: Some(value) };
        let parameters: BTreeMap<String, AttrValue> = [
            ("is_dynamic_op", AttrChoice::Bool(true)),
            ("precision_mode", AttrChoice::Text(self.precision_mode.clone().into_bytes())),
            ("minimum_segment_size", AttrChoice::Int(self.minimum_segment_size)),
            ("max_workspace_size_bytes", AttrChoice::Int(self.max_workspace_size_bytes)),
            ("max_cached_engines", AttrChoice::Int(self.max_cached_engines)),
            ("max_batch_size", AttrChoice::Int(self.max_batch_size)),
        ]
        .into_iter()
        .map(|(key, choice)| (key.to_owned(), value(choice)))
        .collect();
        let named = |name: &str, parameters| CustomGraphOptimizer { name: name.to_owned(), parameters };
        RewriterConfig {
            meta_optimizer_iterations: ONE_ITERATION,
            optimizers: ["constfold", "layout", "constfold"].map(str::to_owned).to_vec(),
            custom_optimizers: vec![named("TensorRTOptimizer", parameters), named("constfold", BTreeMap::new())],
            ..RewriterConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_request::Code;
    use nereid_wire::inference::ModelOptimizationPolicy;
    use nereid_wire::inference::model_optimization_policy::{ExecutionAccelerators, Graph};

    fn accelerator(name: &str, parameters: &[(&str, &str)]) -> Accelerator {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Accelerator { name: name.to_owned(), parameters }
    }

    fn parse(level: Option<i32>, cpu: Vec<Accelerator>, gpu: Vec<Accelerator>) -> Result<Optimization, Status> {
        let accelerators = ExecutionAccelerators { cpu_execution_accelerator: cpu, gpu_execution_accelerator: gpu };
        let policy = ModelOptimizationPolicy {
            graph: level.map(|level| Graph { level }),
            execution_accelerators: Some(accelerators),
            ..ModelOptimizationPolicy::default()
        };
        Optimization::parse(&ModelConfig { optimization: Some(policy), max_batch_size: 8, ..ModelConfig::default() })
    }

    #[test]
    fn levels_choose_just_in_time_compilation() {
        for (level, expected) in
            [(None, 0), (Some(-1), -1), (Some(0), 0), (Some(1), 1), (Some(2), 2), (Some(7), 2), (Some(-2), 0)]
        {
            let options = parse(level, vec![], vec![]).unwrap().options(true).unwrap();
            assert_eq!(options.optimizer_options.unwrap().global_jit_level, expected, "{level:?}");
            assert!(options.rewrite_options.is_none());
        }
    }

    #[test]
    fn accelerators_become_rewrites_of_the_graph_on_gpus_only() {
        let given = [("precision_mode", "FP16"), ("minimum_segment_size", "5")];
        let optimization =
            parse(None, vec![], vec![accelerator("tensorrt", &given), accelerator("gpu_io", &[])]).unwrap();
        assert!(optimization.has_gpu_accelerators);
        assert!(optimization.options(true).unwrap().rewrite_options.is_none());
        let rewrites = optimization.options(false).unwrap().rewrite_options.unwrap();
        let tensorrt = &rewrites.custom_optimizers[0];
        assert_eq!((tensorrt.name.as_str(), rewrites.optimizers.len()), ("TensorRTOptimizer", 3));
        let value = |key: &str| tensorrt.parameters[key].value.clone().unwrap();
        assert_eq!(value("precision_mode"), AttrChoice::Text(b"FP16".to_vec()));
        let numbers = ["minimum_segment_size", "max_workspace_size_bytes", "max_cached_engines", "max_batch_size"];
        let expected = [5, 1 << 30, 100, 8].map(AttrChoice::Int);
        assert_eq!(numbers.map(value), expected);
        let mixed = parse(None, vec![], vec![accelerator("auto_mixed_precision", &[])]).unwrap();
        let rewrites = mixed.options(false).unwrap().rewrite_options.unwrap();
        assert_eq!((rewrites.auto_mixed_precision, rewrites.meta_optimizer_iterations), (ON, ONE_ITERATION));
    }

    #[test]
    fn wrong_accelerators_are_refused_by_their_texts() {
        let error = parse(None, vec![accelerator("openvino", &[])], vec![]).unwrap_err();
        let text = "CPU Execution Accelerator is not supported in TensorFlow backend";
        assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
        let tensorrt = |key, value| vec![accelerator("tensorrt", &[(key, value)])];
        for (gpu, text) in [
            (tensorrt("precision_mode", "FP8"), "unsupported precision mode 'FP8' is requested"),
            (tensorrt("depth", "1"), "unknown parameter 'depth' is provided for TensorRT Execution Accelerator"),
            (tensorrt("max_cached_engines", "many"), "failed to convert 'many' to integral number"),
            (vec![accelerator("magic", &[])], "unknown Execution Accelerator 'magic' is requested"),
            (
                vec![accelerator("tensorrt", &[]), accelerator("auto_mixed_precision", &[])],
                "Auto mixed precision can not be set with TFTRT optimization",
            ),
        ] {
            let optimization = parse(None, vec![], gpu).unwrap();
            assert!(optimization.options(true).is_ok(), "they do not concern an instance on the CPU");
            let error = optimization.options(false).unwrap_err();
            assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
        }
    }
}
