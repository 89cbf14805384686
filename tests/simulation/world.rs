//! One run: events in the order of a played time, until all requests are over and the server has ended.

mod steps;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Weak};

use nereid_clock::played;
use nereid_memory::Pool;
use nereid_net::Mail;
use nereid_request::never_wait_here;
use nereid_scheduler::ServedModel;
use nereid_scheduler::ensemble::turn::counts;
use smallvec::SmallVec;

use crate::clients::grpc::Grpc;
use crate::clients::http::Http;
use crate::clients::{Habits, Plan};
use crate::ledger::{self, Late, Ledger, MODELS};
use crate::models::{self, Directory, Doing, Generation, Worker};
use crate::network::{Faults, Network, Stir};
use crate::random::Random;
use crate::server::{GRPC, HTTP, SHARDS, Server};
use crate::weather::Weather;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// Where the played time begins; not 0, which stamps take for none.
const BEGINNING_NS: u64 = 1_000 * SECOND;
/// Played time after which a run without progress is stuck.
const STUCK_NS: u64 = 900 * SECOND;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Turn(usize),
    Arrive(usize),
    Read(usize),
    Act(usize),
    Work(usize, usize),
    Late,
    Control,
    Retire,
    Accepted(usize),
}

enum Protocol {
    Http(Box<Http>),
    Grpc(Box<Grpc>),
    /// It sends bytes that make no sense, or stops in the middle.
    Rogue,
}

struct Client {
    link: usize,
    protocol: Protocol,
    habits: Habits,
    is_over: bool,
    reads: bool,
}

/// The figures of a run.
#[derive(Debug, Default, Clone)]
pub struct Figures {
    pub requests: u64,
    pub succeeded: u64,
    pub failed: BTreeMap<String, u64>,
    pub lost: u64,
    pub faults: Faults,
    pub turns: u64,
    pub played_ns: u64,
    /// Steps of ensembles that shards executed, and requests that workers continued behind one.
    pub steps_of_shards: u64,
    pub handed_over: u64,
}

impl Figures {
    pub fn add(&mut self, other: &Figures) {
        self.requests += other.requests;
        self.succeeded += other.succeeded;
        self.lost += other.lost;
        self.turns += other.turns;
        self.played_ns += other.played_ns;
        self.steps_of_shards += other.steps_of_shards;
        self.handed_over += other.handed_over;
        self.faults.add(&other.faults);
        for (reason, count) in &other.failed {
            *self.failed.entry(reason.clone()).or_default() += count;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Traffic,
    Draining { since_ns: u64, failed: bool },
    Stopping,
    Over,
}

pub struct World {
    random: Random,
    weather: Weather,
    now_ns: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    event_count: u64,
    network: Rc<RefCell<Network>>,
    server: Server,
    directory: Arc<Directory>,
    /// Every version that was ever loaded; those that are over are gone.
    generations: Vec<Option<Generation>>,
    live: Vec<usize>,
    any_woken: Arc<AtomicBool>,
    lates: BTreeMap<(u64, u64), Late>,
    acknowledged: [i64; MODELS],
    /// Publications that not every shard uses yet.
    publications: Vec<(Receiver<()>, [i64; MODELS])>,
    clients: Vec<Client>,
    of_link: Vec<usize>,
    next_number: u32,
    phase: Phase,
    /// The time of each shard's next turn.
    turns: [Option<u64>; SHARDS],
    figures: Figures,
    gone: Vec<Weak<ServedModel>>,
    control_due: bool,
    progress: (u64, u64),
}

/// Runs one seed; the error is what went wrong first, with the last events.
pub fn run(seed: u64, requests: u64, is_traced: bool) -> Result<Figures, String> {
    never_wait_here();
    let mut random = Random::new(seed);
    let weather = Weather::of(requests, &mut random);
    let fresh = Ledger {
        random: Some(Random::new(random.next())),
        graphs: random.next(),
        troubles: weather.troubles,
        is_tight: weather.is_tight,
        is_traced,
        ..Ledger::default()
    };
    ledger::with(|ledger| *ledger = fresh);
    played::set(Some(BEGINNING_NS));
    counts::take();
    let mut world = World::new(random, weather);
    let outcome = world.run();
    let mut figures = std::mem::take(&mut world.figures);
    let network_faults = world.network.borrow().faults.clone();
    let described = format!("weather '{}', played {} us", weather.name, (world.now_ns - BEGINNING_NS) / US);
    let rest = outcome.and_then(|()| world.end());
    let rest = rest.and_then(|()| world.check_rest());
    // Requests that models still have end with the ledger.
    let last = ledger::with(std::mem::take);
    played::set(None);
    let counts = counts::take();
    (figures.steps_of_shards, figures.handed_over) = (counts.steps_of_shards, counts.handed_over);
    figures.requests = last.sent;
    figures.succeeded = last.succeeded;
    figures.failed = last.failed.clone();
    figures.lost = last.lost;
    figures.faults.add(&last.faults);
    figures.faults.add(&network_faults);
    let trace: Vec<String> = last.trace.iter().cloned().collect();
    match last.violation.clone().map_or(rest, Err) {
        Ok(()) => Ok(figures),
        Err(failure) => Err(format!("{failure}\n  {described}\n  {}", trace.join("\n  "))),
    }
}

impl World {
    fn new(mut random: Random, weather: Weather) -> World {
        let network = Rc::new(RefCell::new(Network::new(SHARDS)));
        network.borrow_mut().refuse_once_in = weather.refuse_once_in;
        let directory: Arc<Directory> = Arc::default();
        let pool = Pool::new(weather.bounds.pool_bytes);
        let any_woken: Arc<AtomicBool> = Arc::default();
        let load = |model| Some(Generation::load((model, 1), &pool, &directory, &any_woken));
        let generations: Vec<Option<Generation>> = (0..MODELS).map(load).collect();
        let map = models::map(generations.iter().flatten());
        directory.set(Some(Arc::clone(&map)));
        ledger::with(|ledger| ledger.published = [1; MODELS]);
        let server = Server::new((weather.bounds, pool), &map, &network, &mut random);
        let mut world = World {
            random,
            weather,
            now_ns: BEGINNING_NS,
            events: BinaryHeap::new(),
            event_count: 0,
            network,
            server,
            directory,
            live: (0..generations.len()).collect(),
            generations,
            any_woken,
            lates: BTreeMap::new(),
            acknowledged: [1; MODELS],
            publications: Vec::new(),
            clients: Vec::new(),
            of_link: Vec::new(),
            next_number: 0,
            phase: Phase::Traffic,
            turns: [None; SHARDS],
            figures: Figures::default(),
            gone: Vec::new(),
            control_due: false,
            progress: (0, BEGINNING_NS),
        };
        (0..MODELS).for_each(|at| world.poll_all(at));
        (0..weather.clients).for_each(|_| world.add_client());
        world
    }

    fn at(&mut self, in_ns: u64, event: Event) {
        self.event_count += 1;
        // Events of one moment come in an order of the seed's.
        let order = self.random.next() << 32 | self.event_count;
        self.events.push(Reverse((self.now_ns + in_ns, order, event)));
    }

    fn run(&mut self) -> Result<(), String> {
        while self.phase != Phase::Over {
            self.follow();
            let Some(Reverse((at_ns, _, event))) = self.events.pop() else {
                return Err(self.stuck("nothing will ever happen again"));
            };
            self.now_ns = self.now_ns.max(at_ns);
            played::set(Some(self.now_ns));
            self.react(event);
            if let Some(violation) = ledger::with(|ledger| ledger.violation.clone()) {
                return Err(violation);
            }
            self.check_progress()?;
        }
        Ok(())
    }

    fn stuck(&self, what: &str) -> String {
        let open = ledger::with(|ledger| {
            let some: Vec<String> =
                ledger.open.iter().take(5).map(|(number, sent)| format!("{number}: {sent:?}")).collect();
            format!("{} requests are open, {}", ledger.open.len(), some.join("; "))
        });
        format!("{what} in phase {:?}: {open}", self.phase)
    }

    fn check_progress(&mut self) -> Result<(), String> {
        let ended = ledger::with(|ledger| ledger.sent - ledger.open.len() as u64);
        if ended != self.progress.0 || self.phase != Phase::Traffic {
            let Weather { reload_every, replace_every, .. } = self.weather;
            if ended != self.progress.0 && self.phase == Phase::Traffic {
                if self.random.once_in(reload_every) {
                    self.reload();
                }
                if self.random.once_in(replace_every) {
                    self.replace();
                }
            }
            self.progress = (ended, self.now_ns);
        }
        self.figures.played_ns = self.now_ns - BEGINNING_NS;
        match self.now_ns - self.progress.1 > STUCK_NS {
            true => Err(self.stuck("no request has ended for long")),
            false => Ok(()),
        }
    }

    /// Schedules what follows from the last event.
    fn follow(&mut self) {
        let stirs = std::mem::take(&mut self.network.borrow_mut().stirs);
        for stir in stirs {
            match stir {
                Stir::Engine(shard) => self.wake(shard, 0),
                Stir::Readable(link) => {
                    let client = self.of_link[link];
                    if self.clients[client].link == link && !std::mem::replace(&mut self.clients[client].reads, true) {
                        let latency_ns = self.random.between(1, 30) * US;
                        self.at(latency_ns, Event::Read(client));
                    }
                }
            }
        }
        for shard in 0..SHARDS {
            if self.server.has_mail(shard) {
                self.wake(shard, 0);
            }
        }
        self.follow_models();
        if !self.control_due && !self.server.jobs.lock().expect("one thread").is_empty() {
            self.control_due = true;
            self.at(20 * US, Event::Control);
        }
    }

    fn follow_models(&mut self) {
        let live = match self.any_woken.swap(false, Ordering::Relaxed) {
            true => self.live.clone(),
            false => Vec::new(),
        };
        for at in live {
            let Some(generation) = &mut self.generations[at] else { continue };
            let is_woken = |worker: &Worker| worker.woken.load(Ordering::Relaxed);
            let asleep = |worker: &Worker| matches!(worker.doing, Doing::Sleeping { .. });
            let mut woken: SmallVec<[usize; 4]> = SmallVec::new();
            for (number, worker) in generation.workers.iter_mut().enumerate() {
                if asleep(worker) && is_woken(worker) {
                    worker.doing = Doing::Polling;
                    woken.push(number);
                }
            }
            for worker in woken {
                let in_ns = self.random.below(5) * US;
                self.at(in_ns, Event::Work(at, worker));
            }
        }
        for (at_ns, late) in ledger::with(|ledger| std::mem::take(&mut ledger.late)) {
            self.event_count += 1;
            self.lates.insert((at_ns, self.event_count), late);
            self.at(at_ns.saturating_sub(self.now_ns), Event::Late);
        }
    }

    /// A shard has a turn in at most so many nanoseconds.
    fn wake(&mut self, shard: usize, in_ns: u64) {
        let at_ns = self.now_ns + in_ns;
        if self.turns[shard].is_none_or(|planned_ns| planned_ns > at_ns) {
            self.turns[shard] = Some(at_ns);
            let late_ns = if self.random.once_in(8) { self.random.below(20) * US } else { 0 };
            self.at(in_ns + late_ns, Event::Turn(shard));
        }
    }

    fn turn(&mut self, shard: usize) {
        self.turns[shard] = None;
        self.figures.turns += 1;
        let moved = self.server.turn(shard, true);
        let engine = &self.server.engines[shard];
        let is_parked = engine.is_parked.get();
        if is_parked && !engine.is_refused.get() && self.server.forgotten_sends(shard) > 0 {
            ledger::with(|ledger| ledger.violate(format!("shard {shard} sleeps over the end of a send")));
        }
        // A turn with work may park behind it: then nothing but an event, mail or a deadline leads to the next one.
        if moved && !is_parked {
            return self.wake(shard, 500);
        }
        let engine_due = self.server.engines[shard].due_ns.get();
        let due = [engine_due, self.server.next_deadline_ns(shard)].into_iter().flatten().min();
        if let Some(at_ns) = due {
            self.wake(shard, at_ns.saturating_sub(self.now_ns).max(US));
        }
    }

    fn react(&mut self, event: Event) {
        match event {
            Event::Turn(shard) => {
                if self.turns[shard].is_some_and(|planned_ns| planned_ns <= self.now_ns) {
                    self.turn(shard);
                    self.settle();
                }
            }
            Event::Arrive(link) => {
                let most = if self.random.once_in(3) { self.random.between(1, 200) as usize } else { usize::MAX };
                if self.network.borrow_mut().arrive(link, most) {
                    let gap_ns = self.random.below(10) * US;
                    self.at(gap_ns, Event::Arrive(link));
                }
            }
            Event::Read(client) => self.read(client),
            Event::Act(client) => self.act(client),
            Event::Work(at, worker) => self.work(at, worker),
            Event::Late => self.late(),
            Event::Control => {
                self.control_due = false;
                self.server.run_job();
            }
            Event::Retire => self.retire(),
            Event::Accepted(client) => self.check_accepted(client),
        }
    }

    fn settle(&mut self) {
        self.acknowledge();
        match self.phase {
            Phase::Traffic => {
                let is_over = ledger::with(|ledger| {
                    ledger.sent >= self.weather.requests && (self.weather.ends_early || ledger.open.is_empty())
                });
                if is_over && (self.weather.ends_early || self.clients.iter().all(|client| client.is_over)) {
                    ledger::with(|ledger| {
                        ledger.is_draining = true;
                        ledger.note(|| "the server drains".to_owned());
                    });
                    if self.random.once_in(2) {
                        self.server.tell(|| Mail::Leave);
                    }
                    self.server.tell(|| Mail::Drain);
                    self.phase = Phase::Draining { since_ns: self.now_ns, failed: false };
                    (0..SHARDS).for_each(|shard| self.wake(shard, 0));
                    self.at(30 * SECOND, Event::Retire);
                }
            }
            Phase::Draining { since_ns, failed } => {
                let waits_ns = self.now_ns - since_ns;
                // Clients that read nothing keep their connections busy for good.
                if !self.server.is_busy() && waits_ns > SECOND || waits_ns > 60 * SECOND {
                    self.phase = Phase::Stopping;
                    self.server.tell(|| Mail::Stop);
                } else if waits_ns > 29 * SECOND && !failed {
                    self.phase = Phase::Draining { since_ns, failed: true };
                    self.server.tell(|| Mail::FailUnanswered);
                }
                (0..SHARDS).for_each(|shard| self.wake(shard, 100 * MS));
            }
            Phase::Stopping if self.server.has_stopped() => self.phase = Phase::Over,
            Phase::Stopping => (0..SHARDS).for_each(|shard| self.wake(shard, 100 * MS)),
            Phase::Over => {}
        }
    }
}
