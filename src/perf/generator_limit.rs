//! Whether the load generator itself was the limit of a load point, so that its figures would be those of the client.
//!
//! Judged by what the kernel counted of the threads over all counted windows, on the thread that waits for them: a
//! thread that slept had time to spare, whatever a single slow window looks like, and one that used a whole core cannot
//! show the limit of a server. Time in which a thread could have run and had no core proves nothing: on a host whose
//! cores the server shares, that may be the time in which the server runs.

use std::fmt;
use std::time::Duration;

use nereid_shard::EngineKind;

/// In parts of the time: from here on a thread had no time to spare.
const BUSY: f64 = 0.95;
/// Windows that are shorter together prove nothing: a few turns of the scheduler fill them.
const EVIDENCE_MIN: Duration = Duration::from_millis(200);
/// The median request of an open loop may leave so much later than it was due.
const LATE_NS: u64 = 1_000_000;
/// In parts of the median latency: from here on it shows the client's delay more than the server's.
const LATE_PART: f64 = 0.5;

/// What one thread of the load used in the counted windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThreadUsage {
    pub wall_ns: u64,
    pub cpu_ns: u64,
    /// For how long it could have run and had no core; none where the kernel does not count that.
    pub run_queue_ns: Option<u64>,
    /// CPU time in which it polled rings before a sleep: it had time to spare.
    pub spun_ns: u64,
}

impl ThreadUsage {
    /// CPU time of its work in parts of one core.
    pub fn busy(&self) -> f64 {
        self.part(self.cpu_ns.saturating_sub(self.spun_ns))
    }

    /// All of its CPU time in parts of one core.
    fn cores(&self) -> f64 {
        self.part(self.cpu_ns)
    }

    /// The wait for a core in parts of the time.
    pub fn waiting(&self) -> Option<f64> {
        self.run_queue_ns.map(|ns| self.part(ns))
    }

    fn part(&self, ns: u64) -> f64 {
        if self.wall_ns == 0 { 0.0 } else { ns as f64 / self.wall_ns as f64 }
    }

    /// Adds a later window.
    pub fn add(&mut self, other: &ThreadUsage) {
        let is_first = self.wall_ns == 0;
        self.wall_ns += other.wall_ns;
        self.cpu_ns += other.cpu_ns;
        self.spun_ns += other.spun_ns;
        self.run_queue_ns = match (self.run_queue_ns, other.run_queue_ns) {
            (Some(sum), Some(more)) => Some(sum + more),
            (None, more) if is_first => more,
            _ => None,
        };
    }
}

/// The load generator's side of a load point.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientSide {
    pub threads: Vec<ThreadUsage>,
    /// Most connections that were open at the end of a counted window.
    pub connections: usize,
    /// The one that ran, also where the plan leaves the choice to the machine.
    pub engine: EngineKind,
}

impl ClientSide {
    /// CPU time of the threads that send and receive.
    pub fn cpu(&self) -> Duration {
        Duration::from_nanos(self.threads.iter().map(|thread| thread.cpu_ns).sum())
    }

    /// That of all threads together, in cores.
    pub fn cores(&self) -> f64 {
        self.threads.iter().map(ThreadUsage::cores).sum()
    }

    /// Most CPU time of one thread, in parts of one core, without polling.
    pub fn busiest(&self) -> f64 {
        self.threads.iter().map(ThreadUsage::busy).fold(0.0, f64::max)
    }

    /// Longest wait of one thread for a core, in parts of the time.
    pub fn longest_wait(&self) -> Option<f64> {
        self.threads.iter().filter_map(ThreadUsage::waiting).reduce(f64::max)
    }
}

/// `io_uring` or `epoll`.
pub fn engine_name(engine: EngineKind) -> &'static str {
    match engine {
        EngineKind::IoUring => "io_uring",
        EngineKind::Epoll => "epoll",
    }
}

/// What a load point is judged by.
#[derive(Debug, Clone, Copy)]
pub struct Readings<'a> {
    pub threads: &'a [ThreadUsage],
    /// Of the counted windows together.
    pub wall: Duration,
    /// Open loop: how long after it was due the median request was taken up by its thread; none in a closed loop.
    pub schedule_lag_p50_ns: Option<u64>,
    pub latency_p50_ns: u64,
    /// The open loop was ended with too many requests outstanding, by a thread that could not send what was due.
    pub is_outrun: bool,
}

/// How the load generator was the limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GeneratorLimit {
    /// The schedule asks for more than a thread can send.
    Outrun,
    /// A thread used a whole core.
    Saturated { thread: usize, busy: f64 },
    /// At least half of the requests left late, for want of a thread that would have sent them.
    Late { lag_p50_ns: u64 },
}

impl GeneratorLimit {
    /// `None`: nothing shows that the load generator was the limit.
    pub fn judge(readings: &Readings<'_>) -> Option<GeneratorLimit> {
        if readings.is_outrun {
            return Some(GeneratorLimit::Outrun);
        }
        if readings.wall < EVIDENCE_MIN {
            return None;
        }
        let busy = readings.threads.iter().map(ThreadUsage::busy).enumerate();
        let saturated = busy.filter(|(_, busy)| *busy >= BUSY);
        if let Some((thread, busy)) = saturated.max_by(|(_, one), (_, other)| one.total_cmp(other)) {
            return Some(GeneratorLimit::Saturated { thread, busy });
        }
        let is_late = |lag_ns: &u64| *lag_ns > LATE_NS && *lag_ns as f64 >= LATE_PART * readings.latency_p50_ns as f64;
        readings.schedule_lag_p50_ns.filter(is_late).map(|lag_p50_ns| GeneratorLimit::Late { lag_p50_ns })
    }

    /// For programs.
    pub fn name(&self) -> &'static str {
        match self {
            GeneratorLimit::Outrun => "outrun",
            GeneratorLimit::Saturated { .. } => "saturated",
            GeneratorLimit::Late { .. } => "late",
        }
    }

    pub fn next_step(&self) -> &'static str {
        match self {
            GeneratorLimit::Outrun => "lower the rate, give more --threads, or share the load among several hosts",
            GeneratorLimit::Saturated { .. } => {
                "give more --threads, a lower load, or run the load generator on another host"
            }
            GeneratorLimit::Late { .. } => {
                "give more --threads, cores that nothing else uses (--pin), a lower rate, or another host"
            }
        }
    }
}

/// The evidence.
impl fmt::Display for GeneratorLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GeneratorLimit::Outrun => {
                write!(f, "more requests were due than its threads could send")
            }
            GeneratorLimit::Saturated { thread, busy } => {
                write!(f, "its thread {thread} used {:.0} % of a core", busy * 100.0)
            }
            GeneratorLimit::Late { lag_p50_ns } => {
                write!(f, "half of the requests left {} usec or more after they were due", lag_p50_ns / 1000)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Of a second.
    fn used(busy: f64, waiting: Option<f64>) -> ThreadUsage {
        let part = |part: f64| (part * SECOND_NS as f64) as u64;
        ThreadUsage { wall_ns: SECOND_NS, cpu_ns: part(busy), run_queue_ns: waiting.map(part), spun_ns: 0 }
    }

    fn readings(threads: &[ThreadUsage]) -> Readings<'_> {
        Readings {
            threads,
            wall: Duration::from_secs(1),
            schedule_lag_p50_ns: None,
            latency_p50_ns: 200_000,
            is_outrun: false,
        }
    }

    fn judged(threads: &[ThreadUsage]) -> Option<&'static str> {
        GeneratorLimit::judge(&readings(threads)).map(|limit| limit.name())
    }

    #[test]
    fn a_thread_with_less_than_a_core_was_not_the_limit() {
        for threads in [
            &[][..],
            &[used(0.0, None)],
            &[used(0.94, None)],
            &[used(0.3, Some(0.6))],
            // One client and a server that takes turns with it on one core.
            &[used(0.28, Some(0.71))],
            &[used(0.9, Some(0.04)), used(0.04, Some(0.9))],
        ] {
            assert_eq!(judged(threads), None, "{threads:?}");
        }
    }

    #[test]
    fn a_thread_that_used_a_core_was() {
        assert_eq!(judged(&[used(0.96, None)]), Some("saturated"));
        assert_eq!(judged(&[used(0.2, Some(0.1)), used(0.97, Some(0.02))]), Some("saturated"));
        let threads = [used(0.955, None), used(0.99, Some(0.01))];
        let limit = GeneratorLimit::judge(&readings(&threads)).expect("a limit");
        assert_eq!(limit, GeneratorLimit::Saturated { thread: 1, busy: 0.99 });
        assert_eq!(limit.to_string(), "its thread 1 used 99 % of a core");
    }

    #[test]
    fn polling_for_answers_is_time_to_spare() {
        let polls = ThreadUsage { spun_ns: SECOND_NS * 7 / 10, ..used(1.0, Some(0.0)) };
        assert_eq!(judged(&[polls]), None);
        let busy = ThreadUsage { spun_ns: SECOND_NS / 100, ..polls };
        assert_eq!(judged(&[polls, busy]), Some("saturated"));
        let client = ClientSide { threads: vec![polls], connections: 1, engine: EngineKind::Epoll };
        assert_eq!((client.cores(), client.cpu()), (1.0, Duration::from_secs(1)), "it is used all the same");
        assert!((client.busiest() - 0.3).abs() < 0.01);
    }

    #[test]
    fn one_slow_window_of_three_proves_nothing() {
        let mut sum = ThreadUsage::default();
        for window in [used(0.5, Some(0.1)), used(1.0, Some(0.6)), used(0.5, Some(0.1))] {
            sum.add(&window);
        }
        assert_eq!((sum.wall_ns, sum.run_queue_ns), (3 * SECOND_NS, Some(4 * SECOND_NS / 5)));
        assert_eq!(judged(&[sum]), None);
        sum.add(&used(0.5, None));
        assert_eq!(sum.run_queue_ns, None, "a part of the waits is not the wait");
    }

    #[test]
    fn short_windows_prove_nothing() {
        let threads = [used(1.0, Some(0.0))];
        let short = Readings { wall: Duration::from_millis(199), ..readings(&threads) };
        assert_eq!(GeneratorLimit::judge(&short), None);
        let outrun = Readings { is_outrun: true, ..short };
        assert_eq!(
            GeneratorLimit::judge(&outrun),
            Some(GeneratorLimit::Outrun),
            "a schedule that is not kept ends early"
        );
    }

    #[test]
    fn a_late_schedule_counts_where_the_figures_are_mostly_its_delay() {
        let threads = [used(0.2, Some(0.2))];
        let late = |lag_us: u64, latency_us: u64| {
            let (schedule_lag_p50_ns, latency_p50_ns) = (Some(lag_us * 1000), latency_us * 1000);
            let readings = Readings { schedule_lag_p50_ns, latency_p50_ns, ..readings(&threads) };
            GeneratorLimit::judge(&readings).map(|limit| limit.name())
        };
        assert_eq!(late(900, 1000), None, "a thread that is woken up is not there at once");
        assert_eq!(late(2000, 5000), None);
        assert_eq!(late(3000, 5000), Some("late"));
    }

    #[test]
    fn a_limit_names_its_next_step() {
        for (limit, part) in [
            (GeneratorLimit::Outrun, "lower the rate"),
            (GeneratorLimit::Saturated { thread: 0, busy: 1.0 }, "more --threads"),
            (GeneratorLimit::Late { lag_p50_ns: 2_000_000 }, "a lower rate"),
        ] {
            assert!(limit.next_step().contains(part), "{limit:?}");
        }
    }

    #[test]
    fn parts_of_no_time_are_nought() {
        let none = ThreadUsage { run_queue_ns: Some(0), ..ThreadUsage::default() };
        assert_eq!((none.busy(), none.waiting()), (0.0, Some(0.0)));
        let client = ClientSide { threads: Vec::new(), connections: 0, engine: EngineKind::Epoll };
        assert_eq!((client.cpu(), client.busiest(), client.longest_wait()), (Duration::ZERO, 0.0, None));
    }
}
