//! The life cycle of models: start, load, reload, unload, polling (contract/schedulers.md section 10).
//!
//! All of it runs on control threads. Shards read a [`ModelMap`] that never changes: a change makes a new one, hands it
//! to every shard, and is complete when each has acknowledged it. Only then do replaced versions end, and only when
//! nothing refers to them any more, so that no request fails because its model was reloaded.
//!
//! Operations on one model wait for each other behind the lock of its [`ModelSlot`]; those on different models run at
//! the same time, and versions load on at most `--model-load-thread-count` threads.
//!
//! The order of locks: one slot, then `visible` or the graph of ensembles, and no lock after either. No thread holds
//! two slots, so operations that touch several models (see `composition`) cannot deadlock.

mod composition;
mod generations;
mod graph;
mod measured;
mod operation;
mod polling;
mod registration;
mod residency;
mod retirement;
mod waits;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, TryLockError, Weak};
use std::time::Duration;

use tracing::{error, warn};

use super::demand::Demand;
use super::directory::Directory;
use super::generations::{History, Keeper};
use super::models::{ModelEntry, ModelId, ModelMap};
use super::next_steps;
use super::overrides::{Override, Parameter};
use super::store::Store;
use super::version::{Loader, RunningVersion};
use super::{ControlMode, Settings};
use graph::Graph;
pub(super) use graph::parts_of;
use measured::Measured;
use nereid_observe::log::verbose;
use nereid_observe::metrics::Registry;
use nereid_request::{LoadUnderWay, RefusalReason, Status};
use operation::{LastLoad, LoadSource};
pub use residency::Places;
pub use retirement::InFlight;
use waits::{OnBehalf, Waits};

/// Most operations of the API that run or wait at the same time; each has a thread.
const OPERATIONS_MAX: usize = 64;
/// A shard answers within microseconds; the bound only keeps a broken one from blocking everything else.
const ACKNOWLEDGE_WITHIN: Duration = Duration::from_secs(60);

/// Hands a new map to every shard. The receiver is disconnected when all of them use it.
pub type Publisher = Box<dyn Fn(&Arc<ModelMap>) -> Receiver<()> + Send + Sync>;

/// The number of a group of shards that changes are published to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attachment(u64);

/// Locks; no critical section here panics with a change half made, so a poisoned lock is taken over.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The running versions of one model, and what they were loaded from.
#[derive(Default)]
struct ModelSlot {
    running: BTreeMap<i64, RunningVersion>,
    /// The last load that succeeded and was not undone by an unload.
    loaded: Option<LastLoad>,
    /// Of an ensemble that serves or is waiting for its parts: what to load when they change.
    source: Option<Arc<LoadSource>>,
    /// The stamp of the last attempt of polling, and how the attempt ended.
    attempt: Option<polling::Attempt>,
    /// The states that it was loaded in.
    generations: History<generations::KeptLoad>,
    /// Why the last load did not pass its poll; clients receive only that it did not.
    poll_failure: Option<Status>,
    /// The number of the operation that holds the slot, for loading models that may wait for it ([`Waits`]).
    operation: u64,
}

/// What is visible outside.
struct Visible {
    models: ModelMap,
    /// Unloads of a version that are under way.
    unloading: HashMap<(ModelId, i64), usize>,
    /// A copy of `models`, made when it is first read, or at every change once there are shards.
    map: Option<Arc<ModelMap>>,
    /// Of the groups of shards, one for the program's ports and one for each front end of an application.
    publishers: Vec<(Attachment, Publisher)>,
    /// How many groups there have been.
    attached: u64,
}

/// See the [module](self).
pub struct Lifecycle {
    settings: Arc<Settings>,
    /// The repositories of the settings, with later registrations and removals.
    stores: RwLock<registration::Stores>,
    loader: Loader,
    slots: Mutex<HashMap<ModelId, Arc<Mutex<ModelSlot>>>>,
    visible: Mutex<Visible>,
    /// The map of models as ensembles read it.
    directory: Arc<Directory>,
    graph: Mutex<Graph>,
    load_permits: Permits,
    waits: Waits,
    /// Requested operations that are not answered yet.
    operations: AtomicUsize,
    /// Versions that are finishing their work in the background.
    retiring: AtomicUsize,
    is_stopping: AtomicBool,
    /// The server ends all versions: one that appears from now on is ended too.
    is_ending: AtomicBool,
    /// Held while the repositories are read: what an older poll found must not undo a newer change. Taken before all
    /// other locks.
    polling: Mutex<()>,
    /// Loads on demand, where they are on.
    demand: Option<Arc<Demand>>,
    measured: Measured,
    /// The metrics of traffic rules.
    traffic_metrics: Registry,
    /// The files of generations that can be loaded again.
    keeper: Keeper,
}

impl Drop for Lifecycle {
    /// Breaks a cycle: ensembles refer to the directory, and its map refers to the ensembles.
    fn drop(&mut self) {
        self.directory.set(None);
    }
}

impl Lifecycle {
    pub fn new(settings: Settings) -> Arc<Lifecycle> {
        Arc::new_cyclic(|me| {
            let directory = Arc::new(Directory::new(me.clone()));
            let models = Some(Arc::clone(&directory) as Arc<_>);
            let scheduling = nereid_scheduler::Services { models, ..settings.scheduling.clone() };
            Lifecycle::with(Arc::new(Settings { scheduling, ..settings }), directory, me.clone())
        })
    }

    fn with(settings: Arc<Settings>, directory: Arc<Directory>, me: Weak<Lifecycle>) -> Lifecycle {
        let residency = &settings.residency;
        let demand = || Arc::new(Demand::new(residency, settings.load_thread_count, me));
        let models = ModelMap::new(BTreeMap::new(), settings.namespacing);
        Lifecycle {
            loader: Loader::new(Arc::clone(&settings)),
            demand: residency.on_demand.then(demand),
            measured: Measured::default(),
            // Loads that are measured must not overlap.
            load_permits: Permits::new(match residency.has_byte_budget() {
                true => 1,
                false => settings.load_thread_count.max(1),
            }),
            waits: Waits::default(),
            stores: RwLock::new(Arc::new(settings.stores.clone())),
            settings,
            slots: Mutex::default(),
            visible: Mutex::new(Visible {
                models,
                unloading: HashMap::new(),
                map: None,
                publishers: Vec::new(),
                attached: 0,
            }),
            directory,
            graph: Mutex::default(),
            operations: AtomicUsize::new(0),
            retiring: AtomicUsize::new(0),
            is_stopping: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            polling: Mutex::new(()),
            traffic_metrics: Registry::default(),
            keeper: Keeper::default(),
        }
    }

    pub fn mode(&self) -> ControlMode {
        self.settings.mode
    }

    /// The metrics of traffic rules.
    pub fn traffic_metrics(&self) -> &Registry {
        &self.traffic_metrics
    }

    /// The current map of models.
    pub fn map(&self) -> Arc<ModelMap> {
        let mut visible = lock(&self.visible);
        let Visible { models, map, .. } = &mut *visible;
        Arc::clone(map.get_or_insert_with(|| {
            let map = Arc::new(models.clone());
            self.directory.set(Some(Arc::clone(&map)));
            map
        }))
    }

    /// From now on every change is published to these shards too. A shard reads its first map after this call, so that
    /// it misses no change: what it did not read, its mailbox gets.
    pub fn attach(&self, publisher: Publisher) -> Attachment {
        let mut visible = lock(&self.visible);
        visible.attached += 1;
        let attachment = Attachment(visible.attached);
        visible.publishers.push((attachment, publisher));
        attachment
    }

    /// These shards are about to end.
    pub fn detach(&self, attachment: Attachment) {
        lock(&self.visible).publishers.retain(|(attached, _)| *attached != attachment);
    }

    /// The models are about to end: all shards keep the last map, whose models refuse requests.
    pub fn detach_all(&self) {
        lock(&self.visible).publishers.clear();
    }

    /// Changes what is registered of a model, `None` where it is not, and waits until every shard uses it.
    fn change(&self, id: &ModelId, edit: impl FnOnce(&mut Option<ModelEntry>)) {
        let acknowledged = {
            let mut visible = lock(&self.visible);
            if !visible.models.edit(id, edit) {
                return;
            }
            visible.map = None;
            if visible.publishers.is_empty() {
                self.directory.set(None);
                return;
            }
            let map = Arc::new(visible.models.clone());
            self.directory.set(Some(Arc::clone(&map)));
            // Under the lock: shards must get the maps in the order in which they were made.
            let acknowledged: Vec<_> = visible.publishers.iter().map(|(_, publish)| publish(&map)).collect();
            visible.map = Some(map);
            acknowledged
        };
        for group in acknowledged {
            if group.recv_timeout(ACKNOWLEDGE_WITHIN) == Err(RecvTimeoutError::Timeout) {
                warn!("a shard has not taken over the new models within {} s", ACKNOWLEDGE_WITHIN.as_secs());
            }
        }
    }

    fn slot(&self, id: &ModelId) -> Arc<Mutex<ModelSlot>> {
        Arc::clone(lock(&self.slots).entry(id.clone()).or_default())
    }

    /// Runs `job` with the slot of a model; refused where the operation would wait for itself.
    fn with_slot<T>(self: &Arc<Self>, id: &ModelId, job: impl FnOnce(&mut ModelSlot) -> T) -> Result<T, Status> {
        let wait = OnBehalf::load().map(|load| self.waits.wait_for(load, id)).transpose();
        let _wait = wait.inspect_err(|status| error!("{}", status.message))?;
        // A load that holds this slot and waits for a permit no longer needs one.
        self.load_permits.recheck();
        let slot = self.slot(id);
        if matches!(slot.try_lock(), Err(TryLockError::WouldBlock)) {
            verbose!(2, "Load/Unload conflict '{}'", id.name);
        }
        Ok(self.in_slot(id, &slot, |slot| {
            let held = self.waits.hold(id);
            slot.operation = held.operation;
            job(slot)
        }))
    }

    /// Works on a slot, alone.
    fn in_slot<T>(self: &Arc<Self>, id: &ModelId, slot: &Mutex<ModelSlot>, job: impl FnOnce(&mut ModelSlot) -> T) -> T {
        let done = job(&mut lock(slot));
        // The end of all versions passes by a slot that is held.
        if self.is_ending.load(Ordering::SeqCst) {
            self.end_slot(id, slot);
        }
        done
    }

    /// Why the last load of a model did not pass its poll.
    pub fn poll_failure(&self, id: &ModelId) -> Option<Status> {
        let slot = lock(&self.slots).get(id).cloned()?;
        lock(&slot).poll_failure.clone()
    }

    fn slots(&self) -> Vec<(ModelId, Arc<Mutex<ModelSlot>>)> {
        lock(&self.slots).iter().map(|(id, slot)| (id.clone(), Arc::clone(slot))).collect()
    }

    pub(super) fn id(&self, name: &str, store: &dyn Store) -> ModelId {
        let namespace = if self.settings.namespacing { store.location() } else { "" };
        ModelId { name: name.to_owned(), namespace: namespace.to_owned() }
    }

    /// Runs `job` on a thread of its own, unless too many operations are under way.
    pub fn spawn(self: &Arc<Self>, job: impl FnOnce(&Arc<Lifecycle>) + Send + 'static) -> Result<(), Status> {
        let operation = self.begin()?;
        let lifecycle = Arc::clone(self);
        let run = move || {
            let _operation = operation;
            job(&lifecycle);
        };
        let cannot = |error| Status::unavailable(format!("cannot start a thread for the operation: {error}"));
        std::thread::Builder::new().name("model-control".to_owned()).spawn(run).map(drop).map_err(cannot)
    }

    /// Runs `job` on the calling thread, as an operation that the server's end waits for.
    pub fn run<T>(self: &Arc<Self>, job: impl FnOnce(&Arc<Lifecycle>) -> Result<T, Status>) -> Result<T, Status> {
        let _operation = self.begin()?;
        job(self)
    }

    /// The same on behalf of a model that may be loading at this moment. Its load holds a permit, and would wait for
    /// ever if the operation needed another permit or the model's own slot.
    pub fn run_for_model<T>(
        self: &Arc<Self>,
        model: &LoadUnderWay,
        job: impl FnOnce(&Arc<Lifecycle>) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let _on_behalf = OnBehalf::of(model);
        self.run(job)
    }

    fn begin(self: &Arc<Self>) -> Result<Operation, Status> {
        let operation = Operation::new(Arc::clone(self));
        if self.is_stopping.load(Ordering::SeqCst) {
            return Err(Status::refused(RefusalReason::Exiting, "Server not ready"));
        }
        if self.operations.load(Ordering::SeqCst) > OPERATIONS_MAX {
            let text = format!("{OPERATIONS_MAX} model operations are waiting already");
            return Err(Status::refused(RefusalReason::Operations, text));
        }
        Ok(operation)
    }

    /// Operations of the API that are not answered yet.
    pub fn operations(&self) -> usize {
        self.operations.load(Ordering::SeqCst)
    }

    fn refuse_unless_explicit(&self) -> Result<(), Status> {
        match self.settings.mode {
            ControlMode::Explicit => Ok(()),
            ControlMode::None | ControlMode::Poll => {
                Err(Status::unavailable("explicit model load / unload is not allowed if polling is enabled"))
            }
        }
    }

    /// Loads a model on request of the API; returns when it serves, or with the reason why it does not.
    pub fn load(self: &Arc<Self>, name: &str, parameters: Vec<Parameter>) -> Result<(), Status> {
        self.refuse_unless_explicit()?;
        check_name(name)?;
        let given = Override::read(parameters).map_err(|status| poll_failed(name, &status))?;
        let mut changed = BTreeSet::new();
        let mut load = || {
            let outcome = self.load_named(name, &given, &mut changed);
            self.follow(&changed, &changed);
            outcome
        };
        let Some(demand) = &self.demand else { return load() };
        demand.release(name);
        let ids = self.places_of(name).ids;
        let outcome = self.with_room(demand, name, &ids, load);
        if outcome.is_ok() {
            demand.no_more_activated(name);
            if !matches!(given, Override::None) {
                demand.overridden(name);
            }
        }
        // The parts of an ensemble were loaded with it.
        changed.iter().for_each(|id| demand.release(&id.name));
        outcome
    }

    /// Loads a model from the one repository that has it, or with namespacing from each that has it.
    fn load_named(
        self: &Arc<Self>,
        name: &str,
        given: &Override,
        changed: &mut BTreeSet<ModelId>,
    ) -> Result<(), Status> {
        let mut places = Vec::new();
        for store in self.stores_of(name) {
            match store.stamp(name) {
                Ok(Some(_)) => places.push(store),
                Ok(None) => {
                    if let Some(path) = store.mapped_path(name) {
                        error!("mapped path '{path}' does not exist for model '{name}'");
                    }
                }
                Err(status) => {
                    match store.mapped_path(name) {
                        Some(path) => {
                            error!("failed to poll mapped path '{path}' for model '{name}': {}", status.message);
                        }
                        None => {
                            let location = store.location();
                            let text = &status.message;
                            error!("failed to poll model repository '{location}' for model '{name}': {text}");
                        }
                    }
                    return Err(poll_failed(name, &status));
                }
            }
        }
        let is_ambiguous = places.len() > 1 && !self.settings.namespacing;
        match (places.as_slice(), given) {
            _ if is_ambiguous => {
                error!("failed to poll model '{name}': not unique across all model repositories");
                Err(not_found(name))
            }
            ([], Override::Files { .. }) => {
                let namespace = self.stores().first().map(|store| self.id(name, &**store).namespace);
                let id = ModelId { name: name.to_owned(), namespace: namespace.unwrap_or_default() };
                self.load_requested(&id, None, given, changed)
            }
            ([], _) => {
                let failed = not_found(name);
                next_steps::log(name, &[self.step_for_unknown(name)]);
                Err(failed)
            }
            (places, _) => {
                let load =
                    |store: &Arc<dyn Store>| self.load_requested(&self.id(name, &**store), Some(store), given, changed);
                places.iter().map(load).fold(Ok(()), Result::and)
            }
        }
    }

    /// Loads a model from the repository at that location, although others may have one of the same name.
    pub fn load_from(self: &Arc<Self>, location: &str, name: &str) -> Result<(), Status> {
        let store = self.stores_of(name).into_iter().find(|store| store.location() == location);
        let store = store.ok_or_else(|| not_found(name))?;
        self.load_requested(&self.id(name, &*store), Some(&store), &Override::None, &mut BTreeSet::new())
    }

    fn step_for_unknown(&self, name: &str) -> String {
        let known = self.stores().iter().flat_map(|store| store.models().unwrap_or_default()).collect();
        next_steps::of_unknown_model(name, &known)
    }

    fn load_requested(
        self: &Arc<Self>,
        id: &ModelId,
        store: Option<&Arc<dyn Store>>,
        given: &Override,
        changed: &mut BTreeSet<ModelId>,
    ) -> Result<(), Status> {
        self.load_with_parts(id, store, given, changed)?;
        lock(&self.graph).mark_requested(id);
        Ok(())
    }

    /// Takes a model out of service, and the ensembles that are made of it. Their accepted requests are finished in the
    /// background. With `unload_dependents` also the models that were loaded only for this one.
    pub fn unload(self: &Arc<Self>, name: &str, unload_dependents: bool) -> Result<(), Status> {
        self.refuse_unless_explicit()?;
        if let Some(demand) = &self.demand {
            demand.hold_back(name, self.is_in_repository(name));
        }
        let ids = self.slots().into_iter().map(|(id, _)| id).filter(|id| id.name == name);
        let mut pending: Vec<ModelId> = ids.collect();
        let (mut changed, mut outcome) = (BTreeSet::new(), Ok(()));
        while let Some(id) = pending.pop() {
            let parts = lock(&self.graph).parts(&id);
            if let Err(status) = self.with_slot(&id, |slot| self.unload_slot(&id, slot)) {
                outcome = Err(status);
                continue;
            }
            if unload_dependents {
                pending.extend(self.unneeded(&id.namespace, &parts));
            }
            changed.insert(id);
        }
        self.follow(&changed, &changed);
        outcome
    }

    fn is_in_repository(&self, name: &str) -> bool {
        check_name(name).is_ok() && self.stores_of(name).iter().any(|store| store.holds(name).unwrap_or(false))
    }

    /// Refuses changes from now on, because the server ends.
    pub fn refuse_changes(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        if let Some(demand) = &self.demand {
            demand.stop();
        }
    }
}

/// An operation of the API, counted as long as it lives.
struct Operation(Arc<Lifecycle>);

impl Operation {
    fn new(lifecycle: Arc<Lifecycle>) -> Operation {
        lifecycle.operations.fetch_add(1, Ordering::SeqCst);
        Operation(lifecycle)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.0.operations.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Names that a load may give (contract/model_config.md section 4).
fn check_name(name: &str) -> Result<(), Status> {
    if name.trim().is_empty() {
        return Err(Status::invalid("Model name cannot be empty. Please enter a valid name to deploy."));
    }
    if name == ".." || name.contains(['/', '\0']) {
        let text = "model name must not contain path traversal characters";
        return Err(Status::invalid(format!("invalid model name '{name}', {text}")));
    }
    Ok(())
}

/// Logs why a model failed its poll; the client receives only that it did.
fn poll_failed(name: &str, status: &Status) -> Status {
    error!("Poll failed for model directory '{name}': {}", status.message);
    not_polled(name)
}

fn not_found(name: &str) -> Status {
    error!("failed to poll model '{name}': model not found in any model repository.");
    not_polled(name)
}

fn not_polled(name: &str) -> Status {
    Status::internal(format!("failed to load '{name}', failed to poll from model repository"))
}

/// Bounds how many versions load at the same time.
struct Permits {
    free: Mutex<usize>,
    freed: Condvar,
}

impl Permits {
    fn new(count: usize) -> Permits {
        Permits { free: Mutex::new(count), freed: Condvar::new() }
    }

    /// Runs `job` when there is a permit, or when it is exempt.
    fn with<T>(&self, is_exempt: impl Fn() -> bool, job: impl FnOnce() -> T) -> T {
        struct Return<'a>(&'a Permits);
        impl Drop for Return<'_> {
            fn drop(&mut self) {
                *lock(&self.0.free) += 1;
                self.0.freed.notify_one();
            }
        }
        let mut free = lock(&self.free);
        let permit = loop {
            if is_exempt() {
                break None;
            }
            if *free > 0 {
                *free -= 1;
                break Some(Return(self));
            }
            free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        };
        drop(free);
        let outcome = job();
        drop(permit);
        outcome
    }

    /// Makes the waiting loads check again whether they still need a permit.
    fn recheck(&self) {
        let _free = lock(&self.free);
        self.freed.notify_all();
    }
}

#[cfg(test)]
mod tests;
