//! Models that wait for models: a caller's resources serve the model that it calls, and circles are refused.
//!
//! A lease goes to a model and not to a request: the request that the caller waits for may be queued behind others of
//! its model, and those have to be executed first. So an instance of the called model that executes another caller's
//! request may use the caller's resources, one at a time, until the caller's own request has had its turn.

use std::collections::BTreeSet;

use super::limiter_state::{LimiterState, Member};
use nereid_request::{Status, Waker};

/// A member that executes waits for a request that it has handed to a model.
pub struct Lease {
    pub lender: u64,
    pub model: String,
}

impl LimiterState {
    /// Records that member `lender`, if it still has the hold with that number, waits for `model` from now on. Returns
    /// the number of the lease, if there is one, and the wakers of the members that may go in with it.
    pub fn lend(&mut self, lender: u64, hold: u64, model: &str) -> (Result<Option<u64>, Status>, Vec<Waker>) {
        let is_known = self.members.values().any(|member| member.model == model);
        if !is_known || self.hold(lender) != Some(hold) {
            return (Ok(None), Vec::new());
        }
        let number = self.number();
        self.leases.insert(number, Lease { lender, model: model.to_owned() });
        if let Some(circle) = self.circle(lender) {
            self.leases.remove(&number);
            let text = format!(
                "the request to model '{model}' would never be executed, because models wait for each other: {circle}"
            );
            return (Err(Status::unavailable(text)), Vec::new());
        }
        // No member makes this call for itself.
        (Ok(Some(number)), self.serve(0))
    }

    /// Ends a lease. A member that executes on it finishes.
    pub fn end_lease(&mut self, number: u64) -> Vec<Waker> {
        self.leases.remove(&number);
        self.serve(0)
    }

    /// The members that wait for `model`: those that called it, those that called them, and so on.
    pub(super) fn lenders(&self, model: &str) -> Vec<u64> {
        if self.leases.is_empty() {
            return Vec::new();
        }
        let mut found: Vec<u64> = Vec::new();
        let mut models = vec![model];
        let mut seen = BTreeSet::from([model]);
        while let Some(model) = models.pop() {
            for lease in self.leases.values().filter(|lease| lease.model == model) {
                if !found.contains(&lease.lender) {
                    found.push(lease.lender);
                }
                if let Some(member) = self.members.get(&lease.lender)
                    && seen.insert(&member.model)
                {
                    models.push(&member.model);
                }
            }
        }
        found
    }

    /// The amount of a pool that member `number` has and no other member has borrowed yet.
    pub(super) fn lendable(&self, number: u64, pool: usize) -> u64 {
        let Some(hold) = self.members.get(&number).and_then(Member::hold) else { return 0 };
        let own = self.members.get(&number).map_or(0, |member| member.own(pool));
        let borrowed: u64 = hold.borrowed.iter().filter(|part| part.pool == pool).map(|part| part.count).sum();
        own.saturating_add(borrowed).saturating_sub(self.borrowed_from(pool, |lender| lender == number, |_| true))
    }

    /// The amount of a pool that `borrowers` have from `lenders`.
    fn borrowed_from(&self, pool: usize, lenders: impl Fn(u64) -> bool, borrowers: impl Fn(u64) -> bool) -> u64 {
        let holds = self.members.iter().filter(|(number, _)| borrowers(**number)).filter_map(|(_, m)| m.hold());
        let parts = holds.flat_map(|hold| &hold.borrowed).filter(|part| part.pool == pool && lenders(part.lender));
        parts.map(|part| part.count).sum()
    }

    /// The models that would wait for each other for ever, with `lender` among the waiting ones; None if all that
    /// execute can end, one after the other.
    fn circle(&self, lender: u64) -> Option<String> {
        let mut ended: BTreeSet<u64> = BTreeSet::new();
        loop {
            let can_end = |(number, member): &(&u64, &Member)| {
                member.hold().is_some() && !ended.contains(number) && self.stuck_on(**number, &ended).is_none()
            };
            match self.members.iter().find(can_end) {
                Some((number, _)) => drop(ended.insert(*number)),
                None => break,
            }
        }
        if ended.contains(&lender) {
            return None;
        }
        let mut way: Vec<(u64, String)> = Vec::new();
        let mut at = lender;
        loop {
            let model = self.members.get(&at)?.model.clone();
            if let Some(start) = way.iter().position(|(number, _)| *number == at) {
                let names: Vec<String> = way[start..].iter().map(|(_, model)| format!("'{model}'")).collect();
                return Some(format!("{} -> '{model}'", names.join(" -> ")));
            }
            way.push((at, model));
            let called = self.stuck_on(at, &ended)?;
            let next = self.in_the_way(&called, &ended)?;
            if self.members.get(&next)?.model != called {
                // It is queued for resources that another member holds.
                way.push((0, called));
            }
            at = next;
        }
    }

    /// A model that member `number` waits for and that cannot execute before others end.
    fn stuck_on(&self, number: u64, ended: &BTreeSet<u64>) -> Option<String> {
        let mut called = self.leases.values().filter(|lease| lease.lender == number).map(|lease| &lease.model);
        called.find(|model| !self.can_execute(model, ended)).cloned()
    }

    /// Whether an instance of `model` is free for the next request once those in `ended` have ended.
    fn can_execute(&self, model: &str, ended: &BTreeSet<u64>) -> bool {
        let is_there = |(number, member): &(&u64, &Member)| member.hold().is_none() || ended.contains(number);
        let instances = self.members.iter().filter(|(_, member)| member.model == model);
        instances.filter(is_there).any(|(_, member)| self.lacking(model, member, ended).is_none())
    }

    /// The first pool of which there is not enough for `member` once those in `ended` have ended.
    fn lacking(&self, model: &str, member: &Member, ended: &BTreeSet<u64>) -> Option<usize> {
        let lenders = self.lenders(model);
        let is_enough = |pool: usize, count: u64| {
            let owned = |numbers: &mut dyn Iterator<Item = &u64>| -> u64 {
                numbers.filter_map(|number| self.members.get(number)).map(|member| member.own(pool)).sum()
            };
            let given_back = owned(&mut ended.iter());
            let lent = owned(&mut present(&lenders, ended));
            let elsewhere = self.borrowed_from(
                pool,
                |lender| lenders.contains(&lender) || ended.contains(&lender),
                |borrower| !lenders.contains(&borrower) && !ended.contains(&borrower),
            );
            let there = self.pools.free(pool).saturating_add(given_back).saturating_add(lent);
            there.saturating_sub(elsewhere) >= count
        };
        let lacking = member.demands.iter().find(|demand| !is_enough(demand.pool, demand.count));
        lacking.map(|demand| demand.pool)
    }

    /// The member that keeps `model` from executing: one of its instances if all are stuck, or a holder of what they
    /// lack.
    fn in_the_way(&self, model: &str, ended: &BTreeSet<u64>) -> Option<u64> {
        let is_stuck = |number: &u64, member: &Member| member.hold().is_some() && !ended.contains(number);
        let mut waiting =
            self.members.iter().filter(|(number, member)| member.model == model && !is_stuck(number, member));
        let stuck = self.members.iter().filter(|(number, member)| is_stuck(number, member));
        let Some((_, member)) = waiting.next() else {
            return stuck.filter(|(_, other)| other.model == model).map(|(number, _)| *number).next();
        };
        let pool = self.lacking(model, member, ended)?;
        let lenders = self.lenders(model);
        let mut holders = stuck.filter(|(number, _)| !lenders.contains(number));
        holders.find(|(_, other)| other.own(pool) > 0).map(|(number, _)| *number)
    }
}

/// The lenders that have not ended.
fn present<'a>(lenders: &'a [u64], ended: &'a BTreeSet<u64>) -> impl Iterator<Item = &'a u64> {
    lenders.iter().filter(|number| !ended.contains(number))
}
