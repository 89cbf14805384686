//! Families of histograms and summaries (contract/metrics.md section 2), and our own histograms of every phase.

use super::exposition::{Exposition, Kind, Value};
use super::families::{LabelText, ModelSample};
use super::settings::{FIRST_RESPONSE, MetricsConfig, PHASE_FAMILIES};
use crate::exemplars::{ModelExemplars, PhaseExemplars};
use crate::statistics::{Distributions, HistogramReading, Latency};

/// Help of [`PHASE_FAMILIES`].
const PHASE_HELPS: [&str; 5] = [
    "Microseconds from acceptance to end of successful requests",
    "Microseconds that successful requests waited for their execution",
    "Microseconds spent on the inputs of successful requests",
    "Microseconds that successful requests spent in the model",
    "Microseconds spent on the outputs of successful requests",
];

/// Which models have a summary.
#[derive(Clone, Copy, PartialEq)]
enum ModelFilter {
    All,
    /// Models that use the response cache.
    Caching,
    NotCaching,
}

const SUMMARIES: [(&str, &str, Latency, ModelFilter); 7] = [
    (
        "nv_inference_request_summary_us",
        "Summary of inference request duration in microseconds (includes cached requests)",
        Latency::Request,
        ModelFilter::NotCaching,
    ),
    (
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
        Latency::Queue,
        ModelFilter::All,
    ),
    (
        "nv_inference_compute_input_summary_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        Latency::ComputeInput,
        ModelFilter::All,
    ),
    (
        "nv_inference_compute_infer_summary_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        Latency::ComputeInfer,
        ModelFilter::All,
    ),
    (
        "nv_inference_compute_output_summary_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        Latency::ComputeOutput,
        ModelFilter::All,
    ),
    (
        "nv_cache_hit_summary_per_model",
        "Summary of cache hit counts/durations per model, in microseconds.",
        Latency::CacheHit,
        ModelFilter::Caching,
    ),
    (
        "nv_cache_miss_summary_per_model",
        "Summary of cache miss counts/durations per model, in microseconds.",
        Latency::CacheMiss,
        ModelFilter::Caching,
    ),
];

pub(super) fn write<'a>(exposition: &mut Exposition, models: &[(LabelText, ModelSample<'a>)], config: &MetricsConfig) {
    let help = "Duration from request to first response in milliseconds";
    let exemplars = |of: &'a ModelExemplars| Some(&of.first_response);
    write_histogram(exposition, models, (FIRST_RESPONSE, help), |read| read.first_response.as_ref(), exemplars);
    for (place, family) in PHASE_FAMILIES.into_iter().zip(PHASE_HELPS).enumerate() {
        let exemplars = |of: &'a ModelExemplars| of.phases.get(place);
        write_histogram(exposition, models, family, |read| read.phases.as_ref()?.get(place), exemplars);
    }
    for (name, help, latency, of) in SUMMARIES {
        let mut family = exposition.family(name, help, Kind::Summary);
        let fits = |model: &ModelSample<'_>| match of {
            ModelFilter::All => true,
            ModelFilter::Caching => model.snapshot.is_caching,
            ModelFilter::NotCaching => !model.snapshot.is_caching,
        };
        for (labels, model) in models.iter().filter(|(_, model)| fits(model)) {
            let summaries = model.distributions.and_then(|read| read.summaries.as_ref());
            if let Some(summary) = summaries.and_then(|summaries| summaries.get(latency as usize)) {
                let quantiles = config.quantiles.iter().map(|quantile| (*quantile, summary.quantile(*quantile)));
                family.summary(labels.plain(), &quantiles.collect::<Vec<_>>(), summary.count, summary.sum);
            }
        }
    }
}

fn write_histogram<'a>(
    exposition: &mut Exposition,
    models: &[(LabelText, ModelSample<'a>)],
    (name, help): (&str, &str),
    of: impl Fn(&'a Distributions) -> Option<&'a HistogramReading>,
    exemplars: impl Fn(&'a ModelExemplars) -> Option<&'a PhaseExemplars>,
) {
    let mut family = exposition.family(name, help, Kind::Histogram);
    for (labels, model) in models {
        if let Some(histogram) = model.distributions.and_then(&of) {
            let (HistogramReading { bounds, counts, sum }, found) = (histogram, model.exemplars.and_then(&exemplars));
            family.histogram(labels.plain(), bounds, counts, Value::Integer(*sum), found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::host::HostGauges;
    use crate::metrics::{PageFormat, render};
    use crate::statistics::ModelStatistics;

    fn config(settings: &[&str]) -> MetricsConfig {
        let pair = |name: &&str| ((*name).to_owned(), "true".to_owned());
        let mut settings: Vec<_> = settings.iter().map(pair).collect();
        settings.push(("summary_quantiles".to_owned(), "0.5:0.1,0.9:0.1".to_owned()));
        MetricsConfig::new(&settings).0
    }

    /// The samples of two models, the second of which uses the cache, without those of the host.
    fn page(config: &MetricsConfig, fill: impl Fn(&ModelStatistics)) -> Vec<String> {
        let models = ["a", "b"].map(|name| (name, ModelStatistics::with(config.wanted(|_| None))));
        models[1].1.enable_cache();
        models.iter().for_each(|(_, statistics)| fill(statistics));
        let reads = models.each_ref().map(|(name, read)| (*name, read.counters(), read.distributions()));
        let samples = reads.iter().map(|(name, snapshot, distributions)| ModelSample {
            distributions: distributions.as_ref(),
            ..ModelSample::of(name, snapshot)
        });
        let text = render(samples, config, &HostGauges::new(false, 0), &[], PageFormat::Text).concat();
        let is_ours =
            |line: &&str| line.contains("_summary_") || line.contains("_histogram_") || line.contains("nereid");
        text.lines()
            .filter(is_ours)
            .filter(|line| !line.contains("queue_full") && !line.contains("refused"))
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn only_configured_families_are_shown() {
        assert_eq!(page(&config(&[]), |_| {}), [""; 0]);
    }

    #[test]
    fn summaries_are_those_that_the_model_can_have() {
        let page = page(&config(&["summary_latencies"]), |statistics| {
            statistics.cache_hit(1_000, 2_000, 5_000, 12_000);
        });
        let families: Vec<_> = page.iter().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let expected = SUMMARIES.map(|(name, ..)| format!("{name} summary"));
        assert_eq!(families, expected);
        let has = |line: &str| page.iter().any(|shown| shown == line);
        for line in [
            r#"nv_inference_request_summary_us_count{model="a",version="1"} 1"#,
            r#"nv_inference_request_summary_us_sum{model="a",version="1"} 11"#,
            r#"nv_inference_request_summary_us{model="a",version="1",quantile="0.5"} 11"#,
            r#"nv_inference_queue_summary_us{model="b",version="1",quantile="0.9"} 3"#,
            r#"nv_cache_hit_summary_per_model{model="b",version="1",quantile="0.9"} 7"#,
            r#"nv_cache_miss_summary_per_model_count{model="b",version="1"} 0"#,
            r#"nv_cache_miss_summary_per_model{model="b",version="1",quantile="0.5"} NaN"#,
            r#"nv_inference_compute_infer_summary_us{model="a",version="1",quantile="0.5"} NaN"#,
        ] {
            assert!(has(line), "{line} in {page:#?}");
        }
        let absent = |start: &str| page.iter().all(|line| !line.starts_with(start));
        assert!(absent(r#"nv_inference_request_summary_us_count{model="b""#), "a caching model has no such summary");
        assert!(absent(r#"nv_cache_hit_summary_per_model_count{model="a""#));
    }

    #[test]
    fn histograms_are_cumulative() {
        let page = page(&config(&["histogram_latencies", "histogram_phases"]), |statistics| {
            statistics.first_response(0, 100_999_999);
            statistics.first_response(0, 700_000_000);
            statistics.composed_succeeded(20_000, 1, &Default::default());
        });
        let of = |start: &str| page.iter().filter(|line| line.starts_with(start)).cloned().collect::<Vec<_>>();
        let expected = [
            r#"nv_inference_first_response_histogram_ms_count{model="a",version="1"} 2"#,
            r#"nv_inference_first_response_histogram_ms_sum{model="a",version="1"} 800"#,
            r#"nv_inference_first_response_histogram_ms_bucket{model="a",version="1",le="100"} 1"#,
            r#"nv_inference_first_response_histogram_ms_bucket{model="a",version="1",le="500"} 1"#,
            r#"nv_inference_first_response_histogram_ms_bucket{model="a",version="1",le="2000"} 2"#,
            r#"nv_inference_first_response_histogram_ms_bucket{model="a",version="1",le="5000"} 2"#,
            r#"nv_inference_first_response_histogram_ms_bucket{model="a",version="1",le="+Inf"} 2"#,
        ];
        let first = of("nv_inference_first_response_histogram_ms_");
        assert_eq!(first[..7], expected);
        assert_eq!(first.len(), 14);
        let request = of("nereid_request_duration_us_bucket{model=\"b\"");
        assert_eq!(request.len(), 24);
        assert!(request[0].ends_with(r#"le="16"} 0"#) && request[1].ends_with(r#"le="32"} 1"#), "{request:?}");
        for family in PHASE_FAMILIES {
            assert!(page.contains(&format!("# TYPE {family} histogram")), "{family}");
        }
    }
}
