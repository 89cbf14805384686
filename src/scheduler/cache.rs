//! The response cache: equal requests to a model that enables it are answered without the model (contract/schedulers.md
//! section 8).
//!
//! A scheduler around another one. The lookup comes before the queue; a hit is answered at once, a miss goes on, and
//! its answer is inserted on its way back (see `recorder`). Short work is done where the request is at home; the hash
//! of large inputs, the copy of large answers and everything that waits for another process is done by the cache's own
//! threads (see `async_lookup` and `cache_pool`), and the request then continues at home.

mod async_lookup;
mod cache_pool;
mod entry;
mod key;
mod local;
mod recorder;
mod redis;
pub mod settings;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::error;

use self::async_lookup::AsyncLookup;
use self::cache_pool::CachePool;
pub use self::entry::Entry;
pub use self::key::{HashSecret, Key, KeyForm};
pub use self::local::LocalCache;
use self::recorder::Recorder;
use super::{Accepted, Purpose, Refused, Scheduler, answer_cancelled, stopping};
use nereid_clock::now_ns;
use nereid_model_config::ModelSpec;
use nereid_observe::statistics::ModelStatistics;
use nereid_request::{Completion, Request, Status, Ticket, WakeUp};

/// Inputs up to this size are hashed on the shard, in less than 50 µs; larger ones on the cache's threads.
pub const HASHED_AT_ONCE: usize = 64 * 1024;
/// Answers up to this size are copied by the thread that delivers them; larger ones by the cache's threads.
pub const COPIED_AT_ONCE: usize = 64 * 1024;

/// A store of cache entries.
pub trait Store: Send + Sync {
    /// The entry under `key`, if its seal matches.
    fn lookup(&self, key: Key, spec: &ModelSpec) -> Option<Arc<Entry>>;

    /// Inserts `entry` unless there is one; with `replaces` even then.
    fn insert(&self, key: Key, entry: Arc<Entry>, replaces: bool) -> Inserted;

    /// True if no call waits, so that a shard may make it.
    fn is_quick(&self) -> bool;

    /// True if the store would not answer at the moment.
    fn is_unavailable(&self) -> bool {
        false
    }

    /// How long a job may wait for a thread before the store is skipped.
    fn wait_max_ns(&self) -> u64 {
        u64::MAX
    }

    /// Threads that may wait for it at the same time.
    fn thread_count(&self) -> usize {
        2
    }

    /// The server ends: no calls follow.
    fn close(&self) {}
}

/// Opens a cache that is a library, by its name, the file of the library where a setting names one, and the settings.
pub type OpenLibrary<'a> = &'a dyn Fn(&str, Option<&str>, &BTreeMap<&str, &str>) -> Result<Box<dyn Store>, Status>;

/// Result of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    Kept,
    /// There was an entry already.
    Present,
    /// It was too large, or the store does not answer.
    Refused,
}

/// The response cache of a server.
pub struct Cache {
    store: Box<dyn Store>,
    secret: HashSecret,
    form: KeyForm,
    pool: CachePool,
}

impl Cache {
    /// Opens the cache that `--cache-config` names. `library` opens one that is not built in, `environment` reads a
    /// variable.
    pub fn open(
        name: &str,
        settings: &[(String, String)],
        library: OpenLibrary<'_>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Cache, Status> {
        settings::open(name, settings, library, environment)
    }

    /// A cache over any store.
    pub fn over(store: Box<dyn Store>, secret: HashSecret, form: KeyForm) -> Result<Cache, Status> {
        let pool = CachePool::start(store.thread_count());
        let pool = pool.map_err(|error| Status::internal(format!("cannot start a thread: {error}")))?;
        Ok(Cache { store, secret, form, pool })
    }

    /// The server ends: later requests do not use the cache.
    pub fn close(&self) {
        self.store.close();
    }
}

/// A scheduler behind the response cache.
pub struct Cached {
    model: Arc<CachedModel>,
    in_flight: Arc<InFlightCount>,
}

/// A model version whose responses are cached.
struct CachedModel {
    cache: Arc<Cache>,
    inner: Arc<dyn Scheduler>,
    version: i64,
    spec: Arc<ModelSpec>,
    statistics: Arc<ModelStatistics>,
}

impl Cached {
    /// `inner` behind `cache`, if the model enables it.
    pub fn around(inner: Arc<dyn Scheduler>, purpose: &Purpose, cache: Option<&Arc<Cache>>) -> Arc<dyn Scheduler> {
        let wants = purpose.spec.config.response_cache.is_some_and(|cache| cache.enable);
        match cache.filter(|_| wants) {
            Some(cache) => Arc::new(Cached::new(inner, purpose, cache)),
            None => inner,
        }
    }

    pub fn new(inner: Arc<dyn Scheduler>, purpose: &Purpose, cache: &Arc<Cache>) -> Cached {
        purpose.statistics.enable_cache();
        let model = CachedModel {
            cache: Arc::clone(cache),
            inner,
            version: purpose.version,
            spec: Arc::clone(&purpose.spec),
            statistics: Arc::clone(&purpose.statistics),
        };
        Cached { model: Arc::new(model), in_flight: Arc::default() }
    }
}

impl Scheduler for Cached {
    fn enqueue(&self, mut request: Box<Request>) -> Result<Accepted, Refused> {
        let model = &self.model;
        let Some(guard) = InFlightCount::enter(&self.in_flight, &model.inner) else {
            return Err(Refused { status: stopping().prefixed(&request.log_id()), request });
        };
        if request.inputs.iter().any(|input| input.on_device().is_some()) {
            error!(
                "Failed to hash request: {}Only input buffers in CPU memory are allowed in cache currently",
                request.log_id()
            );
            return model.inner.enqueue(request);
        }
        let store = &*model.cache.store;
        if store.is_quick() && key::hashed_bytes(&request) <= HASHED_AT_ONCE {
            let lookup = model.look_up(&mut request);
            let found = lookup.found.clone().filter(|entry| entry.answers(&request));
            return match found {
                Some(entry) => {
                    let ticket = request.ticket();
                    model.answer(request, &entry, &lookup);
                    Ok(Accepted { wake_up: WakeUp::needless(), ticket, expires_at_ns: None })
                }
                None => model.enqueue_recorded(request, &lookup),
            };
        }
        let reservation = if store.is_unavailable() { None } else { model.cache.pool.reserve() };
        match reservation {
            Some(reservation) => Ok(async_lookup::send(model, request, reservation, guard)),
            None => model.enqueue_recorded(request, &Lookup::none()),
        }
    }

    fn may_run_here(&self) -> bool {
        self.model.inner.may_run_here()
    }

    fn cancel(&self, ticket: &Ticket) -> WakeUp {
        match AsyncLookup::of(ticket) {
            Some(async_lookup) => async_lookup.cancel(ticket, || {
                self.model.statistics.pending_removed();
                answer_cancelled(ticket, &self.model.statistics);
            }),
            None => self.model.inner.cancel(ticket),
        }
    }

    fn expire(&self, ticket: &Ticket) -> WakeUp {
        match AsyncLookup::of(ticket) {
            Some(async_lookup) => async_lookup.expire(),
            None => self.model.inner.expire(ticket),
        }
    }

    fn stop(&self) {
        if self.in_flight.close() {
            self.model.inner.stop();
        }
    }

    fn close(&self) {
        self.model.inner.close();
    }

    fn unfinished(&self) -> usize {
        self.model.inner.unfinished()
    }
}

/// One lookup in the cache.
#[derive(Clone)]
struct Lookup {
    /// None where the cache was not searched.
    key: Option<Key>,
    started_ns: u64,
    ended_ns: u64,
    found: Option<Arc<Entry>>,
}

impl Lookup {
    /// The result where the cache does not answer.
    fn none() -> Lookup {
        let now_ns = now_ns();
        Lookup { key: None, started_ns: now_ns, ended_ns: now_ns, found: None }
    }

    fn duration_ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.started_ns)
    }
}

impl CachedModel {
    /// Enqueues a request whose response is to be inserted. A refused request goes back unchanged.
    fn enqueue_recorded(
        self: &Arc<CachedModel>,
        mut request: Box<Request>,
        lookup: &Lookup,
    ) -> Result<Accepted, Refused> {
        let home = request.completion();
        self.record(&mut request, lookup);
        self.inner.enqueue(request).map_err(|Refused { status, mut request }| {
            request.restore(home);
            Refused { status, request }
        })
    }

    fn look_up(&self, request: &mut Request) -> Lookup {
        let started_ns = now_ns();
        // The model has to get the bytes that the key was made of, whatever the client writes to its memory meanwhile.
        if request.own_inputs().is_err() {
            return Lookup::none();
        }
        let key = Key::of(request, &self.spec.name, self.version, self.cache.secret, self.cache.form);
        let found = self.cache.store.lookup(key, &self.spec);
        Lookup { key: Some(key), started_ns, ended_ns: now_ns(), found }
    }

    /// Answers a hit: counts it, and sends one response that is the last one (contract/metrics.md section 3).
    fn answer(&self, request: Box<Request>, entry: &Entry, lookup: &Lookup) {
        // It cannot be cancelled from here on.
        if !request.admission().take() {
            return;
        }
        if request.is_counted() {
            let stamps = &request.stamps;
            self.statistics.cache_hit(stamps.started_ns, stamps.queued_ns, lookup.started_ns, lookup.ended_ns);
        }
        request.finish(entry.response(request.id.clone()));
    }

    /// Lets a recorder insert the response of a request into the cache.
    fn record(self: &Arc<CachedModel>, request: &mut Request, lookup: &Lookup) {
        // The cache keeps what the model wrote, not the later contents of the client's memory.
        request.keep_outputs_apart();
        let (id, is_counted) = (request.id.clone(), request.is_counted());
        request.reroute(|home: Completion| {
            let recorder = Recorder::new(Arc::clone(self), home, id, is_counted, lookup);
            (Arc::new(recorder), 0)
        });
    }
}

/// Counts the requests that have not reached the scheduler behind the cache: it stops when the count is zero.
#[derive(Default)]
struct InFlightCount(AtomicUsize);

const CLOSED: usize = 1;
const ONE: usize = 2;

/// Counts one request until it has reached the scheduler.
struct InFlightGuard {
    in_flight: Arc<InFlightCount>,
    inner: Arc<dyn Scheduler>,
}

impl InFlightCount {
    /// `None`: the cache is closed.
    fn enter(in_flight: &Arc<InFlightCount>, inner: &Arc<dyn Scheduler>) -> Option<InFlightGuard> {
        // Made first, so that its drop takes the count back in every case.
        in_flight.0.fetch_add(ONE, Ordering::SeqCst);
        let guard = InFlightGuard { in_flight: Arc::clone(in_flight), inner: Arc::clone(inner) };
        let is_open = in_flight.0.load(Ordering::SeqCst) & CLOSED == 0;
        is_open.then_some(guard)
    }

    /// True if the count is zero: the caller stops the scheduler. Otherwise the last guard does.
    fn close(&self) -> bool {
        self.0.fetch_or(CLOSED, Ordering::SeqCst) < ONE
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        if self.in_flight.0.fetch_sub(ONE, Ordering::SeqCst) == ONE | CLOSED {
            self.inner.stop();
        }
    }
}

#[cfg(test)]
mod tests;
