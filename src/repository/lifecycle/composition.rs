//! Ensembles and the models that they are made of: the order of their loads, and the reloads that follow a change
//! (contract/schedulers.md section 10, rows "ensembles" and "composing model").
//!
//! No thread ever holds the slots of two models. An ensemble with missing parts releases its own slot while they are
//! loaded; an operation that has changed a part checks the ensembles on it afterwards, one after the other, each under
//! its own slot and against the current map. However operations interleave, the last to change a part checks last.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tracing::error;

use super::super::demand;
use super::super::index::DUPLICATE;
use super::super::models::{ModelEntry, ModelId, ModelMap, UNLOADED, VersionState};
use super::super::overrides::Override;
use super::super::poll::Polled;
use super::super::store::Store;
use super::graph::{parts_of, steps_of};
use super::operation::{LoadSource, Loading, Plan};
use super::{Lifecycle, ModelSlot, lock};
use nereid_model_config::validate::{StepModel, ensemble_cycle, ensemble_parts};
use nereid_request::Status;
use nereid_wire::inference::model_config::SchedulingChoice;
use nereid_wire::inference::model_ensembling::Step;

/// Why no version of the model serves.
fn reason_of(entry: &ModelEntry) -> Option<String> {
    let mut reasons = entry.versions.values().map(VersionState::reason);
    let failed = reasons.find(|reason| !reason.is_empty() && *reason != UNLOADED);
    failed.map(str::to_owned).or_else(|| (!entry.reason.is_empty()).then(|| entry.reason.clone()))
}

/// The entry of a part, or None if the part is not registered.
fn registered<'a>(map: &'a ModelMap, id: &ModelId) -> Option<&'a ModelEntry> {
    // A part that has only failed its poll is not registered either.
    let is_registered =
        |entry: &&ModelEntry| !entry.versions.is_empty() || (!entry.reason.is_empty() && entry.reason != DUPLICATE);
    map.get(id).filter(is_registered)
}

/// The model that a step of a served ensemble runs.
pub(super) fn served_part(step: &Step) -> ModelId {
    ModelId { name: step.model_name.clone(), namespace: step.model_namespace.clone() }
}

impl Lifecycle {
    /// The model that an ensemble of `namespace` refers to by `name`: that of its own repository, whether it serves or
    /// not, else the only one of that name. A model of another repository never stands in for one that is not loaded
    /// yet.
    fn part_id(&self, map: &ModelMap, namespace: &str, name: &str) -> Option<ModelId> {
        let own = ModelId { name: name.to_owned(), namespace: namespace.to_owned() };
        if !self.settings.namespacing || map.get(&own).is_some() || self.holds(&own) {
            return Some(own);
        }
        map.only(name).cloned()
    }

    /// Whether the repository of that namespace has a directory of that name; true if that cannot be read.
    fn holds(&self, id: &ModelId) -> bool {
        let stores = self.stores();
        let store = stores.iter().find(|store| store.location() == id.namespace);
        store.is_some_and(|store| store.holds(&id.name).unwrap_or(true))
    }

    /// Checks a model against the models that it is made of, and returns its configuration as it will be served.
    pub(super) fn fit(&self, id: &ModelId, polled: &Polled) -> Result<Polled, Status> {
        let mut fitted = polled.clone();
        if parts_of(&polled.config).is_empty() {
            return Ok(fitted);
        }
        let map = self.map();
        self.check_cycle(&map, id)?;
        let part = |step: &Step| self.part(&map, id, step);
        let flow = ensemble_parts(&polled.config, part)?;
        // It follows from the steps, whatever the file has.
        fitted.config.model_transaction_policy.get_or_insert_default().decoupled = flow.decoupled;
        if let Some(SchedulingChoice::EnsembleScheduling(ensemble)) = &mut fitted.config.scheduling_choice {
            for step in &mut ensemble.step {
                if let Some(part) = self.part_id(&map, &id.namespace, &step.model_name) {
                    step.model_namespace = part.namespace;
                }
            }
        }
        Ok(fitted)
    }

    fn part<'a>(&self, map: &'a ModelMap, ensemble: &ModelId, step: &Step) -> StepModel<'a> {
        let Some(id) = self.part_id(map, &ensemble.namespace, &step.model_name) else { return StepModel::Unknown };
        let Some(entry) = registered(map, &id) else { return StepModel::Unknown };
        let ready: Vec<_> = entry.ready().map(|served| (served.version, &served.spec.config)).collect();
        if !ready.is_empty() {
            return StepModel::Loaded(ready);
        }
        match lock(&self.graph).problem(&id) {
            Some(reason) => StepModel::Invalid { reason },
            None => StepModel::NotLoaded { reason: reason_of(entry) },
        }
    }

    fn check_cycle(&self, map: &ModelMap, id: &ModelId) -> Result<(), Status> {
        // Finding a part may read its repository, so not under the lock: each step below holds it for itself.
        let part_of = |id: &ModelId, part: &String| match self.part_id(map, &id.namespace, part) {
            Some(part) => lock(&self.graph).has(&part).then_some(part),
            None => lock(&self.graph).ensemble(&id.namespace, part),
        };
        let parts_of = |id: &ModelId| {
            let parts = lock(&self.graph).parts(id);
            parts.iter().filter_map(|part| part_of(id, part)).collect()
        };
        Ok(ensemble_cycle(id, |id| &id.name, parts_of)?)
    }

    /// The parts of which no version serves.
    pub(super) fn missing_parts(&self, id: &ModelId, polled: &Polled) -> Vec<String> {
        let parts = parts_of(&polled.config);
        if parts.is_empty() {
            return Vec::new();
        }
        let map = self.map();
        let is_missing = |name: &String| {
            let part = self.part_id(&map, &id.namespace, name).and_then(|part| map.get(&part));
            part.is_none_or(|entry| entry.ready().next().is_none())
        };
        parts.into_iter().filter(is_missing).collect()
    }

    /// Loads a model and, if it is an ensemble, the models that it needs. The names of changed models are added to
    /// `changed`.
    pub(super) fn load_with_parts(
        self: &Arc<Self>,
        id: &ModelId,
        store: Option<&Arc<dyn Store>>,
        given: &Override,
        changed: &mut BTreeSet<ModelId>,
    ) -> Result<(), Status> {
        let mut pending = vec![(id.clone(), store.cloned(), None::<Vec<String>>)];
        let mut outcome = Ok(());
        let mut seen = BTreeSet::new();
        while let Some((id, store, parts)) = pending.pop() {
            let is_top = pending.is_empty();
            let (may_wait, given) = (parts.is_none(), if is_top { given } else { &Override::None });
            let loaded = self.load_one(&id, store.as_ref(), given, may_wait);
            match loaded {
                Ok(Loading::Waits(parts)) => {
                    seen.insert(id.clone());
                    let may_load = |part: &&String| !self.is_held_back(part);
                    let may_load = parts.iter().filter(may_load);
                    let places: Vec<_> = may_load.filter_map(|part| self.place_of(&id.namespace, part)).collect();
                    // Again after its parts.
                    pending.push((id, store, Some(parts)));
                    let fresh = places.into_iter().filter(|(id, _)| !seen.contains(id));
                    pending.extend(fresh.map(|(id, store)| (id, Some(store), None)).collect::<Vec<_>>());
                }
                Ok(Loading::Changed) => {
                    changed.insert(id);
                }
                Ok(Loading::Same) => {}
                // A part's error is in the log, and the ensemble's own error contains it.
                Err(status) if is_top => outcome = Err(status),
                Err(_) => {}
            }
        }
        outcome
    }

    /// A client has unloaded the model, and this is no client's load.
    fn is_held_back(&self, name: &str) -> bool {
        demand::is_here() && self.demand.as_ref().is_some_and(|demand| demand.is_held_back(name))
    }

    /// Where the model lies that an ensemble of `namespace` refers to by `name`.
    fn place_of(&self, namespace: &str, name: &str) -> Option<(ModelId, Arc<dyn Store>)> {
        let mut holders = Vec::new();
        for store in self.stores_of(name) {
            if let Ok(true) = store.holds(name) {
                let id = self.id(name, &*store);
                if self.settings.namespacing && id.namespace == namespace {
                    return Some((id, store));
                }
                holders.push((id, store));
            }
        }
        match holders.len() {
            1 => holders.pop(),
            _ => None,
        }
    }

    /// Checks again the ensembles that are made of changed models; those in `fresh` have done so themselves.
    pub(super) fn follow(self: &Arc<Self>, changed: &BTreeSet<ModelId>, fresh: &BTreeSet<ModelId>) {
        let mut names: BTreeSet<String> = changed.iter().map(|id| id.name.clone()).collect();
        let dependents = lock(&self.graph).dependents(&names);
        for id in dependents {
            let is_touched = lock(&self.graph).parts(&id).iter().any(|part| names.contains(part));
            if is_touched && !fresh.contains(&id) && self.refit(&id) {
                names.insert(id.name);
            }
        }
    }

    /// Reloads an ensemble because of its parts, or takes it out of service. True if anything changed.
    fn refit(self: &Arc<Self>, id: &ModelId) -> bool {
        self.with_slot(id, |slot| self.refit_in_slot(id, slot)).unwrap_or(false)
    }

    fn refit_in_slot(self: &Arc<Self>, id: &ModelId, slot: &mut ModelSlot) -> bool {
        let Some(source) = slot.source.clone() else { return false };
        if self.is_stopping.load(Ordering::SeqCst) {
            return false;
        }
        match self.fit(id, &source.polled) {
            Ok(fitted) => {
                lock(&self.graph).set_problem(id, None);
                let plan = Plan::all(&fitted);
                // The reason of a failure is in the log, and the old versions continue to serve.
                self.bring_up(id, slot, source, &fitted, &plan).is_ok()
            }
            Err(status) => {
                let was_running = self.take_down(id, slot);
                self.misfit(id, slot, &status);
                was_running
            }
        }
    }

    /// Records why an ensemble cannot serve.
    pub(super) fn misfit(&self, id: &ModelId, slot: &ModelSlot, status: &Status) {
        error!("failed to load '{}': {status}", id.name);
        if slot.running.is_empty() {
            lock(&self.graph).set_problem(id, Some(status.message.clone().into_owned()));
        }
        self.change(id, |entry| {
            let entry = entry.get_or_insert_default();
            if entry.versions.is_empty() {
                entry.reason = status.to_string();
            }
        });
    }

    /// Models that were loaded only as parts of the unloaded ones, and that no ensemble needs any more.
    pub(super) fn unneeded(&self, namespace: &str, parts: &[String]) -> Vec<ModelId> {
        let map = self.map();
        let is_needed = |id: &ModelId| {
            let uses = |config| steps_of(config).iter().any(|step| served_part(step) == *id);
            map.ready().any(|served| uses(&served.spec.config))
        };
        let registered = parts.iter().filter_map(|part| self.part_id(&map, namespace, part));
        registered.filter(|id| map.get(id).is_some() && !lock(&self.graph).is_requested(id) && !is_needed(id)).collect()
    }
}

impl LoadSource {
    /// True if this is an ensemble: the source is then kept for a reload when its parts are back.
    pub(super) fn is_of_an_ensemble(&self) -> bool {
        !parts_of(&self.polled.config).is_empty()
    }
}
