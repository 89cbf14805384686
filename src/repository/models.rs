//! Which models are served, in which versions and states: one immutable map that shards look into.
//!
//! A change makes a new map; whoever holds an old one finishes with it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::model_config::ModelSpec;
use crate::model_config::labels::Labels;
use crate::observe::statistics::ModelStatistics;
use crate::request::Status;
use crate::scheduler::Scheduler;

/// A version that answers requests.
pub struct ServedModel {
    pub name: String,
    pub version: i64,
    pub spec: Arc<ModelSpec>,
    pub statistics: Arc<ModelStatistics>,
    pub scheduler: Arc<dyn Scheduler>,
    /// Class labels by output name, where an output has a label file.
    pub labels: BTreeMap<String, Labels>,
    pub load_duration_secs: f64,
}

impl std::fmt::Debug for ServedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServedModel({} version {})", self.name, self.version)
    }
}

#[derive(Debug, Clone)]
pub enum VersionState {
    Ready(Arc<ServedModel>),
    /// It could not be loaded, and why.
    Unavailable(String),
}

#[derive(Debug, Clone, Default)]
pub struct Entry {
    pub versions: BTreeMap<i64, VersionState>,
    /// Why there is no version at all.
    pub reason: String,
}

impl Entry {
    pub fn ready(&self) -> impl DoubleEndedIterator<Item = &Arc<ServedModel>> {
        self.versions.values().filter_map(|state| match state {
            VersionState::Ready(model) => Some(model),
            VersionState::Unavailable(_) => None,
        })
    }
}

/// Every model that the server knows, by name.
#[derive(Debug, Default)]
pub struct ModelMap {
    entries: BTreeMap<String, Entry>,
    /// Requests name their model: this finds the highest ready version in one step.
    latest: HashMap<Box<[u8]>, Arc<ServedModel>>,
}

impl ModelMap {
    pub fn new(entries: BTreeMap<String, Entry>) -> ModelMap {
        let latest = entries
            .iter()
            .filter_map(|(name, entry)| Some((name.as_bytes().into(), Arc::clone(entry.ready().next_back()?))))
            .collect();
        ModelMap { entries, latest }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.entries.iter()
    }

    /// Every version that answers requests, by name, then by version.
    pub fn ready(&self) -> impl Iterator<Item = &Arc<ServedModel>> {
        self.entries.values().flat_map(Entry::ready)
    }

    fn entry(&self, name: &[u8]) -> Option<&Entry> {
        self.entries.get(std::str::from_utf8(name).ok()?)
    }

    /// The version that a request means; `None` for the highest that is ready (http.md section 2, "Model lookup").
    pub fn lookup(&self, name: &[u8], version: Option<i64>) -> Result<&Arc<ServedModel>, Status> {
        let unknown = |what: String| format!("Request for unknown model: '{}'{what}", String::from_utf8_lossy(name));
        let Some(version) = version else {
            if let Some(model) = self.latest.get(name) {
                return Ok(model);
            }
            let what = if self.entry(name).is_some() { " has no available versions" } else { " is not found" };
            return Err(Status::not_found(unknown(what.to_owned())));
        };
        match self.entry(name).map(|entry| entry.versions.get(&version)) {
            None => Err(Status::not_found(unknown(" is not found".to_owned()))),
            Some(None) => Err(Status::not_found(unknown(format!(" version {version} is not found")))),
            Some(Some(VersionState::Unavailable(_))) => {
                Err(Status::unavailable(unknown(format!(" version {version} is not at ready state"))))
            }
            Some(Some(VersionState::Ready(model))) => Ok(model),
        }
    }

    /// The ready versions of a model, ascending.
    pub fn ready_versions(&self, name: &str) -> impl Iterator<Item = i64> {
        self.entries.get(name).into_iter().flat_map(|entry| entry.ready().map(|model| model.version))
    }

    /// The versions that statistics are asked of: all of a model, or one (metrics.md section 3).
    pub fn statistics_of(&self, name: &[u8], version: Option<i64>) -> Result<Vec<&Arc<ServedModel>>, Status> {
        if name.is_empty() {
            return Ok(self.ready().collect());
        }
        let shown = String::from_utf8_lossy(name);
        let ready: Vec<_> = self.entry(name).map(|entry| entry.ready().collect()).unwrap_or_default();
        if ready.is_empty() {
            return Err(Status::invalid(format!("requested model '{shown}' is not available")));
        }
        let Some(version) = version else { return Ok(ready) };
        let found: Vec<_> = ready.into_iter().filter(|model| model.version == version).collect();
        match found.is_empty() {
            true => Err(Status::invalid(format!("requested model version is not available for model '{shown}'"))),
            false => Ok(found),
        }
    }

    /// Every known model has a version and every version is ready: what strict readiness asks.
    pub fn is_complete(&self) -> bool {
        self.entries.values().all(|entry| {
            let all_ready = entry.versions.values().all(|state| matches!(state, VersionState::Ready(_)));
            all_ready && !entry.versions.is_empty()
        })
    }
}

/// Reads a version as a path or message gives it; empty is none. The texts are those of http.md section 2.
pub fn parse_version(text: &[u8]) -> Result<Option<i64>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    let shown = String::from_utf8_lossy(text);
    // C's stol: blanks, a sign, digits, and whatever follows them.
    let trimmed = text.trim_ascii_start();
    let (negative, digits) = match trimmed.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, trimmed),
    };
    let digits = &digits[..digits.iter().take_while(|byte| byte.is_ascii_digit()).count()];
    let number = std::str::from_utf8(digits).ok().filter(|digits| !digits.is_empty());
    match number.and_then(|digits| digits.parse::<i64>().ok()) {
        None => Err(Status::invalid(format!(
            "failed to get model version from specified version string '{shown}' (details: stol), version should be an \
             integral value > 0"
        ))),
        Some(_) if negative => Err(Status::invalid(format!(
            "invalid model version specified '{shown}' , version should be an integral value > 0"
        ))),
        Some(version) => Ok(Some(version)),
    }
}
