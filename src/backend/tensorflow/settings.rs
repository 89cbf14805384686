//! The settings of `--backend-config=tensorflow` and of a model, parsed once (contract/frameworks.md sections 0 and 5).

use super::optimization::Optimization;
use nereid_backend::ModelContext;
use nereid_backend::parameters::{parse_boolean, parse_integer};
use nereid_request::Status;

/// The highest accepted thread count: far above any host's, far below the library's limits.
const THREADS_MAX: i32 = 4096;

/// Settings of the backend, which hold for all its models.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BackendSettings {
    pub default_max_batch_size: i32,
    pub allows_soft_placement: bool,
    /// The share of a GPU's memory that the library takes at once; 0: as it needs more.
    pub gpu_memory_fraction: f64,
}

impl BackendSettings {
    pub fn parse(context: &ModelContext) -> Result<BackendSettings, Status> {
        let fraction = context.setting("gpu-memory-fraction").map_or(Ok(0.0), |given| {
            let number = given.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
            number.ok_or_else(|| Status::invalid(format!("failed to convert '{given}' to floating point number")))
        })?;
        Ok(BackendSettings {
            default_max_batch_size: context.setting("default-max-batch-size").map_or(Ok(4), parse_integer)?,
            allows_soft_placement: context.setting("allow-soft-placement").map_or(Ok(true), parse_boolean)?,
            gpu_memory_fraction: fraction,
        })
    }
}

/// The form of a model's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    SavedModel,
    GraphDef,
}

impl Format {
    fn of(context: &ModelContext) -> Result<Format, Status> {
        match context.config.platform.as_str() {
            "tensorflow_savedmodel" => Ok(Format::SavedModel),
            "tensorflow_graphdef" => Ok(Format::GraphDef),
            other => {
                let name = &context.name;
                Err(Status::invalid(format!("platform {other} not supported for TensorFlow model '{name}'")))
            }
        }
    }

    pub fn default_file(self) -> &'static str {
        match self {
            Format::SavedModel => "model.savedmodel",
            Format::GraphDef => "model.graphdef",
        }
    }
}

/// Settings of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSettings {
    pub format: Format,
    /// Instances of a session.
    pub session_share_count: usize,
    /// Threads within an operation and between operations; 0: the library's default.
    pub intra_op_threads: i32,
    pub inter_op_threads: i32,
    pub has_own_threads: bool,
    pub graph_tag: Option<String>,
    pub signature: Option<String>,
    pub init_ops_file: Option<String>,
    pub operation_libraries: Vec<String>,
    pub optimization: Optimization,
}

impl ModelSettings {
    pub fn parse(context: &ModelContext) -> Result<ModelSettings, Status> {
        let name = &context.name;
        let refuse = |key: &str, what: &str| {
            Status::invalid(format!("parameter '{key}' must be {what} number for TensorFlow model '{name}'"))
        };
        let format = Format::of(context)?;
        let share_count = context.parameter("MAX_SESSION_SHARE_COUNT").map_or(Ok(1), parse_integer)?;
        let session_share_count = usize::try_from(share_count).ok().filter(|count| *count > 0);
        let threads = |key: &str| match context.parameter(key).map_or(Ok(0), parse_integer)? {
            ..0 => Err(refuse(key, "non-negative")),
            count => Ok(count.min(THREADS_MAX)),
        };
        // Without a count the library would start as many threads as the host has cores, those of I/O shards included.
        let workers = i32::try_from(context.worker_cpu_count).unwrap_or(THREADS_MAX).min(THREADS_MAX);
        let sized = |count: i32| if count == 0 { workers } else { count };
        let text = |key: &str| context.parameter(key).filter(|text| !text.is_empty()).map(str::to_owned);
        let operations = context.config.model_operations.as_ref();
        Ok(ModelSettings {
            format,
            session_share_count: session_share_count.ok_or_else(|| refuse("MAX_SESSION_SHARE_COUNT", "positive"))?,
            intra_op_threads: sized(threads("TF_NUM_INTRA_THREADS")?),
            inter_op_threads: sized(threads("TF_NUM_INTER_THREADS")?),
            has_own_threads: context.parameter("TF_USE_PER_SESSION_THREADS").map_or(Ok(false), parse_boolean)?,
            graph_tag: text("TF_GRAPH_TAG"),
            signature: text("TF_SIGNATURE_DEF"),
            init_ops_file: text("TF_INIT_OPS_FILE"),
            operation_libraries: operations.map(|given| given.op_library_filename.clone()).unwrap_or_default(),
            optimization: Optimization::parse(&context.config)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::parameters;
    use nereid_request::Code;

    #[test]
    fn parameters_of_a_model_are_read() {
        let mut context = parameters(&[
            ("MAX_SESSION_SHARE_COUNT", "3"),
            ("TF_NUM_INTRA_THREADS", "2"),
            ("TF_USE_PER_SESSION_THREADS", "On"),
            ("TF_GRAPH_TAG", "mine"),
            ("TF_SIGNATURE_DEF", ""),
            ("TF_INIT_OPS_FILE", "init.json"),
            ("unrelated", "x"),
        ]);
        context.worker_cpu_count = 5;
        let settings = ModelSettings::parse(&context).unwrap();
        assert_eq!((settings.format, settings.session_share_count), (Format::SavedModel, 3));
        assert_eq!((settings.intra_op_threads, settings.inter_op_threads), (2, 5), "what is not given is the budget");
        assert!(settings.has_own_threads);
        assert_eq!((settings.graph_tag.as_deref(), settings.signature), (Some("mine"), None));
        assert_eq!(settings.init_ops_file.as_deref(), Some("init.json"));
        context.worker_cpu_count = 0;
        context.config.platform = "tensorflow_graphdef".to_owned();
        let settings = ModelSettings::parse(&context).unwrap();
        assert_eq!((settings.format, settings.inter_op_threads), (Format::GraphDef, 0));
    }

    #[test]
    fn wrong_values_are_refused_by_their_texts() {
        for (key, value, text) in [
            (
                "MAX_SESSION_SHARE_COUNT",
                "0",
                "parameter 'MAX_SESSION_SHARE_COUNT' must be positive number for TensorFlow model 'm'",
            ),
            ("MAX_SESSION_SHARE_COUNT", "x", "failed to convert 'x' to integral number"),
            (
                "TF_NUM_INTRA_THREADS",
                "-1",
                "parameter 'TF_NUM_INTRA_THREADS' must be non-negative number for TensorFlow model 'm'",
            ),
            (
                "TF_NUM_INTER_THREADS",
                "-3",
                "parameter 'TF_NUM_INTER_THREADS' must be non-negative number for TensorFlow model 'm'",
            ),
            ("TF_USE_PER_SESSION_THREADS", "maybe", "failed to convert 'maybe' to boolean"),
        ] {
            let error = ModelSettings::parse(&parameters(&[(key, value)])).unwrap_err();
            assert_eq!((error.code, &*error.message), (Code::InvalidArg, text));
        }
        let mut other = parameters(&[]);
        other.config.platform = "tensorflow_lite".to_owned();
        let error = ModelSettings::parse(&other).unwrap_err();
        assert_eq!(
            (error.code, &*error.message),
            (Code::InvalidArg, "platform tensorflow_lite not supported for TensorFlow model 'm'",)
        );
    }

    #[test]
    fn settings_of_the_backend_count_the_last_value() {
        let mut context = parameters(&[]);
        let settings = BackendSettings::parse(&context).unwrap();
        let expected =
            BackendSettings { default_max_batch_size: 4, allows_soft_placement: true, gpu_memory_fraction: 0.0 };
        assert_eq!(settings, expected);
        let given = [
            ("default-max-batch-size", "8"),
            ("allow-soft-placement", "false"),
            ("gpu-memory-fraction", "0.5"),
            ("default-max-batch-size", "16"),
            ("version", "2"),
        ];
        context.settings = given.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let settings = BackendSettings::parse(&context).unwrap();
        let expected =
            BackendSettings { default_max_batch_size: 16, allows_soft_placement: false, gpu_memory_fraction: 0.5 };
        assert_eq!(settings, expected);
        for (key, value) in
            [("gpu-memory-fraction", "half"), ("allow-soft-placement", "yes"), ("gpu-memory-fraction", "-1")]
        {
            context.settings = vec![(key.to_owned(), value.to_owned())];
            let error = BackendSettings::parse(&context).unwrap_err();
            assert!(error.message.starts_with(&format!("failed to convert '{value}' to ")), "{}", error.message);
        }
    }
}
