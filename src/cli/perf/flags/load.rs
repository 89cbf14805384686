//! Flags of the load: requests in flight, or requests a second.

use super::Flag;
use crate::cli::perf::mistake::Mistake;
use crate::cli::perf::value::Value;
use nereid_perf::Spacing;

/// Beyond it no machine has the ports.
const CONCURRENCY_MAX: usize = 1 << 16;
const RATE_MAX: f64 = 1e8;
const SEQUENCE_LENGTH_MAX: usize = 1 << 31;
const SPEED_MIN: f64 = 1e-3;
const SPEED_MAX: f64 = 1e6;

pub static FLAGS: &[Flag] = &[
    Flag::set(
        "concurrency-range",
        "start:end:step",
        "Closed loop: so many requests are in flight, always. An end of 0: on until --latency-threshold is passed. \
         Default: 1.",
        |g, v| {
            g.concurrency = Some(v.span(1, CONCURRENCY_MAX, 0, 1)?);
            Ok(())
        },
    ),
    Flag::set(
        "request-rate-range",
        "start:end:step",
        "Open loop: so many requests a second, whether answers come or not. Latency counts from the time at which a \
         request was due. An end of 0: on until --latency-threshold is passed.",
        |g, v| {
            g.rate = Some(v.span(1e-3, RATE_MAX, 0.0, 1.0)?);
            Ok(())
        },
    ),
    Flag::set(
        "request-distribution",
        "constant|poisson",
        "Times between the requests of a rate: even, or those of many independent clients. \
         Default: constant.",
        |g, v| {
            g.spacing = Some(v.one_of(&[("constant", Spacing::Constant), ("poisson", Spacing::Poisson)])?);
            Ok(())
        },
    ),
    Flag::set(
        "request-intervals",
        "path",
        "Open loop: the times between requests in microseconds, one a line, again and again.",
        |g, v| {
            g.intervals = Some(v.path()?);
            Ok(())
        },
    ),
    Flag::set(
        "speed",
        "times",
        "Open loop of --input-recording: 1 is the speed of the recording, 2 twice that. Default: 1.",
        |g, v| {
            g.speed = Some(speed(v)?);
            Ok(())
        },
    )
    .own(),
    Flag::switch(
        "binary-search",
        "Search for the highest load within --latency-threshold by halving the range; its step is the precision.",
        |g| g.rules.binary_search = true,
    ),
    Flag::set(
        "latency-threshold",
        "ms",
        "The sweep ends when the latency is beyond it. Default: 0, no threshold.",
        |g, v| {
            g.threshold_ms = v.quantity(1e9)?;
            Ok(())
        },
    )
    .or('l'),
    Flag::set(
        "num-of-sequences",
        "count",
        "Sequences at a time with an open loop; a closed loop has as many as its concurrency. Default: 4.",
        |g, v| {
            g.sequences.at_once = v.number(1..=CONCURRENCY_MAX)?;
            Ok(())
        },
    ),
    Flag::set(
        "sequence-length",
        "requests",
        "Requests of a sequence. Default: those of a stream of --input-data, else 20.",
        |g, v| {
            g.sequences.length = Some(v.number(1..=SEQUENCE_LENGTH_MAX)?);
            Ok(())
        },
    ),
    Flag::set(
        "sequence-length-variation",
        "percent",
        "Lengths vary by so much around it. Default: 20, and none where the length is that of the data.",
        |g, v| {
            g.sequences.variation_percent = Some(v.quantity(100.0)?);
            Ok(())
        },
    ),
    Flag::set(
        "sequence-id-range",
        "start:end",
        "Ids of sequences; the end is not included. Default: from 1 on, without an end.",
        |g, v| {
            let bounds = 1..=u64::MAX;
            let part = |text: &str| text.parse::<u64>().ok().filter(|id| bounds.contains(id));
            let parts: Vec<&str> = v.text()?.split(':').collect();
            let ids = match parts.as_slice() {
                [start] => part(start).map(|start| (start, None)),
                [start, end] => part(start).zip(part(end)).map(|(start, end)| (start, Some(end))),
                _ => None,
            };
            let is_range = |&(start, end): &(u64, Option<u64>)| end.is_none_or(|end| start < end);
            g.sequences.ids = ids.filter(is_range).ok_or_else(|| v.wrong("<start:end> with ids from 1"))?;
            Ok(())
        },
    ),
    Flag::switch(
        "serial-sequences",
        "Accepted: of one sequence there is never more than one request on its way.",
        |_| (),
    ),
    Flag::set("concurrent-requests", "count", "The old form of --concurrency-range: where it starts.", |g, v| {
        g.old_start = Some(v.number(1..=CONCURRENCY_MAX)?);
        Ok(())
    })
    .or('t')
    .own(),
    Flag::set("max-concurrency", "count", "The old form: where it ends, with -d.", |g, v| {
        g.old_end = Some(v.number(0..=CONCURRENCY_MAX)?);
        Ok(())
    })
    .or('c')
    .own(),
    Flag::switch("dynamic-concurrency", "The old form: there is more than one load point.", |g| g.old_sweep = true)
        .or('d')
        .own(),
];

/// As `nereid replay` has it, without the fastest.
fn speed(value: &Value<'_>) -> Result<f64, Mistake> {
    let given = value.text()?.trim().parse().ok().filter(|times: &f64| (SPEED_MIN..=SPEED_MAX).contains(times));
    given.ok_or_else(|| {
        let hint = "--concurrency-range sends as fast as answers come";
        value.wrong(&format!("a number from {SPEED_MIN} to {SPEED_MAX}; {hint}"))
    })
}
