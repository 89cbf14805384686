//! A hierarchical timer wheel: starting and cancelling cost O(1), and no step does more work than its budget.
//!
//! Ticks are 2¹⁸ ns (0.26 ms): a timer fires never early and, on an awake shard, less than one tick late. Eight levels
//! of 64 slots cover every deadline that fits 64 bits of nanoseconds. A timer hangs at the level of the highest
//! six-bit digit in which its tick differs from the wheel's position, so each level only holds what lies ahead within
//! its parent's slot, the lowest occupied level holds the earliest timers, and a bitmap finds their slot.

use nereid_memory::{Key, Slab};

/// log₂ of the tick in nanoseconds.
const TICK_SHIFT: u32 = 18;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// 46 bits of ticks, 6 a level.
const LEVELS: usize = 8;
/// The list of timers of a slot that the wheel has reached and that wait to fire or to move down.
const REACHED: usize = LEVELS * SLOTS;

/// The key of a running timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimerKey(Key);

/// The wheel's bound is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many timers are running on this core")]
pub struct TooManyTimers;

/// Timers that each carry a `T`.
#[derive(Debug)]
pub struct Timers<T> {
    timers: Slab<Timer<T>>,
    /// The first timer of each slot's list.
    lists: Box<[Option<Key>; REACHED + 1]>,
    occupied: [u64; LEVELS],
    /// Tick that the wheel has come to. Every timer on a slot is ahead of it.
    position: u64,
}

#[derive(Debug)]
struct Timer<T> {
    tick: u64,
    list: usize,
    before: Option<Key>,
    after: Option<Key>,
    token: T,
}

impl<T> Timers<T> {
    /// Holds at most `limit` timers at a time.
    pub fn new(limit: usize, now_ns: u64) -> Timers<T> {
        Timers {
            timers: Slab::new(limit),
            lists: Box::new([None; REACHED + 1]),
            occupied: [0; LEVELS],
            position: now_ns >> TICK_SHIFT,
        }
    }

    /// Starts a timer that fires at the first call of [`Timers::pop_due`] at or after `deadline_ns` (rounded up to a
    /// tick).
    pub fn start(&mut self, deadline_ns: u64, token: T) -> Result<TimerKey, TooManyTimers> {
        let tick = deadline_ns.div_ceil(1 << TICK_SHIFT);
        let timer = Timer { tick, list: REACHED, before: None, after: None, token };
        let key = self.timers.insert(timer).map_err(|_| TooManyTimers)?;
        self.hang(key, tick);
        Ok(TimerKey(key))
    }

    /// Stops a timer and gives its token back; `None` if it has fired or was cancelled before.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        self.unhang(key.0);
        self.timers.remove(key.0).map(|timer| timer.token)
    }

    /// The time of the next step: a timer to fire, or timers to move down. Never later than the earliest deadline,
    /// rounded up to a tick.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.lists[REACHED].is_some() {
            return Some(self.position << TICK_SHIFT);
        }
        // The last tick may round up past the end of time.
        self.next_slot().map(|(_, _, start)| start.saturating_mul(1 << TICK_SHIFT))
    }

    /// Moves the wheel to `now_ns` and takes the next timer that is due. A timer that moves to a lower level costs one
    /// of `budget` as one that fires does; with none left more may be due, and the next call goes on with it.
    pub fn pop_due(&mut self, now_ns: u64, budget: &mut usize) -> Option<T> {
        let now = now_ns >> TICK_SHIFT;
        loop {
            while let Some(key) = self.lists[REACHED] {
                *budget = budget.checked_sub(1)?;
                self.unhang(key);
                match self.timers.get(key).map(|timer| timer.tick) {
                    Some(tick) if tick > self.position => self.hang(key, tick),
                    _ => return self.timers.remove(key).map(|timer| timer.token),
                }
            }
            match self.next_slot() {
                Some((level, slot, start)) if start <= now => {
                    self.position = start;
                    self.reach(level, slot);
                }
                _ => break,
            }
        }
        self.position = self.position.max(now);
        None
    }

    pub fn len(&self) -> usize {
        self.timers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.timers.is_empty()
    }

    /// The earliest occupied slot ahead and the tick at which it begins.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        let level = self.occupied.iter().position(|slots| *slots != 0)?;
        let slot = self.occupied[level].trailing_zeros() as u64;
        let shift = SLOT_BITS * level as u32;
        let parent = self.position >> (shift + SLOT_BITS) << (shift + SLOT_BITS);
        Some((level, slot as usize, parent | slot << shift))
    }

    /// Takes a whole slot off the wheel, in O(1): from now on only its first timer's list index is sure to be right.
    fn reach(&mut self, level: usize, slot: usize) {
        let list = level * SLOTS + slot;
        debug_assert!(self.lists[REACHED].is_none());
        self.lists[REACHED] = self.lists[list].take();
        self.occupied[level] &= !(1 << slot);
    }

    fn hang(&mut self, key: Key, tick: u64) {
        let list = if tick <= self.position {
            REACHED
        } else {
            let level = ((tick ^ self.position).ilog2() / SLOT_BITS) as usize;
            let slot = (tick >> (SLOT_BITS * level as u32)) as usize % SLOTS;
            self.occupied[level] |= 1 << slot;
            level * SLOTS + slot
        };
        let after = self.lists[list].replace(key);
        if let Some(timer) = after.and_then(|after| self.timers.get_mut(after)) {
            timer.before = Some(key);
        }
        if let Some(timer) = self.timers.get_mut(key) {
            (timer.list, timer.before, timer.after) = (list, None, after);
        }
    }

    fn unhang(&mut self, key: Key) {
        let Some((list, before, after)) = self.timers.get(key).map(|timer| (timer.list, timer.before, timer.after))
        else {
            return;
        };
        if let Some(timer) = after.and_then(|after| self.timers.get_mut(after)) {
            timer.before = before;
        }
        match before.and_then(|before| self.timers.get_mut(before)) {
            Some(timer) => timer.after = after,
            // The first of its list: of its slot's, or of the reached one if the slot was reached since.
            None if self.lists[list] == Some(key) => {
                self.lists[list] = after;
                if after.is_none() && list < REACHED {
                    self.occupied[list / SLOTS] &= !(1 << (list % SLOTS));
                }
            }
            None => {
                debug_assert_eq!(self.lists[REACHED], Some(key));
                self.lists[REACHED] = after;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const TICK: u64 = 1 << TICK_SHIFT;

    fn fired(timers: &mut Timers<u64>, now_ns: u64) -> Vec<u64> {
        let mut due: Vec<u64> = std::iter::from_fn(|| timers.pop_due(now_ns, &mut usize::MAX.clone())).collect();
        due.sort_unstable();
        due
    }

    #[test]
    fn timers_fire_at_their_tick_and_never_before() {
        let mut timers = Timers::new(10, 0);
        timers.start(3_000_000, 1).unwrap();
        timers.start(0, 0).unwrap();
        assert_eq!(timers.next_deadline(), Some(0));
        assert_eq!(fired(&mut timers, 0), [0]);
        let next = timers.next_deadline().unwrap();
        assert!((3_000_000..3_000_000 + TICK).contains(&next));
        assert_eq!(fired(&mut timers, 2_999_999), [0; 0]);
        assert_eq!(fired(&mut timers, next - 1), [0; 0]);
        assert_eq!(fired(&mut timers, next), [1]);
        assert_eq!(timers.next_deadline(), None);
    }

    #[test]
    fn cancelled_timers_do_not_fire_and_their_keys_are_spent() {
        let mut timers = Timers::new(3, 0);
        let keys: Vec<TimerKey> = (0..3).map(|i| timers.start(TICK, i).unwrap()).collect();
        assert_eq!(timers.start(TICK, 9), Err(TooManyTimers));
        assert_eq!(timers.cancel(keys[1]), Some(1));
        assert_eq!(timers.cancel(keys[1]), None);
        assert_eq!(fired(&mut timers, TICK), [0, 2]);
        assert_eq!(timers.cancel(keys[0]), None);
        assert!(timers.is_empty() && timers.next_deadline().is_none());
    }

    #[test]
    fn a_budget_is_kept_and_the_next_one_goes_on() {
        let mut timers = Timers::new(1000, 0);
        let keys: Vec<TimerKey> = (0..500).map(|i| timers.start(100 * TICK, i).unwrap()).collect();
        let now = 100 * TICK;
        let (mut fired, mut budgets) = (Vec::new(), 0);
        while !timers.is_empty() {
            let mut budget = 64;
            let mut step = 0;
            while let Some(id) = timers.pop_due(now, &mut budget) {
                assert!(timers.cancel(keys[id as usize]).is_none());
                fired.push(id);
                step += 1;
            }
            assert!(step <= 64 && timers.next_deadline().is_none_or(|next| next <= now));
            budgets += 1;
            if budgets == 2 {
                // Of a slot that is half worked off: some at its head, some inside, some at its end.
                for key in keys.iter().step_by(7) {
                    timers.cancel(*key);
                }
            }
        }
        assert!((7..=16).contains(&budgets), "each timer moves at most once and fires once: {budgets}");
        let before = fired.len();
        fired.sort_unstable();
        fired.dedup();
        assert_eq!(fired.len(), before);
        assert!((0..500).filter(|id| id % 7 != 0).all(|id| fired.binary_search(&id).is_ok()));
    }

    #[test]
    fn a_timer_that_is_due_can_still_be_cancelled() {
        let mut timers = Timers::new(2, 0);
        let keys = [0, 1].map(|i| timers.start(TICK, i).unwrap());
        let first = timers.pop_due(TICK, &mut 10).unwrap();
        let second = 1 - first;
        assert_eq!(timers.cancel(keys[second as usize]), Some(second));
        assert_eq!(timers.pop_due(TICK, &mut 10), None);
    }

    #[test]
    fn the_end_of_time_is_far_but_not_a_panic() {
        let mut timers = Timers::new(10, u64::MAX - 5 * TICK);
        timers.start(u64::MAX, 1).unwrap();
        timers.start(5, 0).unwrap();
        assert_eq!(fired(&mut timers, u64::MAX - 4 * TICK), [0], "a deadline in the past fires at once");
        assert_eq!(timers.next_deadline(), Some(u64::MAX));
        assert_eq!(fired(&mut timers, u64::MAX), [0; 0], "rounded up, it lies one tick ahead");
    }

    /// Against a sorted map: random starts and cancels, at every scale, and random steps of time.
    #[test]
    fn the_wheel_agrees_with_a_sorted_model() {
        for seed in 1..=20u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut random = move |below: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % below
            };
            let mut now = random(1 << 40);
            let mut timers = Timers::new(10_000, now);
            let mut model: BTreeMap<(u64, u64), TimerKey> = BTreeMap::new();
            for id in 0..3000u64 {
                let scale = random(44);
                let deadline = now + random(1 << (scale + 1));
                model.insert((deadline.div_ceil(TICK), id), timers.start(deadline, id).unwrap());
                if random(3) == 0 {
                    let nth = random(model.len() as u64) as usize;
                    let (&at, &key) = model.iter().nth(nth).unwrap();
                    assert_eq!(timers.cancel(key), Some(at.1));
                    model.remove(&at);
                }
                if random(2) == 0 {
                    let scale = random(40);
                    now += random(1 << (scale + 1));
                    let later = model.split_off(&(now / TICK + 1, 0));
                    let mut expected: Vec<u64> = model.keys().map(|(_, id)| *id).collect();
                    expected.sort_unstable();
                    model = later;
                    assert_eq!(fired(&mut timers, now), expected);
                }
                let earliest = model.keys().next().map(|(tick, _)| tick * TICK);
                let next = timers.next_deadline();
                assert_eq!(next.is_some(), earliest.is_some());
                assert!(next <= earliest, "{next:?} is later than {earliest:?}");
                // And it is never so early that it would make the shard spin.
                assert!(next.is_none_or(|next| next > now || earliest.is_some_and(|at| at <= now)));
            }
            assert_eq!(timers.len(), model.len());
        }
    }
}
