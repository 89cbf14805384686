//! What models may ask of the repository: the same as clients, once the models of the start have settled.

use std::sync::Arc;

use super::access::Access;
use super::embedded::{LoadParameter, LoadValue, agreed};
use nereid_request::{Control, LoadUnderWay, Replacement, Status};

impl Control for Access {
    fn load(&self, asker: &LoadUnderWay, model: &str, replacement: Replacement) -> Result<(), Status> {
        let config = replacement.config.map(|text| ("config".to_owned(), LoadValue::Text(text)));
        let files = replacement.files.into_iter().map(|(name, contents)| (name, LoadValue::Bytes(contents)));
        let given = config.into_iter().chain(files).map(|(name, value)| LoadParameter { name, value }).collect();
        self.core()?.lifecycle.run_for_model(asker, |lifecycle| lifecycle.load(model, given))
    }

    fn unload(&self, asker: &LoadUnderWay, model: &str, with_dependents: bool) -> Result<(), Status> {
        self.core()?.lifecycle.run_for_model(asker, |lifecycle| lifecycle.unload(model, with_dependents))
    }

    fn is_ready(&self, model: &str, version: Option<i64>) -> Result<bool, Status> {
        self.core()?;
        match self.model(model, version) {
            Ok(model) => agreed(&[Arc::clone(&model.checks)], false),
            // While the server ends nobody is asked.
            Err(status) if self.lifecycle()?.is_stopping() => Err(status),
            Err(_) => Ok(false),
        }
    }
}
