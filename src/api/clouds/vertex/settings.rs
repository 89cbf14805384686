//! What environment and command line set for the Vertex AI port.

use std::sync::Arc;

use regex::Regex;

use crate::repository::ModelMap;
use nereid_protocol::http1::{Head, Method};
use nereid_request::Status;

/// The settings of the port by environment and command line (contract/cli.md sections 2 and 4).
#[derive(Debug, Clone)]
pub struct Vertex {
    health: Regex,
    predict: Regex,
    /// The model behind the predict route.
    pub(super) default_model: Arc<str>,
}

impl Vertex {
    /// From the variables' and the flag's values, empty where there are none, and the models that serve; Err is why the
    /// port cannot start.
    pub fn read(health: &str, predict: &str, default_model: &str, models: &ModelMap) -> Result<Vertex, Status> {
        let undefined = |name: &str| Status::invalid(format!("{name} is not defined for Vertex AI endpoint"));
        if predict.is_empty() {
            return Err(undefined("API_PREDICT_ROUTE"));
        }
        if health.is_empty() {
            return Err(undefined("AIP_HEALTH_ROUTE"));
        }
        let mut names: Vec<&str> = models.ready().map(|model| &*model.name).collect();
        names.dedup();
        let default_model = match (default_model, names.as_slice()) {
            ("", [only]) => only,
            ("", _) => {
                let text = "Expect the model repository contains only a single model if default model is not specified";
                return Err(Status::invalid(text));
            }
            (given, names) if names.contains(&given) => given,
            (given, _) => return Err(Status::invalid(format!("Expect the default model '{given}' is loaded"))),
        };
        let whole = |name: &str, pattern: &str| {
            let regex = Regex::new(&format!("^(?:{pattern})$"));
            regex.map_err(|error| Status::invalid(format!("{name} is no regular expression: {error}")))
        };
        Ok(Vertex {
            health: whole("AIP_HEALTH_ROUTE", health)?,
            predict: whole("AIP_PREDICT_ROUTE", predict)?,
            default_model: default_model.into(),
        })
    }

    pub(super) fn route(&self, head: &Head) -> Result<Route, u16> {
        let (path, is_get) = (head.path(), head.method() == Method::Get);
        // One pattern may fit both.
        if is_get && self.health.is_match(path) {
            return Ok(Route::Health);
        }
        if self.predict.is_match(path) {
            return Ok(Route::Predict);
        }
        Err(if self.health.is_match(path) { 405 } else { 400 })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Health,
    Predict,
}
