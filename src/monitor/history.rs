//! The last points of each model, for sparklines.

use std::collections::{HashMap, VecDeque};

use super::figures::{ModelKey, Phase};
use super::overview::Overview;

/// Points of one model.
pub const POINTS_MAX: usize = 120;
/// Models whose points are kept.
pub const MODELS_MAX: usize = 4_096;

/// NaN: there was no figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    pub requests_per_s: f32,
    /// The 99th percentile, or the mean where there is none.
    pub latencies_us: [f32; 5],
}

#[derive(Debug, Default)]
pub struct History {
    models: HashMap<ModelKey, VecDeque<Point>>,
}

impl History {
    /// Adds a point to each model, and forgets models that are gone.
    pub fn note(&mut self, overview: &Overview) {
        let mut kept = HashMap::with_capacity(self.models.len());
        for row in overview.rows.iter().take(MODELS_MAX) {
            let mut points = self.models.remove(&row.key).unwrap_or_default();
            while points.len() >= POINTS_MAX {
                points.pop_front();
            }
            let number = |value: Option<f64>| value.map_or(f32::NAN, |value| value as f32);
            points.push_back(Point {
                requests_per_s: number(row.rates.requests_per_s),
                latencies_us: Phase::ALL.map(|phase| {
                    let latency = row.rates.latency(phase);
                    number(latency.p99_us.map(|quantile| quantile.least()).or(latency.mean_us))
                }),
            });
            kept.insert(row.key.clone(), points);
        }
        self.models = kept;
    }

    /// The points of a model, the oldest first.
    pub fn of(&self, key: &ModelKey) -> impl Iterator<Item = Point> {
        self.models.get(key).into_iter().flatten().copied()
    }
}

/// The last `width` values as bars that begin at 0; a blank where there is none.
pub fn sparkline(values: &[f32], width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shown = values.get(values.len().saturating_sub(width)..).unwrap_or_default();
    let top = shown.iter().copied().filter(|value| value.is_finite()).fold(0.0, f32::max);
    let bar = |value: &f32| match value.is_finite() {
        true if top > 0.0 => {
            let at = (value / top * (BARS.len() - 1) as f32).round().max(0.0) as usize;
            BARS.get(at).copied().unwrap_or('█')
        }
        true => '▁',
        false => ' ',
    };
    shown.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparklines_begin_at_zero_and_show_the_end() {
        assert_eq!(sparkline(&[0.0, 7.0, f32::NAN, 3.5, 1.0], 10), "▁█ ▅▂");
        assert_eq!(sparkline(&[9.0, 0.0, 0.0], 2), "▁▁");
        assert_eq!(sparkline(&[f32::INFINITY, 1.0], 2), " █");
        assert_eq!(sparkline(&[], 2), "");
    }
}
