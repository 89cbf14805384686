//! The documents of management as text, for those inside the process: the same that clients get over HTTP.

use super::management::{metadata, repository, statistics};
use crate::repository::{IndexRow, ModelMap};
use nereid_memory::{Gather, Pool};
use nereid_model_config::json as config_json;
use nereid_request::Status;

fn text(mut document: Gather) -> String {
    String::from_utf8_lossy(&document.to_vec()).into_owned()
}

/// As `/v2` answers.
pub fn server_metadata(id: &str, pool: &Pool) -> String {
    text(metadata::server_json(id, pool))
}

/// As `/v2/models/<name>` answers; of a version, or of all that are ready.
pub fn model_metadata(models: &ModelMap, name: &str, version: Option<i64>, pool: &Pool) -> Result<String, Status> {
    Ok(text(metadata::ModelFacts::of(models, name.as_bytes(), version)?.to_json(pool)))
}

/// As `/v2/models/<name>/config` answers; the format is that of `config_version`.
pub fn model_config(
    models: &ModelMap,
    name: &str,
    version: Option<i64>,
    config_version: u32,
) -> Result<String, Status> {
    let model = models.lookup(name.as_bytes(), version)?;
    Ok(config_json::write(&model.spec.config, config_version)?)
}

/// As `/v2/models/<name>/stats` answers, or without a name `/v2/models/stats`.
pub fn model_statistics(models: &ModelMap, name: &str, version: Option<i64>, pool: &Pool) -> Result<String, Status> {
    Ok(text(statistics::to_json(&models.statistics_of(name.as_bytes(), version)?, pool)))
}

/// As `/v2/repository/index` answers.
pub fn index(rows: &[IndexRow], pool: &Pool) -> String {
    text(repository::index_json(rows, pool))
}
