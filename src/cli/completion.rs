//! `nereid completion`: what a shell needs to complete subcommands, options and their values.
//!
//! The scripts are data: they hold every option and ask the program nothing, so that a completion costs no process.

mod bash;
mod fish;
mod zsh;

use std::io::Write as _;
use std::process::ExitCode;

use super::Arguments;
use super::check::print;
use super::subcommands::mistake;

pub const USAGE: &str = "\
Usage: nereid completion bash|zsh|fish

Prints the completions of a shell: subcommands, options and their values.

  bash: nereid completion bash > ~/.local/share/bash-completion/completions/nereid
  zsh:  nereid completion zsh > <directory of $fpath>/_nereid
  fish: nereid completion fish > ~/.config/fish/completions/nereid.fish
";

pub const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// Prints the script of the shell that the words name.
pub fn run(arguments: &Arguments) -> ExitCode {
    let words: Vec<String> = arguments.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let error = match words.as_slice() {
        ["--help" | "-h"] => {
            print(USAGE);
            return ExitCode::SUCCESS;
        }
        [shell] => match script(shell) {
            Some(script) => {
                print(&script);
                return ExitCode::SUCCESS;
            }
            None => format!("there are no completions for '{shell}'"),
        },
        [] => "missing <shell>: bash, zsh or fish".to_owned(),
        _ => "more than one shell".to_owned(),
    };
    let _ = std::io::stderr().write_all(mistake("completion", &error).as_bytes());
    ExitCode::FAILURE
}

fn script(shell: &str) -> Option<String> {
    match shell {
        "bash" => Some(bash::script()),
        "zsh" => Some(zsh::script()),
        "fish" => Some(fish::script()),
        _ => None,
    }
}

/// The first sentence of a help text, without its full stop: a menu has one line for each entry.
fn brief(help: &str) -> &str {
    help.split_once(". ").map_or(help, |(first, _)| first).trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::subcommands::ALL;

    #[test]
    fn every_shell_has_every_option_of_every_subcommand() {
        for shell in SHELLS {
            let script = script(shell).unwrap();
            for one in &ALL {
                assert!(script.contains(one.name), "{shell}: {}", one.name);
                for option in one.options() {
                    let name = match shell {
                        "fish" => format!("-l {}", option.name),
                        _ => format!("--{}", option.name),
                    };
                    assert!(script.contains(&name), "{shell}: {name} of {}", one.name);
                }
            }
        }
        assert_eq!(script("tcsh"), None);
    }

    #[test]
    fn a_menu_has_first_sentences() {
        assert_eq!(brief("Name of it. Default: x."), "Name of it");
        assert_eq!(brief("Print this text and exit."), "Print this text and exit");
        assert_eq!(brief("A list like 0.5,1"), "A list like 0.5,1");
    }
}
