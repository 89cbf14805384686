//! Is a normalised configuration one that can be served? The rows of spec/model_config.md section 6, letter for letter.
//!
//! Two moments: when the file is polled, before any backend is touched, and when the model is loaded, after its backend
//! completed the configuration. The first error counts.

use super::Error;
use crate::wire::inference::ModelConfig;

mod ensemble;
mod instances;
mod io;
mod metrics;
mod platform;
mod scheduling;
mod sequence;

/// What can be known before a backend is touched.
///
/// `directory_name` is the model's directory; `strict` (no auto-completion) has inputs and outputs checked now, because
/// nothing will fill them in.
pub fn at_poll(config: &ModelConfig, directory_name: &str, strict: bool) -> Result<(), Error> {
    general(config)?;
    if strict {
        io::check(config)?;
    }
    if config.name != directory_name {
        return Err(Error::invalid(format!(
            "unexpected directory name '{directory_name}' for model '{}', directory name must equal model name",
            config.name
        )));
    }
    Ok(())
}

/// Everything, after the backend's completion and after the instance groups are resolved.
pub fn at_load(config: &ModelConfig) -> Result<(), Error> {
    general(config)?;
    io::check(config)?;
    instances::check(config)?;
    super::warmup::check(config)
}

fn general(config: &ModelConfig) -> Result<(), Error> {
    if config.name.is_empty() {
        return Err(Error::invalid("model configuration must specify 'name'"));
    }
    platform::check(config)?;
    if config.max_batch_size < 0 {
        return Err(Error::invalid(format!("'max_batch_size' must be non-negative value for {}", config.name)));
    }
    scheduling::check(config)?;
    ensemble::check(config)?;
    metrics::check(config)
}

#[cfg(test)]
mod tests;
