//! The completion of a configuration by its backend, the only step that opens a model.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{BackendLocation, Inspection, Inspector, no_configuration};
use crate::native_backends::NATIVE_NAMES;
use nereid_backend::plugin::Located;
use nereid_backend::{Attributes, Backend};
use nereid_model_config::layout;
use nereid_model_config::support;
use nereid_model_config::validate::Findings;
use nereid_request::Status;
use nereid_wire::inference::ModelConfig;

impl Inspector<'_> {
    /// Opens the highest version that would be served, and continues with the configuration as its backend completes
    /// it. Does nothing if there is a problem already.
    pub fn complete(&self, seen: &mut Inspection) {
        let Some(version) = seen.chosen.last().copied().filter(|_| seen.would_load()) else { return };
        if seen.backend == BackendLocation::NotNeeded {
            return;
        }
        // A panic of the backend is a problem of the model and must not end the program.
        let opened = catch_unwind(AssertUnwindSafe(|| self.open(seen, version)));
        let panicked = Status::internal("the backend panicked while it loaded the model");
        match opened.unwrap_or(Err(panicked)) {
            Ok((completed, attributes)) => {
                seen.stages.completed = completed;
                self.resolve(seen, Findings::default(), attributes, false);
            }
            Err(status) => {
                seen.spec = None;
                seen.refuse_status(&status);
            }
        }
    }

    fn open(&self, seen: &Inspection, version: i64) -> Result<(ModelConfig, Attributes), Status> {
        let config = &seen.stages.normalized;
        let backend: Arc<dyn Backend> = match self.native(config) {
            Some(native) => native,
            None => {
                let directory = layout::version_dir(&seen.directory, version);
                let found =
                    self.plugins.locate(&config.backend, &config.runtime, &seen.directory, &directory, &config.name)?;
                match found {
                    Located::Library { directory, file } => {
                        let settings = (self.backend_settings)(&config.backend);
                        self.plugins.loader().load(&config.backend, &directory, &file, &settings)?
                    }
                    Located::Script { directory } => self.backends.python_based(directory),
                }
            }
        };
        let context = self.context(seen, version, config.clone(), backend.name());
        let model = backend.create_model(Arc::new(context))?;
        let Some(completed) = model.completed_config() else {
            return match seen.has_config {
                true => Ok((config.clone(), backend.attributes())),
                false => Err(no_configuration(&seen.name).into()),
            };
        };
        support::check(&nereid_model_config::to_dynamic(&completed)?, None, |backend| NATIVE_NAMES.contains(&backend))
            .map_err(|error| Status::unsupported(format!("the backend completed the configuration: {error}")))?;
        Ok((completed, backend.attributes()))
    }
}
