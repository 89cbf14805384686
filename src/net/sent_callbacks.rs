//! The callbacks of answers that are sent (see [`Sent`]).
//!
//! A callback waits until the codec holds no byte of its answer, goes along with the send that takes the last byte, and
//! is called when that send is complete. Those of a connection that ends first are dropped.

use nereid_clock::now_ns;
use nereid_protocol::service::Sent;

/// `A` is the address of an answer on its connection.
pub(super) struct SentCallbacks<A> {
    waiting: Vec<Waiting<A>>,
    /// For answers whose last bytes are with the engine.
    leaving: Vec<Box<dyn Sent>>,
}

struct Waiting<A> {
    at: A,
    callback: Box<dyn Sent>,
    /// Once the whole answer is in the output: bytes up to its end that are still to be taken.
    left: Option<usize>,
}

impl<A> Default for SentCallbacks<A> {
    fn default() -> SentCallbacks<A> {
        SentCallbacks { waiting: Vec::new(), leaving: Vec::new() }
    }
}

impl<A: Copy> SentCallbacks<A> {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.leaving.is_empty()
    }

    pub fn add(&mut self, at: A, callback: Box<dyn Sent>) {
        self.waiting.push(Waiting { at, callback, left: None });
    }

    /// `taken` bytes were taken from the output. `behind` returns how many more have to be until the whole answer
    /// of an address is.
    pub fn leave(&mut self, taken: usize, mut behind: impl FnMut(A) -> Option<usize>) {
        for waiting in &mut self.waiting {
            waiting.left = match waiting.left {
                Some(left) => Some(left.saturating_sub(taken)),
                None => behind(waiting.at),
            };
        }
        let gone = self.waiting.extract_if(.., |waiting| waiting.left == Some(0));
        self.leaving.extend(gone.map(|waiting| waiting.callback));
    }

    /// What was taken is sent, all of it.
    pub fn sent(&mut self) {
        if self.leaving.is_empty() {
            return;
        }
        let at_ns = now_ns();
        self.leaving.drain(..).for_each(|callback| callback.sent(at_ns));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Debug)]
    struct CountedCallback(Arc<AtomicUsize>);

    impl Sent for CountedCallback {
        fn sent(self: Box<Self>, at_ns: u64) {
            assert!(at_ns > 0);
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_callback_goes_with_the_last_byte_of_its_answer() {
        let called = Arc::new(AtomicUsize::new(0));
        let mut callbacks = SentCallbacks::<u8>::default();
        callbacks.add(1, Box::new(CountedCallback(Arc::clone(&called))));
        // Blocked by its window, then behind ten bytes of others and its own, of which seven are taken, then the rest.
        for (taken, behind, expected) in [(5, None, 0), (5, Some(10), 0), (7, Some(99), 0), (3, Some(99), 1)] {
            callbacks.leave(taken, |_| behind);
            callbacks.sent();
            assert_eq!(called.load(Ordering::Relaxed), expected, "{taken} {behind:?}");
        }
        assert!(callbacks.is_empty());
        callbacks.add(3, Box::new(CountedCallback(Arc::clone(&called))));
        drop(callbacks);
        assert_eq!(called.load(Ordering::Relaxed), 1, "a connection that ends first calls none");
    }
}
