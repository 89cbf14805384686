//! Which Python runs a model's worker, and whether it can.
//!
//! Nothing is compiled for each version of Python, so any interpreter with numpy can be used. It is examined once
//! before a worker depends on it, so that a failing load reports what the interpreter lacks, instead of a worker that
//! dies.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tracing::info;

use super::environment::{self, Change, Environment, Environments};
use super::host;
use super::probe::{self, InterpreterInfo};
use super::settings::Settings;
use crate::ModelContext;
use crate::needed_libraries::needed_libraries;
use nereid_observe::log::verbose;
use nereid_request::Status;

/// The command that installs an interpreter with numpy.
pub const INSTALL_COMMAND: &str = "nereid runtime install python";
/// The stub of another version of Python, which Triton reads from the model's directory.
const STUB: &str = "triton_python_backend_stub";
/// The file that marks an installed environment as complete.
pub const COMPLETE: &str = "complete";

/// The origin of an interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The environment of EXECUTION_ENV_PATH.
    Environment,
    /// The version that the stub in the model's directory was built for.
    Stub,
    /// `--backend-config=python,interpreter=<path>`
    Setting,
    /// The Python program that has loaded the server as a library.
    Host,
    /// The environment that `nereid runtime install python` made.
    Installed,
    Path,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Environment => "EXECUTION_ENV_PATH",
            Origin::Stub => "the version of the model's triton_python_backend_stub",
            Origin::Setting => "--backend-config=python,interpreter",
            Origin::Host => "the Python process that the server runs in",
            Origin::Installed => INSTALL_COMMAND,
            Origin::Path => "python3 on the PATH",
        })
    }
}

/// An interpreter that was examined and can run models.
#[derive(Debug, Clone)]
pub struct Interpreter {
    pub program: PathBuf,
    /// The changes to the server's variables for its processes.
    pub changes: Vec<Change>,
    pub origin: Origin,
    pub info: InterpreterInfo,
    /// Keeps the unpacked environment.
    _environment: Option<Environment>,
}

/// The inputs of the choice, apart from the model.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    pub data_home: Option<PathBuf>,
    /// Folders of runtimes for all users, the best first.
    pub shared: Vec<PathBuf>,
    pub path: Option<OsString>,
    /// The interpreter of this process, if it is a Python program.
    pub host: Option<PathBuf>,
}

impl Surroundings {
    /// Those of this process.
    pub fn of_process() -> Surroundings {
        let surroundings = crate::runtime_search::Surroundings::of_process(&crate::onnxruntime::RUNTIME, None);
        let shared = surroundings.shared_runtimes();
        let (data_home, path) = (surroundings.data_home, std::env::var_os("PATH"));
        Surroundings { data_home, shared, path, host: host::interpreter() }
    }

    /// `<data home>/nereid/runtimes/python`: one folder per installation.
    pub fn user_folder(&self) -> Option<PathBuf> {
        Some(self.data_home.as_ref()?.join("nereid/runtimes/python"))
    }

    /// The interpreter that was installed last, for this user or else for all.
    pub fn installed(&self) -> Option<PathBuf> {
        let shared = self.shared.iter().map(|runtimes| runtimes.join("python"));
        self.user_folder().into_iter().chain(shared).find_map(|folder| Surroundings::installed_in(&folder))
    }

    /// The interpreter that was installed in this folder last.
    pub fn installed_in(folder: &Path) -> Option<PathBuf> {
        let entries = std::fs::read_dir(folder).ok()?;
        let whole = entries.flatten().filter_map(|entry| {
            let modified = entry.path().join(COMPLETE).metadata().ok()?.modified().ok()?;
            let program = entry.path().join("bin/python3");
            program.is_file().then_some((modified, program))
        });
        whole.max().map(|(_, program)| program)
    }

    /// Every program `name` on the PATH, in its order.
    pub fn on_path(&self, name: &str) -> Vec<PathBuf> {
        let directories = self.path.iter().flat_map(std::env::split_paths);
        directories.map(|directory| directory.join(name)).filter(|file| is_program(file)).collect()
    }

    /// The interpreter of models without one of their own: that of the setting, that of this process, the installed
    /// one, or that of the PATH. It is not examined.
    pub fn general(&self, setting: Option<&Path>) -> Result<(Origin, PathBuf), Status> {
        if let Some(named) = setting {
            return self.named(named).map(|program| (Origin::Setting, program));
        }
        if let Some(program) = &self.host {
            return Ok((Origin::Host, program.clone()));
        }
        if let Some(program) = self.installed() {
            return Ok((Origin::Installed, program));
        }
        match self.on_path("python3").into_iter().next() {
            Some(program) => Ok((Origin::Path, program)),
            None => Err(Status::unavailable(format!(
                "there is no python3 on the PATH, which models of the Python backend need. Install Python 3.8 or newer \
                 with numpy, run `{INSTALL_COMMAND}`, or name an interpreter with \
                 --backend-config=python,interpreter=<path>"
            ))),
        }
    }

    /// A path, or a name that is searched on the PATH.
    fn named(&self, named: &Path) -> Result<PathBuf, Status> {
        let wrong = |what: &str| {
            let named = named.display();
            Status::invalid(format!("--backend-config=python,interpreter={named}: {what}"))
        };
        if named.components().count() == 1 && named.is_relative() {
            let found = named.to_str().map(|name| self.on_path(name)).unwrap_or_default().into_iter().next();
            return found.ok_or_else(|| wrong("there is no such program on the PATH"));
        }
        match named.metadata() {
            Err(error) => Err(wrong(&error.to_string())),
            Ok(metadata) if !metadata.is_file() => Err(wrong("this is no file")),
            Ok(_) if !is_program(named) => Err(wrong("this file must not be executed")),
            Ok(_) => Ok(named.to_owned()),
        }
    }
}

impl Interpreter {
    /// The interpreter of a model: that of its environment, that of the version its stub was built for, or the general
    /// one. Unpacks, activates and examines as needed; blocks.
    pub fn find(
        context: &ModelContext,
        settings: &Settings,
        base: Option<&Path>,
        environments: &Environments,
    ) -> Result<Interpreter, Status> {
        Interpreter::find_in(&Surroundings::of_process(), context, settings, base, environments)
    }

    fn find_in(
        surroundings: &Surroundings,
        context: &ModelContext,
        settings: &Settings,
        base: Option<&Path>,
        environments: &Environments,
    ) -> Result<Interpreter, Status> {
        let stub = stub_version(context)?;
        if let Some(path) = environment::path_of(context, base) {
            info!("model '{}': using the Python execution environment {}", context.name, path.display());
            verbose!(1, "Using Python execution env {}", path.display());
            let environment = environments.open(&path)?;
            let program = match &stub {
                Some(version) => environment.directory.join(format!("bin/python{version}")),
                None => environment.interpreter()?,
            };
            let program = if program.is_file() { program } else { environment.interpreter()? };
            let changes = environment.activation()?;
            let info = probe::examine_interpreter(&program, &changes)
                .map_err(|problem| problem.status(&program, Origin::Environment))?;
            if let Some(version) = stub.filter(|version| !info.is_of(version)) {
                return Err(Status::invalid(format!(
                    "the model's {STUB} was built for Python {version}, but the environment of EXECUTION_ENV_PATH has \
                     Python {info}; remove the stub to use that one"
                )));
            }
            let origin = Origin::Environment;
            return Ok(Interpreter { program, changes, origin, info, _environment: Some(environment) });
        }
        let (origin, program, info) = match &stub {
            Some(version) => surroundings.of_version(context, settings, version)?,
            None => {
                let (origin, program) = surroundings.general(settings.interpreter.as_deref())?;
                let info =
                    probe::examine_interpreter(&program, &[]).map_err(|problem| problem.status(&program, origin))?;
                (origin, program, info)
            }
        };
        Ok(Interpreter { program, changes: Vec::new(), origin, info, _environment: None })
    }

    /// Checks a model's settings without running or unpacking anything.
    pub fn examine(context: &ModelContext, settings: &Settings, base: Option<&Path>) -> Result<(), Status> {
        let stub = stub_version(context)?;
        if let Some(path) = environment::path_of(context, base) {
            return environment::examine(&path);
        }
        match stub {
            Some(_) => Ok(()),
            None => Surroundings::of_process().general(settings.interpreter.as_deref()).map(|_| ()),
        }
    }

    /// Whether it is that of an EXECUTION_ENV_PATH.
    pub fn has_environment(&self) -> bool {
        self.origin == Origin::Environment
    }

    /// A command that starts it with its variables; the caller adds the script and its arguments.
    pub fn command(&self) -> Command {
        probe::command(&self.program, &self.changes)
    }
}

/// For the log.
impl fmt::Display for Interpreter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Interpreter { program, origin, info, .. } = self;
        write!(f, "Python {info} with numpy {}: {} ({origin})", info.numpy, program.display())
    }
}

/// `3.X` if the model's directory has a stub of Triton's, which is a program for that version only. It is not run: the
/// server's worker runs with any version.
fn stub_version(context: &ModelContext) -> Result<Option<String>, Status> {
    let stub = context.directory.join(STUB);
    if !stub.is_file() {
        return Ok(None);
    }
    let names = needed_libraries(&stub).unwrap_or_default();
    let version = names.iter().find_map(|name| {
        let rest = name.strip_prefix("libpython")?;
        let version = rest.split(".so").next()?.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let is_version = version.strip_prefix("3.").is_some_and(|minor| minor.parse::<u16>().is_ok());
        is_version.then(|| version.to_owned())
    });
    version.map(Some).ok_or_else(|| {
        Status::invalid(format!(
            "'{}' does not say which Python it was built for: it needs no libpython3. Nereid does not run stubs of \
             Triton's; remove it, and choose an interpreter with EXECUTION_ENV_PATH or \
             --backend-config=python,interpreter=<path>",
            stub.display()
        ))
    })
}

impl Surroundings {
    /// An interpreter for a stub: the first of its version on the PATH that can run models, or the general one if it is
    /// of this version.
    fn of_version(
        &self,
        context: &ModelContext,
        settings: &Settings,
        version: &str,
    ) -> Result<(Origin, PathBuf, InterpreterInfo), Status> {
        let mut programs = self.on_path(&format!("python{version}"));
        let named = programs.len();
        programs.extend(self.general(settings.interpreter.as_deref()).ok().map(|(_, program)| program));
        let mut first = None;
        for (at, program) in programs.into_iter().enumerate() {
            match probe::examine_interpreter(&program, &[]) {
                Ok(info) if info.is_of(version) => {
                    let shown = program.display();
                    info!("model '{}': {STUB} is for Python {version}; {shown} runs in its place", context.name);
                    return Ok((Origin::Stub, program, info));
                }
                Err(problem) if at < named => {
                    first.get_or_insert_with(|| problem.status(&program, Origin::Stub));
                }
                _ => {}
            }
        }
        Err(first.unwrap_or_else(|| {
            Status::unavailable(format!(
                "the model's {STUB} was built for Python {version}, and there is no python{version} on the PATH. \
                 Install it with numpy, name an environment with EXECUTION_ENV_PATH, or remove the stub to use the \
                 usual Python"
            ))
        }))
    }
}

fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests;
