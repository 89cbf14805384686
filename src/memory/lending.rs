//! Memory that a caller inside the process lends for the time of a request.

use std::sync::{Mutex, PoisonError};

type GiveBack = Box<dyn FnOnce() + Send>;

/// Shared by a request and every slice of what was lent for it: when the last of them is gone, nobody looks at the
/// memory any more and its owner is told.
pub struct Lending(Mutex<Option<GiveBack>>);

impl Lending {
    pub fn new(give_back: impl FnOnce() + Send + 'static) -> Lending {
        Lending(Mutex::new(Some(Box::new(give_back))))
    }

    /// Nobody is to be told.
    pub fn dismiss(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        if let Some(give_back) = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            give_back();
        }
    }
}

impl std::fmt::Debug for Lending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lending")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::Slice;

    #[test]
    fn the_owner_is_told_once_when_the_last_holder_is_gone() {
        let told = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&told);
        let lending = Arc::new(Lending::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        static BYTES: [u8; 3] = *b"abc";
        // SAFETY: static bytes live longer than any owner.
        let slice = unsafe { Slice::foreign(BYTES.as_ptr(), 3, lending.clone()) };
        let part = slice.window(1..2);
        assert!(part.is_lent() && !Slice::copy_of(&part).is_lent());
        drop((lending, slice));
        assert_eq!(told.load(Ordering::SeqCst), 0);
        drop(part);
        assert_eq!(told.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_loan_that_came_to_nothing_is_silent() {
        let lending = Lending::new(|| unreachable!("nobody is to be told"));
        lending.dismiss();
    }
}
