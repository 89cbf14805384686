//! Panics of the process: a hook counts them, logs them with a backtrace, and remembers whether there are too many.
//!
//! A panic ends the request, the connection or the instance in whose code it is; the thread catches it and goes on
//! (docs/design.md, "Panics"). It is a defect all the same. A server that panics again and again is better replaced, so
//! [`are_too_many`] makes it not live.

use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::panic::PanicHookInfo;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use nereid_clock::now_ns;
use tracing::error;

use crate::log;

/// Panics within [`WINDOW_NS`] that make the server not live. No more backtraces than this are made in that time: each
/// takes long, and may be made on a shard.
pub const PANICS_MAX: usize = 10;
pub const WINDOW_NS: u64 = 60_000_000_000;

/// Which kind of thread panicked: the label of the metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadKind {
    Shard,
    Instance,
    /// Any other thread; its name is in the log.
    Other,
}

impl ThreadKind {
    pub const ALL: [ThreadKind; 3] = [ThreadKind::Shard, ThreadKind::Instance, ThreadKind::Other];

    /// The value of the metric's label.
    pub fn label(self) -> &'static str {
        match self {
            ThreadKind::Shard => "shard",
            ThreadKind::Instance => "instance",
            ThreadKind::Other => "other",
        }
    }

    /// The calling thread is of this kind.
    pub fn set(self) {
        KIND.set(self);
    }

    /// Panics on threads of this kind since the start of the process.
    pub fn panics(self) -> u64 {
        COUNTS[self as usize].load(Ordering::Relaxed)
    }
}

thread_local! {
    static KIND: Cell<ThreadKind> = const { Cell::new(ThreadKind::Other) };
}

static COUNTS: [AtomicU64; ThreadKind::ALL.len()] = [const { AtomicU64::new(0) }; ThreadKind::ALL.len()];
static RECENT: Recent = Recent::new();

/// The times of the last panics.
struct Recent {
    at_ns: [AtomicU64; PANICS_MAX],
    next: AtomicUsize,
}

impl Recent {
    const fn new() -> Recent {
        Recent { at_ns: [const { AtomicU64::new(0) }; PANICS_MAX], next: AtomicUsize::new(0) }
    }

    fn add(&self, now_ns: u64) {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % PANICS_MAX;
        self.at_ns[at].store(now_ns.max(1), Ordering::Relaxed);
    }

    /// Whether all of them lie in the window before this time.
    fn are_too_many(&self, now_ns: u64) -> bool {
        let is_recent = |at_ns: u64| at_ns > 0 && now_ns.saturating_sub(at_ns) < WINDOW_NS;
        self.at_ns.iter().all(|at| is_recent(at.load(Ordering::Relaxed)))
    }
}

/// Whether there were [`PANICS_MAX`] panics in the last [`WINDOW_NS`].
pub fn are_too_many() -> bool {
    RECENT.are_too_many(now_ns())
}

/// Installs the hook, once for the process. The previous one, which writes to stderr past the log, is called where no
/// log is installed.
pub fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if log::installed().is_none() {
                before(info);
            }
            report(info);
        }));
    });
}

fn report(info: &PanicHookInfo<'_>) {
    COUNTS[KIND.get() as usize].fetch_add(1, Ordering::Relaxed);
    let had_many = are_too_many();
    RECENT.add(now_ns());
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    let place = info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let text = text_of(info.payload());
    if had_many {
        return error!("thread {name} panicked at {place}: {text} (no backtrace: there were too many panics)");
    }
    error!("thread {name} panicked at {place}: {text}\nstack backtrace:\n{}", Backtrace::force_capture());
    if !had_many && are_too_many() {
        error!("there were {PANICS_MAX} panics within {} s: the server is not live", WINDOW_NS / 1_000_000_000);
    }
}

/// Panics where the text, which comes from a client, is `panic:` and the name of this point. With `hang:` it waits, as
/// long as the file exists that `NEREID_TEST_HANGS_WHILE` names. In builds of tests alone.
#[inline]
pub fn fault_point<T: AsRef<[u8]>>(point: &str, text: impl Fn() -> T) {
    #[cfg(all(feature = "testing", debug_assertions))]
    if text().as_ref().strip_prefix(b"hang:") == Some(point.as_bytes())
        && let Some(path) = std::env::var_os("NEREID_TEST_HANGS_WHILE")
    {
        while std::path::Path::new(&path).exists() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
    #[cfg(all(feature = "testing", debug_assertions))]
    if text().as_ref().strip_prefix(b"panic:") == Some(point.as_bytes()) {
        panic!("a client of a test has ordered a panic at {point}");
    }
    #[cfg(not(all(feature = "testing", debug_assertions)))]
    let _ = (point, text);
}

/// The text of a panic.
pub fn text_of(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_many_panics_in_a_short_time_are_too_many() {
        let (recent, second_ns) = (Recent::new(), WINDOW_NS / 60);
        for n in 1..=PANICS_MAX as u64 {
            assert!(!recent.are_too_many(100 * second_ns), "{n}");
            recent.add((100 + n) * second_ns);
        }
        let last_ns = (100 + PANICS_MAX as u64) * second_ns;
        assert!(recent.are_too_many(last_ns));
        assert!(recent.are_too_many(101 * second_ns + WINDOW_NS - 1));
        assert!(!recent.are_too_many(101 * second_ns + WINDOW_NS), "the first of them is long ago");
        // One more takes the place of the oldest.
        recent.add(101 * second_ns + WINDOW_NS);
        assert!(recent.are_too_many(101 * second_ns + WINDOW_NS));
    }

    #[test]
    fn a_panic_counts_for_the_kind_of_its_thread() {
        let before = ThreadKind::ALL.map(ThreadKind::panics);
        install();
        let run = || -> () {
            ThreadKind::Instance.set();
            panic!("on purpose: {}", 1)
        };
        let payload = std::thread::spawn(run).join().unwrap_err();
        assert_eq!(text_of(&*payload), "on purpose: 1");
        assert_eq!(ThreadKind::Instance.panics(), before[1] + 1);
        assert_eq!((ThreadKind::Shard.panics(), ThreadKind::Shard.label()), (before[0], "shard"));
    }
}
