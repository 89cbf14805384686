//! Opening one version of a model: its file, its forest, its instances.

use std::sync::Arc;

use crate::files;
use crate::forest::{Header, forced_postprocessor, predictor, validate};
use crate::instance::FilInstance;
use crate::plan::{Plan, has_shapley_values};
use crate::settings::{Settings, Task};
use crate::shap::Explainer;
use crate::treelite::{Library, Predictor};
use nereid_backend::{Instance, InstanceContext, Model, ModelContext};
use nereid_request::Status;
use nereid_wire::inference::model_instance_group::Kind;

/// What the instances of a model share.
pub struct Forest {
    pub header: Header,
    pub predictor: Predictor,
    /// Threads of one prediction.
    pub thread_count: usize,
    /// Only if the configuration has an output for Shapley values.
    pub explainer: Option<Explainer>,
}

/// A model version.
pub struct FilModel {
    forest: Arc<Forest>,
    task: Task,
}

impl FilModel {
    pub fn open(
        library: &'static Library,
        settings: &Settings,
        context: Arc<ModelContext>,
    ) -> Result<FilModel, Status> {
        let mut handle = files::read(library, &context, settings)?;
        let header = validate(&mut handle)?;
        let explains = has_shapley_values(context.config.output.iter().map(|output| &*output.name));
        let explainer = explains.then(|| Explainer::new(&handle, &header)).transpose()?;
        if let Some(name) = forced_postprocessor(&header, settings.task) {
            handle.set_postprocessor(name)?;
        }
        let predictor = predictor(handle, &header, settings.thread_count)?;
        Ok(FilModel::of(Forest { header, predictor, thread_count: settings.thread_count, explainer }, settings.task))
    }

    pub fn of(forest: Forest, task: Task) -> FilModel {
        FilModel { forest: Arc::new(forest), task }
    }

    pub fn instance(&self, context: InstanceContext) -> Result<FilInstance, Status> {
        if context.kind == Kind::Gpu {
            return Err(Status::unsupported("KIND_GPU cannot be used in CPU-only build"));
        }
        let plan = Plan::new(&context.spec, &self.forest.header, self.task)?;
        Ok(FilInstance::new(context, Arc::clone(&self.forest), plan))
    }
}

impl Model for FilModel {
    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(self.instance(context)?))
    }
}
