//! Shared by the crate's tests: the library, configurations, and models from the fixtures.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::RUNTIME;
use super::api::{Runtime, load};
use nereid_backend::runtime_search::Surroundings;
use nereid_backend::{ModelContext, fixtures};
use nereid_request::DataType;
use nereid_test_support::large_runtimes::{is_large_runtime_wanted, tensorflow};
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_sequence_batching::control::Kind;
use nereid_wire::inference::model_sequence_batching::{Control, ControlInput, State};
use nereid_wire::inference::{ModelConfig, ModelInput, ModelOutput, ModelSequenceBatching};

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/tensorflow")
}

/// TensorFlow, or `None` after a note that the test did not run.
pub fn runtime() -> Option<&'static Runtime> {
    static FOUND: OnceLock<Option<Surroundings>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        if !is_large_runtime_wanted("tensorflow") {
            return None;
        }
        let mut surroundings = Surroundings::of_process(&RUNTIME, None);
        if surroundings.candidate(&RUNTIME).is_err() {
            surroundings.library_setting = tensorflow();
        }
        Some(surroundings)
    });
    Some(load(found.as_ref()?).expect("TensorFlow is wanted"))
}

/// A file of the fixtures as model `m`: `strings.savedmodel`, `add_sub.graphdef`.
pub fn named(file: &str) -> ModelConfig {
    let platform = if file.ends_with(".graphdef") { "tensorflow_graphdef" } else { "tensorflow_savedmodel" };
    ModelConfig {
        name: "m".to_owned(),
        platform: platform.to_owned(),
        default_model_filename: file.to_owned(),
        ..ModelConfig::default()
    }
}

pub fn context(config: ModelConfig) -> ModelContext {
    fixtures::context("m", folder(), config)
}

/// The context of a SavedModel with these parameters.
pub fn parameters(given: &[(&str, &str)]) -> ModelContext {
    let mut context = fixtures::with_parameters(folder(), given);
    context.config.platform = "tensorflow_savedmodel".to_owned();
    context
}

pub fn input(name: &str, datatype: DataType, dims: &[i64]) -> ModelInput {
    ModelInput { name: name.to_owned(), data_type: datatype as i32, dims: dims.to_vec(), ..ModelInput::default() }
}

pub fn output(name: &str, datatype: DataType, dims: &[i64]) -> ModelOutput {
    ModelOutput { name: name.to_owned(), data_type: datatype as i32, dims: dims.to_vec(), ..ModelOutput::default() }
}

/// A sequence batcher with controls of INT32, and with states of INT32 `[1]` by the names of input and output.
pub fn sequence(controls: &[&str], states: &[(&str, &str)]) -> SchedulingChoice {
    let kinds = [Kind::ControlSequenceStart, Kind::ControlSequenceReady, Kind::ControlSequenceEnd];
    let control_input = controls.iter().zip(kinds.into_iter().cycle()).map(|(name, kind)| {
        let control = Control { kind: kind.into(), int32_false_true: vec![0, 1], ..Control::default() };
        ControlInput { name: (*name).to_owned(), control: vec![control] }
    });
    let state = states.iter().map(|(input, output)| State {
        input_name: (*input).to_owned(),
        output_name: (*output).to_owned(),
        data_type: DataType::Int32 as i32,
        dims: vec![1],
        ..State::default()
    });
    SchedulingChoice::SequenceBatching(ModelSequenceBatching {
        control_input: control_input.collect(),
        state: state.collect(),
        ..ModelSequenceBatching::default()
    })
}
