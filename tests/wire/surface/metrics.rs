//! The metrics page: its families, settings and rules (contract/metrics.md sections 1 and 2).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};
use serde_json::{Value, json};

use nereid_test_support::gate::{self, Gate};
use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::{Peer, request};
use nereid_test_support::original::original;
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::{self, each, usual};

/// GPUs of the host that runs the tests are left out of the page.
const NO_GPUS: [(&str, &str); 1] = [("TRITON_SERVER_CPU_ONLY", "1")];
const CACHE: &str = "--cache-config=local,size=1048576";
const EVERYTHING: [&str; 4] = [
    CACHE,
    "--metrics-config=histogram_latencies=true",
    "--metrics-config=summary_latencies=true",
    "--metrics-config=histogram_phases=true",
];

/// The page as it reads line by line.
pub struct Page {
    /// Kinds by family.
    pub families: BTreeMap<String, String>,
    samples: Vec<(String, BTreeMap<String, String>, String)>,
    text: String,
}

impl Page {
    pub fn of(address: SocketAddr) -> Page {
        let answer = Peer::connect(address).get("/metrics");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
        Page::read(&answer.text())
    }

    fn read(text: &str) -> Page {
        let mut page = Page { families: BTreeMap::new(), samples: Vec::new(), text: text.to_owned() };
        for line in text.lines() {
            if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                assert!(page.families.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} comes twice");
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
                let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
                let labels = labels.strip_suffix('}').expect("labels end");
                // Values of labels have no commas in these tests.
                let labels = labels.split(',').filter_map(|label| label.split_once('='));
                let labels = labels.map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned()));
                page.samples.push((name.to_owned(), labels.collect(), value.to_owned()));
            }
        }
        page
    }

    /// The texts of the samples of this name that have all these labels.
    pub fn all(&self, name: &str, labels: &[(&str, &str)]) -> Vec<&str> {
        self.found(name, labels).into_iter().map(|(_, value)| value).collect()
    }

    /// The same of those that lack a label.
    pub fn without(&self, name: &str, label: &str, labels: &[(&str, &str)]) -> Vec<&str> {
        let lacking = |(sample, value): (&BTreeMap<_, _>, _)| (!sample.contains_key(label)).then_some(value);
        self.found(name, labels).into_iter().filter_map(lacking).collect()
    }

    /// The different values of a label, sorted, among the samples of this name that have all these labels.
    pub fn labels(&self, name: &str, label: &str, labels: &[(&str, &str)]) -> Vec<String> {
        let found = self.found(name, labels).into_iter().filter_map(|(sample, _)| sample.get(label).cloned());
        found.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn found(&self, name: &str, labels: &[(&str, &str)]) -> Vec<(&BTreeMap<String, String>, &str)> {
        let has = |sample: &BTreeMap<String, String>| {
            labels.iter().all(|(name, value)| sample.get(*name).is_some_and(|found| found == value))
        };
        let found = self.samples.iter().filter(|(found, sample, _)| found == name && has(sample));
        found.map(|(_, sample, value)| (sample, value.as_str())).collect()
    }

    /// The value of the one sample with these labels.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        match self.all(name, labels)[..] {
            [value] => value.parse().expect("a number"),
            ref found => panic!("{name} {labels:?}: {found:?} in\n{}", self.text),
        }
    }

    fn count(&self, name: &str, model: &str) -> u64 {
        self.value(name, &[("model", model)]) as u64
    }

    fn failures(&self, model: &str) -> [u64; 4] {
        ["REJECTED", "CANCELED", "BACKEND", "OTHER"]
            .map(|reason| self.value("nv_inference_request_failure", &[("model", model), ("reason", reason)]) as u64)
    }
}

/// Reads pages until one fits.
pub fn wait_for(server: &Server, what: &str, fits: impl Fn(&Page) -> bool) -> Page {
    let started = Instant::now();
    loop {
        let page = Page::of(server.metrics);
        if fits(&page) {
            return page;
        }
        assert!(started.elapsed() < PATIENCE, "{what} in\n{}", page.text);
        std::thread::yield_now();
    }
}

pub fn one() -> [Pair; 1] {
    [Pair::new("INT32", "-1")]
}

/// A body with these numbers as INPUT0; `more` are further members of it.
pub fn body(shape: &str, numbers: &[i32], more: &str) -> String {
    format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":{shape},"data":{numbers:?}}}]{more}}}"#)
}

/// Asks over HTTP; returns the status.
pub fn ask(server: &Server, model: &str, body: &str) -> u16 {
    Peer::connect(server.http).post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes()).status
}

fn message(model: &str, numbers: &[i32]) -> ModelInferRequest {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let input = InferInputTensor {
        name: "INPUT0".to_owned(),
        datatype: "INT32".to_owned(),
        shape: vec![numbers.len() as i64],
        ..InferInputTensor::default()
    };
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![Bytes::from(bytes)],
        ..ModelInferRequest::default()
    }
}

/// An ensemble of one step.
pub fn ensemble(name: &str, step: &str, more: &str) -> String {
    let tensor =
        |side: &str, tensor: &str| format!("{side} [ {{ name: \"{tensor}\" data_type: TYPE_INT32 dims: [ -1 ] }} ]\n");
    let map = |side: &str, name: &str| format!("{side} {{ key: \"{name}0\" value: \"{name}0\" }}");
    format!(
        "name: \"{name}\" platform: \"ensemble\"\n{}{}ensemble_scheduling {{ step {{ model_name: \"{step}\" \
         model_version: -1 {} {} }} }}\n{more}",
        tensor("input", "INPUT0"),
        tensor("output", "OUTPUT0"),
        map("input_map", "INPUT"),
        map("output_map", "OUTPUT"),
    )
}

/// A plain model, one that the cache answers for, and an ensemble.
fn three_models() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 0, &one());
    repository.identity_of("identity", "cached", 0, &one(), "response_cache { enable: true }");
    repository.model("both", &ensemble("both", "plain", ""));
    repository
}

const ALWAYS: [(&str, &str); 44] = [
    ("input_byte_size_counter", "counter"),
    ("nereid_audit_records_dropped", "counter"),
    ("nereid_build_info", "gauge"),
    ("nereid_connections", "gauge"),
    ("nereid_instance_stalls", "counter"),
    ("nereid_log_messages_dropped", "counter"),
    ("nereid_model_generation_info", "gauge"),
    ("nereid_model_refused_requests_total", "counter"),
    ("nereid_panics_total", "counter"),
    ("nereid_pool_bytes_in_use", "gauge"),
    ("nereid_pool_bytes_limit", "gauge"),
    ("nereid_queue_full_total", "counter"),
    ("nereid_ready", "gauge"),
    ("nereid_recorded_bytes_total", "counter"),
    ("nereid_recorded_requests_total", "counter"),
    ("nereid_refused_requests_total", "counter"),
    ("nereid_shards", "gauge"),
    ("nereid_shards_stuck", "gauge"),
    ("nereid_sleeps_total", "counter"),
    ("nereid_spin_nanoseconds_total", "counter"),
    ("nereid_stale_deliveries", "counter"),
    ("nereid_start_time_seconds", "gauge"),
    ("nereid_trace_entries_cut", "counter"),
    ("nereid_traces_completed", "counter"),
    ("nereid_traces_dropped", "counter"),
    ("nereid_wake_ups_total", "counter"),
    ("nv_cpu_memory_total_bytes", "gauge"),
    ("nv_cpu_memory_used_bytes", "gauge"),
    ("nv_cpu_utilization", "gauge"),
    ("nv_inference_count", "counter"),
    ("nv_inference_exec_count", "counter"),
    ("nv_inference_pending_request_count", "gauge"),
    ("nv_inference_request_failure", "counter"),
    ("nv_inference_request_success", "counter"),
    ("nv_model_load_duration_secs", "gauge"),
    ("nv_pinned_memory_pool_total_bytes", "gauge"),
    ("nv_pinned_memory_pool_used_bytes", "gauge"),
    ("nv_inference_request_duration_us", "counter"),
    ("process_cpu_seconds_total", "counter"),
    ("process_max_fds", "gauge"),
    ("process_open_fds", "gauge"),
    ("process_resident_memory_bytes", "gauge"),
    ("process_start_time_seconds", "gauge"),
    ("process_virtual_memory_bytes", "gauge"),
];
const DURATIONS: [&str; 5] = [
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
];
const CACHES: [&str; 4] = [
    "nv_cache_num_hits_per_model",
    "nv_cache_num_misses_per_model",
    "nv_cache_hit_duration_per_model",
    "nv_cache_miss_duration_per_model",
];
const SUMMARIES: [&str; 5] = [
    "nv_inference_request_summary_us",
    "nv_inference_queue_summary_us",
    "nv_inference_compute_input_summary_us",
    "nv_inference_compute_infer_summary_us",
    "nv_inference_compute_output_summary_us",
];
const CACHE_SUMMARIES: [&str; 2] = ["nv_cache_hit_summary_per_model", "nv_cache_miss_summary_per_model"];
const FIRST: &str = "nv_inference_first_response_histogram_ms";
const PHASES: [&str; 5] = [
    "nereid_request_duration_us",
    "nereid_queue_duration_us",
    "nereid_compute_input_duration_us",
    "nereid_compute_infer_duration_us",
    "nereid_compute_output_duration_us",
];

/// The families of a server with a cache, and those that settings add.
fn families(has_counters: bool, has_first: bool, has_summaries: bool, has_phases: bool) -> BTreeMap<String, String> {
    let mut families: BTreeMap<&str, &str> = ALWAYS.into();
    match has_counters {
        true => families.extend(DURATIONS.iter().chain(&CACHES).map(|name| (*name, "counter"))),
        false => drop(families.remove(DURATIONS[0])),
    }
    if has_first {
        families.insert(FIRST, "histogram");
    }
    if has_summaries {
        families.extend(SUMMARIES.iter().chain(&CACHE_SUMMARIES).map(|name| (*name, "summary")));
    }
    if has_phases {
        families.extend(PHASES.map(|name| (name, "histogram")));
    }
    families.into_iter().map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
}

fn start(repository: &Repository, flags: &[&str]) -> Server {
    Server::start_in(usual(), repository.path(), flags, "/v2/health/ready", &NO_GPUS)
}

#[test]
fn every_family_is_there_before_and_after_traffic() {
    each(&variant::ALL, |variant| {
        let repository = three_models();
        let server = Server::start_in(variant, repository.path(), &EVERYTHING, "/v2/health/ready", &NO_GPUS);
        let before = Page::of(server.metrics);
        assert_eq!(before.families, families(true, true, true, true));
        for model in ["plain", "cached", "both"] {
            assert_eq!(before.count("nv_inference_request_success", model), 0);
            assert_eq!(before.failures(model), [0; 4]);
            assert_eq!(before.count("nv_inference_queue_summary_us_count", model), 0);
            let quantiles = before.all("nv_inference_queue_summary_us", &[("model", model)]);
            assert_eq!(quantiles, ["NaN"; 5], "nothing came within the last minute");
            assert_eq!(before.value(&format!("{FIRST}_bucket"), &[("model", model), ("le", "+Inf")]), 0.0);
        }
        assert_eq!(ask(&server, "plain", &body("[2]", &[1, 2], "")), 200);
        let mut grpc = Grpc::connect(server.grpc);
        let answer: Result<ModelInferResponse, _> = grpc.call("ModelInfer", &message("plain", &[3]));
        assert!(answer.is_ok());
        (0..3).for_each(|_| assert_eq!(ask(&server, "cached", &body("[1]", &[1], "")), 200));
        assert_eq!(ask(&server, "both", &body("[1]", &[7], "")), 200);
        // An ensemble's phases are known when its steps are released, which may be after its answer.
        // A page may be read between two of them.
        let after = wait_for(&server, "the ensemble's phases", |page| {
            let summaries = ["queue", "compute_input", "compute_infer", "compute_output"];
            let summary = |phase: &str| page.count(&format!("nv_inference_{phase}_summary_us_count"), "both");
            summaries.iter().all(|phase| summary(phase) == 1)
                && PHASES.iter().all(|family| page.count(&format!("{family}_count"), "both") == 1)
        });
        assert_eq!(after.families, families(true, true, true, true));
        for (model, successes, inferences, hits) in [("plain", 3, 3, 0), ("cached", 3, 1, 2), ("both", 1, 1, 0)] {
            assert_eq!(after.count("nv_inference_request_success", model), successes, "{model}");
            assert_eq!(after.count("nv_inference_count", model), inferences, "{model}");
            assert_eq!(after.count("nv_inference_exec_count", model), inferences, "{model}");
            assert_eq!(after.count(&format!("{FIRST}_count"), model), successes, "{model}");
            for (phase, family) in PHASES.iter().enumerate() {
                let expected = if phase < 2 { successes } else { inferences };
                assert_eq!(after.count(&format!("{family}_count"), model), expected, "{model} {family}");
            }
            assert_eq!(after.count("nv_inference_queue_summary_us_count", model), successes);
            assert_eq!(after.count("nv_inference_compute_infer_summary_us_count", model), inferences);
            let sum = after.count("nereid_queue_duration_us_sum", model);
            assert_eq!(sum, after.count("nv_inference_queue_summary_us_sum", model));
            assert_eq!(sum, after.count("nv_inference_queue_duration_us", model));
            let caching: &[&str] = if model == "cached" { &CACHE_SUMMARIES } else { &[] };
            for family in CACHE_SUMMARIES {
                let shown = after.all(&format!("{family}_count"), &[("model", model)]).len();
                assert_eq!(shown, usize::from(caching.contains(&family)), "{family} of {model}");
            }
            let request = after.all("nv_inference_request_summary_us_count", &[("model", model)]);
            assert_eq!(request.is_empty(), model == "cached", "a caching model has no summary of requests");
            if model == "cached" {
                assert_eq!(after.count("nv_cache_num_hits_per_model", model), hits);
                assert_eq!(after.count("nv_cache_num_misses_per_model", model), 1);
                assert_eq!(after.count("nv_cache_hit_summary_per_model_count", model), hits);
                assert_eq!(after.count("nv_cache_miss_summary_per_model_count", model), 1);
            }
        }
        assert_eq!(after.all("nv_pinned_memory_pool_total_bytes", &[]), ["268435456"], "as configured");
        let info = after.all("nereid_build_info", &[("version", env!("CARGO_PKG_VERSION"))]);
        assert_eq!(info, ["1"]);
        let numbers = after.all("nv_inference_request_summary_us", &[("model", "plain")]);
        assert!(numbers.len() == 5 && numbers.iter().all(|value| *value != "NaN"), "{numbers:?}");
        server.stop();
    });
}

/// What Triton's dashboards show beside each family.
#[test]
fn descriptions_are_tritons() {
    let repository = three_models();
    let server = start(&repository, &EVERYTHING);
    let text = Peer::connect(server.metrics).get("/metrics").text();
    for (family, help) in [
        ("nv_inference_request_success", "Number of successful inference requests, all batch sizes"),
        ("nv_inference_request_failure", "Number of failed inference requests, all batch sizes"),
        ("nv_inference_count", "Number of inferences performed (does not include cached requests)"),
        (
            "nv_inference_pending_request_count",
            "Instantaneous number of pending requests awaiting execution per-model.",
        ),
        (
            "nv_inference_queue_summary_us",
            "Summary of inference queuing duration in microseconds (includes cached requests)",
        ),
        ("nv_cache_num_hits_per_model", "Number of cache hits per model"),
        ("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes"),
        ("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]"),
    ] {
        let line = format!("# HELP {family} {help}");
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    server.stop();
}

/// As Triton's, whatever is wrong with a pair: the others are shown.
#[test]
fn malformed_quantiles_are_logged_and_left_out() {
    let repository = three_models();
    let flags = [
        "--metrics-config=summary_latencies=true",
        "--metrics-config=summary_quantiles=0.4:0.1,0.5,x:0.1,0.9:0.01",
        "--allow-cpu-metrics=false",
    ];
    let server = start(&repository, &flags);
    let page = Page::of(server.metrics);
    assert_eq!(page.labels("nv_inference_queue_summary_us", "quantile", &[("model", "plain")]), ["0.4", "0.9"]);
    let log = server.stop();
    for line in [
        "Invalid option: [0.5]. No ':' delimiter found. Expected format is <quantile>:<error>",
        "Invalid option: [x:0.1]. Error: stod",
        "No polling metrics (CPU, GPU, Pinned memory) are enabled. Will not poll for them.",
    ] {
        assert_eq!(log.matches(line).count(), 1, "{line} in\n{log}");
    }
}

#[test]
fn a_scraper_reads_the_same() {
    let Some(python) = Python::with("metrics-requirements.txt") else { return };
    let repository = three_models();
    repository.identity_of(
        "identity",
        "tagged",
        0,
        &one(),
        "metric_tags { key: \"odd\" value: \"a \\\"b\\\" \\\\ {c}\" } metric_tags { key: \"a-b\" value: \"x\" }",
    );
    let server = start(&repository, &EVERYTHING);
    for round in 0..2 {
        let found: Value =
            serde_json::from_str(&python.run("metrics.py", &[&format!("http://{}/metrics", server.metrics)]))
                .expect("JSON");
        assert_eq!(found["families"], json!(families(true, true, true, true)), "round {round}");
        let samples = found["samples"].as_array().into_iter().flatten();
        let of = |name: &str, model: &str| {
            let mut fit = samples.clone().filter(|sample| sample[0] == name && sample[1]["model"] == model);
            fit.next().unwrap_or_else(|| panic!("no {name} of {model}")).clone()
        };
        let successes = of("nv_inference_request_success", "tagged");
        assert_eq!(successes[2], f64::from(round));
        assert_eq!(successes[1]["_odd"], "a \"b\" \\ {c}");
        assert_eq!(successes[1]["_a_b"], "x");
        let request = of("nv_inference_request_summary_us", "tagged");
        assert_eq!(request[2] == "NaN", round == 0, "{request}");
        assert_eq!(ask(&server, "tagged", &body("[1]", &[1], "")), 200);
    }
    server.stop();
}

#[test]
fn settings_decide_what_is_shown() {
    let repository = three_models();
    let config = |setting: &str| format!("--metrics-config={setting}");
    for (settings, expected) in [
        (&[][..], families(true, false, false, false)),
        (&["counter_latencies=false"][..], families(false, false, false, false)),
        (&["histogram_latencies=true", "other=1"][..], families(true, true, false, false)),
        (&["counter_latencies=false", "summary_latencies=true"][..], families(false, false, true, false)),
        (&["histogram_phases=true", "summary_latencies=1"][..], families(true, false, false, true)),
        (&["summary_latencies=true", "summary_latencies=false"][..], families(true, false, false, false)),
    ] {
        let flags: Vec<String> = settings.iter().map(|setting| config(setting)).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).chain([CACHE]).collect();
        let server = start(&repository, &flags);
        assert_eq!(ask(&server, "plain", &body("[1]", &[1], "")), 200);
        let page = Page::of(server.metrics);
        assert_eq!(page.families, expected, "{settings:?}");
        // Without its counters of latencies a server counts nothing any more, but for what waits and its statistics.
        let counts = !settings.contains(&"counter_latencies=false");
        assert_eq!(page.count("nv_inference_request_success", "plain"), u64::from(counts), "{settings:?}");
        assert_eq!(page.count("nv_inference_count", "plain"), u64::from(counts), "{settings:?}");
        assert_eq!(page.count("nv_inference_exec_count", "plain"), u64::from(counts), "{settings:?}");
        let statistics = Peer::connect(server.http).get("/v2/models/plain/stats").json();
        assert_eq!(statistics["model_stats"][0]["inference_count"], 1, "{statistics}");
        server.stop();
    }
}

#[test]
fn quantiles_are_those_that_were_asked_for_and_mistakes_are_told() {
    let repository = three_models();
    let quantiles = "--metrics-config=summary_quantiles=0.25:0.1,abc,0.75:0.05,0.3:x,7:0.1";
    let flags = ["--metrics-config=summary_latencies=true", quantiles, "--metrics-config=counter_latencies=maybe"];
    let server = start(&repository, &flags);
    let page = Page::of(server.metrics);
    for quantile in ["0.25", "0.75"] {
        let found = page.all(SUMMARIES[0], &[("model", "plain"), ("quantile", quantile)]);
        assert_eq!(found, ["NaN"], "{quantile}");
    }
    assert_eq!(page.all(SUMMARIES[0], &[("model", "plain")]).len(), 2);
    let log = server.stop();
    for told in [
        "Invalid option: [abc]. No ':' delimiter found. Expected format is <quantile>:<error>",
        "Invalid option: [0.3:x].",
        "Invalid option: [7:0.1].",
        "counter_latencies is 'true' or 'false', not 'maybe'",
    ] {
        assert!(log.contains(told), "{told} in\n{log}");
    }
}

/// contract/metrics.md section 2: from acceptance to the first response, in whole milliseconds; the model's own
/// buckets.
#[test]
fn first_responses_fall_into_the_buckets_of_their_model() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let buckets = |family: &str, bounds: &str| {
            format!(
                "metric_control {{ metric_identifier {{ family: \"{family}\" }} histogram_options {{ buckets: [ \
                 {bounds} ] }} }}\n"
            )
        };
        let delay = "parameters { key: \"execute_delay_ms\" value { string_value: \"40\" } }\n";
        let own = format!(
            "{delay} model_metrics {{ {} {} {} }}",
            buckets(FIRST, "39, 100000"),
            buckets(PHASES[3], "39000, 1e9"),
            buckets("unknown_family", "1"),
        );
        repository.identity_of("identity", "slow", 0, &one(), &own);
        repository.identity("plain", 0, &one());
        repository.model("around", &ensemble("around", "slow", ""));
        let flags = ["--metrics-config=histogram_latencies=true", "--metrics-config=histogram_phases=true"];
        let server = Server::start_in(variant, repository.path(), &flags, "/v2/health/ready", &NO_GPUS);
        assert_eq!(ask(&server, "slow", &body("[1]", &[1], "")), 200);
        let mut grpc = Grpc::connect(server.grpc);
        let answer: Result<ModelInferResponse, _> = grpc.call("ModelInfer", &message("slow", &[3]));
        assert!(answer.is_ok());
        assert_eq!(ask(&server, "around", &body("[1]", &[1], "")), 200);
        assert_eq!(ask(&server, "plain", &body("[1]", &[1], "")), 200);
        // Refused at the door: no response of the model.
        assert_eq!(ask(&server, "slow", &body("[1,1]", &[1], "")), 400);
        let page = wait_for(&server, "all of them", |page| {
            [("slow", 3), ("plain", 1), ("around", 1)].into_iter().all(|(model, count)| {
                page.count(&format!("{FIRST}_count"), model) == count
                    && page.count("nv_inference_request_success", model) == count
            }) && page.count(&format!("{}_count", PHASES[3]), "slow") == 3
        });
        let of = |family: &str, model: &str, bound: &str| {
            page.value(&format!("{family}_bucket"), &[("model", model), ("le", bound)])
        };
        let first = ["39", "100000", "+Inf"].map(|bound| of(FIRST, "slow", bound));
        assert_eq!(first, [0.0, 3.0, 3.0], "two requests, and one of the ensemble");
        assert!(page.count(&format!("{FIRST}_sum"), "slow") >= 3 * 40);
        let infer = ["39000", "1000000000", "+Inf"].map(|bound| of(PHASES[3], "slow", bound));
        assert_eq!(infer[2], 3.0);
        assert_eq!(page.all(&format!("{}_bucket", PHASES[3]), &[("model", "slow")]).len(), 3);
        assert_eq!(page.all(&format!("{}_bucket", PHASES[2]), &[("model", "slow")]).len(), 24);
        let bounds = ["100", "500", "2000", "5000", "+Inf"];
        assert_eq!(
            bounds.map(|bound| page.all(&format!("{FIRST}_bucket"), &[("model", "plain"), ("le", bound)]).len()),
            [1; 5]
        );
        assert_eq!(page.count(&format!("{FIRST}_count"), "plain"), 1);
        assert_eq!(page.count(&format!("{FIRST}_count"), "around"), 1);
        let log = server.stop();
        let warned =
            log.lines().filter(|line| line.contains(" in 'metric_identifier' is not a customizable metric in "));
        let warned: Vec<&str> = warned.collect();
        let text = "Metric family 'unknown_family' in 'metric_identifier' is not a customizable metric in Triton core.";
        assert!(warned.len() == 1 && warned[0].contains(text), "{warned:?}");
    });
}

#[test]
fn of_a_decoupled_request_the_first_response_counts() {
    let repository = Repository::new();
    let tensor = |side: &str, name: &str, datatype: &str, dims: &str| {
        format!("{side} [ {{ name: \"{name}\" data_type: TYPE_{datatype} dims: [ {dims} ] }} ]\n")
    };
    let config = [
        "backend: \"repeat\" model_transaction_policy { decoupled: true }\n".to_owned(),
        tensor("input", "IN", "INT32", "-1"),
        tensor("input", "DELAY", "UINT32", "-1"),
        tensor("input", "WAIT", "UINT32", "1"),
        tensor("output", "OUT", "INT32", "1"),
        tensor("output", "IDX", "UINT32", "1"),
    ];
    repository.model("repeat", &config.concat());
    let flags = ["--metrics-config=histogram_latencies=true"];
    let server = start(&repository, &flags);
    let tensor = |name: &str, datatype: &str, shape: &[i64]| InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        ..InferInputTensor::default()
    };
    let three: Vec<u8> = [1i32, 2, 3].iter().flat_map(|number| number.to_le_bytes()).collect();
    let none = Bytes::from(0u32.to_le_bytes().to_vec());
    let request = ModelInferRequest {
        model_name: "repeat".to_owned(),
        inputs: vec![tensor("IN", "INT32", &[3]), tensor("DELAY", "UINT32", &[3]), tensor("WAIT", "UINT32", &[1])],
        raw_input_contents: vec![Bytes::from(three), Bytes::from(vec![0; 12]), none],
        ..ModelInferRequest::default()
    };
    let mut grpc = Grpc::connect(server.grpc);
    let mut call = grpc.open("/inference.GRPCInferenceService/ModelStreamInfer", &[]);
    grpc.send(&mut call, &request);
    for _ in 0..3 {
        assert!(grpc.next(&mut call).is_some());
    }
    grpc.half_close(&mut call);
    grpc.finish(call);
    let page = wait_for(&server, "a success", |page| page.count("nv_inference_request_success", "repeat") == 1);
    assert_eq!(page.count(&format!("{FIRST}_count"), "repeat"), 1);
    server.stop();
}

/// Every reason, and what is counted nowhere but as refused.
#[test]
fn failures_have_their_reasons() {
    let Some(directory) = nereid_test_support::backend::directory() else { return };
    each(&variant::ALL, |variant| {
        let (repository, gate) = (Repository::new(), Gate::new());
        let queue = |policy: &str| {
            format!("{} dynamic_batching {{ default_queue_policy {{ {policy} }} }}", gate.of_executions())
        };
        repository.identity_of(gate::BACKEND, "short", 1, &one(), &queue("max_queue_size: 2"));
        // A request can only shorten the time.
        let hour = "default_timeout_microseconds: 3600000000";
        let impatient = queue(&format!("{hour} allow_timeout_override: true timeout_action: REJECT"));
        repository.identity_of(gate::BACKEND, "impatient", 1, &one(), &impatient);
        repository.identity_of("copycat", "failing", 0, &one(), "");
        repository.model("around", &ensemble("around", "failing", ""));
        let backends = format!("--backend-directory={}", directory.display());
        let flags = [&backends, "--metrics-config=histogram_latencies=true"];
        let server = Server::start_in(variant, repository.path(), &flags, "/v2/health/ready", &NO_GPUS);
        let send = |model: &str, more: &str| {
            let mut peer = Peer::connect(server.http);
            let path = format!("/v2/models/{model}/infer");
            peer.send(&request("POST", &path, &[], body("[1,1]", &[1], more).as_bytes()));
            peer
        };
        let waiting = |page: &Page| page.count("nv_inference_pending_request_count", "short");
        let executes = send("short", "");
        gate.wait_until_held(&server, "short");
        let mut stay = [executes, send("short", "")];
        wait_for(&server, "one that waits", |page| waiting(page) == 1);
        let leaves = send("short", "");
        wait_for(&server, "two that wait", |page| waiting(page) == 2);
        let refused = send("short", "").answer();
        let text = "[request id: <id_unknown>] Exceeds maximum queue size";
        assert_eq!((refused.status, refused.error().as_str()), (503, text));
        drop(leaves);
        let page = wait_for(&server, "a cancelled request", |page| page.failures("short")[1] == 1);
        assert_eq!(page.failures("short"), [0, 1, 0, 0]);
        assert_eq!(page.count("nereid_queue_full_total", "short"), 1);
        gate.open();
        assert_eq!(stay.each_mut().map(|peer| peer.answer().status), [200, 200]);
        // One executes, and the other's time runs out.
        gate.close();
        let mut executes = send("impatient", "");
        gate.wait_until_held(&server, "impatient");
        let late = send("impatient", r#","parameters":{"timeout":1000}"#).answer();
        assert_eq!((late.status, late.error().as_str()), (503, "Request timeout expired"));
        gate.open();
        assert_eq!(executes.answer().status, 200);
        for model in ["failing", "around"] {
            let told = body("[1]", &[1], r#","parameters":{"fail":"told to"}"#);
            let status = ask(&server, model, &told);
            // Parameters of an ensemble's request reach its steps.
            assert_eq!(status, 400, "{model}");
        }
        // The backend reports after it answered, the step of an ensemble after the ensemble.
        let page = wait_for(&server, "all of them", |page| {
            page.failures("around")[3] == 1
                && page.failures("failing")[2] == 2
                && page.count("nv_inference_request_success", "impatient") == 1
                && page.count("nv_inference_request_success", "short") == 2
        });
        assert_eq!(page.failures("impatient"), [1, 0, 0, 0]);
        assert_eq!(page.failures("failing"), [0, 0, 2, 0]);
        assert_eq!(page.failures("around"), [0, 0, 0, 1]);
        for (model, successes, responses) in [("short", 2, 3), ("impatient", 1, 2), ("failing", 0, 2), ("around", 0, 1)]
        {
            assert_eq!(page.count("nv_inference_request_success", model), successes, "{model}");
            // A failure is a response as well; a request that was refused is none.
            assert_eq!(page.count(&format!("{FIRST}_count"), model), responses, "{model}");
        }
        server.stop();
    });
}

#[test]
fn samples_go_with_their_model_and_begin_anew() {
    let repository = three_models();
    let mode = "--model-control-mode=explicit";
    let flags: Vec<&str> = EVERYTHING.into_iter().chain([mode, "--load-model=plain", "--load-model=cached"]).collect();
    let server = start(&repository, &flags);
    let mut peer = Peer::connect(server.http);
    assert_eq!(ask(&server, "plain", &body("[1]", &[1], "")), 200);
    let page = Page::of(server.metrics);
    assert_eq!(page.count("nv_inference_request_success", "plain"), 1);
    assert!(page.all("nv_inference_request_success", &[("model", "both")]).is_empty());
    assert_eq!(peer.post("/v2/repository/models/plain/unload", &[], b"").status, 200);
    // It goes when nothing of it is left, which unloading does not wait for.
    let page = wait_for(&server, "no sample of an unloaded model", |page| !page.text.contains("model=\"plain\""));
    let mut others = families(true, true, true, true);
    others.remove(SUMMARIES[0]);
    assert_eq!(page.families, others, "the other one has all but the summary of requests");
    assert_eq!(peer.post("/v2/repository/models/plain/load", &[], b"").status, 200);
    let page = Page::of(server.metrics);
    assert_eq!(page.count("nv_inference_request_success", "plain"), 0);
    assert_eq!(page.count("nv_inference_request_summary_us_count", "plain"), 0);
    assert!(page.value("nv_model_load_duration_secs", &[("model", "plain")]) > 0.0);
    for model in ["plain", "cached"] {
        assert_eq!(peer.post(&format!("/v2/repository/models/{model}/unload"), &[], b"").status, 200);
    }
    let page = wait_for(&server, "no sample of any model", |page| !page.text.contains("model=\""));
    assert!(page.families.keys().all(|name| !name.starts_with("nv_inference_")), "{:?}", page.families);
    server.stop();
}

#[test]
fn labels_are_namespaces_tags_and_version_1_of_ensembles() {
    let (one_place, other) = (Repository::new(), Repository::new());
    for repository in [&one_place, &other] {
        let tags = "metric_tags { key: \"team\" value: \"blue\" }";
        repository.identity_of("identity", "same", 0, &one(), tags);
    }
    one_place.model("around", &ensemble("around", "same", "version_policy { all { } }"));
    one_place.version("around", "7");
    let second = format!("--model-repository={}", other.path().display());
    let server = start(&one_place, &["--model-namespacing=true", &second]);
    let page = Page::of(server.metrics);
    for repository in [&one_place, &other] {
        let namespace = repository.path().display().to_string();
        let labels = [("model", "same"), ("namespace", &*namespace), ("_team", "blue"), ("version", "1")];
        assert_eq!(page.value("nv_inference_request_success", &labels), 0.0);
    }
    assert_eq!(page.all("nv_inference_request_success", &[("model", "around"), ("version", "1")]), ["0"]);
    assert_eq!(page.all("nv_inference_request_success", &[("model", "around")]).len(), 1, "of both versions");
    server.stop();
    let plain = Repository::new();
    plain.identity("plain", 0, &one());
    let server = start(&plain, &[]);
    assert!(!Page::of(server.metrics).text.contains("namespace="));
    server.stop();
}

/// What a client would do with a page in OpenMetrics: every family has a heading and its samples, with names that its
/// type allows, and the page has an end.
fn check_open_metrics(text: &str) -> BTreeMap<String, String> {
    let lines = text.strip_suffix("# EOF\n").expect("a page ends").lines();
    let (mut kinds, mut family) = (BTreeMap::new(), (String::new(), String::new()));
    for line in lines {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = (help.split(' ').next().unwrap_or_default().to_owned(), String::new());
        } else if let Some(heading) = line.strip_prefix("# TYPE ") {
            let (name, kind) = heading.split_once(' ').expect("a type");
            assert_eq!(name, family.0, "the type follows the help");
            family.1 = kind.to_owned();
            assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} comes twice");
        } else if let Some(unit) = line.strip_prefix("# UNIT ") {
            let (name, unit) = unit.split_once(' ').expect("a unit");
            assert!(name == family.0 && name.ends_with(&format!("_{unit}")), "{line}");
        } else {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let suffix = name.strip_prefix(&family.0).unwrap_or_else(|| panic!("'{line}' is not of {}", family.0));
            let allowed: &[&str] = match family.1.as_str() {
                "counter" => &["_total"],
                "gauge" | "unknown" => &[""],
                "summary" => &["", "_count", "_sum"],
                "histogram" => &["_bucket", "_count", "_sum"],
                other => panic!("{other}"),
            };
            assert!(allowed.contains(&suffix), "{line} is a {}", family.1);
        }
    }
    kinds
}

/// Both formats have the same samples under the same names, so that no query changes with the format.
#[test]
fn readers_of_openmetrics_get_it() {
    each(&variant::ALL, |variant| {
        let repository = three_models();
        let flags = [&EVERYTHING[..], &["--http-metrics=true"]].concat();
        let server = Server::start_in(variant, repository.path(), &flags, "/v2/health/ready", &NO_GPUS);
        let accept =
            [("Accept", "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1")];
        for address in [server.metrics, server.http] {
            let answer = Peer::connect(address).send(&request("GET", "/metrics", &accept, b"")).answer();
            let expected = Some("application/openmetrics-text; version=1.0.0; charset=utf-8");
            assert_eq!((answer.status, answer.header("content-type")), (200, expected));
            let text = answer.text();
            let kinds = check_open_metrics(&text);
            assert_eq!(kinds["nv_inference_request_success"], "unknown");
            assert_eq!(kinds["nereid_queue_full"], "counter");
            assert_eq!(kinds["nereid_request_duration_us"], "histogram");
            assert!(text.contains("nereid_request_duration_us_bucket{model=\"plain\",version=\"1\",le=\"16.0\"} 0\n"));
            let names = |text: &str| {
                let lines = text.lines().filter(|line| !line.starts_with('#'));
                // Not the values, nor the forms of bounds.
                let series = lines.filter_map(|line| line.rsplit_once(' ')).map(|(series, _)| series.to_owned());
                series.filter(|series| !series.contains("le=") && !series.contains("quantile=")).collect::<Vec<_>>()
            };
            assert_eq!(names(&text), names(&Peer::connect(address).get("/metrics").text()));
        }
        server.stop();
    });
}

/// A traced request is the exemplar of the buckets that count it; other requests are none.
#[test]
fn histograms_lead_to_traced_requests() {
    each(&variant::ALL, |variant| {
        let repository = three_models();
        let modes = ["--trace-config=mode=opentelemetry", "--trace-config=opentelemetry,url=127.0.0.1:9/v1/traces"];
        // Only requests that bring a context are traced.
        let levels = ["--trace-config=level=TIMESTAMPS", "--trace-config=rate=1000000"];
        let flags = [&EVERYTHING[..], &modes, &levels].concat();
        let server = Server::start_in(variant, repository.path(), &flags, "/v2/health/ready", &NO_GPUS);
        let page = || {
            let accept = [("Accept", "application/openmetrics-text")];
            Peer::connect(server.metrics).send(&request("GET", "/metrics", &accept, b"")).answer().text()
        };
        assert_eq!(ask(&server, "plain", &body("[1]", &[1], "")), 200);
        assert!(!page().contains(" # {"), "no request was traced");
        let id = "0af7651916cd43dd8448eb211c80319c";
        let parent = format!("00-{id}-b7ad6b7169203331-01");
        let path = "/v2/models/plain/infer";
        let answer =
            Peer::connect(server.http).post(path, &[("traceparent", &parent)], body("[1]", &[1], "").as_bytes());
        assert_eq!(answer.status, 200);
        let mut text = String::new();
        server.wait_until("the exemplars are there", || {
            text = page();
            let has = |family: &&str| {
                let start = format!("{family}_bucket{{model=\"plain\"");
                text.lines().any(|line| line.starts_with(&start) && line.contains(id))
            };
            PHASES.iter().chain([&FIRST]).all(has)
        });
        check_open_metrics(&text);
        let exemplar = format!(" # {{trace_id=\"{id}\"}} ");
        for family in PHASES.iter().chain([&FIRST]) {
            let start = format!("{family}_bucket{{model=\"plain\"");
            let found: Vec<_> = text.lines().filter(|line| line.starts_with(&start)).collect();
            let found = found.iter().filter_map(|line| line.split_once(&*exemplar));
            let (series, exemplar) = found.clone().next().unwrap_or_else(|| panic!("{family} in\n{text}"));
            assert_eq!(found.count(), 1, "{family}");
            let (bound, count) =
                series.split_once("le=\"").and_then(|(_, rest)| rest.split_once("\"} ")).expect("a bound");
            let (value, at) = exemplar.split_once(' ').expect("a value and a time");
            let number = |text: &str| text.parse::<f64>().unwrap_or_else(|_| panic!("{text} in {series}{exemplar}"));
            assert!(bound == "+Inf" || number(value) <= number(bound), "{series}{exemplar}");
            assert!(number(count) >= 1.0 && number(at) > 1.6e9, "{series}{exemplar}");
        }
        assert!(!Page::of(server.metrics).text.contains(id), "the other format has no exemplars");
        server.stop();
    });
}

#[test]
fn the_build_and_the_process_are_described() {
    let repository = Repository::new();
    repository.identity("plain", 0, &one());
    let server = start(&repository, &[]);
    let page = Page::of(server.metrics);
    for label in ["version", "triton_version", "revision", "target", "profile"] {
        let found = page.labels("nereid_build_info", label, &[]);
        assert!(matches!(&found[..], [value] if !value.is_empty()), "{label}: {found:?}");
    }
    assert_eq!(page.value("nereid_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    assert_eq!(page.value("nereid_ready", &[]), 1.0);
    assert!(page.value("nereid_pool_bytes_limit", &[]) >= page.value("nereid_pool_bytes_in_use", &[]));
    let (process, server_start) = ("process_start_time_seconds", "nereid_start_time_seconds");
    // The kernel's clock of the boot may be off by a second.
    assert!(page.value(process, &[]) <= page.value(server_start, &[]) + 1.0);
    let resident = page.value("process_resident_memory_bytes", &[]);
    assert!(resident > 1e6 && resident <= page.value("process_virtual_memory_bytes", &[]), "{resident}");
    assert!(page.value("process_open_fds", &[]) < page.value("process_max_fds", &[]));
    server.stop();
}

/// contract/http.md section 1, metrics port.
#[test]
fn the_port_answers_its_one_path() {
    let repository = Repository::new();
    repository.identity("plain", 0, &one());
    let server = start(&repository, &[]);
    let mut peer = Peer::connect(server.metrics);
    for path in ["/metrics", "/metrics/"] {
        let answer = peer.get(path);
        assert_eq!((answer.status, answer.text().contains("nv_inference_count{")), (200, true), "{path}");
    }
    // The page may have another length each time: values change.
    let answer = peer.send(&request("HEAD", "/metrics", &[], b"")).head();
    let length: usize = answer.header("content-length").expect("a length").parse().expect("a number");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("text/plain; charset=utf-8")));
    assert!(length > 1000, "{length}");
    for path in ["/", "/metrics//", "/metricsx", "/v2/health/ready"] {
        let answer = peer.get(path);
        assert_eq!((answer.status, answer.text().as_str()), (200, ""), "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let answer = peer.send(&request(method, "/metrics", &[], b"")).answer();
        assert_eq!(answer.status, 405, "{method}");
    }
    server.stop();
}

/// The gauges of the host go with their flag, and those of GPUs are not there where no GPU is.
#[test]
fn gauges_of_the_host_can_be_left_out() {
    let repository = Repository::new();
    repository.identity("plain", 0, &one());
    let server = start(&repository, &["--metrics-interval-ms=10"]);
    let total = |page: &Page| page.value("nv_cpu_memory_total_bytes", &[]);
    let page = wait_for(&server, "a first reading", |page| total(page) > 0.0);
    assert!(page.value("nv_cpu_memory_used_bytes", &[]) <= total(&page));
    assert!((0.0..=1.0).contains(&page.value("nv_cpu_utilization", &[])));
    assert!(page.families.keys().all(|name| !name.starts_with("nv_gpu_") && !name.starts_with("nv_energy")));
    server.stop();
    let server = start(&repository, &["--allow-cpu-metrics=false", "--allow-gpu-metrics=false"]);
    assert!(Page::of(server.metrics).families.keys().all(|name| !name.starts_with("nv_cpu_")));
    server.stop();
}

/// Pages of many models are written beside the requests, whoever reads them and however slowly.
#[test]
fn many_models_and_many_readers_are_all_answered() {
    each(&variant::ALL, |variant| {
        const MODELS: usize = 150;
        let repository = Repository::new();
        for model in 0..MODELS {
            repository.identity(&format!("m{model}"), 0, &one());
        }
        // Those that have not read a page yet are not slow, whatever 150 requests take.
        let patient = "--slow-peer-secs=600";
        let flags = ["--metrics-config=summary_latencies=true", "--metrics-config=histogram_phases=true", patient];
        let server = Server::start_in(variant, repository.path(), &flags, "/v2/health/ready", &NO_GPUS);
        let mut readers: Vec<Peer> = (0..16).map(|_| Peer::connect(server.metrics)).collect();
        for reader in &mut readers {
            reader.send(&request("GET", "/metrics", &[], b""));
        }
        // Nobody has read a page yet.
        for model in 0..MODELS {
            assert_eq!(ask(&server, &format!("m{model}"), &body("[1]", &[1], "")), 200);
        }
        for reader in &mut readers {
            let page = Page::read(&reader.answer().text());
            assert_eq!(page.all("nv_inference_count", &[]).len(), MODELS);
        }
        let page = Page::of(server.metrics);
        let counts = page.all("nereid_request_duration_us_count", &[]);
        assert!(!counts.is_empty() && counts.iter().all(|count| *count == "1"), "{counts:?}");
        server.stop();
    });
}

/// The same traffic for both servers: the official one has no family and no label that ours lacks.
#[test]
fn the_official_server_shows_the_same_families() {
    let (Some(words), Some(directory)) = (original(), nereid_test_support::backend::directory()) else { return };
    let backends = format!("--backend-directory={}", directory.display());
    let flags = [&*backends, "--metrics-config=summary_latencies=true", "--allow-gpu-metrics=false"];
    let series = |words: &[String], backend: &str| {
        let repository = Repository::new();
        repository.identity_of(backend, "m", 8, &one(), "metric_tags { key: \"team\" value: \"blue\" }");
        let server = Server::start_under(words, usual(), repository.path(), &flags, "/v2/health/ready");
        for numbers in [&[1, 2][..], &[3, 4]] {
            assert_eq!(ask(&server, "m", &body("[1,2]", numbers, "")), 200);
        }
        let failing = body("[1,1]", &[1], r#","parameters":{"fail":"told to"}"#);
        assert_eq!(ask(&server, "m", &failing), 400);
        let of_model = |page: &Page| page.count("nv_inference_request_success", "m");
        let page = wait_for(&server, "two successes", |page| of_model(page) == 2 && page.failures("m")[2] == 1);
        let counts: Vec<(String, String)> = ["nv_inference_count", "nv_inference_exec_count"]
            .map(|name| (name.to_owned(), page.count(name, "m").to_string()))
            .into();
        let labels = |labels: &BTreeMap<String, String>| {
            let known = |(name, value): (&String, &String)| format!("{name}={value}");
            labels.iter().map(known).collect::<Vec<_>>().join(",")
        };
        let series = page.samples.iter().map(|(name, all, _)| format!("{name}{{{}}}", labels(all)));
        // Newer than the official server that is at hand, or ours.
        let ours = ["nereid_", "process_", "nv_model_load"];
        let is_common = |name: &String| ours.iter().all(|beginning| !name.starts_with(beginning));
        let mut series: Vec<String> = series.filter(is_common).collect();
        series.sort();
        let families: Vec<_> = page.families.into_iter().filter(|(name, _)| is_common(name)).collect();
        drop(server);
        (families, series, counts)
    };
    let theirs = series(&words, "identity");
    let ours = series(&[], "copycat");
    assert_eq!(ours, theirs, "ours (left) and the official server's (right)");
}
