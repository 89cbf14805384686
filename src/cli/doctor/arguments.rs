//! The command line of `nereid doctor`: its own words, and options of serve.

use super::access::User;
use crate::cli::Arguments;
use crate::cli::check::arguments::split;
use crate::cli::options::ServeOptions;

pub const USAGE: &str = "\
Usage: nereid doctor [<repository>...] [--user=<name>] [--format=text|json] [options of serve]

Checks the host for a server with these options, before it is started: kernel and io_uring, cores, memory, limits,
runtimes, Python, GPUs, ports, and whether the user of the server may read and write its files. Nothing is changed, and
no model is loaded; `nereid check` checks the models themselves.

  --user=<name>        The user that the server will run as: a name, a number, or <uid>:<gid>. Default: the caller.
  --format=text|json   The form of the report. Default: text.

Each finding is ok, a warning (the server runs, with less than it could have) or a problem (it does not start, or does
not serve what it should), with the next step. Exit code 1 says that there is a problem.
";

pub struct DoctorArguments {
    pub options: ServeOptions,
    pub user: User,
    pub is_json: bool,
}

impl DoctorArguments {
    /// `None` if help is requested. The error is the whole text for stderr.
    pub fn parse(arguments: &Arguments) -> Result<Option<DoctorArguments>, String> {
        let wrong = |what: String| format!("error: {what}\nTry `nereid doctor --help`.\n");
        let (mut user, mut is_json, mut rest) = (None, false, Vec::new());
        let mut words = arguments.words.iter();
        while let Some(word) = words.next() {
            let text = word.to_str().unwrap_or_default();
            match text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value))) {
                ("--help" | "-h", None) => return Ok(None),
                ("--format", Some("json")) => is_json = true,
                ("--format", Some("text")) => is_json = false,
                ("--format", value) => {
                    let value = value.unwrap_or_default();
                    return Err(wrong(format!("--format={value}: the formats are text and json")));
                }
                ("--user", Some(name)) => user = Some(name.to_owned()),
                ("--user", None) => user = words.next().map(|name| name.to_string_lossy().into_owned()),
                _ => rest.push(word.clone()),
            }
        }
        let (repositories, mut options) = split(&Arguments { program: arguments.program.clone(), words: rest })?;
        options.model_repositories.extend(repositories.into_iter().map(Into::into));
        let user = match user {
            Some(name) => User::named(&name).map_err(|error| wrong(format!("--user={name}: {error}")))?,
            None => User::of_process(),
        };
        Ok(Some(DoctorArguments { options, user, is_json }))
    }
}
