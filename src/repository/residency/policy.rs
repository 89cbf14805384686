//! The table of resident models, and which of them is unloaded next: the one whose last use is longest ago.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::models::ModelId;
use super::{ResidencySettings, Usage};

/// A model is not unloaded earlier after its load, unless its memory is needed and no other model can go.
const MIN_RESIDENCY: Duration = Duration::from_secs(5);
/// A model that is loaded again so soon after its memory was needed is thrashing.
const THRASH_WITHIN: Duration = Duration::from_secs(60);
/// Models of which the table remembers that they were unloaded.
const REMEMBERED_MAX: usize = 4096;

/// Why a model is unloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    Idle,
    Count,
    Memory,
    DeviceMemory,
}

impl Reason {
    pub const ALL: [Reason; 4] = [Reason::Idle, Reason::Count, Reason::Memory, Reason::DeviceMemory];

    /// The label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Idle => "idle",
            Reason::Count => "count",
            Reason::Memory => "memory",
            Reason::DeviceMemory => "device_memory",
        }
    }

    /// The flag that allows more.
    pub fn flag(self) -> &'static str {
        match self {
            Reason::Idle => "--model-idle-secs",
            Reason::Count => "--model-count-max",
            Reason::Memory => "--model-memory-byte-size",
            Reason::DeviceMemory => "--model-device-memory-byte-size",
        }
    }
}

/// What the map of models and the statistics say of a model with a ready version.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// A number that changes when requests end.
    pub requests: u64,
    /// Of its newest execution, on the monotonic clock, and as the statistics have it; 0 before any.
    pub executed_ns: u64,
    pub executed_ms: u64,
    pub is_pinned: bool,
    /// It has requests in flight.
    pub is_in_use: bool,
    /// Sequences would lose their state, or a resident ensemble its part.
    pub is_held: bool,
    pub usage: Usage,
}

#[derive(Debug)]
struct Resident {
    seen: Seen,
    loaded_ns: u64,
    used_ns: u64,
}

/// A bound that is exceeded, by these bytes or models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excess {
    pub reason: Reason,
    pub wanted: u64,
    pub bound: u64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Residents {
    models: BTreeMap<ModelId, Resident>,
    /// When a model was unloaded because its memory or place was needed.
    unloaded_ns: BTreeMap<ModelId, (u64, Reason)>,
    /// What models held when they were measured last, loaded or not.
    known: BTreeMap<ModelId, Usage>,
}

impl Residents {
    /// Takes over what there is now. Models that are new here were loaded now.
    pub fn refresh(&mut self, now_ns: u64, seen: BTreeMap<ModelId, Seen>) {
        self.models.retain(|id, _| seen.contains_key(id));
        for (id, seen) in seen {
            if seen.usage != Usage::default() {
                self.known.insert(id.clone(), seen.usage.clone());
            }
            let resident = self.models.entry(id).or_insert_with(|| Resident {
                seen: Seen { requests: seen.requests, ..Seen::default() },
                loaded_ns: now_ns,
                used_ns: now_ns,
            });
            let (before, has_executed) = (&resident.seen, seen.executed_ms != resident.seen.executed_ms);
            // What does not execute, such as a hit of the cache, has no time of its own.
            if seen.is_in_use || (seen.requests != before.requests && !has_executed) {
                resident.used_ns = now_ns;
            }
            if has_executed {
                resident.used_ns = resident.used_ns.max(seen.executed_ns.min(now_ns));
            }
            resident.seen = seen;
        }
    }

    pub fn has(&self, id: &ModelId) -> bool {
        self.models.contains_key(id)
    }

    /// What a model held when it was measured last.
    pub fn known(&self, id: &ModelId) -> Option<&Usage> {
        self.known.get(id)
    }

    /// The first bound that the resident models exceed, with `extra` and `count` more.
    pub fn excess(&self, settings: &ResidencySettings, extra: &Usage, count: usize) -> Option<Excess> {
        self.excess_of(settings, extra, count, |_, _| true)
    }

    /// The first bound that a load would exceed though everything were unloaded that may be.
    pub fn lasting_excess(
        &self,
        settings: &ResidencySettings,
        extra: &Usage,
        count: usize,
        own: &BTreeSet<ModelId>,
    ) -> Option<Excess> {
        self.excess_of(settings, extra, count, |id, resident| resident.seen.is_pinned && !own.contains(id))
    }

    /// The first bound that these models, which cannot be unloaded for themselves, exceed with the pinned ones.
    pub fn excess_of_own(&self, settings: &ResidencySettings, own: &BTreeSet<ModelId>) -> Option<Excess> {
        self.excess_of(settings, &Usage::default(), 0, |id, resident| resident.seen.is_pinned || own.contains(id))
    }

    fn excess_of(
        &self,
        settings: &ResidencySettings,
        extra: &Usage,
        count: usize,
        counts: impl Fn(&ModelId, &Resident) -> bool,
    ) -> Option<Excess> {
        let counted: Vec<_> = self.models.iter().filter(|(id, resident)| counts(id, resident)).collect();
        let mut sum = extra.clone();
        counted.iter().for_each(|(_, resident)| sum.add(&resident.seen.usage));
        let over =
            |reason, wanted: u64, bound: u64| (bound > 0 && wanted > bound).then_some(Excess { reason, wanted, bound });
        let models = (counted.len() + count) as u64;
        over(Reason::Count, models, settings.count_max.into())
            .or_else(|| over(Reason::Memory, sum.host, settings.host_bytes))
            .or_else(|| {
                let of = |(device, bound): (&i32, &u64)| {
                    over(Reason::DeviceMemory, sum.devices.get(device).copied().unwrap_or_default(), *bound)
                };
                settings.device_bytes.iter().find_map(of)
            })
    }

    /// The model to unload: of those that may go, one without requests in flight before others, then one that has been
    /// there for a while, then the one whose last use is longest ago.
    pub fn victim(&self, now_ns: u64, kept: &BTreeSet<ModelId>) -> Option<ModelId> {
        let may_go = |(id, resident): &(&ModelId, &Resident)| {
            !resident.seen.is_pinned && !resident.seen.is_held && !kept.contains(id)
        };
        let rank = |(_, resident): &(&ModelId, &Resident)| {
            (resident.seen.is_in_use, is_young(resident, now_ns), resident.used_ns)
        };
        self.models.iter().filter(may_go).min_by_key(rank).map(|(id, _)| id.clone())
    }

    /// Whether there is a model that could go later: nothing but its requests or sequences keeps it.
    pub fn has_later_victim(&self, kept: &BTreeSet<ModelId>) -> bool {
        self.models.iter().any(|(id, resident)| !resident.seen.is_pinned && !kept.contains(id))
    }

    /// The models that were not used for `idle`.
    pub fn idle(&self, now_ns: u64, idle: Duration) -> Vec<ModelId> {
        let is_idle = |resident: &Resident| {
            let seen = &resident.seen;
            let unused_ns = u128::from(now_ns.saturating_sub(resident.used_ns));
            let is_free = !seen.is_pinned && !seen.is_in_use && !seen.is_held;
            is_free && !is_young(resident, now_ns) && unused_ns >= idle.as_nanos()
        };
        self.models.iter().filter(|(_, resident)| is_idle(resident)).map(|(id, _)| id.clone()).collect()
    }

    /// A model is unloaded by these rules.
    pub fn unloaded(&mut self, now_ns: u64, id: &ModelId, reason: Reason) {
        self.models.remove(id);
        if reason == Reason::Idle {
            return;
        }
        if self.unloaded_ns.len() >= REMEMBERED_MAX {
            let oldest = self.unloaded_ns.iter().min_by_key(|(_, (at, _))| *at).map(|(id, _)| id.clone());
            oldest.and_then(|oldest| self.unloaded_ns.remove(&oldest));
        }
        self.unloaded_ns.insert(id.clone(), (now_ns, reason));
    }

    /// A model is about to be loaded: why it was unloaded, and how long ago, if it had better stayed.
    pub fn thrashes(&mut self, now_ns: u64, id: &ModelId) -> Option<(Reason, Duration)> {
        let (at_ns, reason) = self.unloaded_ns.remove(id)?;
        let since = Duration::from_nanos(now_ns.saturating_sub(at_ns));
        (since < THRASH_WITHIN).then_some((reason, since))
    }
}

fn is_young(resident: &Resident, now_ns: u64) -> bool {
    u128::from(now_ns.saturating_sub(resident.loaded_ns)) < MIN_RESIDENCY.as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn id(name: &str) -> ModelId {
        ModelId { name: name.to_owned(), ..ModelId::default() }
    }

    fn used(seconds: u64) -> Seen {
        Seen { requests: seconds, executed_ns: seconds * SECOND, executed_ms: seconds * 1000, ..Seen::default() }
    }

    fn table(now_s: u64, models: &[(&str, Seen)]) -> Residents {
        let mut table = Residents::default();
        let seen = |models: &[(&str, Seen)]| models.iter().map(|(name, seen)| (id(name), seen.clone())).collect();
        let unused = |seen: &Seen| Seen { requests: 0, executed_ns: 0, executed_ms: 0, ..seen.clone() };
        let fresh: Vec<_> = models.iter().map(|(name, seen)| (*name, unused(seen))).collect();
        table.refresh(0, seen(&fresh));
        table.refresh(now_s * SECOND, seen(models));
        table
    }

    fn names(ids: Vec<ModelId>) -> Vec<String> {
        ids.into_iter().map(|id| id.name).collect()
    }

    #[test]
    fn the_least_recently_used_goes_first_and_some_never() {
        type Change = dyn Fn(&mut [(&'static str, Seen); 3]);
        let none = BTreeSet::new();
        let models = [("a", used(50)), ("b", used(20)), ("c", used(30))];
        let table_of = |change: &Change| {
            let mut models = models.clone();
            change(&mut models);
            table(100, &models)
        };
        let victim = |table: &Residents, kept: &BTreeSet<ModelId>| {
            table.victim(100 * SECOND, kept).map(|id| id.name).unwrap_or_default()
        };
        assert_eq!(victim(&table_of(&|_| ()), &none), "b");
        assert_eq!(victim(&table_of(&|_| ()), &[id("b")].into()), "c");
        assert_eq!(victim(&table_of(&|models| models[1].1.is_pinned = true), &none), "c");
        assert_eq!(victim(&table_of(&|models| models[1].1.is_held = true), &none), "c");
        assert_eq!(victim(&table_of(&|models| models[1].1.is_in_use = true), &none), "c");
        let all_in_use = table_of(&|models| models.iter_mut().for_each(|(_, seen)| seen.is_in_use = true));
        assert!(all_in_use.victim(100 * SECOND, &none).is_some(), "requests end, so their model may go");
        let all_pinned = table_of(&|models| models.iter_mut().for_each(|(_, seen)| seen.is_pinned = true));
        assert!(all_pinned.victim(100 * SECOND, &none).is_none() && !all_pinned.has_later_victim(&none));
    }

    #[test]
    fn a_young_model_goes_only_if_no_other_can() {
        let mut table = table(100, &[("old", used(99))]);
        let both = [(id("old"), used(99)), (id("new"), Seen::default())].into();
        table.refresh(101 * SECOND, both);
        let none = BTreeSet::new();
        assert_eq!(table.victim(102 * SECOND, &none), Some(id("old")), "though it was used later");
        assert_eq!(table.victim(102 * SECOND, &[id("old")].into()), Some(id("new")));
        assert_eq!(names(table.idle(103 * SECOND, Duration::from_secs(1))), ["old"], "not the young one");
    }

    #[test]
    fn idleness_is_counted_from_the_last_use() {
        let mut table = table(100, &[("a", used(40)), ("b", used(90))]);
        let minute = Duration::from_secs(60);
        assert_eq!(names(table.idle(100 * SECOND, minute)), ["a"]);
        assert_eq!(names(table.idle(150 * SECOND, minute)), ["a", "b"]);
        // A request without an execution counts from when it is noticed; one in flight always.
        let hit = Seen { requests: 41, ..used(40) };
        table.refresh(150 * SECOND, [(id("a"), hit), (id("b"), Seen { is_in_use: true, ..used(90) })].into());
        assert!(table.idle(200 * SECOND, minute).is_empty());
        assert_eq!(names(table.idle(210 * SECOND, minute)), ["a"]);
    }

    #[test]
    fn bounds_are_checked_in_their_order() {
        let usage = |host, device| Usage { host, devices: [(0, device)].into() };
        let of = |host, device| Seen { usage: usage(host, device), ..used(1) };
        let mut table = table(100, &[("a", of(100, 5)), ("b", Seen { is_pinned: true, ..of(50, 1) })]);
        let settings = ResidencySettings {
            count_max: 3,
            host_bytes: 200,
            device_bytes: [(0, 10)].into(),
            ..ResidencySettings::default()
        };
        let reason =
            |table: &Residents, extra: &Usage, count| table.excess(&settings, extra, count).map(|over| over.reason);
        assert_eq!(reason(&table, &usage(50, 4), 1), None);
        assert_eq!(reason(&table, &usage(50, 4), 2), Some(Reason::Count));
        assert_eq!(reason(&table, &usage(51, 4), 1), Some(Reason::Memory));
        assert_eq!(reason(&table, &usage(50, 5), 1), Some(Reason::DeviceMemory));
        let lasting = |host| table.lasting_excess(&settings, &usage(host, 0), 1, &BTreeSet::new());
        assert_eq!(lasting(150), None, "the other one can go");
        assert_eq!(lasting(151), Some(Excess { reason: Reason::Memory, wanted: 201, bound: 200 }));
        assert_eq!(table.known(&id("a")), Some(&usage(100, 5)));
        table.unloaded(0, &id("a"), Reason::Memory);
        assert_eq!((table.known(&id("a")), table.models.len()), (Some(&usage(100, 5)), 1), "the next load knows");
    }

    #[test]
    fn a_load_soon_after_the_memory_was_needed_is_noticed() {
        let mut table = Residents::default();
        table.unloaded(10 * SECOND, &id("a"), Reason::Memory);
        table.unloaded(10 * SECOND, &id("b"), Reason::Count);
        table.unloaded(10 * SECOND, &id("c"), Reason::Idle);
        assert_eq!(table.thrashes(20 * SECOND, &id("a")), Some((Reason::Memory, Duration::from_secs(10))));
        assert_eq!(table.thrashes(21 * SECOND, &id("a")), None, "once");
        assert_eq!(table.thrashes(70 * SECOND, &id("b")), None, "long ago");
        assert_eq!(table.thrashes(11 * SECOND, &id("c")), None, "nobody needed its memory");
        (0..REMEMBERED_MAX + 10).for_each(|at| table.unloaded(at as u64, &id(&at.to_string()), Reason::Memory));
        assert_eq!(table.unloaded_ns.len(), REMEMBERED_MAX);
    }
}
