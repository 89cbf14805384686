//! The completions of fish.

use std::fmt::Write as _;

use super::brief;
use crate::cli::subcommands::ALL;

pub fn script() -> String {
    let mut text = "# Completions of nereid for fish; `nereid completion fish` prints them.\n".to_owned();
    for one in &ALL {
        let _ =
            writeln!(text, "complete -c nereid -n __fish_use_subcommand -f -a {} -d {}", one.name, quoted(one.purpose));
    }
    let others: Vec<&str> = ALL.iter().map(|one| one.name).filter(|name| *name != "serve").collect();
    for one in &ALL {
        // Without a subcommand the options are those of serve.
        let condition = match one.name {
            "serve" => format!("not __fish_seen_subcommand_from {}", others.join(" ")),
            name => format!("__fish_seen_subcommand_from {name}"),
        };
        let begin = format!("complete -c nereid -n '{condition}'");
        let words = (one.words)().join(" ");
        if !words.is_empty() {
            let files = if one.takes_files() { "" } else { " -f" };
            let _ = writeln!(text, "{begin}{files} -a '{words}'");
        }
        for option in one.options() {
            let letter = option.letter.map(|letter| format!(" -s {letter}")).unwrap_or_default();
            let values = option.choices();
            let value = match (&option.value, values.is_empty()) {
                (None, _) => String::new(),
                (Some(_), true) => " -r -F".to_owned(),
                (Some(_), false) => format!(" -x -a '{}'", values.join(" ")),
            };
            let about = match brief(&option.help) {
                "" => String::new(),
                about => format!(" -d {}", quoted(about)),
            };
            let _ = writeln!(text, "{begin} -l {}{letter}{value}{about}", option.name);
        }
    }
    text
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}
