//! The metrics page: its families, settings and rules (contract/metrics.md sections 1 and 2).

mod latencies;
mod listing;
mod models;
mod open_metrics;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use nereid_wire::inference::ModelInferRequest;
use nereid_wire::inference::model_infer_request::InferInputTensor;

use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::usual;

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
