//! The parameters of a model's configuration (contract/frameworks.md section 4, table of keys).

use std::thread::available_parallelism;

use nereid_backend::ModelContext;
use nereid_request::Status;

/// The format that a model's file is declared to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelType {
    Xgboost,
    XgboostJson,
    XgboostUbj,
    LightGbm,
    TreeliteCheckpoint,
}

impl ModelType {
    /// The file in a version's directory, if the configuration names none.
    pub fn default_file(self) -> &'static str {
        match self {
            ModelType::Xgboost => "xgboost.model",
            ModelType::XgboostJson => "xgboost.json",
            ModelType::XgboostUbj => "xgboost.ubj",
            ModelType::LightGbm => "model.txt",
            ModelType::TreeliteCheckpoint => "checkpoint.tl",
        }
    }

    fn parse(text: &str) -> Result<ModelType, Status> {
        Ok(match text {
            "xgboost" => ModelType::Xgboost,
            "xgboost_json" => ModelType::XgboostJson,
            "xgboost_ubj" => ModelType::XgboostUbj,
            "lightgbm" => ModelType::LightGbm,
            "treelite_checkpoint" => ModelType::TreeliteCheckpoint,
            other => {
                let text = format!("{other} not recognized as a valid serialization format.");
                return Err(Status::unsupported(text));
            }
        })
    }
}

/// What the output of a model is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Task {
    Regression,
    /// The index of a class: of two classes 1 if the probability is above the threshold.
    Class {
        threshold: f32,
    },
    Probabilities,
}

/// How a model is read and what it answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub model_type: ModelType,
    pub task: Task,
    /// Threads of one prediction.
    pub thread_count: usize,
    /// Keys that treelite does not know do not fail the load of an XGBoost file.
    pub allow_unknown_field: bool,
}

const THRESHOLD_DEFAULT: f32 = 0.5;

/// Parameters of instances on GPUs, which have no effect on the CPU.
pub const OF_GPUS: [&str; 3] = ["chunk_size", "layout", "transfer_threshold"];

/// Parameters that Triton's backend does not read any more, and those that replace them.
const REMOVED: [(&str, Option<&str>); 4] = [
    ("algo", Some("layout")),
    ("threads_per_tree", Some("chunk_size")),
    ("storage_type", None),
    ("blocks_per_sm", None),
];

impl Settings {
    /// Values that are accepted without an effect leave a line in the log.
    pub fn parse(context: &ModelContext) -> Result<Settings, Status> {
        let model_type = context.parameter("model_type").map_or(Ok(ModelType::Xgboost), ModelType::parse)?;
        let is_classifier = is_classifier(context)?;
        let predict_proba = boolean(context, "predict_proba")?.unwrap_or(false);
        let threshold = threshold(context)?;
        let task = match (is_classifier, predict_proba) {
            (false, _) => Task::Regression,
            (true, false) => Task::Class { threshold },
            (true, true) => Task::Probabilities,
        };
        let allow_unknown_field = boolean(context, "xgboost_allow_unknown_field")?.unwrap_or(false);
        let thread_count = thread_count(integer(context, "cpu_nthread")?, context.worker_cpu_count);
        mention_unused(context)?;
        Ok(Settings { model_type, task, thread_count, allow_unknown_field })
    }
}

/// `output_class` is the older name of `is_classifier`.
fn is_classifier(context: &ModelContext) -> Result<bool, Status> {
    let old = context.parameter("output_class");
    if old.is_some() {
        tracing::warn!(
            "model '{}': The `output_class` parameter has been removed in 25.09 release. Use `is_classifier` instead.",
            context.name
        );
    }
    let of_old = match old {
        Some("true") => Some(true),
        Some("false") => Some(false),
        _ => None,
    };
    let given = boolean(context, "is_classifier")?.or(of_old);
    given.ok_or_else(|| Status::invalid("Required parameter is_classifier not found in config"))
}

fn threshold(context: &ModelContext) -> Result<f32, Status> {
    let Some(text) = context.parameter("threshold") else { return Ok(THRESHOLD_DEFAULT) };
    let number = text.trim().parse().ok().filter(|number: &f32| number.is_finite());
    number.ok_or_else(|| bad_input("threshold"))
}

/// Threads of one prediction: one, unless the model asks for more, because an instance has a core and treelite's
/// threads wait for each other by spinning (contract/frameworks.md section 11, 6). No more than there are CPUs for
/// workers, and treelite refuses more than the host has.
fn thread_count(asked: Option<i32>, worker_cpu_count: usize) -> usize {
    let on_host = available_parallelism().map_or(1, usize::from);
    let most = if worker_cpu_count == 0 { on_host } else { worker_cpu_count.min(on_host) };
    match asked.map(usize::try_from) {
        None => 1,
        Some(Ok(count)) if count > 0 => count.min(most),
        Some(_) => most,
    }
}

fn mention_unused(context: &ModelContext) -> Result<(), Status> {
    for key in ["chunk_size", "transfer_threshold"] {
        integer(context, key)?;
    }
    for (key, value) in OF_GPUS.iter().filter_map(|key| Some((key, context.parameter(key)?))) {
        tracing::info!("model '{}': parameter {key} '{value}' has no effect on the CPU", context.name);
    }
    if boolean(context, "use_experimental_optimizations")? == Some(true) {
        tracing::warn!(
            "model '{}': the parameter use_experimental_optimizations is deprecated and changes nothing",
            context.name
        );
    }
    for (key, replacement) in REMOVED {
        if context.parameter(key).is_some() {
            let advice = replacement.map(|new| format!(" Use `{new}` instead.")).unwrap_or_default();
            tracing::warn!(
                "model '{}': The `{key}` parameter has been removed in 25.09 release.{advice}",
                context.name
            );
        }
    }
    Ok(())
}

/// Exactly `true` or `false`.
fn boolean(context: &ModelContext, key: &str) -> Result<Option<bool>, Status> {
    match context.parameter(key) {
        None => Ok(None),
        Some("true") => Ok(Some(true)),
        Some("false") => Ok(Some(false)),
        Some(other) => {
            let text = format!("Expected 'true' or 'false' for parameter '{key}', got: '{other}'");
            Err(Status::internal(text))
        }
    }
}

fn integer(context: &ModelContext, key: &str) -> Result<Option<i32>, Status> {
    let number = |text: &str| text.trim().parse().map_err(|_| bad_input(key));
    context.parameter(key).map(number).transpose()
}

fn bad_input(key: &str) -> Status {
    Status::invalid(format!("Bad input for parameter {key}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_backend::fixtures;
    use nereid_request::Code;

    fn parse(parameters: &[(&str, &str)]) -> Result<Settings, Status> {
        Settings::parse(&fixtures::with_parameters(Default::default(), parameters))
    }

    #[test]
    fn a_model_needs_only_is_classifier() {
        let settings = parse(&[("is_classifier", "false")]).unwrap();
        let expected = Settings {
            model_type: ModelType::Xgboost,
            task: Task::Regression,
            thread_count: 1,
            allow_unknown_field: false,
        };
        assert_eq!(settings, expected);
        let task = |more: &[(&str, &str)]| parse(&[&[("is_classifier", "true")], more].concat()).unwrap().task;
        assert_eq!(task(&[]), Task::Class { threshold: 0.5 });
        assert_eq!(task(&[("threshold", " -0.25 ")]), Task::Class { threshold: -0.25 });
        assert_eq!(task(&[("predict_proba", "true")]), Task::Probabilities);
        let regression = parse(&[("is_classifier", "false"), ("predict_proba", "true")]).unwrap();
        assert_eq!(regression.task, Task::Regression);
    }

    #[test]
    fn the_older_name_of_is_classifier_stands_in_for_it() {
        assert_eq!(parse(&[("output_class", "true")]).unwrap().task, Task::Class { threshold: 0.5 });
        assert_eq!(parse(&[("output_class", "false")]).unwrap().task, Task::Regression);
        let both = [("output_class", "true"), ("is_classifier", "false")];
        assert_eq!(parse(&both).unwrap().task, Task::Regression);
        let text = "Required parameter is_classifier not found in config";
        assert_eq!(parse(&[("output_class", "TRUE")]), Err(Status::invalid(text)));
    }

    #[test]
    fn every_format_has_its_file() {
        let files = [
            ("xgboost", "xgboost.model"),
            ("xgboost_json", "xgboost.json"),
            ("xgboost_ubj", "xgboost.ubj"),
            ("lightgbm", "model.txt"),
            ("treelite_checkpoint", "checkpoint.tl"),
        ];
        for (name, file) in files {
            let settings = parse(&[("is_classifier", "false"), ("model_type", name)]).unwrap();
            assert_eq!(settings.model_type.default_file(), file);
        }
    }

    #[test]
    fn wrong_values_are_refused_by_their_texts() {
        let missing = parse(&[]).unwrap_err();
        let text = "Required parameter is_classifier not found in config";
        assert_eq!((missing.code, &*missing.message), (Code::InvalidArg, text));
        let boolean = |key: &str| format!("Expected 'true' or 'false' for parameter '{key}', got: 'True'");
        for key in ["is_classifier", "predict_proba", "xgboost_allow_unknown_field", "use_experimental_optimizations"] {
            let given = [("output_class", "true"), (key, "True")];
            assert_eq!(parse(&given), Err(Status::internal(boolean(key))), "{key}");
        }
        for (key, value) in [
            ("threshold", "NaN"),
            ("threshold", "inf"),
            ("threshold", "1e39"),
            ("threshold", ""),
            ("threshold", "half"),
            ("cpu_nthread", "two"),
            ("chunk_size", "1.5"),
            ("transfer_threshold", "2147483648"),
        ] {
            let given = [("is_classifier", "true"), (key, value)];
            assert_eq!(parse(&given), Err(Status::invalid(format!("Bad input for parameter {key}"))), "{value}");
        }
        let error = parse(&[("is_classifier", "true"), ("model_type", "catboost")]).unwrap_err();
        let text = "catboost not recognized as a valid serialization format.";
        assert_eq!((error.code, &*error.message), (Code::Unsupported, text));
    }

    #[test]
    fn keys_without_an_effect_on_the_host_are_accepted() {
        let given = [
            ("is_classifier", "true"),
            ("chunk_size", "4"),
            ("layout", "sideways"),
            ("transfer_threshold", "0"),
            ("algo", "NAIVE"),
            ("threads_per_tree", "x"),
            ("storage_type", "AUTO"),
            ("blocks_per_sm", "0"),
            ("use_experimental_optimizations", "true"),
            ("anything", "else"),
        ];
        assert!(parse(&given).is_ok());
    }

    #[test]
    fn a_prediction_has_one_thread_unless_the_model_asks_for_more() {
        let on_host = available_parallelism().map_or(1, usize::from);
        assert_eq!((thread_count(None, 8), thread_count(None, 0)), (1, 1));
        assert_eq!((thread_count(Some(1), 8), thread_count(Some(1), 0)), (1, 1));
        assert_eq!(thread_count(Some(-1), 0), on_host);
        assert_eq!(thread_count(Some(0), 1), 1);
        assert_eq!(thread_count(Some(1000), 0), on_host);
        assert_eq!(thread_count(Some(1000), 1), 1);
    }
}
