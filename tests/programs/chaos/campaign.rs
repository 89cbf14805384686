//! A campaign: the clients, one fault after another from a seed, and what must hold in the end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::client::{Kind, Process};
use super::faults::{self, Fault};
use super::models::STEADY;
use super::prober;
use super::resources::Resources;
use super::site::Site;
use super::tally::{Tally, of};
use nereid_test_support::http::Peer;
use nereid_test_support::random::Random;
use nereid_test_support::server::PATIENCE;
use nereid_test_support::variant::{Variant, each};

/// Requests of all variants together; seconds of all variants together, for longer runs; the seed.
const REQUESTS: &str = "NEREID_TEST_CHAOS_REQUESTS";
const SECONDS: &str = "NEREID_TEST_CHAOS_SECS";
const SEED: &str = "NEREID_TEST_CHAOS_SEED";

const VARIANTS: [Variant; 4] = [
    Variant { io_engine: "io_uring", io_cores: "1" },
    Variant { io_engine: "io_uring", io_cores: "2" },
    Variant { io_engine: "epoll", io_cores: "1" },
    Variant { io_engine: "epoll", io_cores: "2" },
];

/// The processes that send requests. None of them loses one.
pub const PROCESSES: [&[Kind]; 4] = [
    &[Kind::Http, Kind::Http, Kind::HttpSequences],
    &[Kind::GrpcUnary, Kind::GrpcUnary, Kind::GrpcSequences],
    &[Kind::GrpcStream, Kind::GrpcStream, Kind::Cancelling],
    &[Kind::SharedMemory, Kind::Cutting],
];
const VICTIM: &[Kind] = &[Kind::Victim, Kind::Victim];
/// Faults of which a failing run tells.
const EVENTS: usize = 40;
/// A fault may miss: a client frees the last page while the disk is filled, a worker ends before it is killed. One that
/// misses in so many rounds has no effect at all.
const ROUNDS: usize = 10;
/// A machine that is too slow for the usual number of requests does with those of this time: a test has a bound. Every
/// fault has its effect all the same.
const TIME_MAX: Duration = Duration::from_secs(180);

pub struct Campaign {
    pub site: Site,
    pub variant: Variant,
    pub random: Random,
    pub seed: u64,
    clients: Vec<Process>,
    victim: Option<Process>,
    /// Of processes that have ended, and of this one.
    ended: Tally,
    injected: BTreeMap<String, u64>,
    events: Vec<String>,
    started: Instant,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: a number")))
}

#[test]
fn chaos_loses_no_request_and_leaves_nothing() {
    let requests = number(REQUESTS).unwrap_or(200_000).div_ceil(VARIANTS.len() as u64);
    let is_usual = number(REQUESTS).is_none();
    let time = Duration::from_secs(number(SECONDS).unwrap_or(0).div_ceil(VARIANTS.len() as u64));
    let seed = number(SEED).unwrap_or(12);
    each(&VARIANTS, |variant| {
        let Some(mut campaign) = Campaign::start(variant, seed) else { return };
        let before = campaign.warm_up();
        campaign.start_clients();
        let mut rounds = 0;
        let is_enough =
            |campaign: &Campaign| campaign.asked() >= requests || (is_usual && campaign.started.elapsed() >= TIME_MAX);
        while !is_enough(&campaign)
            || campaign.started.elapsed() < time
            || (rounds < ROUNDS && !campaign.never_injected().is_empty())
        {
            campaign.round();
            rounds += 1;
        }
        campaign.end(&before);
    });
}

impl Campaign {
    fn start(variant: Variant, seed: u64) -> Option<Campaign> {
        let site = Site::start(variant, &[])?;
        Some(Campaign {
            site,
            variant,
            random: Random::new(seed),
            seed,
            clients: Vec::new(),
            victim: None,
            ended: Tally::default(),
            injected: BTreeMap::new(),
            events: Vec::new(),
            started: Instant::now(),
        })
    }

    /// What the server holds after each kind of request, when its clients have gone.
    fn warm_up(&mut self) -> Resources {
        self.start_clients();
        let enough = 4_000;
        let started = Instant::now();
        while self.asked() < enough && started.elapsed() < PATIENCE {
            self.check_clients();
            std::thread::sleep(Duration::from_millis(20));
        }
        self.finish_clients();
        prober::wait_until_all_serve(&self.site, &mut self.ended);
        let mut last = Resources::of(&self.site);
        // The end of connections and of requests that were cancelled is not an answer that could be waited for.
        self.site.server.wait_until("the server is at rest", || {
            std::thread::sleep(Duration::from_millis(200));
            let now = Resources::of(&self.site);
            std::mem::replace(&mut last, now.clone()) == now && now.pending == 0
        });
        last
    }

    fn start_clients(&mut self) {
        for kinds in PROCESSES {
            let seed = self.random.next() % 1_000_000;
            self.clients.push(Process::start(&self.site, seed, kinds, 0));
        }
        self.replace_victim();
    }

    /// Kills the process of the victims, whose connections break with it, and starts another one.
    pub fn replace_victim(&mut self) {
        if let Some(victim) = self.victim.take() {
            self.ended.add(&victim.kill());
        }
        let seed = self.random.next() % 1_000_000;
        self.victim = Some(Process::start(&self.site, seed, VICTIM, 1));
    }

    fn finish_clients(&mut self) {
        for process in self.clients.drain(..).chain(self.victim.take()) {
            self.ended.add(&process.finish());
        }
        let tally = self.ended.clone();
        self.check(&tally);
    }

    fn tally(&self) -> Tally {
        let mut tally = self.ended.clone();
        self.clients.iter().chain(&self.victim).for_each(|process| tally.add(&process.tally()));
        tally
    }

    fn asked(&self) -> u64 {
        self.tally().asked_in_all()
    }

    /// Fails if a client has seen what must not be, or the server is no more.
    pub fn check_clients(&self) {
        self.check(&self.tally());
    }

    fn check(&self, tally: &Tally) {
        // The cause last: a report that is cut keeps its end.
        assert!(tally.wrong.is_empty(), "{}: {}\n{:#?}", self.place(), self.log_end(), tally.wrong);
        let is_alive = std::fs::read_to_string(format!("/proc/{}/stat", self.site.server.pid()));
        let is_alive = is_alive.is_ok_and(|stat| !stat.contains(") Z "));
        assert!(is_alive, "{}: the server has ended\n{}", self.place(), self.log_end());
    }

    /// What a failing run prints: how to run it again, and what happened last.
    pub fn place(&self) -> String {
        let last = &self.events[self.events.len().saturating_sub(EVENTS)..];
        format!("{:?}, {SEED}={}, the last events:\n{}\n", self.variant, self.seed, last.join("\n"))
    }

    fn log_end(&self) -> String {
        let log = self.site.log();
        let lines: Vec<&str> = log.lines().collect();
        format!("the end of the log:\n{}", lines[lines.len().saturating_sub(60)..].join("\n"))
    }

    /// Notes what is done now.
    pub fn event(&mut self, what: &str) {
        let at = self.started.elapsed().as_millis();
        self.events.push(format!("{at} ms, {} requests: {what}", self.asked()));
    }

    /// Counts a fault that had its effect.
    pub fn injected(&mut self, kind: &str, times: u64) {
        *self.injected.entry(kind.to_owned()).or_default() += times;
    }

    /// The kinds of faults that had no effect so far.
    fn never_injected(&self) -> Vec<&'static str> {
        let by_clients = self.tally().faults;
        let has_effect = |kind: &&str| [&self.injected, &by_clients].iter().any(|times| of(times, kind) > 0);
        faults::kinds(self.variant).into_iter().filter(|kind| !has_effect(kind)).collect()
    }

    /// Counts requests of this process itself.
    pub fn with_tally(&mut self, change: impl FnOnce(&mut Tally)) {
        change(&mut self.ended);
    }

    /// Lets the clients run for a while.
    pub fn go_on_for(&mut self, least_ms: u64, most_ms: u64) {
        let time_ms = least_ms + self.random.next() % (most_ms - least_ms + 1);
        std::thread::sleep(Duration::from_millis(time_ms));
        self.check_clients();
    }

    /// Every kind of fault once, in an order of the seed.
    fn round(&mut self) {
        let mut deck: Vec<Fault> = faults::of(self.variant);
        while !deck.is_empty() {
            let at = self.random.below(deck.len());
            let fault = deck.swap_remove(at);
            self.event(fault.name);
            (fault.inject)(self);
            self.check_clients();
        }
    }

    fn end(mut self, before: &Resources) {
        self.event("the end of the chaos");
        self.finish_clients();
        let never = self.never_injected();
        for (fault, times) in self.ended.faults.clone() {
            self.injected(&fault, times);
        }
        self.report();
        assert!(never.is_empty(), "{}: faults without effect: {never:?}\n{:?}", self.place(), self.injected);
        prober::wait_until_all_serve(&self.site, &mut self.ended);
        self.check_balance();
        self.check_statistics();
        let mut now = Resources::default();
        let started = Instant::now();
        while !now.are_back_at(before) {
            assert!(
                started.elapsed() < PATIENCE,
                "{}: something is left:\n{before:?} before,\n{now:?} now",
                self.place()
            );
            std::thread::sleep(Duration::from_millis(50));
            now = Resources::of(&self.site);
        }
        println!("before {before:?}\nafter  {now:?}");
        let log = self.site.log();
        assert!(!log.contains("panicked at"), "{}: the server panicked:\n{log}", self.place());
        self.site.server.stop();
    }

    /// Every request has ended in one way.
    fn check_balance(&self) {
        let Tally { asked, right, left, .. } = &self.ended;
        for (model, asked) in asked.iter().filter(|(model, _)| *model != "victim") {
            let ended = of(right, model) + of(left, model) + self.ended.refused_of(model);
            assert_eq!(*asked, ended, "{}: requests of '{model}' without an end", self.place());
        }
    }

    /// The server's counters against what the clients saw: only what they did not wait for may differ.
    fn check_statistics(&self) {
        let tally = &self.ended;
        for model in STEADY {
            let stats = Peer::connect(self.site.server.http).get(&format!("/v2/models/{model}/stats")).json();
            let stats = &stats["model_stats"][0]["inference_stats"];
            let count = |what: &str| stats[what]["count"].as_u64().unwrap_or_else(|| panic!("no {what}: {stats}"));
            let (success, fail) = (count("success"), count("fail"));
            // Each request of the ensemble is one of its steps, too.
            let names: &[&str] = if matches!(model, "plain" | "echo") { &[model, "chain"] } else { &[model] };
            let sum = |each: &dyn Fn(&str) -> u64| names.iter().map(|name| each(name)).sum::<u64>();
            let right = sum(&|name| of(&tally.right, name));
            let open = sum(&|name| of(&tally.left, name) + tally.refused_of(name));
            let place = || format!("{}: '{model}': {right} right, {open} refused or left: {stats}", self.place());
            assert!(success >= right, "fewer successes than answers: {}", place());
            if model != "victim" {
                assert!(success <= right + open && fail <= open, "more than anybody asked: {}", place());
            }
        }
    }

    fn report(&self) {
        let tally = &self.ended;
        println!(
            "{:?}: {} requests in {} s: {} right, {} refused, {} left by their clients, 0 lost; faults {:?}",
            self.variant,
            tally.asked_in_all(),
            self.started.elapsed().as_secs(),
            tally.right_in_all(),
            tally.refused_in_all(),
            tally.left_in_all(),
            self.injected
        );
        println!("refusals {}", serde_json::to_string(&tally.refused).unwrap_or_else(|_| Value::Null.to_string()));
    }
}
