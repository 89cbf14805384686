//! Servers that pause, fail, and exit.

use std::time::Duration;

use nereid_perf::{Load, PerfError, Progress, Protocol, Step, Sweep, Window};

use super::plans::{PROTOCOLS, concurrency, echoes, measure, plan, rate};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{Server, signal};
use nereid_test_support::variant::usual;

const PAUSE: Duration = Duration::from_millis(300);

fn identity() -> Repository {
    let repository = Repository::new();
    repository.identity("identity", 0, &[Pair::new("FP32", "-1")]);
    repository
}

/// Stops the server's process for `time`, once, when requests are under way.
struct Pauser {
    pid: u32,
    time: Duration,
    /// How many requests had been answered by then.
    answered: Option<u64>,
}

impl Pauser {
    fn new(server: &Server, time: Duration) -> Pauser {
        Pauser { pid: server.pid(), time, answered: None }
    }
}

impl Progress for Pauser {
    fn step(&mut self, step: Step) {
        if self.answered.is_none() && step.completed > 20 {
            signal(self.pid, "STOP");
            std::thread::sleep(self.time);
            signal(self.pid, "CONT");
            self.answered = Some(step.completed);
        }
    }
}

/// Requests that are due while the server stands still count from when they were due, whether they could be sent or
/// not. A closed loop sends hardly any in that time, and its percentiles know nothing of it.
#[test]
fn an_open_loop_shows_a_pause_of_the_server() {
    let repository = identity();
    let server = Server::start(usual(), repository.path(), &[]);
    for protocol in PROTOCOLS {
        // On a busy machine the pause may come when few requests are left: then there are more of them.
        let measured = [2_000, 6_000, 18_000].into_iter().find_map(|count| {
            let mut open = plan(&server, protocol, "identity", echoes(2, 16), count);
            open.load = rate(1000.0);
            // Requests have to wait for connections while the server takes none of theirs.
            open.client.connections = Some(2);
            let mut pauser = Pauser::new(&server, PAUSE);
            let measured = nereid_perf::run(&open, &mut pauser).expect("a run").remove(0);
            assert_eq!((measured.counts.completed, measured.counts.failed), (count, 0), "{:?}", measured.errors);
            pauser.answered.is_some_and(|answered| answered + 1_000 < count).then_some(measured)
        });
        let measured = measured.expect("a pause in the middle of the requests");
        // A hundred requests fall into the first third of the pause, and wait for longer than half of it.
        let hundredth = 100.0 - 100.0 * 100.0 / measured.counts.completed as f64;
        let hundredth = Duration::from_nanos(measured.histograms.latency_ns.value_at_percentile(hundredth));
        let late = measured.histograms.latency_ns.count_between(PAUSE.as_nanos() as u64 / 3, u64::MAX);
        assert!(hundredth >= PAUSE / 2, "{protocol:?}: the hundredth of the slowest took {hundredth:?}");
        assert!(late >= 150, "{protocol:?}: {late} requests saw a pause of 300 at a thousand a second");
    }
    let mut closed = plan(&server, Protocol::Http, "identity", echoes(2, 16), 20_000);
    closed.load = concurrency(1);
    // Longer than those that a busy machine makes.
    let long = 10 * PAUSE;
    let mut pauser = Pauser::new(&server, long);
    let measured = nereid_perf::run(&closed, &mut pauser).expect("a run").remove(0);
    assert!(pauser.answered.is_some());
    let late = measured.histograms.latency_ns.count_between(long.as_nanos() as u64 / 3, u64::MAX);
    assert!((1..20).contains(&late), "a closed loop with one request in flight saw {late}");
    server.stop();
}

#[test]
fn a_rate_beyond_the_server_is_said_to_be_unsustainable() {
    let repository = identity();
    let delay = r#"parameters { key: "execute_delay_ms" value { string_value: "10" } }"#;
    repository.identity_of("identity", "slow", 0, &[Pair::new("FP32", "-1")], delay);
    let server = Server::start(usual(), repository.path(), &[]);
    for protocol in PROTOCOLS {
        let mut plan = plan(&server, protocol, "slow", echoes(1, 16), 0);
        plan.rules.request_count = None;
        plan.load = Load::Rate {
            sweep: Sweep { start: 5000.0, end: Some(6000.0), step: 1000.0 },
            spacing: nereid_perf::Spacing::Constant,
        };
        plan.client.outstanding_max = 100;
        plan.rules.window = Window::Time(Duration::from_secs(5));
        let measured = nereid_perf::run(&plan, &mut ()).expect("a run");
        assert_eq!(measured.len(), 1, "more of it would be no better");
        assert!(measured[0].limits.unsustainable && !measured[0].stable);
        assert!(measured[0].counts.sent <= 300, "{}", measured[0].counts.sent);
    }
    server.stop();
}

#[test]
fn errors_are_counted_by_what_they_say() {
    let repository = identity();
    repository.identity("batch", 4, &[Pair::new("FP32", "-1"), Pair::new("FP32", "-1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    for protocol in PROTOCOLS {
        let mut wrong = plan(&server, protocol, "identity", echoes(4, 16), 40);
        if let Some(expected) = wrong.work.streams[0][1].expected.as_mut() {
            expected[0].data = nereid_memory::Slice::copy_of(&[0; 64]);
        }
        let measured = measure(&wrong);
        assert_eq!((measured.counts.completed, measured.counts.failed), (30, 10));
        let errors: Vec<_> = measured.errors.counts.iter().map(|(text, count)| (text.as_str(), *count)).collect();
        assert_eq!(errors, [("output 'OUTPUT0' is not what was expected", 10)]);
        // What the server refuses is told in its words.
        let input = |name: &str, rows: i64| nereid_perf::Input {
            name: name.to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![rows, 1],
            data: nereid_memory::Slice::copy_of(&vec![0; 4 * rows as usize]),
        };
        let inputs = vec![input("INPUT0", 1), input("INPUT1", 2)];
        let template = nereid_perf::Template { inputs, ..Default::default() };
        let measured = measure(&plan(&server, protocol, "batch", vec![template], 20));
        assert_eq!((measured.counts.completed, measured.counts.failed), (0, 20));
        let texts: Vec<_> = measured.errors.counts.keys().collect();
        assert!(texts.len() == 1 && texts[0].contains("batch size does not match"), "{texts:?}");
    }
    server.stop();
}

/// Kills the server when requests are under way.
struct Killer(Option<u32>);

impl Progress for Killer {
    fn step(&mut self, step: Step) {
        if step.completed > 20
            && let Some(pid) = self.0.take()
        {
            signal(pid, "KILL");
        }
    }
}

#[test]
fn a_server_that_goes_away_ends_the_run_with_an_error() {
    let repository = identity();
    for protocol in PROTOCOLS {
        let server = Server::start(usual(), repository.path(), &[]);
        let mut endless = plan(&server, protocol, "identity", echoes(2, 16), u64::MAX);
        endless.load = concurrency(4);
        let error = nereid_perf::run(&endless, &mut Killer(Some(server.pid()))).expect_err("a server that is away");
        assert!(matches!(&error, PerfError::Unreachable { .. }), "{error:?}");
        assert!(error.to_string().contains("refused"), "{error}");
        drop(server);
        // And one that was never there.
        let error = nereid_perf::run(&endless, &mut ()).expect_err("no server");
        assert!(matches!(&error, PerfError::Unreachable { .. }), "{error:?}");
    }
}

/// A request that gets no answer fails after its time, and what else is there goes on.
#[test]
fn requests_without_an_answer_fail_in_time() {
    let repository = identity();
    let delay = r#"parameters { key: "execute_delay_ms" value { string_value: "60000" } }"#;
    repository.identity_of("identity", "slow", 0, &[Pair::new("FP32", "-1")], delay);
    let server = Server::start(usual(), repository.path(), &[]);
    for protocol in PROTOCOLS {
        let mut plan = plan(&server, protocol, "slow", echoes(1, 16), 2);
        plan.load = concurrency(2);
        plan.server_statistics = false;
        plan.client.request_timeout = Duration::from_millis(500);
        let measured = measure(&plan);
        assert_eq!((measured.counts.completed, measured.counts.failed), (0, 2), "{protocol:?}");
        let texts: Vec<_> = measured.errors.counts.keys().map(String::as_str).collect();
        assert_eq!(texts, ["no answer within the request timeout"]);
    }
    drop(server);
}
