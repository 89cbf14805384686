//! `nereid man`: the manual pages, in the macros of man(7), from the usage texts and the tables of options.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use super::check::print;
use super::subcommands::{self, ALL, CliOption, Subcommand};
use super::{Arguments, help};

pub const USAGE: &str = "\
Usage: nereid man [<subcommand>]
       nereid man --list

Prints the manual page of the program, or of a subcommand, in the format of man(1):
`nereid man perf | man --local-file -`.

  --list  Print the names of all pages: nereid, nereid-serve and so on.
";

/// The page of the whole program.
const PROGRAM: &str = "nereid";

/// Prints the page that the words name.
pub fn run(arguments: &Arguments) -> ExitCode {
    let words: Vec<String> = arguments.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let text = match words.as_slice() {
        ["--help" | "-h"] => USAGE.to_owned(),
        ["--list"] => pages().map(|name| format!("{name}\n")).collect(),
        [] => program(),
        [name] => match ALL.iter().find(|one| *name == one.name || *name == page(one)) {
            Some(subcommand) => describe(subcommand),
            None if *name == PROGRAM => program(),
            None => {
                return mistake(&format!("'{name}' has no manual page; `nereid man --list` prints those there are"));
            }
        },
        _ => return mistake("more than one page"),
    };
    print(&text);
    ExitCode::SUCCESS
}

fn mistake(text: &str) -> ExitCode {
    let _ = std::io::stderr().write_all(subcommands::mistake("man", text).as_bytes());
    ExitCode::FAILURE
}

fn page(subcommand: &Subcommand) -> String {
    format!("{PROGRAM}-{}", subcommand.name)
}

fn pages() -> impl Iterator<Item = String> {
    std::iter::once(PROGRAM.to_owned()).chain(ALL.iter().map(page))
}

fn program() -> String {
    let mut text = head(PROGRAM, "inference server with the interfaces of NVIDIA Triton Inference Server");
    let summary = help::summary();
    let (usage, subcommands) = summary.split_once("\n\n").unwrap_or((&summary, ""));
    let usage = usage.replacen("Usage: ", "       ", 1);
    let _ = write!(text, ".SH SYNOPSIS\n.EX\n{}.EE\n", literal(&usage));
    let _ = write!(text, ".SH SUBCOMMANDS\n.EX\n{}.EE\n", literal(subcommands));
    text.push_str(".SH SEE ALSO\n");
    let names: Vec<String> = ALL.iter().map(|one| format!(".BR {} (1)", escaped(&page(one)))).collect();
    let _ = writeln!(text, "{}", names.join(",\n"));
    text
}

fn describe(subcommand: &Subcommand) -> String {
    let mut text = head(&page(subcommand), subcommand.purpose);
    let usage = (subcommand.usage)();
    if subcommand.has_table() {
        let _ = write!(text, ".SH SYNOPSIS\n.B nereid {}\n[options]\n.SH OPTIONS\n", subcommand.name);
        subcommand.options().iter().for_each(|option| item(option, &mut text));
    } else {
        let synopsis: Vec<&str> = usage.lines().take_while(|line| !line.is_empty()).collect();
        let rest = usage.lines().skip(synopsis.len()).map(|line| format!("{line}\n")).collect::<String>();
        let synopsis = synopsis.join("\n").replacen("Usage: ", "       ", 1);
        let _ = write!(text, ".SH SYNOPSIS\n.EX\n{}.EE\n", literal(&format!("{synopsis}\n")));
        let _ = write!(text, ".SH DESCRIPTION\n.EX\n{}.EE\n", literal(rest.trim_start_matches('\n')));
    }
    text.push_str(".SH SEE ALSO\n.BR nereid (1)\n");
    text
}

fn head(name: &str, purpose: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        ".TH {} 1 \"\" \"nereid {version}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n",
        name.to_uppercase(),
        escaped(name),
        escaped(purpose)
    )
}

fn item(option: &CliOption, text: &mut String) {
    let letter = option.letter.map(|letter| format!("\\-{letter}, ")).unwrap_or_default();
    let value = option.value.as_deref().map(|value| match value.contains('<') {
        true => format!(" \\fI{}\\fR", escaped(value)),
        false => format!(" \\fI<{}>\\fR", escaped(value)),
    });
    let (name, value) = (escaped(&format!("--{}", option.name)), value.unwrap_or_default());
    let _ = write!(text, ".TP\n\\fB{letter}{name}\\fR{value}\n{}", literal(&format!("{}\n", option.help)));
}

/// For text that troff must not read as its own: `\` begins an escape, and `-` alone is a hyphen.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

/// The same, line by line: a point or an apostrophe at the beginning of a line would be a request.
fn literal(text: &str) -> String {
    let line = |line: &str| match line.starts_with(['.', '\'']) {
        true => format!("\\&{}\n", escaped(line)),
        false => format!("{}\n", escaped(line)),
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_its_sections_and_every_option() {
        for one in &ALL {
            let text = describe(one);
            let name = one.name.to_uppercase();
            assert!(text.starts_with(&format!(".TH NEREID-{name} 1 ")), "{text}");
            for section in [".SH NAME\nnereid\\-", ".SH SYNOPSIS\n", ".SH SEE ALSO\n"] {
                assert!(text.contains(section), "{section} of {name}");
            }
            for option in one.options() {
                // Those of serve have the page of serve.
                if option.name != "help" && (one.has_table() || option.help.is_empty()) {
                    assert!(text.contains(&escaped(&format!("--{}", option.name))), "{} of {name}", option.name);
                }
            }
        }
        assert!(program().contains(".BR nereid\\-perf (1),\n"));
        assert_eq!(pages().count(), ALL.len() + 1);
    }

    #[test]
    fn text_is_no_request() {
        assert_eq!(literal("a\\b\n.x\n'y\n-z"), "a\\eb\n\\&.x\n\\&'y\n\\-z\n");
    }
}
