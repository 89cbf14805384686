//! What both servers answer to the same questions about the same Python models, and what both log of them.

use super::comparison::findings;
use super::known::KNOWN;
use super::servers::{Asked, ours, repository, theirs};
use crate::support::original::original;
use crate::support::python::Python;
use crate::support::python_backend::installed;

/// The lines of a log that models wrote through pb_utils.Logger, behind the letter of their level. Sorted: ours has its
/// warnings and errors from another stream, which is read beside the first one.
fn logged(log: &str) -> Vec<String> {
    let lines = log.lines().filter(|line| line.contains("DIFFERENTIAL") && !line.contains(": DIFFERENTIAL"));
    let lines = lines.map(|line| {
        let (head, text) = line.split_once("] ").unwrap_or_default();
        let level = head.chars().next().unwrap_or('?');
        let place = head.rsplit(' ').next().unwrap_or_default();
        // What 2.51 writes before it has a server to tell it to is not quoted.
        format!("{level} {place} {}", text.trim().trim_matches('"'))
    });
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    lines
}

/// Asked again where the official server ended, which it does now and then by itself.
fn steady(ask: impl Fn() -> Result<Asked, String>) -> Asked {
    for _ in 0..3 {
        match ask() {
            Ok(asked) => return asked,
            Err(error) => println!("once more: {error}"),
        }
    }
    panic!("the official server could not be asked in three attempts");
}

#[test]
fn python_models_answer_as_in_the_official_server() {
    let Some(words) = original() else { return };
    let (Some(installed), Some(client), Some(numpy)) = (installed(), Python::get(), Python::with("numpy-1.txt")) else {
        return;
    };
    let repository = repository();
    let (ours, theirs) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| steady(|| theirs(&words, &installed, &client, &repository)));
        let ours = ours(&numpy.interpreter(), &client, &repository).unwrap_or_else(|error| panic!("{error}"));
        (ours, theirs.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    assert!(theirs.answers.len() > 1000, "{} cases", theirs.answers.len());
    let mut found = findings(&ours.answers, &theirs.answers, &KNOWN);
    let (our_lines, their_lines) = (logged(&ours.log), logged(&theirs.log));
    if our_lines != their_lines {
        found.push(format!("the log\n      ours:   {our_lines:#?}\n      theirs: {their_lines:#?}"));
    }
    assert!(found.is_empty(), "{} findings:\n  {}", found.len(), found.join("\n  "));
}
