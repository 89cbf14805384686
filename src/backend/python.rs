//! Models written in Python: `model.py` files run by worker processes, one for each instance
//! (docs/design.md, decision 14).
//!
//! ```text
//! instance ─► batch ─► link ═► worker (nereid_python, model.py)
//!                      link ◄═ results, responses of senders, questions
//! instance ◄─ answers ◄─┘  └─► dispatch ─► senders, calls, services
//! ```
//!
//! The way a model runs is decided when it is opened: `settings`, `layout` (which file), `interpreter` (which Python,
//! examined by `probe`) and `environment` (the model's own environment, unpacked by `archive`).

mod answers;
mod archive;
mod backoff;
pub(crate) mod based;
mod batch;
mod calls;
mod dispatch;
mod environment;
mod exported_tensors;
mod fence;
#[cfg(test)]
mod fixtures;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod health;
pub mod helper_program;
mod host;
#[cfg(test)]
mod hostile;
mod imported_tensors;
mod inbound;
mod instance;
mod interpreter;
mod layout;
mod link;
mod marshal;
mod message;
mod model;
mod open_requests;
mod outbound;
mod probe;
mod process;
mod program;
mod senders;
mod services;
mod settings;
mod tensors;
mod worker;
mod worker_supervisor;

use std::path::PathBuf;
use std::sync::Arc;

pub use environment::complete_based;
pub use interpreter::{COMPLETE, INSTALL_COMMAND, Origin, Surroundings};
pub use layout::SCRIPT;
pub use probe::{InterpreterInfo, examine_interpreter};
pub use settings::{EXECUTE_TIMEOUT, EXECUTE_TIMEOUT_SECS_MAX, RESTART, WITHOUT_EFFECT};

use self::environment::Environments;
use self::interpreter::Interpreter;
use self::layout::Layout;
use self::model::PythonModel;
use self::settings::Settings;
use super::{Attributes, Backend, Model, ModelContext};
use nereid_model_config::normalize::PreferredGroup;
use nereid_request::Status;
use nereid_wire::inference::model_instance_group::Kind;

/// The backend's name in configurations and in the settings of all Python models.
pub const NAME: &str = "python";

/// `python`, or a backend that is itself written in Python.
#[derive(Debug)]
pub struct PythonBackend {
    /// The directory of a Python-based backend, whose script serves the models.
    base: Option<PathBuf>,
    environments: Arc<Environments>,
}

impl PythonBackend {
    pub fn new(base: Option<PathBuf>) -> PythonBackend {
        PythonBackend { base, environments: Environments::shared() }
    }
}

impl Backend for PythonBackend {
    /// The name also of a backend that is based on it: its settings are those of `python` (contract/python_backend.md
    /// section 1).
    fn name(&self) -> &str {
        NAME
    }

    fn attributes(&self) -> Attributes {
        let preferred_groups = vec![PreferredGroup::new(Kind::Gpu, 1), PreferredGroup::new(Kind::Cpu, 1)];
        Attributes { preferred_groups, parallel_instance_loading: true, ..Attributes::default() }
    }

    fn examine(&self, context: &ModelContext) -> Result<(), Status> {
        let settings = Settings::read(context)?;
        Layout::find(context, self.base.as_deref())?;
        Interpreter::examine(context, &settings, self.base.as_deref())
    }

    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        let base = self.base.as_deref();
        let settings = Settings::read(&context)?;
        let layout = Layout::find(&context, base)?;
        let interpreter = Interpreter::find(&context, &settings, base, &self.environments)?;
        Ok(Arc::new(PythonModel::open(context, settings, layout, interpreter)?))
    }
}
