//! The Python environment of an example: made once with venv and pip, and looked at before it is used again.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::runtime::Progress;
use super::preparation::{Ended, Event, PrepareError, Workplace};

/// The environment's folder, as seen from the directory of a model in a repository beside it: both can be moved
/// together.
pub(super) const FROM_A_MODEL: &str = "$$TRITON_MODEL_DIRECTORY/../../python";
/// A file in the environment once all packages are installed; it holds the requirements that they were installed for.
pub(super) const COMPLETE: &str = "complete";
const REQUIREMENTS: &str = "requirements.txt";

/// What is installed.
pub(super) struct Packages {
    /// As pip reads them from a file.
    pub requirements: &'static str,
    /// Their names, for messages.
    pub names: &'static str,
    /// A program that uses all of them.
    pub check: &'static str,
}

/// An environment and the folder in which an attempt works.
pub(super) struct Environment<'a> {
    workplace: &'a Workplace,
    work: &'a Path,
    folder: PathBuf,
    packages: Packages,
}

impl Environment<'_> {
    pub fn in_workplace<'a>(workplace: &'a Workplace, work: &'a Path, packages: Packages) -> Environment<'a> {
        Environment { workplace, work, folder: workplace.path("python"), packages }
    }

    /// An interpreter that was replaced or removed leaves an environment that does not start any more.
    pub fn is_usable(&self) -> bool {
        let installed = std::fs::read_to_string(self.folder.join(COMPLETE));
        if !installed.is_ok_and(|installed| installed == self.packages.requirements) {
            return false;
        }
        let mut import = self.command(self.interpreter(), &["-c", self.packages.check]);
        self.workplace.run(&mut import, &mut |_| {}).is_ok_and(|ended| ended.status.success())
    }

    /// Makes it anew.
    pub fn make(&self, python: &OsStr, progress: &mut dyn Progress) -> Result<(), PrepareError> {
        progress.step("Making a Python environment");
        let ended = self.run(&mut self.command(python, &["--version"]), &mut |_| {})?;
        if !ended.status.success() {
            return Err(PrepareError::NoPython(ended.detail()));
        }
        let mut venv = self.command(python, &["-m", "venv", "--clear"]);
        let ended = self.run(venv.arg(&self.folder), &mut |_| {})?;
        let printed = |sign: &str| ended.last_words.contains(sign);
        if !ended.status.success() && (printed("ensurepip") || printed("No module named venv")) {
            return Err(PrepareError::NoVenv(ended.detail()));
        }
        self.workplace.succeeded(&ended, "making a Python environment")?;
        progress.step(&format!("Downloading {} with pip", self.packages.names));
        let requirements = self.work.join(REQUIREMENTS);
        self.workplace.write(&requirements, self.packages.requirements)?;
        let mut install = self.pip(&["install", "--quiet", "--only-binary=:all:"]);
        let ended = self.run(install.arg("-r").arg(requirements), &mut |_| {})?;
        self.workplace.succeeded(&ended, self.packages.names)?;
        self.workplace.write(&self.folder.join(COMPLETE), self.packages.requirements)
    }

    pub fn pip(&self, words: &[&str]) -> Command {
        let mut command = self.command(self.interpreter(), &["-m", "pip"]);
        command.args(words).args(["--no-input", "--disable-pip-version-check"]);
        command
    }

    /// Runs a script, whose output is shown as progress.
    pub fn run_script(&self, script: &mut Command, progress: &mut dyn Progress) -> Result<Ended, PrepareError> {
        self.run(script, &mut |event| {
            if let Event::Line(line) = event {
                progress.step(line);
            }
        })
    }

    /// A script that writes a repository as `made`, whose models run in this environment.
    pub fn script(&self, script: &Path, made: &Path) -> Command {
        let mut command = self.command(self.interpreter(), &["-B"]);
        command.arg(script).arg("--into").arg(made).args(["--environment", FROM_A_MODEL]);
        command
    }

    pub fn run(&self, command: &mut Command, on_event: &mut dyn FnMut(Event<'_>)) -> Result<Ended, PrepareError> {
        let ended = self.workplace.run(command, on_event);
        ended.map_err(|error| PrepareError::NoPython(format!("{}: {error}", command.get_program().to_string_lossy())))
    }

    fn command(&self, program: impl AsRef<OsStr>, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        // Beside the result: /tmp is small on some hosts, and leftovers there would not be removed.
        command.args(words).env("TMPDIR", self.work).env("PYTHONUNBUFFERED", "1");
        // Variables of another environment would lead this one astray.
        command.env_remove("PYTHONHOME").env_remove("PYTHONPATH");
        command
    }

    fn interpreter(&self) -> PathBuf {
        self.folder.join("bin/python")
    }
}

/// The fingerprint of a repository, by which those of other versions of this program differ (FNV-1a over all inputs).
pub(super) fn fingerprint(files: &[(&str, &str)]) -> u64 {
    let bytes = files.iter().flat_map(|(name, contents)| name.bytes().chain(contents.bytes()));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
