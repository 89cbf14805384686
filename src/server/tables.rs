//! What the server logs about itself when it starts (cli.md section 5).

use tracing::info;

use super::options::Options;
use crate::api::{EXTENSIONS, SERVER_VERSION};
use crate::backend::registry::NATIVE_NAMES;
use crate::observe::log::Table;
use crate::repository::{ModelMap, VersionState};

pub fn log_start(options: &Options, models: &ModelMap) {
    let mut backends = Table::new(["Backend", "Path", "Config"]);
    for name in NATIVE_NAMES {
        let settings = options.settings_of(name);
        let config: Vec<String> = settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        backends.push([name, "<built in>", &config.join(" ")]);
    }
    info!(object = %backends, "");
    let mut table = Table::new(["Model", "Version", "Status"]);
    for (id, entry) in models.iter() {
        for (version, state) in &entry.versions {
            let status = match state {
                VersionState::Ready(_) => "READY".to_owned(),
                VersionState::Unavailable(reason) => format!("UNAVAILABLE: {reason}"),
                state => state.name().to_owned(),
            };
            table.push([id.name.clone(), version.to_string(), status]);
        }
        if entry.versions.is_empty() {
            let reason = if entry.reason.is_empty() { "No model version was found" } else { &entry.reason };
            table.push([&id.name, "-", &format!("Not loaded: {reason}")]);
        }
    }
    info!(object = %table, "");
    let mut rows = Table::new(["Option", "Value"]);
    rows.push(["server_id", &options.server_id]);
    rows.push(["server_version", SERVER_VERSION]);
    rows.push(["server_extensions", &EXTENSIONS.join(" ")]);
    for (at, path) in options.model_repositories.iter().enumerate() {
        rows.push([format!("model_repository_path[{at}]"), path.display().to_string()]);
    }
    rows.push(["model_control_mode", "MODE_NONE"]);
    rows.push(["strict_model_config", if options.auto_complete_config { "0" } else { "1" }]);
    rows.push(["strict_readiness", if options.strict_readiness { "1" } else { "0" }]);
    rows.push(["exit_timeout", &options.exit_timeout_secs.to_string()]);
    info!(object = %rows, "");
}
