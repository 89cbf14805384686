//! Load reports in the heads of answers, for load balancers that support ORCA (contract/http.md section 7).
//!
//! Their values come from metrics that the backends of language models keep.

use nereid_observe::metrics::Registry;
use nereid_protocol::http1;
use nereid_protocol::json;

/// The header with which a client requests a report, and names its format.
const ASKS: &str = "endpoint-load-metrics-format";
/// The field that carries it.
pub const FIELD: &str = "endpoint-load-metrics";
/// The family whose samples count the use of the key-value cache.
const FAMILY: &str = "nv_trt_llm_kv_cache_block_metrics";
/// The label that names what a sample counts.
const LABEL: &str = "kv_cache_block_type";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadFormat {
    Json,
    Text,
}

impl LoadFormat {
    /// The format that a client requests. An unknown one is logged here only.
    pub fn wanted(head: &http1::Head) -> Option<LoadFormat> {
        match head.header(ASKS)? {
            b"json" => Some(LoadFormat::Json),
            b"text" => Some(LoadFormat::Text),
            other => {
                let other: String = String::from_utf8_lossy(other).chars().take(64).collect();
                tracing::error!("'{ASKS}: {other}': load is reported as 'json' or 'text'");
                None
            }
        }
    }
}

/// Blocks of the key-value cache, as its metrics count them.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cache {
    tokens_per_block: f64,
    used: f64,
    max: f64,
}

impl Cache {
    /// The newest of each kind; none unless all three kinds are there and make sense.
    fn read(metrics: &Registry) -> Option<Cache> {
        let (mut tokens_per_block, mut used, mut max) = (None, None, None);
        metrics.read(FAMILY, |labels, value| {
            let kind = labels.iter().find(|(name, _)| name == LABEL).map(|(_, kind)| kind.as_str());
            match kind {
                Some("tokens_per") => tokens_per_block = Some(value),
                Some("used") => used = Some(value),
                Some("max") => max = Some(value),
                _ => {}
            }
        });
        let is_count = |value: &f64| value.is_finite() && *value >= 0.0;
        Some(Cache {
            tokens_per_block: tokens_per_block.filter(is_count)?,
            used: used.filter(is_count)?,
            max: max.filter(is_count)?,
        })
    }

    fn utilization(&self) -> f64 {
        if self.max > 0.0 { self.used / self.max } else { 0.0 }
    }

    /// In tokens.
    fn capacity(&self) -> u64 {
        (self.max as u64).saturating_mul(self.tokens_per_block as u64)
    }

    fn report(&self, format: LoadFormat) -> String {
        let (utilization, capacity) = (self.utilization(), self.capacity());
        match format {
            LoadFormat::Json => {
                let mut writer = json::Writer::new(b"JSON ".to_vec());
                writer.begin_object();
                writer.key("named_metrics");
                writer.begin_object();
                writer.key("kv_cache_utilization");
                writer.double(utilization);
                writer.key("max_token_capacity");
                writer.uint(capacity);
                writer.end_object();
                writer.end_object();
                String::from_utf8_lossy(&writer.into_inner()).into_owned()
            }
            LoadFormat::Text => format!(
                "TEXT named_metrics.kv_cache_utilization={utilization:.6}, \
                 named_metrics.max_token_capacity={capacity}"
            ),
        }
    }
}

/// The value of [`FIELD`]; without the metrics there is none, and an error in the log.
pub fn report(metrics: &Registry, format: LoadFormat) -> Option<String> {
    let report = Cache::read(metrics).map(|cache| cache.report(format));
    if report.is_none() {
        tracing::error!("load cannot be reported: not all of the metrics '{FAMILY}' are there");
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_observe::metrics::CallbackMetric;

    /// Samples of the kinds, as a backend labels them.
    fn samples(values: &[(&'static str, f64)]) -> (Registry, Vec<CallbackMetric>) {
        let registry = Registry::default();
        let keep = values.iter().map(|&(kind, value)| {
            let labels = [("model", "llm"), (LABEL, kind), ("version", "1")];
            registry.gauge(FAMILY, "", &labels, move || value).unwrap()
        });
        let keep = keep.collect();
        (registry, keep)
    }

    #[test]
    fn a_report_tells_how_full_the_cache_is() {
        let table = [
            ([64.0, 3.0, 8.0], "0.375", "0.375000", 512),
            ([64.0, 0.0, 8.0], "0.0", "0.000000", 512),
            ([64.0, 8.0, 0.0], "0.0", "0.000000", 0),
            ([1.0, 1.0, 3.0], "0.3333333333333333", "0.333333", 3),
            ([1e300, 1.0, 1e300], "1e-300", "0.000000", u64::MAX),
        ];
        for ([tokens, used, max], json, text, capacity) in table {
            let (registry, _keep) = samples(&[("tokens_per", tokens), ("used", used), ("max", max), ("free", 9.0)]);
            let expected = format!(
                r#"JSON {{"named_metrics":{{"kv_cache_utilization":{json},"max_token_capacity":{capacity}}}}}"#
            );
            assert_eq!(report(&registry, LoadFormat::Json), Some(expected));
            let expected =
                format!("TEXT named_metrics.kv_cache_utilization={text}, named_metrics.max_token_capacity={capacity}");
            assert_eq!(report(&registry, LoadFormat::Text), Some(expected));
        }
    }

    #[test]
    fn without_all_three_there_is_no_report() {
        let all = [("tokens_per", 64.0), ("used", 1.0), ("max", 8.0)];
        for missing in 0..3 {
            let (registry, _keep) = samples(&[&all[..missing], &all[missing + 1..]].concat());
            assert_eq!(report(&registry, LoadFormat::Json), None);
        }
        let (registry, _keep) = samples(&[("tokens_per", 64.0), ("used", -1.0), ("max", 8.0)]);
        assert_eq!(report(&registry, LoadFormat::Text), None);
        let (registry, _keep) = samples(&[("tokens_per", 64.0), ("used", f64::NAN), ("max", 8.0)]);
        assert_eq!(report(&registry, LoadFormat::Text), None);
    }
}
