//! Models written in Python: `model.py` files run by worker processes, one for each instance (DESIGN, decision 14).
//!
//! ```text
//! instance ─► batch ─► link ═► worker (nereid_python, model.py)
//!                      link ◄═ results, responses of senders, questions
//! instance ◄─ answers ◄─┘  └─► desk ─► senders, calls, services
//! ```

#![allow(unsafe_code)]

mod answers;
mod backoff;
mod batch;
mod calls;
mod desk;
mod health;
mod inbound;
mod instance;
mod link;
mod marshal;
mod message;
mod model;
mod open;
mod outbound;
mod post;
mod process;
mod program;
mod senders;
mod services;
mod tensors;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;

use super::{Attributes, Backend, Model, ModelContext};
use crate::model_config::normalize::PreferredGroup;
use crate::request::Status;
use crate::wire::inference::model_instance_group::Kind;
use model::PythonModel;

/// `python`, or a backend that is itself written in Python.
#[derive(Debug, Default)]
pub struct PythonBackend {
    /// The directory of a Python-based backend.
    base: Option<PathBuf>,
}

impl PythonBackend {
    pub fn new(base: Option<PathBuf>) -> PythonBackend {
        PythonBackend { base }
    }
}

impl Backend for PythonBackend {
    fn name(&self) -> &str {
        "python"
    }

    fn attributes(&self) -> Attributes {
        Attributes {
            preferred_groups: vec![PreferredGroup::new(Kind::Cpu, 1)],
            parallel_instance_loading: true,
            ..Attributes::default()
        }
    }

    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        Ok(Arc::new(PythonModel::open(context, self.base.clone())?))
    }
}
