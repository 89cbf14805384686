//! The responses of both servers to the same requests for the same Python models, and the log messages of both.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::comparison::{Recorded, findings};
use super::known::KNOWN;
use super::servers::{Asked, Failure, ours, repository, theirs};
use nereid_test_support::original::original;
use nereid_test_support::python::Python;
use nereid_test_support::python_backend::installed;
use nereid_test_support::server::{ORIGINAL_WRAPPER, crashes, run_to_end_under};
use nereid_test_support::steadily::{say_that_it_failed, steadily};

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

/// One run of six went wrong on a machine with two busy cores.
const ATTEMPTS: usize = 5;

/// Asked again where the official server crashed, lost the worker of a model or fell silent: it does so now and then by
/// itself, where responses are cancelled. Every other failure stands.
fn steady(ask: impl Fn() -> Result<Asked, Failure>) -> Asked {
    for attempt in 1..=ATTEMPTS {
        let before = crashes();
        match ask() {
            Ok(asked) => return asked,
            Err(Failure::Unwell(_)) if attempt < ATTEMPTS => say_that_it_failed(attempt),
            Err(Failure::Other(_)) if attempt < ATTEMPTS && crashes() > before => say_that_it_failed(attempt),
            Err(failure) => panic!("the official server: {}", failure.text()),
        }
    }
    unreachable!("the last attempt ends in one way or the other");
}

#[test]
fn python_models_answer_as_in_the_official_server() {
    let Some(words) = original() else { return };
    let (Some(installed), Some(client), Some(numpy)) = (installed(), Python::get(), Python::with("numpy-1.txt")) else {
        return;
    };
    let repository = repository();
    let (ours, theirs) = std::thread::scope(|scope| {
        let of_test = std::thread::Builder::new().name("python_models_answer_as_in_the_official_server".to_owned());
        let theirs = of_test.spawn_scoped(scope, || steady(|| theirs(&words, &installed, &client, &repository)));
        let theirs = theirs.expect("a thread");
        let ours =
            ours(&numpy.interpreter(), &client, &repository).unwrap_or_else(|failure| panic!("{}", failure.text()));
        (ours, theirs.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    assert!(theirs.answers.len() > 1000, "{} cases", theirs.answers.len());
    let recorded = Recorded::read();
    recorded.refresh_where_asked(&ours.answers);
    let mut found = findings(&ours.answers, &theirs.answers, &KNOWN, &recorded);
    let (our_lines, their_lines) = (logged(&ours.log), logged(&theirs.log));
    if our_lines != their_lines {
        found.push(format!("the log\n      ours:   {our_lines:#?}\n      theirs: {their_lines:#?}"));
    }
    assert!(found.is_empty(), "{} findings:\n  {}", found.len(), found.join("\n  "));
}

#[test]
fn a_server_that_is_unwell_is_asked_again_and_any_other_failure_once() {
    for (failure, asked) in [(Failure::Unwell as fn(String) -> Failure, ATTEMPTS), (Failure::Other, 1)] {
        let attempts = Cell::new(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            steady(|| {
                attempts.set(attempts.get() + 1);
                Err(failure("no answer".to_owned()))
            });
        }));
        assert!(outcome.is_err());
        assert_eq!(attempts.get(), asked);
    }
}

#[test]
fn only_a_crash_of_the_official_server_is_excused() {
    let attempts = Cell::new(0);
    let fails_after = |command: &'static str| {
        attempts.set(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            steadily(|| {
                attempts.set(attempts.get() + 1);
                let words = ["sh", "-c", command, ORIGINAL_WRAPPER].map(str::to_owned);
                run_to_end_under(&words, &[]);
                panic!("the comparison fails");
            });
        }));
        assert!(outcome.is_err(), "{command}");
        attempts.get()
    };
    assert_eq!(fails_after("exit 1"), 1);
    assert_eq!(fails_after("kill -TERM $$"), 1);
    assert_eq!(fails_after("kill -SEGV $$"), 3);
}
