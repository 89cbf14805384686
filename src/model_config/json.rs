//! The JSON form of a model configuration: the one served over HTTP and to backends, and the one of load overrides.
//!
//! Protobuf's JSON mapping with two deviations of Triton: original field names, and 64-bit integers as numbers at the
//! paths where clients always found numbers, as strings everywhere else (contract/model_config.md section 3).

use thiserror::Error as ThisError;

use super::{Error, from_dynamic, to_dynamic};
use nereid_wire::inference::ModelConfig;

mod lenient;
mod read;
mod write;

/// Longest override in bytes. A client sends it, and what it grows to in memory is many times its length.
pub const MAX_TEXT_BYTES: usize = 4 << 20;

/// The configuration as it is served. A configuration with only defaults is the empty text.
///
/// `version` is the version of the form; there is only one.
pub fn write(config: &ModelConfig, version: u32) -> Result<String, Error> {
    if version != 1 {
        return Err(Error::invalid(format!(
            "model configuration version {version} not supported, supported versions are: 1"
        )));
    }
    if *config == ModelConfig::default() {
        return Ok(String::new());
    }
    Ok(write::write(&to_dynamic(config)?))
}

/// Reads an override as protobuf's parser does: camelCase and original names, enum values in any case, one value for a
/// list of one, and JSON that is not quite JSON; a field that does not exist is an error.
pub fn read(text: &[u8]) -> Result<ModelConfig, ReadError> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(ReadError {
            path: String::new(),
            message: format!("text of {} bytes exceeds the maximum of {MAX_TEXT_BYTES} bytes", text.len()),
        });
    }
    let message = read::read(text, super::descriptor())?;
    from_dynamic(&message).map_err(|error| ReadError { path: String::new(), message: error.to_string() })
}

/// Why a JSON text is not a configuration, and at which path.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[error("{path}{}{message}", if path.is_empty() { "" } else { ": " })]
pub struct ReadError {
    pub path: String,
    pub message: String,
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Error {
        Error::invalid(format!("Invalid config override: {error}"))
    }
}

#[cfg(test)]
mod tests;
