//! Calls back when the memory that an application lent for a request is no longer used.

use std::sync::{Mutex, PoisonError};

type Callback = Box<dyn FnOnce() + Send>;

/// Shared by a request and every slice of the memory that the application lent for it. When the last of them is
/// dropped, the memory is no longer read, and the callback runs.
pub struct ReleaseGuard(Mutex<Option<Callback>>);

impl ReleaseGuard {
    pub fn new(callback: impl FnOnce() + Send + 'static) -> ReleaseGuard {
        ReleaseGuard(Mutex::new(Some(Box::new(callback))))
    }

    /// Drops the callback without calling it.
    pub fn disarm(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Drop for ReleaseGuard {
    fn drop(&mut self) {
        if let Some(callback) = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            callback();
        }
    }
}

impl std::fmt::Debug for ReleaseGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReleaseGuard")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::Slice;

    #[test]
    fn the_callback_runs_once_when_the_last_holder_is_gone() {
        let calls = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&calls);
        let release_guard = Arc::new(ReleaseGuard::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        static BYTES: [u8; 3] = *b"abc";
        // SAFETY: static bytes live longer than any owner.
        let slice = unsafe { Slice::foreign(BYTES.as_ptr(), 3, release_guard.clone()) };
        let part = slice.window(1..2);
        assert!(part.is_lent() && !Slice::copy_of(&part).is_lent());
        drop((release_guard, slice));
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        drop(part);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_disarmed_guard_does_not_call_back() {
        let release_guard = ReleaseGuard::new(|| unreachable!("the guard is disarmed"));
        release_guard.disarm();
    }
}
