//! Measures choices on the scratch server: brings the models into the configuration of a choice, loads them with the
//! load generator for one burst of slices, and keeps what came of it as a point.
//!
//! A choice that does not load, that ends the server or that has too much memory is a point with the reason. Points of
//! an earlier run are given back burst by burst before anything is measured again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::configuration::ModelFacts;
use super::goal::{Goal, Reference};
use super::interrupt::Interrupt;
use super::point::{ModelFigures, Point, SLICES, Spans};
use super::process::{Usage, usage};
use super::search::{Burst, Measure, Phase, Stop};
use super::server::{CallFailure, ScratchDirectory, ScratchServer, ServerPlan};
use super::space::{Choice, FieldKind, Level, Space};
use super::statistics::{Interval, percentile};
use super::traffic::Traffic;
use nereid_client::Endpoint;
use nereid_perf::{
    Client, Load, Measurement, PerfError, Progress, Protocol, Rules, ServerSide, Service, Spacing, Stage, Step, Sweep,
    Target, Window,
};

/// Parts of the budget at which the search and the measurements of the last candidates end.
const SEARCH_PART: f64 = 0.55;
const FINAL_PART: f64 = 0.65;
/// Slices of a budget: its length by this is the length of a slice.
const SLICES_OF_BUDGET: f64 = 240.0;
const SLICE_MIN: Duration = Duration::from_millis(100);
const SLICE_MAX: Duration = Duration::from_secs(2);
/// Requests that a slice shall have at least.
const REQUESTS_OF_SLICE: f64 = 20.0;
/// Of an open loop, the time whose requests warm the server up, and how many of them at most.
const WARM_UP_SECONDS: f64 = 0.2;
const WARM_UP_REQUESTS_MAX: f64 = 16.0;
/// Added to the seed in the last comparison, whose times are others than those of the search.
const PAIRS_SEED: u64 = 1000;
/// Requests in flight, of one model.
const CONCURRENCY_MAX: u64 = 1024;
/// The longest time that a load request, or a call, may take.
const LOAD_MAX: Duration = Duration::from_secs(300);
const LOAD_MIN: Duration = Duration::from_secs(10);
const CALL_MAX: Duration = Duration::from_secs(30);
/// By how much a run may be longer than a quarter more than its budget.
const GRACE: Duration = Duration::from_secs(10);
/// How long requests of an open loop are waited for behind the last slice: of a load that is too high there are many.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// Between two looks at others that are awaited.
const MEETING_LOOK: Duration = Duration::from_millis(1);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Different points of one run.
const POINTS_MAX: usize = 20_000;

/// What is told while it goes on.
pub type Tell<'a> = Box<dyn FnMut(&Told<'_>) + 'a>;

/// The state behind a burst.
pub struct Told<'a> {
    pub points: &'a [Point],
    /// Where the point of the burst is.
    pub at: usize,
    /// Points of an earlier run that are not taken over, or not to their end.
    pub left: &'a BTreeMap<String, Point>,
}

/// What a run is about: the same for all of its measurements.
#[derive(Clone, Copy)]
pub struct Bench<'a> {
    pub space: &'a Space,
    pub goal: &'a Goal,
    pub server_plan: &'a ServerPlan,
    pub directory: &'a ScratchDirectory,
    pub interrupt: &'a Interrupt,
    /// Models that get load.
    pub targets: &'a [ModelFacts],
    /// Models whose configuration changes; what others are made of stands first.
    pub tuned: &'a [ModelFacts],
    pub traffic: &'a [Traffic],
    pub memory_max_bytes: Option<u64>,
    pub seed: u64,
    pub began: Instant,
    pub budget: Duration,
    /// The length of a slice, unless the model is slow.
    pub slice: Duration,
}

pub struct Measurer<'a> {
    bench: Bench<'a>,
    server: Option<ScratchServer>,
    /// In the order in which they were begun.
    pub points: Vec<Point>,
    choices: BTreeMap<String, usize>,
    /// Of an earlier run, by their keys, as long as there is a burst left of them.
    pub remembered: BTreeMap<String, Point>,
    /// Seconds of bursts that were not measured again.
    saved_seconds: f64,
    reference: Option<Reference>,
    slice: Duration,
    /// What each model is loaded with.
    loaded: BTreeMap<String, serde_json::Value>,
    server_flag: Option<String>,
    empty_rss_bytes: u64,
    /// Each configuration has a server of its own, so that memory is that of this configuration alone.
    is_fresh: bool,
    /// The number of the pair that is measured, in the last comparison.
    pair: Option<usize>,
    /// Bursts that were really measured.
    pub measured: usize,
    tell: Tell<'a>,
}

/// The length of a slice for a budget.
pub fn slice_of(budget: Duration) -> Duration {
    budget.div_f64(SLICES_OF_BUDGET).clamp(SLICE_MIN, Duration::from_millis(1000))
}

/// Where several loads wait for each other, so that their slices are of the same time.
struct Meeting {
    expected: usize,
    /// Those that wait, or have ended before.
    arrived: AtomicUsize,
}

/// Ends a load when the run shall end, or when what is in flight takes too long behind the last slice. Reads what the
/// server uses at both ends of the slices.
struct Watch<'a> {
    interrupt: &'a Interrupt,
    deadline: Instant,
    drain_max: Duration,
    is_drained: bool,
    /// The server; several loads at a time have one watch that reads.
    pid: Option<u32>,
    meeting: &'a Meeting,
    /// Stages before the first slice.
    warm_ups_left: u32,
    began: Option<(Instant, Usage)>,
    ended: Option<(Instant, Usage)>,
}

impl Watch<'_> {
    /// Seconds between both ends, CPU seconds in them, and the memory at the end.
    fn used(&self) -> Option<(f64, f64, u64)> {
        let ((began, before), (ended, after)) = (self.began?, self.ended?);
        let seconds = ended.saturating_duration_since(began).as_secs_f64();
        Some((seconds, (after.cpu_seconds - before.cpu_seconds).max(0.0), after.rss_bytes))
    }

    /// The last stage before the slices is over, or there are none.
    fn arrive(&mut self) {
        self.warm_ups_left = 0;
        self.meeting.arrived.fetch_add(1, Ordering::Relaxed);
    }

    /// The load goes on meanwhile.
    fn meet(&mut self) {
        self.arrive();
        while self.meeting.arrived.load(Ordering::Relaxed) < self.meeting.expected && !self.stop_wanted() {
            std::thread::sleep(MEETING_LOOK);
        }
    }
}

impl Progress for Watch<'_> {
    fn step(&mut self, step: Step) {
        self.is_drained |= step.stage == Stage::Drain && step.elapsed > self.drain_max;
        if step.stage == Stage::WarmUp && step.done >= 1.0 && self.warm_ups_left > 0 {
            self.warm_ups_left -= 1;
            if self.warm_ups_left == 0 {
                self.meet();
            }
        }
        let Some(pid) = self.pid.filter(|_| step.done >= 1.0) else { return };
        match step.stage {
            Stage::WarmUp => self.began = Some((Instant::now(), usage(pid))),
            Stage::Trial(_) => self.ended = Some((Instant::now(), usage(pid))),
            Stage::Drain => {}
        }
    }

    fn stop_wanted(&mut self) -> bool {
        self.is_drained || self.interrupt.is_raised() || Instant::now() >= self.deadline
    }
}

/// How a burst ends without figures.
enum Left {
    /// The point is one that failed.
    Failed(String),
    Stopped(Stop),
}

impl<'a> Measurer<'a> {
    /// With a server that has the models loaded as they are in their repositories.
    pub fn new(
        bench: Bench<'a>,
        server: ScratchServer,
        remembered: BTreeMap<String, Point>,
        tell: Tell<'a>,
    ) -> Measurer<'a> {
        let is_fresh = bench.goal.is_about_memory() || bench.memory_max_bytes.is_some();
        let baseline = bench.space.baseline();
        let loaded = bench.tuned.iter().map(|facts| (facts.name.clone(), facts.changed(bench.space, &baseline)));
        Measurer {
            loaded: loaded.collect(),
            empty_rss_bytes: server.empty_rss_bytes,
            slice: bench.slice,
            bench,
            server: Some(server),
            points: Vec::new(),
            choices: BTreeMap::new(),
            remembered,
            saved_seconds: 0.0,
            reference: None,
            server_flag: None,
            is_fresh,
            pair: None,
            measured: 0,
            tell,
        }
    }

    /// A short load of the present configuration, which is no point.
    pub fn probe(&mut self) -> Result<Point, Stop> {
        let baseline = self.bench.space.baseline();
        self.load(&baseline, self.bench.seed).map_err(|left| match left {
            Left::Failed(reason) => Stop::Failed(format!("the present configuration cannot be measured: {reason}")),
            Left::Stopped(stop) => stop,
        })
    }

    pub fn into_server(self) -> Option<ScratchServer> {
        self.server
    }

    /// When a load ends, whatever it is for.
    fn hard_end(&self) -> Instant {
        self.bench.began + self.bench.budget.mul_f64(1.25) + GRACE
    }

    /// Seconds of the run, with those that an earlier one needed for what is not measured again.
    pub fn elapsed(&self) -> f64 {
        self.bench.began.elapsed().as_secs_f64() + self.saved_seconds
    }

    fn ends_at(&self, part: f64) -> f64 {
        self.bench.budget.as_secs_f64() * part
    }

    /// The number of the point of a choice.
    pub fn number(&self, choice: &Choice) -> Option<usize> {
        self.point(choice).map(|point| point.number)
    }

    /// The point of a choice, if it has one.
    pub fn point(&self, choice: &Choice) -> Option<&Point> {
        self.points.get(*self.choices.get(&self.bench.space.key(choice))?)
    }

    fn place(&mut self, key: &str, choice: &Choice) -> Result<usize, Stop> {
        if let Some(at) = self.choices.get(key) {
            return Ok(*at);
        }
        if self.points.len() >= POINTS_MAX {
            return Err(Stop::Failed(format!("more than {POINTS_MAX} points; limit the space with --set")));
        }
        let at = self.points.len();
        self.points.push(Point {
            number: at + 1,
            changes: self.bench.space.changes(choice),
            load: self.bench.space.level(choice).to_string(),
            ..Point::default()
        });
        self.choices.insert(key.to_owned(), at);
        Ok(at)
    }

    /// The next burst of an earlier run, if it has one more.
    fn remembered_burst(&mut self, key: &str, had: usize) -> Option<Point> {
        let whole = self.remembered.get(key)?;
        self.saved_seconds += *whole.burst_seconds.get(had)?;
        let part = whole.part(had);
        if had + 1 >= whole.bursts() {
            self.remembered.remove(key);
        }
        Some(part)
    }

    /// The seed of a burst: the same for all choices, so that none has easier times of requests.
    fn seed_of(&self, choice: &Choice, had: usize) -> u64 {
        if !matches!(self.bench.space.level(choice), Level::Rate(_)) {
            return self.bench.seed;
        }
        let number = match self.pair {
            Some(pair) => PAIRS_SEED.wrapping_add(pair as u64),
            None => had as u64,
        };
        self.bench.seed.wrapping_add(number)
    }

    /// Concurrency of one model, or its rate.
    fn load_of(&self, choice: &Choice, target: &ModelFacts, traffic: &Traffic) -> Load {
        let level = self.bench.space.level(choice);
        let concurrency = |count: u64| {
            let count = usize::try_from(count.clamp(1, CONCURRENCY_MAX)).unwrap_or(1);
            Load::Concurrency(Sweep { start: count, end: Some(count), step: 1 })
        };
        match level {
            Level::Follows(divisor) => {
                let width = self.width(choice, target);
                concurrency(2 * width / u64::from(divisor.max(1)))
            }
            Level::Concurrency(count) => concurrency(count as u64),
            Level::Rate(rate) => {
                let rate = (rate * traffic.share).max(1e-3);
                Load::Rate { sweep: Sweep { start: rate, end: Some(rate), step: 1.0 }, spacing: Spacing::Poisson }
            }
        }
    }

    /// Requests that are worked on at a time: for an ensemble, by its widest model.
    fn width(&self, choice: &Choice, target: &ModelFacts) -> u64 {
        if !target.is_ensemble() {
            return target.width(self.bench.space, choice);
        }
        self.bench.tuned.iter().map(|facts| facts.width(self.bench.space, choice)).max().unwrap_or(1)
    }

    /// The memory that the choice will need, by that of the points so far.
    fn predicted_bytes(&self, choice: &Choice) -> Option<u64> {
        let instances = |choice: &Choice| -> u64 {
            self.bench.tuned.iter().map(|facts| facts.instances_of(self.bench.space, choice)).sum()
        };
        let wanted = instances(choice);
        let baseline = Choice { load: 0, ..self.bench.space.baseline() };
        let known = self.points.first().filter(|point| point.failure.is_none())?.memory_bytes()?;
        let had = instances(&baseline).max(1);
        if wanted <= had {
            return None;
        }
        let each = known.saturating_sub(self.empty_rss_bytes) / had;
        Some(self.empty_rss_bytes.saturating_add(each.saturating_mul(wanted)))
    }

    fn fits_in_memory(&self, choice: &Choice) -> Result<(), Left> {
        let (Some(most), Some(predicted)) = (self.bench.memory_max_bytes, self.predicted_bytes(choice)) else {
            return Ok(());
        };
        match predicted > most {
            true => Err(Left::Failed(format!(
                "does not fit: {} MiB are predicted, {} MiB are allowed",
                predicted >> 20,
                most >> 20
            ))),
            false => Ok(()),
        }
    }

    /// The scratch server, started again if it is gone or needs another flag.
    fn start(&mut self, choice: &Choice) -> Result<(), Left> {
        let at = self.bench.space.position(None, &FieldKind::RunToCompletion);
        let flag = at.filter(|at| {
            let start = self.bench.space.fields.get(*at).map(|field| field.start);
            choice.values.get(*at).copied() != start
        });
        let flag =
            flag.and_then(|at| self.bench.space.value(choice, at)).map(|value| format!("--run-to-completion={value}"));
        let is_gone = self.server.as_mut().is_none_or(|server| server.ended().is_some());
        let differs =
            |facts: &ModelFacts| self.loaded.get(&facts.name) != Some(&facts.changed(self.bench.space, choice));
        let is_used = self.is_fresh && self.bench.tuned.iter().any(differs);
        if is_gone || is_used || flag != self.server_flag {
            self.server = None;
            self.loaded.clear();
            let mut plan: ServerPlan = self.bench.server_plan.clone();
            plan.more.extend(flag.clone());
            let started = ScratchServer::start(&plan, self.bench.directory, self.bench.interrupt);
            let server = started.map_err(|error| match error {
                super::TuneError::Interrupted => Left::Stopped(Stop::Interrupted),
                error => Left::Stopped(Stop::Failed(error.to_string())),
            })?;
            self.server_flag = flag;
            self.server = Some(server);
        }
        Ok(())
    }

    /// Brings all models into the configuration of a choice: those that ensembles are made of first.
    fn configure(&mut self, choice: &Choice) -> Result<(), Left> {
        self.start(choice)?;
        let (interrupt, space) = (self.bench.interrupt, self.bench.space);
        let Some(mut server) = self.server.take() else { return Err(Left::Failed("no scratch server".to_owned())) };
        // A load that takes longer than the rest of the run is none that is worth waiting for.
        let patience = self.hard_end().saturating_duration_since(Instant::now()).clamp(LOAD_MIN, LOAD_MAX);
        let mut outcome = Ok(());
        for facts in self.bench.tuned {
            let wanted = facts.changed(space, choice);
            if self.loaded.get(&facts.name) == Some(&wanted) {
                continue;
            }
            // What is loaded is not known while the request is under way.
            self.loaded.remove(&facts.name);
            outcome = server.load(&facts.name, Some(&wanted), patience, interrupt);
            if outcome.is_err() {
                break;
            }
            self.loaded.insert(facts.name.clone(), wanted);
        }
        let ensembles = self.bench.targets.iter().filter(|target| target.is_ensemble());
        for target in ensembles {
            // The server takes an ensemble out of service whose parts do not fit, and brings it back with them.
            let ready = outcome.clone().and_then(|()| server.is_ready(&target.name, CALL_MAX, interrupt));
            outcome = match ready {
                Ok(true) => Ok(()),
                Ok(false) => server.load(&target.name, None, patience, interrupt),
                Err(failure) => Err(failure),
            };
        }
        self.server = Some(server);
        outcome.map_err(|failure| self.left(failure))
    }

    fn left(&mut self, failure: CallFailure) -> Left {
        match failure {
            CallFailure::Interrupted => Left::Stopped(Stop::Interrupted),
            CallFailure::Refused(text) => Left::Failed(format!("does not load: {text}")),
            CallFailure::Gone(text) => {
                self.server = None;
                self.loaded.clear();
                Left::Failed(text)
            }
        }
    }

    /// The load of one model. The endpoints are those of HTTP and gRPC.
    fn plan_of(
        &self,
        choice: &Choice,
        target: &ModelFacts,
        traffic: &Traffic,
        seed: u64,
        (http, grpc): (&Endpoint, Option<&Endpoint>),
    ) -> nereid_perf::Plan {
        let load = self.load_of(choice, target, traffic);
        let warm_up_requests = match &load {
            Load::Concurrency(sweep) => sweep.start as u64,
            // Of a rate that is too high, few.
            Load::Rate { sweep, .. } => (sweep.start * WARM_UP_SECONDS).min(WARM_UP_REQUESTS_MAX) as u64,
            Load::Intervals(_) | Load::Recorded(_) => 0,
        };
        // More than is due within the limit of the latency, or within half a second, is a load that is too high.
        let limit_s = self.bench.goal.slo.map_or(0.0, |slo| slo.p99_ms / 1e3);
        let outstanding_max = match &load {
            Load::Rate { sweep, .. } => (sweep.start * (2.0 * limit_s).max(0.5)).clamp(64.0, 16_384.0) as usize,
            Load::Concurrency(_) | Load::Intervals(_) | Load::Recorded(_) => Client::default().outstanding_max,
        };
        let endpoint = match (traffic.is_decoupled, grpc) {
            (true, Some(grpc)) => grpc.clone(),
            _ => http.clone(),
        };
        let protocol = if traffic.is_decoupled { Protocol::GrpcStream } else { Protocol::Http };
        nereid_perf::Plan {
            target: Target { endpoint, tls: None, protocol },
            service: Service::Triton,
            model: target.name.clone(),
            version: String::new(),
            work: traffic.work.clone(),
            load,
            rules: Rules {
                window: Window::Time(self.slice),
                // Windows that agree end nothing: all of them count.
                stability_percent: 0.0,
                trials_max: SLICES as u32,
                percentile: Some(99.0),
                warm_up_requests,
                seed,
                ..Rules::default()
            },
            client: Client { request_timeout: REQUEST_TIMEOUT, outstanding_max, ..Client::default() },
            server_statistics: true,
            composing_models: match target.is_ensemble() {
                true => self.bench.tuned.iter().map(|facts| facts.name.clone()).collect(),
                false => Vec::new(),
            },
            metrics: None,
            records_max: 0,
        }
    }

    /// One burst of all models at a time.
    fn load(&mut self, choice: &Choice, seed: u64) -> Result<Point, Left> {
        let hard_end = self.hard_end();
        let Some(server) = self.server.as_mut() else { return Err(Left::Failed("no scratch server".to_owned())) };
        let (http, grpc, pid) = (server.http.clone(), server.grpc.clone(), server.pid());
        let before = server.usage();
        let began = Instant::now();
        let mut plans = Vec::new();
        for (target, traffic) in self.bench.targets.iter().zip(self.bench.traffic) {
            plans.push(self.plan_of(choice, target, traffic, seed, (&http, grpc.as_ref())));
        }
        let interrupt = self.bench.interrupt;
        let is_open = matches!(self.bench.space.level(choice), Level::Rate(_));
        let drain_max = if is_open { DRAIN_MAX } else { REQUEST_TIMEOUT };
        let meeting = Meeting { expected: plans.len(), arrived: AtomicUsize::new(0) };
        let run = |at: usize, plan: &nereid_perf::Plan| {
            let pid = (at == 0).then_some(pid);
            let mut watch = Watch {
                interrupt,
                deadline: hard_end,
                drain_max,
                is_drained: false,
                pid,
                meeting: &meeting,
                // Connections settle behind the requests that warm it up.
                warm_ups_left: 1 + u32::from(plan.rules.warm_up_requests > 0),
                began: None,
                ended: None,
            };
            let outcome = nereid_perf::run(plan, &mut watch);
            // Others do not wait for one that has ended before.
            if watch.warm_ups_left > 0 {
                watch.arrive();
            }
            (outcome, watch.used())
        };
        let run = &run;
        let panicked = || (Err(PerfError::Plan("the load generator panicked".to_owned())), None);
        type Ran = (Result<Vec<Measurement>, PerfError>, Option<(f64, f64, u64)>);
        let ran: Vec<Ran> = match plans.as_slice() {
            [plan] => vec![run(0, plan)],
            several => std::thread::scope(|scope| {
                let spawn = |(at, plan)| scope.spawn(move || run(at, plan));
                let threads: Vec<_> = several.iter().enumerate().map(spawn).collect();
                threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
            }),
        };
        let used = ran.first().and_then(|(_, used)| *used);
        let outcomes = ran.into_iter().map(|(outcome, _)| outcome);
        if interrupt.is_raised() {
            return Err(Left::Stopped(Stop::Interrupted));
        }
        if Instant::now() >= hard_end {
            return Err(Left::Stopped(Stop::Budget));
        }
        let wall = began.elapsed().as_secs_f64();
        let after = self.server.as_ref().map(ScratchServer::usage).unwrap_or_default();
        if let Some(status) = self.server.as_mut().and_then(ScratchServer::ended) {
            let reason = self.server.as_ref().map(ScratchServer::reason).unwrap_or_default();
            self.server = None;
            self.loaded.clear();
            return Err(Left::Failed(format!("the server ended under load ({status}): {reason}")));
        }
        // A load that ended early has the time of the whole of it.
        let whole = (wall, (after.cpu_seconds - before.cpu_seconds).max(0.0), after.rss_bytes);
        let (seconds, cpu_seconds, rss_bytes) = used.unwrap_or(whole);
        let (seconds, cpu_seconds) = (vec![seconds], vec![cpu_seconds]);
        let mut point = Point { rss_bytes: vec![rss_bytes], seconds, cpu_seconds, ..Point::default() };
        let (mut in_flight, mut rate) = (0u64, 0.0);
        let (mut is_generator_limited, mut is_unsustainable) = (false, false);
        for ((outcome, plan), target) in outcomes.zip(&plans).zip(self.bench.targets) {
            let measured = outcome.map_err(|error| Left::Failed(error.to_string()))?;
            let Some(measured) = measured.into_iter().next() else {
                return Err(Left::Failed(format!("model '{}' answered no request in time", target.name)));
            };
            match &plan.load {
                Load::Concurrency(sweep) => in_flight += sweep.start as u64,
                Load::Rate { sweep, .. } => rate += sweep.start,
                Load::Intervals(_) | Load::Recorded(_) => {}
            }
            is_generator_limited |= measured.limits.client_is_bottleneck();
            is_unsustainable |= measured.limits.unsustainable;
            point.models.push(figures(&target.name, &measured));
        }
        (point.generator_limited, point.unsustainable) = (vec![is_generator_limited], vec![is_unsustainable]);
        if is_unsustainable {
            // It ended early. A burst has always so many slices.
            for model in &mut point.models {
                model.slice_rates.resize(SLICES, 0.0);
                model.slice_p99_ms.resize(SLICES, None);
            }
        }
        let slices = point.models.iter().map(|model| model.slice_rates.len()).min().unwrap_or(0);
        if slices < SLICES {
            return Err(Left::Failed("the load ended before its time".to_owned()));
        }
        let sum = |at: usize| point.models.iter().filter_map(|model| model.slice_rates.get(at)).sum::<f64>();
        point.slice_rates = (0..slices).map(sum).collect();
        point.concurrency = (!is_open).then_some(in_flight);
        point.rate = is_open.then_some(rate);
        Ok(point)
    }

    /// One burst: the configuration, the load, and whether the figures count.
    fn measure(&mut self, choice: &Choice, had: usize) -> Result<Point, Left> {
        self.fits_in_memory(choice)?;
        self.configure(choice)?;
        let mut point = self.load(choice, self.seed_of(choice, had))?;
        if let (Some(most), Some(bytes)) = (self.bench.memory_max_bytes, point.memory_bytes())
            && bytes > most
        {
            point.failure = Some(format!("does not fit: it has {} MiB, {} MiB are allowed", bytes >> 20, most >> 20));
        }
        if point.completed() == 0 {
            let error = point.models.iter().find_map(|model| model.error.clone());
            point.failure = Some(match error {
                Some(error) => format!("all {} requests failed: {error}", point.failed()),
                None => "no request was answered".to_owned(),
            });
        }
        Ok(point)
    }

    /// Slices of slow models are longer, so that each has some requests, of each model.
    fn adapt_slice(&mut self, burst: &Point) {
        let mean = |model: &ModelFigures| Interval::of(&model.slice_rates).map(|interval| interval.mean);
        let rate = burst.models.iter().filter_map(mean).fold(f64::INFINITY, f64::min);
        if rate > 0.0 && rate.is_finite() {
            let wanted = Duration::from_secs_f64((REQUESTS_OF_SLICE / rate).min(SLICE_MAX.as_secs_f64()));
            self.slice = self.slice.max(wanted);
        }
    }
}

impl Measure for Measurer<'_> {
    fn burst(&mut self, choice: &Choice) -> Result<Burst, Stop> {
        if self.bench.interrupt.is_raised() {
            return Err(Stop::Interrupted);
        }
        if Instant::now() >= self.hard_end() {
            return Err(Stop::Budget);
        }
        let key = self.bench.space.key(choice);
        let at = self.place(&key, choice)?;
        let had = self.points.get(at).map_or(0, Point::bursts);
        let burst = match self.remembered_burst(&key, had) {
            Some(burst) => burst,
            None => {
                let began = Instant::now();
                let outcome = self.measure(choice, had);
                let mut burst = match outcome {
                    Ok(burst) => burst,
                    Err(Left::Failed(reason)) => Point { failure: Some(reason), ..Point::default() },
                    Err(Left::Stopped(stop)) => {
                        // A point without a burst is none.
                        if had == 0 && at + 1 == self.points.len() {
                            self.points.pop();
                            self.choices.remove(&key);
                        }
                        return Err(stop);
                    }
                };
                burst.burst_seconds = vec![began.elapsed().as_secs_f64()];
                self.measured += 1;
                burst
            }
        };
        if self.reference.is_none() {
            self.adapt_slice(&burst);
        }
        let Some(point) = self.points.get_mut(at) else { return Err(Stop::Failed("a point is lost".to_owned())) };
        point.add(&burst);
        let point = point.clone();
        (self.tell)(&Told { points: &self.points, at, left: &self.remembered });
        let reference = match &self.reference {
            Some(reference) => reference.clone(),
            None => {
                let reference = Reference::of(&point);
                // It is fixed with the second burst of the first point.
                if point.failure.is_some() || point.bursts() >= 2 || self.points.len() > 1 {
                    self.reference = Some(reference.clone());
                }
                reference
            }
        };
        if let Some(reason) = &point.failure {
            return Ok(Burst::Failed(reason.clone()));
        }
        if point.is_generator_limited() {
            let reason = "the load generator was the limit or sent requests late, so that the figures do not count \
                          (give a lower load with --rate or --concurrency)";
            return Ok(Burst::Failed(reason.to_owned()));
        }
        let judged = self.bench.goal.judge(&point, &reference);
        let others = judged.values.len().saturating_sub(judged.of_burst);
        let last = judged.values.get(others..).unwrap_or_default().to_vec();
        Ok(Burst::Measured {
            all: judged.values,
            last,
            standing: judged.standing,
            excess: judged.excess,
            limit_used: self.bench.goal.limit_used(&burst),
        })
    }

    fn may_go_on(&self, phase: Phase) -> bool {
        let part = match phase {
            Phase::Search => SEARCH_PART,
            Phase::Final => FINAL_PART,
            Phase::Confirm => 1.0,
        };
        !self.bench.interrupt.is_raised() && self.elapsed() < self.ends_at(part)
    }

    fn is_least_load(&self, choice: &Choice) -> bool {
        let mut loads = self.bench.targets.iter().zip(self.bench.traffic);
        loads.all(|(target, traffic)| match self.load_of(choice, target, traffic) {
            Load::Concurrency(sweep) => sweep.start <= 1,
            Load::Rate { .. } | Load::Intervals(_) | Load::Recorded(_) => false,
        })
    }

    fn begin_pair(&mut self, number: usize) {
        self.pair = Some(number);
    }

    fn is_remembered(&self, choice: &Choice) -> bool {
        self.remembered.contains_key(&self.bench.space.key(choice))
    }

    fn forget(&mut self, choice: &Choice) {
        self.remembered.remove(&self.bench.space.key(choice));
    }
}

fn spans(side: &ServerSide) -> Spans {
    Spans {
        model: side.model.clone(),
        inferences: side.inferences,
        executions: side.executions,
        queue_us: side.queue.mean_us(),
        compute_input_us: side.compute_input.mean_us(),
        compute_infer_us: side.compute_infer.mean_us(),
        compute_output_us: side.compute_output.mean_us(),
    }
}

fn figures(model: &str, measured: &Measurement) -> ModelFigures {
    let rate = |window: &nereid_perf::WindowFigures| {
        let seconds = window.wall.as_secs_f64();
        if seconds > 0.0 { window.completed as f64 / seconds } else { 0.0 }
    };
    let p99 = |window: &nereid_perf::WindowFigures| (window.completed > 0).then_some(window.judged_ns / 1e6);
    let latencies = &measured.histograms.latency_ns;
    let mut latency_us: BTreeMap<u64, u64> = BTreeMap::new();
    for value in latencies.iter_recorded() {
        // Three digits are enough, and keep the file short.
        let us = value.value_iterated_to().div_ceil(1000);
        let unit = 10u64.pow(us.max(1).ilog10().saturating_sub(2));
        *latency_us.entry(us / unit * unit).or_default() += value.count_since_last_iteration();
    }
    let latency_us: Vec<(u64, u64)> = latency_us.into_iter().collect();
    let error = measured.errors.counts.iter().max_by_key(|(_, count)| **count).map(|(text, _)| text.clone());
    ModelFigures {
        model: model.to_owned(),
        completed: measured.counts.completed,
        failed: measured.counts.failed,
        burst_counts: vec![(measured.counts.completed, measured.counts.failed)],
        burst_p99_ms: vec![percentile(&latency_us, 99.0).map(|us| us / 1e3)],
        error,
        slice_rates: measured.windows.iter().filter(|window| window.counted).map(rate).collect(),
        slice_p99_ms: measured.windows.iter().filter(|window| window.counted).map(p99).collect(),
        latency_us,
        spans: measured.server.iter().chain(&measured.composing).map(spans).collect(),
    }
}
