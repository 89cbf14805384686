//! Keeps recordings of CUDA graphs and calls that wait for a whole device apart.
//!
//! While work of a device is recorded, a call that waits for the whole device is refused
//! (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED), and the recording fails as well, whichever thread makes the call. Libraries
//! make such calls where their interface does not show it: ONNX Runtime to wait for inputs that it copies, cuBLAS when
//! a handle is made or released. So whoever lets a library use a device holds [`shared`] meanwhile, and whoever records
//! holds [`exclusive`].

use std::cell::Cell;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static RECORDING: RwLock<()> = RwLock::new(());

/// What a thread holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    Nothing,
    Shared,
    Exclusive,
}

thread_local! {
    static HELD: Cell<Held> = const { Cell::new(Held::Nothing) };
}

/// What the current thread holds.
pub fn held() -> Held {
    HELD.get()
}

/// Held by a thread, which it marks.
#[derive(Debug)]
struct Mark;

impl Mark {
    /// # Panics
    /// In debug builds, if the thread holds one already: it could wait for itself.
    fn new(held: Held) -> Mark {
        debug_assert_eq!(HELD.get(), Held::Nothing);
        HELD.set(held);
        Mark
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        HELD.set(Held::Nothing);
    }
}

/// While it is held nothing is recorded.
#[must_use]
#[derive(Debug)]
pub struct Shared {
    _lock: RwLockReadGuard<'static, ()>,
    _mark: Mark,
}

/// While it is held no other thread records, and none holds [`Shared`].
#[must_use]
#[derive(Debug)]
pub struct Exclusive {
    _lock: RwLockWriteGuard<'static, ()>,
    _mark: Mark,
}

/// Waits until nothing is recorded. A thread holds at most one of both kinds.
pub fn shared() -> Shared {
    let mark = Mark::new(Held::Shared);
    Shared { _lock: RECORDING.read().unwrap_or_else(PoisonError::into_inner), _mark: mark }
}

/// Waits until no library uses a device. A thread holds at most one of both kinds.
pub fn exclusive() -> Exclusive {
    let mark = Mark::new(Held::Exclusive);
    Exclusive { _lock: RECORDING.write().unwrap_or_else(PoisonError::into_inner), _mark: mark }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn whoever_records_is_alone_and_the_others_are_not() {
        static USERS: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for turn in 0..500 {
                        if (turn + thread) % 10 == 0 {
                            let _alone = exclusive();
                            assert_eq!((USERS.load(Ordering::SeqCst), held()), (0, Held::Exclusive));
                            std::thread::yield_now();
                            assert_eq!(USERS.load(Ordering::SeqCst), 0);
                        } else {
                            let _shared = shared();
                            assert_eq!(held(), Held::Shared);
                            MOST.fetch_max(USERS.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            std::thread::yield_now();
                            USERS.fetch_sub(1, Ordering::SeqCst);
                        }
                        assert_eq!(held(), Held::Nothing);
                    }
                });
            }
        });
        assert!(MOST.load(Ordering::SeqCst) > 1);
    }
}
