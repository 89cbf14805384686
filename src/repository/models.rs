//! The models, versions and states that are served, as one immutable map that shards read.
//!
//! A change makes a new map, which shares with the old one all that did not change; a holder of an old map finishes its
//! work with it.

mod names;
mod pieces;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use self::names::Names;
use self::pieces::Pieces;
use super::generations::Generations;
use super::index::DUPLICATE;
use super::traffic::{Fields, Reason, Route, RuledModel, Traffic, is_label};
use nereid_request::{Code, RefusalReason, Status};
use nereid_scheduler::ensemble::StepModel;
use nereid_scheduler::{Checks, ServedModel};

/// Identity of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId {
    pub name: String,
    /// The repository's location with `--model-namespacing`, else empty.
    pub namespace: String,
}

/// The states of contract/schedulers.md section 10; a version that was never requested has none.
#[derive(Debug, Clone)]
pub enum VersionState {
    Loading,
    Ready(Arc<ServedModel>),
    /// It takes no new requests and finishes those that it has.
    Unloading,
    /// It was unloaded or could not be loaded, with the reason.
    Unavailable(String),
}

/// The reason of a version that was unloaded on request. It is no error.
pub const UNLOADED: &str = "unloaded";

impl VersionState {
    pub fn name(&self) -> &'static str {
        match self {
            VersionState::Loading => "LOADING",
            VersionState::Ready(_) => "READY",
            VersionState::Unloading => "UNLOADING",
            VersionState::Unavailable(_) => "UNAVAILABLE",
        }
    }

    pub fn reason(&self) -> &str {
        match self {
            VersionState::Unavailable(reason) => reason,
            _ => "",
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct ModelEntry {
    pub versions: BTreeMap<i64, VersionState>,
    /// The reason why the model has no version at all.
    pub reason: String,
    /// Its repository is gone, and the entry is removed with its last version.
    pub is_forgotten: bool,
    /// Which version a request without one gets, where the configuration has a rule.
    pub traffic: Option<Arc<Traffic>>,
    /// The states that it was loaded in; none before its first load.
    pub generations: Option<Arc<Generations>>,
}

impl ModelEntry {
    /// No version serves, loads or unloads.
    pub fn is_over(&self) -> bool {
        self.versions.values().all(|state| matches!(state, VersionState::Unavailable(_)))
    }

    pub fn ready(&self) -> impl DoubleEndedIterator<Item = &Arc<ServedModel>> {
        self.versions.values().filter_map(|state| match state {
            VersionState::Ready(model) => Some(model),
            _ => None,
        })
    }

    fn ruled(&self) -> Option<RuledModel> {
        let traffic = Arc::clone(self.traffic.as_ref()?);
        let ready: Vec<_> = self.ready().cloned().collect();
        (!ready.is_empty()).then_some(RuledModel { traffic, ready })
    }
}

/// The models that a bare name refers to.
#[derive(Debug, Clone)]
enum ModelsOfName {
    One {
        id: Arc<ModelId>,
        entry: Arc<ModelEntry>,
        /// The highest ready version: requests find it in one step.
        latest: Option<Arc<ServedModel>>,
        /// The rule and the ready versions, where there are both.
        ruled: Option<Arc<RuledModel>>,
    },
    /// The number of repositories that have a model of that name.
    Many(usize),
}

/// Every registered model of the server. A copy shares what a change of either leaves as it is.
#[derive(Debug, Clone, Default)]
pub struct ModelMap {
    entries: Pieces<Arc<ModelId>, Arc<ModelEntry>>,
    names: Names<ModelsOfName>,
    /// The rules of names that one model has.
    rules: Pieces<Arc<ModelId>, Arc<RuledModel>>,
    namespacing: bool,
    routing: Routing,
}

/// What the rules of all models read of the heads of requests.
#[derive(Debug, Clone, Default)]
struct Routing {
    /// The names of headers, in lower case and each once.
    fields: Vec<Box<str>>,
    /// Another number for other names, and 0 for none.
    number: u64,
    has_rules: bool,
    has_labels: bool,
}

impl Routing {
    fn of<'a>(rules: impl Iterator<Item = &'a Arc<RuledModel>>) -> Routing {
        let mut routing = Routing::default();
        for ruled in rules {
            routing.has_rules = true;
            routing.has_labels |= !ruled.traffic.rule.labels.is_empty();
            routing.fields.extend(ruled.traffic.rule.fields().map(Box::from));
        }
        routing.fields.sort_unstable();
        routing.fields.dedup();
        if !routing.fields.is_empty() {
            let mut hasher = DefaultHasher::new();
            routing.fields.hash(&mut hasher);
            routing.number = hasher.finish();
        }
        routing
    }
}

/// The version of a request for inference, or the one that its head is checked against while the rule of its model
/// waits for the rest of it.
#[derive(Debug)]
pub struct Choice {
    pub model: Arc<ServedModel>,
    /// Requests of a model without a rule, and those that name a version by its number, have none.
    pub route: Option<Box<Route>>,
}

impl ModelMap {
    /// `namespacing` is `--model-namespacing`.
    pub fn new(entries: BTreeMap<ModelId, ModelEntry>, namespacing: bool) -> ModelMap {
        let mut map = ModelMap { namespacing, ..ModelMap::default() };
        for (id, entry) in entries {
            map.edit(&id, |present| *present = Some(entry));
        }
        map
    }

    /// Changes what is registered of a model: `None` where it is not. False if it is not, as before. The time does not
    /// grow with the models of other names, but for those with traffic rules where this one has a rule.
    pub fn edit(&mut self, id: &ModelId, edit: impl FnOnce(&mut Option<ModelEntry>)) -> bool {
        let mut entry = self.entries.get(id).map(|entry| ModelEntry::clone(entry));
        let was_there = entry.is_some();
        edit(&mut entry);
        let is_there = entry.is_some();
        let id = Arc::new(id.clone());
        match entry {
            Some(entry) => self.entries.insert(Arc::clone(&id), Arc::new(entry)),
            None => self.entries.remove(&*id),
        }
        if was_there || is_there {
            self.name_changed(&id);
        }
        was_there || is_there
    }

    /// Brings what the bare name of a model leads to up to date.
    fn name_changed(&mut self, id: &Arc<ModelId>) {
        let first = ModelId { name: id.name.clone(), namespace: String::new() };
        let mut same = self.entries.range_from(&first).take_while(|(other, _)| other.name == id.name);
        let (only, others) = (same.next(), same.count());
        let (named, ruled) = match only {
            None => (None, None),
            Some((only, entry)) if others == 0 => {
                let (latest, ruled) = (entry.ready().next_back().cloned(), entry.ruled().map(Arc::new));
                let rule = ruled.clone().map(|ruled| (Arc::clone(only), ruled));
                let (id, entry) = (Arc::clone(only), Arc::clone(entry));
                (Some(ModelsOfName::One { id, entry, latest, ruled }), rule)
            }
            Some(_) => (Some(ModelsOfName::Many(others + 1)), None),
        };
        self.names.set(id, named);
        let before = self.rules.range_from(&first).next().map(|(other, _)| Arc::clone(other));
        let before = before.filter(|other| other.name == id.name);
        if before.is_none() && ruled.is_none() {
            return;
        }
        if let Some(before) = before {
            self.rules.remove(&*before);
        }
        if let Some((id, ruled)) = ruled {
            self.rules.insert(id, ruled);
        }
        self.routing = Routing::of(self.rules.iter().map(|(_, ruled)| ruled));
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ModelId, &ModelEntry)> {
        self.entries.iter().map(|(id, entry)| (&**id, &**entry))
    }

    /// The models of that name.
    pub fn of_name(&self, name: &str) -> impl Iterator<Item = (&ModelId, &ModelEntry)> {
        let first = ModelId { name: name.to_owned(), namespace: String::new() };
        let entries = self.entries.range_from(&first).map(|(id, entry)| (&**id, &**entry));
        entries.take_while(move |(id, _)| id.name == first.name)
    }

    pub fn get(&self, id: &ModelId) -> Option<&ModelEntry> {
        self.entries.get(id).map(|entry| &**entry)
    }

    /// Every version that answers requests, by name, then by version.
    pub fn ready(&self) -> impl Iterator<Item = &Arc<ServedModel>> {
        self.entries.iter().flat_map(|(_, entry)| entry.ready())
    }

    fn named(&self, name: &[u8]) -> Result<(&ModelEntry, Option<&Arc<ServedModel>>), Status> {
        let shown = || String::from_utf8_lossy(name);
        match self.names.get(name) {
            Some(ModelsOfName::One { entry, latest, .. }) => Ok((entry, latest.as_ref())),
            Some(ModelsOfName::Many(count)) => Err(Status::invalid(format!(
                "There are {count} identifiers of model '{}' in global map, model namespace must be provided to \
                 resolve ambiguity.",
                shown()
            ))),
            None => {
                let text = format!("Request for unknown model: '{}' is not found", shown());
                Err(if self.namespacing { Status::invalid(text) } else { Status::not_found(text) })
            }
        }
    }

    /// The version that a request names; `None` for the highest that is ready (contract/http.md section 2, "Model
    /// lookup").
    pub fn lookup(&self, name: &[u8], version: Option<i64>) -> Result<&Arc<ServedModel>, Status> {
        if version.is_none()
            && let Some(ModelsOfName::One { latest: Some(latest), .. }) = self.names.get(name)
        {
            return Ok(latest);
        }
        let (entry, latest) = self.named(name)?;
        let unknown = |what: String| format!("Request for unknown model: '{}'{what}", String::from_utf8_lossy(name));
        let Some(version) = version else {
            let text = " has no available versions";
            return latest.ok_or_else(|| Status::not_found(unknown(text.to_owned())));
        };
        match entry.versions.get(&version) {
            None => Err(Status::not_found(unknown(format!(" version {version} is not found")))),
            Some(VersionState::Ready(model)) => Ok(model),
            Some(_) => {
                let text = unknown(format!(" version {version} is not at ready state"));
                Err(Status::refused(RefusalReason::ModelUnavailable, text))
            }
        }
    }

    /// No version of the one model of that name serves: a request for it may have it loaded.
    pub fn is_absent(&self, name: &[u8]) -> bool {
        match self.names.get(name) {
            None => true,
            Some(ModelsOfName::One { latest, .. }) => latest.is_none(),
            Some(ModelsOfName::Many(_)) => false,
        }
    }

    /// The version of a request for inference, as texts of the wire name it; `fields` are its headers. For a model
    /// without a rule this is the same as [`lookup`](ModelMap::lookup).
    #[inline]
    pub fn choose(&self, name: &[u8], version: &[u8], fields: Fields<'_>) -> Result<Choice, Status> {
        match self.routing.has_rules {
            false => Ok(Choice { model: Arc::clone(self.lookup(name, parse_version(version)?)?), route: None }),
            true => self.choose_by_rule(name, version, fields),
        }
    }

    fn choose_by_rule(&self, name: &[u8], version: &[u8], fields: Fields<'_>) -> Result<Choice, Status> {
        let by_number = |version| self.lookup(name, version).map(Arc::clone);
        let Some(ruled) = self.ruled(name) else {
            return Ok(Choice { model: by_number(parse_version(version)?)?, route: None });
        };
        let fixed = |version, reason| {
            let model = by_number(Some(version))?;
            let route = Route::fixed(ruled, &model, reason);
            Ok(Choice { model, route: Some(Box::new(route)) })
        };
        if !version.is_empty() {
            return match ruled.traffic.label(version) {
                Some(version) => fixed(version, Reason::Label),
                None => Ok(Choice { model: by_number(parse_version(version)?)?, route: None }),
            };
        }
        if let Some(given) = ruled.traffic.rule.header.as_deref().and_then(fields).filter(|given| !given.is_empty()) {
            let version = match ruled.traffic.label(given) {
                Some(version) => version,
                None => parse_version(given)?.unwrap_or_default(),
            };
            return fixed(version, Reason::Header);
        }
        let route = Some(Box::new(Route::open(ruled, fields)));
        Ok(Choice { model: by_number(None)?, route })
    }

    fn ruled(&self, name: &[u8]) -> Option<&Arc<RuledModel>> {
        match self.names.get(name)? {
            ModelsOfName::One { ruled, .. } => ruled.as_ref(),
            ModelsOfName::Many(_) => None,
        }
    }

    /// The rule of a model that serves.
    pub fn traffic(&self, name: &[u8]) -> Option<&Arc<Traffic>> {
        self.ruled(name).map(|ruled| &ruled.traffic)
    }

    /// The generations of a model, whether it serves or not; the error is that of every call.
    pub fn generations(&self, name: &[u8]) -> Result<&Arc<Generations>, Status> {
        let (entry, _) = self.named(name)?;
        entry.generations.as_ref().ok_or_else(|| {
            let shown = String::from_utf8_lossy(name);
            Status::not_found(format!("Request for unknown model: '{shown}' has no available versions"))
        })
    }

    /// The headers that rules read, in lower case.
    pub fn routing_fields(&self) -> &[Box<str>] {
        &self.routing.fields
    }

    /// The number of these names: another one if they change.
    #[inline]
    pub fn routing_number(&self) -> u64 {
        self.routing.number
    }

    /// The version that a label of the model means.
    pub fn label(&self, name: &[u8], label: &[u8]) -> Option<i64> {
        if !self.routing.has_labels || !is_label(label) {
            return None;
        }
        self.ruled(name)?.traffic.label(label)
    }

    /// The version that a text of the wire names: a label of the model, or a number.
    pub fn version(&self, name: &[u8], text: &[u8]) -> Result<Option<i64>, Status> {
        match self.label(name, text) {
            Some(version) => Ok(Some(version)),
            None => parse_version(text),
        }
    }

    /// The version that a readiness query names. An unregistered or unready version is `None` and no error; an
    /// ambiguous name is an error.
    pub fn lookup_ready(&self, name: &[u8], version: Option<i64>) -> Result<Option<&Arc<ServedModel>>, Status> {
        match self.lookup(name, version) {
            Ok(model) => Ok(Some(model)),
            Err(status) if matches!(status.code, Code::NotFound | Code::Unavailable) => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// The model of that name, if no two repositories have one.
    pub fn only(&self, name: &str) -> Option<&ModelId> {
        match self.names.get(name.as_bytes())? {
            ModelsOfName::One { id, .. } => Some(id),
            ModelsOfName::Many(_) => None,
        }
    }

    /// The version that a step of an ensemble refers to.
    pub fn composing(&self, wanted: &StepModel) -> Result<&Arc<ServedModel>, Status> {
        if !self.namespacing {
            return self.lookup(wanted.name.as_bytes(), wanted.version);
        }
        let unknown = |what: &str| Status::not_found(format!("Request for unknown model: '{}'{what}", wanted.name));
        let id = ModelId { name: wanted.name.clone(), namespace: wanted.namespace.clone() };
        let entry = self.get(&id).ok_or_else(|| unknown(" is not found"))?;
        match wanted.version {
            None => entry.ready().next_back().ok_or_else(|| unknown(" has no available versions")),
            Some(version) => match entry.versions.get(&version) {
                None => Err(unknown(&format!(" version {version} is not found"))),
                Some(VersionState::Ready(model)) => Ok(model),
                Some(_) => {
                    let Status { message, .. } = unknown(&format!(" version {version} is not at ready state"));
                    Err(Status::refused(RefusalReason::ModelUnavailable, message))
                }
            },
        }
    }

    /// How many references this map holds to a model, which the copies share that it was made from.
    pub(super) fn references(&self, model: &Arc<ServedModel>) -> usize {
        let is_same = |held: &Arc<ServedModel>| usize::from(Arc::ptr_eq(held, model));
        let of_name = match self.names.get(model.name.as_bytes()) {
            Some(ModelsOfName::One { latest, ruled, .. }) => {
                let ruled = ruled.iter().flat_map(|ruled| &ruled.ready).map(is_same).sum::<usize>();
                ruled + latest.as_ref().map_or(0, is_same)
            }
            _ => 0,
        };
        let of_entries: usize = self.of_name(&model.name).flat_map(|(_, entry)| entry.ready()).map(is_same).sum();
        of_name + of_entries
    }

    /// The ready versions of a model, ascending.
    pub fn ready_versions(&self, name: &str) -> impl Iterator<Item = i64> {
        let entry = self.named(name.as_bytes()).ok().map(|(entry, _)| entry);
        entry.into_iter().flat_map(|entry| entry.ready().map(|model| model.version))
    }

    /// The versions of a statistics query: all of a model, or one (contract/metrics.md section 3).
    pub fn statistics_of(&self, name: &[u8], version: Option<i64>) -> Result<Vec<&Arc<ServedModel>>, Status> {
        if name.is_empty() {
            return Ok(self.ready().collect());
        }
        let shown = String::from_utf8_lossy(name);
        let ready: Vec<_> = self.named(name).map(|(entry, _)| entry.ready().collect()).unwrap_or_default();
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

    /// The checks of the ready models whose instances count for readiness.
    pub fn checks(&self) -> Vec<Arc<Checks>> {
        self.ready().filter(|model| model.checks.is_needed()).map(|model| Arc::clone(&model.checks)).collect()
    }

    /// Every registered model has a version, and every version is ready or was unloaded on request: the condition of
    /// strict readiness. A model that failed its poll, or that two repositories have, is not registered.
    pub fn is_complete(&self) -> bool {
        let fine = |state: &VersionState| match state {
            VersionState::Ready(_) => true,
            VersionState::Unavailable(reason) => reason == UNLOADED,
            VersionState::Loading | VersionState::Unloading => false,
        };
        let is_registered = |entry: &&ModelEntry| entry.reason != DUPLICATE;
        let mut registered = self.entries.iter().map(|(_, entry)| &**entry).filter(is_registered);
        registered.all(|entry| !entry.versions.is_empty() && entry.versions.values().all(fine))
    }
}

/// Parses the version in a path or message; an empty text is none. The texts are those of contract/http.md section 2.
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
