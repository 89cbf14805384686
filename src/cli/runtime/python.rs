//! `nereid runtime install python`: an interpreter with numpy for models of the Python backend, in a virtual
//! environment in the user's runtime folder.
//!
//! Scripts of a virtual environment hold its path, so it is made where it stays. It is used from the moment in which a
//! file marks it as complete; an interrupted installation is removed by the next one.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::Progress;
use super::download::detail;
use nereid_backend::python::{COMPLETE, InterpreterInfo, Surroundings, examine_interpreter};
use nereid_backend::runtime_search::runtimes_below;

/// The least requirement of models.
const NUMPY: &str = "numpy>=1.20";
/// More installations than are made in one folder.
const TRIES_MAX: u32 = 1000;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PythonOptions {
    /// `3.12`: that of `python3.12` on the PATH; `None`: that of `python3`.
    pub version: Option<String>,
    /// Requirements for pip, beside numpy.
    pub packages: Vec<String>,
    /// Make a new environment in place of an existing one.
    pub force: bool,
    /// For all users below this prefix; `None`: for this user.
    pub prefix: Option<PathBuf>,
}

/// Why the environment could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    #[error("there is no place for runtimes: neither XDG_DATA_HOME nor HOME is set")]
    NoHome,
    #[error("{0} is needed to make an environment, but it does not start ({1}). Install Python 3.8 or newer")]
    NoPython(String, String),
    #[error("{0} cannot make a virtual environment ({1}). On Debian: apt install python3-venv")]
    NoVenv(String, String),
    #[error("{0} cannot be installed; is this host connected, and are proxies set? pip printed: {1}")]
    Packages(String, String),
    #[error("the environment cannot run models: {0}")]
    Unusable(String),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}

/// Makes the environment for this user, with numpy and `packages`, and returns its interpreter. An existing one gets
/// the missing packages, unless a new one is forced.
pub fn install_python(options: &PythonOptions, progress: &mut dyn Progress) -> Result<PathBuf, PythonError> {
    install_into(&Surroundings::of_process(), options, progress)
}

/// An interpreter that has numpy and `packages`: the installed one, which is made or completed where need be.
pub fn ensure_python(packages: &[&str], progress: &mut dyn Progress) -> Result<PathBuf, PythonError> {
    let packages = packages.iter().map(|package| (*package).to_owned()).collect();
    install_python(&PythonOptions { packages, ..PythonOptions::default() }, progress)
}

pub(super) fn install_into(
    surroundings: &Surroundings,
    options: &PythonOptions,
    progress: &mut dyn Progress,
) -> Result<PathBuf, PythonError> {
    let folder = match &options.prefix {
        Some(prefix) => runtimes_below(prefix).join("python"),
        None => surroundings.user_folder().ok_or(PythonError::NoHome)?,
    };
    if let Some(program) = Surroundings::installed_in(&folder).filter(|_| !options.force)
        && let Ok(info) = examine_interpreter(&program, &[])
        && options.version.as_deref().is_none_or(|version| info.is_of(version))
    {
        if !options.packages.is_empty() {
            progress.step(&format!("Installing {} with pip", options.packages.join(", ")));
            pip_install(&program, &options.packages)?;
        }
        progress.done(&format!("Python {info} with numpy {} is installed already", info.numpy));
        return Ok(program);
    }
    let base = match &options.version {
        Some(version) => format!("python{version}"),
        None => "python3".to_owned(),
    };
    progress.step(&format!("Looking for {base}"));
    let (base, version) = working(surroundings, &base)?;
    fs::create_dir_all(&folder).map_err(|source| PythonError::File { path: folder.clone(), source })?;
    remove_abandoned(&folder);
    let older = environments_in(&folder);
    let mut made = Unfinished::create(&folder, &version)?;
    progress.step(&format!("Making a virtual environment of Python {version}"));
    let words = ["-m".into(), "venv".into(), made.path.clone().into_os_string()];
    let shown = base.display().to_string();
    let output = run(&base, &words).map_err(|error| PythonError::NoPython(shown.clone(), error))?;
    if !output.status.success() {
        return Err(PythonError::NoVenv(shown, detail(&output)));
    }
    let program = made.path.join("bin/python3");
    let mut packages = vec![NUMPY.to_owned()];
    packages.extend(options.packages.iter().cloned());
    progress.step(&format!("Installing {} with pip", packages.join(", ")));
    pip_install(&program, &packages)?;
    progress.step("Asking the interpreter");
    let info = examine_interpreter(&program, &[]).map_err(|problem| PythonError::Unusable(problem.to_string()))?;
    made.finish()?;
    if options.force {
        // Running workers go on with the modules that they have loaded.
        older.iter().for_each(|older| drop(fs::remove_dir_all(older)));
    }
    let InterpreterInfo { numpy, .. } = &info;
    progress.done(&format!("Python {info} with numpy {numpy} is installed in {}", made.path.display()));
    Ok(program)
}

/// The first program `name` on the PATH that prints its version, and the version, as `3.11`.
fn working(surroundings: &Surroundings, name: &str) -> Result<(PathBuf, String), PythonError> {
    let script = "import sys; print('%d.%d' % tuple(sys.version_info[:2]))";
    let mut first = None;
    for program in surroundings.on_path(name) {
        let problem = match run(&program, &["-c".into(), script.into()]) {
            Ok(output) => {
                let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
                if output.status.success() && super::is_version(&version) {
                    return Ok((program, version));
                }
                detail(&output)
            }
            Err(error) => error,
        };
        first.get_or_insert(problem);
    }
    Err(PythonError::NoPython(name.to_owned(), first.unwrap_or_else(|| "it is not on the PATH".to_owned())))
}

fn pip_install(program: &Path, packages: &[String]) -> Result<(), PythonError> {
    let mut command = Command::new(program);
    command.args(["-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]);
    command.args(packages).stdin(Stdio::null());
    let wrong = |text: String| PythonError::Packages(packages.join(", "), text);
    let output = command.output().map_err(|error| wrong(error.to_string()))?;
    if output.status.success() { Ok(()) } else { Err(wrong(detail(&output))) }
}

fn run(program: &Path, arguments: &[OsString]) -> Result<Output, String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    output.map_err(|error| error.to_string())
}

/// An environment that is being made: `<version>-<process>-<number>`. Removed unless it is finished.
struct Unfinished {
    path: PathBuf,
    is_finished: bool,
}

impl Unfinished {
    fn create(folder: &Path, version: &str) -> Result<Unfinished, PythonError> {
        for number in 0..TRIES_MAX {
            let path = folder.join(format!("{version}-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Unfinished { path, is_finished: false }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(PythonError::File { path, source }),
            }
        }
        Err(PythonError::File { path: folder.to_owned(), source: io::ErrorKind::AlreadyExists.into() })
    }

    fn finish(&mut self) -> Result<(), PythonError> {
        let marker = self.path.join(COMPLETE);
        fs::write(&marker, b"").map_err(|source| PythonError::File { path: marker, source })?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Those that are whole.
fn environments_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).filter(|path| path.join(COMPLETE).is_file()).collect()
}

/// Removes leftovers of installations whose process has ended.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| !entry.path().join(COMPLETE).is_file()) {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.split('-').nth(1)?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests;
