//! The load generator's own side of a report: the settings that change figures, what it used, and why a point is void.

use std::fmt::Write;

use super::figures::{NONE, mean_us, quantile_us, significant, usec};
use crate::exchange::http2_config;
use crate::generator_limit::engine_name;
use crate::threads::{connections_a_thread, one_each, spin};
use crate::{Load, Measurement, Plan, Protocol};

/// Settings of HTTP/2 that the client announces to the server; none over HTTP/1.1 and rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Http2 {
    /// Largest frame that it takes. It sends frames as large as the server takes.
    pub frame_bytes_max: u32,
    pub stream_window_bytes: u32,
    pub connection_window_bytes: u32,
}

impl Http2 {
    pub fn of(plan: &Plan) -> Option<Http2> {
        let config = http2_config();
        let has_frames = matches!(plan.target.protocol, Protocol::GrpcUnary | Protocol::GrpcStream);
        has_frames.then_some(Http2 {
            frame_bytes_max: config.max_frame_size,
            stream_window_bytes: config.stream_window,
            connection_window_bytes: config.connection_window,
        })
    }
}

/// Whether threads of the load poll before they sleep.
pub fn spins(plan: &Plan) -> bool {
    spin().is_allowed() || !plan.client.ring_spin.is_zero()
}

/// What the client does that changes figures, but for its threads.
pub fn transport_line(plan: &Plan) -> String {
    let mut line = match Http2::of(plan) {
        None if plan.target.protocol == Protocol::Ipc => "shared-memory rings".to_owned(),
        None => "HTTP/1.1".to_owned(),
        Some(http2) => format!(
            "HTTP/2, frames of up to {} bytes taken, windows of {} bytes for a stream and {} for a connection",
            http2.frame_bytes_max, http2.stream_window_bytes, http2.connection_window_bytes
        ),
    };
    let client = &plan.client;
    let is_closed = matches!(plan.load, Load::Concurrency(_));
    let _ = match client.connections {
        Some(1) => write!(line, "; 1 connection"),
        Some(count) => write!(line, "; {count} connections"),
        None if plan.target.protocol == Protocol::Ipc && !one_each(plan) => write!(line, "; one for each thread"),
        None if !one_each(plan) => {
            write!(line, "; up to {} connections for each thread", connections_a_thread(plan))
        }
        None if is_closed => write!(line, "; a connection for each request in flight"),
        None => write!(line, "; as many connections as are needed"),
    };
    if !client.pin_to.is_empty() {
        let cores: Vec<String> = client.pin_to.iter().map(usize::to_string).collect();
        let _ = write!(line, "; threads on cores {}", cores.join(", "));
    }
    let _ = match (plan.client.ring_spin.as_micros(), spins(plan)) {
        (0, true) => write!(line, "; idle threads spin"),
        (0, false) => write!(line, "; idle threads sleep, none spins"),
        (us, _) => write!(line, "; threads that wait for answers poll for {us} usec, then sleep"),
    };
    line
}

/// CPU time of the client for each request that ended well.
pub fn cpu(point: &Measurement) -> String {
    match point.counts.completed {
        0 => NONE.to_owned(),
        _ => format!("{:.2}", point.client_cpu_per_request_ns() / 1e3),
    }
}

/// The threads together and the busiest of them; its wait for a core, where the kernel counts it.
pub fn threads_line(point: &Measurement) -> String {
    let client = &point.client;
    let mut line = format!("{:.2} cores in all, busiest thread {:.0} %", client.cores(), client.busiest() * 100.0);
    let _ = match client.longest_wait() {
        Some(waiting) => write!(line, ", longest wait for a core {:.0} %", waiting * 100.0),
        None => write!(line, ", waits for a core {NONE}"),
    };
    line
}

/// `4 connections, io_uring`.
pub fn connections_line(point: &Measurement) -> String {
    let plural = if point.client.connections == 1 { "" } else { "s" };
    format!("{} connection{plural}, {}", point.client.connections, engine_name(point.client.engine))
}

/// How late the client's own threads were, in an open loop.
pub fn schedule_line(point: &Measurement) -> String {
    let lag = &point.histograms.schedule_lag_ns;
    format!(
        "{} on average, p50 {}, p99 {}",
        usec(lag, mean_us),
        usec(lag, |lag| quantile_us(lag, 50.0)),
        usec(lag, |lag| quantile_us(lag, 99.0))
    )
}

/// Why a point has no figures, and what to do; none if it has.
pub fn void(point: &Measurement) -> Option<String> {
    let limit = point.limits.generator?;
    Some(format!("the load generator was the limit: {limit}. Next: {}", limit.next_step()))
}

/// Requests a second, for people; not a number of a void point.
pub fn rate(point: &Measurement, a_second: f64) -> f64 {
    if point.is_void() { f64::NAN } else { a_second }
}

/// Bytes in megabytes a second, for people.
pub fn megabytes(point: &Measurement, bytes: u64) -> String {
    significant(rate(point, bytes as f64 / point.wall.as_secs_f64() / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples::{self, Sample};
    use crate::report::{csv, html, json, text};
    use crate::{GeneratorLimit, LoadPoint, ThreadUsage};

    #[test]
    fn settings_that_change_figures_are_stated() {
        let mut plan = samples::plan();
        let closed = "HTTP/1.1; a connection for each request in flight; idle threads sleep, none spins";
        assert_eq!(transport_line(&plan), closed);
        plan.load = Load::Intervals(Vec::new());
        assert!(transport_line(&plan).starts_with("HTTP/1.1; as many connections as are needed; "));
        plan.target.protocol = Protocol::GrpcUnary;
        let frames = "HTTP/2, frames of up to 1048576 bytes taken, windows of 16777216 bytes for a stream and 67108864 \
                      for a connection; ";
        assert_eq!(
            transport_line(&plan),
            format!("{frames}up to 4 connections for each thread; idle threads sleep, none spins")
        );
        plan.target.protocol = Protocol::Ipc;
        assert_eq!(transport_line(&plan), "shared-memory rings; one for each thread; idle threads sleep, none spins");
        plan.client.ring_spin = std::time::Duration::from_micros(50);
        assert!(transport_line(&plan).ends_with("; threads that wait for answers poll for 50 usec, then sleep"));
        plan.client.ring_spin = std::time::Duration::ZERO;
        (plan.client.connections, plan.client.pin_to) = (Some(1), vec![2, 3]);
        assert!(transport_line(&plan).contains("; 1 connection; threads on cores 2, 3; "));
    }

    #[test]
    fn what_the_client_used_is_stated() {
        let mut point = samples::point(LoadPoint::Rate(4.0), 100);
        assert_eq!(threads_line(&point), "0.00 cores in all, busiest thread 0 %, longest wait for a core 1 %");
        let second = ThreadUsage { wall_ns: 100, cpu_ns: 50, run_queue_ns: None, spun_ns: 0 };
        point.client.threads = vec![second, ThreadUsage { cpu_ns: 25, ..second }];
        assert_eq!(threads_line(&point), "0.75 cores in all, busiest thread 50 %, waits for a core n/a");
        assert_eq!(connections_line(&point), "4 connections, epoll");
        assert_eq!(schedule_line(&point), "n/a on average, p50 n/a, p99 n/a");
        point.histograms.schedule_lag_ns.record(5000).expect("within bounds");
        assert!(schedule_line(&point).starts_with("5 usec on average, p50 5 usec"));
    }

    /// A figure of the client may not stand where a reader takes it for one of the server.
    #[test]
    fn a_void_point_has_no_figures() {
        let mut sample = Sample::new(&[LoadPoint::Concurrency(1), LoadPoint::Concurrency(2)]);
        let good = sample.points[0].rate();
        sample.points[1].limits.generator = Some(GeneratorLimit::Saturated { thread: 0, busy: 0.99 });
        let reason = "the load generator was the limit: its thread 0 used 99 % of a core. Next: give more --threads";
        assert!(void(&sample.points[1]).is_some_and(|text| text.starts_with(reason)));
        assert_eq!(void(&sample.points[0]), None);

        let block = text::point(&sample.report(), &sample.points[1], true);
        for part in [
            &format!("Request concurrency: 2\n  VOID: {reason}"),
            "    Request count: 1000\n",
            "    Throughput: n/a infer/sec\n",
            "    Avg latency: n/a",
            "    p99 latency: n/a\n",
            "    Sent n/a MB/s, received n/a MB/s\n",
            "    Client CPU: 4.00 usec a request",
            "    Inference count: 1000\n",
        ] {
            assert!(block.contains(part), "{part:?} in\n{block}");
        }
        assert!(!block.contains("Pass [") && !block.contains("WARNING"), "{block}");
        let table = text::table(&sample.report());
        let line = table.lines().nth(2).expect("a line");
        assert!(line.ends_with("void: the load generator was the limit"), "{table}");
        assert_eq!(line.matches("n/a").count(), 7, "{table}");
        assert!(text::summary(&sample.report()).ends_with("Concurrency: 2, throughput: n/a infer/sec, latency n/a\n"));

        let csv = csv::render(&sample.report(), false);
        let lines: Vec<&str> = csv.lines().collect();
        assert!(lines[0].ends_with(",p99 latency,Void"), "{csv}");
        let of = |load: &str| *lines.iter().find(|line| line.starts_with(load)).expect("a line");
        assert!(of("1,").ends_with(',') && of("2,n/a,n/a,n/a,").ends_with(",n/a,n/a,n/a,n/a,saturated"), "{csv}");

        let page = html::render(&sample.report());
        assert!(page.contains(&format!("<p class=\"doubt\">Request concurrency: 2: void: {reason}")), "{page}");
        assert!(page.contains("<dt>Transport</dt><dd>HTTP/1.1; "), "{page}");
        let shown = significant(good);
        assert_eq!(page.matches(&format!("<td>{shown}</td>")).count(), 1, "{page}");

        let json = json::render(&sample.report());
        let (good, bad) = (&json["points"][0], &json["points"][1]);
        assert_eq!((&good["void"], &good["generator_limit"]), (&false.into(), &serde_json::Value::Null));
        assert_eq!((&bad["void"], &bad["generator_limit"]["kind"]), (&true.into(), &"saturated".into()));
        assert_eq!(bad["completed"], 1000, "programs get what was counted");
        assert_eq!(bad["client"]["threads"][0]["run_queue_us"], 30_000.0);
    }
}
