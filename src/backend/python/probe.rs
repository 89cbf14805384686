//! Examines an interpreter, by running it once, whether it can run models.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::environment::Change;
use super::helper_program;
use super::interpreter::{INSTALL_COMMAND, Origin};
use nereid_request::Status;

/// The oldest version that the worker's code supports.
const PYTHON_MIN: (u32, u32) = (3, 8);
const NUMPY_MIN: (u32, u32) = (1, 20);
/// An import of numpy from a slow disk may take long; a program that is no interpreter may never end.
const TIME: Duration = Duration::from_secs(60);
/// The most interpreters with cached results.
const CACHE_MAX: usize = 256;

/// Runs with any Python, version 2 included. Other output of an interpreter at its start is on other lines.
const SCRIPT: &str = r#"
import sys
sys.path[:] = [place for place in sys.path if place]
kind = getattr(getattr(sys, "implementation", None), "name", "cpython")
said = ["nereid", kind, "%d.%d.%d" % tuple(sys.version_info[:3])]
try:
    import numpy
    said += [numpy.__version__, ""]
except BaseException:
    error = sys.exc_info()[1]
    said += ["", ("%s: %s" % (type(error).__name__, error)).replace("\n", " ")]
sys.stdout.write("\n" + "\x1f".join(said) + "\n")
sys.stdout.flush()
"#;
const SEPARATOR: char = '\x1f';

/// The properties that an interpreter reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterpreterInfo {
    pub version: (u32, u32, u32),
    pub numpy: String,
}

impl InterpreterInfo {
    /// `version` as `3.11`.
    pub fn is_of(&self, version: &str) -> bool {
        version == format!("{}.{}", self.version.0, self.version.1)
    }
}

/// Its version.
impl fmt::Display for InterpreterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, patch) = self.version;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// Why an interpreter cannot run models.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("{0}")]
    Unusable(String),
    #[error("it is Python {0}, and models need Python {major}.{minor} or newer",
        major = PYTHON_MIN.0, minor = PYTHON_MIN.1)]
    Old(String),
    #[error("it is {0}; models need CPython, the usual Python")]
    Other(String),
    #[error("it has no numpy, which models need ({0})")]
    NoNumpy(String),
    #[error("its numpy is {0}, and models need {min}.{minor} or newer", min = NUMPY_MIN.0, minor = NUMPY_MIN.1)]
    OldNumpy(String),
}

impl Problem {
    /// The error of a load: which interpreter, the problem, and the remedy.
    pub fn status(&self, program: &Path, origin: Origin) -> Status {
        let program = program.display();
        let other = match origin {
            Origin::Environment => "put another environment into EXECUTION_ENV_PATH".to_owned(),
            _ => {
                format!("run `{INSTALL_COMMAND}`, or name another one with --backend-config=python,interpreter=<path>")
            }
        };
        let advice = match self {
            Problem::NoNumpy(_) => format!("Install it with `{program} -m pip install numpy`, or {other}"),
            Problem::OldNumpy(_) => format!("Renew it with `{program} -m pip install -U numpy`, or {other}"),
            _ => format!("To have one that can, {other}"),
        };
        Status::unavailable(format!(
            "the Python interpreter '{program}' ({origin}) cannot run models: {self}. {advice}"
        ))
    }
}

/// A command that starts `program` with `changes` to the variables.
pub fn command(program: &Path, changes: &[Change]) -> Command {
    let mut command = Command::new(program);
    for (name, value) in changes {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// The program, the modification time of its file, and its variables.
type Key = (PathBuf, Option<SystemTime>, Vec<Change>);
/// The cached results; None for interpreters that cannot run models.
type InfoCache = HashMap<Key, Arc<Mutex<Option<InterpreterInfo>>>>;

/// Examines `program`, unless it was found able before. An unable one is examined again, because it may be repaired
/// meanwhile.
pub fn examine_interpreter(program: &Path, changes: &[Change]) -> Result<InterpreterInfo, Problem> {
    static CACHE: Mutex<Option<InfoCache>> = Mutex::new(None);
    let modified = fs::metadata(program).and_then(|metadata| metadata.modified()).ok();
    let place = {
        let mut known = lock(&CACHE);
        let known = known.get_or_insert_default();
        if known.len() >= CACHE_MAX {
            known.clear();
        }
        Arc::clone(known.entry((program.to_owned(), modified, changes.to_vec())).or_default())
    };
    // Loads at the same time examine a program only once.
    let mut info = lock(&place);
    if let Some(info) = &*info {
        return Ok(info.clone());
    }
    let said = run_probe(program, changes)?;
    *info = Some(said.clone());
    Ok(said)
}

fn run_probe(program: &Path, changes: &[Change]) -> Result<InterpreterInfo, Problem> {
    let mut command = command(program, changes);
    let done = helper_program::run(command.args(["-c", SCRIPT]), TIME)
        .map_err(|error| Problem::Unusable(error.to_string()))?;
    let text = String::from_utf8_lossy(&done.stdout);
    let said = text.lines().find_map(|line| {
        let words: Vec<&str> = line.split(SEPARATOR).collect();
        <[&str; 5]>::try_from(words).ok().filter(|words| words[0] == "nereid")
    });
    let Some([_, kind, version, numpy, missing]) = said else {
        return Err(Problem::Unusable(format!("it does not say what it is: {}", done.detail())));
    };
    let Some([major, minor, patch]) = numbers(version) else {
        return Err(Problem::Unusable(format!("it does not say what it is: {version}")));
    };
    if (major, minor) < PYTHON_MIN {
        return Err(Problem::Old(version.to_owned()));
    }
    // The worker depends on CPython's reference counts and marshal format.
    if kind != "cpython" {
        return Err(Problem::Other(kind.to_owned()));
    }
    if numpy.is_empty() {
        return Err(Problem::NoNumpy(missing.to_owned()));
    }
    if numbers(numpy).is_some_and(|[major, minor, _]| (major, minor) < NUMPY_MIN) {
        return Err(Problem::OldNumpy(numpy.to_owned()));
    }
    Ok(InterpreterInfo { version: (major, minor, patch), numpy: numpy.to_owned() })
}

/// `1.26.4`, `2.0.0rc1`, `2.1`: the leading numbers.
fn numbers(version: &str) -> Option<[u32; 3]> {
    let mut parts = version.split('.').map(|part| {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        part.get(..digits).and_then(|digits| digits.parse().ok())
    });
    Some([parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)])
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::fixtures::TestDirectory;

    #[test]
    fn versions_are_numbers_with_whatever_behind_them() {
        for (text, expected) in [
            ("3.11.7", Some([3, 11, 7])),
            ("2.0.0rc1", Some([2, 0, 0])),
            ("1.26", Some([1, 26, 0])),
            ("2.1.dev0+git", Some([2, 1, 0])),
            ("3", None),
            ("", None),
            ("x.y.z", None),
            ("99999999999.1.1", None),
        ] {
            assert_eq!(numbers(text), expected, "{text}");
        }
    }

    #[test]
    fn what_an_interpreter_says_decides() {
        let place = TestDirectory::new();
        let line = |kind: &str, version: &str, numpy: &str, missing: &str| {
            format!("#!/bin/sh\necho hello\nprintf 'nereid\\037{kind}\\037{version}\\037{numpy}\\037{missing}\\n'\n")
        };
        let ask_of = |script: &str| {
            // Two files of one name in one instant may have the same time.
            let name = format!("python-{}", script.len());
            super::run_probe(&place.program(&name, script), &[])
        };
        let good = InterpreterInfo { version: (3, 8, 0), numpy: "1.20.0".to_owned() };
        assert_eq!(ask_of(&line("cpython", "3.8.0", "1.20.0", "")), Ok(good));
        assert!(ask_of(&line("cpython", "3.99.0", "2.0.0rc1", "")).is_ok());
        for (script, text) in [
            (line("cpython", "3.7.17", "1.21.6", ""), "it is Python 3.7.17, and models need Python 3.8 or newer"),
            (
                line("cpython", "2.7.18", "", "ImportError: x"),
                "it is Python 2.7.18, and models need Python 3.8 or newer",
            ),
            (line("pypy", "3.10.1", "1.26.0", ""), "it is pypy; models need CPython, the usual Python"),
            (
                line("cpython", "3.12.0", "", "ModuleNotFoundError: No module named x"),
                "it has no numpy, which models need (ModuleNotFoundError: No module named x)",
            ),
            (line("cpython", "3.8.10", "1.19.5", ""), "its numpy is 1.19.5, and models need 1.20 or newer"),
            ("#!/bin/sh\necho words >&2\nexit 7\n".to_owned(), "it does not say what it is: words"),
            ("#!/bin/sh\nexit 127\n".to_owned(), "it does not say what it is: exit status: 127"),
            (line("cpython", "three", "2.0", ""), "it does not say what it is: three"),
        ] {
            assert_eq!(ask_of(&script).unwrap_err().to_string(), text);
        }
        let missing = examine_interpreter(&place.path().join("nothing"), &[]).unwrap_err();
        assert!(missing.to_string().starts_with("it does not start: "), "{missing}");
    }

    #[test]
    fn an_interpreter_that_can_is_asked_once_and_one_that_cannot_again() {
        let place = TestDirectory::new();
        let count = place.path().join("count");
        let script = |numpy: &str| {
            format!(
                "#!/bin/sh\necho x >> {}\nprintf 'nereid\\037cpython\\0373.9.1\\037{numpy}\\037\\n'\n",
                count.display()
            )
        };
        let examined = || fs::read_to_string(&count).unwrap().lines().count();
        let program = place.program("python", &script(""));
        for expected in [1, 2] {
            assert!(matches!(examine_interpreter(&program, &[]), Err(Problem::NoNumpy(_))));
            assert_eq!(examined(), expected);
        }
        // As if numpy had been installed: the program itself does not change then.
        let modified = fs::metadata(&program).unwrap().modified().unwrap();
        let change = |at: SystemTime| fs::File::open(&program).unwrap().set_modified(at).unwrap();
        place.program("python", &script("1.26.4"));
        change(modified);
        for _ in 0..3 {
            assert_eq!(examine_interpreter(&program, &[]).unwrap().numpy, "1.26.4");
            assert_eq!(examined(), 3);
        }
        let changes = [("X".into(), Some("1".into()))];
        assert!(
            examine_interpreter(&program, &changes).is_ok() && examined() == 4,
            "other variables, other interpreter"
        );
        change(modified + Duration::from_secs(1));
        assert!(examine_interpreter(&program, &[]).is_ok() && examined() == 5, "another file");
    }

    #[test]
    fn variables_are_set_and_removed() {
        let place = TestDirectory::new();
        let program = place.program("python", "#!/bin/sh\necho \"${ONE-none} ${HOME-none}\"\n");
        let changes: [Change; 2] = [("ONE".into(), Some("1".into())), ("HOME".into(), None)];
        let output = command(&program, &changes).output().unwrap();
        assert_eq!(output.stdout, b"1 none\n");
    }

    #[test]
    fn texts_say_which_interpreter_lacks_what_and_what_to_do() {
        let problem = Problem::NoNumpy("ModuleNotFoundError: No module named 'numpy'".into());
        assert_eq!(
            problem.status(Path::new("/usr/bin/python3"), Origin::Path),
            Status::unavailable(
                "the Python interpreter '/usr/bin/python3' (python3 on the PATH) cannot run models: it has no numpy, \
                 which models need (ModuleNotFoundError: No module named 'numpy'). Install it with `/usr/bin/python3 \
                 -m pip install numpy`, or run `nereid runtime install python`, or name another one with \
                 --backend-config=python,interpreter=<path>"
            )
        );
        assert_eq!(
            Problem::Old("3.6.9".into()).status(Path::new("/e/bin/python3"), Origin::Environment).message,
            "the Python interpreter '/e/bin/python3' (EXECUTION_ENV_PATH) cannot run models: it is Python 3.6.9, and \
             models need Python 3.8 or newer. To have one that can, put another environment into EXECUTION_ENV_PATH"
        );
    }
}
