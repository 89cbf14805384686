//! Workers behind the rate limiter: those that execute at one time never need more than there is, and none waits while
//! what it needs is free.

use std::collections::BTreeMap;

use super::*;
use crate::{Limiter, PayloadSource, Purpose, RateLimiter, Services, create};
use nereid_model_config::validate::ResourceLimit;
use nereid_request::Status;
use nereid_wire::inference::ModelRateLimiter;
use nereid_wire::inference::model_rate_limiter::Resource;

/// Total of the one resource, over all models.
const LIMIT: u32 = 5;

struct Limited {
    /// Outlives the schedulers: a reloaded model finds the resources that its predecessor still has.
    limiter: Arc<RateLimiter>,
    demands: Arc<Mutex<Demands>>,
    workers: usize,
}

/// The demands of all workers, and of those that execute now.
#[derive(Default)]
struct Demands {
    given: Vec<u32>,
    executing: BTreeMap<(usize, usize), u32>,
    generations: usize,
}

/// Gives every worker that joins a demand of its own.
struct Demanding {
    inner: Arc<dyn PayloadSource>,
    demands: Arc<Mutex<Demands>>,
    generation: usize,
    own: Mutex<BTreeMap<usize, u32>>,
}

impl PayloadSource for Demanding {
    fn join(&self, mut info: WorkerInfo) -> Result<usize, Status> {
        let count = {
            let mut demands = self.demands.lock().unwrap();
            demands.given.rotate_left(1);
            demands.given.first().copied().unwrap_or(1)
        };
        let resource = Resource { name: "R".to_owned(), global: true, count };
        info.rate_limiter = Some(ModelRateLimiter { resources: vec![resource], priority: count % 3 });
        let worker = self.inner.join(info)?;
        self.own.lock().unwrap().insert(worker, count);
        Ok(worker)
    }

    fn poll(&self, worker: usize, now_ns: u64) -> Next {
        let next = self.inner.poll(worker, now_ns);
        if matches!(next, Next::Execute(_)) {
            let count = self.own.lock().unwrap().get(&worker).copied().unwrap_or(0);
            self.demands.lock().unwrap().executing.insert((self.generation, worker), count);
        }
        next
    }

    fn executed(&self, worker: usize) {
        self.demands.lock().unwrap().executing.remove(&(self.generation, worker));
        self.inner.executed(worker);
    }

    fn dismiss(&self, worker: usize) {
        self.inner.dismiss(worker);
    }

    fn left(&self, worker: usize) {
        self.inner.left(worker);
    }
}

impl Limited {
    fn random(random: &mut Random) -> Limited {
        let limit = ResourceLimit { name: "R".to_owned(), count: LIMIT.into(), device: None };
        let given = (0..7).map(|_| 1 + random.below(LIMIT.into()) as u32).collect();
        Limited {
            limiter: Arc::new(RateLimiter::new(vec![limit])),
            demands: Arc::new(Mutex::new(Demands { given, ..Demands::default() })),
            workers: 1 + random.below(4) as usize,
        }
    }
}

impl Rules for Limited {
    type Facts = ();

    fn build(&mut self, _random: &mut Random) -> Scheduling {
        let limiter: Arc<dyn Limiter> = self.limiter.clone();
        let purpose = Purpose::of(super::dynamic::spec(""));
        let services = Services { limiter: Some(limiter), ..Services::default() };
        let Scheduling { scheduler, source } = create(&purpose, &services).unwrap();
        let mut demands = self.demands.lock().unwrap();
        demands.generations += 1;
        let source = Demanding {
            inner: source,
            demands: Arc::clone(&self.demands),
            generation: demands.generations,
            own: Mutex::default(),
        };
        Scheduling { scheduler, source: Arc::new(source) }
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn arrive(&mut self, _random: &mut Random, _request: &mut Request) {}

    fn patience(&mut self, random: &mut Random) -> Option<u64> {
        random.once_in(5).then(|| random.below(MS))
    }

    fn refused(&mut self, _facts: &(), status: &Status, _waiting: &Waiting<'_, ()>) -> Checked {
        Err(format!("nothing here is refused: {status}"))
    }

    fn cut(
        &mut self,
        _now_ns: u64,
        worker: usize,
        _taken: &[(&Request, Option<&Sent<()>>)],
        _waiting: &Waiting<'_, ()>,
    ) -> Checked {
        let used: u32 = self.demands.lock().unwrap().executing.values().sum();
        match used <= LIMIT {
            true => Ok(()),
            false => Err(format!("worker {worker} executes with {used} of {LIMIT}")),
        }
    }

    fn may_rest(&mut self, _now_ns: u64, idle: &[usize], waiting: &Waiting<'_, ()>) -> Checked {
        let nobody_executes = self.demands.lock().unwrap().executing.is_empty();
        match nobody_executes && !idle.is_empty() && waiting.iter().next().is_some() {
            true => Err("no worker executes, and requests wait beside workers that sleep".to_owned()),
            false => Ok(()),
        }
    }
}

const WEATHER: Weather = Weather { requests: 600, pause_ns: 150 * US, burst: 8, reload_every: 40, change_every: 10 };

#[test]
fn workers_behind_the_rate_limiter_keep_its_promises() {
    play(150, WEATHER, Limited::random);
}

#[test]
fn resources_that_are_not_given_back_are_noticed() {
    let failure = catches(Mutant::GrantLeaked, 100, WEATHER, Limited::random);
    assert!(failure.is_some(), "a leak goes unnoticed");
}
