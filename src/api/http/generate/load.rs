//! Load reports in the heads of answers, for load balancers that support ORCA (contract/http.md section 7).
//!
//! Their values come from metrics that the backends of language models keep.

use nereid_observe::load::CacheUse;
use nereid_observe::metrics::{CACHE_FAMILY, ModelCache, Registry};
use nereid_protocol::json;

use crate::api::load_reports::LoadFormat;

fn write(cache: CacheUse, format: LoadFormat) -> String {
    let CacheUse { utilization, tokens_max: capacity } = cache;
    match format {
        LoadFormat::Json | LoadFormat::Bin => {
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

/// The value of the field; without the metrics there is none, and an error in the log.
pub fn report(metrics: &Registry, format: LoadFormat) -> Option<String> {
    let report = ModelCache::newest(metrics).in_use().map(|cache| write(cache, format));
    if report.is_none() {
        tracing::error!("load cannot be reported: not all of the metrics '{CACHE_FAMILY}' are there");
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_observe::metrics::{CACHE_KIND, CallbackMetric};

    /// Samples of the kinds, as a backend labels them.
    fn samples(values: &[(&'static str, f64)]) -> (Registry, Vec<CallbackMetric>) {
        let registry = Registry::default();
        let keep = values.iter().map(|&(kind, value)| {
            let labels = [("model", "llm"), (CACHE_KIND, kind), ("version", "1")];
            registry.gauge(CACHE_FAMILY, "", &labels, move || value).unwrap()
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
