//! Checks that a normalised configuration can be served: the rows of contract/model_config.md section 6, letter for
//! letter.
//!
//! Three moments: when the file is polled, before any backend is touched; when the model is loaded, after its backend
//! completed the configuration; and, for an ensemble, when the models of its steps are known. For the server the first
//! error counts, as it does in Triton; a check of a repository lists all of them, each with its field.

use super::{Error, SupportedGpus};
use nereid_wire::inference::ModelConfig;

mod data_files;
mod ensemble;
mod ensemble_parts;
mod findings;
mod instances;
mod io;
mod metrics;
mod platform;
mod rate_limiter;
mod scheduling;
mod sequence;
mod state;

pub use data_files::data_files;
pub use ensemble_parts::{Flow, StepModel, ensemble_cycle, ensemble_parts};
pub use findings::{Finding, Findings};
pub use rate_limiter::{ResourceLimit, limit, rate_limits};

/// The checks before a backend is touched.
///
/// `directory_name` is the model's directory; `strict` (no auto-completion) has inputs and outputs checked now, because
/// nothing will fill them in.
pub fn at_poll(config: &ModelConfig, directory_name: &str, strict: bool) -> Result<(), Error> {
    findings_at_poll(config, directory_name, strict).first()
}

/// The checks of the configuration alone, after the backend's completion and after the instance groups are resolved, on
/// a host with these GPUs. [`data_files`] checks the files that it names.
pub fn at_load(config: &ModelConfig, gpus: &SupportedGpus) -> Result<(), Error> {
    findings_at_load(config, gpus).first()
}

/// All that [`at_poll`] would refuse, in its order.
pub fn findings_at_poll(config: &ModelConfig, directory_name: &str, strict: bool) -> Findings {
    let mut findings = Findings::default();
    general(config, &mut findings);
    if strict {
        io::check(config, &mut findings);
    }
    if config.name != directory_name {
        let name = &config.name;
        let message = format!(
            "unexpected directory name '{directory_name}' for model '{name}', directory name must equal model name"
        );
        findings.invalid("name", message);
    }
    findings
}

/// All that [`at_load`] would refuse, in its order, on a host with these GPUs.
pub fn findings_at_load(config: &ModelConfig, gpus: &SupportedGpus) -> Findings {
    let mut findings = Findings::default();
    general(config, &mut findings);
    io::check(config, &mut findings);
    instances::check(config, gpus, &mut findings);
    state::check(config, &mut findings);
    if let Err(error) = super::warmup::check(config) {
        findings.push("model_warmup", error);
    }
    findings
}

fn general(config: &ModelConfig, findings: &mut Findings) {
    if config.name.is_empty() {
        findings.invalid("name", "model configuration must specify 'name'");
    }
    platform::check(config, findings);
    if config.max_batch_size < 0 {
        let message = format!("'max_batch_size' must be non-negative value for {}", config.name);
        findings.invalid("max_batch_size", message);
    }
    scheduling::check(config, findings);
    ensemble::check(config, findings);
    metrics::check(config, findings);
}

#[cfg(test)]
mod tests;
