//! Control of the repository by models: the same as for clients, once the start-up models have settled.

use std::sync::Arc;

use super::access::Access;
use super::embedded::{LoadParameter, LoadValue, agreed};
use nereid_request::{Control, LoadUnderWay, Replacement, Status};

impl Control for Access {
    fn load(&self, load_under_way: &LoadUnderWay, model: &str, replacement: Replacement) -> Result<(), Status> {
        let config = replacement.config.map(|text| ("config".to_owned(), LoadValue::Text(text)));
        let files = replacement.files.into_iter().map(|(name, contents)| (name, LoadValue::Bytes(contents)));
        let given = config.into_iter().chain(files).map(|(name, value)| LoadParameter { name, value }).collect();
        self.core()?.lifecycle.run_for_model(load_under_way, |lifecycle| lifecycle.load(model, given))
    }

    fn unload(&self, load_under_way: &LoadUnderWay, model: &str, with_dependents: bool) -> Result<(), Status> {
        self.core()?.lifecycle.run_for_model(load_under_way, |lifecycle| lifecycle.unload(model, with_dependents))
    }

    fn is_ready(&self, model: &str, version: Option<i64>) -> Result<bool, Status> {
        self.core()?;
        match self.model(model, version) {
            Ok(model) => agreed(&[Arc::clone(&model.checks)], false),
            // While the server ends no instance is queried.
            Err(status) if self.lifecycle()?.is_stopping() => Err(status),
            Err(_) => Ok(false),
        }
    }
}
