//! `--with <example>`: examples that are too large for the repository of this program.
//!
//! Their files are downloaded when one of them is requested; a plain quickstart does not need them.

use std::ffi::OsString;
use std::path::PathBuf;

use super::super::Arguments;
use super::super::runtime::Progress;
use super::preparation::PrepareError;
use super::{chat, minilm};

/// The port that a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interface {
    Http,
    OpenAi,
}

/// A request to try.
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstRequest {
    pub interface: Interface,
    pub path: &'static str,
    pub body: &'static str,
}

/// One of [`EXAMPLES`].
pub(super) struct Example {
    pub name: &'static str,
    pub what: &'static str,
    /// Its models and their descriptions.
    pub models: &'static [(&'static str, &'static str)],
    /// Downloads missing files and returns the model repository.
    pub prepare: fn(&mut dyn Progress) -> Result<PathBuf, PrepareError>,
    pub needs_onnxruntime: bool,
    pub request: FirstRequest,
}

pub(super) const EXAMPLES: [Example; 2] = [
    Example {
        name: "chat",
        what: "a very small language model behind OpenAI's interface, trained on this machine",
        models: &chat::MODELS,
        prepare: chat::prepare,
        needs_onnxruntime: false,
        request: FirstRequest {
            interface: Interface::OpenAi,
            path: "/v1/chat/completions",
            body: "{\"model\":\"chat\",\"stream\":true,\"max_tokens\":60,\
                   \"messages\":[{\"role\":\"user\",\"content\":\"What is Nereid?\"}]}",
        },
    },
    Example {
        name: "minilm",
        what: "text to embeddings: a tokeniser in Python, MiniLM in ONNX Runtime, pooling in Python",
        models: &minilm::MODELS,
        prepare: minilm::prepare,
        needs_onnxruntime: true,
        request: FirstRequest {
            interface: Interface::Http,
            path: "/v2/models/minilm/generate",
            body: r#"{"text":"A happy person."}"#,
        },
    },
];

/// Separates the requested examples from the flags of `serve`. The error is a text for the user.
pub(super) fn take(arguments: &Arguments) -> Result<(Vec<&'static Example>, Arguments), String> {
    let mut examples: Vec<&'static Example> = Vec::new();
    let mut words: Vec<OsString> = Vec::new();
    let mut given = arguments.words.iter();
    while let Some(word) = given.next() {
        let name = match word.to_str() {
            Some("--with") => given.next().cloned().unwrap_or_default(),
            Some(flag) => match flag.strip_prefix("--with=") {
                Some(name) => name.into(),
                None => {
                    words.push(word.clone());
                    continue;
                }
            },
            None => {
                words.push(word.clone());
                continue;
            }
        };
        let name = name.to_string_lossy();
        let Some(example) = EXAMPLES.iter().find(|example| example.name == name) else { return Err(unknown(&name)) };
        if !examples.iter().any(|other| other.name == example.name) {
            examples.push(example);
        }
    }
    Ok((examples, Arguments { program: arguments.program.clone(), words }))
}

fn unknown(name: &str) -> String {
    let known: String = EXAMPLES.iter().map(|example| format!("\n  {:<10}{}", example.name, example.what)).collect();
    match name.is_empty() || name.starts_with('-') {
        true => format!("--with needs the name of an example; there is{known}"),
        false => format!("--with: there is no example '{name}'; there is{known}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(words: &[&str]) -> Result<(Vec<&'static str>, Vec<OsString>), String> {
        let arguments = Arguments { program: "nereid".into(), words: words.iter().map(OsString::from).collect() };
        let (examples, rest) = take(&arguments)?;
        assert_eq!(rest.program, "nereid");
        Ok((examples.iter().map(|example| example.name).collect(), rest.words))
    }

    #[test]
    fn examples_stand_among_the_flags_of_serve() {
        for (words, examples, rest) in [
            (&[][..], &[][..], &[][..]),
            (&["--http-port=1"], &[], &["--http-port=1"]),
            (&["--with", "minilm"], &["minilm"], &[]),
            (&["--with=minilm", "--http-port", "1"], &["minilm"], &["--http-port", "1"]),
            (&["--id", "x", "--with", "minilm", "--with=minilm"], &["minilm"], &["--id", "x"]),
            (&["--with=chat", "--with", "minilm"], &["chat", "minilm"], &[]),
            (&["--without=minilm"], &[], &["--without=minilm"]),
        ] {
            let rest = rest.iter().map(OsString::from).collect();
            assert_eq!(taken(words), Ok((examples.to_vec(), rest)), "{words:?}");
        }
    }

    #[test]
    fn an_unknown_example_is_an_error_with_the_known_ones() {
        for (words, begins) in [
            (&["--with", "bert"][..], "--with: there is no example 'bert'; there is\n  chat      a very small"),
            (&["--with=MiniLM"], "--with: there is no example 'MiniLM'; there is\n  chat"),
            (&["--with"], "--with needs the name of an example; there is\n  chat"),
            (&["--with="], "--with needs the name of an example"),
            (&["--with", "--http-port=1"], "--with needs the name of an example"),
        ] {
            let error = taken(words).unwrap_err();
            assert!(error.starts_with(begins), "{words:?}: {error}");
        }
    }
}
