//! `--request-plan-cache`: the cache changes no answer. Two servers over one repository, one with the cache and one
//! without, get the same random traffic in the same order on each connection, and every answer is compared byte by
//! byte.
//!
//! Traffic comes in kinds: what requests of a client have in common. Requests of a kind differ in ids and contents, and
//! a new kind is often an old one with one thing changed, so that what the cache keys on nearly matches. Some requests
//! are wrong. Meanwhile clients reload models of their own with other datatypes, and switch tracing. At the end both
//! servers have counted the same requests, and have traced the same ones of those models.

mod grpc;
mod http;
mod models;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use nereid_test_support::backend;
use nereid_test_support::http::Peer;
use nereid_test_support::random::Random;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, Variant, each};

/// Requests over all variants and settings.
const REQUESTS: usize = 200_000;
/// Begins the random numbers, so that a failure can be repeated. Every client has its own from it.
const SEED: u64 = 20_261_123;
/// Names another seed.
const SEED_VARIABLE: &str = "NEREID_TEST_SEED";
/// Clients at a time, each with its own connections. Of ten requests, six come over HTTP.
const HTTP_CLIENTS: usize = 3;
const GRPC_CLIENTS: usize = 2;
const HTTP_TENTHS: usize = 6;

/// What one of two servers has, or says.
#[derive(Clone, Debug, PartialEq)]
struct Both<T> {
    cached: T,
    plain: T,
}

impl<T> Both<T> {
    fn of(mut make: impl FnMut(bool) -> T) -> Both<T> {
        Both { cached: make(true), plain: make(false) }
    }

    fn each<R>(&mut self, mut act: impl FnMut(&mut T) -> R) -> Both<R> {
        Both { cached: act(&mut self.cached), plain: act(&mut self.plain) }
    }
}

impl<T: PartialEq + std::fmt::Debug> Both<T> {
    /// The answer, which is the same from both; else the test fails, and `about` says what was asked.
    fn same(self, about: impl FnOnce() -> String) -> T {
        if self.cached != self.plain {
            let Both { cached, plain } = &self;
            panic!("{}\nwith the cache:    {cached:?}\nwithout the cache: {plain:?}", about());
        }
        self.cached
    }
}

/// How a pair of servers is set up.
#[derive(Clone, Copy, Debug)]
struct Setting {
    flags: &'static [&'static str],
    /// HTTP heads are recognised.
    plans_heads: bool,
}

/// The header that restricted calls need, and its value.
const KEY: (&str, &str) = ("x-key", "open");
const GRPC_KEY: &str = "triton-grpc-protocol-x-key";

const SETTINGS: [Setting; 3] = [
    Setting { flags: &[], plans_heads: true },
    Setting {
        flags: &[
            "--http-restricted-api=inference:x-key=open",
            "--grpc-restricted-protocol=inference:x-key=open",
            "--run-to-completion=off",
            "--http-max-input-size=3000",
        ],
        plans_heads: true,
    },
    Setting {
        flags: &[
            "--http-header-forward-pattern=^fwd-",
            "--grpc-header-forward-pattern=^fwd-",
            "--grpc-infer-response-compression-level=low",
            "--http-max-input-size=3000",
        ],
        plans_heads: false,
    },
];

/// What clients of one pair of servers share.
struct Traffic<'a> {
    servers: &'a Both<Server>,
    repository: &'a Repository,
    /// The C identity, which says what parameters it got, can be had.
    echoes: bool,
    seed: u64,
    answered: AtomicU64,
    failed: AtomicU64,
}

impl Traffic<'_> {
    /// Counts an answer.
    fn note(&self, went_well: bool) {
        let count = if went_well { &self.answered } else { &self.failed };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn random(&self, client: usize) -> Random {
        Random::new(self.seed ^ (client as u64 + 1) << 40)
    }
}

fn seed() -> u64 {
    std::env::var(SEED_VARIABLE).map_or(SEED, |text| text.parse().expect("a number as the seed"))
}

/// Where the server with or without the cache writes its traces.
fn trace_file(traces: &Repository, is_cached: bool) -> PathBuf {
    traces.path().join(if is_cached { "on" } else { "off" })
}

fn start(
    variant: Variant,
    setting: Setting,
    repository: &Repository,
    traces: &Repository,
    directory: Option<&str>,
) -> Both<Server> {
    Both::of(|is_cached| {
        let cache = format!("--request-plan-cache={}", if is_cached { "on" } else { "off" });
        let trace_file = format!("--trace-config=triton,file={}", trace_file(traces, is_cached).display());
        let mut flags = vec![&*cache, &trace_file, "--trace-config=rate=50"];
        flags.extend(["--model-control-mode=explicit", "--load-model=*"]);
        flags.extend(directory);
        flags.extend(setting.flags);
        Server::start(variant, repository.path(), &flags)
    })
}

/// How often the cache of the server was of use, by its log: HTTP heads, JSON texts, gRPC messages, and answers of
/// both.
fn hits(log: &str) -> Option<[u64; 5]> {
    let lines = log.lines().filter_map(|line| line.split_once("request plan cache of a shard: "));
    let sums = lines.map(|(_, text)| {
        let numbers = text.split(|other: char| !other.is_ascii_digit()).filter_map(|number| number.parse().ok());
        numbers.collect::<Vec<u64>>()
    });
    sums.reduce(|sum, next| sum.iter().zip(&next).map(|(sum, next)| sum + next).collect())
        .map(|sum| sum.try_into().expect("five numbers"))
}

/// How many requests each model has counted: those that the cache recognises count as others do. Whether one went well
/// may differ where its call failed while it was executed.
fn counts(server: &Server) -> Vec<String> {
    let stats = Peer::connect(server.http).get("/v2/models/stats").json();
    let models = stats["model_stats"].as_array().expect("statistics").iter();
    let of = models.map(|model| {
        let count = |kind: &str| model["inference_stats"][kind]["count"].as_u64().expect("a count");
        format!("{} {}: {}", model["name"], model["version"], count("success") + count("fail"))
    });
    of.collect()
}

/// The requests for clients' own models that were traced, each by what its trace says of it, in order. What is
/// traced of other models depends on when clients switch that.
fn traced(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    let entries: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    let is_own = |entry: &&Value| entry["model_name"].as_str().is_some_and(models::is_own);
    let of = |entry: &Value| format!("{} {} {}", entry["model_name"], entry["model_version"], entry["request_id"]);
    let mut traced: Vec<String> = entries.iter().filter(is_own).map(of).collect();
    traced.sort_unstable();
    traced
}

#[test]
fn the_cache_changes_no_answer() {
    let pairs = variant::ALL.len() * SETTINGS.len();
    each(&variant::ALL, |variant| {
        for setting in SETTINGS {
            run(variant, setting, REQUESTS.div_ceil(pairs));
        }
    });
}

fn run(variant: Variant, setting: Setting, requests: usize) {
    let directory = backend::directory().map(|directory| format!("--backend-directory={}", directory.display()));
    let repository = models::repository(HTTP_CLIENTS + GRPC_CLIENTS, directory.is_some());
    let traces = Repository::new();
    let mut servers = start(variant, setting, &repository, &traces, directory.as_deref());
    let seed = seed();
    println!("{setting:?}, {SEED_VARIABLE}={seed}");
    let (answered, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let traffic =
        Traffic { servers: &servers, repository: &repository, echoes: directory.is_some(), seed, answered, failed };
    std::thread::scope(|scope| {
        let traffic = &traffic;
        let (http, grpc) = (requests * HTTP_TENTHS / 10, requests - requests * HTTP_TENTHS / 10);
        for client in 0..HTTP_CLIENTS {
            scope.spawn(move || http::run(traffic, client, http.div_ceil(HTTP_CLIENTS)));
        }
        for client in 0..GRPC_CLIENTS {
            scope.spawn(move || grpc::run(traffic, HTTP_CLIENTS + client, grpc.div_ceil(GRPC_CLIENTS)));
        }
    });
    let (answered, failed) = (traffic.answered.into_inner(), traffic.failed.into_inner());
    assert!(answered + failed >= requests as u64, "{answered} and {failed} answers");
    assert!(answered > failed / 2, "{answered} went well, and {failed} did not");
    servers.each(|server| counts(server)).same(|| "statistics".to_owned());
    // The cache reports at the end, to those who want details.
    let details = json!({"log_verbose_level": 1}).to_string();
    let log = |server: Server| {
        assert_eq!(Peer::connect(server.http).post("/v2/logging", &[], details.as_bytes()).status, 200);
        server.stop()
    };
    assert_eq!(hits(&log(servers.plain)), None, "a cache that is off");
    let hits = hits(&log(servers.cached)).expect("the cache's report");
    let traced = Both::of(|is_cached| traced(&trace_file(&traces, is_cached))).same(|| "traces".to_owned()).len();
    println!("{answered} answers, {failed} failures, {traced} traces, hits {hits:?}");
    assert!(traced > 0, "no traces");
    let [heads, json, messages, http_answers, grpc_answers] = hits;
    let least = requests as u64 / 40;
    assert!(messages > least && http_answers > least && grpc_answers > least, "hardly any hits: {hits:?}");
    assert!(!setting.plans_heads || (heads > least && json > least), "hardly any hits: {hits:?}");
}
