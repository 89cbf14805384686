//! A worker's wait: a polling worker sees a call, a sleeping one is woken by it, and no call is lost.

use super::super::WakeFlag;
use super::*;

/// How a worker waits: it polls once, as if it spun, and then sleeps.
#[derive(Clone)]
pub(super) struct Parker {
    flag: Arc<WakeFlag<Late>>,
    late: Late,
}

/// The thread that sleeps, set when it first does.
#[derive(Clone, Default)]
struct Late(Arc<std::sync::OnceLock<thread::Thread>>);

impl Wake for Late {
    fn wake(&self) {
        self.0.get().expect("set before it sleeps").unpark();
    }
}

impl Parker {
    pub fn new() -> Parker {
        let late = Late::default();
        Parker { flag: Arc::new(WakeFlag::new(late.clone())), late }
    }

    pub fn call(&self) {
        self.flag.call();
    }

    /// Returns after a call.
    pub fn wait(&self) {
        self.late.0.get_or_init(thread::current);
        if !self.flag.is_called() {
            loom::hint::spin_loop();
        }
        let called = self.flag.wait(|| {
            thread::park();
            true
        });
        assert!(called, "it has no time to be up");
    }
}

/// A lost call leaves the thread parked for ever, which loom reports as a deadlock; a call is never taken for another.
#[test]
fn a_call_is_seen_or_wakes() {
    model(PREEMPTIONS, || {
        let parker = Parker::new();
        let work = Arc::new(AtomicUsize::new(0));
        for _ in 0..2 {
            let (caller, work) = (parker.clone(), Arc::clone(&work));
            thread::spawn(move || {
                work.fetch_add(1, Ordering::Relaxed);
                caller.call();
            });
        }
        while work.load(Ordering::Relaxed) < 2 {
            parker.wait();
        }
    });
}

/// What the caller did before is visible to the thread that it woke; a wait whose time is up leaves a late call to the
/// next wait.
#[test]
fn a_flag_that_comes_late_ends_the_next_wait() {
    model(PREEMPTIONS, || {
        let parker = Parker::new();
        let cell = Arc::new(UnsafeCell::new(0));
        let caller = thread::spawn({
            let (caller, cell) = (parker.clone(), Arc::clone(&cell));
            move || {
                // SAFETY: the waiting thread reads it after the call; loom checks exactly that.
                cell.with_mut(|value| unsafe { *value = 1 });
                caller.call();
            }
        });
        // Its time is up at once.
        parker.late.0.get_or_init(thread::current);
        if !parker.flag.wait(|| false) {
            parker.wait();
        }
        // SAFETY: the call came after the write.
        assert_eq!(cell.with(|value| unsafe { *value }), 1);
        caller.join().unwrap();
    });
}
