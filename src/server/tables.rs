//! The tables that the server logs about itself when it starts (contract/cli.md section 5).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use tracing::info;

use super::options::{ModelControl, Options};
use crate::api::{EXTENSIONS, SERVER_VERSION};
use crate::native_backends::NATIVE_NAMES;
use crate::repository::{ModelMap, VersionState};
use nereid_backend::{plugin, python};
use nereid_gpu::Gpus;
use nereid_net::Keepalive;
use nereid_observe::log::{Table, verbose};

/// `agents`: the names of the open agents, and where their code lies.
pub fn log_start(options: &Options, gpus: &Gpus, models: &ModelMap, agents: &[(String, String)]) {
    let mut table = Table::new(["Repository Agent", "Path"]);
    agents.iter().for_each(|(name, path)| table.push([name, path]));
    info!(object = %table, "");
    info!(object = %backends(options, models), "");
    info!(object = %versions(models), "");
    info!(object = %settings(options, &gpus.ids()), "");
    if options.grpc.allowed {
        verbose!(1, object = %keepalive(&options.grpc_keepalive), "");
    }
}

fn keepalive(options: &Keepalive) -> Table {
    let mut table = Table::new(["GRPC KeepAlive Option", "Value"]);
    let mut row = |name: &str, value: i32| table.push([name, &value.to_string()]);
    row("keepalive_time_ms", options.time_ms);
    row("keepalive_timeout_ms", options.timeout_ms);
    row("keepalive_permit_without_calls", options.without_calls.into());
    row("http2_max_pings_without_data", options.pings_without_data_max);
    row("http2_min_recv_ping_interval_without_data_ms", options.ping_interval_min_ms);
    row("http2_max_ping_strikes", options.ping_strikes_max);
    if options.age_max_ms > 0 {
        row("max_connection_age_ms", options.age_max_ms);
    }
    if options.age_grace_ms > 0 {
        row("max_connection_age_grace_ms", options.age_grace_ms);
    }
    table
}

/// The built-in backends, and those that ready models use.
fn backends(options: &Options, models: &ModelMap) -> Table {
    let mut paths: BTreeMap<&str, String> = NATIVE_NAMES.map(|name| (name, "<built in>".to_owned())).into();
    for model in models.ready() {
        let config = &model.spec.config;
        if !config.backend.is_empty() && !paths.contains_key(config.backend.as_str()) {
            paths.insert(&config.backend, code_path(options, &config.backend, &config.runtime));
        }
    }
    let mut table = Table::new(["Backend", "Path", "Config"]);
    for (name, path) in paths {
        table.push([name, &path, &config_of(options, name)]);
    }
    table
}

/// Where the library or the script of a backend lies. A backend that is not in its own folder came with the model.
fn code_path(options: &Options, backend: &str, runtime: &str) -> String {
    let file = if runtime.is_empty() { format!("libtriton_{backend}.so") } else { runtime.to_owned() };
    let own = options.backend_directory.join(backend);
    let places = [own.join(file), own.join(python::SCRIPT)];
    let place = places.iter().find(|place| place.is_file());
    place.map_or_else(|| "<with its model>".to_owned(), |place| place.display().to_string())
}

/// The configuration of a backend: for a library the document that it can request, for a built-in one its settings
/// alone.
fn config_of(options: &Options, backend: &str) -> String {
    let settings = options.settings_of(backend);
    if !NATIVE_NAMES.contains(&backend) {
        let Options { backend_directory, auto_complete_config, min_compute_capability, .. } = options;
        return plugin::config_json(backend_directory, *auto_complete_config, *min_compute_capability, &settings);
    }
    let settings: Map<String, Value> = settings.into_iter().map(|(key, value)| (key, Value::String(value))).collect();
    if settings.is_empty() { json!({}) } else { json!({ "cmdline": settings }) }.to_string()
}

fn versions(models: &ModelMap) -> Table {
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
    table
}

/// `gpus`: the devices that are used, each with a pool of its memory.
fn settings(options: &Options, gpus: &BTreeSet<i32>) -> Table {
    let flag = |is_set: bool| if is_set { "1" } else { "0" }.to_owned();
    let mut table = Table::new(["Option", "Value"]);
    let mut row = |name: &str, value: String| table.push([name.to_owned(), value]);
    row("server_id", options.server_id.clone());
    row("server_version", SERVER_VERSION.to_owned());
    row("server_extensions", EXTENSIONS.join(" "));
    for (at, path) in options.model_repositories.iter().enumerate() {
        row(&format!("model_repository_path[{at}]"), path.display().to_string());
    }
    let mode = match options.model_control {
        ModelControl::None => "MODE_NONE",
        ModelControl::Poll { .. } => "MODE_POLL",
        ModelControl::Explicit => "MODE_EXPLICIT",
    };
    row("model_control_mode", mode.to_owned());
    for (at, name) in options.startup_models.iter().enumerate() {
        row(&format!("startup_models_{at}"), name.clone());
    }
    row("strict_model_config", flag(!options.auto_complete_config));
    row("model_config_name", options.model_config_name.clone().unwrap_or_default());
    row("rate_limit", if options.rate_limit { "EXEC_COUNT" } else { "OFF" }.to_owned());
    for (at, ((name, device), count)) in options.rate_limits().into_iter().enumerate() {
        // Triton's own form, which is no JSON.
        let value = format!("{{\"name\":\"{name}\", \"count\":{count} \"device\":{device}}}");
        row(&format!("rate_limit_resource[{at}]"), value);
    }
    row("pinned_memory_pool_byte_size", options.pinned_memory_pool_byte_size.to_string());
    let usual = gpus.iter().map(|device| (*device, nereid_gpu::Settings::MEMORY_POOL_BYTES));
    let mut pools: BTreeMap<i32, u64> = usual.collect();
    pools.extend(&options.cuda_memory_pools);
    for (device, bytes) in pools {
        row(&format!("cuda_memory_pool_byte_size{{{device}}}"), bytes.to_string());
    }
    row("min_supported_compute_capability", format!("{:.1}", options.min_compute_capability));
    row("strict_readiness", flag(options.strict_readiness));
    row("exit_timeout", options.exit_timeout_secs.to_string());
    row("cache_enabled", flag(options.cache().is_some()));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::options::{BackendSetting, CacheSetting, RateLimitResource};

    /// The cells of a table's rows, without its headings.
    fn rows(table: &Table) -> Vec<Vec<String>> {
        let text = table.to_string();
        let lines = text.lines().filter(|line| line.starts_with('|')).skip(1);
        lines
            .map(|line| {
                let cells = line.trim_matches('|').split(" |").map(|cell| cell.trim().to_owned());
                cells.collect()
            })
            .collect()
    }

    fn pairs(options: &Options) -> Vec<(String, String)> {
        let pair = |row: Vec<String>| <[String; 2]>::try_from(row).map(|[name, value]| (name, value)).unwrap();
        rows(&settings(options, &BTreeSet::new())).into_iter().map(pair).collect()
    }

    #[test]
    fn every_option_has_its_row_in_tritons_order() {
        let expected = [
            ("server_id", "triton"),
            ("server_version", SERVER_VERSION),
            ("server_extensions", &EXTENSIONS.join(" ")),
            ("model_control_mode", "MODE_NONE"),
            ("strict_model_config", "0"),
            ("model_config_name", ""),
            ("rate_limit", "OFF"),
            ("pinned_memory_pool_byte_size", "268435456"),
            ("min_supported_compute_capability", "0.0"),
            ("strict_readiness", "1"),
            ("exit_timeout", "30"),
            ("cache_enabled", "0"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(pairs(&Options::default()), expected);
    }

    #[test]
    fn every_device_that_is_used_has_the_size_of_its_pool() {
        let options = Options { cuda_memory_pools: [(1, 5), (3, 6)].into(), ..Options::default() };
        let shown = rows(&settings(&options, &[0, 1].into()));
        let pools: Vec<_> = shown.into_iter().filter(|row| row[0].starts_with("cuda_memory_pool_byte_size")).collect();
        let expected = [("0", "67108864"), ("1", "5"), ("3", "6")];
        let expected = expected.map(|(id, size)| [format!("cuda_memory_pool_byte_size{{{id}}}"), size.to_owned()]);
        assert_eq!(pools, expected);
    }

    #[test]
    fn what_was_given_is_what_is_shown() {
        let options = Options {
            server_id: "me".into(),
            model_repositories: vec!["/a".into(), "/b".into()],
            model_control: ModelControl::Explicit,
            startup_models: vec!["x".into(), "y".into()],
            auto_complete_config: false,
            model_config_name: Some("fast".into()),
            pinned_memory_pool_byte_size: 0,
            cuda_memory_pools: [(0, 5), (3, 6)].into(),
            min_compute_capability: 7.5,
            strict_readiness: false,
            exit_timeout_secs: 7,
            rate_limit: true,
            rate_limit_resources: [("R", 3, None), ("R", 4, Some(1)), ("R", 5, None), ("Q", -5, None)]
                .map(|(name, count, device)| RateLimitResource { name: name.to_owned(), count, device })
                .into(),
            cache_settings: vec![CacheSetting { cache: "local".into(), key: "size".into(), value: "1".into() }],
            ..Options::default()
        };
        let rows = pairs(&options);
        let names: Vec<_> = rows.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "server_id",
                "server_version",
                "server_extensions",
                "model_repository_path[0]",
                "model_repository_path[1]",
                "model_control_mode",
                "startup_models_0",
                "startup_models_1",
                "strict_model_config",
                "model_config_name",
                "rate_limit",
                "rate_limit_resource[0]",
                "rate_limit_resource[1]",
                "rate_limit_resource[2]",
                "pinned_memory_pool_byte_size",
                "cuda_memory_pool_byte_size{0}",
                "cuda_memory_pool_byte_size{3}",
                "min_supported_compute_capability",
                "strict_readiness",
                "exit_timeout",
                "cache_enabled",
            ]
        );
        let value = |name: &str| rows.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str()).unwrap();
        for (name, expected) in [
            ("server_id", "me"),
            ("model_repository_path[1]", "/b"),
            ("model_control_mode", "MODE_EXPLICIT"),
            ("startup_models_1", "y"),
            ("strict_model_config", "1"),
            ("model_config_name", "fast"),
            ("pinned_memory_pool_byte_size", "0"),
            ("cuda_memory_pool_byte_size{3}", "6"),
            ("min_supported_compute_capability", "7.5"),
            ("strict_readiness", "0"),
            ("exit_timeout", "7"),
            ("rate_limit", "EXEC_COUNT"),
            // As the official server prints them: sorted, and the first of two equal ones.
            ("rate_limit_resource[0]", r#"{"name":"Q", "count":-5 "device":-1}"#),
            ("rate_limit_resource[1]", r#"{"name":"R", "count":3 "device":-1}"#),
            ("rate_limit_resource[2]", r#"{"name":"R", "count":4 "device":1}"#),
            ("cache_enabled", "1"),
        ] {
            assert_eq!(value(name), expected, "{name}");
        }
        let poll = Options { model_control: ModelControl::Poll { period_secs: 5 }, ..Options::default() };
        assert!(pairs(&poll).contains(&("model_control_mode".into(), "MODE_POLL".into())));
    }

    #[test]
    fn backends_show_their_settings_as_they_get_them() {
        let setting = |backend: Option<&str>, key: &str, value: &str| BackendSetting {
            backend: backend.map(str::to_owned),
            key: key.to_owned(),
            value: value.to_owned(),
        };
        let backend_settings = vec![setting(Some("onnxruntime"), "a", "1"), setting(None, "b", "\"2\"")];
        let options = Options { backend_settings, ..Options::default() };
        let table = rows(&backends(&options, &ModelMap::default()));
        let expected = [
            ["affine", "<built in>", r#"{"cmdline":{"b":"\"2\""}}"#],
            ["fil", "<built in>", r#"{"cmdline":{"b":"\"2\""}}"#],
            ["identity", "<built in>", r#"{"cmdline":{"b":"\"2\""}}"#],
            ["onnxruntime", "<built in>", r#"{"cmdline":{"a":"1","b":"\"2\""}}"#],
            ["openvino", "<built in>", r#"{"cmdline":{"b":"\"2\""}}"#],
            ["python", "<built in>", r#"{"cmdline":{"b":"\"2\""}}"#],
            ["pytorch", "<built in>", r#"{"cmdline":{"b":"\"2\""}}"#],
            ["repeat", "<built in>", r#"{"cmdline":{"b":"\"2\""}}"#],
            ["square", "<built in>", r#"{"cmdline":{"b":"\"2\""}}"#],
            ["tensorflow", "<built in>", r#"{"cmdline":{"b":"\"2\""}}"#],
            ["tensorrt", "<built in>", r#"{"cmdline":{"b":"\"2\""}}"#],
        ];
        assert_eq!(table, expected);
        assert_eq!(rows(&backends(&Options::default(), &ModelMap::default()))[0][2], "{}");
        // A library's document contains more.
        let document: Value = serde_json::from_str(&config_of(&options, "own")).unwrap();
        let expected = json!({ "cmdline": {
            "auto-complete-config": "true",
            "b": "\"2\"",
            "backend-directory": options.backend_directory,
            "default-max-batch-size": "4",
            "min-compute-capability": "0.000000",
        }});
        assert_eq!(document, expected);
    }
}
