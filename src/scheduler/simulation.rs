//! Schedulers in a world without threads and without time: a seed decides the events, their order and their times.
//!
//! The real schedulers run behind their real interface. Clients, workers, the home of requests and the clock are
//! simulated: at every step one of the possible next events happens, chosen by the seed, and time moves only when no
//! event is left at the present moment. The invariants of every scheduler are checked here at each step: no request is
//! lost, none is answered twice, none runs that was answered or timed out. A particular scheduler's promises are
//! checked by its scenario, see [`Rules`].
//!
//! A failure names its seed; `NEREID_SIMULATION_SEED=<seed>` runs that one alone.

mod cache;
pub(super) mod dynamic;
mod ensemble;
mod random;
mod rate_limiter;
mod sequence;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::mutants::{self, Mutant};
use super::{Accepted, Next, Payload, Refused, Scheduling, WorkerInfo};
use nereid_memory::{BlockMut, Exhausted};
use nereid_request::{
    Code, Completion, Delivery, Home, Job, Origin, Request, Response, Sink, Status, Text, Ticket, WakeUp, Waker,
};

pub use random::Random;

pub type Checked = Result<(), String>;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000 * US;

/// A scenario: the model, the requests, and the invariants.
pub trait Rules {
    /// The scenario's record of a request.
    type Facts;

    /// The scheduler of the first generation, or of one that replaces it.
    fn build(&mut self, random: &mut Random) -> Scheduling;

    /// Workers at the start, and after each reload.
    fn workers(&self) -> usize;

    /// Fills in the next request. Its id is taken.
    fn arrive(&mut self, random: &mut Random, request: &mut Request) -> Self::Facts;

    /// When the client of a request leaves after it was accepted.
    fn patience(&mut self, _random: &mut Random) -> Option<u64> {
        None
    }

    /// Whether a request never runs once it has timed out, even if its home has not expired it yet.
    fn expiry_is_strict(&self) -> bool {
        true
    }

    /// Checks the acceptance of a request, which `waiting` does not contain yet.
    fn accepted(&mut self, _facts: &Self::Facts, _waiting: &Waiting<'_, Self::Facts>) -> Checked {
        Ok(())
    }

    /// Checks the refusal of a request.
    fn refused(&mut self, facts: &Self::Facts, status: &Status, waiting: &Waiting<'_, Self::Facts>) -> Checked;

    /// Checks a payload that a worker has cut. `waiting` holds the remaining requests, and `taken` the cut ones, in
    /// their order.
    fn cut(
        &mut self,
        now_ns: u64,
        worker: usize,
        taken: &[(&Request, Option<&Sent<Self::Facts>>)],
        waiting: &Waiting<'_, Self::Facts>,
    ) -> Checked;

    /// No event is left at this moment and `idle` workers sleep: checks that all waiting requests may wait.
    fn may_rest(&mut self, now_ns: u64, idle: &[usize], waiting: &Waiting<'_, Self::Facts>) -> Checked;

    /// A response has arrived at the home.
    fn answered(&mut self, _key: u64, _sent: &Sent<Self::Facts>, _delivery: &Delivery) -> Checked {
        Ok(())
    }

    /// Whether a request may be answered as cancelled because of one of `others`, although its client did not cancel
    /// it.
    fn may_fall_with(&self, _sent: &Sent<Self::Facts>, _others: &mut dyn Iterator<Item = &Sent<Self::Facts>>) -> bool {
        false
    }

    /// The result of a request's execution.
    fn execute(&mut self, random: &mut Random, _request: &Request) -> Reply {
        match random.below(20) {
            0 => Reply::Fail,
            1 => Reply::Later(random.below(MS)),
            2 => Reply::Drop,
            _ => Reply::Succeed,
        }
    }

    /// How long an execution takes.
    fn duration_ns(&mut self, random: &mut Random) -> u64 {
        random.below(200 * US)
    }
}

/// What a backend does with a request at the end of its execution.
#[derive(Debug, Clone, Copy)]
pub enum Reply {
    Succeed,
    Fail,
    /// It keeps the request, and answers so many nanoseconds later.
    Later(u64),
    /// It drops the request.
    Drop,
    /// It executes it once more.
    Again,
}

/// A request between its acceptance and its end.
pub struct Sent<F> {
    pub facts: F,
    pub key: u64,
    pub generation: usize,
    pub sent_ns: u64,
    pub expires_at_ns: Option<u64>,
    /// Its last response is sent, and on its way home.
    pub is_answered: bool,
    pub is_cancelled: bool,
    pub is_executing: bool,
    ticket: Option<Ticket>,
}

/// The requests that wait for a worker, in the order of arrival.
pub struct Waiting<'a, F> {
    open: &'a BTreeMap<u64, Sent<F>>,
    generation: usize,
    /// No more requests will come: the waiting ones go as soon as they can.
    pub is_stopped: bool,
}

impl<F> Waiting<'_, F> {
    /// Requests of the generation in question that are neither executed nor answered.
    pub fn iter(&self) -> impl Iterator<Item = &Sent<F>> {
        let generation = self.generation;
        self.open.values().filter(move |sent| sent.generation == generation && !sent.is_executing && !sent.is_answered)
    }

    /// Requests of the generation that are executed, or kept by a backend, and not answered. An answer counts from the
    /// moment it is sent, not only once it was read.
    pub fn executing(&self) -> usize {
        let is_out = |sent: &&Sent<F>| sent.generation == self.generation && sent.is_executing && !sent.is_answered;
        self.open.values().filter(is_out).count()
    }
}

/// The frequencies of events.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    pub requests: u64,
    /// Mean time between two bursts of arrivals.
    pub pause_ns: u64,
    pub burst: u64,
    /// One of so many bursts also replaces the scheduler; 0: none.
    pub reload_every: u64,
    /// One of so many bursts also changes the workers; 0: none.
    pub change_every: u64,
}

/// Runs the scenario of each seed under `weather`, `seeds` times; panics with the seed of the first failure.
pub fn play<R: Rules>(seeds: u64, weather: Weather, scenario: impl Fn(&mut Random) -> R) {
    if let Some((seed, failure)) = first_failure(seeds, weather, &scenario) {
        panic!("NEREID_SIMULATION_SEED={seed}: {failure}");
    }
}

/// Returns the seed, of so many, with which the simulation catches the mistake, if there is one.
pub fn catches<R: Rules>(
    mutant: Mutant,
    seeds: u64,
    weather: Weather,
    scenario: impl Fn(&mut Random) -> R,
) -> Option<String> {
    mutants::with(Some(mutant), || first_failure(seeds, weather, &scenario).map(|(_, failure)| failure))
}

fn first_failure<R: Rules>(
    seeds: u64,
    weather: Weather,
    scenario: &impl Fn(&mut Random) -> R,
) -> Option<(u64, String)> {
    let only: Option<u64> = std::env::var("NEREID_SIMULATION_SEED").ok().and_then(|seed| seed.parse().ok());
    let range = only.map_or(1..=seeds, |seed| seed..=seed);
    range.into_iter().find_map(|seed| {
        let mut random = Random::new(seed);
        let rules = scenario(&mut random);
        World::new(rules, random, weather).run().err().map(|failure| (seed, failure))
    })
}

/// The home of requests: their answers and jobs arrive here.
#[derive(Default)]
struct Post {
    deliveries: Mutex<VecDeque<(u64, Delivery)>>,
    jobs: Mutex<VecDeque<Box<dyn Job>>>,
}

impl Sink for Post {
    fn deliver(&self, key: u64, delivery: Delivery) {
        self.deliveries.lock().unwrap().push_back((key, delivery));
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }

    fn at_home(&self, job: Box<dyn Job>) {
        self.jobs.lock().unwrap().push_back(job);
    }
}

enum Doing {
    /// It polls its scheduler next.
    Polling,
    Sleeping {
        until_ns: Option<u64>,
    },
    Executing {
        payload: Payload,
        until_ns: u64,
    },
    Gone,
}

struct Worker {
    number: usize,
    doing: Doing,
    woken: Arc<AtomicBool>,
    is_dismissed: bool,
}

struct Generation {
    scheduling: Scheduling,
    workers: Vec<Worker>,
    is_stopped: bool,
}

enum Timed {
    Expiry(u64),
    Cancellation(u64),
    Job(Box<dyn Job>),
    Answer(Box<Request>),
}

/// The possible next events.
enum Event {
    Burst,
    Poll(usize, usize),
    Finish(usize, usize),
    Read,
    Work,
    Time,
    Wake,
}

thread_local! {
    static NOW_NS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The time of the world that this thread simulates, for schedulers that read it.
pub fn clock() -> u64 {
    NOW_NS.get()
}

struct World<R: Rules> {
    rules: R,
    random: Random,
    weather: Weather,
    now_ns: u64,
    next_burst_ns: u64,
    next_key: u64,
    open: BTreeMap<u64, Sent<R::Facts>>,
    post: Arc<Post>,
    /// Answers that arrived and were not read yet.
    mail: VecDeque<(u64, Delivery)>,
    timers: BTreeMap<(u64, u64), Timed>,
    timer_count: u64,
    wake_ups: Vec<WakeUp>,
    generations: Vec<Generation>,
}

/// The home while a job runs.
struct AtHome<'a> {
    now_ns: u64,
    wake_ups: &'a mut Vec<WakeUp>,
    later: Vec<(u64, Box<dyn Job>)>,
}

impl Home for AtHome<'_> {
    fn wake(&mut self, wake_up: WakeUp) {
        self.wake_ups.push(wake_up);
    }

    fn run_at(&mut self, at_ns: u64, job: Box<dyn Job>) {
        self.later.push((at_ns.max(self.now_ns), job));
    }
}

impl<R: Rules> World<R> {
    fn new(rules: R, random: Random, weather: Weather) -> World<R> {
        World {
            rules,
            random,
            weather,
            now_ns: 1_000 * MS,
            next_burst_ns: 1_000 * MS,
            next_key: 0,
            open: BTreeMap::new(),
            post: Arc::default(),
            mail: VecDeque::new(),
            timers: BTreeMap::new(),
            timer_count: 0,
            wake_ups: Vec::new(),
            generations: Vec::new(),
        }
    }

    fn run(mut self) -> Checked {
        NOW_NS.set(self.now_ns);
        self.add_generation();
        loop {
            let mut events = self.possible();
            if events.is_empty() {
                self.check_rest()?;
                if !self.advance() {
                    break;
                }
                continue;
            }
            let chosen = self.random.below(events.len() as u64) as usize;
            self.happen(events.swap_remove(chosen))?;
        }
        match self.open.values().next() {
            Some(sent) => Err(format!("request {} was never answered, of {} open ones", sent.key, self.open.len())),
            None => self.end(),
        }
    }

    /// Everything is answered: the workers leave.
    fn end(mut self) -> Checked {
        for at in 0..self.generations.len() {
            self.stop(at);
            self.generations[at].scheduling.scheduler.close();
        }
        loop {
            let mut events = self.possible();
            events.retain(|event| !matches!(event, Event::Burst));
            let Some(event) = events.pop() else { break };
            self.happen(event)?;
        }
        let left = self.generations.iter().flat_map(|generation| &generation.workers);
        match left.filter(|worker| !matches!(worker.doing, Doing::Gone)).count() {
            0 => Ok(()),
            count => Err(format!("{count} workers did not see that their scheduler was stopped")),
        }
    }

    fn possible(&self) -> Vec<Event> {
        let mut events = Vec::new();
        if self.next_key < self.weather.requests && self.next_burst_ns <= self.now_ns {
            events.push(Event::Burst);
        }
        for (at, generation) in self.generations.iter().enumerate() {
            for (number, worker) in generation.workers.iter().enumerate() {
                let is_woken = worker.woken.load(Ordering::SeqCst);
                match &worker.doing {
                    Doing::Polling => events.push(Event::Poll(at, number)),
                    Doing::Sleeping { until_ns } if is_woken || until_ns.is_some_and(|until| until <= self.now_ns) => {
                        events.push(Event::Poll(at, number));
                    }
                    Doing::Executing { until_ns, .. } if *until_ns <= self.now_ns => {
                        events.push(Event::Finish(at, number));
                    }
                    _ => {}
                }
            }
        }
        if !self.mail.is_empty() {
            events.push(Event::Read);
        }
        if !self.post.jobs.lock().unwrap().is_empty() {
            events.push(Event::Work);
        }
        if self.timers.first_key_value().is_some_and(|((at_ns, _), _)| *at_ns <= self.now_ns) {
            events.push(Event::Time);
        }
        if !self.wake_ups.is_empty() {
            events.push(Event::Wake);
        }
        events
    }

    fn happen(&mut self, event: Event) -> Checked {
        self.react(event)?;
        self.collect()
    }

    /// Takes over the answers that arrived meanwhile.
    fn collect(&mut self) -> Checked {
        for (key, delivery) in self.post.deliveries.lock().unwrap().drain(..) {
            match self.open.get_mut(&key) {
                Some(sent) if !sent.is_answered => sent.is_answered = delivery.last,
                _ => return Err(format!("request {key} is answered again: {delivery:?}")),
            }
            self.mail.push_back((key, delivery));
        }
        Ok(())
    }

    fn react(&mut self, event: Event) -> Checked {
        match event {
            Event::Burst => self.burst(),
            Event::Poll(generation, worker) => self.poll(generation, worker),
            Event::Finish(generation, worker) => {
                self.finish(generation, worker);
                Ok(())
            }
            Event::Read => self.read(),
            Event::Work => {
                let job = self.post.jobs.lock().unwrap().pop_front();
                job.into_iter().for_each(|job| self.run_job(job));
                Ok(())
            }
            Event::Time => self.time(),
            Event::Wake => {
                std::mem::take(&mut self.wake_ups).into_iter().for_each(WakeUp::now);
                Ok(())
            }
        }
    }

    fn add_generation(&mut self) {
        if let Some(last) = self.generations.len().checked_sub(1) {
            self.stop(last);
        }
        let scheduling = self.rules.build(&mut self.random);
        self.generations.push(Generation { scheduling, workers: Vec::new(), is_stopped: false });
        for _ in 0..self.rules.workers() {
            self.hire();
        }
    }

    fn hire(&mut self) {
        let Some(generation) = self.generations.last_mut() else { return };
        let woken = Arc::new(AtomicBool::new(false));
        let waker = Waker::new({
            let woken = Arc::clone(&woken);
            move || woken.store(true, Ordering::SeqCst)
        });
        let name = format!("m_{}", generation.workers.len());
        let number =
            generation.scheduling.source.join(WorkerInfo { waker, name, device: 0, rate_limiter: None }).unwrap();
        generation.workers.push(Worker { number, doing: Doing::Polling, woken, is_dismissed: false });
    }

    /// Adds a worker, or dismisses one; one always stays.
    fn change_workers(&mut self) {
        let hires = self.random.below(2) == 0;
        let Some(generation) = self.generations.last_mut() else { return };
        let staying = |worker: &&mut Worker| !worker.is_dismissed;
        match generation.workers.iter_mut().filter(staying).count() {
            count if count < 2 || hires && count < 5 => self.hire(),
            count => {
                let chosen = self.random.below(count as u64) as usize;
                if let Some(worker) = generation.workers.iter_mut().filter(staying).nth(chosen) {
                    worker.is_dismissed = true;
                    generation.scheduling.source.dismiss(worker.number);
                }
            }
        }
    }

    fn stop(&mut self, generation: usize) {
        let generation = &mut self.generations[generation];
        if !std::mem::replace(&mut generation.is_stopped, true) {
            generation.scheduling.scheduler.stop();
        }
    }

    fn burst(&mut self) -> Checked {
        let Weather { pause_ns, burst, reload_every, change_every, .. } = self.weather;
        let one_of = |random: &mut Random, every: u64| every > 0 && random.below(every) == 0;
        if one_of(&mut self.random, reload_every) {
            self.add_generation();
        }
        if one_of(&mut self.random, change_every) {
            self.change_workers();
        }
        let count = 1 + self.random.below(burst);
        for _ in 0..count.min(self.weather.requests - self.next_key) {
            self.arrive()?;
        }
        self.next_burst_ns = self.now_ns + self.random.below(2 * pause_ns + 1);
        Ok(())
    }

    fn arrive(&mut self) -> Checked {
        self.next_key += 1;
        let key = self.next_key;
        let post: Arc<dyn Sink> = self.post.clone();
        let mut request = Box::new(Request::new(Completion::new(post, key)));
        request.id = Text::from(key.to_string().as_str());
        (request.stamps.started_ns, request.stamps.queued_ns) = (self.now_ns, self.now_ns);
        let facts = self.rules.arrive(&mut self.random, &mut request);
        let generation = self.generations.len() - 1;
        match self.generations[generation].scheduling.scheduler.enqueue(request) {
            Err(Refused { status, request }) => {
                request.withdraw();
                self.rules.refused(&facts, &status, &waiting(&self.open, &self.generations, generation))
            }
            Ok(Accepted { wake_up, ticket, expires_at_ns }) => {
                self.wake_ups.push(wake_up);
                if let Some(at_ns) = expires_at_ns {
                    self.set_timer(at_ns, Timed::Expiry(key));
                }
                if let Some(patience_ns) = self.rules.patience(&mut self.random) {
                    self.set_timer(self.now_ns + patience_ns, Timed::Cancellation(key));
                }
                let sent = Sent {
                    facts,
                    key,
                    generation,
                    sent_ns: self.now_ns,
                    expires_at_ns,
                    is_answered: false,
                    is_cancelled: false,
                    is_executing: false,
                    ticket: Some(ticket),
                };
                let checked = self.rules.accepted(&sent.facts, &waiting(&self.open, &self.generations, generation));
                self.open.insert(key, sent);
                checked
            }
        }
    }

    fn set_timer(&mut self, at_ns: u64, timed: Timed) {
        self.timer_count += 1;
        self.timers.insert((at_ns, self.timer_count), timed);
    }

    fn poll(&mut self, generation: usize, at: usize) -> Checked {
        let Generation { scheduling, workers, .. } = &mut self.generations[generation];
        let worker = &mut workers[at];
        worker.woken.store(false, Ordering::SeqCst);
        match scheduling.source.poll(worker.number, self.now_ns) {
            Next::Sleep { until_ns } => {
                if until_ns.is_some_and(|until_ns| until_ns <= self.now_ns) {
                    return Err(format!("worker {at} sleeps until a time that is over"));
                }
                worker.doing = Doing::Sleeping { until_ns };
                Ok(())
            }
            Next::Leave => {
                worker.doing = Doing::Gone;
                scheduling.source.left(worker.number);
                Ok(())
            }
            Next::Execute(payload) => {
                worker.doing = Doing::Polling;
                self.collect()?;
                self.begin(generation, at, payload)
            }
        }
    }

    fn begin(&mut self, generation: usize, at: usize, payload: Payload) -> Checked {
        let requests = payload.requests();
        if requests.iter().all(|request| request.ingress.origin != Origin::Client) {
            return Err(format!("worker {at} got a payload without a client's request"));
        }
        for request in requests.iter().filter(|request| request.ingress.origin == Origin::Client) {
            let key = key_of(request);
            let sent = self.open.get_mut(&key).ok_or_else(|| format!("request {key} runs after it was answered"))?;
            if sent.is_answered {
                return Err(format!("request {key} runs although it was answered"));
            }
            if self.rules.expiry_is_strict() && sent.expires_at_ns.is_some_and(|at_ns| at_ns < self.now_ns) {
                return Err(format!("request {key} runs although its time is up"));
            }
            if std::mem::replace(&mut sent.is_executing, true) {
                return Err(format!("request {key} runs twice at a time"));
            }
        }
        let taken: Vec<_> = requests.iter().map(|request| (&**request, self.open.get(&key_of(request)))).collect();
        self.rules.cut(self.now_ns, at, &taken, &waiting(&self.open, &self.generations, generation))?;
        let until_ns = self.now_ns + self.rules.duration_ns(&mut self.random);
        self.generations[generation].workers[at].doing = Doing::Executing { payload, until_ns };
        Ok(())
    }

    fn finish(&mut self, generation: usize, at: usize) {
        let worker = &mut self.generations[generation].workers[at];
        let number = worker.number;
        if let Doing::Executing { mut payload, .. } = std::mem::replace(&mut worker.doing, Doing::Polling) {
            for request in payload.take() {
                match self.rules.execute(&mut self.random, &request) {
                    _ if request.ingress.origin != Origin::Client => request.finish(Response::default()),
                    Reply::Succeed => request.finish(Response::default()),
                    Reply::Fail => request.fail(Status::internal("as it goes")),
                    Reply::Later(by_ns) => self.set_timer(self.now_ns + by_ns, Timed::Answer(request)),
                    Reply::Drop => drop(request),
                    Reply::Again => self.again(request),
                }
            }
        }
        self.generations[generation].scheduling.source.executed(number);
    }

    fn again(&mut self, request: Box<Request>) {
        if let Some(sent) = self.open.get_mut(&key_of(&request)) {
            sent.is_executing = false;
        }
        if let Err((status, request)) = request.reschedule() {
            request.fail(status);
        }
    }

    fn read(&mut self) -> Checked {
        let Some((key, delivery)) = self.mail.pop_front() else { return Ok(()) };
        let sent = self.open.get(&key).ok_or_else(|| format!("request {key} is answered again: {delivery:?}"))?;
        let error = delivery.response.as_ref().and_then(|response| response.error.as_ref());
        if error.is_some_and(|status| status.code == Code::Cancelled)
            && !sent.is_cancelled
            && !self.rules.may_fall_with(sent, &mut self.open.values())
        {
            return Err(format!("request {key} is answered as cancelled, but was not cancelled"));
        }
        self.rules.answered(key, sent, &delivery)?;
        if delivery.last {
            self.open.remove(&key);
        }
        Ok(())
    }

    fn run_job(&mut self, job: Box<dyn Job>) {
        let mut home = AtHome { now_ns: self.now_ns, wake_ups: &mut self.wake_ups, later: Vec::new() };
        job.run(&mut home);
        for (at_ns, job) in home.later {
            self.set_timer(at_ns, Timed::Job(job));
        }
    }

    fn time(&mut self) -> Checked {
        let Some((_, timed)) = self.timers.pop_first() else { return Ok(()) };
        match timed {
            Timed::Job(job) => self.run_job(job),
            Timed::Answer(request) => request.finish(Response::default()),
            Timed::Expiry(key) => self.call_back(key, true),
            Timed::Cancellation(key) => self.call_back(key, false),
        }
        Ok(())
    }

    /// A request timed out, or its client left.
    fn call_back(&mut self, key: u64, is_expiry: bool) {
        let Some(sent) = self.open.get_mut(&key) else { return };
        let Some(ticket) = &sent.ticket else { return };
        let scheduler = &self.generations[sent.generation].scheduling.scheduler;
        sent.is_cancelled |= !is_expiry;
        self.wake_ups.push(if is_expiry { scheduler.expire(ticket) } else { scheduler.cancel(ticket) });
    }

    /// No event is left at this moment.
    fn check_rest(&mut self) -> Checked {
        for (at, generation) in self.generations.iter().enumerate() {
            let asleep = |worker: &Worker| matches!(worker.doing, Doing::Sleeping { .. });
            let idle: Vec<usize> =
                generation.workers.iter().enumerate().filter(|(_, worker)| asleep(worker)).map(|(at, _)| at).collect();
            self.rules.may_rest(self.now_ns, &idle, &waiting(&self.open, &self.generations, at))?;
        }
        Ok(())
    }

    /// Moves the clock to the next event; false if none will ever come.
    fn advance(&mut self) -> bool {
        let workers = self.generations.iter().flat_map(|generation| &generation.workers);
        let of_workers = workers.filter_map(|worker| match &worker.doing {
            Doing::Sleeping { until_ns } => *until_ns,
            Doing::Executing { until_ns, .. } => Some(*until_ns),
            Doing::Polling | Doing::Gone => None,
        });
        let burst = (self.next_key < self.weather.requests).then_some(self.next_burst_ns);
        let timer = self.timers.first_key_value().map(|((at_ns, _), _)| *at_ns);
        let Some(next_ns) = of_workers.chain(burst).chain(timer).min() else { return false };
        self.now_ns = self.now_ns.max(next_ns);
        NOW_NS.set(self.now_ns);
        true
    }
}

fn waiting<'a, F>(open: &'a BTreeMap<u64, Sent<F>>, generations: &[Generation], generation: usize) -> Waiting<'a, F> {
    Waiting { open, generation, is_stopped: generations[generation].is_stopped }
}

fn key_of(request: &Request) -> u64 {
    request.id.to_string().parse().unwrap_or(0)
}
