//! `nereid openai`: the command line of Triton's front end for OpenAI's clients (contract/openai.md section 2), which
//! becomes one of `nereid serve`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use super::options::CommandLine;
use super::{Arguments, serve};

/// What follows a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    Value,
    /// `APIS KEY VALUE`.
    Restriction,
}

/// A flag, and the one of `nereid serve` that it becomes; none: it has no effect here, or one of its own.
struct Row {
    name: &'static str,
    takes: Takes,
    becomes: Option<&'static str>,
    help: &'static str,
}

const fn row(name: &'static str, takes: Takes, becomes: &'static str, help: &'static str) -> Row {
    Row { name, takes, becomes: Some(becomes), help }
}

const fn own(name: &'static str, takes: Takes, help: &'static str) -> Row {
    Row { name, takes, becomes: None, help }
}

use Takes::{Nothing, Restriction, Value};

static ROWS: [Row; 29] = [
    row("model-repository", Value, "model-repository", "Path of the model repository. Required."),
    row("tokenizer", Value, "tokenizer", "Folder of the tokenizer whose chat template makes prompts."),
    row("backend", Value, "backend", "Tensors with which models are asked: vllm or tensorrtllm."),
    row("lora-separator", Value, "lora-separator", "What stands between a model's name and its adapter's."),
    row("tritonserver-log-verbose-level", Value, "log-verbose", "Level of the log. Default: 0."),
    own("host", Value, "Address of all ports. Default: 0.0.0.0."),
    row(
        "tool-call-parser",
        Value,
        "tool-call-parser",
        "How tool calls are written: llama3, mistral, hermes, pythonic.",
    ),
    row("max-tool-call-parse-bytes", Value, "max-tool-call-parse-bytes", "Bound of a streamed tool call."),
    row("chat-template", Value, "chat-template", "File that replaces the tokenizer's template."),
    row("default-max-tokens", Value, "default-max-tokens", "Tokens where a request has no number. Default: 16."),
    row("model-control-mode", Value, "model-control-mode", "none or explicit. Default: none."),
    row("load-model", Value, "load-model", "A model to load at the start; with explicit only."),
    row("openai-port", Value, "openai-port", "Port of the interface. Default: 9000."),
    own("uvicorn-log-level", Value, "Without effect: the log has --tritonserver-log-verbose-level."),
    own("openai-restricted-api", Restriction, "Groups of routes, and the header and its value that they need."),
    row("http-max-input-size", Value, "http-max-input-size", "Bytes of a request. Default: 67108864."),
    own("enable-kserve-frontends", Nothing, "Serve KServe's protocols too."),
    own("kserve-http-port", Value, "Default: 8000."),
    own("kserve-grpc-port", Value, "Default: 8001."),
    row("openai-compat", Value, "openai-compat", "openai or triton: whose answers are given where both differ."),
    row("reasoning-parser", Value, "reasoning-parser", "How reasoning is marked: deepseek_r1 or qwen3."),
    row("openai-api-key", Value, "openai-api-key", "A key that clients send."),
    row("openai-api-key-file", Value, "openai-api-key-file", "A file of keys."),
    row("openai-rate-limit", Value, "openai-rate-limit", "Requests in a second, and at once, of each key."),
    row("openai-count-tokens", Value, "openai-count-tokens", "Whether prompts are counted for models that do not."),
    row("openai-thread-count", Value, "openai-thread-count", "Threads that prepare requests. Default: 2."),
    row("openai-keep-alive", Value, "openai-keep-alive", "Seconds of silence before a comment. Default: 15."),
    row("backend-directory", Value, "backend-directory", "Folder of backends."),
    row("exit-timeout-secs", Value, "exit-timeout-secs", "Seconds that requests may take when the server ends."),
];

const LOG_LEVELS: [&str; 6] = ["debug", "info", "warning", "error", "critical", "trace"];

/// What the command line means.
#[derive(Debug, Default)]
struct Given {
    /// For `nereid serve`.
    words: Vec<OsString>,
    has_repository: bool,
    host: Option<String>,
    has_kserve: bool,
    kserve_ports: [Option<String>; 2],
}

/// Reads the command line, and serves.
pub fn run(arguments: &Arguments) -> ExitCode {
    if arguments.words.iter().any(|word| matches!(word.to_str(), Some("-h" | "--help"))) {
        let _ = std::io::stdout().write_all(usage().as_bytes());
        return ExitCode::SUCCESS;
    }
    let words = match translate(&arguments.words) {
        Ok(words) => words,
        Err(error) => {
            let text = format!("{SYNOPSIS}nereid openai: error: {error}\n");
            let _ = std::io::stderr().write_all(text.as_bytes());
            return ExitCode::from(2);
        }
    };
    let arguments = Arguments { program: arguments.program.clone(), words };
    let parsed = CommandLine::parse(&arguments, |name| std::env::var_os(name), |_| ());
    match parsed {
        Ok(line) => serve::start(&line, ""),
        Err(error) => {
            // Without the usage text of another command.
            let _ = std::io::stderr().write_all(format!("{error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// The words for `nereid serve`, or what is wrong, in argparse's words.
fn translate(words: &[OsString]) -> Result<Vec<OsString>, String> {
    let mut given = Given::default();
    let mut left = words.iter();
    while let Some(word) = left.next() {
        let text = word.to_string_lossy().into_owned();
        let (name, joined) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (&*text, None),
        };
        let Some(row) = find(name)? else { return Err(format!("unrecognized arguments: {text}")) };
        let next = || left.next().map(|word| word.to_string_lossy().into_owned());
        match row.takes {
            Nothing => given.take(row, String::new())?,
            Value => {
                let value = joined.or_else(next).filter(|value| !value.starts_with("--"));
                given.take(row, value.ok_or_else(|| format!("argument --{}: expected one argument", row.name))?)?;
            }
            Restriction => {
                let values: Vec<String> = joined.into_iter().chain(std::iter::from_fn(next).take(3)).collect();
                let [apis, key, value] = &values[..] else {
                    return Err(format!("argument --{}: expected 3 arguments", row.name));
                };
                given.words.push(format!("--openai-restricted-api={apis}:{key}={value}").into());
            }
        }
    }
    given.finish()
}

/// The flag of that name, or that begins so.
fn find(name: &str) -> Result<Option<&'static Row>, String> {
    let Some(beginning) = name.strip_prefix("--") else { return Ok(None) };
    if let Some(row) = ROWS.iter().find(|row| row.name == beginning) {
        return Ok(Some(row));
    }
    let fits: Vec<&Row> = ROWS.iter().filter(|row| !beginning.is_empty() && row.name.starts_with(beginning)).collect();
    match fits[..] {
        [] => Ok(None),
        [row] => Ok(Some(row)),
        _ => {
            let names: Vec<String> = fits.iter().map(|row| format!("--{}", row.name)).collect();
            Err(format!("ambiguous option: {name} could match {}", names.join(", ")))
        }
    }
}

impl Given {
    fn take(&mut self, row: &Row, value: String) -> Result<(), String> {
        check(row.name, &value)?;
        match row.name {
            "model-repository" => {
                // The last one counts.
                self.words.retain(|word| !word.to_string_lossy().starts_with("--model-repository="));
                self.has_repository = true;
            }
            "host" => self.host = Some(value.clone()),
            "enable-kserve-frontends" => self.has_kserve = true,
            "kserve-http-port" => self.kserve_ports[0] = Some(value.clone()),
            "kserve-grpc-port" => self.kserve_ports[1] = Some(value.clone()),
            _ => {}
        }
        if let Some(flag) = row.becomes {
            self.words.push(format!("--{flag}={value}").into());
        }
        Ok(())
    }

    fn finish(self) -> Result<Vec<OsString>, String> {
        if !self.has_repository {
            return Err("the following arguments are required: --model-repository".to_owned());
        }
        let host = self.host.unwrap_or_else(|| "0.0.0.0".to_owned());
        let [http, grpc] = self.kserve_ports;
        let mut words: Vec<OsString> = vec![
            "--allow-openai=true".into(),
            format!("--openai-address={host}").into(),
            format!("--allow-http={}", self.has_kserve).into(),
            format!("--allow-grpc={}", self.has_kserve).into(),
            // The interface has the page itself.
            "--metrics-port=0".into(),
            "--metrics-address=127.0.0.1".into(),
        ];
        if self.has_kserve {
            words.extend([format!("--http-address={host}").into(), format!("--grpc-address={host}").into()]);
            words.push(format!("--http-port={}", http.as_deref().unwrap_or("8000")).into());
            words.push(format!("--grpc-port={}", grpc.as_deref().unwrap_or("8001")).into());
        }
        words.extend(self.words);
        Ok(words)
    }
}

/// Values that argparse would refuse.
fn check(name: &str, value: &str) -> Result<(), String> {
    let is_one_of = |choices: &[&str]| {
        let listed = choices.iter().map(|choice| format!("'{choice}'")).collect::<Vec<_>>().join(", ");
        match choices.contains(&value) {
            true => Ok(()),
            false => Err(format!("argument --{name}: invalid choice: '{value}' (choose from {listed})")),
        }
    };
    match name {
        "backend" => is_one_of(&["vllm", "tensorrtllm"]),
        "model-control-mode" => is_one_of(&["none", "explicit"]),
        "uvicorn-log-level" => is_one_of(&LOG_LEVELS),
        "http-max-input-size" => match value.parse::<u64>() {
            Ok(1..) => Ok(()),
            _ => Err(format!("argument --{name}: invalid validate_positive_int value: '{value}'")),
        },
        "openai-port"
        | "kserve-http-port"
        | "kserve-grpc-port"
        | "default-max-tokens"
        | "max-tool-call-parse-bytes"
        | "tritonserver-log-verbose-level" => match value.parse::<i64>() {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("argument --{name}: invalid int value: '{value}'")),
        },
        _ => Ok(()),
    }
}

/// What stands in front of an error, in argparse's form.
const SYNOPSIS: &str = "usage: nereid openai [-h] --model-repository MODEL_REPOSITORY [options]\n";

/// The text of `nereid openai --help`.
pub fn usage() -> String {
    let mut text = "Usage: nereid openai --model-repository <path> [options]\n".to_owned();
    text.push_str("\nServes a model repository to OpenAI's clients, by the flags of Triton's front end.\n\nOptions:\n");
    // Writing to a String cannot fail.
    for row in &ROWS {
        let value = match row.takes {
            Nothing => "",
            Value => "=<value>",
            Restriction => " <apis> <key> <value>",
        };
        let _ = writeln!(text, "  --{}{value}  {}", row.name, row.help);
    }
    text.push_str("  -h, --help  Show this text.\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(words: &[&str]) -> Result<Vec<String>, String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        Ok(translate(&words)?.into_iter().map(|word| word.to_string_lossy().into_owned()).collect())
    }

    #[test]
    fn flags_become_those_of_serve() {
        let words =
            translated(&["--model-repository", "a", "--model-rep=b", "--host=h", "--openai-port", "7"]).unwrap();
        for word in ["--model-repository=b", "--openai-address=h", "--openai-port=7", "--allow-http=false"] {
            assert!(words.iter().any(|given| given == word), "{word}: {words:?}");
        }
        assert!(!words.iter().any(|given| given == "--model-repository=a"));
        let words = translated(&[
            "--model-repository=b",
            "--openai-restricted-api",
            "inference,health",
            "admin",
            "hush",
            "--enable-kserve-frontends",
            "--kserve-grpc-port=5",
        ]);
        let words = words.unwrap();
        for word in [
            "--openai-restricted-api=inference,health:admin=hush",
            "--http-port=8000",
            "--grpc-port=5",
            "--allow-grpc=true",
        ] {
            assert!(words.iter().any(|given| given == word), "{word}: {words:?}");
        }
    }

    #[test]
    fn errors_are_those_of_argparse() {
        let table: &[(&[&str], &str)] = &[
            (&[], "the following arguments are required: --model-repository"),
            (&["--model-repository"], "argument --model-repository: expected one argument"),
            (&["--nonsense"], "unrecognized arguments: --nonsense"),
            (&["word"], "unrecognized arguments: word"),
            (&["--model"], "ambiguous option: --model could match --model-repository, --model-control-mode"),
            (&["--openai-restricted-api", "a", "b"], "argument --openai-restricted-api: expected 3 arguments"),
            (
                &["--http-max-input-size", "0"],
                "argument --http-max-input-size: invalid validate_positive_int value: '0'",
            ),
            (&["--openai-port=x"], "argument --openai-port: invalid int value: 'x'"),
            (
                &["--model-control-mode=poll"],
                "argument --model-control-mode: invalid choice: 'poll' (choose from 'none', 'explicit')",
            ),
        ];
        for (words, expected) in table {
            assert_eq!(translated(words), Err((*expected).to_owned()), "{words:?}");
        }
    }
}
