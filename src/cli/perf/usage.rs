//! The text of `nereid perf --help`, out of the table of flags.

use std::fmt::Write;

use super::flags::{Action, Flag, GROUPS, Group};

const WIDTH: usize = 100;
const INDENT: usize = 8;

const INTRODUCTION: &str = "\
Usage: nereid perf -m <model> [options]

Loads a server of the KServe v2 protocol over HTTP or gRPC, such as Triton, one of OpenAI's interface, such as vLLM, or
Nereid through shared-memory rings, and reports how fast it answers. Flags that perf_analyzer has, too, mean the same.

  nereid perf -m resnet -i grpc --concurrency-range 1:16:5
        Closed loop: 1, 6, 11 and 16 requests in flight. Finds out how much a server can do.
  nereid perf -m resnet -i grpc --request-rate-range 100:1000:100 --html report.html
        Open loop: so many requests a second. Finds out which latency users see at that load.
  nereid perf -m resnet --request-rate-range 100:10000:10 --binary-search -l 5 --percentile 99
        The highest rate at which the 99th percentile of the latency is at most 5 ms.
  nereid perf -m llama --service-kind openai --streaming --concurrency-range 8 --request-count 200
        Chats with a language model: time to the first token, time between tokens, tokens a second.
  nereid perf compare before.json after.json
        Compares two reports of --json; `nereid perf compare --help` explains it.
";

const EXIT_CODES: &str = "
Exit codes: 0 all is well; 1 requests failed; 2 a load point was not stable, or not sustainable; 4 the load generator
was the limit of a load point, whose figures are void; 99 nothing could be measured. Reports are written in all cases
but the last. Where several apply, the first of 1, 4 and 2 is returned.
";

pub fn usage() -> String {
    let mut text = INTRODUCTION.to_owned();
    for group in &GROUPS {
        let _ = writeln!(text, "\n{}:", group.title);
        match group.flags.iter().all(is_refused) {
            true => refused(group, &mut text),
            false => group.flags.iter().for_each(|flag| entry(flag, &mut text)),
        }
    }
    text.push_str(EXIT_CODES);
    text
}

fn is_refused(flag: &Flag) -> bool {
    matches!(flag.action, Action::Refuse(_))
}

fn entry(flag: &Flag, text: &mut String) {
    let letter = flag.letter.map(|letter| format!("-{letter}, ")).unwrap_or_default();
    let value = flag.value.map(|value| format!(" <{value}>")).unwrap_or_default();
    let _ = writeln!(text, "  {letter}--{}{value}", flag.name);
    wrap(flag.help, text);
}

/// Flags with one reason stand together.
fn refused(group: &Group, text: &mut String) {
    let mut names: Vec<String> = Vec::new();
    for (at, flag) in group.flags.iter().enumerate() {
        names.push(format!("--{}", flag.name));
        if group.flags.get(at + 1).is_none_or(|next| next.help != flag.help) {
            let _ = writeln!(text, "  {}", names.join(", "));
            wrap(flag.help, text);
            names.clear();
        }
    }
}

fn wrap(help: &str, text: &mut String) {
    let mut line = String::new();
    for word in help.split_whitespace() {
        if !line.is_empty() && INDENT + line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(text, "{:INDENT$}{line}", "");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(text, "{:INDENT$}{line}", "");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::perf::flags::flags;

    #[test]
    fn the_text_names_every_flag_and_is_narrow() {
        let text = usage();
        for flag in flags() {
            assert!(text.contains(&format!("--{}", flag.name)), "{}", flag.name);
            assert!(!flag.help.is_empty() && flag.help.len() < 300, "{}", flag.name);
        }
        for line in text.lines() {
            assert!(line.chars().count() <= 120, "{line}");
        }
    }
}
