//! An unbounded queue for many producers and one consumer at a time; a push cannot fail.
//!
//! The list is Vyukov's: a producer swaps itself in as the newest node and then links its predecessor to it; the
//! consumer follows the links. Between the two steps of a push the rest of the list is out of sight: a consumer takes
//! that for an empty queue, which is safe because every producer wakes the consumer (or checks for a holder) only after
//! its push is complete.
//!
//! What bounds the queue is what may be pushed: admission counts requests, a decoupled model has credits, a shard has
//! a bounded number of connections.

use std::ptr;

use crossbeam_utils::CachePadded;

use super::sync::{AtomicBool, AtomicPtr, Ordering, UnsafeCell};

/// The queue. Any thread may [`push`](Mpsc::push); the holder of the [`Consumer`] may pop.
///
/// Consumers hand a state of type `S` from one to the next, for example values that were popped and not used up yet.
/// The right to pop guards it, so it costs nothing more.
pub struct Mpsc<T, S = ()> {
    /// The newest node, which producers swap.
    newest: CachePadded<AtomicPtr<Node<T>>>,
    /// The node before the oldest value. Belongs to the holder of `consuming`.
    oldest: CachePadded<UnsafeCell<*mut Node<T>>>,
    consuming: AtomicBool,
    /// Belongs to the holder of `consuming`.
    state: UnsafeCell<S>,
}

// SAFETY: values are moved from one thread to another, never shared; the consumer's end is guarded by `consuming`.
unsafe impl<T: Send, S: Send> Send for Mpsc<T, S> {}
// SAFETY: values are moved from one thread to another, never shared; the consumer's end is guarded by `consuming`.
unsafe impl<T: Send, S: Send> Sync for Mpsc<T, S> {}

/// The right to pop, held by one thread at a time and given back by dropping it.
pub struct Consumer<'a, T, S = ()> {
    queue: &'a Mpsc<T, S>,
}

/// The part of a [`Consumer`] that pops; its other part is the state.
pub struct Outlet<'a, T> {
    oldest: &'a UnsafeCell<*mut Node<T>>,
}

impl<T> Mpsc<T> {
    pub fn new() -> Mpsc<T> {
        Mpsc::with_state(())
    }
}

impl<T, S> Mpsc<T, S> {
    /// A queue whose consumers share `state`.
    pub fn with_state(state: S) -> Mpsc<T, S> {
        let stub = Node::boxed(None);
        Mpsc {
            newest: CachePadded::new(AtomicPtr::new(stub)),
            oldest: CachePadded::new(UnsafeCell::new(stub)),
            consuming: AtomicBool::new(false),
            state: UnsafeCell::new(state),
        }
    }

    /// Appends `value`. What happened before the push is visible to the thread that pops the value.
    pub fn push(&self, value: T) {
        let node = Node::boxed(Some(value));
        let before = self.newest.swap(node, Ordering::AcqRel);
        // SAFETY: a node is freed only after its `next` was seen to be set, and only we set the `next` of the node
        // that we replaced.
        unsafe { &*before }.next.store(node, Ordering::Release);
    }

    /// Takes the right to pop, or `None` while another thread holds it.
    pub fn consume(&self) -> Option<Consumer<'_, T, S>> {
        // The load keeps the cache line shared while another thread drains the queue.
        let is_free = !self.consuming.load(Ordering::Relaxed)
            && self.consuming.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Made only now: dropping a consumer gives the right back, even if another thread holds it.
        is_free.then(|| Consumer { queue: self })
    }
}

impl<T, S> Consumer<'_, T, S> {
    /// The oldest value, or `None` if there is none whose push is complete.
    pub fn pop(&mut self) -> Option<T> {
        self.parts().1.pop()
    }

    /// The state that consumers share, and the end to pop from.
    pub fn parts(&mut self) -> (&mut S, Outlet<'_, T>) {
        // SAFETY: `consuming` makes us the only one at this end, and `&mut self` the only reference.
        let state = self.queue.state.with_mut(|state| unsafe { &mut *state });
        (state, Outlet { oldest: &self.queue.oldest })
    }

    /// True if there is nothing to pop now. A push that is under way counts as not there.
    pub fn is_empty(&self) -> bool {
        // SAFETY: as in `parts`; the node lives until it is stepped over.
        self.queue.oldest.with(|oldest| unsafe { &**oldest }.next.load(Ordering::Acquire).is_null())
    }
}

impl<T> Outlet<'_, T> {
    /// The oldest value, or `None` if there is none whose push is complete.
    pub fn pop(&mut self) -> Option<T> {
        self.oldest.with_mut(|oldest| {
            // SAFETY: an outlet is part of the one consumer, and `&mut self` makes this the only call.
            let oldest = unsafe { &mut *oldest };
            // SAFETY: the node before the oldest value lives until we step over it.
            let next = unsafe { &**oldest }.next.load(Ordering::Acquire);
            if next.is_null() {
                return None;
            }
            // SAFETY: linked nodes are alive, and the producer is done with its value once it is linked.
            let value = unsafe { &*next }.value.with_mut(|value| unsafe { (*value).take() });
            let spent = std::mem::replace(oldest, next);
            // SAFETY: its `next` is set, so no producer reads it again, and we have stepped over it.
            drop(unsafe { Box::from_raw(spent) });
            debug_assert!(value.is_some(), "every node behind the stub holds a value");
            value
        })
    }
}

struct Node<T> {
    next: AtomicPtr<Node<T>>,
    value: UnsafeCell<Option<T>>,
}

impl<T> Node<T> {
    fn boxed(value: Option<T>) -> *mut Node<T> {
        Box::into_raw(Box::new(Node { next: AtomicPtr::new(ptr::null_mut()), value: UnsafeCell::new(value) }))
    }
}

impl<T> Default for Mpsc<T> {
    fn default() -> Mpsc<T> {
        Mpsc::new()
    }
}

impl<T, S> Drop for Mpsc<T, S> {
    fn drop(&mut self) {
        let mut consumer = Consumer { queue: self };
        while consumer.pop().is_some() {}
        std::mem::forget(consumer);
        // SAFETY: `&mut self`: no thread pushes or pops any more, and one node is always left.
        self.oldest.with_mut(|oldest| drop(unsafe { Box::from_raw(*oldest) }));
    }
}

impl<T, S> Drop for Consumer<'_, T, S> {
    fn drop(&mut self) {
        self.queue.consuming.store(false, Ordering::Release);
    }
}

impl<T, S> std::fmt::Debug for Mpsc<T, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mpsc")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn values_come_out_in_order() {
        let queue = Mpsc::new();
        let mut consumer = queue.consume().unwrap();
        assert!(consumer.is_empty());
        assert_eq!(consumer.pop(), None);
        (0..5).for_each(|i| queue.push(i));
        assert!(!consumer.is_empty());
        assert_eq!(
            (0..6).map(|_| consumer.pop()).collect::<Vec<_>>(),
            [Some(0), Some(1), Some(2), Some(3), Some(4), None]
        );
    }

    #[test]
    fn only_one_consumer_at_a_time() {
        let queue = Mpsc::<u8>::new();
        let first = queue.consume().unwrap();
        assert!(queue.consume().is_none());
        assert!(queue.consume().is_none(), "a refused consumer has given nothing back");
        drop(first);
        assert!(queue.consume().is_some());
    }

    #[test]
    fn what_consumers_share_goes_from_one_to_the_next() {
        let queue = Mpsc::with_state(Vec::new());
        for round in 0..3 {
            queue.push(round);
            let mut consumer = queue.consume().unwrap();
            let (seen, mut outlet) = consumer.parts();
            seen.extend(outlet.pop());
            assert_eq!(seen.len(), round + 1);
        }
        assert_eq!(queue.consume().unwrap().parts().0, &[0, 1, 2]);
    }

    #[test]
    fn what_is_left_is_dropped_with_the_queue() {
        let token = Arc::new(());
        let queue = Mpsc::new();
        (0..3).for_each(|_| queue.push(Arc::clone(&token)));
        drop(queue.consume().unwrap().pop());
        assert_eq!(Arc::strong_count(&token), 3);
        drop(queue);
        assert_eq!(Arc::strong_count(&token), 1);
    }

    #[test]
    fn nothing_is_lost_between_threads_and_each_producer_keeps_its_order() {
        const PRODUCERS: u64 = 3;
        const EACH: u64 = if cfg!(miri) { 200 } else { 20_000 };
        let queue = Arc::new(Mpsc::new());
        let threads: Vec<_> = (0..PRODUCERS)
            .map(|p| {
                let queue = Arc::clone(&queue);
                std::thread::spawn(move || (0..EACH).for_each(|i| queue.push((p, i))))
            })
            .collect();
        let mut expected = [0; PRODUCERS as usize];
        let mut left = PRODUCERS * EACH;
        while left > 0 {
            // The right to pop changes hands too, as it does with the batcher token.
            let mut consumer = queue.consume().unwrap();
            while let Some((p, i)) = consumer.pop() {
                assert_eq!(i, expected[p as usize]);
                expected[p as usize] += 1;
                left -= 1;
            }
            drop(consumer);
            std::thread::yield_now();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(queue.consume().unwrap().pop().is_none());
    }
}
