//! `parameters` of a model (contract/frameworks.md section 1, "Parameters").

use nereid_backend::ModelContext;
use nereid_backend::parameters::{parse_boolean, parse_integer};
use nereid_request::Status;

use crate::torch::Options;

/// How the modules of one model are loaded and run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    pub options: Options,
    /// Instances of one device share a module. `None`: not given.
    pub weight_sharing: Option<bool>,
    /// Of the whole process; `None`: not given, or not above 0.
    pub intra_op_threads: Option<i32>,
    pub inter_op_threads: Option<i32>,
}

impl Settings {
    pub fn parse(context: &ModelContext) -> Result<Settings, Status> {
        let boolean = |key: &str| context.parameter(key).map(parse_boolean).transpose();
        let count = |key: &str| {
            let given = context.parameter(key).map(parse_integer).transpose()?;
            Ok::<_, Status>(given.filter(|count| *count > 0))
        };
        Ok(Settings {
            options: Options {
                is_optimized: !boolean("DISABLE_OPTIMIZED_EXECUTION")?.unwrap_or(false),
                is_inference: boolean("INFERENCE_MODE")?.unwrap_or(true),
                has_cudnn: !boolean("DISABLE_CUDNN")?.unwrap_or(false),
                returns_memory: boolean("ENABLE_CACHE_CLEANING")?.unwrap_or(false),
                tensor_fuser: boolean("ENABLE_TENSOR_FUSER")?,
                jit_profiling: boolean("ENABLE_JIT_PROFILING")?,
                jit_executor: boolean("ENABLE_JIT_EXECUTOR")?,
            },
            weight_sharing: boolean("ENABLE_WEIGHT_SHARING")?,
            intra_op_threads: count("INTRA_OP_THREAD_COUNT")?,
            inter_op_threads: count("INTER_OP_THREAD_COUNT")?,
        })
    }

    /// The lines that Triton's tests look for in the log, in its order.
    pub fn log_lines(&self, model: &str) -> Vec<String> {
        let options = &self.options;
        let line = |what: &str, given: Option<bool>| {
            let state = if given? { "enabled" } else { "disabled" };
            Some(format!("{what} is {state} for model instance '{model}'"))
        };
        [
            line("Optimized execution", Some(options.is_optimized)),
            line("Cache Cleaning", Some(options.returns_memory)),
            line("Inference Mode", Some(options.is_inference)),
            line("cuDNN", Some(options.has_cudnn)),
            line("Weight sharing", self.weight_sharing),
            line("Tensor fuser", options.tensor_fuser),
            line("Jit profiling", options.jit_profiling),
            line("Jit executor", options.jit_executor),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_backend::fixtures::with_parameters;

    fn parsed(parameters: &[(&str, &str)]) -> Result<Settings, Status> {
        Settings::parse(&with_parameters(Default::default(), parameters))
    }

    #[test]
    fn nothing_given_is_inference_mode_with_optimised_execution() {
        let settings = parsed(&[("UNKNOWN", "x")]).unwrap();
        assert!(settings.options.is_optimized && settings.options.is_inference && settings.options.has_cudnn);
        assert_eq!(settings.weight_sharing, None);
        assert_eq!(
            settings.log_lines("m"),
            [
                "Optimized execution is enabled for model instance 'm'",
                "Cache Cleaning is disabled for model instance 'm'",
                "Inference Mode is enabled for model instance 'm'",
                "cuDNN is enabled for model instance 'm'",
            ]
        );
    }

    #[test]
    fn every_parameter_is_read_and_logged() {
        let settings = parsed(&[
            ("DISABLE_OPTIMIZED_EXECUTION", "true"),
            ("ENABLE_CACHE_CLEANING", "1"),
            ("INFERENCE_MODE", "off"),
            ("DISABLE_CUDNN", "TRUE"),
            ("ENABLE_WEIGHT_SHARING", "false"),
            ("ENABLE_TENSOR_FUSER", "on"),
            ("ENABLE_JIT_PROFILING", "0"),
            ("ENABLE_JIT_EXECUTOR", "true"),
            ("INTRA_OP_THREAD_COUNT", "3"),
            ("INTER_OP_THREAD_COUNT", "0"),
        ])
        .unwrap();
        assert_eq!(
            settings.log_lines("m"),
            [
                "Optimized execution is disabled for model instance 'm'",
                "Cache Cleaning is enabled for model instance 'm'",
                "Inference Mode is disabled for model instance 'm'",
                "cuDNN is disabled for model instance 'm'",
                "Weight sharing is disabled for model instance 'm'",
                "Tensor fuser is enabled for model instance 'm'",
                "Jit profiling is disabled for model instance 'm'",
                "Jit executor is enabled for model instance 'm'",
            ]
        );
        assert_eq!((settings.intra_op_threads, settings.inter_op_threads), (Some(3), None));
    }

    #[test]
    fn other_values_are_refused_by_their_texts() {
        let error = parsed(&[("INFERENCE_MODE", "maybe")]).unwrap_err();
        assert_eq!(error, Status::invalid("failed to convert 'maybe' to boolean"));
        let error = parsed(&[("INTRA_OP_THREAD_COUNT", "many")]).unwrap_err();
        assert_eq!(error, Status::invalid("failed to convert 'many' to integral number"));
    }
}
