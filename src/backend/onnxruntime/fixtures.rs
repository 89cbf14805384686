//! Shared by the tests that run ONNX Runtime: the library, and models from the fixtures.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::runtime::{Runtime, RuntimeOptions};
use super::{RUNTIME, library};
use crate::runtime_search::Surroundings;
use crate::{ModelContext, fixtures};
use nereid_test_support::python::Python;
use nereid_test_support::skip::skip;
use nereid_wire::inference::ModelConfig;

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/onnx")
}

/// Those of the process; if these lead to no library, that of the environment which the tests of the whole server use.
pub fn surroundings() -> Surroundings {
    static FOUND: OnceLock<Surroundings> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let mut surroundings = Surroundings::of_process(&RUNTIME, None);
        if surroundings.candidate(&RUNTIME).is_err() {
            surroundings.library_setting = Python::get().map(|python| python.onnxruntime());
        }
        surroundings
    });
    found.clone()
}

/// ONNX Runtime, or `None` after a message that the test is skipped.
pub fn runtime() -> Option<&'static Runtime> {
    match library::load(&surroundings(), &RuntimeOptions::default()) {
        Ok(runtime) => Some(runtime),
        Err(missing) => {
            skip(&missing.to_string());
            None
        }
    }
}

/// The context of model `name`, which has its file in the fixtures as version directory.
pub fn context(name: &str, config: ModelConfig) -> ModelContext {
    fixtures::context(name, folder(), config)
}

pub fn with_parameters(parameters: &[(&str, &str)]) -> ModelContext {
    fixtures::with_parameters(folder(), parameters)
}
