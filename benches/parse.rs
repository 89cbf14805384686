//! Counts the instructions of the codecs' hot paths and of a batch: `cargo bench --bench parse`.
//!
//! Wall time is noise on a shared machine; the instructions that one operation takes are not. The bench starts itself
//! under valgrind's callgrind, once for K operations and once for 2K, and the difference divided by K is the count, so
//! that start-up and warm-up cancel. Only the operation itself is collected, not the peer that feeds it. Allocations
//! are counted the same way: the paths that serve requests should have none. Without valgrind it prints that and counts
//! nothing.

mod parse {
    pub mod batch;
    pub mod callgrind;
    pub mod grpc;
    pub mod http1;
    pub mod http2;
    pub mod json;
    pub mod operation;
    pub mod speed;
}

use std::process::ExitCode;

use parse::callgrind::{self, Counts};
use parse::operation::{OPERATIONS, repeat};

const TIMES: u64 = 500;
const USAGE: &str = "usage: cargo bench --bench parse -- [--list | --speed] [NAME...]  (a prefix names all with it)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["--repeat", name, times] => repeat_named(name, times),
        // `cargo test --all-targets` runs this binary too.
        _ if !words.contains(&"--bench") => done("skipped: the instruction counts run by `cargo bench --bench parse`"),
        _ if words.contains(&"--speed") => {
            parse::speed::measure();
            ExitCode::SUCCESS
        }
        _ if words.contains(&"--list") => {
            OPERATIONS.iter().for_each(|operation| println!("{:22} {}", operation.name, operation.about));
            ExitCode::SUCCESS
        }
        _ => count(words.into_iter().filter(|word| *word != "--bench").collect()),
    }
}

fn done(text: &str) -> ExitCode {
    println!("{text}");
    ExitCode::SUCCESS
}

/// The part that runs under callgrind.
fn repeat_named(name: &str, times: &str) -> ExitCode {
    let operation = OPERATIONS.iter().find(|operation| operation.name == name);
    let (Some(operation), Ok(times)) = (operation, times.parse()) else { return ExitCode::FAILURE };
    repeat(&mut *(operation.make)(), times);
    ExitCode::SUCCESS
}

fn count(names: Vec<&str>) -> ExitCode {
    if let Some(unknown) = names.iter().find(|name| !OPERATIONS.iter().any(|op| op.name.starts_with(**name))) {
        eprintln!("no operation begins with {unknown:?}\n{USAGE}");
        return ExitCode::from(2);
    }
    let Some(version) = callgrind::version() else {
        return done("SKIPPED: no valgrind on this machine, so no instruction counts");
    };
    println!("{version}, {TIMES} and {} operations\n", 2 * TIMES);
    println!("| operation | instructions | allocations |\n|---|---|---|");
    for operation in OPERATIONS.iter().filter(|op| names.is_empty() || names.iter().any(|n| op.name.starts_with(n))) {
        let counted = callgrind::run(operation.name, TIMES)
            .and_then(|once| callgrind::run(operation.name, 2 * TIMES).map(|twice| (once, twice)));
        match counted {
            Ok((once, twice)) => {
                let Counts { instructions, allocations } = twice.less(once);
                let each = |total: u64| total as f64 / TIMES as f64;
                println!("| {} | {:.0} | {:.2} |", operation.about, each(instructions), each(allocations));
            }
            Err(error) => {
                eprintln!("{}: {error}", operation.name);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
