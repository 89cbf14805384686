//! Loading and unloading one model: the versions to load, those that stay, and the switch from old to new.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::{error, info};

use super::super::Settings;
use super::super::generations::Content;
use super::super::models::{ModelId, UNLOADED, VersionState};
use super::super::next_steps::{self, FailedModel};
use super::super::overrides::{Override, write_files};
use super::super::poll::{Polled, poll};
use super::super::store::{Store, TreeStamp};
use super::super::traffic::{self, Traffic};
use super::super::version::{Directory, RunningVersion};
use super::generations::{FilesRead, KeptLoad};
use super::graph::parts_of;
use super::waits::OnBehalf;
use super::{Lifecycle, ModelSlot, lock, poll_failed};
use nereid_request::{RefusalReason, Status};
use nereid_wire::inference::ModelConfig;

/// A load that succeeded.
pub struct LastLoad {
    /// As it was before the load began, so that a change in between is noticed later. None for a model loaded from
    /// files in the request, which the next plain load replaces.
    pub stamp: Option<TreeStamp>,
    /// Of the repository that had the directory; empty where none did.
    location: String,
    /// The configuration that replaces the file's.
    given: Option<SentConfig>,
    /// As it passed the poll, before any backend completed it.
    config: ModelConfig,
}

/// A configuration from a load request, and its time: files older than it do not replace it.
#[derive(Debug, Clone)]
struct SentConfig {
    config: Arc<ModelConfig>,
    at_ns: i128,
}

impl LastLoad {
    /// The configuration that still replaces the file, given the current state of the files.
    fn given_beside(&self, now: &TreeStamp) -> Option<SentConfig> {
        let (given, seen) = (self.given.as_ref()?, self.stamp.as_ref()?);
        (now.newest_ns <= seen.newest_ns.max(given.at_ns)).then(|| given.clone())
    }
}

fn now_ns() -> i128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos().try_into().unwrap_or(i128::MAX))
}

/// Result of a load that did not fail.
#[derive(Debug, PartialEq, Eq)]
pub enum Loading {
    /// Nothing needed loading.
    Same,
    Changed,
    /// It is an ensemble, and these models that it needs do not serve.
    Waits(Vec<String>),
}

/// What was read to load a model.
pub struct LoadSource {
    stamp: Option<TreeStamp>,
    directory: Directory,
    pub polled: Polled,
    /// Empty for files of a request.
    location: String,
    given: Option<SentConfig>,
    pub content: Content,
    /// What loads it again, where that is kept.
    pub kept: Option<KeptLoad>,
    /// The id of the generation that is loaded again.
    pub restores: Option<Arc<str>>,
}

impl LoadSource {
    /// A kept generation, beside which whatever the repository has is new.
    pub fn of_generation(id: Arc<str>, directory: Directory, polled: Polled, content: Content, kept: KeptLoad) -> Self {
        let location = kept.location.clone();
        let (stamp, given, kept, restores) = (None, None, Some(kept), Some(id));
        LoadSource { stamp, directory, polled, location, given, content, kept, restores }
    }
}

/// The configuration without the fields that can change in place.
fn without_placement(config: &ModelConfig) -> ModelConfig {
    ModelConfig { instance_group: Vec::new(), version_policy: None, ..config.clone() }
}

impl Lifecycle {
    /// Loads the model of one repository, or one made of `given` files alone.
    pub(super) fn load_one(
        self: &Arc<Self>,
        id: &ModelId,
        store: Option<&Arc<dyn Store>>,
        given: &Override,
        may_wait: bool,
    ) -> Result<Loading, Status> {
        self.with_slot(id, |slot| self.load_slot(id, slot, store, given, may_wait))?
    }

    pub(super) fn load_slot(
        self: &Arc<Self>,
        id: &ModelId,
        slot: &mut ModelSlot,
        store: Option<&Arc<dyn Store>>,
        given: &Override,
        may_wait: bool,
    ) -> Result<Loading, Status> {
        let called_ns = now_ns();
        let location = store.map(|store| store.location().to_owned()).unwrap_or_default();
        if let Some(loaded) = &mut slot.loaded
            && loaded.location != location
        {
            // The model is in another repository now, so the times of the old directory do not apply.
            loaded.stamp = None;
        }
        let mut next_steps = Vec::new();
        let polled = self.poll_slot(id, slot, store, given, called_ns, &mut next_steps);
        slot.poll_failure = polled.as_ref().err().cloned();
        let source = match polled {
            Ok(None) => return Ok(Loading::Same),
            Ok(Some(source)) => Arc::new(source),
            Err(status) => {
                let failed = poll_failed(&id.name, &status);
                next_steps::log(&id.name, &next_steps);
                return Err(failed);
            }
        };
        let content = (!source.location.is_empty()).then_some(source.content);
        let was_rolled_back = slot.generations.is_rolled_back();
        let outcome = self.load_source(id, slot, source, may_wait);
        // What failed is tried again, and a roll-back holds against what the repository had when it was made.
        if content.is_some() && (!was_rolled_back || outcome.is_ok()) {
            slot.generations.repository = content;
        }
        outcome
    }

    /// Loads what was read.
    pub(super) fn load_source(
        self: &Arc<Self>,
        id: &ModelId,
        slot: &mut ModelSlot,
        source: Arc<LoadSource>,
        may_wait: bool,
    ) -> Result<Loading, Status> {
        if let Err(status) = check_rules(id, &source.polled) {
            error!("failed to load '{}': {status}", id.name);
            self.log_next_steps(id, &source.directory, &source.polled);
            if slot.running.is_empty() {
                self.change(id, |entry| entry.get_or_insert_default().reason = status.to_string());
            }
            return Err(status);
        }
        let before = lock(&self.graph).put(id, parts_of(&source.polled.config));
        // Before the fit: a part that is loaded during the fit triggers another check.
        let missing = self.missing_parts(id, &source.polled);
        let fitted = match self.fit(id, &source.polled) {
            Ok(fitted) => fitted,
            Err(status) => {
                let is_serving = !slot.running.is_empty();
                if !is_serving {
                    slot.source = Some(source);
                } else {
                    lock(&self.graph).restore(id, before);
                }
                if may_wait && !missing.is_empty() {
                    return Ok(Loading::Waits(missing));
                }
                self.misfit(id, slot, &status);
                return Err(status);
            }
        };
        let plan = Plan::new(slot, source.stamp.as_ref(), &source.polled);
        let outcome = self.bring_up(id, slot, source, &fitted, &plan);
        if outcome.is_err() && !slot.running.is_empty() {
            lock(&self.graph).restore(id, before);
        }
        match outcome? {
            true => Ok(Loading::Changed),
            false => Ok(Loading::Same),
        }
    }

    /// Loads the versions of the plan and lets them serve. True if versions came or went, and not just their instances.
    pub(super) fn bring_up(
        self: &Arc<Self>,
        id: &ModelId,
        slot: &mut ModelSlot,
        source: Arc<LoadSource>,
        fitted: &Polled,
        plan: &Plan,
    ) -> Result<bool, Status> {
        let fresh = self.load_versions(id, slot.operation, plan, &source.directory, fitted)?;
        if self.is_stopping.load(Ordering::SeqCst) {
            self.discard(id, fresh, &[]);
            return Err(Status::refused(RefusalReason::Exiting, "Server not ready"));
        }
        if let Err((version, status)) = self.change_in_place(slot, &plan.changed_in_place, &fitted.config) {
            self.discard(id, fresh, &[]);
            return Err(self.load_failed(id, [(version, status)]));
        }
        let traffic = match self.traffic(id, &source.polled, plan.keeps_config) {
            Ok(traffic) => traffic,
            Err(status) => {
                self.discard(id, fresh, &[]);
                error!("failed to load '{}': {status}", id.name);
                return Err(status);
            }
        };
        let has_fresh = !fresh.is_empty();
        let generation = self.note_generation(slot, &source, fitted, has_fresh);
        let stays = |version: &i64| fitted.versions.contains(version) && !fresh.contains_key(version);
        let stay = slot.running.iter().filter(|(version, _)| stays(version));
        stay.chain(&fresh).for_each(|(_, running)| running.served.statistics.set_generation(&generation));
        fresh.values().for_each(RunningVersion::enter);
        let has_surplus = self.switch(id, slot, fresh, &fitted.versions, traffic);
        // This load may have been requested by a model in execution, possibly the one that has to end.
        if !OnBehalf::is_here() {
            slot.running.values().for_each(RunningVersion::settle);
        }
        // A load without new versions does not use the files of its agents.
        if let Some(agents) = source.directory.agents.as_ref().filter(|_| has_fresh) {
            agents.complete();
        }
        slot.loaded = Some(LastLoad {
            stamp: source.stamp.clone(),
            location: source.location.clone(),
            given: source.given.clone(),
            config: source.polled.config.clone(),
        });
        slot.source = source.is_of_an_ensemble().then_some(source);
        info!("successfully loaded '{}'", id.name);
        info!("model '{}' is at generation {generation}", id.name);
        Ok(has_fresh || has_surplus)
    }

    /// The traffic rule that applies after a load: that of before, with what the API has changed, unless the
    /// configuration was loaded anew.
    fn traffic(&self, id: &ModelId, polled: &Polled, keeps_config: bool) -> Result<Option<Arc<Traffic>>, Status> {
        let Some(rule) = traffic::check(&polled.config, &polled.versions)? else { return Ok(None) };
        let present = lock(&self.visible).models.get(id).and_then(|entry| entry.traffic.clone());
        if let Some(present) = present.filter(|present| keeps_config && present.rule == rule) {
            return Ok(Some(present));
        }
        let services = traffic::Services { metrics: &self.traffic_metrics, pool: &self.settings.pool };
        Traffic::start(&id.name, rule, &services).map(Some)
    }

    /// Changes the instances of the versions in place. If one fails, those before it get their old instances back.
    fn change_in_place(
        &self,
        slot: &mut ModelSlot,
        versions: &[i64],
        config: &ModelConfig,
    ) -> Result<(), (i64, Status)> {
        for (at, version) in versions.iter().enumerate() {
            let Some(running) = slot.running.get_mut(version) else { continue };
            let Err(status) = self.loader.change_placement(running, config, slot.operation) else { continue };
            let before = slot.loaded.as_ref().map(|loaded| loaded.config.clone());
            for changed in &versions[..at] {
                if let (Some(running), Some(before)) = (slot.running.get_mut(changed), &before)
                    && let Err(status) = self.loader.change_placement(running, before, slot.operation)
                {
                    error!("version {changed} keeps its new instances, since it cannot get its old ones: {status}");
                }
            }
            return Err((*version, status));
        }
        Ok(())
    }

    /// Polls the model and plans its load; `None` if all of it serves already. `next_steps`: what to do about an error.
    pub(super) fn poll_slot(
        &self,
        id: &ModelId,
        slot: &ModelSlot,
        store: Option<&Arc<dyn Store>>,
        given: &Override,
        called_ns: i128,
        next_steps: &mut Vec<String>,
    ) -> Result<Option<LoadSource>, Status> {
        let name = &id.name;
        if let Override::Files { config, files } = given {
            let directory = write_files(name, files)?;
            let plain = directory.clone();
            let (directory, polled) = poll(&self.settings, name, directory, Some(config), false)?;
            let files = FilesRead { directory: &plain, is_copy: true, is_renamed: false, location: "" };
            let (content, kept) = self.read_content(name, &files, Some(Arc::new(config.as_ref().clone())), &polled);
            let (location, stamp, given, restores) = (String::new(), None, None, None);
            return Ok(Some(LoadSource { stamp, directory, polled, location, given, content, kept, restores }));
        }
        let store = store.ok_or_else(|| Status::not_found("no model repository has a directory of this name"))?;
        let stamp = store.stamp(name)?;
        let stamp = stamp.ok_or_else(|| Status::not_found(format!("'{name}' is gone from '{}'", store.location())))?;
        let loaded = slot.loaded.as_ref().filter(|_| !slot.running.is_empty());
        let given = match given.config() {
            Some(config) => Some(SentConfig { config: Arc::new(config.clone()), at_ns: called_ns }),
            None if loaded.is_some_and(|loaded| loaded.stamp.as_ref() == Some(&stamp)) => return Ok(None),
            None => loaded.and_then(|loaded| loaded.given_beside(&stamp)),
        };
        let local = store.localize(name)?;
        let (path, is_copy) = (local.path().to_owned(), local.is_copy());
        let directory = Directory { path: path.clone(), keep: Arc::new(local), agents: None };
        let plain = directory.clone();
        let config = given.as_ref().map(|given| &*given.config);
        let polled = poll(&self.settings, name, directory, config, store.maps(name));
        let (directory, polled) = polled.inspect_err(|_| {
            let Settings { config_name, backend_directory, .. } = &*self.settings;
            *next_steps = FailedModel::read(name, &path, config_name.as_deref(), backend_directory).steps();
        })?;
        let location = store.location().to_owned();
        let is_renamed = store.maps(name);
        let files = FilesRead { directory: &plain, is_copy, is_renamed, location: &location };
        let config = given.as_ref().map(|given| Arc::clone(&given.config));
        let (content, kept) = self.read_content(name, &files, config, &polled);
        let stamp = Some(stamp);
        Ok(Some(LoadSource { stamp, directory, polled, location, given, content, kept, restores: None }))
    }

    /// Loads the versions of the plan beside the serving ones: all of them, or none.
    fn load_versions(
        &self,
        id: &ModelId,
        operation: u64,
        plan: &Plan,
        directory: &Directory,
        polled: &Polled,
    ) -> Result<BTreeMap<i64, RunningVersion>, Status> {
        self.change(id, |entry| {
            let entry = entry.get_or_insert_default();
            entry.reason.clear();
            entry.is_forgotten = false;
            for &version in &plan.to_load {
                // The new version is not visible while an old one serves.
                if !matches!(entry.versions.get(&version), Some(VersionState::Ready(_))) {
                    entry.versions.insert(version, VersionState::Loading);
                }
            }
        });
        let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
        // A model that is loading and waits for this load has a permit, or waits for a load that has one.
        let is_for_model = OnBehalf::is_here();
        let is_exempt = || is_for_model || self.waits.is_awaited(id);
        let work = || {
            while let Some(&version) = plan.to_load.get(next.fetch_add(1, Ordering::Relaxed)) {
                let load = || self.loader.load(id, version, directory, polled, operation);
                let outcome = self.load_permits.with(is_exempt, || match self.measured() {
                    Some(measured) => measured.load((id, version), &self.settings.gpus, load),
                    None => load(),
                });
                lock(&outcomes).insert(version, outcome);
            }
        };
        let threads = self.settings.load_thread_count.min(plan.to_load.len());
        std::thread::scope(|scope| {
            let name = || std::thread::Builder::new().name("model-load".to_owned());
            let helpers: Vec<_> = (1..threads).map(|_| name().spawn_scoped(scope, work)).collect();
            // If a thread could not be started, the others do its share.
            drop(helpers);
            work();
        });
        let outcomes = outcomes.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (mut fresh, mut failures) = (BTreeMap::new(), Vec::new());
        for (version, outcome) in outcomes {
            match outcome {
                Ok(running) => drop(fresh.insert(version, running)),
                Err(status) => failures.push((version, status)),
            }
        }
        if failures.is_empty() {
            return Ok(fresh);
        }
        // The versions of a model come and go together (contract/schedulers.md section 10, "unit").
        self.discard(id, fresh, &failures);
        let failed = self.load_failed(id, failures);
        self.log_next_steps(id, directory, polled);
        Err(failed)
    }

    /// Ends versions that were loaded beside others that failed, and lists both as what they are.
    fn discard(&self, id: &ModelId, loaded: BTreeMap<i64, RunningVersion>, failures: &[(i64, Status)]) {
        let unloaded: Vec<i64> = loaded.keys().copied().collect();
        loaded.into_values().for_each(RunningVersion::end);
        let failed = failures.iter().map(|(version, status)| (*version, status.to_string()));
        let unloaded = unloaded.into_iter().map(|version| (version, UNLOADED.to_owned()));
        self.change(id, |entry| {
            let entry = entry.get_or_insert_default();
            for (version, reason) in failed.chain(unloaded) {
                if let MapEntry::Occupied(mut state) = entry.versions.entry(version)
                    && !matches!(state.get(), VersionState::Ready(_))
                {
                    state.insert(VersionState::Unavailable(reason));
                }
            }
        });
    }

    fn log_next_steps(&self, id: &ModelId, directory: &Directory, polled: &Polled) {
        let backends = &self.settings.backend_directory;
        let failed = FailedModel::new(&directory.path, polled.config.clone(), backends);
        next_steps::log(&id.name, &failed.steps());
    }

    fn load_failed(&self, id: &ModelId, failures: impl IntoIterator<Item = (i64, Status)>) -> Status {
        let mut text = format!("load failed for model '{}': ", id.name);
        for (version, status) in failures {
            // The log has each reason once; the client gets them together.
            error!("failed to load '{}' version {version}: {status}", id.name);
            text.push_str(&format!("version {version} is at UNAVAILABLE state: {status};"));
        }
        text.push('\n');
        Status::invalid(text)
    }

    /// Publishes the new versions together with those that stay; then the replaced and the surplus ones end. True if
    /// there were surplus ones.
    fn switch(
        self: &Arc<Self>,
        id: &ModelId,
        slot: &mut ModelSlot,
        fresh: BTreeMap<i64, RunningVersion>,
        chosen: &[i64],
        traffic: Option<Arc<Traffic>>,
    ) -> bool {
        let replaced: Vec<RunningVersion> =
            fresh.into_iter().filter_map(|(version, running)| slot.running.insert(version, running)).collect();
        let surplus: Vec<i64> = slot.running.keys().filter(|version| !chosen.contains(version)).copied().collect();
        let surplus: Vec<RunningVersion> =
            surplus.into_iter().filter_map(|version| slot.running.remove(&version)).collect();
        let generations = self.shown_generations(slot);
        self.change(id, |entry| {
            let entry = entry.get_or_insert_default();
            entry.reason.clear();
            if let Some(old) = entry.traffic.take()
                && traffic.as_ref().is_none_or(|new| !Arc::ptr_eq(new, &old))
            {
                old.retire();
            }
            entry.traffic = traffic.clone();
            entry.generations = Some(Arc::clone(&generations));
            // A version that once failed and is no longer chosen is not listed.
            entry.versions.retain(|version, state| chosen.contains(version) || state.reason() == UNLOADED);
            for (&version, running) in &slot.running {
                entry.versions.insert(version, VersionState::Ready(Arc::clone(&running.served)));
            }
            for running in &surplus {
                entry.versions.insert(running.served.version, VersionState::Unloading);
            }
        });
        let has_surplus = !surplus.is_empty();
        replaced.into_iter().for_each(|running| self.retire(id, running, false));
        surplus.into_iter().for_each(|running| self.retire(id, running, true));
        has_surplus
    }

    /// Takes all versions out of service and removes the record of their load.
    pub(super) fn unload_slot(self: &Arc<Self>, id: &ModelId, slot: &mut ModelSlot) {
        slot.source = None;
        slot.attempt = None;
        slot.generations.unloaded();
        lock(&self.graph).forget(id);
        if !self.take_down(id, slot) {
            // It never served, and is no longer wanted.
            self.change(id, |entry| drop(entry.take_if(|entry| entry.versions.is_empty())));
        }
    }

    /// Takes all versions out of service. False if there were none.
    pub(super) fn take_down(self: &Arc<Self>, id: &ModelId, slot: &mut ModelSlot) -> bool {
        slot.loaded = None;
        let running = std::mem::take(&mut slot.running);
        if running.is_empty() {
            return false;
        }
        let generations = self.shown_generations(slot);
        self.change(id, |entry| {
            let entry = entry.get_or_insert_default();
            entry.generations = Some(Arc::clone(&generations));
            // Its metrics vanish with it.
            if let Some(old) = entry.traffic.take() {
                old.retire();
            }
            for &version in running.keys() {
                entry.versions.insert(version, VersionState::Unloading);
            }
        });
        running.into_values().for_each(|running| self.retire(id, running, true));
        true
    }
}

/// What a configuration demands of the versions that its policy chooses.
fn check_rules(id: &ModelId, polled: &Polled) -> Result<(), Status> {
    if polled.versions.is_empty() {
        let text = "at least one version must be available under the version policy of model";
        return Err(Status::invalid(format!("{text} '{}'", id.name)));
    }
    traffic::check(&polled.config, &polled.versions).map(drop).map_err(|status| {
        let prefix = format!("model '{}': ", id.name);
        status.prefixed(&prefix)
    })
}

/// What a load does to each version.
pub(super) struct Plan {
    to_load: Vec<i64>,
    /// They continue to serve; only their instances or the policy around them changed.
    changed_in_place: Vec<i64>,
    /// The configuration is the one of before, but for what can change in place.
    keeps_config: bool,
}

impl Plan {
    /// A serving version is reloaded only if its own directory, or something that all versions share, changed, or if
    /// the configuration changed in more than instance groups and version policy.
    fn new(slot: &ModelSlot, stamp: Option<&TreeStamp>, polled: &Polled) -> Plan {
        let before = slot.loaded.as_ref().and_then(|loaded| Some((loaded, loaded.stamp.as_ref()?)));
        let kept = |version: &i64| {
            let ((loaded, before), now) = (before?, stamp?);
            let is_shared_unchanged =
                now.rest == before.rest && without_placement(&loaded.config) == without_placement(&polled.config);
            let is_unchanged = now.versions.get(version)? == before.versions.get(version)?;
            (is_shared_unchanged && is_unchanged && slot.running.contains_key(version)).then_some(())
        };
        let (in_place, to_load): (Vec<i64>, Vec<i64>) =
            polled.versions.iter().partition(|version| kept(version).is_some());
        Plan { to_load, keeps_config: !in_place.is_empty(), changed_in_place: in_place }
    }

    /// A plan that loads every version again.
    pub(super) fn all(polled: &Polled) -> Plan {
        Plan { to_load: polled.versions.clone(), changed_in_place: Vec::new(), keeps_config: true }
    }
}
