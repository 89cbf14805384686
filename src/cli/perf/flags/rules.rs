//! When a figure counts: warm-up, windows, stability.

use super::Flag;
use crate::cli::perf::given::WindowMode;

const COUNT_MAX: u64 = 1 << 40;
/// A day.
const INTERVAL_MS_MAX: u64 = 86_400_000;

pub static FLAGS: &[Flag] = &[
    Flag::set(
        "measurement-mode",
        "time_windows|count_windows",
        "What ends a window: time, or a number of requests. Default: time_windows.",
        |g, v| {
            let modes = [("time_windows", WindowMode::Time), ("count_windows", WindowMode::Count)];
            g.window_mode = v.one_of(&modes)?;
            Ok(())
        },
    ),
    Flag::set("measurement-interval", "ms", "How long a window lasts. Default: 5000.", |g, v| {
        g.window_ms = v.number(1..=INTERVAL_MS_MAX)?;
        Ok(())
    })
    .or('p'),
    Flag::set(
        "measurement-request-count",
        "requests",
        "How many requests a window has with count_windows. Default: 50.",
        |g, v| {
            g.window_count = v.number(1..=COUNT_MAX)?;
            Ok(())
        },
    ),
    Flag::set(
        "stability-percentage",
        "percent",
        "Three windows in a row whose rates and latencies are that close to their mean are stable. Default: 10.",
        |g, v| {
            g.rules.stability_percent = v.quantity(1e9)?;
            Ok(())
        },
    )
    .or('s'),
    Flag::set("max-trials", "windows", "Windows that a load point may take. Default: 10.", |g, v| {
        g.rules.trials_max = v.number(1..=1_000_000)?;
        Ok(())
    })
    .or('r'),
    Flag::set(
        "percentile",
        "number",
        "The percentile that has to be stable and below the threshold; it is reported, too. Default: -1, the mean.",
        |g, v| {
            g.rules.percentile = match v.text()? {
                "-1" => None,
                text => {
                    let percentile = text.parse().ok().filter(|given: &f64| *given > 0.0 && *given < 100.0);
                    Some(percentile.ok_or_else(|| v.wrong("-1 or a number between 0 and 100"))?)
                }
            };
            Ok(())
        },
    ),
    Flag::set(
        "warmup-request-count",
        "requests",
        "Requests of each load point that nothing counts of. Default: 0; windows go on until they are stable.",
        |g, v| {
            g.rules.warm_up_requests = v.number(0..=COUNT_MAX)?;
            Ok(())
        },
    ),
    Flag::set(
        "request-count",
        "requests",
        "Exactly so many requests for each load point, in one window. Default: 0, windows until they are stable.",
        |g, v| {
            g.rules.request_count = Some(v.number(0..=COUNT_MAX)?).filter(|count| *count > 0);
            Ok(())
        },
    ),
];
