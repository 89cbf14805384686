//! Models that come and go by use: loads on demand, and what is unloaded for want of memory or of requests
//! (docs/many-models.md).
//!
//! Under a budget one load runs at a time (`Demand::room`): it unloads what is in its way, loads, and unloads again
//! what its memory, which is known only then, displaces. Loads that a loading model requests are part of its load.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tracing::{info, warn};

use super::super::ControlMode;
use super::super::demand::{Demand, loading};
use super::super::models::{ModelEntry, ModelId};
use super::super::overrides::Override;
use super::super::residency::{Excess, PINNED, Reason, Seen, Usage, measure};
use super::composition::served_part;
use super::graph::steps_of;
use super::measured::Measured;
use super::waits::OnBehalf;
use super::{Lifecycle, check_name, lock};
use nereid_clock::{local_minute, now_ns};
use nereid_observe::metrics::Registry;
use nereid_request::{RefusalReason, Status};
use nereid_scheduler::ServedModel;
use nereid_wire::inference::model_config::SchedulingChoice;

/// The time between two looks at idle models, schedules and failed models.
const ROUND: Duration = Duration::from_secs(1);
/// Processes of models are measured again every so many rounds.
const MEASURED_EVERY: u64 = 10;
/// Between two looks whether a model has ended, or may go.
const FIRST_PAUSE: Duration = Duration::from_micros(500);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// Thrashing is reported once in that time.
const REPORTED_EVERY: Duration = Duration::from_secs(60);

/// Waits until `is_done`, for pauses that grow; false at the deadline.
fn wait_until(deadline: Instant, mut is_done: impl FnMut() -> bool) -> bool {
    let mut pause = FIRST_PAUSE;
    loop {
        if is_done() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn is_pinned_by_config(served: &ServedModel) -> bool {
    served.spec.config.parameters.get(PINNED).is_some_and(|value| value.string_value == "true")
}

impl Lifecycle {
    /// The loads on demand, where they are on.
    pub fn demand(&self) -> Option<&Arc<Demand>> {
        self.demand.as_ref()
    }

    /// The memory of models.
    pub fn memory_metrics(&self) -> &Registry {
        self.measured.registry()
    }

    /// Models with a version that serves.
    pub fn resident_count(&self) -> usize {
        self.map().iter().filter(|(_, entry)| entry.ready().next().is_some()).count()
    }

    /// Whether a repository has a model of this name, or cannot say so.
    pub(in super::super) fn is_in_a_repository(&self, name: &str) -> bool {
        check_name(name).is_ok() && self.stores_of(name).iter().any(|store| !matches!(store.holds(name), Ok(false)))
    }

    /// Where a model lies. Reads its directories, or asks its buckets.
    pub(in super::super) fn places_of(&self, name: &str) -> Places {
        let (mut ids, mut hasher) = (BTreeSet::new(), DefaultHasher::new());
        let stores = if check_name(name).is_ok() { self.stores_of(name) } else { Vec::new() };
        for store in stores {
            let stamp = store.stamp(name);
            // What cannot be read is reported by the load.
            if !matches!(stamp, Ok(None)) {
                ids.insert(self.id(name, &*store));
            }
            format!("{stamp:?}").hash(&mut hasher);
        }
        Places { ids, fingerprint: hasher.finish() }
    }

    /// Loads a model because a request came for it. False if a version of it serves already.
    pub(in super::super) fn load_on_demand(
        self: &Arc<Self>,
        demand: &Arc<Demand>,
        name: &str,
        ids: &BTreeSet<ModelId>,
    ) -> Result<bool, Status> {
        let has_version = |id: &ModelId| self.map().get(id).is_some_and(|entry| entry.ready().next().is_some());
        // A client's load may have come first.
        if ids.iter().any(has_version) {
            return Ok(false);
        }
        self.note_thrashing(demand, ids);
        let mut is_there = false;
        self.with_room(demand, name, ids, || {
            // This load may have waited for room, and a client may have loaded or unloaded the model meanwhile.
            if ids.iter().any(has_version) {
                is_there = true;
                return Ok(());
            }
            if demand.is_held_back(name) {
                return Err(Status::refused(RefusalReason::ModelUnavailable, "a client has unloaded it"));
            }
            let mut changed = BTreeSet::new();
            let outcome = self.load_named(name, &Override::None, &mut changed);
            self.follow(&changed, &changed);
            outcome.map_err(|status| self.explained(ids, status))
        })?;
        Ok(!is_there)
    }

    /// Adds why the model did not pass its poll, which a client of the API does not get.
    fn explained(&self, ids: &BTreeSet<ModelId>, status: Status) -> Status {
        let reason = ids.iter().find_map(|id| self.poll_failure(id));
        match reason {
            Some(reason) => Status { message: format!("{}: {}", status.message, reason.message).into(), ..status },
            None => status,
        }
    }

    /// Runs a load of the model, with room for it under the budget.
    pub(super) fn with_room(
        self: &Arc<Self>,
        demand: &Arc<Demand>,
        name: &str,
        ids: &BTreeSet<ModelId>,
        load: impl FnOnce() -> Result<(), Status>,
    ) -> Result<(), Status> {
        if !demand.settings.has_budget() || OnBehalf::is_here() {
            return load();
        }
        let _room = lock(&demand.room);
        let before: BTreeSet<ModelId> = self.observe(demand).into_keys().collect();
        self.make_room(demand, name, ids)?;
        load()?;
        self.settle_in(demand, name, ids, &before)
    }

    /// Unloads models until the model fits, as far as its memory is known.
    fn make_room(self: &Arc<Self>, demand: &Arc<Demand>, name: &str, ids: &BTreeSet<ModelId>) -> Result<(), Status> {
        let deadline = Instant::now() + demand.wait_time();
        loop {
            self.refresh(demand);
            let (excess, lasting, victim, may_come) = {
                let residents = lock(&demand.residents);
                let mut extra = Usage::default();
                let fresh: Vec<_> = ids.iter().filter(|id| !residents.has(id)).collect();
                fresh.iter().filter_map(|id| residents.known(id)).for_each(|known| extra.add(known));
                let settings = &demand.settings;
                let excess = residents.excess(settings, &extra, fresh.len());
                let lasting = residents.lasting_excess(settings, &extra, fresh.len(), ids);
                let victim = residents.victim(now_ns(), ids);
                (excess, lasting, victim, residents.has_later_victim(ids))
            };
            let Some(excess) = excess else { return Ok(()) };
            if let Some(lasting) = lasting {
                return Err(too_large(name, &lasting));
            }
            let why = "and waits for other models, which have to make room, to end their requests and sequences";
            match victim {
                Some(victim) => {
                    self.evict(demand, &victim, excess.reason);
                    if !wait_until(deadline, || self.is_over(&victim)) {
                        return Err(loading(name, why));
                    }
                }
                None if may_come && Instant::now() < deadline => std::thread::sleep(LONGEST_PAUSE),
                None => return Err(loading(name, why)),
            }
        }
    }

    /// Unloads models that a loaded one displaces; the loaded one itself if it cannot fit. `before`: what was resident.
    fn settle_in(
        self: &Arc<Self>,
        demand: &Arc<Demand>,
        name: &str,
        ids: &BTreeSet<ModelId>,
        before: &BTreeSet<ModelId>,
    ) -> Result<(), Status> {
        let mut own = ids.clone();
        loop {
            self.refresh(demand);
            let now: BTreeSet<ModelId> = self.observe(demand).into_keys().collect();
            own.extend(now.difference(before).cloned());
            let (excess, lasting, victim) = {
                let residents = lock(&demand.residents);
                let settings = &demand.settings;
                let excess = residents.excess(settings, &Usage::default(), 0);
                let kept: BTreeSet<ModelId> = own.union(&self.parts_of_own(&own)).cloned().collect();
                let lasting = residents.excess_of_own(settings, &kept);
                (excess, lasting, residents.victim(now_ns(), &kept))
            };
            let Some(excess) = excess else { return Ok(()) };
            match victim.filter(|_| lasting.is_none()) {
                Some(victim) => {
                    self.evict(demand, &victim, excess.reason);
                    wait_until(Instant::now() + demand.wait_time(), || self.is_over(&victim));
                }
                None => {
                    // Ensembles before their parts, which the unloading of a part would take down with an error.
                    let fresh: Vec<ModelId> = own.iter().filter(|id| !before.contains(id)).cloned().collect();
                    let (ensembles, others): (Vec<_>, Vec<_>) =
                        fresh.into_iter().partition(|id| !self.parts_of_own(&[id.clone()].into()).is_empty());
                    ensembles.iter().chain(&others).for_each(|id| self.take_out(id));
                    return Err(too_large(name, &lasting.unwrap_or(excess)));
                }
            }
        }
    }

    /// The models that resident ensembles among these are made of.
    fn parts_of_own(&self, own: &BTreeSet<ModelId>) -> BTreeSet<ModelId> {
        let map = self.map();
        let served = own.iter().filter_map(|id| map.get(id)).flat_map(ModelEntry::ready);
        served.flat_map(|served| steps_of(&served.spec.config).iter().map(served_part).collect::<Vec<_>>()).collect()
    }

    /// No version of the model is left.
    fn is_over(&self, id: &ModelId) -> bool {
        self.map().get(id).is_none_or(ModelEntry::is_over)
    }

    /// Unloads a model that may be loaded again on demand. Accepted requests are finished.
    fn evict(self: &Arc<Self>, demand: &Arc<Demand>, id: &ModelId, reason: Reason) {
        info!("model '{}' is unloaded until a request comes for it: {} ({})", id.name, reason.name(), reason.flag());
        lock(&demand.residents).unloaded(now_ns(), id, reason);
        if let Some(count) = demand.counts.evictions.get(reason as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.take_out(id);
    }

    fn take_out(self: &Arc<Self>, id: &ModelId) {
        if self.with_slot(id, |slot| self.unload_slot(id, slot)).is_ok() {
            let changed = [id.clone()].into();
            self.follow(&changed, &changed);
        }
    }

    fn note_thrashing(&self, demand: &Demand, ids: &BTreeSet<ModelId>) {
        let now = now_ns();
        for id in ids {
            let Some((reason, since)) = lock(&demand.residents).thrashes(now, id) else { continue };
            demand.counts.reloads.fetch_add(1, Ordering::Relaxed);
            let reported = demand.reported_ns.load(Ordering::Relaxed);
            if reported == 0 || u128::from(now.saturating_sub(reported)) >= REPORTED_EVERY.as_nanos() {
                demand.reported_ns.store(now.max(1), Ordering::Relaxed);
                let (name, secs, flag) = (&id.name, since.as_secs(), reason.flag());
                warn!(
                    "models are unloaded and loaded again at once: '{name}' was unloaded {secs} s ago to make room; \
                     raise {flag}, or serve fewer models here"
                );
            }
        }
    }

    /// Takes what is resident, and its last use, over into the table.
    fn refresh(&self, demand: &Demand) {
        let seen = self.observe(demand);
        lock(&demand.residents).refresh(now_ns(), seen);
    }

    /// The models with ready versions as they are now.
    fn observe(&self, demand: &Demand) -> BTreeMap<ModelId, Seen> {
        let map = self.map();
        self.measured.forget_gone(&map);
        let parts: BTreeSet<ModelId> = map
            .ready()
            .flat_map(|served| steps_of(&served.spec.config).iter().map(served_part).collect::<Vec<_>>())
            .collect();
        let epoch_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let now = now_ns();
        let prewarmed = lock(&demand.prewarmed).clone();
        let mut found = BTreeMap::new();
        for (id, entry) in map.iter() {
            let latest = entry.ready().next_back();
            // A rule holds every version that serves.
            let has_rule = usize::from(map.traffic(id.name.as_bytes()).is_some());
            let mut seen = Seen {
                is_pinned: demand.settings.pinned.contains(&id.name)
                    || prewarmed.contains(&id.name)
                    || demand.is_overridden(&id.name),
                is_held: parts.contains(id),
                ..Seen::default()
            };
            for served in entry.ready() {
                let counted = served.statistics.snapshot();
                seen.requests += counted.success.count + counted.fail.count + counted.inference_count;
                let age_ms = epoch_ms.saturating_sub(counted.last_inference_ms);
                if counted.last_inference_ms > 0 {
                    let executed = now.saturating_sub(age_ms.saturating_mul(1_000_000));
                    seen.executed_ns = seen.executed_ns.max(executed);
                    seen.executed_ms = seen.executed_ms.max(counted.last_inference_ms);
                }
                // The running version and the map refer to it, and the map's name to the latest.
                let is_latest = latest.is_some_and(|latest| Arc::ptr_eq(latest, served));
                let ours = 2 + usize::from(is_latest) + has_rule + served.pins.load(Ordering::SeqCst);
                let has_sequences =
                    matches!(served.spec.config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_)))
                        && served.scheduler.unfinished() > 0;
                seen.is_in_use |= Arc::strong_count(served) > ours || served.scheduler.unfinished() > 0;
                seen.is_held |= has_sequences;
                seen.is_pinned |= is_pinned_by_config(served);
                seen.usage.add(&measure::with_reports(
                    self.measured.usage(id, served.version),
                    if demand.settings.has_byte_budget() { &counted.memory_usage } else { &[] },
                ));
            }
            if latest.is_some() {
                found.insert(id.clone(), seen);
            }
        }
        found
    }

    /// The models that are loaded at the start of the mode none: those that stay.
    pub(super) fn pinned_at_start(&self, demand: &Demand) -> Result<Vec<String>, Status> {
        let mut names = demand.settings.pinned.clone();
        for store in self.stores().iter() {
            for name in store.models()? {
                // Those in buckets are read when they are loaded.
                let config =
                    self.folder_of(&name).and_then(|folder| std::fs::read_to_string(folder.join("config.pbtxt")).ok());
                if config.is_some_and(|text| text.contains(PINNED)) {
                    names.insert(name);
                }
            }
        }
        Ok(names.into_iter().collect())
    }

    /// Starts the thread of rounds.
    pub(super) fn start_rounds(self: &Arc<Self>) {
        let Some(demand) = self.demand.clone() else { return };
        let lifecycle = Arc::downgrade(self);
        let run = move || {
            let mut rounds = 0_u64;
            while demand.sleep(ROUND) {
                let Some(lifecycle) = lifecycle.upgrade().filter(|lifecycle| !lifecycle.is_stopping()) else { return };
                rounds += 1;
                lifecycle.round(&demand, rounds);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("model-residency".to_owned()).spawn(run) {
            warn!("models are not unloaded by idleness, and schedules have no effect, for want of a thread: {error}");
        }
    }

    /// What is due: schedules, idle models, failed models whose files changed.
    fn round(self: &Arc<Self>, demand: &Arc<Demand>, rounds: u64) {
        for (name, stamp) in demand.failures_to_check() {
            if self.places_of(&name).fingerprint != stamp {
                demand.forget_failure(&name);
            }
        }
        if !demand.settings.prewarm.is_empty()
            && let Some(now) = local_minute()
        {
            let due = lock(&demand.schedules).at(now);
            *lock(&demand.prewarmed) = due.pinned.into_iter().collect();
            due.load.iter().for_each(|name| demand.begin_scheduled(name));
        }
        if demand.settings.has_byte_budget() && rounds.is_multiple_of(MEASURED_EVERY) {
            self.measured.measure_processes();
        }
        let idle = Duration::from_secs(demand.settings.idle_secs.into());
        if idle.is_zero() && !demand.settings.has_budget() {
            return;
        }
        // A load that is under way does it.
        let _room = match demand.room.try_lock() {
            Ok(room) => room,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        self.refresh(demand);
        if !idle.is_zero() {
            let due = lock(&demand.residents).idle(now_ns(), idle);
            due.iter().for_each(|id| self.evict(demand, id, Reason::Idle));
        }
    }

    /// Loads all of the mode none that stay.
    pub(super) fn is_empty_at_start(&self) -> bool {
        self.demand.is_some() && self.settings.mode == ControlMode::None
    }

    pub(super) fn measured(&self) -> Option<&Measured> {
        self.demand.as_ref().filter(|demand| demand.settings.has_byte_budget()).map(|_| &self.measured)
    }
}

/// Where a model lies.
pub struct Places {
    /// One for each repository that has it; without namespaces they are equal.
    pub ids: BTreeSet<ModelId>,
    /// A number that changes with its files.
    pub fingerprint: u64,
}

/// The error of a model that cannot be loaded beside those that stay.
fn too_large(name: &str, excess: &Excess) -> Status {
    let Excess { reason, wanted, bound } = excess;
    let flag = reason.flag();
    Status::unavailable(match reason {
        Reason::Count => format!(
            "model '{name}', with the models that it is made of and those that are pinned, makes {wanted} models, and \
             {flag} allows {bound}; raise it"
        ),
        _ => format!(
            "model '{name}', with the models that it is made of and those that are pinned, needs {wanted} bytes, and \
             {flag} allows {bound}; raise it, or use a smaller model"
        ),
    })
}
