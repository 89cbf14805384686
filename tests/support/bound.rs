//! A bound in time for each test that starts a server: one that hangs ends its test binary, by name.

use std::cell::OnceCell;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio, abort};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Far beyond the longest test on a busy machine: it ends what would never end.
const BOUND_SECS: u64 = 1200;
/// Time between two looks at all tests.
const PERIOD: Duration = Duration::from_secs(5);

/// A test that runs, as long as its thread lives.
struct Running {
    name: String,
    since: Instant,
}

static TESTS: Mutex<Vec<Weak<Running>>> = Mutex::new(Vec::new());
static WATCH: Once = Once::new();

thread_local! {
    static OWN: OnceCell<Arc<Running>> = const { OnceCell::new() };
}

/// Bounds the test on this thread. Threads that a test starts, and the main thread, belong to no single test.
pub fn bound_this_test() {
    let thread = thread::current();
    let Some(name) = thread.name().filter(|name| *name != "main") else { return };
    OWN.with(|own| {
        own.get_or_init(|| {
            let running = Arc::new(Running { name: name.to_owned(), since: Instant::now() });
            tests().push(Arc::downgrade(&running));
            running
        });
    });
    WATCH.call_once(|| {
        let secs = std::env::var("NEREID_TEST_BOUND_SECS").ok().and_then(|secs| secs.parse().ok());
        match secs.unwrap_or(BOUND_SECS) {
            0 => {}
            secs => drop(thread::spawn(move || watch(Duration::from_secs(secs)))),
        }
    });
}

fn tests() -> std::sync::MutexGuard<'static, Vec<Weak<Running>>> {
    TESTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch(bound: Duration) {
    loop {
        thread::sleep(PERIOD.min(bound));
        let overdue = overdue(bound);
        if !overdue.is_empty() {
            let text =
                format!("the tests {} have run for more than {} s: they hang\n", overdue.join(", "), bound.as_secs());
            // Not by `eprintln!`, whose output belongs to the test that started this thread.
            let _ = std::io::stderr().write_all(text.as_bytes());
            end_children();
            abort();
        }
    }
}

/// Ends what the tests have started; a server says with which stack.
fn end_children() {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let children = children.collect::<String>();
    for signal in ["ABRT", "KILL"] {
        let kill = format!("kill -{signal} {children}");
        let _ = Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status();
        thread::sleep(Duration::from_secs(2));
    }
}

fn overdue(bound: Duration) -> Vec<String> {
    let mut tests = tests();
    tests.retain(|test| test.strong_count() > 0);
    let running = tests.iter().filter_map(Weak::upgrade);
    running.filter(|test| test.since.elapsed() > bound).map(|test| test.name.clone()).collect()
}
