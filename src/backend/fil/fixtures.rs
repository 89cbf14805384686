//! Shared by the tests: the library of the test environment, and models that the real packages made in it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::instance::FilInstance;
use crate::model::{FilModel, Forest};
use crate::settings::Settings;
use crate::treelite::{Library, Predictor, load};
use crate::{files, forest};
use nereid_backend::fixtures::Answers;
use nereid_backend::runtime_search::Surroundings;
use nereid_backend::{InstanceContext, ModelContext, fixtures};
use nereid_model_config::ModelSpec;
use nereid_request::Status;
use nereid_test_support::python::Python;
use nereid_test_support::tree_models;
use nereid_wire::inference::model_instance_group::Kind;
use nereid_wire::inference::{DataType, ModelConfig, ModelInput, ModelOutput, ModelParameter};

/// The environment with treelite, XGBoost, LightGBM and scikit-learn; `None` after a message that the test is skipped.
pub fn python() -> Option<Python> {
    tree_models::python()
}

/// treelite of that environment.
pub fn library() -> Option<&'static Library> {
    let path = python()?.packages().join("treelite/lib");
    let surroundings = Surroundings { library_setting: Some(path), ..Surroundings::default() };
    Some(load(&surroundings).unwrap_or_else(|missing| panic!("{missing}")))
}

/// The folder of the models that tests/python/tree_models.py makes, with what the packages themselves predict.
pub fn models() -> Option<&'static Path> {
    static MODELS: OnceLock<Option<PathBuf>> = OnceLock::new();
    MODELS.get_or_init(tree_models::made).as_deref()
}

/// Checkpoints of an older treelite, which the test environment cannot make.
pub fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/fil")
}

/// What the packages predict: `expected.json`.
pub struct Expected(serde_json::Value);

pub fn expected() -> Option<Expected> {
    let text = std::fs::read(models()?.join("expected.json")).unwrap();
    Some(Expected(serde_json::from_slice(&text).unwrap()))
}

impl Expected {
    #[expect(clippy::cast_possible_truncation, reason = "the packages compute some in double precision")]
    pub fn values(&self, name: &str, key: &str) -> Vec<f32> {
        let values = self.0[name][key].as_array().unwrap_or_else(|| panic!("no {key} of {name}"));
        values.iter().map(|value| value.as_f64().map_or(f32::NAN, |value| value as f32)).collect()
    }
}

/// A configuration under construction: batches of up to 64, four features, one value for each row.
#[derive(Clone)]
pub struct Asked {
    folder: Option<PathBuf>,
    config: ModelConfig,
}

impl Asked {
    pub fn new(file: &str, model_type: &str, is_classifier: &str) -> Asked {
        let config = ModelConfig {
            name: "m".to_owned(),
            max_batch_size: 64,
            default_model_filename: file.to_owned(),
            input: vec![ModelInput {
                name: "input__0".to_owned(),
                data_type: DataType::TypeFp32.into(),
                dims: vec![4],
                ..ModelInput::default()
            }],
            output: vec![output("output__0", &[1])],
            ..ModelConfig::default()
        };
        let asked = Asked { folder: None, config };
        asked.parameter("model_type", model_type).parameter("is_classifier", is_classifier)
    }

    pub fn in_folder(mut self, folder: PathBuf) -> Asked {
        self.folder = Some(folder);
        self
    }

    pub fn parameter(mut self, key: &str, value: &str) -> Asked {
        let value = ModelParameter { string_value: value.to_owned() };
        self.config.parameters.insert(key.to_owned(), value);
        self
    }

    pub fn batch(mut self, max_batch_size: i32) -> Asked {
        self.config.max_batch_size = max_batch_size;
        self
    }

    pub fn input(mut self, dims: &[i64]) -> Asked {
        self.config.input[0].dims = dims.to_vec();
        self
    }

    pub fn input_type(mut self, data_type: DataType) -> Asked {
        self.config.input[0].data_type = data_type.into();
        self
    }

    pub fn output(mut self, dims: &[i64]) -> Asked {
        self.config.output[0].dims = dims.to_vec();
        self
    }

    pub fn shapley_values(mut self, dims: &[i64]) -> Asked {
        self.config.output.push(output("treeshap_output", dims));
        self
    }

    pub fn config(&mut self) -> &mut ModelConfig {
        &mut self.config
    }

    /// The model with an instance's context; `None` after a message that the test is skipped.
    pub fn try_open(self) -> Option<Result<Model, Status>> {
        let (library, models) = (library()?, models()?);
        let folder = self.folder.unwrap_or_else(|| models.to_path_buf());
        let context = Arc::new(fixtures::context("m", folder, self.config.clone()));
        Some(Model::open(library, context, self.config))
    }

    pub fn open(self) -> Option<Model> {
        let file = self.config.default_model_filename.clone();
        self.try_open().map(|model| model.unwrap_or_else(|status| panic!("{file}: {status}")))
    }
}

fn output(name: &str, dims: &[i64]) -> ModelOutput {
    ModelOutput {
        name: name.to_owned(),
        data_type: DataType::TypeFp32.into(),
        dims: dims.to_vec(),
        ..ModelOutput::default()
    }
}

/// An opened model, and who receives the responses of its instances.
pub struct Model {
    model: FilModel,
    pub context: InstanceContext,
    pub answers: Arc<Answers>,
}

impl Model {
    fn open(library: &'static Library, context: Arc<ModelContext>, config: ModelConfig) -> Result<Model, Status> {
        let settings = Settings::parse(&context)?;
        let model = FilModel::open(library, &settings, Arc::clone(&context))?;
        let spec = Arc::new(ModelSpec::new(config)?);
        let context = InstanceContext::new("m_0", spec, context);
        model.instance(context.clone())?;
        Ok(Model { model, context, answers: Arc::default() })
    }

    pub fn instance(&self) -> FilInstance {
        self.model.instance(self.context.clone()).unwrap()
    }

    pub fn on_gpu(&self) -> Result<FilInstance, Status> {
        self.model.instance(InstanceContext { kind: Kind::Gpu, ..self.context.clone() })
    }

    /// From now on treelite refuses to predict.
    pub fn break_predictions(&mut self) {
        let settings = Settings::parse(&self.context.model).unwrap();
        let mut handle = files::read(library().unwrap(), &self.context.model, &settings).unwrap();
        let header = forest::validate(&mut handle).unwrap();
        let predictor = Predictor::new(handle, header.features, header.classes, 1_000_000).unwrap();
        self.model = FilModel::of(Forest { header, predictor, thread_count: 1, explainer: None }, settings.task);
    }
}
