//! The batcher token of one model version: which worker forms the next batch, and which worker may be woken for it.
//!
//! The workers of a model version share its inboxes. The holder of the token drains them and forms the payload
//! (docs/design.md, decision 2). Token, wake count and the stack of idle workers are one atomic word, so that neither
//! an enqueuer nor a worker ever waits for another:
//!
//! ```text
//!            acquire / enqueued claims an idle worker            arm
//!   FREE ──────────────────────────────────────────► HELD ◄──────────────► ARMED(wake count)
//!     ▲                                                │      disarm, or an enqueuer that
//!     └──────────────────── pass ──────────────────────┘      reaches the count and wakes
//! ```
//!
//! Three properties hold, and are the loom models of this module: there are never two holders; no wake-up is lost; no
//! work is left while the token is free and a worker is idle. The last two rest on one argument: an enqueuer publishes
//! its work, passes a sequentially consistent fence and reads the word; a holder changes the word (arms or frees it),
//! passes such a fence and checks for work again. The thread with the later fence sees the other side's write. With a
//! wake count above one, the enqueuer whose fence comes last also sees the counts of all earlier ones.
//!
//! Only the holder takes workers off the stack, so its links cannot change under a pop (ABA). The word carries a tag
//! all the same, which every change bumps: a stale exchange then always fails, and a wake-up goes to the worker that is
//! armed now.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::segmented_vec::SegmentedVec;
use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Index of a worker among those of its model version.
pub type Worker = usize;

/// The batcher token of one model version, and the workers that may hold it.
pub struct BatcherToken {
    word: AtomicU64,
    /// The worker to wake while the word is ARMED. Only the holder writes it, before it arms.
    holder: AtomicU32,
    nodes: SegmentedVec<StackNode>,
    numbers: Mutex<Numbers>,
}

/// The numbers that are in use. Accessed only when a worker joins or leaves.
#[derive(Debug, Default)]
struct Numbers {
    next: Worker,
    /// Numbers below `next` that no worker has now: the lowest is given out first.
    free: BTreeSet<Worker>,
}

/// Answer to [`BatcherToken::acquire`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquisition {
    /// The caller holds the token.
    Holder,
    /// The caller is registered as idle: it parks until [`BatcherToken::idle_state`] returns something other than
    /// `Waiting`.
    Idle,
    /// The token was stopped: this model version has no further work.
    Stopped,
}

/// Answer to [`BatcherToken::idle_state`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleState {
    Waiting,
    /// The token was handed to the caller.
    Holder,
    Stopped,
}

/// Answer to [`BatcherToken::arm`]. The caller is the holder in every case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    /// Park, with the batcher's timeout if it has one; then [`BatcherToken::disarm`].
    Park,
    /// Requests came meanwhile: drain, and arm again if they are not enough.
    DrainAgain,
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("one model version cannot have more than {} workers at a time", BatcherToken::MAX_WORKERS)]
pub struct TooManyWorkers;

impl BatcherToken {
    pub const MAX_WORKERS: usize = 4096;
    /// A wake count above this wakes the holder earlier than requested, which costs one more drain.
    pub const MAX_WAKE_COUNT: usize = u16::MAX as usize;

    /// A free token without workers.
    pub fn new() -> BatcherToken {
        BatcherToken {
            word: AtomicU64::new(Word::default().0),
            holder: AtomicU32::new(0),
            nodes: SegmentedVec::default(),
            numbers: Mutex::default(),
        }
    }

    /// Assigns a number to one more worker, at any time. The worker takes part once it
    /// [acquires](BatcherToken::acquire).
    pub fn join(&self) -> Result<Worker, TooManyWorkers> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = numbers.free.pop_first() {
            return Ok(free);
        }
        let number = numbers.next;
        if number >= BatcherToken::MAX_WORKERS || !self.nodes.provide(number) {
            return Err(TooManyWorkers);
        }
        numbers.next += 1;
        Ok(number)
    }

    /// Frees the worker's number for another worker. The caller neither holds the token nor waits for it: it passed the
    /// token, [retired](BatcherToken::retire), was stopped, or never acquired. Its node may still be on the stack of
    /// idle workers, marked as left; the next worker with this number takes the node over as it is.
    pub fn left(&self, me: Worker) {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        if me < numbers.next {
            numbers.free.insert(me);
        }
    }

    /// Called by an enqueuer after its push. `pending` is the number of requests that are published and in no payload
    /// yet; every enqueuer must have counted its own before its push. The caller wakes the worker that this returns.
    pub fn enqueued(&self, pending: impl Fn() -> usize) -> Option<Worker> {
        fence(Ordering::SeqCst);
        let mut word = self.load();
        loop {
            let next = match word.state() {
                // The holder is awake, and checks again before it parks or releases the token.
                HELD => return None,
                ARMED => {
                    if pending() < word.wake_count() {
                        return None;
                    }
                    let holder = self.holder.load(Ordering::Relaxed) as Worker;
                    match self.exchange(word, word.with_state(HELD)) {
                        Ok(_) => return Some(holder),
                        Err(now) => now,
                    }
                }
                // All workers are busy; the first to finish acquires the token and drains.
                _ if word.idle().is_none() => return None,
                _ => match self.exchange(word, word.with_state(HELD)) {
                    // This thread holds the token for a moment, for the worker that it hands it to.
                    Ok(_) => return self.hand_over(|| pending() > 0),
                    Err(now) => now,
                },
            };
            word = next;
        }
    }

    /// Called by a worker without work: takes the token if it is free, else registers the worker as idle.
    pub fn acquire(&self, me: Worker) -> Acquisition {
        let mut word = self.load();
        loop {
            if word.is_stopped() {
                return Acquisition::Stopped;
            }
            let changed = if word.state() == FREE {
                match self.exchange(word, word.with_state(HELD)) {
                    Ok(_) => return Acquisition::Holder,
                    Err(now) => now,
                }
            } else {
                // A worker that retired while it was on the stack and is back may still be on it.
                if self.nodes[me].move_from(LEFT, IDLE) {
                    return Acquisition::Idle;
                }
                self.nodes[me].state.store(IDLE, Ordering::Relaxed);
                self.nodes[me].below.store(word.idle_bits(), Ordering::Relaxed);
                match self.exchange(word, word.with_idle_bits(me as u32 + 1)) {
                    Ok(_) => return Acquisition::Idle,
                    Err(now) => {
                        self.nodes[me].state.store(OUT, Ordering::Relaxed);
                        now
                    }
                }
            };
            word = changed;
        }
    }

    /// Takes the token if it is free, for a worker that has work and wants more. It [passes](BatcherToken::pass) the
    /// token on as every holder does.
    pub fn try_hold(&self) -> bool {
        let mut word = self.load();
        while word.state() == FREE && !word.is_stopped() {
            match self.exchange(word, word.with_state(HELD)) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Called by an idle worker before and after each park.
    pub fn idle_state(&self, me: Worker) -> IdleState {
        match self.nodes[me].state.load(Ordering::Acquire) {
            GRANTED => {
                self.nodes[me].state.store(OUT, Ordering::Relaxed);
                IdleState::Holder
            }
            IDLE => IdleState::Waiting,
            _ => IdleState::Stopped,
        }
    }

    /// Called by the holder before it parks: an enqueuer that makes the count of pending requests reach `wake_count`
    /// wakes it. `unseen` returns whether an inbox holds anything that the holder has not drained.
    pub fn arm(&self, me: Worker, wake_count: usize, unseen: impl Fn() -> bool) -> Armed {
        let wake_count = wake_count.clamp(1, BatcherToken::MAX_WAKE_COUNT);
        self.holder.store(me as u32, Ordering::Relaxed);
        let mut word = self.load();
        loop {
            debug_assert_eq!(word.state(), HELD, "only the holder arms");
            if word.is_stopped() {
                return Armed::Stopped;
            }
            match self.exchange(word, word.armed(wake_count)) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        fence(Ordering::SeqCst);
        if !unseen() {
            return Armed::Park;
        }
        self.disarm(me);
        Armed::DrainAgain
    }

    /// Called by the holder after its park. True if an enqueuer or a stop woke it, false if its time was up.
    pub fn disarm(&self, _me: Worker) -> bool {
        let mut word = self.load();
        while word.state() == ARMED {
            match self.exchange(word, word.with_state(HELD)) {
                Ok(_) => return false,
                Err(now) => word = now,
            }
        }
        true
    }

    /// Called by the holder once it has cut its payload (or gives up): releases the token, or hands it to an idle
    /// worker if `more_work` is left. The caller wakes the worker that this returns.
    pub fn pass(&self, _me: Worker, more_work: impl Fn() -> bool) -> Option<Worker> {
        self.hand_over(more_work)
    }

    /// Takes an idle worker off. False if it was made the holder meanwhile: then it has to [`pass`](BatcherToken::pass)
    /// the token first. A busy worker leaves by not acquiring again: as long as another worker stays, that worker is
    /// idle and will be claimed, holds the token, or will acquire it and drain.
    #[must_use]
    pub fn retire(&self, me: Worker) -> bool {
        if self.nodes[me].move_from(IDLE, LEFT) {
            return true;
        }
        // OUT: stopped meanwhile.
        self.idle_state(me) != IdleState::Holder
    }

    /// Stops the token: no worker becomes idle or parks as the holder any more. The caller wakes all workers that this
    /// returns.
    pub fn stop(&self) -> Vec<Worker> {
        let mut word = self.load();
        loop {
            let held = if word.state() == ARMED { word.with_state(HELD) } else { word };
            match self.exchange(word, held.stopped()) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        let mut to_wake = Vec::new();
        if word.state() == ARMED {
            to_wake.push(self.holder.load(Ordering::Relaxed) as Worker);
        }
        let mut idle = word.idle();
        while let Some(worker) = idle {
            idle = above_zero(self.nodes[worker].below.load(Ordering::Relaxed));
            if self.nodes[worker].leave_stack(OUT) {
                to_wake.push(worker);
            }
        }
        to_wake
    }

    pub fn is_stopped(&self) -> bool {
        self.load().is_stopped()
    }

    /// Called by the owner of the token: hands it to an idle worker if there is work, else frees it.
    fn hand_over(&self, more_work: impl Fn() -> bool) -> Option<Worker> {
        loop {
            if more_work()
                && let Some(worker) = self.grant()
            {
                return Some(worker);
            }
            let mut word = self.load();
            loop {
                debug_assert_eq!(word.state(), HELD, "only the holder gives the token away");
                match self.exchange(word, word.with_state(FREE)) {
                    Ok(_) => break,
                    Err(now) => word = now,
                }
            }
            fence(Ordering::SeqCst);
            if !more_work() {
                return None;
            }
            // Work came, or a worker became idle, just before the release. A worker that has the token now sees the
            // work; if the token is free, this thread takes it back, unless all workers are busy: each acquires again
            // when it is done.
            loop {
                let word = self.load();
                if word.state() != FREE || word.idle().is_none() {
                    return None;
                }
                if self.exchange(word, word.with_state(HELD)).is_ok() {
                    break;
                }
            }
        }
    }

    /// Takes an idle worker off the stack and makes it the holder in the caller's place.
    fn grant(&self) -> Option<Worker> {
        let mut word = self.load();
        loop {
            let worker = word.idle()?;
            // May be stale if the worker left the stack meanwhile: then the tag is another one and the exchange fails.
            let below = self.nodes[worker].below.load(Ordering::Relaxed);
            match self.exchange(word, word.with_idle_bits(below)) {
                Ok(now) if self.nodes[worker].leave_stack(GRANTED) => {
                    debug_assert_eq!(now.state(), HELD);
                    return Some(worker);
                }
                Ok(now) | Err(now) => word = now,
            }
        }
    }

    fn load(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// Release for the next holder of the token (it sees what the last one did), acquire for this thread.
    fn exchange(&self, from: Word, to: Word) -> Result<Word, Word> {
        let to = to.tagged();
        match self.word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(to),
            Err(now) => Err(Word(now)),
        }
    }
}

impl Default for BatcherToken {
    fn default() -> BatcherToken {
        BatcherToken::new()
    }
}

impl std::fmt::Debug for BatcherToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        write!(f, "BatcherToken({} workers)", numbers.next - numbers.free.len())
    }
}

/// The state of a worker's node: not on the stack. Only the worker itself leaves OUT and GRANTED.
const OUT: u32 = 0;
/// On the stack, waiting.
const IDLE: u32 = 1;
/// Off the stack, made the holder, perhaps not awake yet.
const GRANTED: u32 = 2;
/// On the stack, but the worker is gone: the thread that pops the node pops another.
const LEFT: u32 = 3;

struct StackNode {
    state: AtomicU32,
    /// Index + 1 of the worker below on the stack, 0 at the bottom.
    below: AtomicU32,
}

impl Default for StackNode {
    fn default() -> StackNode {
        StackNode { state: AtomicU32::new(OUT), below: AtomicU32::new(0) }
    }
}

impl StackNode {
    fn move_from(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Called for a worker that was just popped: its state becomes `idle_becomes`. False if the worker has left.
    fn leave_stack(&self, idle_becomes: u32) -> bool {
        loop {
            if self.move_from(IDLE, idle_becomes) {
                return true;
            }
            // The worker may come back between the two exchanges, and then takes itself to be still on the stack.
            if self.move_from(LEFT, OUT) {
                return false;
            }
        }
    }
}

const FREE: u64 = 0;
const HELD: u64 = 1;
const ARMED: u64 = 2;

/// Bits: state 0–1, stopped 2, top of the idle stack (index + 1) 3–15, wake count 16–31, tag 32–63.
#[derive(Clone, Copy, Default)]
struct Word(u64);

const STOPPED: u64 = 1 << 2;
const IDLE_SHIFT: u32 = 3;
const IDLE_MASK: u64 = 0x1fff << IDLE_SHIFT;
const COUNT_SHIFT: u32 = 16;
const TAG: u64 = 1 << 32;

impl Word {
    fn state(self) -> u64 {
        self.0 & 3
    }

    fn is_stopped(self) -> bool {
        self.0 & STOPPED != 0
    }

    fn idle_bits(self) -> u32 {
        ((self.0 & IDLE_MASK) >> IDLE_SHIFT) as u32
    }

    fn idle(self) -> Option<Worker> {
        above_zero(self.idle_bits())
    }

    fn wake_count(self) -> usize {
        usize::from((self.0 >> COUNT_SHIFT) as u16)
    }

    fn with_state(self, state: u64) -> Word {
        Word(self.0 & !3 | state)
    }

    fn with_idle_bits(self, bits: u32) -> Word {
        Word(self.0 & !IDLE_MASK | u64::from(bits) << IDLE_SHIFT)
    }

    fn armed(self, wake_count: usize) -> Word {
        let others = self.with_state(ARMED).0 & !((u16::MAX as u64) << COUNT_SHIFT);
        Word(others | (wake_count as u64) << COUNT_SHIFT)
    }

    fn stopped(self) -> Word {
        Word(self.with_idle_bits(0).0 | STOPPED)
    }

    fn tagged(self) -> Word {
        Word(self.0.wrapping_add(TAG))
    }
}

fn above_zero(bits: u32) -> Option<Worker> {
    bits.checked_sub(1).map(|index| index as Worker)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn token(workers: usize) -> BatcherToken {
        let token = BatcherToken::new();
        assert_eq!((0..workers).map(|_| token.join().unwrap()).collect::<Vec<_>>(), (0..workers).collect::<Vec<_>>());
        token
    }

    #[test]
    fn the_first_holds_and_the_others_are_idle() {
        let token = token(3);
        assert_eq!(token.acquire(0), Acquisition::Holder);
        assert_eq!(token.acquire(1), Acquisition::Idle);
        assert_eq!(token.acquire(2), Acquisition::Idle);
        assert_eq!(token.idle_state(1), IdleState::Waiting);
        assert_eq!(token.enqueued(|| 1), None, "the holder is awake");
        assert_eq!(token.pass(0, || true), Some(2), "the one that ran last is warm");
        assert_eq!(token.idle_state(2), IdleState::Holder);
        assert_eq!(token.idle_state(1), IdleState::Waiting);
        assert_eq!(token.pass(2, || false), None);
        assert_eq!(token.enqueued(|| 1), Some(1), "a free token and an idle worker");
        assert_eq!(token.idle_state(1), IdleState::Holder);
        assert_eq!(token.pass(1, || true), None, "all are busy");
        assert_eq!(token.enqueued(|| 1), None, "all are busy");
        assert_eq!(token.acquire(0), Acquisition::Holder, "and the first that is done acquires");
    }

    #[test]
    fn an_armed_holder_is_woken_at_its_count_and_once() {
        let token = token(1);
        assert_eq!(token.acquire(0), Acquisition::Holder);
        assert_eq!(token.arm(0, 3, || false), Armed::Park);
        assert_eq!(token.enqueued(|| 2), None);
        assert_eq!(token.enqueued(|| 3), Some(0));
        assert_eq!(token.enqueued(|| 4), None);
        assert!(token.disarm(0), "an enqueuer woke it");
        assert_eq!(token.arm(0, 5, || true), Armed::DrainAgain);
        assert_eq!(token.enqueued(|| 6), None, "awake");
        assert_eq!(token.arm(0, 7, || false), Armed::Park);
        assert!(!token.disarm(0), "its time was up");
        assert_eq!(token.arm(0, usize::MAX, || false), Armed::Park);
        assert_eq!(token.enqueued(|| BatcherToken::MAX_WAKE_COUNT), Some(0), "large counts wake early, not never");
        assert!(token.disarm(0));
        assert_eq!(token.arm(0, 0, || false), Armed::Park, "nothing to wake for is one");
        assert_eq!(token.enqueued(|| 1), Some(0));
    }

    #[test]
    fn work_that_comes_while_the_token_is_passed_finds_an_idle_worker() {
        let token = token(2);
        token.acquire(0);
        token.acquire(1);
        let reads = std::cell::Cell::new(0);
        let woken = token.pass(0, || {
            reads.set(reads.get() + 1);
            reads.get() > 1
        });
        assert_eq!(woken, Some(1));
        assert_eq!(token.idle_state(1), IdleState::Holder);
    }

    #[test]
    fn a_busy_worker_takes_only_a_free_token() {
        let token = token(2);
        assert_eq!(token.acquire(0), Acquisition::Holder);
        assert!(!token.try_hold(), "another worker has the token");
        assert_eq!(token.pass(0, || false), None);
        assert!(token.try_hold());
        assert_eq!(token.enqueued(|| 1), None, "the holder is awake");
        assert_eq!(token.acquire(1), Acquisition::Idle);
        assert_eq!(token.pass(0, || true), Some(1), "what it has not taken goes to an idle worker");
        token.stop();
        assert_eq!(token.idle_state(1), IdleState::Holder);
        assert_eq!(token.pass(1, || false), None);
        assert!(!token.try_hold(), "the token was stopped");
    }

    #[test]
    fn a_retired_worker_is_skipped_and_may_come_back() {
        let token = token(3);
        assert_eq!(token.acquire(0), Acquisition::Holder);
        assert_eq!(token.acquire(1), Acquisition::Idle);
        assert_eq!(token.acquire(2), Acquisition::Idle);
        assert!(token.retire(2));
        assert_eq!(token.acquire(2), Acquisition::Idle, "back while still on the stack");
        assert!(token.retire(2));
        assert_eq!(token.pass(0, || true), Some(1));
        assert!(!token.retire(1), "was made the holder");
        assert_eq!(token.pass(1, || true), None);
        assert_eq!(token.acquire(2), Acquisition::Holder);
        assert_eq!(token.acquire(0), Acquisition::Idle);
        assert!(token.retire(0));
        assert_eq!(token.pass(2, || true), None, "no worker is left");
        assert_eq!(token.acquire(1), Acquisition::Holder, "and the token was not lost");
    }

    #[test]
    fn workers_come_and_go() {
        let token = token(2);
        assert_eq!(token.acquire(0), Acquisition::Holder);
        assert_eq!(token.acquire(1), Acquisition::Idle);
        assert_eq!(token.join(), Ok(2), "while others work");
        assert_eq!(token.acquire(2), Acquisition::Idle);
        assert!(token.retire(1));
        token.left(1);
        assert_eq!(token.join(), Ok(1), "the number goes to another worker");
        assert_eq!(token.acquire(1), Acquisition::Idle, "its node is still on the stack");
        assert_eq!(token.pass(0, || true), Some(2));
        assert_eq!(token.idle_state(2), IdleState::Holder);
        assert_eq!(token.pass(2, || true), Some(1));
        assert_eq!(token.idle_state(1), IdleState::Holder);
        assert_eq!(token.pass(1, || true), None, "all are busy");
        assert_eq!(token.acquire(0), Acquisition::Holder);
        assert_eq!(token.pass(0, || false), None);
        assert_eq!(token.acquire(0), Acquisition::Holder);
        assert_eq!(token.acquire(1), Acquisition::Idle);
        assert_eq!(token.pass(0, || false), None);
        assert_eq!(token.enqueued(|| 1), Some(1), "the worker that stays is claimed");
        assert_eq!(token.idle_state(1), IdleState::Holder);
        token.left(0);
        token.left(2);
        token.left(2);
        token.left(77);
        assert_eq!((token.join(), token.join(), token.join()), (Ok(0), Ok(2), Ok(3)));
    }

    #[test]
    fn stopping_wakes_every_sleeping_worker() {
        let stopped = token(4);
        assert_eq!(stopped.acquire(0), Acquisition::Holder);
        (1..4).for_each(|worker| assert_eq!(stopped.acquire(worker), Acquisition::Idle));
        assert!(stopped.retire(2));
        assert_eq!(stopped.arm(0, 1, || false), Armed::Park);
        let mut woken = stopped.stop();
        woken.sort_unstable();
        assert_eq!(woken, [0, 1, 3]);
        assert!(stopped.is_stopped());
        assert_eq!(stopped.idle_state(1), IdleState::Stopped);
        assert!(stopped.retire(3));
        assert!(stopped.disarm(0));
        assert_eq!(stopped.arm(0, 1, || false), Armed::Stopped);
        assert_eq!(stopped.pass(0, || true), None);
        assert_eq!(stopped.acquire(1), Acquisition::Stopped);
        assert_eq!(stopped.enqueued(|| 1), None);
        assert!(stopped.stop().is_empty());
    }

    #[test]
    #[cfg_attr(miri, ignore = "a loop over 4,096 workers for each of them")]
    fn the_word_holds_its_largest_values() {
        let token = token(BatcherToken::MAX_WORKERS);
        assert_eq!(token.join(), Err(TooManyWorkers));
        assert_eq!(token.acquire(0), Acquisition::Holder);
        (1..BatcherToken::MAX_WORKERS).for_each(|worker| assert_eq!(token.acquire(worker), Acquisition::Idle));
        for worker in (1..BatcherToken::MAX_WORKERS).rev() {
            let me = if worker == BatcherToken::MAX_WORKERS - 1 { 0 } else { worker + 1 };
            assert_eq!(token.pass(me, || true), Some(worker));
            assert_eq!(token.idle_state(worker), IdleState::Holder);
        }
        assert_eq!(token.arm(1, BatcherToken::MAX_WAKE_COUNT, || false), Armed::Park);
        assert_eq!(token.enqueued(|| BatcherToken::MAX_WAKE_COUNT - 1), None);
        assert_eq!(token.enqueued(|| BatcherToken::MAX_WAKE_COUNT), Some(1));
    }
}
