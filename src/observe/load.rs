//! The load of the server, as load balancers want it (contract/scale_out.md section 6, ORCA).
//!
//! Nothing here is on the path of a request: a thread reads the counters that exist anyway, and publishes a report that
//! shards copy. The thread starts with the first question. While questions come it reads every [`SAMPLE_EACH`], else
//! every [`IDLE_EACH`].

mod window;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nereid_clock::now_ns;
use tracing::warn;
use window::Window;

/// Between two reports while somebody asks.
pub const SAMPLE_EACH: Duration = Duration::from_millis(100);
/// The same when nobody has asked for [`ASKED_FOR`].
const IDLE_EACH: Duration = Duration::from_secs(1);
const ASKED_FOR: Duration = Duration::from_secs(10);
/// A reading takes time with the number of models: the thread waits for at least so many times as long.
const REST: u32 = 20;
/// With more models the first question does not read the counters itself.
const MODELS_AT_ONCE: usize = 256;

/// The counters of one model version.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelReading {
    /// Name and version, and whatever else tells it from others.
    pub key: String,
    /// Nanoseconds of executions that have ended.
    pub executed_ns: u64,
    /// For each worker the count of its executions: odd during one.
    pub executions: Vec<u64>,
    /// Requests that wait for an instance.
    pub pending: u64,
    /// Requests that have ended, refused ones included.
    pub succeeded: u64,
    pub failed: u64,
    /// Of an ensemble the number of its steps, whose models count its requests again.
    pub steps: u64,
}

/// All counters at one time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    pub at_ns: u64,
    pub models: Vec<ModelReading>,
    /// Processor time so far, and cores.
    pub cpu: Option<(u64, f64)>,
    /// Bytes in use and bytes that there are.
    pub memory: Option<(u64, u64)>,
    pub cache: Option<CacheUse>,
}

/// Blocks of the key-value cache of a language model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheUse {
    /// From 0 to 1.
    pub utilization: f64,
    pub tokens_max: u64,
}

/// What balancers are told. No value is negative, infinite or no number.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// The busiest model: the part of the last seconds in which its instances executed, or 1 and the requests that wait
    /// for each instance.
    pub application_utilization: f64,
    pub cpu_utilization: f64,
    pub memory_utilization: f64,
    pub requests_per_second: f64,
    pub errors_per_second: f64,
    /// Requests that wait for instances.
    pub queue_depth: u64,
    pub cache: Option<CacheUse>,
}

/// Reads the counters.
pub type Read = Box<dyn Fn() -> Reading + Send + Sync>;

struct Shared {
    read: Read,
    /// The last readings. Held while the first question reads, and by the thread.
    window: Mutex<Window>,
    published: Mutex<Arc<Report>>,
    /// Number of the published report; 0: none.
    number: AtomicU64,
    asked_ns: AtomicU64,
    /// The thread waits for longer than [`SAMPLE_EACH`].
    is_idle: AtomicBool,
    is_over: Mutex<bool>,
    changed: Condvar,
}

/// See the [module](self).
pub struct Monitor {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    has_begun: AtomicBool,
}

impl Monitor {
    /// Takes the first reading, from which the first report counts.
    pub fn new(read: Read) -> Monitor {
        let window = Mutex::new(Window::new(VecDeque::from([read()])));
        let shared = Shared {
            read,
            window,
            published: Mutex::default(),
            number: AtomicU64::new(0),
            asked_ns: AtomicU64::new(0),
            is_idle: AtomicBool::new(false),
            is_over: Mutex::new(false),
            changed: Condvar::new(),
        };
        Monitor { shared: Arc::new(shared), thread: Mutex::default(), has_begun: AtomicBool::new(false) }
    }

    /// Somebody wants reports.
    pub fn ask(&self) {
        self.shared.asked_ns.store(now_ns(), Ordering::Relaxed);
        if !self.has_begun.load(Ordering::Acquire) {
            return self.begin();
        }
        if self.shared.is_idle.load(Ordering::Acquire) && self.shared.is_idle.swap(false, Ordering::AcqRel) {
            // The thread holds the lock from its look at the flag until it waits.
            drop(lock(&self.shared.is_over));
            self.shared.changed.notify_one();
        }
    }

    /// The number of the newest report; 0 if there is none.
    pub fn number(&self) -> u64 {
        self.shared.number.load(Ordering::Acquire)
    }

    /// The newest report.
    pub fn report(&self) -> Arc<Report> {
        Arc::clone(&lock(&self.shared.published))
    }

    #[cold]
    fn begin(&self) {
        if self.has_begun.swap(true, Ordering::AcqRel) {
            return;
        }
        if lock(&self.shared.window).models() <= MODELS_AT_ONCE {
            // After a panic the thread tries again.
            let _ = catch_unwind(AssertUnwindSafe(|| self.shared.sample()));
        }
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("load".to_owned()).spawn(move || shared.run());
        *lock(&self.thread) = match thread {
            Ok(thread) => Some(thread),
            Err(error) => {
                warn!("load is not reported: {error}");
                // The first report would stay for ever.
                self.shared.number.store(0, Ordering::Release);
                None
            }
        };
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        *lock(&self.shared.is_over) = true;
        self.shared.changed.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            // It ends by its flag; what it panicked over is logged.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Monitor").field(&self.number()).finish()
    }
}

impl Shared {
    fn sample(&self) {
        let report = {
            let mut window = lock(&self.window);
            window.add((self.read)());
            window.report()
        };
        *lock(&self.published) = Arc::new(report);
        self.number.fetch_add(1, Ordering::AcqRel);
    }

    fn run(&self) {
        loop {
            let began = Instant::now();
            // After a panic the last report stays.
            let _ = catch_unwind(AssertUnwindSafe(|| self.sample()));
            let asked_ns = now_ns().saturating_sub(self.asked_ns.load(Ordering::Relaxed));
            let is_idle = u128::from(asked_ns) > ASKED_FOR.as_nanos();
            let pause = if is_idle { IDLE_EACH } else { SAMPLE_EACH }.max(began.elapsed() * REST);
            self.is_idle.store(is_idle, Ordering::Release);
            let over = lock(&self.is_over);
            let waited = self
                .changed
                .wait_timeout_while(over, pause, |over| !*over && self.is_idle.load(Ordering::Acquire) == is_idle);
            if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                return;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
