//! The LoRA adapters of a model, by files of its folder (contract/openai.md section 3.6).
//!
//! A list that cannot be known, as of a repository in a bucket, lets vLLM decide about a name. TensorRT-LLM has the
//! weights by a first request that brings them: an adapter counts as known once such a request has succeeded, and no
//! longer after one that failed, so that the weights go along again. Unlike upstream, files are read inside the
//! repository, wherever the server was started.

use std::fs;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

use super::npy::{self, Array};
use super::{Form, ModelFacts};
use crate::error::Refusal;
use crate::json::Json;
use crate::prepare::parse_json;

const WEIGHTS: &str = "model.lora_weights.npy";
const CONFIG: &str = "model.lora_config.npy";
/// The longest of the JSON files.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Why a model with LoRA adapters cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LoraError {
    #[error("Invalid model name: '{0}'. Model names must be valid file-system-path segment names.")]
    ModelName(String),
    #[error("LoRA directory '{folder}' not found for '{name}' in its model repository")]
    NoFolder { name: String, folder: String },
    #[error("LoRA file '{file}' not found for '{name}' at path: {folder}")]
    NoFile { name: String, folder: String, file: &'static str },
}

/// The adapters of a model.
#[derive(Debug, Default)]
pub enum Loras {
    /// `--lora-separator` is not given.
    #[default]
    Off,
    /// Any name may be one.
    Unknown,
    /// vLLM has their files.
    Names(Vec<String>),
    /// TensorRT-LLM has their weights by requests.
    Files(Vec<Lora>),
}

/// An adapter in files of NumPy.
#[derive(Debug)]
pub struct Lora {
    name: String,
    task_id: i64,
    folder: PathBuf,
    is_known: AtomicBool,
}

impl Loras {
    /// The names that are known, for a listing.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Loras::Off | Loras::Unknown => Vec::new(),
            Loras::Names(names) => names.iter().map(String::as_str).collect(),
            Loras::Files(loras) => loras.iter().map(|lora| lora.name.as_str()).collect(),
        }
    }

    /// Whether a request may name it.
    pub fn allows(&self, name: &str) -> bool {
        match self {
            Loras::Off => false,
            Loras::Unknown => true,
            Loras::Names(names) => names.iter().any(|known| known == name),
            Loras::Files(_) => self.get(name).is_some(),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Lora> {
        match self {
            Loras::Files(loras) => loras.iter().find(|lora| lora.name == name),
            _ => None,
        }
    }
}

impl Lora {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn task_id(&self) -> i64 {
        self.task_id
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The model has the weights.
    pub(super) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    /// Reads the weights, which may be large: on a thread that may block.
    pub(super) fn arrays(&self) -> Result<[(&'static str, Array); 2], Refusal> {
        let array = |file: &str| {
            let path = self.folder.join(file);
            npy::read(&path).map_err(|error| Refusal::server(format!("LoRA file '{file}' of '{}': {error}", self.name)))
        };
        Ok([("lora_weights", array(WEIGHTS)?), ("lora_config", array(CONFIG)?)])
    }
}

impl ModelFacts {
    /// A request for this adapter needs its weights read from files.
    pub(crate) fn needs_weights(&self, lora: &str, form: Form) -> bool {
        let takes_weights = form == Form::TensorRtLlm && self.input("lora_weights").is_some();
        takes_weights && self.loras.get(lora).is_some_and(|lora| !lora.is_known())
    }

    /// A request that brought the weights of an adapter has succeeded.
    pub fn confirm_lora(&self, name: &str) {
        if let Some(lora) = self.loras.get(name) {
            lora.is_known.store(true, Ordering::Relaxed);
        }
    }

    /// A request for an adapter has failed, perhaps as the model has let go of its weights.
    pub fn forget_lora(&self, name: &str) {
        if let Some(lora) = self.loras.get(name) {
            lora.is_known.store(false, Ordering::Relaxed);
        }
    }
}

/// The adapters, and what the operator should know.
pub(super) fn read(model: &str, folder: Option<&Path>, form: Form) -> Result<(Loras, Option<String>), LoraError> {
    if model.trim().is_empty() || model.contains(['/', '\\']) {
        return Err(LoraError::ModelName(model.to_owned()));
    }
    let unknown =
        |why: String| Ok((Loras::Unknown, Some(format!("model '{model}': its LoRA adapters are unknown: {why}"))));
    let Some(folder) = folder else { return Ok((Loras::Unknown, None)) };
    let Some(version) = latest_version(folder) else {
        return unknown("its folder has no version".to_owned());
    };
    if form == Form::Vllm {
        match is_enabled(&version.join("model.json")) {
            Some(true) => {}
            Some(false) => return Ok((Loras::Names(Vec::new()), None)),
            None => return unknown("model.json cannot be read".to_owned()),
        }
    }
    let path = version.join("multi_lora.json");
    if form != Form::Vllm && !path.exists() {
        return Ok((Loras::Files(Vec::new()), None));
    }
    let Some(Json::Object(entries)) = read_json(&path) else {
        return unknown("multi_lora.json cannot be read as an object of JSON".to_owned());
    };
    if form == Form::Vllm {
        return Ok((Loras::Names(entries.into_iter().map(|(name, _)| name).collect()), None));
    }
    let repository = folder.parent().unwrap_or(folder);
    let mut loras = Vec::with_capacity(entries.len());
    for (task_id, (name, value)) in (1..).zip(entries) {
        let Json::Text(relative) = value else {
            return unknown(format!("multi_lora.json has no path for '{name}'"));
        };
        match find(repository, &name, &relative)? {
            Ok(folder) => loras.push(Lora { name, task_id, folder, is_known: AtomicBool::new(false) }),
            Err(why) => return unknown(why),
        }
    }
    Ok((Loras::Files(loras), None))
}

/// The folder of an adapter; the inner error leaves the list unknown.
fn find(repository: &Path, name: &str, relative: &str) -> Result<Result<PathBuf, String>, LoraError> {
    if Path::new(relative).is_absolute() {
        let text = format!("LoRA path '{relative}' for '{name}' must be a relative path inside its model repository");
        return Ok(Err(text));
    }
    let outside = || Ok(Err(format!("LoRA path '{relative}' for '{name}' must be inside its model repository")));
    let mut depth = 0usize;
    for part in Path::new(relative).components() {
        match part {
            Component::ParentDir => match depth.checked_sub(1) {
                Some(above) => depth = above,
                None => return outside(),
            },
            Component::Normal(_) => depth = depth.saturating_add(1),
            _ => {}
        }
    }
    let no_folder = || LoraError::NoFolder { name: name.to_owned(), folder: relative.to_owned() };
    // Links are followed before the folder is compared.
    let path = repository.join(relative).canonicalize().map_err(|_| no_folder())?;
    if !repository.canonicalize().is_ok_and(|repository| path.starts_with(repository)) {
        return outside();
    }
    if !path.is_dir() {
        return Err(no_folder());
    }
    for file in [WEIGHTS, CONFIG] {
        if !path.join(file).is_file() {
            return Err(LoraError::NoFile { name: name.to_owned(), folder: relative.to_owned(), file });
        }
    }
    Ok(Ok(path))
}

/// The folder of the highest version.
fn latest_version(folder: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(folder).ok()?.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        let name = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))?;
        Some((name.parse::<u64>().ok().filter(|&version| version > 0)?, name.to_owned()))
    });
    versions.max().map(|(_, name)| folder.join(name))
}

/// Whether vLLM has adapters at all; a text is taken as well as a truth value.
fn is_enabled(path: &Path) -> Option<bool> {
    let Json::Object(members) = read_json(path)? else { return None };
    Some(members.iter().any(|(name, value)| {
        name == "enable_lora"
            && match value {
                Json::Bool(value) => *value,
                Json::Text(text) => text.eq_ignore_ascii_case("true"),
                _ => false,
            }
    }))
}

fn read_json(path: &Path) -> Option<Json> {
    let metadata = fs::metadata(path).ok()?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return None;
    }
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    parse_json(&bytes).ok()
}
