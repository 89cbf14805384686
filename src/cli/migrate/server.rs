//! What of a server's command line works, by the tables that the server itself reads its flags with.

use std::ffi::{OsStr, OsString};

use super::container::Container;
use super::differences as rows;
use super::invocation::Invocation;
use super::libraries;
use super::report::Report;
use crate::abi::cache;
use crate::cli::Arguments;
use crate::cli::flags::{Action, Flag};
use crate::cli::options::{Listen, ModelControl, OptionsError, ServeOptions, Survey, SurveyedFlag};
use crate::repository::store;
use crate::server::host_policies;
use crate::server::options::CacheFacts;
use nereid_backend::python;

/// The release that this server follows (docs/contract/README.md): year and month.
const RELEASE: (u32, u32) = (26, 11);
/// Flags whose files the server writes: they need not exist.
const WRITTEN: [&str; 2] = ["log-file", "trace-file"];
/// The address that only programs of this host reach.
const LOCAL: &str = "127.0.0.1";
const EVERYWHERE: &str = "0.0.0.0";

/// Looks up a variable of the server's environment.
type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Adds what is known of the command line; returns the options of the server that replaces it.
pub fn look_at(invocation: &Invocation, environment: Environment<'_>, report: &mut Report) -> ServeOptions {
    let given = survey(&invocation.words, environment);
    given.flags.iter().for_each(|flag| look_at_flag(flag, report));
    for error in &given.errors {
        look_at_error(error, report);
    }
    let mut words = translated(&given.flags, invocation.container.as_ref(), report);
    if let Some(container) = &invocation.container {
        look_at_container(container, report);
        if !container.has_host_network {
            publish(container, &given.options, &mut words, report);
        }
    }
    if invocation.ranks > 1 {
        let text =
            format!("mpirun starts {} processes that share a model; this server is one process", invocation.ranks);
        let instead = vec![
            "one process whose backend starts the others itself, as TensorRT-LLM's does in orchestrator mode"
                .to_owned(),
            "a model that fits one GPU, with an instance on each".to_owned(),
        ];
        report.missing("mpirun", text, instead);
    } else if invocation.ranks == 1 {
        report.works("mpirun", "starts one process, and can be left out");
    }
    for other in &invocation.others {
        report.unseen("command line", format!("`{other}` is another command"));
    }
    let options = survey(&words, environment).options;
    look_at_settings(&options, report);
    let variables = invocation.environment.iter().map(|(name, value)| format!("{name}={value}"));
    let start = if invocation.environment.is_empty() { None } else { Some("env".to_owned()) };
    report.command = Some(start.into_iter().chain(variables).chain(["nereid".to_owned()]).chain(words).collect());
    options
}

fn survey(words: &[String], environment: Environment<'_>) -> Survey {
    let words = words.iter().map(OsString::from).collect();
    Survey::of(&Arguments { program: "nereid".into(), words }, environment)
}

fn look_at_flag(SurveyedFlag { flag, error, .. }: &SurveyedFlag, report: &mut Report) {
    let subject = format!("--{}", flag.name);
    match (error, &flag.action) {
        (Some(OptionsError::Help), _) => {
            report.missing(subject, "prints the usage text: no server starts", vec!["leave it out".to_owned()]);
        }
        (Some(error), _) => {
            let value = flag.value.unwrap_or_default();
            report.missing(subject, error.to_string(), vec![format!("a value of the form {value}: {}", flag.help)]);
        }
        (None, Action::Idle(_, reason)) => {
            report.differs(subject, rows::IDLE_FLAGS, format!("is checked and has no effect: {reason}"));
        }
        (None, Action::ForGpus(_)) => report.works(subject, "as in Triton, where there is a GPU"),
        (None, Action::Set(_) | Action::Help) => report.works(subject, "as in Triton"),
    }
}

fn look_at_error(error: &OptionsError, report: &mut Report) {
    let instead = match error {
        OptionsError::Getopt(_) => "leave it out: Triton's release 26.11 does not know it either",
        OptionsError::Unexpected(_) => "leave it out: a server takes no words beside its flags",
        _ => "correct it: Triton refuses it with the same text",
    };
    report.missing("command line", error.to_string(), vec![instead.to_owned()]);
}

/// The flags as this server takes them: those that it knows, with the paths of this host.
fn translated(flags: &[SurveyedFlag], container: Option<&Container>, report: &mut Report) -> Vec<String> {
    let known = flags.iter().filter(|given| given.error.is_none());
    let word = |SurveyedFlag { flag, value, .. }: &SurveyedFlag| {
        let Some(value) = value.as_deref().map(OsStr::to_string_lossy) else { return format!("--{}", flag.name) };
        let host = container.map(|container| on_host(flag, &value, container, report));
        format!("--{}={}", flag.name, host.as_deref().unwrap_or(&value))
    };
    known.map(word).collect()
}

/// The value with the path of this host in it. A path that no mount has is missing.
fn on_host(flag: &Flag, value: &str, container: &Container, report: &mut Report) -> String {
    // A path may also be the value of a setting: onnxruntime,library=/opt/libonnxruntime.so.
    let (before, path) = match flag.value {
        Some("path") if !value.contains("://") => ("", value),
        Some("path") | None => return value.to_owned(),
        Some(form) => match value.rsplit_once('=').filter(|(_, path)| form.contains('=') && path.starts_with('/')) {
            Some((_, path)) => (value.strip_suffix(path).unwrap_or_default(), path),
            None => return value.to_owned(),
        },
    };
    match container.host_path(path) {
        Some(host) => format!("{before}{host}"),
        None if before.is_empty() && !WRITTEN.contains(&flag.name) => {
            let text = format!("{path} is inside the image {}: no mount has it", container.image);
            let instead = format!("copy it out with `docker cp`, and give --{} the copy's path", flag.name);
            report.missing(format!("--{}", flag.name), text, vec![instead]);
            value.to_owned()
        }
        None => value.to_owned(),
    }
}

fn look_at_container(container: &Container, report: &mut Report) {
    let image = &container.image;
    match container.release() {
        Some(release) if release < RELEASE => report.differs_as_listed(format!("image {image}"), rows::NEWER),
        Some(release) if release > RELEASE => report.differs_as_listed(format!("image {image}"), rows::LATER),
        Some(_) => report.works(format!("image {image}"), "is of the release that this server follows"),
        None => {}
    }
    for option in &container.unread {
        report.unseen(option, "its variables are not read");
    }
}

/// Gives the ports of this host that a container publishes, and restricts the others to this host.
fn publish(container: &Container, options: &ServeOptions, words: &mut Vec<String>, report: &mut Report) {
    let services: [(&str, Option<&str>, &Listen); 5] = [
        ("http-port", Some("http-address"), &options.http),
        ("grpc-port", Some("grpc-address"), &options.grpc),
        ("metrics-port", Some("metrics-address"), &options.metrics),
        ("sagemaker-port", None, &options.sagemaker),
        ("vertex-ai-port", None, &options.vertex),
    ];
    // The metrics port listens where that of HTTP does, unless it has an address of its own.
    let mut is_http_restricted = false;
    for (port, address, listen) in services.into_iter().filter(|(_, _, listen)| listen.allowed) {
        let published = container.ports.iter().find(|port| i32::from(port.inside) == listen.port);
        if let Some(host) =
            published.and_then(|published| published.host).filter(|host| i32::from(*host) != listen.port)
        {
            words.push(format!("--{port}={host}"));
        }
        let wanted = match published {
            Some(published) => published.address.as_deref(),
            None => {
                let text =
                    format!("port {} is not published by the container; {LOCAL} keeps it on this host", listen.port);
                report.differs(format!("--{port}"), rows::UNPUBLISHED, text);
                Some(LOCAL)
            }
        };
        let Some(flag) = address else { continue };
        match wanted {
            Some(wanted) => words.push(format!("--{flag}={wanted}")),
            None if flag == "metrics-address" && is_http_restricted => words.push(format!("--{flag}={EVERYWHERE}")),
            None => {}
        }
        is_http_restricted |= flag == "http-address" && wanted.is_some();
    }
}

/// What several flags decide together.
fn look_at_settings(options: &ServeOptions, report: &mut Report) {
    if let Err(status) = options.check() {
        let instead = vec!["correct it: Triton refuses it with the same text".to_owned()];
        report.missing("command line", status.message, instead);
    }
    if options.model_control != ModelControl::None {
        report.differs_as_listed("--model-control-mode", rows::CHANGES);
    }
    if matches!(options.model_control, ModelControl::Poll { .. }) {
        report.differs_as_listed("--model-control-mode", rows::DISAPPEARS);
    }
    let of_python = options.backend_settings.iter().filter(|setting| setting.backend.as_deref() == Some(python::NAME));
    for setting in of_python.filter(|setting| python::WITHOUT_EFFECT.contains(&&*setting.key)) {
        let text = format!("the setting {} of the Python backend is checked and has no effect", setting.key);
        report.differs("--backend-config", rows::IDLE_FIELDS, text);
    }
    if let Err(text) = host_policies(options) {
        let instead = vec!["correct it: no model that names the policy could be placed".to_owned()];
        report.missing("--host-policy", text, instead);
    }
    if let Some(cache) = options.cache_facts() {
        look_at_cache(&cache, options, report);
    }
}

fn look_at_cache(facts: &CacheFacts<'_>, options: &ServeOptions, report: &mut Report) {
    let name = facts.name;
    let subject = format!("cache {name}");
    if let Some(status) = &facts.error {
        let instead = vec!["correct --cache-config: Triton refuses it with the same text".to_owned()];
        report.missing(subject, &*status.message, instead);
        return;
    }
    let Some(file) = &facts.library else {
        report.works(subject, "built in");
        return;
    };
    match cache::find(name, file.as_deref(), &options.cache_directory) {
        Ok(file) => {
            report.differs_as_listed(&*subject, rows::CACHE_ENTRIES);
            libraries::look_at(&subject, &file, &cache::REQUIRED, report);
        }
        Err(status) => {
            let instead = "copy the folder of caches out of the image, and give it as --cache-directory";
            report.missing(subject, status.message, vec![instead.to_owned()]);
        }
    }
}

/// Takes the repositories in buckets out of the options, because what is in them is not read. Returns whether there
/// were any.
pub fn leave_buckets_out(options: &mut ServeOptions, report: &mut Report) -> bool {
    let before = options.model_repositories.len();
    options.model_repositories.retain(|location| {
        let shown = location.display().to_string();
        match location.to_str().map_or(Ok(false), store::is_bucket) {
            Ok(false) => true,
            Ok(true) => {
                let text =
                    format!("the bucket is not read; `nereid check {shown}` reads it with this host's credentials");
                report.unseen(format!("repository {shown}"), text);
                false
            }
            Err(status) => {
                let instead = vec!["correct the location: Triton refuses it too".to_owned()];
                report.missing(format!("repository {shown}"), status.message, instead);
                false
            }
        }
    });
    options.model_repositories.len() < before
}
