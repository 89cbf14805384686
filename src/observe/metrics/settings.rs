//! `--metrics-config`: which latencies are shown, and how (contract/metrics.md section 1).
//!
//! As in Triton no value ends the start: an invalid one is reported, and the default stands.

use std::sync::Arc;

use super::engines::EngineMetrics;
use crate::statistics::{Bounds, DistributionConfig, PHASES};

/// The family of the first responses.
pub const FIRST_RESPONSE: &str = "nv_inference_first_response_histogram_ms";

/// Our own families, in the order of the phases of a request.
pub const PHASE_FAMILIES: [&str; PHASES] = [
    "nereid_request_duration_us",
    "nereid_queue_duration_us",
    "nereid_compute_input_duration_us",
    "nereid_compute_infer_duration_us",
    "nereid_compute_output_duration_us",
];

/// Milliseconds.
const FIRST_RESPONSE_BOUNDS: [f64; 4] = [100.0, 500.0, 2_000.0, 5_000.0];

/// Microseconds, each twice the one before, up to 67 s: the same everywhere, so that histograms of all models and hosts
/// can be added up.
const PHASE_BOUNDS: [f64; 23] = [
    16.0,
    32.0,
    64.0,
    128.0,
    256.0,
    512.0,
    1_024.0,
    2_048.0,
    4_096.0,
    8_192.0,
    16_384.0,
    32_768.0,
    65_536.0,
    131_072.0,
    262_144.0,
    524_288.0,
    1_048_576.0,
    2_097_152.0,
    4_194_304.0,
    8_388_608.0,
    16_777_216.0,
    33_554_432.0,
    67_108_864.0,
];

const QUANTILES: [(f64, f64); 5] = [(0.5, 0.05), (0.9, 0.01), (0.95, 0.001), (0.99, 0.001), (0.999, 0.001)];

/// Each is a line of every summary.
const QUANTILES_MAX: usize = 64;

/// The parsed settings.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricsConfig {
    /// Off: the counters of durations and of the cache are gone, and those that stay never increase.
    pub counter_latencies: bool,
    pub histogram_latencies: bool,
    pub summary_latencies: bool,
    /// Quantiles of all summaries. Their stated errors are kept in any case: ranks are exact here, and values are off
    /// by 1.6 % at most.
    pub quantiles: Vec<f64>,
    /// Our own: a histogram for each phase of a request.
    pub histogram_phases: bool,
    /// `--engine-metrics`.
    pub engine: EngineMetrics,
}

impl Default for MetricsConfig {
    fn default() -> MetricsConfig {
        MetricsConfig {
            counter_latencies: true,
            histogram_latencies: false,
            summary_latencies: false,
            quantiles: QUANTILES.map(|(quantile, _)| quantile).into(),
            histogram_phases: false,
            engine: EngineMetrics::None,
        }
    }
}

impl MetricsConfig {
    /// Parses settings in the order in which they were given; the last one of a name counts. Also returns complaints
    /// about the invalid ones.
    pub fn new(settings: &[(String, String)]) -> (MetricsConfig, Vec<String>) {
        let (mut config, mut complaints) = (MetricsConfig::default(), Vec::new());
        for (name, value) in settings {
            match name.as_str() {
                "counter_latencies" => set_flag(&mut config.counter_latencies, name, value, &mut complaints),
                "histogram_latencies" => set_flag(&mut config.histogram_latencies, name, value, &mut complaints),
                "summary_latencies" => set_flag(&mut config.summary_latencies, name, value, &mut complaints),
                "histogram_phases" => set_flag(&mut config.histogram_phases, name, value, &mut complaints),
                "summary_quantiles" => config.quantiles = quantiles(value, &mut complaints),
                _ => complaints.push(format!("--metrics-config has no setting '{name}'")),
            }
        }
        (config, complaints)
    }

    /// The distributions of a model, whose own configuration may give some families other bounds.
    pub fn wanted(&self, bounds_of: impl Fn(&str) -> Option<Vec<f64>>) -> DistributionConfig {
        let bounds = |family: &str, default: &[f64]| -> Bounds {
            bounds_of(family).map_or_else(|| Arc::from(default), Arc::from)
        };
        DistributionConfig {
            first_response_ms: self.histogram_latencies.then(|| bounds(FIRST_RESPONSE, &FIRST_RESPONSE_BOUNDS)),
            phases_us: self.histogram_phases.then(|| PHASE_FAMILIES.map(|family| bounds(family, &PHASE_BOUNDS))),
            summaries: self.summary_latencies,
        }
    }
}

/// Whether a model's own configuration may give `family` other bounds.
pub fn is_customizable(family: &str) -> bool {
    family == FIRST_RESPONSE || PHASE_FAMILIES.contains(&family)
}

/// Triton accepts no other spellings.
fn set_flag(flag: &mut bool, name: &str, value: &str, complaints: &mut Vec<String>) {
    match value {
        "true" => *flag = true,
        "false" => *flag = false,
        _ => complaints.push(format!("--metrics-config {name} is 'true' or 'false', not '{value}'")),
    }
}

/// `<quantile>:<error>,…` without the invalid ones; if none is valid, summaries have no quantiles.
fn quantiles(text: &str, complaints: &mut Vec<String>) -> Vec<f64> {
    let mut quantiles: Vec<f64> = Vec::new();
    // As in Triton, a last comma may end the list.
    let text = text.strip_suffix(',').unwrap_or(text);
    for pair in text.split(',').filter(|_| !text.is_empty()) {
        match quantile(pair) {
            // A second line with the same label would make the page invalid.
            Ok(quantile) if quantiles.contains(&quantile) => {}
            Ok(_) if quantiles.len() == QUANTILES_MAX => {
                complaints.push(format!("Invalid option: [{pair}]. There are {QUANTILES_MAX} quantiles already"));
                break;
            }
            Ok(quantile) => quantiles.push(quantile),
            Err(complaint) => complaints.push(complaint),
        }
    }
    quantiles
}

fn quantile(pair: &str) -> Result<f64, String> {
    let Some((quantile, error)) = pair.split_once(':') else {
        return Err(format!("Invalid option: [{pair}]. No ':' delimiter found. Expected format is <quantile>:<error>"));
    };
    // Triton accepts numbers that are no quantiles, and shows them.
    let number = |text: &str, what: &str| match leading_number(text) {
        Some(number) if (0.0..=1.0).contains(&number) => Ok(number),
        Some(_) => Err(format!("Invalid option: [{pair}]. Error: the {what} does not lie between 0 and 1")),
        // The name of the function that refuses it in Triton, which is the whole text of its exception.
        None => Err(format!("Invalid option: [{pair}]. Error: stod")),
    };
    number(error, "error")?;
    // -0 is shown as 0.
    number(quantile, "quantile").map(f64::abs)
}

/// The number at the beginning of a text, as stod reads it: `0.5x` is 0.5.
fn leading_number(text: &str) -> Option<f64> {
    /// No number needs more.
    const LETTERS_MAX: usize = 64;
    let text = text.trim_start();
    let ends = text.char_indices().map(|(at, letter)| at + letter.len_utf8()).take(LETTERS_MAX);
    ends.filter_map(|end| text.get(..end)?.parse().ok()).last()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(settings: &[(&str, &str)]) -> (MetricsConfig, Vec<String>) {
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        MetricsConfig::new(&settings.collect::<Vec<_>>())
    }

    #[test]
    fn defaults_are_those_of_the_specification() {
        let (config, complaints) = parse(&[]);
        assert!(config.counter_latencies && complaints.is_empty());
        assert!(!config.histogram_latencies && !config.summary_latencies && !config.histogram_phases);
        assert_eq!(config.quantiles, [0.5, 0.9, 0.95, 0.99, 0.999]);
        assert_eq!(config.wanted(|_| None), DistributionConfig::default());
    }

    #[test]
    fn the_last_setting_of_a_name_counts() {
        let (config, complaints) = parse(&[
            ("counter_latencies", "false"),
            ("histogram_latencies", "true"),
            ("summary_latencies", "true"),
            ("histogram_phases", "true"),
            ("summary_latencies", "false"),
            ("summary_quantiles", "0.1:0.1"),
            ("summary_quantiles", "0.25:0.05,1:0"),
        ]);
        assert_eq!(complaints, [""; 0]);
        assert!(!config.counter_latencies && config.histogram_latencies && config.histogram_phases);
        assert!(!config.summary_latencies);
        assert_eq!(config.quantiles, [0.25, 1.0]);
    }

    #[test]
    fn invalid_settings_are_reported_and_change_nothing() {
        for (setting, value, complaint) in [
            ("counter_latencies", "FALSE", "--metrics-config counter_latencies is 'true' or 'false', not 'FALSE'"),
            ("summary_latencies", "1", "--metrics-config summary_latencies is 'true' or 'false', not '1'"),
            ("other", "1", "--metrics-config has no setting 'other'"),
        ] {
            assert_eq!(parse(&[(setting, value)]), (MetricsConfig::default(), vec![complaint.to_owned()]), "{value}");
        }
    }

    #[test]
    fn pairs_that_are_none_are_named_and_skipped() {
        let without = "No ':' delimiter found. Expected format is <quantile>:<error>";
        for (value, complaint) in [
            ("abc", format!("Invalid option: [abc]. {without}")),
            ("0.5:x", "Invalid option: [0.5:x]. Error: stod".to_owned()),
            ("x:0.1", "Invalid option: [x:0.1]. Error: stod".to_owned()),
            (":", "Invalid option: [:]. Error: stod".to_owned()),
            ("2:0.1", "Invalid option: [2:0.1]. Error: the quantile does not lie between 0 and 1".to_owned()),
            ("NaN:0", "Invalid option: [NaN:0]. Error: the quantile does not lie between 0 and 1".to_owned()),
        ] {
            let (config, complaints) = parse(&[("summary_quantiles", value)]);
            assert_eq!((config.quantiles, complaints), (Vec::new(), vec![complaint.clone()]), "{value}");
            let (config, complaints) = parse(&[("summary_quantiles", &format!("0.1:0,{value},0.2:0"))]);
            assert_eq!((config.quantiles, complaints), (vec![0.1, 0.2], vec![complaint]), "{value}");
        }
        assert_eq!(parse(&[("summary_quantiles", "")]).0.quantiles, [0.0; 0]);
        // As far as they can be read.
        let (config, complaints) = parse(&[("summary_quantiles", " 0.5x:.1y,1e-1:0,0.75 :1,")]);
        assert_eq!((config.quantiles, complaints.len()), (vec![0.5, 0.1, 0.75], 0));
    }

    #[test]
    fn of_several_quantiles_the_understandable_ones_count() {
        let (config, complaints) = parse(&[("summary_quantiles", "0.7,0.50:0.1,0.3:x,,0.2:0.01,0.5:0.2,-0:0")]);
        assert_eq!(config.quantiles, [0.5, 0.2, 0.0]);
        assert!(config.quantiles[2].is_sign_positive());
        assert_eq!(complaints.len(), 3, "{complaints:?}");
        let many: Vec<String> = (0..=QUANTILES_MAX).map(|at| format!("{}:0", at as f64 / 1000.0)).collect();
        let (config, complaints) = parse(&[("summary_quantiles", &many.join(","))]);
        assert_eq!((config.quantiles.len(), complaints.len()), (QUANTILES_MAX, 1));
    }

    #[test]
    fn a_model_may_have_its_own_bounds() {
        let (config, _) = parse(&[("histogram_latencies", "true"), ("histogram_phases", "true")]);
        let own = |family: &str| (family == PHASE_FAMILIES[1] || family == FIRST_RESPONSE).then(|| vec![1.0, 2.0]);
        let wanted = config.wanted(own);
        assert_eq!(wanted.first_response_ms.as_deref(), Some(&[1.0, 2.0][..]));
        let phases = wanted.phases_us.unwrap();
        assert_eq!(phases.each_ref().map(|bounds| bounds.len()), [23, 2, 23, 23, 23]);
        assert_eq!(config.wanted(|_| None).first_response_ms.as_deref(), Some(&FIRST_RESPONSE_BOUNDS[..]));
        assert!(PHASE_BOUNDS.windows(2).all(|pair| pair[1] == 2.0 * pair[0]));
    }
}
