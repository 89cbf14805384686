//! Queue, running requests and key-value cache of every model under the names of another engine (`--engine-metrics`),
//! so that an endpoint picker that knows only that engine can route by them (contract/scale_out.md section 5).
//!
//! Such a picker takes one sample of each family, the last one: samples stand in the order of their values, so that it
//! sees the most loaded model. A model that publishes a family by itself keeps its own sample.

use std::collections::{HashMap, HashSet};

use super::exposition::{Exposition, Kind, Value, push_label};
use super::families::{LabelText, ModelSample};
use super::registry::Registry;
use crate::load::CacheUse;

/// The engine whose names are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EngineMetrics {
    #[default]
    None,
    Vllm,
    /// The TensorRT-LLM backend of Triton.
    Triton,
    /// trtllm-serve.
    Trtllm,
    Sglang,
}

/// The family of a backend's key-value cache, and the label that names what a sample counts.
pub const CACHE_FAMILY: &str = "nv_trt_llm_kv_cache_block_metrics";
pub const CACHE_KIND: &str = "kv_cache_block_type";

/// A family's name, and for families that several values share the label that tells them apart.
#[derive(Debug, Clone, Copy)]
struct Name {
    family: &'static str,
    kind: Option<(&'static str, &'static str)>,
}

const fn plain(family: &'static str) -> Name {
    Name { family, kind: None }
}

const fn with(family: &'static str, label: &'static str, kind: &'static str) -> Name {
    Name { family, kind: Some((label, kind)) }
}

/// The names of one engine.
struct Names {
    queued: Name,
    running: Name,
    cache_used: Name,
    /// Size of a block in tokens, and number of blocks; of vLLM labels of one family.
    blocks: Option<(Name, Name)>,
}

/// vLLM's family of the cache's sizes.
const VLLM_CACHE_INFO: &str = "vllm:cache_config_info";

impl EngineMetrics {
    fn names(self) -> Option<Names> {
        Some(match self {
            EngineMetrics::None => return None,
            EngineMetrics::Vllm => Names {
                queued: plain("vllm:num_requests_waiting"),
                running: plain("vllm:num_requests_running"),
                cache_used: plain("vllm:kv_cache_usage_perc"),
                blocks: None,
            },
            EngineMetrics::Triton => Names {
                queued: with("nv_trt_llm_request_metrics", "request_type", "waiting"),
                running: with("nv_trt_llm_request_metrics", "request_type", "scheduled"),
                cache_used: with(CACHE_FAMILY, CACHE_KIND, "fraction"),
                // What these would be made from.
                blocks: None,
            },
            EngineMetrics::Trtllm => Names {
                queued: plain("trtllm_num_requests_waiting"),
                running: plain("trtllm_num_requests_running"),
                cache_used: plain("trtllm_kv_cache_utilization"),
                blocks: Some((plain("trtllm_kv_cache_tokens_per_block"), plain("trtllm_kv_cache_max_blocks"))),
            },
            EngineMetrics::Sglang => Names {
                queued: plain("sglang:num_queue_reqs"),
                running: plain("sglang:num_running_reqs"),
                cache_used: plain("sglang:token_usage"),
                blocks: Some((plain("sglang:page_size"), plain("sglang:num_pages"))),
            },
        })
    }

    /// The name of a model is this label's value.
    fn model_label(self) -> &'static str {
        if self == EngineMetrics::Triton { "model" } else { "model_name" }
    }
}

/// The cache of one model, as its backend publishes it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ModelCache {
    tokens_per_block: Option<f64>,
    used: Option<f64>,
    max: Option<f64>,
    fraction: Option<f64>,
}

impl ModelCache {
    /// The newest sample of each kind, whichever model has it. A number that is none counts as missing.
    pub fn newest(metrics: &Registry) -> ModelCache {
        let mut cache = ModelCache::default();
        metrics.read(CACHE_FAMILY, |labels, value| cache.note(labels, value));
        cache
    }

    /// The newest samples of each model, read once for all of them.
    fn by_model(metrics: &Registry) -> HashMap<String, ModelCache> {
        let mut caches: HashMap<String, ModelCache> = HashMap::new();
        metrics.read(CACHE_FAMILY, |labels, value| {
            if let Some(model) = value_of(labels, "model") {
                caches.entry(model.to_owned()).or_default().note(labels, value);
            }
        });
        caches
    }

    fn note(&mut self, labels: &[(String, String)], value: f64) {
        if !value.is_finite() || value < 0.0 {
            return;
        }
        match value_of(labels, CACHE_KIND) {
            Some("tokens_per") => self.tokens_per_block = Some(value),
            Some("used") => self.used = Some(value),
            Some("max") => self.max = Some(value),
            Some("fraction") => self.fraction = Some(value),
            _ => {}
        }
    }

    /// For load reports; none unless all that it is made from is there.
    pub fn in_use(&self) -> Option<CacheUse> {
        let (tokens, used, max) = (self.tokens_per_block?, self.used?, self.max?);
        let utilization = Some(used / max).filter(|part| part.is_finite()).unwrap_or(0.0);
        Some(CacheUse { utilization, tokens_max: (max as u64).saturating_mul(tokens as u64) })
    }

    /// From 0 to 1. A model without a cache uses nothing of it.
    fn used_part(&self) -> f64 {
        let of_blocks = self.used.zip(self.max).filter(|(_, max)| *max > 0.0).map(|(used, max)| used / max);
        of_blocks.or(self.fraction).unwrap_or(0.0).min(1.0)
    }
}

/// Adds the families to what the registries have shown already.
pub(super) fn write(
    exposition: &mut Exposition,
    models: &[(LabelText, ModelSample<'_>)],
    engine: EngineMetrics,
    registries: &[&Registry],
) {
    let Some(names) = engine.names() else { return };
    let models = || models.iter().map(|(_, model)| model).filter(|model| model.gpu_uuid.is_empty());
    let known: Vec<_> = registries.iter().map(|registry| ModelCache::by_model(registry)).collect();
    let cache_of = |name: &str| {
        let caches = known.iter().filter_map(|caches| caches.get(name)).copied();
        caches.into_iter().find(|cache| *cache != ModelCache::default())
    };
    let mut page = Page { exposition, engine, registries };
    let queue_help = "Requests that wait for an instance of the model";
    page.family(names.queued, queue_help, models().map(|model| (model, Value::Integer(model.snapshot.pending))));
    let running_help = "Requests that the model has and that do not wait";
    page.family(names.running, running_help, models().map(|model| (model, Value::Integer(model.running))));
    let caches: Vec<_> = models().map(|model| (model, cache_of(model.name))).collect();
    let used = caches.iter().map(|(model, cache)| (*model, Value::Real(cache.unwrap_or_default().used_part())));
    page.family(names.cache_used, "Part of the key-value cache that is in use; 0 without a cache", used);
    if let Some((size, count)) = names.blocks {
        let of = |read: fn(&ModelCache) -> Option<f64>| {
            let values = caches.iter().filter_map(move |(model, cache)| Some((*model, read(cache.as_ref()?)?)));
            values.map(|(model, value)| (model, Value::Real(value)))
        };
        page.family(size, "Tokens in a block of the key-value cache", of(|cache| cache.tokens_per_block));
        page.family(count, "Blocks of the key-value cache", of(|cache| cache.max));
    }
    if engine == EngineMetrics::Vllm {
        page.vllm_cache_info(&caches);
    }
}

struct Page<'a> {
    exposition: &'a mut Exposition,
    engine: EngineMetrics,
    registries: &'a [&'a Registry],
}

impl Page<'_> {
    /// One sample for each model that has none of its own, the greatest value last.
    fn family<'m>(&mut self, name: Name, help: &str, values: impl Iterator<Item = (&'m ModelSample<'m>, Value)>) {
        let own = self.publishers(name);
        let values = values.filter(|(model, _)| !own.contains(model.name));
        let mut values: Vec<_> = values.map(|(model, value)| (self.labels(model, name.kind), value)).collect();
        values.sort_by(|(_, one), (_, other)| one.as_f64().total_cmp(&other.as_f64()));
        self.add(name.family, help, &values);
    }

    fn add(&mut self, family: &str, help: &str, values: &[(String, Value)]) {
        let mut own = Exposition::new(self.exposition.format());
        let mut samples = own.family(family, help, Kind::Gauge);
        values.iter().for_each(|(labels, value)| samples.sample(labels, *value));
        self.exposition.add_to_family(family, own);
    }

    /// The sizes stand in labels.
    fn vllm_cache_info(&mut self, caches: &[(&ModelSample<'_>, Option<ModelCache>)]) {
        let own = self.publishers(plain(VLLM_CACHE_INFO));
        let mut values = Vec::new();
        for (model, cache) in caches {
            let sizes = cache.and_then(|cache| Some((cache.tokens_per_block?, cache.max?)));
            let Some((size, count)) = sizes.filter(|_| !own.contains(model.name)) else {
                continue;
            };
            let mut labels = String::new();
            push_label(&mut labels, "block_size", &Value::Real(size).to_string());
            push_label(&mut labels, "num_gpu_blocks", &Value::Real(count).to_string());
            values.push((format!("{},{labels}", self.labels(model, None)), Value::Integer(1)));
        }
        self.add(VLLM_CACHE_INFO, "Sizes of the key-value cache", &values);
    }

    fn labels(&self, model: &ModelSample<'_>, kind: Option<(&str, &str)>) -> String {
        let mut labels = String::new();
        push_label(&mut labels, self.engine.model_label(), model.name);
        if !model.namespace.is_empty() {
            push_label(&mut labels, "namespace", model.namespace);
        }
        if let Some((label, kind)) = kind {
            push_label(&mut labels, label, kind);
        }
        push_label(&mut labels, "version", &model.version.to_string());
        labels
    }

    /// The models that have a sample of their own, or whose backends have.
    fn publishers(&self, name: Name) -> HashSet<String> {
        let mut found = HashSet::new();
        for registry in self.registries {
            registry.read(name.family, |labels, _| {
                if name.kind.is_none_or(|(label, kind)| value_of(labels, label) == Some(kind)) {
                    let models = ["model", "model_name"].into_iter().filter_map(|label| value_of(labels, label));
                    found.extend(models.map(str::to_owned));
                }
            });
        }
        found
    }
}

fn value_of<'a>(labels: &'a [(String, String)], label: &str) -> Option<&'a str> {
    labels.iter().find(|(name, _)| name == label).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::{HostGauges, MetricsConfig, PageFormat, render};
    use super::*;
    use crate::statistics::Snapshot;

    fn page(engine: EngineMetrics, models: &[(&str, u64, u64)], registry: &Registry) -> Vec<String> {
        let snapshots: Vec<_> =
            models.iter().map(|(_, pending, _)| Snapshot { pending: *pending, ..Snapshot::default() }).collect();
        let samples = models.iter().zip(&snapshots);
        let samples = samples
            .map(|((name, _, running), snapshot)| ModelSample { running: *running, ..ModelSample::of(name, snapshot) });
        let config = MetricsConfig { engine, ..MetricsConfig::default() };
        let text = render(samples, &config, &HostGauges::new(false, 0), &[registry], PageFormat::Text).concat();
        let is_engines =
            |line: &&str| ["vllm:", "sglang:", "trtllm_", "nv_trt_llm"].iter().any(|name| line.contains(name));
        text.lines().filter(is_engines).map(str::to_owned).collect()
    }

    const MODELS: [(&str, u64, u64); 2] = [("a", 7, 1), ("b", 0, 2)];

    #[test]
    fn no_engine_means_no_family() {
        assert_eq!(page(EngineMetrics::None, &MODELS, &Registry::default()), [""; 0]);
    }

    #[test]
    fn the_most_loaded_model_stands_last() {
        let lines = page(EngineMetrics::Vllm, &MODELS, &Registry::default());
        let samples: Vec<_> = lines.iter().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            r#"vllm:num_requests_waiting{model_name="b",version="1"} 0"#,
            r#"vllm:num_requests_waiting{model_name="a",version="1"} 7"#,
            r#"vllm:num_requests_running{model_name="a",version="1"} 1"#,
            r#"vllm:num_requests_running{model_name="b",version="1"} 2"#,
            r#"vllm:kv_cache_usage_perc{model_name="a",version="1"} 0"#,
            r#"vllm:kv_cache_usage_perc{model_name="b",version="1"} 0"#,
        ];
        assert_eq!(samples, expected.iter().collect::<Vec<_>>());
        assert!(lines.contains(&"# TYPE vllm:num_requests_waiting gauge".to_owned()));
    }

    #[test]
    fn sizes_of_a_cache_are_shown_where_a_model_publishes_them() {
        let registry = Registry::default();
        let gauge = |kind: &str, value: f64| {
            registry.gauge(CACHE_FAMILY, "", &[("model", "b"), (CACHE_KIND, kind), ("version", "1")], move || value)
        };
        let _keep = [gauge("tokens_per", 64.0), gauge("used", 2.0), gauge("max", 8.0)].map(Result::unwrap);
        for (engine, expected) in [
            (
                EngineMetrics::Vllm,
                &[
                    r#"vllm:kv_cache_usage_perc{model_name="b",version="1"} 0.25"#,
                    r#"vllm:cache_config_info{model_name="b",version="1",block_size="64",num_gpu_blocks="8"} 1"#,
                ][..],
            ),
            (
                EngineMetrics::Trtllm,
                &[
                    r#"trtllm_kv_cache_utilization{model_name="b",version="1"} 0.25"#,
                    r#"trtllm_kv_cache_tokens_per_block{model_name="b",version="1"} 64"#,
                    r#"trtllm_kv_cache_max_blocks{model_name="b",version="1"} 8"#,
                ],
            ),
            (
                EngineMetrics::Sglang,
                &[
                    r#"sglang:num_queue_reqs{model_name="a",version="1"} 7"#,
                    r#"sglang:num_running_reqs{model_name="b",version="1"} 2"#,
                    r#"sglang:token_usage{model_name="b",version="1"} 0.25"#,
                    r#"sglang:page_size{model_name="b",version="1"} 64"#,
                    r#"sglang:num_pages{model_name="b",version="1"} 8"#,
                ],
            ),
            (
                EngineMetrics::Triton,
                &[
                    r#"nv_trt_llm_request_metrics{model="a",request_type="waiting",version="1"} 7"#,
                    r#"nv_trt_llm_request_metrics{model="b",request_type="scheduled",version="1"} 2"#,
                    r#"nv_trt_llm_kv_cache_block_metrics{model="a",kv_cache_block_type="fraction",version="1"} 0"#,
                    r#"nv_trt_llm_kv_cache_block_metrics{model="b",kv_cache_block_type="fraction",version="1"} 0.25"#,
                ],
            ),
        ] {
            let lines = page(engine, &MODELS, &registry);
            for line in expected {
                assert!(lines.iter().any(|found| found == line), "{line} is not in {lines:#?}");
            }
            let sizes = lines.iter().filter(|line| line.contains("block") && line.contains(r#"name="a""#));
            assert_eq!(sizes.count(), 0, "model a has no cache: {lines:#?}");
        }
    }

    /// A page with two families of one name is invalid.
    #[test]
    fn a_model_that_publishes_a_family_keeps_its_own_sample() {
        let registry = Registry::default();
        let own = registry.gauge("vllm:num_requests_waiting", "", &[("model_name", "a")], || 99.0).unwrap();
        let lines = page(EngineMetrics::Vllm, &MODELS, &registry);
        let of_family: Vec<_> = lines.iter().filter(|line| line.contains("num_requests_waiting")).collect();
        let expected = [
            "# TYPE vllm:num_requests_waiting gauge",
            r#"vllm:num_requests_waiting{model_name="a"} 99"#,
            r#"vllm:num_requests_waiting{model_name="b",version="1"} 0"#,
        ];
        let of_family: Vec<_> = of_family.into_iter().filter(|line| !line.starts_with("# HELP")).collect();
        assert_eq!(of_family, expected.iter().collect::<Vec<_>>());
        drop(own);
    }
}
