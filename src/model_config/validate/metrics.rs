//! Row "metrics".

use super::super::Error;
use crate::wire::inference::ModelConfig;
use crate::wire::inference::model_metrics::metric_control::MetricOptions;

pub(super) fn check(config: &ModelConfig) -> Result<(), Error> {
    for control in config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control) {
        let message = match (&control.metric_identifier, &control.metric_options) {
            (None, _) => "metric control must specify 'metric_identifier'",
            (Some(identifier), _) if identifier.family.is_empty() => {
                "metric identifier must specify non-empty 'family'"
            }
            (Some(_), None) => "metric control must specify 'histogram_options'",
            (Some(_), Some(MetricOptions::HistogramOptions(options))) if options.buckets.is_empty() => {
                "histogram options must specify non-empty 'buckets'"
            }
            _ => continue,
        };
        return Err(Error::invalid(message));
    }
    Ok(())
}
