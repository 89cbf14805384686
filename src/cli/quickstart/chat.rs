//! The language model: makes a model repository of a tokenizer and a network that are trained on this machine, once.
//!
//! Nothing but two packages is downloaded: the text that both are trained on is part of the program. The folder has the
//! form of minilm's.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::super::runtime::Progress;
use super::environment::{self, Environment, Packages};
use super::preparation::{PrepareError, Workplace};
use nereid_backend::onnxruntime::RUNTIME;
use nereid_backend::runtime_search::Surroundings;

pub(super) const MODELS: [(&str, &str); 1] = [("chat", "answers in a conversation: a very small language model")];

macro_rules! example_files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../examples/chat/", $name)))),*]
    };
}

/// The example as it lies in the checkout, for programs that are far from it.
const FILES: [(&str, &str); 12] = example_files![
    "make_chat.py",
    "conversations.py",
    "network.py",
    "training.py",
    "corpus.txt",
    "template.jinja",
    "requirements.txt",
    "models/chat/config.pbtxt",
    "models/chat/1/engine.py",
    "models/chat/1/guide.py",
    "models/chat/1/model.py",
    "models/chat/1/sampling.py",
];

/// The environment, and room for pip.
const WORK_MIB: u64 = 300;
const WORK: &str = "unfinished";

/// The model repository, made now unless it is there.
pub(super) fn prepare(progress: &mut dyn Progress) -> Result<PathBuf, PrepareError> {
    let data = Surroundings::of_process(&RUNTIME, None).data_home.ok_or(PrepareError::NoHome)?;
    prepare_in(&data.join("nereid/examples/chat"), OsStr::new("python3"), progress)
}

fn prepare_in(folder: &Path, python: &OsStr, progress: &mut dyn Progress) -> Result<PathBuf, PrepareError> {
    let workplace = Workplace::enter(folder, WORK_MIB, progress)?;
    let work = workplace.emptied(WORK)?;
    let result = make(&workplace, &work, python, progress);
    let removed = workplace.remove(&work);
    let repository = result?;
    removed?;
    Ok(repository)
}

/// One attempt, in a folder that is gone with it.
fn make(
    workplace: &Workplace,
    work: &Path,
    python: &OsStr,
    progress: &mut dyn Progress,
) -> Result<PathBuf, PrepareError> {
    let repository = workplace.path(&format!("models-{:016x}", environment::fingerprint(&FILES)));
    let packages = Packages {
        requirements: contents_of("requirements.txt"),
        names: "numpy and tokenizers",
        check: "import numpy, tokenizers, threadpoolctl",
    };
    let environment = Environment::in_workplace(workplace, work, packages);
    let is_usable = environment.is_usable();
    if is_usable && repository.is_dir() {
        progress.done(&format!("The model chat is there already: {}", repository.display()));
        return Ok(repository);
    }
    if !is_usable {
        environment.make(python, progress)?;
    }
    if !repository.is_dir() {
        for (name, contents) in FILES {
            workplace.write(&work.join(name), contents)?;
        }
        let made = work.join("models-made");
        let mut script = environment.script(&work.join("make_chat.py"), &made);
        let ended = environment.run_script(&mut script, progress)?;
        workplace.succeeded(&ended, "training the model chat")?;
        workplace.put(&made, &repository)?;
    }
    progress.done(&format!("The model chat is made: {}", repository.display()));
    Ok(repository)
}

fn contents_of(name: &str) -> &'static str {
    FILES.iter().find(|(other, _)| *other == name).map_or("", |(_, contents)| contents)
}

#[cfg(test)]
mod tests;
