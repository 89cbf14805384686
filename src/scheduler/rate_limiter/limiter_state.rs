//! The queue of the rate limiter: the instances that have resources, those that wait, and their order.

use std::collections::BTreeMap;

use super::super::mutants::{self, Mutant};
use super::PASSED_MAX;
use super::leases::Lease;
use super::pools::{Demand, Pools};
use crate::WorkerInfo;
use nereid_model_config::validate::{ResourceLimit, rate_limits};
use nereid_observe::log::verbose;
use nereid_request::{Status, Waker};
use nereid_wire::inference::ModelInstanceGroup;

/// The whole state of the rate limiter.
pub struct LimiterState {
    pub(super) pools: Pools,
    pub(super) members: BTreeMap<u64, Member>,
    /// Leases by their numbers.
    pub(super) leases: BTreeMap<u64, Lease>,
    groups: BTreeMap<u64, Vec<ModelInstanceGroup>>,
    /// The last number given to a member, registration, hold, lease or place in the queue.
    numbers: u64,
}

/// One instance.
pub struct Member {
    pub model: String,
    /// At least 1.
    priority: u64,
    executions: u64,
    pub demands: Vec<Demand>,
    waker: Waker,
    pub place: MemberPlace,
}

#[derive(Debug)]
pub enum MemberPlace {
    /// It has nothing to execute.
    Out,
    Waiting {
        arrival: u64,
        /// How often others took what it waits for.
        passed: u32,
    },
    Inside(ResourceHold),
}

/// The resources of an instance.
#[derive(Debug)]
pub struct ResourceHold {
    pub number: u64,
    /// Its `enter` has returned true; before that it may still find that there is nothing to execute.
    pub is_executing: bool,
    /// The execution is over, and it has neither entered again nor left.
    pub has_executed: bool,
    /// Taken from the pools, in the order of the demands.
    pub own: Vec<u64>,
    pub borrowed: Vec<Borrowing>,
}

/// A part of a member's resources that another member holds.
#[derive(Debug, Clone, Copy)]
pub struct Borrowing {
    pub lender: u64,
    pub pool: usize,
    pub count: u64,
}

impl Member {
    /// The member with the lowest value comes first.
    fn turn(&self) -> u64 {
        self.executions.saturating_mul(self.priority)
    }

    pub fn hold(&self) -> Option<&ResourceHold> {
        match &self.place {
            MemberPlace::Inside(hold) => Some(hold),
            MemberPlace::Out | MemberPlace::Waiting { .. } => None,
        }
    }

    pub fn needs_from(&self, pool: usize) -> bool {
        self.demands.iter().any(|demand| demand.pool == pool && demand.count > 0)
    }

    /// The amount that it took of a pool itself.
    pub fn own(&self, pool: usize) -> u64 {
        let at = self.demands.iter().position(|demand| demand.pool == pool);
        at.and_then(|at| self.hold()?.own.get(at).copied()).unwrap_or(0)
    }
}

impl LimiterState {
    pub fn new(limits: Vec<ResourceLimit>) -> LimiterState {
        LimiterState {
            pools: Pools::new(limits),
            members: BTreeMap::new(),
            leases: BTreeMap::new(),
            groups: BTreeMap::new(),
            numbers: 0,
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub fn register(&mut self, groups: &[ModelInstanceGroup]) -> Result<u64, Status> {
        let number = self.number();
        self.change(number, groups)?;
        Ok(number)
    }

    pub fn change(&mut self, number: u64, groups: &[ModelInstanceGroup]) -> Result<(), Status> {
        let others = self.groups.iter().filter(|(other, _)| **other != number).flat_map(|(_, groups)| groups);
        rate_limits(others.chain(groups), self.pools.limits())?;
        self.groups.insert(number, groups.to_vec());
        Ok(())
    }

    pub fn unregister(&mut self, number: u64) {
        self.groups.remove(&number);
    }

    /// Adds an instance. It starts level with the one that has executed least: otherwise it would be alone at the head
    /// until it has caught up with years of executions.
    pub fn join(&mut self, model: &str, info: &WorkerInfo) -> u64 {
        let priority = info.rate_limiter.as_ref().map_or(1, |limiter| u64::from(limiter.priority.max(1)));
        let least = self.members.values().map(Member::turn).min().unwrap_or(0);
        let demands = self.pools.demands(info);
        let member = Member {
            model: model.to_owned(),
            priority,
            executions: least / priority,
            demands,
            waker: info.waker.clone(),
            place: MemberPlace::Out,
        };
        let number = self.number();
        self.members.insert(number, member);
        self.recompute();
        number
    }

    /// Removes an instance and gives back its resources.
    pub fn remove(&mut self, number: u64) -> Vec<Waker> {
        self.release(number);
        if let Some(member) = self.members.remove(&number) {
            self.pools.abandon(&member.demands);
        }
        self.leases.retain(|_, lease| lease.lender != number);
        self.recompute();
        self.serve(number)
    }

    fn recompute(&mut self) {
        self.pools.recompute(self.members.values().map(|member| &*member.demands));
        verbose!(1, "\nMax Resource Map===>\n{}", self.pools);
    }

    /// Whether member `number` may execute now, and the wakers of others that may.
    pub fn enter(&mut self, number: u64) -> (bool, Vec<Waker>) {
        let arrival = self.number();
        // Back into the queue with its resources, so that those that have executed less come before it.
        if self.members.get(&number).and_then(Member::hold).is_some_and(|hold| hold.has_executed) {
            self.release(number);
        }
        let Some(member) = self.members.get_mut(&number) else { return (true, Vec::new()) };
        let mut wakers = Vec::new();
        if matches!(member.place, MemberPlace::Out) {
            member.place = MemberPlace::Waiting { arrival, passed: 0 };
            wakers = self.serve(number);
        }
        (self.begin(number), wakers)
    }

    /// Counts an execution that begins; false if the member has to wait.
    fn begin(&mut self, number: u64) -> bool {
        let Some(member) = self.members.get_mut(&number) else { return true };
        let MemberPlace::Inside(hold) = &mut member.place else { return false };
        if !hold.is_executing {
            hold.is_executing = true;
            member.executions = member.executions.saturating_add(1);
        }
        true
    }

    /// The execution of member `number` is over; its resources are given back when it enters again or leaves.
    pub fn executed(&mut self, number: u64) {
        if let Some(Member { place: MemberPlace::Inside(hold), .. }) = self.members.get_mut(&number) {
            hold.has_executed = hold.is_executing;
        }
    }

    pub fn leave(&mut self, number: u64) -> Vec<Waker> {
        self.release(number);
        self.serve(number)
    }

    /// The number of the hold of a member that executes.
    pub fn hold(&self, number: u64) -> Option<u64> {
        let hold = self.members.get(&number)?.hold()?;
        (hold.is_executing && !hold.has_executed).then_some(hold.number)
    }

    fn release(&mut self, number: u64) {
        let Some(member) = self.members.get_mut(&number) else { return };
        let MemberPlace::Inside(hold) = std::mem::replace(&mut member.place, MemberPlace::Out) else { return };
        if !hold.is_executing && mutants::is(Mutant::GrantLeaked) {
            return;
        }
        let mut own: Vec<(usize, u64)> =
            member.demands.iter().zip(&hold.own).map(|(demand, count)| (demand.pool, *count)).collect();
        // What others still use of it is theirs now: of what it borrowed itself, its own lender has to wait for that.
        let mut borrowed = hold.borrowed;
        for other in self.members.values_mut() {
            let demands = &other.demands;
            let MemberPlace::Inside(theirs) = &mut other.place else { continue };
            theirs.borrowed = std::mem::take(&mut theirs.borrowed)
                .into_iter()
                .flat_map(|part| pass_on(part, number, &mut own, &mut borrowed, demands, &mut theirs.own))
                .collect();
        }
        for (pool, count) in own {
            self.pools.give_back(pool, count);
        }
        self.leases.retain(|_, lease| lease.lender != number);
    }

    /// Lets in all that may go in now. `asking` is the caller, which is not woken.
    pub(super) fn serve(&mut self, asking: u64) -> Vec<Waker> {
        let mut line: Vec<(bool, u64, u64, u64)> = Vec::new();
        for (number, member) in &self.members {
            if let MemberPlace::Waiting { arrival, .. } = member.place {
                // A member that waits with another's lease comes first, because others wait for it, and nothing is
                // reserved against it.
                let is_lent = !self.lenders(&member.model).is_empty();
                let turn = if mutants::is(Mutant::OrderIgnored) { 0 } else { member.turn() };
                line.push((!is_lent, turn, arrival, *number));
            }
        }
        line.sort_unstable();
        let mut reserved = vec![false; self.pools.len()];
        let mut blocked: Vec<u64> = Vec::new();
        let mut wakers = Vec::new();
        for (is_plain, _, _, number) in line {
            let Some(member) = self.members.get(&number) else { continue };
            let is_kept_out = is_plain && member.demands.iter().any(|demand| reserved[demand.pool] && demand.count > 0);
            if !is_kept_out && let Some(hold) = self.gather(number) {
                if number != asking {
                    wakers.push(member.waker.clone());
                }
                self.let_in(number, hold, is_plain, &blocked);
                continue;
            }
            if let MemberPlace::Waiting { passed, .. } = member.place
                && passed >= PASSED_MAX
                && !mutants::is(Mutant::NoAgeing)
            {
                member.demands.iter().for_each(|demand| reserved[demand.pool] = true);
            }
            blocked.push(number);
        }
        wakers
    }

    fn let_in(&mut self, number: u64, mut hold: ResourceHold, is_plain: bool, blocked: &[u64]) {
        hold.number = self.number();
        let Some(member) = self.members.get_mut(&number) else { return };
        for (demand, count) in member.demands.iter().zip(&hold.own) {
            self.pools.take(demand.pool, *count);
        }
        member.place = MemberPlace::Inside(hold);
        if !is_plain {
            return;
        }
        let demands = member.demands.clone();
        for other in blocked {
            let Some(other) = self.members.get_mut(other) else { continue };
            let is_passed = demands.iter().any(|demand| demand.count > 0 && other.needs_from(demand.pool));
            if let MemberPlace::Waiting { passed, .. } = &mut other.place
                && is_passed
            {
                *passed += 1;
            }
        }
    }

    /// The hold of member `number` if it went in now: lent resources first, then free ones. None if that is not enough.
    fn gather(&self, number: u64) -> Option<ResourceHold> {
        let member = self.members.get(&number)?;
        let lenders = self.lenders(&member.model);
        let mut hold =
            ResourceHold { number: 0, is_executing: false, has_executed: false, own: Vec::new(), borrowed: Vec::new() };
        for demand in &member.demands {
            let mut missing = demand.count;
            for lender in lenders.iter().filter(|lender| **lender != number) {
                let count = self.lendable(*lender, demand.pool).min(missing);
                if count > 0 {
                    hold.borrowed.push(Borrowing { lender: *lender, pool: demand.pool, count });
                    missing -= count;
                }
            }
            if missing > self.pools.free(demand.pool) {
                return None;
            }
            hold.own.push(missing);
        }
        Some(hold)
    }
}

/// Reassigns a part that was borrowed from member `from`, which gives back its resources: the borrower takes over what
/// the member owned, and borrows the rest from those that the member had borrowed it from.
fn pass_on(
    part: Borrowing,
    from: u64,
    own: &mut [(usize, u64)],
    borrowed: &mut [Borrowing],
    demands: &[Demand],
    theirs: &mut [u64],
) -> Vec<Borrowing> {
    if part.lender != from {
        return vec![part];
    }
    let mut missing = part.count;
    if let Some((_, count)) = own.iter_mut().find(|(pool, _)| *pool == part.pool)
        && let Some(at) = demands.iter().position(|demand| demand.pool == part.pool)
        && let Some(place) = theirs.get_mut(at)
    {
        let moved = missing.min(*count);
        *count -= moved;
        *place += moved;
        missing -= moved;
    }
    let mut parts = Vec::new();
    for other in borrowed.iter_mut().filter(|other| other.pool == part.pool) {
        let moved = missing.min(other.count);
        if moved > 0 {
            other.count -= moved;
            missing -= moved;
            parts.push(Borrowing { lender: other.lender, pool: part.pool, count: moved });
        }
    }
    parts
}
