//! Every flag with the value that serves and where it comes from, for the inspect page (docs/inspect-page.md).

use std::ffi::OsString;

use super::flags::{Action, flags};
use crate::server::inspect::{FlagSource, FlagValue};

/// What stands in place of a secret.
const HIDDEN: &str = "<hidden>";
/// Words behind which a value may have a secret.
const SECRET_WORDS: [&str; 9] = ["pass", "pwd", "secret", "token", "key", "credential", "auth", "header", "dsn"];
/// Most bytes of a value that are shown.
const VALUE_BYTES_MAX: usize = 1024;

/// The flags in the order of the usage text. `given`: name and [shown value](shown) of those on the command line.
pub fn flag_values(given: &[(&'static str, String)], environment: &dyn Fn(&str) -> Option<OsString>) -> Vec<FlagValue> {
    let mut values = Vec::new();
    for flag in flags().filter(|flag| !matches!(flag.action, Action::Help)) {
        let here: Vec<&str> = given.iter().filter(|(name, _)| *name == flag.name).map(|(_, text)| &**text).collect();
        let (value, source) = match (here.is_empty(), from_environment(flag.name, environment)) {
            (false, _) => (here.join(", "), FlagSource::Flag),
            (true, Some((value, variable))) => (shown(flag.name, Some(&value)), FlagSource::Environment(variable)),
            (true, None) => (default_of(flag.help).to_owned(), FlagSource::Default),
        };
        values.push(FlagValue { name: flag.name, value, source });
    }
    values
}

/// The value of a flag as other people may see it.
pub fn shown(flag: &str, value: Option<&str>) -> String {
    let Some(value) = value else { return "true".to_owned() };
    let shown = match value.split_once('=') {
        _ if flag == "openai-api-key" => HIDDEN.to_owned(),
        Some((name, _)) if flag.contains("-restricted-") => format!("{name}={HIDDEN}"),
        _ => without_secret(&without_user(value)),
    };
    let end = shown.floor_char_boundary(VALUE_BYTES_MAX);
    shown.get(..end).unwrap_or_default().to_owned()
}

/// Hides the user and the password of a URL: all up to the last `@`, because passwords may have any character.
fn without_user(value: &str) -> String {
    let split = value.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1)));
    split.map_or_else(|| value.to_owned(), |(scheme, rest)| format!("{scheme}://{HIDDEN}@{rest}"))
}

/// Hides all from the first word on that may name a secret. If that is the name of the first setting, the name stays.
fn without_secret(value: &str) -> String {
    let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    // Paths and names of models may have such words and are no secrets.
    let is_plain = value.chars().all(|c| is_of_name(c) || matches!(c, '/' | '.'));
    let lower = value.to_ascii_lowercase();
    let first = SECRET_WORDS.iter().filter_map(|word| lower.find(word)).min();
    let Some((before, rest)) = first.filter(|_| !is_plain).and_then(|at| value.split_at_checked(at)) else {
        return value.to_owned();
    };
    match rest.split_once('=') {
        Some((name, _)) if !before.contains('=') && name.chars().all(is_of_name) => format!("{before}{name}={HIDDEN}"),
        _ => format!("{before}{HIDDEN}"),
    }
}

/// What the help text says of the default; empty where it says nothing.
fn default_of(help: &str) -> &str {
    help.rsplit_once("Default: ").map_or("", |(_, text)| text.strip_suffix('.').unwrap_or(text))
}

/// The value that a variable gives to a flag that is not on the command line (contract/cli.md section 4).
fn from_environment(flag: &str, environment: &dyn Fn(&str) -> Option<OsString>) -> Option<(String, &'static str)> {
    let text = |name: &str| environment(name).map(|value| value.to_string_lossy().into_owned());
    let set = |name: &'static str| text(name).filter(|value| !value.is_empty());
    let predicts = || text("AIP_MODE").is_some_and(|mode| mode == "PREDICTION");
    match flag {
        "allow-vertex-ai" if predicts() => Some(("true".to_owned(), "AIP_MODE")),
        "allow-http" | "allow-grpc" if predicts() => Some(("false".to_owned(), "AIP_MODE")),
        "vertex-ai-port" => set("AIP_HTTP_PORT").map(|port| (port, "AIP_HTTP_PORT")),
        "model-repository" => set("AIP_STORAGE_URI").map(|place| (place, "AIP_STORAGE_URI")),
        "drain-delay" => {
            let supervisor = super::options::SUPERVISORS.into_iter().find(|name| set(name).is_some())?;
            Some((super::options::SUPERVISED_DRAIN_DELAY.as_secs().to_string(), supervisor))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_has_a_value_with_its_source() {
        let given = ["http-port", "load-model", "load-model"].into_iter().zip(["1", "a", "b"]);
        let given: Vec<_> = given.map(|(name, value)| (name, shown(name, Some(value)))).collect();
        let environment = |name: &str| match name {
            "AIP_MODE" => Some("PREDICTION".into()),
            "AIP_HTTP_PORT" => Some("81".into()),
            "AIP_STORAGE_URI" => Some("https://me:hush@h/models".into()),
            "NOTIFY_SOCKET" => Some("/run/x".into()),
            _ => None,
        };
        let all = flag_values(&given, &environment);
        let of = |name: &str| {
            let found = all.iter().find(|flag| flag.name == name).unwrap();
            (found.value.clone(), found.source)
        };
        assert_eq!(of("http-port"), ("1".into(), FlagSource::Flag));
        assert_eq!(of("load-model"), ("a, b".into(), FlagSource::Flag));
        assert_eq!(of("grpc-port"), ("8001".into(), FlagSource::Default));
        assert_eq!(of("allow-grpc"), ("false".into(), FlagSource::Environment("AIP_MODE")));
        assert_eq!(of("vertex-ai-port"), ("81".into(), FlagSource::Environment("AIP_HTTP_PORT")));
        let repository = ("https://<hidden>@h/models".into(), FlagSource::Environment("AIP_STORAGE_URI"));
        assert_eq!(of("model-repository"), repository);
        assert_eq!(of("drain-delay"), ("5".into(), FlagSource::Environment("NOTIFY_SOCKET")));
        assert_eq!(of("allow-ui"), ("true".into(), FlagSource::Default));
    }

    #[test]
    fn secrets_are_not_shown() {
        for (flag, value, expected) in [
            ("http-restricted-api", "health,trace:admin=hush", "health,trace:admin=<hidden>"),
            ("openai-api-key", "hush", "<hidden>"),
            ("cache-config", "redis,password=hush", "redis,password=<hidden>"),
            ("backend-config", "b,API_TOKEN=hush", "b,API_TOKEN=<hidden>"),
            ("trace-config", "opentelemetry,headers=a:hush", "opentelemetry,headers=<hidden>"),
            ("backend-config", "onnxruntime,library=/x", "onnxruntime,library=/x"),
            ("http-server-key", "/etc/key.pem", "/etc/key.pem"),
            ("load-model", "bert-tokenizer", "bert-tokenizer"),
            ("cache-config", "redis,host=h,port=1,password=hush", "redis,host=h,port=1,<hidden>"),
            ("backend-config", "b,db={\"Pwd\":\"hush\"}", "b,db={\"<hidden>"),
            ("backend-config", "b,arguments=--passphrase hush", "b,arguments=--<hidden>"),
            ("backend-config", "b,x=token1234==", "b,x=<hidden>"),
            ("backend-config", "b,DSN=user/hush", "b,DSN=<hidden>"),
            ("cache-config", "redis,url=redis://me:hu/s@h,@h:1/0", "redis,url=redis://<hidden>@h:1/0"),
            ("model-repository", "s3://https://host:9000/bucket", "s3://https://host:9000/bucket"),
        ] {
            assert_eq!(shown(flag, Some(value)), expected);
        }
        assert_eq!(shown("disable-auto-complete-config", None), "true");
        assert!(shown("id", Some(&"é".repeat(5000))).len() <= VALUE_BYTES_MAX);
    }
}
