//! Liveness and readiness (schedulers.md section 10, "Readiness").

use super::{Api, Facts, ServerState};
use crate::repository::ModelMap;
use crate::request::Status;

impl Facts {
    /// Initialised; while exiting an error.
    pub fn is_live(&self) -> Result<bool, Status> {
        match self.state() {
            ServerState::Exiting => Err(Status::unavailable("Server exiting")),
            state => Ok(state == ServerState::Ready),
        }
    }

    /// Ready for requests, and with strict readiness complete; while exiting an error.
    pub fn is_ready(&self, models: &ModelMap) -> Result<bool, Status> {
        Ok(self.is_live()? && (!self.settings.strict_readiness || models.is_complete()))
    }

    /// What management answers while the server is exiting.
    pub fn check_not_exiting(&self) -> Result<(), Status> {
        match self.state() {
            ServerState::Exiting => Err(Status::unavailable("Server not ready")),
            ServerState::Starting | ServerState::Ready => Ok(()),
        }
    }
}

impl Api {
    pub(super) fn is_live(&self) -> Result<bool, Status> {
        self.facts.is_live()
    }

    pub(super) fn is_ready(&self) -> Result<bool, Status> {
        self.facts.is_ready(&self.models)
    }

    pub(super) fn check_not_exiting(&self) -> Result<(), Status> {
        self.facts.check_not_exiting()
    }

    /// The version is ready; a lookup that fails is an error.
    pub(super) fn is_model_ready(&self, model: &[u8], version: &[u8]) -> Result<bool, Status> {
        self.check_not_exiting()?;
        self.find(model, version).map(|_| true)
    }
}
