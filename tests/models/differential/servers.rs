//! Both servers with the same models, and the client that sends the requests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::comparison::Answers;
use nereid_test_support::python::Python;
use nereid_test_support::python_backend::{Installed, Regions};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

/// Models that are loaded by the requests of the client, or not at all.
const LATER: [&str; 3] = ["auto", "auto_bare", "life"];
/// What the tests of our own backend alone use of tests/python_models has no part here.
const MODELS: [&str; 27] = [
    "add_sub",
    "auto",
    "auto_bare",
    "chain",
    "decoupled",
    "decoupled_async",
    "echo_request",
    "evaluate",
    "evaluate_async",
    "evaluate_decoupled",
    "evaluate_decoupled_async",
    "failing",
    "generator",
    "identity",
    "identity_batched",
    "iterative_alone",
    "labelled",
    "life",
    "metered",
    "pipeline",
    "queued",
    "ready_check",
    "sequence",
    "sequence_oldest",
    "sequence_texts",
    "strings",
    "together",
];

/// What a server answered and what it wrote.
pub struct Asked {
    pub answers: Answers,
    pub log: String,
}

/// Why a server was not asked to the end.
pub enum Failure {
    /// The server was silent for the client's patience, or lost the worker of a model.
    Unwell(String),
    Other(String),
}

impl Failure {
    pub fn text(&self) -> &str {
        let (Self::Unwell(text) | Self::Other(text)) = self;
        text
    }
}

/// The exit code by which the client says that it gave the server up.
const UNWELL: i32 = 75;

pub fn repository() -> Repository {
    let repository = Repository::new();
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python_models");
    for model in MODELS {
        copy(&repository, &models.join(model), model);
    }
    repository
}

fn copy(repository: &Repository, from: &Path, to: &str) {
    for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{from:?}: {error}")) {
        let entry = entry.expect("an entry of a model");
        let to = format!("{to}/{}", entry.file_name().to_string_lossy());
        // Models share their sources by links.
        match fs::metadata(entry.path()).expect("what an entry is").is_dir() {
            true => copy(repository, &entry.path(), &to),
            false => drop(repository.file(&to, fs::read(entry.path()).expect("a file of a model"))),
        }
    }
}

fn flags() -> Vec<String> {
    let mut flags = vec!["--model-control-mode=explicit".to_owned()];
    let loaded = MODELS.iter().filter(|model| !LATER.contains(model));
    flags.extend(loaded.map(|model| format!("--load-model={model}")));
    flags
}

/// The official server.
pub fn theirs(
    words: &[String],
    installed: &Installed,
    client: &Python,
    repository: &Repository,
) -> Result<Asked, Failure> {
    let regions = Regions::new();
    let mut flags = flags();
    flags.extend([format!("--backend-directory={}", installed.backends.display()), regions.flag()]);
    let variables = installed.environment.iter().map(|(name, value)| format!("{name}={value}"));
    let environment = std::iter::once("env".to_owned()).chain(variables).chain([NO_BYTE_CODE.to_owned()]);
    let words: Vec<String> = environment.chain(words.iter().cloned()).collect();
    ask(&words, &flags, client, repository)
}

/// Ours, whose workers find the same numpy.
pub fn ours(interpreter: &Path, client: &Python, repository: &Repository) -> Result<Asked, Failure> {
    let mut flags = flags();
    flags.push("--allow-client-shm=true".to_owned());
    flags.push(format!("--backend-config=python,interpreter={}", interpreter.display()));
    let program = nereid_test_support::server::binary().to_string_lossy().into_owned();
    ask(&["env".to_owned(), NO_BYTE_CODE.to_owned(), program], &flags, client, repository)
}

/// No byte code beside the sources: both servers read one repository.
const NO_BYTE_CODE: &str = "PYTHONDONTWRITEBYTECODE=1";

fn ask(words: &[String], flags: &[String], client: &Python, repository: &Repository) -> Result<Asked, Failure> {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut server = Server::start_under(words, usual(), repository.path(), &flags, "/v2/health/ready");
    let output = repository.path().with_extension(format!("{}.json", server.pid()));
    let asked = asked(&mut client.command("differential"), &server, repository, &output);
    let text = fs::read_to_string(&output).unwrap_or_default();
    let _ = fs::remove_file(&output);
    // The log comes behind the answers: all of it is there when nothing more comes.
    let mut log = server.log();
    server.wait_until("the log is at its end", || {
        std::thread::sleep(Duration::from_millis(500));
        let before = std::mem::replace(&mut log, server.log());
        before == log
    });
    match asked {
        Ok(told) => println!("{told}"),
        Err(told) => {
            server.has_crashed();
            let text = format!("{}\nthe server's log ends with:\n{}", told.text(), tail(&log));
            return Err(match told {
                Failure::Unwell(_) => Failure::Unwell(text),
                Failure::Other(_) => Failure::Other(text),
            });
        }
    }
    drop(server);
    let answers: Value =
        serde_json::from_str(&text).map_err(|error| Failure::Other(format!("the client's document: {error}")))?;
    let Value::Object(answers) = answers else {
        return Err(Failure::Other("the client's document holds no answers".to_owned()));
    };
    Ok(Asked { answers: answers.into_iter().collect(), log })
}

fn asked(client: &mut Command, server: &Server, repository: &Repository, output: &PathBuf) -> Result<String, Failure> {
    for (flag, address) in [("--http", server.http), ("--grpc", server.grpc), ("--metrics", server.metrics)] {
        client.arg(flag).arg(address.to_string());
    }
    client.arg("--repository").arg(repository.path()).arg("--output").arg(output);
    let done = client.output().map_err(|error| Failure::Other(format!("the client does not start: {error}")))?;
    let told = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    let failed = |told| format!("the client: {}\n{told}", done.status);
    match done.status.code() {
        Some(0) => Ok(told),
        Some(UNWELL) => Err(Failure::Unwell(failed(told))),
        _ => Err(Failure::Other(failed(told))),
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
