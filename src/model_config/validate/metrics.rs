//! Row "metrics".

use super::Findings;
use nereid_wire::inference::ModelConfig;
use nereid_wire::inference::model_metrics::MetricControl;
use nereid_wire::inference::model_metrics::metric_control::MetricOptions;

/// Every bucket of a model is a line of its page, and memory in every thread that counts.
const BUCKETS_MAX: usize = 1024;

pub(super) fn check(config: &ModelConfig, findings: &mut Findings) {
    let controls = config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control);
    for (index, control) in controls.enumerate() {
        if let Err((field, message)) = check_control(control) {
            findings.invalid(format!("model_metrics.metric_control[{index}].{field}"), message);
        }
    }
}

/// Checks one control; the error is a field and its text.
fn check_control(control: &MetricControl) -> Result<(), (&'static str, &'static str)> {
    let Some(identifier) = &control.metric_identifier else {
        return Err(("metric_identifier", "metric control must specify 'metric_identifier'"));
    };
    if identifier.family.is_empty() {
        return Err(("metric_identifier.family", "metric identifier must specify non-empty 'family'"));
    }
    let Some(MetricOptions::HistogramOptions(options)) = &control.metric_options else {
        return Err(("histogram_options", "metric control must specify 'histogram_options'"));
    };
    let refused = |message| Err(("histogram_options.buckets", message));
    match options.buckets.as_slice() {
        [] => refused("histogram options must specify non-empty 'buckets'"),
        // Our own bound: more would make the page unreadable. The last bucket has no bound in any case.
        buckets if buckets.len() > BUCKETS_MAX => refused("histogram options may specify at most 1024 'buckets'"),
        buckets if !buckets.iter().all(|bucket| bucket.is_finite()) => {
            refused("histogram options must specify finite 'buckets'")
        }
        buckets if !buckets.windows(2).all(|pair| pair[0] < pair[1]) => {
            refused("histogram options must specify strictly increasing 'buckets'")
        }
        _ => Ok(()),
    }
}
