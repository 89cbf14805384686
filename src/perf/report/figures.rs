//! Figures that several reports show, computed in one place.

use hdrhistogram::Histogram;

use crate::stability::WINDOWS;
use crate::{LoadPoint, Measurement, ServerSide};

/// In microseconds, like what follows; nought of nothing.
pub fn quantile_us(histogram: &Histogram<u64>, percentile: f64) -> f64 {
    if histogram.is_empty() { 0.0 } else { histogram.value_at_quantile(percentile / 100.0) as f64 / 1e3 }
}

pub fn mean_us(histogram: &Histogram<u64>) -> f64 {
    if histogram.is_empty() { 0.0 } else { histogram.mean() / 1e3 }
}

pub fn deviation_us(histogram: &Histogram<u64>) -> f64 {
    if histogram.is_empty() { 0.0 } else { histogram.stdev() / 1e3 }
}

pub fn max_us(histogram: &Histogram<u64>) -> f64 {
    if histogram.is_empty() { 0.0 } else { histogram.max() as f64 / 1e3 }
}

/// What stands for a figure where nothing was measured.
pub const NONE: &str = "n/a";

/// A figure of a histogram without its unit, for tables.
pub fn whole(histogram: &Histogram<u64>, us: impl Fn(&Histogram<u64>) -> f64) -> String {
    if histogram.is_empty() { NONE.to_owned() } else { format!("{:.0}", us(histogram)) }
}

/// A figure of a histogram with its unit.
pub fn usec(histogram: &Histogram<u64>, us: impl Fn(&Histogram<u64>) -> f64) -> String {
    if histogram.is_empty() { NONE.to_owned() } else { format!("{:.0} usec", us(histogram)) }
}

/// Where the mean request spent its time, in microseconds. The parts add up to the mean latency, as far as what the
/// client and the server measured fits together.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Breakdown {
    /// In the client: from the time at which a request was due until it left, and the CPU time for it.
    pub client: f64,
    /// Between the client's and the server's clock stops: the kernel, the network, parsing and encoding.
    pub network: f64,
    /// In the server, beside the phases below.
    pub overhead: f64,
    pub queue: f64,
    pub compute_input: f64,
    pub compute_infer: f64,
    pub compute_output: f64,
    pub cache_hit: f64,
    pub cache_miss: f64,
}

impl Breakdown {
    pub fn of(point: &Measurement) -> Breakdown {
        let client = mean_us(&point.histograms.send_lag_ns) + point.client_cpu_per_request_ns() / 1e3;
        let latency = mean_us(&point.histograms.latency_ns);
        let Some(server) = &point.server else {
            return Breakdown { client, network: (latency - client).max(0.0), ..Breakdown::default() };
        };
        let phases = Phases::of(server);
        let network = latency - client - phases.request;
        Breakdown {
            client,
            network: network.max(0.0),
            overhead: phases.overhead(),
            queue: phases.queue,
            compute_input: phases.compute_input,
            compute_infer: phases.compute_infer,
            compute_output: phases.compute_output,
            cache_hit: phases.cache_hit,
            cache_miss: phases.cache_miss,
        }
    }

    /// The parts that were measured: those of the server where it has statistics, none where no request was completed.
    pub fn known(point: &Measurement) -> [(&'static str, Option<f64>); 9] {
        let has_server = point.server.as_ref().is_some_and(|server| server.success.count > 0);
        let is_known = |name: &str| match name {
            "client" | "network" => !point.histograms.latency_ns.is_empty(),
            _ => has_server,
        };
        Breakdown::of(point).parts().map(|(name, us)| (name, Some(us).filter(|_| is_known(name))))
    }

    /// The parts with their names, in the order in which a request passes them.
    pub fn parts(&self) -> [(&'static str, f64); 9] {
        [
            ("client", self.client),
            ("network", self.network),
            ("server overhead", self.overhead),
            ("queue", self.queue),
            ("cache hit", self.cache_hit),
            ("cache miss", self.cache_miss),
            ("compute input", self.compute_input),
            ("compute infer", self.compute_infer),
            ("compute output", self.compute_output),
        ]
    }
}

/// The server's figures of the mean successful request, in microseconds. A phase that only some of them passed counts
/// by its share.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Phases {
    pub request: f64,
    pub queue: f64,
    pub compute_input: f64,
    pub compute_infer: f64,
    pub compute_output: f64,
    pub cache_hit: f64,
    pub cache_miss: f64,
}

impl Phases {
    pub fn of(server: &ServerSide) -> Phases {
        let requests = server.success.count;
        let share = |ns: u64| if requests == 0 { 0.0 } else { ns as f64 / requests as f64 / 1e3 };
        Phases {
            request: share(server.success.ns),
            queue: share(server.queue.ns),
            compute_input: share(server.compute_input.ns),
            compute_infer: share(server.compute_infer.ns),
            compute_output: share(server.compute_output.ns),
            cache_hit: share(server.cache_hit.ns),
            cache_miss: share(server.cache_miss.ns),
        }
    }

    /// Time in the server that is in none of the phases.
    pub fn overhead(&self) -> f64 {
        let phases = self.queue + self.compute_input + self.compute_infer + self.compute_output;
        (self.request - phases - self.cache_hit - self.cache_miss).max(0.0)
    }
}

/// What a load point is called, and how large it is.
pub fn load(load: LoadPoint) -> (&'static str, f64) {
    match load {
        LoadPoint::Concurrency(count) => ("Concurrency", count as f64),
        LoadPoint::Rate(rate) => ("Request Rate", rate),
        LoadPoint::Intervals(rate) => ("Custom intervals", rate),
    }
}

/// In parts of the time: figures of a client that waits longer for a core are those of the host, too.
const SHORT_OF_CORES: f64 = 0.25;

/// Why a point's figures should not be believed as they stand; empty if they can be. A void point has none.
pub fn doubts(point: &Measurement) -> Vec<String> {
    let mut doubts = Vec::new();
    let limits = &point.limits;
    if limits.unsustainable && !point.is_void() {
        doubts.push(
            "not sustainable: more requests were outstanding than --max-outstanding allows, so the server does not \
             keep up with this rate"
                .to_owned(),
        );
    }
    if limits.behind_schedule && !point.is_void() {
        doubts.push("the client fell behind its schedule; give it more cores, or more with --threads".to_owned());
    }
    if let Some(waiting) = point.client.longest_wait().filter(|waiting| *waiting >= SHORT_OF_CORES) {
        doubts.push(format!(
            "a thread of the client waited for a core {:.0} % of the time, while the server or other programs used it; \
             give each cores of its own (--pin, and --io-cores of the server)",
            waiting * 100.0
        ));
    }
    if !point.stable && !limits.unsustainable && !point.is_void() {
        let reason = match point.windows.len() < WINDOWS {
            true => "it ended too early to tell",
            false => "rates or latencies of the last windows differ too much; try a longer -p",
        };
        doubts.push(format!("not stable: {reason}"));
    }
    if point.counts.failed > 0 {
        doubts.push(format!("{} requests failed", point.counts.failed));
    }
    doubts
}

/// Up to six significant digits, as streams of C++ print doubles; `n/a` of what is no number.
pub fn significant(value: f64) -> String {
    if !value.is_finite() {
        return NONE.to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = value.abs().log10().floor() as i32;
    let places = usize::try_from(5 - digits).unwrap_or(0).min(12);
    let text = format!("{value:.places$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// `95`, `99.9`.
pub fn percentile_name(percentile: f64) -> String {
    let text = format!("{percentile:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples;

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (2531.1, "2531.1"),
            (1234567.0, "1234567"),
            (0.5, "0.5"),
            (49.83541, "49.8354"),
            (100.0, "100"),
            (0.000123456789, "0.000123457"),
            (0.0, "0"),
            (f64::NAN, "n/a"),
        ] {
            assert_eq!(significant(value), text, "{value}");
        }
        assert_eq!(percentile_name(99.9), "99.9");
        assert_eq!(percentile_name(85.0), "85");
    }

    #[test]
    fn parts_add_up_to_the_mean_latency() {
        let point = samples::point(LoadPoint::Concurrency(4), 100);
        let sum: f64 = Breakdown::of(&point).parts().iter().map(|(_, us)| us).sum();
        let mean = mean_us(&point.histograms.latency_ns);
        assert!((sum - mean).abs() < 0.01, "{sum} {mean}");
        let point = Measurement { server: None, ..point };
        let sum: f64 = Breakdown::of(&point).parts().iter().map(|(_, us)| us).sum();
        assert!((sum - mean).abs() < 0.01, "{sum} {mean}");
    }

    #[test]
    fn nothing_measured_is_nothing() {
        let empty = samples::empty(LoadPoint::Rate(5.0));
        assert_eq!(Breakdown::of(&empty), Breakdown::default());
        assert!(Breakdown::known(&empty).iter().all(|(_, us)| us.is_none()));
        let without = Measurement { server: None, ..samples::point(LoadPoint::Concurrency(4), 100) };
        let known = Breakdown::known(&without).map(|(_, us)| us.is_some());
        assert_eq!(known, [true, true, false, false, false, false, false, false, false]);
        assert_eq!((mean_us(&empty.histograms.latency_ns), max_us(&empty.histograms.latency_ns)), (0.0, 0.0));
        assert_eq!(
            (deviation_us(&empty.histograms.latency_ns), quantile_us(&empty.histograms.latency_ns, 99.0)),
            (0.0, 0.0)
        );
    }

    #[test]
    fn doubts_are_told() {
        let mut point = samples::point(LoadPoint::Rate(4.0), 100);
        assert_eq!(doubts(&point), Vec::<String>::new());
        point.stable = false;
        point.windows.resize_with(WINDOWS, Default::default);
        assert!(doubts(&point)[0].starts_with("not stable: rates"));
        point.windows.truncate(WINDOWS - 1);
        assert_eq!(doubts(&point), ["not stable: it ended too early to tell"]);
        point.limits.unsustainable = true;
        assert!(doubts(&point)[0].starts_with("not sustainable"));
        point.limits.behind_schedule = true;
        point.counts.failed = 3;
        let all = doubts(&point);
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(all[1].contains("fell behind its schedule") && all[2] == "3 requests failed", "{all:?}");
        point.client.threads[0].run_queue_ns = Some(point.client.threads[0].wall_ns / 2);
        assert!(doubts(&point)[2].starts_with("a thread of the client waited for a core 50 % of the time"));
        point.client.threads.clear();
        // Whether the server keeps up is not known then.
        point.limits.generator = Some(crate::GeneratorLimit::Outrun);
        assert_eq!(doubts(&point), ["3 requests failed"]);
    }
}
