//! Answers to a request that its own shard executes: they are at home already, and need no mailbox.
//!
//! While such a request runs, what its backend answers on this thread is put aside here, and the shard takes it when it
//! reads its mail. Only answers of that very request are put aside: another request may have answers in the mailbox,
//! which later ones must not overtake.

use std::cell::{Cell, RefCell};

use std::sync::Arc;

use super::{Delivery, Sink};

/// The sink by its address, and the key, which is unique in its sink only.
type Address = (usize, u64);

thread_local! {
    static RUNNING: Cell<Option<Address>> = const { Cell::new(None) };
    static ANSWERS: RefCell<Vec<(u64, Delivery)>> = const { RefCell::new(Vec::new()) };
}

/// Until it is dropped, answers to one request of this thread's shard are put aside.
pub struct Execution {
    before: Option<Address>,
}

fn address(sink: &Arc<dyn Sink>, key: u64) -> Address {
    (Arc::as_ptr(sink).addr(), key)
}

impl Execution {
    pub(super) fn of(sink: &Arc<dyn Sink>, key: u64) -> Execution {
        Execution { before: RUNNING.replace(Some(address(sink, key))) }
    }
}

impl Drop for Execution {
    #[inline]
    fn drop(&mut self) {
        RUNNING.set(self.before);
    }
}

/// Puts an answer to the request under `key` aside, if that one is executed here and now; else it comes back.
#[inline]
pub(super) fn put_aside(sink: &Arc<dyn Sink>, key: u64, delivery: Delivery) -> Option<Delivery> {
    if RUNNING.get().is_none_or(|running| running != address(sink, key)) {
        return Some(delivery);
    }
    ANSWERS.with_borrow_mut(|answers| answers.push((key, delivery)));
    None
}

/// Exchanges what was put aside on this thread, oldest first and each with the key of its request, for `empty`.
pub fn swap_answers(empty: &mut Vec<(u64, Delivery)>) {
    ANSWERS.with_borrow_mut(|answers| std::mem::swap(answers, empty));
}

/// Whether anything was put aside.
pub fn has_answers() -> bool {
    ANSWERS.with_borrow(|answers| !answers.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_memory::{BlockMut, Exhausted};

    /// Not of size zero, so that each has an address of its own.
    struct Silent(u8);

    impl Sink for Silent {
        fn deliver(&self, _key: u64, _delivery: Delivery) {
            unreachable!("sink {} is not called", self.0);
        }

        fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
            Ok(BlockMut::unpooled(byte_size))
        }
    }

    #[test]
    fn only_answers_of_the_request_that_runs_are_put_aside() {
        let sinks: [Arc<dyn Sink>; 2] = [0, 1].map(|at| Arc::new(Silent(at)) as Arc<dyn Sink>);
        let is_kept =
            |sink: usize, key| put_aside(&sinks[sink], key, Delivery { response: None, last: true }).is_none();
        assert!(!is_kept(0, 1), "nothing runs");
        {
            let _outer = Execution::of(&sinks[0], 1);
            assert!(!is_kept(0, 2), "another one");
            assert!(!is_kept(1, 1), "the same key of another shard");
            assert!(is_kept(0, 1));
            {
                let _inner = Execution::of(&sinks[0], 2);
                assert!(!is_kept(0, 1));
                assert!(is_kept(0, 2));
            }
            assert!(is_kept(0, 1), "the outer one runs again");
        }
        assert!(!is_kept(0, 1), "it is over");
        assert!(std::thread::spawn(|| !has_answers()).join().unwrap(), "each thread has its own");
        let mut answers = Vec::new();
        swap_answers(&mut answers);
        assert_eq!(answers.iter().map(|(key, _)| *key).collect::<Vec<_>>(), [1, 2, 1]);
        assert!(!has_answers());
    }
}
