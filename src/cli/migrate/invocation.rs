//! Finds the server in a command line: behind shells, containers, mpirun and other programs that start it.

use std::collections::BTreeMap;
use std::path::Path;

use super::container::{Container, Run};
use super::shell;

/// Most programs that start each other.
const DEPTH_MAX: usize = 8;
/// Programs that are the server.
const SERVERS: [&str; 2] = ["tritonserver", "nereid"];
const SHELLS: [&str; 5] = ["sh", "bash", "dash", "zsh", "ash"];
const CONTAINERS: [&str; 3] = ["docker", "podman", "nerdctl"];
const RANKS: [&str; 4] = ["mpirun", "mpiexec", "orterun", "srun"];
/// Programs that a command line may begin with; each starts the program behind its own options.
const STARTERS: [&str; 17] = [
    "sudo",
    "env",
    "exec",
    "nohup",
    "time",
    "setsid",
    "command",
    "nice",
    "ionice",
    "numactl",
    "taskset",
    "timeout",
    "stdbuf",
    "tini",
    "dumb-init",
    "catchsegv",
    "nvidia_entrypoint.sh",
];

/// A server's command line, and what stood around it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Invocation {
    /// The words behind the program's name.
    pub words: Vec<String>,
    /// Variables that the command line itself sets.
    pub environment: BTreeMap<String, String>,
    pub container: Option<Container>,
    /// Processes that mpirun starts; 0 without it.
    pub ranks: u64,
    /// What is not read: other commands of the same line.
    pub others: Vec<String>,
}

/// Whether a command line may begin with this word, so that it is no repository.
pub fn begins(word: &str) -> bool {
    let name = file_name(word);
    is_program(name) || is_assignment(word)
}

fn is_program(name: &str) -> bool {
    [&SERVERS[..], &SHELLS, &CONTAINERS, &RANKS, &STARTERS].iter().any(|names| names.contains(&name))
}

impl Invocation {
    /// The words of a command line; a single one is split as a shell does. The error is a sentence for the user.
    pub fn read(words: &[String], variables: shell::Variables<'_>) -> Result<Invocation, String> {
        let mut found = Invocation::default();
        match words {
            [text] if text.contains(char::is_whitespace) => found.text(text, variables, 0)?,
            words => found.command(words, variables, 0)?,
        }
        Ok(found)
    }

    /// The first command of a text that starts a server.
    fn text(&mut self, text: &str, variables: shell::Variables<'_>, depth: usize) -> Result<(), String> {
        let set = self.environment.clone();
        let lookup = |name: &str| set.get(name).cloned().or_else(|| variables(name));
        let mut error = None;
        let mut is_found = false;
        // Not copied with each attempt.
        let mut others = std::mem::take(&mut self.others);
        for words in shell::commands(text, &lookup)? {
            let mut tried = self.clone();
            match tried.command(&words, variables, depth + 1) {
                Ok(()) if !is_found => {
                    others.append(&mut tried.others);
                    *self = tried;
                    is_found = true;
                }
                Ok(()) => others.push(words.join(" ")),
                Err(why) => {
                    others.push(words.join(" "));
                    // That of the command with the server in it, if there is one.
                    if error.is_none() || words.iter().any(|word| SERVERS.contains(&file_name(word))) {
                        error = Some(why);
                    }
                }
            }
        }
        self.others = others;
        match (is_found, error) {
            (true, _) => Ok(()),
            (false, error) => Err(error.unwrap_or_else(|| "the command line is empty".to_owned())),
        }
    }

    fn command(&mut self, words: &[String], variables: shell::Variables<'_>, depth: usize) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err(format!("more than {DEPTH_MAX} programs start each other"));
        }
        let assigned = words.iter().take_while(|word| is_assignment(word)).count();
        let (assignments, words) = words.split_at(assigned);
        for (name, value) in assignments.iter().filter_map(|word| word.split_once('=')) {
            self.environment.insert(name.to_owned(), value.to_owned());
        }
        let Some((first, rest)) = words.split_first() else {
            return Err("the command line names no tritonserver".to_owned());
        };
        let name = file_name(first);
        if SERVERS.contains(&name) {
            let is_named = rest.first().is_some_and(|word| word == "serve");
            self.words = rest.get(usize::from(is_named)..).unwrap_or_default().to_vec();
            return Ok(());
        }
        // Flags alone.
        if first.starts_with("--") {
            self.words = words.to_vec();
            return Ok(());
        }
        if CONTAINERS.contains(&name) {
            let run = Run::read(rest, variables)?;
            if run.command.is_empty() {
                let image = &run.container.image;
                return Err(format!(
                    "the command that the image '{image}' runs by itself is not known here: write it behind the image"
                ));
            }
            self.container = Some(run.container);
            self.environment.extend(run.environment);
            // Variables of this host have no value inside.
            let set = self.environment.clone();
            return self.command(&run.command, &|name| set.get(name).cloned(), depth + 1);
        }
        if SHELLS.contains(&name) {
            let at =
                rest.iter().position(|word| word.starts_with('-') && !word.starts_with("--") && word.ends_with('c'));
            let text = at.and_then(|at| rest.get(at + 1));
            let text = text.ok_or_else(|| format!("only `{name} -c '<command line>'` is read, no script"))?;
            return self.text(text, variables, depth + 1);
        }
        if RANKS.contains(&name) {
            self.ranks = self.ranks.saturating_add(ranks(rest));
            // All run the same server; the words of the first are read.
            let first = rest.split(|word| word == ":").next().unwrap_or_default();
            return self.command(behind_options(first, name)?, variables, depth + 1);
        }
        if STARTERS.contains(&name) {
            return self.command(behind_options(rest, name)?, variables, depth + 1);
        }
        Err(format!("the command line names no tritonserver: '{first}' is not known"))
    }
}

/// What a program starts: from the next word that names a known program, or sets a variable.
fn behind_options<'a>(words: &'a [String], name: &str) -> Result<&'a [String], String> {
    let at = words.iter().position(|word| is_program(file_name(word)) || is_assignment(word));
    at.and_then(|at| words.get(at..)).ok_or_else(|| format!("the command line names no tritonserver behind '{name}'"))
}

/// The sum of the counts of processes; one where none is given.
fn ranks(words: &[String]) -> u64 {
    let count = |words: &[String]| {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            if ["-n", "-np", "--n", "--np", "-c", "--ntasks"].contains(&name) {
                return value.or(words.next().map(String::as_str)).and_then(|count| count.parse().ok()).unwrap_or(1);
            }
            if SERVERS.contains(&file_name(word)) {
                break;
            }
        }
        1_u64
    };
    words.split(|word| word == ":").map(count).fold(0, u64::saturating_add)
}

fn file_name(word: &str) -> &str {
    Path::new(word).file_name().and_then(|name| name.to_str()).unwrap_or(word)
}

fn is_assignment(word: &str) -> bool {
    let is_name = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    word.split_once('=').is_some_and(|(name, _)| is_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Invocation, String> {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        Invocation::read(&words, &|name| (name == "PWD").then(|| "/here".to_owned()))
    }

    #[test]
    fn long_command_lines_take_time_in_proportion() {
        let many = format!("{}tritonserver --id=x", "A= ".repeat(40_000));
        assert_eq!(read(&[&many]).map(|found| found.words), Ok(vec!["--id=x".to_owned()]));
        let many = format!("{}tritonserver --id=x", "a;".repeat(60_000));
        let found = read(&[&many]).unwrap();
        assert_eq!((found.words, found.others.len()), (vec!["--id=x".to_owned()], 60_000));
    }

    #[test]
    fn the_server_is_found_behind_what_starts_it() {
        for words in [
            &["tritonserver", "--id=x"][..],
            &["/opt/tritonserver/bin/tritonserver", "--id=x"],
            &["nereid", "serve", "--id=x"],
            &["--id=x"],
            &["tritonserver --id=x"],
            &["sudo", "-E", "-u", "root", "tritonserver", "--id=x"],
            &["env", "A=1", "tritonserver", "--id=x"],
            &["numactl --cpunodebind=0 -m 0 nohup tritonserver --id=x > log 2>&1 &"],
            &["bash", "-lc", "exec tritonserver --id=x"],
            &["sh -c 'bash -c \"tritonserver --id=x\"'"],
            &["docker", "run", "image", "tritonserver", "--id=x"],
            &["podman run --entrypoint /opt/tritonserver/bin/tritonserver image --id=x"],
            &["mpirun", "--allow-run-as-root", "-n", "1", "tritonserver", "--id=x"],
        ] {
            assert_eq!(read(words).map(|found| found.words), Ok(vec!["--id=x".to_owned()]), "{words:?}");
        }
    }

    #[test]
    fn what_stands_around_it_is_kept() {
        let found =
            read(&["pip install x && A=1 B= docker run -e C=2 image sh -c 'tritonserver --id=$C'; echo"]).unwrap();
        assert_eq!(found.words, ["--id=2"]);
        assert_eq!(found.others, ["pip install x", "echo"]);
        let environment: Vec<_> = found.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(environment, ["A=1", "B=", "C=2"]);
        assert_eq!(found.container.map(|container| container.image), Some("image".to_owned()));
        let found = read(&["mpirun -n 2 tritonserver --id=a : -np 3 tritonserver --id=b : tritonserver"]).unwrap();
        assert_eq!((found.ranks, found.words), (6, vec!["--id=a".to_owned()]));
        assert_eq!(read(&["tritonserver"]).unwrap().ranks, 0);
    }

    #[test]
    fn a_command_line_without_a_server_is_named() {
        for (words, part) in [
            (&[][..], "names no tritonserver"),
            (&["python3", "x.py"], "'python3' is not known"),
            (&["sudo", "ls"], "behind 'sudo'"),
            (&["docker", "run", "image"], "the command that the image 'image' runs by itself"),
            (&["docker", "run", "image", "sh", "-c", "tritonserver --id=$PWD"], "the variable PWD"),
            (&["bash", "start.sh"], "no script"),
            (&["a; b"], "'a' is not known"),
            (&["a; tritonserver 'x"], "a quote ' has no end"),
            (&[" "], "the command line is empty"),
            (&["sudo sudo sudo sudo sudo sudo sudo sudo sudo sudo tritonserver"], "more than 8 programs"),
        ] {
            let error = read(words).unwrap_err();
            assert!(error.contains(part), "{words:?}: {error}");
        }
        assert!(begins("/usr/bin/docker") && begins("A=b") && !begins("/models") && !begins("models"));
    }
}
