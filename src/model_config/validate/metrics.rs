//! Row "metrics".

use super::Findings;
use crate::wire::inference::ModelConfig;
use crate::wire::inference::model_metrics::metric_control::MetricOptions;

pub(super) fn check(config: &ModelConfig, findings: &mut Findings) {
    let controls = config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control);
    for (index, control) in controls.enumerate() {
        let (field, message) = match (&control.metric_identifier, &control.metric_options) {
            (None, _) => ("metric_identifier", "metric control must specify 'metric_identifier'"),
            (Some(identifier), _) if identifier.family.is_empty() => {
                ("metric_identifier.family", "metric identifier must specify non-empty 'family'")
            }
            (Some(_), None) => ("histogram_options", "metric control must specify 'histogram_options'"),
            (Some(_), Some(MetricOptions::HistogramOptions(options))) if options.buckets.is_empty() => {
                ("histogram_options.buckets", "histogram options must specify non-empty 'buckets'")
            }
            _ => continue,
        };
        findings.invalid(format!("model_metrics.metric_control[{index}].{field}"), message);
    }
}
