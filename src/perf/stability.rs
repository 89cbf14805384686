//! When a point's figures count: three windows after each other that agree.

use super::measurement::WindowFigures;
use super::plan::Rules;

/// Windows that have to agree, and that a point's figures are made of.
pub const WINDOWS: usize = 3;

/// Whether the last windows differ from their mean by no more than the rules allow, in rate and in latency. Windows
/// without a single good answer agree on nothing.
pub fn is_stable(windows: &[WindowFigures], rules: &Rules) -> bool {
    let Some(last) = windows.last_chunk::<WINDOWS>() else { return false };
    if last.iter().any(|window| window.completed == 0 || window.wall.is_zero()) {
        return false;
    }
    let rates = last.map(|window| window.completed as f64 / window.wall.as_secs_f64());
    let latencies = last.map(|window| window.judged_ns);
    let agree = |values: [f64; WINDOWS]| {
        let mean = values.iter().sum::<f64>() / WINDOWS as f64;
        let allowed = mean * rules.stability_percent / 100.0;
        values.iter().all(|value| (value - mean).abs() <= allowed)
    };
    agree(rates) && agree(latencies)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn three_windows_must_agree_in_rate_and_latency() {
        let rules = Rules { stability_percent: 10.0, ..Rules::default() };
        let window = |(completed, judged_ns): &(u64, f64)| WindowFigures {
            wall: Duration::from_secs(2),
            completed: *completed,
            judged_ns: *judged_ns,
            ..WindowFigures::default()
        };
        let cases: [(&[(u64, f64)], bool); 9] = [
            (&[], false),
            (&[(100, 5.0), (100, 5.0)], false),
            (&[(100, 5.0), (100, 5.0), (100, 5.0)], true),
            (&[(95, 5.0), (100, 5.2), (105, 4.9)], true),
            (&[(80, 5.0), (100, 5.0), (105, 5.0)], false),
            (&[(100, 4.0), (100, 5.0), (100, 5.0)], false),
            (&[(1, 900.0), (100, 5.0), (100, 5.0), (100, 5.0)], true),
            (&[(100, 5.0), (100, 5.0), (100, 5.0), (1, 900.0)], false),
            (&[(0, 0.0), (0, 0.0), (0, 0.0)], false),
        ];
        for (windows, stable) in cases {
            let windows: Vec<WindowFigures> = windows.iter().map(window).collect();
            assert_eq!(is_stable(&windows, &rules), stable, "{windows:?}");
        }
    }
}
