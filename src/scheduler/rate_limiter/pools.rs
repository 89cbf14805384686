//! The total of each resource, and how much of it is taken.

use std::collections::BTreeMap;
use std::fmt;

use crate::WorkerInfo;
use nereid_model_config::validate::{ResourceLimit, limit};

/// The amount of one resource that an instance needs to execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    pub pool: usize,
    pub count: u64,
}

/// One resource on one device.
#[derive(Debug)]
struct Pool {
    name: String,
    /// None for a global resource.
    device: Option<i32>,
    /// The total amount.
    total: u64,
    taken: u64,
    /// Instances that request it; without any the entry is free for another resource.
    users: usize,
}

#[derive(Debug, Default)]
pub struct Pools {
    limits: Vec<ResourceLimit>,
    pools: Vec<Pool>,
}

impl Pools {
    pub fn new(limits: Vec<ResourceLimit>) -> Pools {
        Pools { limits, pools: Vec::new() }
    }

    pub fn limits(&self) -> &[ResourceLimit] {
        &self.limits
    }

    /// The demands of a worker of that `info`; of a resource that it names twice, the larger amount.
    pub fn demands(&mut self, info: &WorkerInfo) -> Vec<Demand> {
        let mut demands: Vec<Demand> = Vec::new();
        for resource in info.rate_limiter.iter().flat_map(|limiter| &limiter.resources) {
            let device = (!resource.global).then_some(info.device);
            let pool = self.find(&resource.name, device);
            let count = u64::from(resource.count);
            match demands.iter_mut().find(|demand| demand.pool == pool) {
                Some(demand) => demand.count = demand.count.max(count),
                None => {
                    self.pools[pool].users += 1;
                    demands.push(Demand { pool, count });
                }
            }
        }
        demands
    }

    fn find(&mut self, name: &str, device: Option<i32>) -> usize {
        let is_it = |pool: &Pool| pool.users > 0 && pool.name == name && pool.device == device;
        if let Some(at) = self.pools.iter().position(is_it) {
            return at;
        }
        let fresh = Pool { name: name.to_owned(), device, total: 0, taken: 0, users: 0 };
        match self.pools.iter().position(|pool| pool.users == 0) {
            Some(at) => {
                self.pools[at] = fresh;
                at
            }
            None => {
                self.pools.push(fresh);
                self.pools.len() - 1
            }
        }
    }

    /// Removes the demands of an instance that is gone.
    pub fn abandon(&mut self, demands: &[Demand]) {
        for demand in demands {
            if let Some(pool) = self.pools.get_mut(demand.pool) {
                pool.users = pool.users.saturating_sub(1);
            }
        }
    }

    /// Sets the totals for the present instances: the limit where there is one, else the largest demand.
    pub fn recompute<'a>(&mut self, present: impl Iterator<Item = &'a [Demand]>) {
        self.pools.iter_mut().for_each(|pool| pool.total = 0);
        for demand in present.flatten() {
            if let Some(pool) = self.pools.get_mut(demand.pool) {
                pool.total = pool.total.max(demand.count);
            }
        }
        for pool in &mut self.pools {
            if let Some(count) = limit(&self.limits, &pool.name, pool.device) {
                pool.total = count;
            }
        }
    }

    pub fn free(&self, pool: usize) -> u64 {
        self.pools.get(pool).map_or(0, |pool| pool.total.saturating_sub(pool.taken))
    }

    pub fn take(&mut self, pool: usize, count: u64) {
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.taken = pool.taken.saturating_add(count);
        }
    }

    pub fn give_back(&mut self, pool: usize, count: u64) {
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.taken = pool.taken.saturating_sub(count);
        }
    }

    /// Indices of pools are below this.
    pub fn len(&self) -> usize {
        self.pools.len()
    }

    /// The taken amount of all resources together.
    #[cfg(test)]
    pub fn taken(&self) -> u64 {
        self.pools.iter().map(|pool| pool.taken).sum()
    }

    /// The total of a resource.
    #[cfg(test)]
    pub fn total(&self, name: &str, device: Option<i32>) -> u64 {
        let found = self.pools.iter().find(|pool| pool.users > 0 && pool.name == name && pool.device == device);
        found.map_or(0, |pool| pool.total)
    }
}

impl fmt::Display for Pools {
    /// As Triton logs them: the global ones first, then by device, each by name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut devices: BTreeMap<Option<i32>, BTreeMap<&str, u64>> = BTreeMap::new();
        for pool in self.pools.iter().filter(|pool| pool.users > 0) {
            devices.entry(pool.device).or_default().insert(&pool.name, pool.total);
        }
        for (device, resources) in devices {
            match device {
                None => f.write_str("\tDevice: GLOBAL\n")?,
                Some(device) => writeln!(f, "\tDevice: {device}")?,
            }
            for (name, total) in resources {
                writeln!(f, "\t\tResource: {name}\t Count: {total}")?;
            }
        }
        Ok(())
    }
}
