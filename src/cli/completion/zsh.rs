//! The completions of zsh.

use std::fmt::Write as _;

use super::brief;
use crate::cli::subcommands::{ALL, CliOption};

/// What comes behind the list of subcommands, and before the options of each.
const CHOOSE: &str = r#"if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then
    _describe subcommand subcommands
    return
fi
local name=serve
if (( ${subcommands[(I)$words[2]:*]} )); then
    name=$words[2]
    shift words
    (( CURRENT-- ))
fi
case $name in
"#;

pub fn script() -> String {
    let mut text =
        "#compdef nereid\n# Completions of nereid for zsh; `nereid completion zsh` prints them.\n".to_owned();
    text.push_str("local -a subcommands=(\n");
    for one in &ALL {
        let _ = writeln!(text, "    '{}:{}'", one.name, one.purpose);
    }
    let _ = write!(text, ")\n{CHOOSE}");
    for one in &ALL {
        let _ = writeln!(text, "{})\n    _arguments -S \\", one.name);
        for option in one.options() {
            let _ = writeln!(text, "        {} \\", spec(&option));
        }
        let words = (one.words)().join(" ");
        if one.takes_files() {
            let _ = writeln!(text, "        '1:argument:({words})' \\");
        }
        let only_files = words.is_empty() || one.takes_files();
        let rest = if only_files { "_files".to_owned() } else { format!("({words})") };
        let _ = writeln!(text, "        '*:argument:{rest}'\n    ;;");
    }
    text.push_str("esac\n");
    text
}

/// What `_arguments` takes for one option, in quotes for the shell.
fn spec(option: &CliOption) -> String {
    let about = format!("[{}]", in_brackets(brief(&option.help)));
    let Some(value) = &option.value else { return format!("'*--{}{about}'", option.name) };
    let values = option.choices();
    let action = if values.is_empty() { "_files".to_owned() } else { format!("({})", values.join(" ")) };
    format!("'*--{}={about}:{}:{action}'", option.name, value.replace('\'', "").replace(':', "\\:"))
}

fn in_brackets(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('[', "\\[").replace(']', "\\]");
    text.replace('\'', "'\\''")
}
