//! The server's own families (contract/metrics.md section 2), written from the statistics at the moment of a scrape.
//!
//! There are no second counters: these are the statistics of a model version, and this is one of their readers.

use std::collections::BTreeMap;

use super::distributions;
use super::engines;
use super::exposition::{Exposition, Kind, PageFormat, Value, push_label};
use super::host::HostGauges;
use super::registry::Registry;
use super::settings::{MetricsConfig, PHASE_FAMILIES};
use crate::exemplars::ModelExemplars;
use crate::statistics::{Distributions, Snapshot};
use nereid_request::RefusalReason;

/// What the exposition shows of one model version.
#[derive(Debug, Clone)]
pub struct ModelSample<'a> {
    pub name: &'a str,
    /// The repository, with `--model-namespacing`; else empty, and no label.
    pub namespace: &'a str,
    /// An ensemble's own series carry version 1, whatever is loaded (contract/metrics.md section 1).
    pub version: i64,
    /// The device of this sample; empty, and no label, for a sample without a device.
    pub gpu_uuid: &'a str,
    /// `metric_tags` of the configuration, in any order.
    pub tags: Vec<(&'a str, &'a str)>,
    pub snapshot: &'a Snapshot,
    /// Requests that the model has and that do not wait.
    pub running: u64,
    pub distributions: Option<&'a Distributions>,
    pub exemplars: Option<&'a ModelExemplars>,
    /// Seconds of the last load of this version.
    pub load_duration_secs: f64,
    /// The id of the generation that it is part of; empty, and no series, where none is named.
    pub generation: &'a str,
}

#[cfg(test)]
impl<'a> ModelSample<'a> {
    /// Version 1 of a model without labels of its own.
    pub fn of(name: &'a str, snapshot: &'a Snapshot) -> ModelSample<'a> {
        let tags = Vec::new();
        ModelSample {
            name,
            namespace: "",
            version: 1,
            gpu_uuid: "",
            tags,
            snapshot,
            running: 0,
            distributions: None,
            exemplars: None,
            load_duration_secs: 0.25,
            generation: "",
        }
    }
}

/// The whole text of `GET /metrics`, a part for each family. Of two `registries` that hold a family of the same name
/// the last one must be that of the process, whose samples then follow those of the other one. The time grows with the
/// number of models, so shards must not call it.
pub fn render<'a>(
    models: impl IntoIterator<Item = ModelSample<'a>>,
    config: &MetricsConfig,
    host: &HostGauges,
    registries: &[&Registry],
    format: PageFormat,
) -> Vec<String> {
    let models: Vec<_> = models.into_iter().map(|model| (LabelText::new(&model), model)).collect();
    let mut exposition = Exposition::with_capacity(format, models.len().saturating_mul(MODEL_BYTES));
    let mut text = String::new();
    let [successes, others @ ..] = PER_MODEL_COUNTERS;
    write_counter(&mut exposition, &models, successes, config);
    write_failures(&mut exposition, &models, config);
    others.iter().for_each(|counter| write_counter(&mut exposition, &models, counter, config));
    if config.counter_latencies {
        PER_MODEL_DURATIONS.iter().for_each(|counter| write_counter(&mut exposition, &models, counter, config));
    }
    let help = "Instantaneous number of pending requests awaiting execution per-model.";
    let mut family = exposition.family("nv_inference_pending_request_count", help, Kind::Gauge);
    for (labels, model) in &models {
        family.sample(labels.plain(), Value::Integer(model.snapshot.pending));
    }
    if config.counter_latencies {
        write_cache(&mut exposition, &models);
    }
    let help = "Model load time in seconds";
    let mut family = exposition.family("nv_model_load_duration_secs", help, Kind::Gauge);
    for (labels, model) in models.iter().filter(|(_, model)| model.gpu_uuid.is_empty()) {
        family.sample(labels.plain(), Value::Real(model.load_duration_secs));
    }
    let help = "1, with the id of the state of its model that the version is part of";
    let mut family = exposition.family(GENERATION, help, Kind::Gauge);
    for (labels, model) in models.iter().filter(|(_, model)| model.gpu_uuid.is_empty() && !model.generation.is_empty())
    {
        family.sample(&labels.with_generation(model.generation), Value::Integer(1));
    }
    let mut family = exposition.family(QUEUE_FULL, "Requests refused because their queue was full", Kind::Counter);
    for (labels, model) in models.iter().filter(|(_, model)| model.gpu_uuid.is_empty()) {
        let [queue_full, ..] = model.snapshot.refused;
        family.sample(labels.plain(), Value::Integer(queue_full));
    }
    let help = "Requests refused by the bounds of their model";
    let mut family = exposition.family(REFUSED, help, Kind::Counter);
    for (labels, model) in models.iter().filter(|(_, model)| model.gpu_uuid.is_empty()) {
        for (reason, count) in RefusalReason::OF_MODEL.into_iter().zip(model.snapshot.refused) {
            family.sample(labels.with_reason(reason.name(), &mut text), Value::Integer(count));
        }
    }
    distributions::write(&mut exposition, &models, config);
    host.render(&mut exposition);
    registries.iter().for_each(|registry| registry.render(&mut exposition));
    engines::write(&mut exposition, &models, config.engine, registries);
    exposition.into_parts()
}

/// About what a family has of one model; memory that is reserved and not used costs nothing.
const MODEL_BYTES: usize = 128;
const GENERATION: &str = "nereid_model_generation_info";
/// Our own family: Triton does not count refused requests.
const QUEUE_FULL: &str = "nereid_queue_full_total";
const REFUSED: &str = "nereid_model_refused_requests_total";

/// Families with these prefixes are the server's, exposed or not: a second family of the same name would make the whole
/// text invalid. Other `nv_…` names are free; TensorRT-LLM's backend uses some.
pub fn is_reserved(name: &str) -> bool {
    const BEGINNINGS: [&str; 7] =
        ["nv_inference_", "nv_cache_", "nv_gpu_", "nv_energy_", "nv_cpu_", "nv_pinned_memory_pool_", "nv_model_load_"];
    BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)) || is_per_model(name)
}

/// The kind of a family with a [reserved](is_reserved) name.
pub fn kind_of_core(name: &str) -> Kind {
    const GAUGES: [&str; 5] =
        ["nv_gpu_", "nv_cpu_", "nv_pinned_memory_pool_", "nv_model_load_", "nv_inference_pending_request_count"];
    match name {
        _ if GAUGES.iter().any(|beginning| name.starts_with(beginning)) => Kind::Gauge,
        _ if name.contains("_histogram_") => Kind::Histogram,
        _ if name.contains("_summary_") => Kind::Summary,
        _ => Kind::Counter,
    }
}

/// Names with this prefix are those of our own families, for each server.
pub fn is_own(name: &str) -> bool {
    name.starts_with("nereid_")
}

/// Whether a line of one of our own per-model families could begin with this name.
fn is_per_model(name: &str) -> bool {
    let families = PHASE_FAMILIES.into_iter().chain([GENERATION, QUEUE_FULL, REFUSED]);
    families.into_iter().any(|family| name.starts_with(family))
}

/// Name, help and value.
type CounterFamily = (&'static str, &'static str, fn(&Snapshot) -> u64);

const PER_MODEL_COUNTERS: &[CounterFamily; 3] = &[
    ("nv_inference_request_success", "Number of successful inference requests, all batch sizes", |s| s.success.count),
    ("nv_inference_count", "Number of inferences performed (does not include cached requests)", |s| s.inference_count),
    ("nv_inference_exec_count", "Number of model executions performed (does not include cached requests)", |s| {
        s.execution_count
    }),
];

const PER_MODEL_DURATIONS: &[CounterFamily; 5] = &[
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        |s| s.durations_us.request,
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        |s| s.durations_us.queue,
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        |s| s.durations_us.compute_input,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        |s| s.durations_us.compute_infer,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        |s| s.durations_us.compute_output,
    ),
];

fn write_counter(
    exposition: &mut Exposition,
    models: &[(LabelText, ModelSample<'_>)],
    (name, help, read): &CounterFamily,
    config: &MetricsConfig,
) {
    let mut family = exposition.family(name, help, Kind::Counter);
    for (labels, model) in models {
        family.sample(labels.plain(), counted(read(model.snapshot), config));
    }
}

/// Without the counters of latencies the others never increase (contract/metrics.md section 1, settings).
fn counted(count: u64, config: &MetricsConfig) -> Value {
    Value::Integer(if config.counter_latencies { count } else { 0 })
}

const CACHE_COUNTERS: &[CounterFamily; 4] = &[
    ("nv_cache_num_hits_per_model", "Number of cache hits per model", |s| s.cache_hit.count),
    ("nv_cache_num_misses_per_model", "Number of cache misses per model", |s| s.cache_miss.count),
    ("nv_cache_hit_duration_per_model", "Total cache hit duration per model, in microseconds", |s| {
        s.durations_us.cache_hit
    }),
    ("nv_cache_miss_duration_per_model", "Total cache miss (insert+lookup) duration per model, in microseconds", |s| {
        s.durations_us.cache_miss
    }),
];

/// Only where there is a cache, and only for models that use it.
fn write_cache(exposition: &mut Exposition, models: &[(LabelText, ModelSample<'_>)]) {
    if !models.iter().any(|(_, model)| model.snapshot.is_caching) {
        return;
    }
    for (name, help, read) in CACHE_COUNTERS {
        let mut family = exposition.family(name, help, Kind::Counter);
        for (labels, model) in models.iter().filter(|(_, model)| model.snapshot.is_caching) {
            family.sample(labels.plain(), Value::Integer(read(model.snapshot)));
        }
    }
}

/// All four reasons from the load on, at 0.
fn write_failures(exposition: &mut Exposition, models: &[(LabelText, ModelSample<'_>)], config: &MetricsConfig) {
    let help = "Number of failed inference requests, all batch sizes";
    let mut text = String::new();
    let mut family = exposition.family("nv_inference_request_failure", help, Kind::Counter);
    for (labels, model) in models {
        let failures = &model.snapshot.failures;
        let reasons = [
            ("REJECTED", failures.rejected),
            ("CANCELED", failures.canceled),
            ("BACKEND", failures.backend),
            ("OTHER", failures.other),
        ];
        for (reason, count) in reasons {
            family.sample(labels.with_reason(reason, &mut text), counted(count, config));
        }
    }
}

/// Bytes of some labels as most models have them.
const LABEL_BYTES: usize = 64;

/// Labels of a model in the order of their names, as Triton prints them; `reason` sorts between the two parts.
pub(super) struct LabelText {
    until_model: String,
    /// Bytes of it before the label `model`, without a comma at the end.
    before_model: usize,
    version: String,
    all: String,
}

impl LabelText {
    fn new(model: &ModelSample<'_>) -> LabelText {
        let mut tags = BTreeMap::new();
        for (key, value) in &model.tags {
            // A key that is no valid label name is changed into one; of two that become equal the second is left out.
            let valid = |char: char| if char.is_ascii_alphanumeric() { char } else { '_' };
            tags.entry(key.chars().map(valid).collect::<String>()).or_insert(*value);
        }
        let mut until_model = String::with_capacity(LABEL_BYTES);
        for (key, value) in tags {
            push_label(&mut until_model, &format!("_{key}"), value);
        }
        if !model.gpu_uuid.is_empty() {
            push_label(&mut until_model, "gpu_uuid", model.gpu_uuid);
        }
        let before_model = until_model.len();
        push_label(&mut until_model, "model", model.name);
        if !model.namespace.is_empty() {
            push_label(&mut until_model, "namespace", model.namespace);
        }
        let version = model.version.to_string();
        let mut all = String::with_capacity(until_model.len() + LABEL_BYTES);
        all.push_str(&until_model);
        push_label(&mut all, "version", &version);
        LabelText { until_model, before_model, version, all }
    }

    pub(super) fn plain(&self) -> &str {
        &self.all
    }

    fn with_generation(&self, generation: &str) -> String {
        let (before, rest) = self.all.split_at(self.before_model);
        let mut labels = before.to_owned();
        push_label(&mut labels, "generation", generation);
        labels.push(',');
        labels.push_str(rest.trim_start_matches(','));
        labels
    }

    /// Written to `text`, in place of what it has: a page has eight of these for each model. Neither of the two labels
    /// has anything to escape.
    fn with_reason<'t>(&self, reason: &'static str, text: &'t mut String) -> &'t str {
        text.clear();
        for part in [self.until_model.as_str(), ",reason=\"", reason, "\",version=\"", &self.version, "\""] {
            text.push_str(part);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::{DurationsUs, Failures, Tally};

    const GOLDEN: &str = include_str!("golden.txt");

    fn snapshot() -> Snapshot {
        Snapshot {
            inference_count: 12,
            execution_count: 3,
            success: Tally { count: 4, ns: 1 },
            failures: Failures { rejected: 1, canceled: 2, backend: 3, other: 4 },
            pending: 5,
            refused: [6, 7, 8, 9],
            durations_us: DurationsUs {
                request: 100,
                queue: 10,
                compute_input: 20,
                compute_infer: 30,
                compute_output: 40,
                ..DurationsUs::default()
            },
            ..Snapshot::default()
        }
    }

    fn sample<'a>(name: &'a str, snapshot: &'a Snapshot) -> ModelSample<'a> {
        ModelSample::of(name, snapshot)
    }

    fn render<'a>(models: impl IntoIterator<Item = ModelSample<'a>>, host: &HostGauges, registry: &Registry) -> String {
        super::render(models, &MetricsConfig::default(), host, &[registry], PageFormat::Text).concat()
    }

    /// contract/metrics.md section 1: the series of devices stand behind the one without a device.
    #[test]
    fn executions_on_a_device_have_its_label() {
        let (idle, busy) = (Snapshot { pending: 2, ..Snapshot::default() }, snapshot());
        let tags = vec![("zone", "a")];
        let model = ModelSample { tags: tags.clone(), namespace: "n", ..sample("m", &idle) };
        let device = ModelSample { gpu_uuid: "GPU-1", tags, namespace: "n", ..sample("m", &busy) };
        let text = render([model, device], &HostGauges::new(false, 0), &Registry::default());
        let of = |family: &str| text.lines().filter(|line| line.starts_with(family)).collect::<Vec<_>>();
        let plain = r#"nv_inference_count{_zone="a",model="m",namespace="n",version="1"} 0"#;
        let labelled = r#"nv_inference_count{_zone="a",gpu_uuid="GPU-1",model="m",namespace="n",version="1"} 12"#;
        assert_eq!(of("nv_inference_count"), [plain, labelled]);
        let failures = of("nv_inference_request_failure");
        let failed = concat!(
            r#"nv_inference_request_failure{_zone="a",gpu_uuid="GPU-1",model="m",namespace="n",reason="BACKEND","#,
            r#"version="1"} 3"#
        );
        assert!(failures.len() == 8 && failures.contains(&failed), "{failures:?}");
        for family in ["nv_model_load_duration_secs", "nereid_queue_full_total"] {
            assert_eq!(of(family).len(), 1, "{family} is of the whole model");
        }
    }

    /// contract/metrics.md section 1: the five durations and the four of the cache go, the others freeze, gauges live
    /// on.
    #[test]
    fn without_counters_of_latencies_the_others_freeze() {
        let caching = Snapshot { is_caching: true, cache_hit: Tally { count: 7, ns: 1 }, ..snapshot() };
        let config = MetricsConfig { counter_latencies: false, ..MetricsConfig::default() };
        let parts = super::render([sample("m", &caching)], &config, &HostGauges::new(false, 0), &[], PageFormat::Text);
        let text = parts.concat();
        let samples: Vec<_> = text.lines().filter(|line| line.contains("model=")).collect();
        let expected = [
            r#"nv_inference_request_success{model="m",version="1"} 0"#,
            r#"nv_inference_request_failure{model="m",reason="REJECTED",version="1"} 0"#,
            r#"nv_inference_request_failure{model="m",reason="CANCELED",version="1"} 0"#,
            r#"nv_inference_request_failure{model="m",reason="BACKEND",version="1"} 0"#,
            r#"nv_inference_request_failure{model="m",reason="OTHER",version="1"} 0"#,
            r#"nv_inference_count{model="m",version="1"} 0"#,
            r#"nv_inference_exec_count{model="m",version="1"} 0"#,
            r#"nv_inference_pending_request_count{model="m",version="1"} 5"#,
            r#"nv_model_load_duration_secs{model="m",version="1"} 0.25"#,
            r#"nereid_queue_full_total{model="m",version="1"} 6"#,
            r#"nereid_model_refused_requests_total{model="m",reason="queue_full",version="1"} 6"#,
            r#"nereid_model_refused_requests_total{model="m",reason="deadline",version="1"} 7"#,
            r#"nereid_model_refused_requests_total{model="m",reason="model_memory",version="1"} 8"#,
            r#"nereid_model_refused_requests_total{model="m",reason="model_calls",version="1"} 9"#,
        ];
        assert_eq!(samples, expected);
    }

    #[test]
    fn the_generation_stands_in_the_order_of_labels() {
        let snapshot = Snapshot::default();
        let (tags, namespace, generation) = (vec![("zone", "a")], "n", "0a1b-2");
        let tagged = ModelSample { tags, namespace, generation, ..sample("m", &snapshot) };
        let (plain, unnamed) = (ModelSample { generation, ..sample("p", &snapshot) }, sample("u", &snapshot));
        let text = render([tagged, plain, unnamed], &HostGauges::new(false, 0), &Registry::default());
        let of: Vec<_> = text.lines().filter(|line| line.starts_with(GENERATION)).collect();
        let expected = [
            r#"nereid_model_generation_info{_zone="a",generation="0a1b-2",model="m",namespace="n",version="1"} 1"#,
            r#"nereid_model_generation_info{generation="0a1b-2",model="p",version="1"} 1"#,
        ];
        assert_eq!(of, expected);
    }

    #[test]
    fn names_of_the_servers_own_families_are_not_to_be_had() {
        let registry = Registry::default();
        for name in ["nv_inference_x", "nereid_queue_full_total", "nereid_request_duration_us_count"] {
            assert!(registry.counter_family(name, "x").is_err(), "{name}");
        }
        assert!(registry.counter_family("nereid_other", "x").is_ok());
        let refused = Registry::of_process().counter_family("nereid_other", "x").unwrap_err();
        assert_eq!(refused.to_string(), "metric family 'nereid_other' belongs to the server");
    }

    #[test]
    fn one_model_reads_as_expected() {
        let snapshot = snapshot();
        let model = ModelSample { tags: vec![("team", "a \"b\""), ("site", "x")], ..sample("simple", &snapshot) };
        let registry = Registry::default();
        let connections = registry.gauge("nereid_connections", "Open connections", &[("port", "http")], || 2.0);
        assert_eq!(render([model], &HostGauges::new(true, 0), &registry), GOLDEN);
        drop(connections);
    }

    /// A page of many models is one of a family after the other, with the lines that each model has alone; samples that
    /// code of models adds to a family of the server's stand in its part.
    #[test]
    fn a_page_of_many_models_has_a_part_for_each_family() {
        let snapshot = snapshot();
        let names: Vec<String> = (0..1000).map(|at| format!("m{at}")).collect();
        let registry = Registry::of_process();
        let family = registry.custom_family("nv_inference_pending_request_count", "", Kind::Gauge).unwrap();
        let _kept = [("model", "m7"), ("model", "not a model")].map(|label| family.metric(&[label], &[]).unwrap());
        let page = |models: &[String], format| {
            let models = models.iter().map(|name| sample(name, &snapshot));
            super::render(models, &MetricsConfig::default(), &HostGauges::new(true, 0), &[registry], format)
        };
        for format in [PageFormat::Text, PageFormat::OpenMetrics] {
            let parts = page(&names, format);
            let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for name in &names {
                for part in page(std::slice::from_ref(name), format) {
                    let (head, lines): (Vec<_>, Vec<_>) = part.lines().partition(|line| line.starts_with('#'));
                    let all = expected.entry(head.join("\n")).or_default();
                    let is_models = |line: &&str| line.contains(&format!("model=\"{name}\",")) || all.is_empty();
                    let lines: Vec<String> = lines.into_iter().filter(is_models).map(str::to_owned).collect();
                    all.extend(lines);
                }
            }
            assert_eq!(parts.len(), expected.len());
            for part in parts {
                let (head, mut lines): (Vec<_>, Vec<_>) = part.lines().partition(|line| line.starts_with('#'));
                let mut expected = expected.remove(&head.join("\n")).expect("a family comes once");
                lines.sort_unstable();
                expected.sort_unstable();
                assert_eq!(lines, expected, "{head:?}");
            }
        }
    }

    #[test]
    fn the_cache_shows_for_models_that_use_it() {
        let (plain, mut caching) = (snapshot(), snapshot());
        caching.is_caching = true;
        (caching.cache_hit, caching.cache_miss) = (Tally { count: 7, ns: 1 }, Tally { count: 8, ns: 1 });
        (caching.durations_us.cache_hit, caching.durations_us.cache_miss) = (9, 10);
        let page = |models: Vec<ModelSample<'_>>| render(models, &HostGauges::new(false, 0), &Registry::default());
        assert!(!page(vec![sample("a", &plain)]).contains("nv_cache_"));
        let text = page(vec![sample("a", &plain), sample("b", &caching)]);
        let samples: Vec<_> = text.lines().filter(|line| line.starts_with("nv_cache_")).collect();
        let expected = [
            r#"nv_cache_num_hits_per_model{model="b",version="1"} 7"#,
            r#"nv_cache_num_misses_per_model{model="b",version="1"} 8"#,
            r#"nv_cache_hit_duration_per_model{model="b",version="1"} 9"#,
            r#"nv_cache_miss_duration_per_model{model="b",version="1"} 10"#,
        ];
        assert_eq!(samples, expected);
    }

    #[test]
    fn a_server_without_models_and_cpu_metrics_shows_the_pinned_pool_only() {
        let text = render([], &HostGauges::new(false, 4096), &Registry::default());
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(samples, ["nv_pinned_memory_pool_total_bytes 4096", "nv_pinned_memory_pool_used_bytes 0"]);
    }

    #[test]
    fn tags_that_cannot_be_labels_are_bent() {
        let snapshot = Snapshot::default();
        let tags = vec![("a-b", "1"), ("a b", "2"), ("ü", "3"), ("", "4")];
        let model = ModelSample { tags, ..sample("m", &snapshot) };
        let spaced = ModelSample { namespace: "/repository", ..sample("m", &snapshot) };
        assert_eq!(LabelText::new(&spaced).plain(), r#"model="m",namespace="/repository",version="1""#);
        assert_eq!(LabelText::new(&model).plain(), r#"_="4",__="3",_a_b="1",model="m",version="1""#);
    }

    /// Reads the text back as a scraper would: every name, label and value, and the shape of the whole.
    #[test]
    fn the_text_parses_back() {
        let (first, second) = (snapshot(), Snapshot::default());
        let nasty = "quote\" back\\slash\nnewline } # {";
        let registry = Registry::default();
        let family = registry.counter_family("backend_total", "Line one\nline two").unwrap();
        let counter = family.counter(&[("what", nasty)]).unwrap();
        counter.increment(1);
        family.metric(&[("what", nasty)], &[]).unwrap().increment(0.5).unwrap();
        let text = render([sample(nasty, &first), sample("m", &second)], &HostGauges::new(true, 0), &registry);
        let samples = parse(&text);
        let find = |name: &str, labels: &[(&str, &str)]| {
            let labels: BTreeMap<_, _> = labels.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
            let found: Vec<_> = samples.iter().filter(|s| s.0 == name && s.1 == labels).map(|s| s.2).collect();
            assert_eq!(found.len(), 1, "{name} {labels:?}");
            found[0]
        };
        assert_eq!(find("nv_inference_count", &[("model", nasty), ("version", "1")]), 12.0);
        assert_eq!(find("nv_inference_count", &[("model", "m"), ("version", "1")]), 0.0);
        let reason = [("model", nasty), ("version", "1"), ("reason", "BACKEND")];
        assert_eq!(find("nv_inference_request_failure", &reason), 3.0);
        assert_eq!(find("backend_total", &[("what", nasty)]), 1.5);
        // 9 counters, 4 reasons of failures, 4 of refusals and 2 gauges for each model; 5 of the host; 1 custom.
        assert_eq!(samples.len(), 2 * (9 + 4 + 4 + 2) + 5 + 1);
    }

    type Parsed = (String, BTreeMap<String, String>, f64);

    fn parse(text: &str) -> Vec<Parsed> {
        assert!(text.ends_with('\n'));
        let (mut samples, mut lines) = (Vec::new(), text.lines().peekable());
        let mut seen = std::collections::HashSet::new();
        while let Some(line) = lines.next() {
            let family = line.strip_prefix("# HELP ").unwrap().split(' ').next().unwrap();
            assert!(seen.insert(family), "{family} comes once");
            let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {family} ")).unwrap();
            assert!(["counter", "gauge"].contains(&kind));
            let before = samples.len();
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                let (name, labels, value) = parse_sample(line);
                assert_eq!(name, family);
                samples.push((name, labels, value));
            }
            assert!(samples.len() > before, "{family} has samples");
        }
        samples
    }

    fn parse_sample(line: &str) -> Parsed {
        let name_end = line.find(['{', ' ']).unwrap();
        let (name, mut rest) = line.split_at(name_end);
        let mut labels = BTreeMap::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                let (label, after) = rest.split_once("=\"").unwrap();
                let (mut value, mut chars) = (String::new(), after.char_indices());
                let end = loop {
                    match chars.next().unwrap() {
                        (_, '\\') => value.push(match chars.next().unwrap().1 {
                            'n' => '\n',
                            other => other,
                        }),
                        (end, '"') => break end,
                        (_, char) => value.push(char),
                    }
                };
                assert!(labels.insert(label.to_owned(), value).is_none());
                rest = &after[end + 1..];
                match rest.strip_prefix(',') {
                    Some(next) => rest = next,
                    None => break,
                }
            }
            rest = rest.strip_prefix('}').unwrap();
        }
        (name.to_owned(), labels, rest.strip_prefix(' ').unwrap().parse().unwrap())
    }
}
