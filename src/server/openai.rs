//! What serves OpenAI's interface, from the options: tokenizer, template, keys, threads (contract/openai.md).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::Failure;
use super::options::Listen;
use super::options::openai::{LanguageOptions, OpenAiAccess, PORT};
use super::options::{ModelControl, Options};
use crate::api::{self, ApiKey, Bucket, Gate, RateLimit, RestrictedGroups};
use crate::repository::{Lifecycle, ModelMap};
use nereid_observe::metrics::Registry;
use nereid_openai::error::Compat;
use nereid_openai::prepare;
use nereid_openai::template::RenderBounds;
use nereid_scheduler::ServedModel;

/// As in the errors of a start.
pub const NAME: &str = "OpenAI";

/// How much one chat template may take on a thread of the interface.
const RENDER_STEPS_MAX: u64 = 50_000_000;
const RENDER_BYTES_MAX: usize = 64 << 20;
const RENDER_SECS_MAX: u64 = 10;
/// Files of keys and templates are short.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The parameter of a model's configuration that switches the interface on.
const MARK: &str = "openai";

/// Switches the interface on where no flag decides and a model is marked for it; true if one is.
pub fn open_for_models(options: &mut Options, models: &ModelMap) -> bool {
    if !options.openai.is_on_by_models || options.openai.is_on() {
        return false;
    }
    let is_marked = |model: &&Arc<ServedModel>| {
        let mark = model.spec.config.parameters.get(MARK).map(|mark| mark.string_value.to_ascii_lowercase());
        mark.is_some_and(|mark| matches!(&*mark, "true" | "on" | "1"))
    };
    let Some(model) = models.ready().find(is_marked) else { return false };
    let name = &model.name;
    let is_restricted = !options.http_restricted.is_empty()
        || !options.grpc_restricted.is_empty()
        || options.http_restricted_file.is_some()
        || options.grpc_restricted_file.is_some();
    if is_restricted && options.openai.access == OpenAiAccess::default() {
        warn!(
            "model '{name}' would switch OpenAI's interface on, which stays off: other ports are restricted, and this \
             one is not. Give --allow-openai=true, or keys with --openai-api-key-file"
        );
        return false;
    }
    info!("model '{name}' switches OpenAI's interface on; --allow-openai=false keeps it off");
    options.openai.listen.allowed = true;
    if options.openai.listen.address == Listen::at(PORT).address {
        // Who listens on one address alone wants that of all ports.
        options.openai.listen.address.clone_from(&options.http.address);
    }
    true
}

/// The settings of the interface; none where it is off.
pub fn settings(options: &Options, lifecycle: &Arc<Lifecycle>) -> Result<Option<Arc<api::OpenAi>>, Failure> {
    let openai = &options.openai;
    if !openai.is_on() {
        return Ok(None);
    }
    let template = openai.language.chat_template.as_deref().map(read).transpose();
    let template = template.map_err(|error| failed(format!("--chat-template: {error}")))?;
    let language = language(&openai.language, template.as_deref())?;
    let gate = gate(&openai.access).map_err(failed)?;
    log_restrictions(&gate);
    let threads = api::OpenAiThreads::start(usize::try_from(openai.threads).unwrap_or(1));
    let threads = threads.map_err(|error| failed(format!("cannot start a thread: {error}")))?;
    let models = {
        let lifecycle = Arc::downgrade(lifecycle);
        let folder_of = move |name: &str| lifecycle.upgrade()?.folder_of(name);
        api::OpenAiModels::new(Box::new(folder_of), template, openai.language.cache_bytes_max)
    };
    let settings = prepare::Settings {
        compat: openai.compat,
        extensions: openai.compat == Compat::OpenAi,
        form: openai.form,
        lora_separator: Some(openai.lora_separator.clone()).filter(|separator| !separator.is_empty()),
        default_max_tokens: openai.default_max_tokens,
        tool_parser: openai.tools.parser,
        tool_parse_bytes_max: openai.tools.parse_bytes_max,
        reasoning_parser: openai.tools.reasoning_parser,
        counts_tokens: openai.counts_tokens,
        render: RenderBounds {
            steps_max: RENDER_STEPS_MAX,
            bytes_max: RENDER_BYTES_MAX,
            time_max: Duration::from_secs(RENDER_SECS_MAX),
        },
        language,
    };
    for served in lifecycle.map().ready() {
        models.check(served, &settings).map_err(failed)?;
    }
    Ok(Some(Arc::new(api::OpenAi {
        prepare: Arc::new(settings),
        gate,
        models: Arc::new(models),
        threads,
        metrics: Arc::new(api::OpenAiMetrics::new(Registry::of_process())),
        input_bytes_max: options.http_max_input_size,
        scheme: if options.http_tls.is_on() { "https" } else { "http" },
        is_explicit: matches!(options.model_control, ModelControl::Explicit),
        on_http_port: openai.on_http_port,
        keep_alive_ns: openai.keep_alive_secs.saturating_mul(1_000_000_000),
    })))
}

fn failed(text: impl std::fmt::Display) -> Failure {
    Failure::Start(format!("failed to start {NAME} service: {text}"))
}

/// The tokenizer that the flag names. `template` replaces its templates.
fn language(options: &LanguageOptions, template: Option<&str>) -> Result<Option<Arc<prepare::Language>>, Failure> {
    let Some(folder) = &options.tokenizer else { return Ok(None) };
    if !folder.is_dir() {
        return Err(failed(format!(
            "--tokenizer: '{}' is no folder. Give a folder with tokenizer.json and tokenizer_config.json; this server \
             downloads none.",
            folder.display()
        )));
    }
    let loaded = api::load_language(folder, template, options.cache_bytes_max);
    loaded.map(|language| Some(Arc::new(language))).map_err(|error| failed(format!("--tokenizer: {error}")))
}

fn read(path: &Path) -> Result<String, String> {
    let said = |error: std::io::Error| format!("'{}' cannot be read: {error}", path.display());
    if std::fs::metadata(path).map_err(said)?.len() > FILE_BYTES_MAX {
        return Err(format!("'{}' has more than {FILE_BYTES_MAX} bytes", path.display()));
    }
    std::fs::read_to_string(path).map_err(said)
}

/// Who is let in. Of the groups, unknown ones and those in two flags are refused.
fn gate(access: &OpenAiAccess) -> Result<Gate, String> {
    check_groups(&access.restricted)?;
    let mut given: Vec<(String, Option<RateLimit>)> = access.keys.iter().map(|key| (key.0.clone(), None)).collect();
    if let Some(path) = &access.key_file {
        given.extend(keys_of(&read(path)?).map_err(|line| {
            format!("'{}', line {line}: a line is KEY or KEY RATE or KEY RATE:BURST", path.display())
        })?);
        if given.is_empty() {
            return Err(format!("'{}' has no key", path.display()));
        }
    }
    let bucket = |limit: Option<RateLimit>| limit.map(|limit| Arc::new(Bucket::new(limit)));
    let of_key =
        |(value, limit): (String, Option<RateLimit>)| ApiKey { value, bucket: bucket(limit.or(access.rate_limit)) };
    let keys: Vec<ApiKey> = given.into_iter().map(of_key).collect();
    let shared = if keys.is_empty() { bucket(access.rate_limit) } else { None };
    Ok(Gate { restricted: access.restricted.clone(), keys, bucket: shared })
}

fn check_groups(restricted: &[RestrictedGroups]) -> Result<(), String> {
    let mut seen: Vec<&str> = Vec::new();
    for group in restricted.iter().flat_map(|one| &one.groups) {
        if !api::OPENAI_GROUPS.iter().any(|(known, _)| known == group) {
            let known: Vec<String> = api::OPENAI_GROUPS.iter().map(|(known, _)| format!("'{known}'")).collect();
            return Err(format!("Unknown API '{group}'. Available APIs: [{}]", known.join(", ")));
        }
        if seen.contains(&&**group) {
            return Err(format!("restricted api '{group}' can not be specified in multiple config groups"));
        }
        seen.push(group);
    }
    Ok(())
}

/// The keys of a file with their rates; Err: the line that is none.
fn keys_of(text: &str) -> Result<Vec<(String, Option<RateLimit>)>, usize> {
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty() && !line.trim().starts_with('#'));
    let key = |(line, number): (&str, usize)| {
        let mut words = line.split_whitespace();
        let key = words.next().ok_or(number)?.to_owned();
        let limit = words.next().map(|word| RateLimit::read(word).ok_or(number)).transpose()?;
        words.next().map_or(Ok((key, limit)), |_| Err(number))
    };
    lines.map(key).collect()
}

/// The groups and the headers, never the values.
fn log_restrictions(gate: &Gate) {
    if gate.restricted.is_empty() {
        return;
    }
    info!("API restrictions enabled");
    for RestrictedGroups { groups, header, .. } in &gate.restricted {
        info!("  {}: header '{header}'", groups.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restricted(groups: &[&str]) -> RestrictedGroups {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        RestrictedGroups { groups, header: "admin".to_owned(), value: "hush".to_owned() }
    }

    #[test]
    fn groups_are_known_and_stand_in_one_flag() {
        assert_eq!(check_groups(&[restricted(&["inference", "health"]), restricted(&["metrics"])]), Ok(()));
        let text = "Unknown API 'embedding'. Available APIs: ['inference', 'model-repository', 'metrics', 'health']";
        assert_eq!(check_groups(&[restricted(&["embedding"])]), Err(text.to_owned()));
        let text = "restricted api 'health' can not be specified in multiple config groups";
        assert_eq!(check_groups(&[restricted(&["health"]), restricted(&["health"])]), Err(text.to_owned()));
    }

    #[test]
    fn files_have_a_key_in_each_line() {
        let limit = |rate, burst| Some(RateLimit { rate, burst });
        let read = keys_of("# keys\none\n\n two 5 \nthree 0.5:10\n").unwrap();
        let expected = [("one", None), ("two", limit(5.0, 5.0)), ("three", limit(0.5, 10.0))];
        assert_eq!(read, expected.map(|(key, limit)| (key.to_owned(), limit)));
        assert_eq!((keys_of("a b"), keys_of("a\nb 1 2"), keys_of("a 0")), (Err(1), Err(2), Err(1)));
    }
}
