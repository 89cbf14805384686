//! Closed and open loops over each protocol, in each form that requests can have.

use std::time::Duration;

use nereid_memory::Slice;
use nereid_perf::{
    Compression, Form, Input, Load, LoadPoint, Measurement, MetricsSource, Plan, Progress, Protocol, Spacing, Stage,
    Step, Sweep, Template, Tls, Window, WindowFigures, inspect,
};

use super::plans::{PROTOCOLS, at, concurrency, demand_all_good, echoes, measure, plan, rate};
use nereid_test_support::certificates::Certificates;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

fn identity() -> Repository {
    let repository = Repository::new();
    repository.identity("identity", 0, &[Pair::new("FP32", "-1")]);
    repository
}

#[test]
fn closed_loops_send_exactly_what_was_asked_for() {
    let repository = identity();
    each(&variant::ALL, |variant| {
        let server = Server::start(variant, repository.path(), &[]);
        for protocol in PROTOCOLS {
            // Small tensors, and such that go over many frames.
            for (elements, count) in [(16, 500), (150_000, 20)] {
                let mut plan = plan(&server, protocol, "identity", echoes(7, elements), count);
                (plan.load, plan.client.threads) = (concurrency(5), 2);
                plan.rules.warm_up_requests = 10;
                plan.records_max = 100_000;
                let measured = measure(&plan);
                demand_all_good(&measured, count);
                assert_eq!(measured.load, LoadPoint::Concurrency(5));
                assert!(measured.stable && measured.within_threshold);
                assert!(measured.counts.bytes_sent > count * elements as u64 * 4);
                assert!(measured.counts.bytes_received > count * elements as u64 * 4);
                assert_eq!((measured.records.len() as u64, measured.records_dropped), (count, 0));
                let mut few = plan.clone();
                // Fewer in flight than threads that could have them.
                (few.load, few.client.threads) = (concurrency(1), 3);
                few.rules.request_count = Some(7);
                demand_all_good(&measure(&few), 7);
                let mut overlaps = measured.records.clone();
                overlaps.sort_by_key(|record| record.sent_ns);
                for record in &overlaps {
                    let during = |other: &&nereid_perf::Record| {
                        other.sent_ns <= record.sent_ns && other.responses_ns[0] > record.sent_ns
                    };
                    assert!(overlaps.iter().filter(during).count() <= 5, "more in flight than the concurrency");
                }
            }
        }
        server.stop();
    });
}

#[test]
fn requests_have_every_form() {
    let repository = identity();
    let server = Server::start(usual(), repository.path(), &[]);
    for (input_form, output_form) in [(Form::Json, Form::Json), (Form::Binary, Form::Json), (Form::Json, Form::Binary)]
    {
        let mut plan = plan(&server, Protocol::Http, "identity", echoes(3, 16), 50);
        (plan.work.input_form, plan.work.output_form) = (input_form, output_form);
        demand_all_good(&measure(&plan), 50);
    }
    for protocol in PROTOCOLS {
        for compression in [Compression::Gzip, Compression::Deflate] {
            let mut plan = plan(&server, protocol, "identity", echoes(3, 40_000), 30);
            plan.work.compression = compression;
            let measured = measure(&plan);
            demand_all_good(&measured, 30);
            assert!(
                measured.counts.bytes_sent < 30 * 120_000,
                "{protocol:?} {compression:?}: packed requests are shorter"
            );
        }
        let mut unique = plan(&server, protocol, "identity", echoes(2, 16), 40);
        (unique.client.unique_connections, unique.load) = (true, concurrency(6));
        unique.version = "1".to_owned();
        unique.work.headers = vec![("X-Trace".to_owned(), "a b".to_owned())];
        unique.work.priority = 1;
        demand_all_good(&measure(&unique), 40);
    }
    server.stop();
}

#[test]
fn open_loops_keep_their_schedule() {
    let repository = identity();
    let server = Server::start(usual(), repository.path(), &[]);
    for protocol in PROTOCOLS {
        let sweep = Sweep { start: 400.0, end: Some(400.0), step: 1.0 };
        let loads = [
            rate(500.0),
            Load::Rate { sweep, spacing: Spacing::Poisson },
            Load::Intervals(vec![Duration::from_millis(1), Duration::from_millis(3)]),
        ];
        for load in loads {
            let mut plan = plan(&server, protocol, "identity", echoes(3, 16), 200);
            (plan.load, plan.client.threads, plan.records_max) = (load.clone(), 2, 1000);
            let measured = measure(&plan);
            demand_all_good(&measured, 200);
            let mut due: Vec<u64> = measured.records.iter().map(|record| record.due_ns).collect();
            due.sort_unstable();
            match &load {
                Load::Rate { spacing: Spacing::Constant, .. } => {
                    assert!(due.iter().enumerate().all(|(n, due_ns)| *due_ns == n as u64 * 2_000_000), "{due:?}");
                }
                Load::Intervals(_) => assert_eq!(due[..4], [1_000_000, 4_000_000, 5_000_000, 8_000_000]),
                _ => assert!((0.3..0.8).contains(&(due[199] as f64 / 1e9)), "{due:?}"),
            }
            assert!(measured.records.iter().all(|record| record.sent_ns >= record.due_ns), "nothing leaves early");
            assert_eq!(measured.histograms.send_lag_ns.len(), 200);
        }
    }
    server.stop();
}

/// Notes what it is told.
#[derive(Default)]
struct Notes {
    points: Vec<LoadPoint>,
    stages: Vec<Stage>,
    measured: usize,
    /// Ends the run with the first step of this stage.
    stop_at: Option<Stage>,
}

impl Progress for Notes {
    fn point(&mut self, load: LoadPoint) {
        self.points.push(load);
    }

    fn step(&mut self, step: Step) {
        assert!((0.0..=1.0).contains(&step.done));
        if self.stages.last() != Some(&step.stage) {
            self.stages.push(step.stage);
        }
    }

    fn measured(&mut self, _measurement: &Measurement) {
        self.measured += 1;
    }

    fn stop_wanted(&mut self) -> bool {
        self.stop_at.is_some_and(|stage| self.stages.contains(&stage))
    }
}

#[test]
fn windows_are_tried_until_they_agree_and_sweeps_go_on() {
    let repository = identity();
    let server = Server::start(usual(), repository.path(), &[]);
    for window in [Window::Time(Duration::from_millis(300)), Window::Count(100)] {
        let mut plan = plan(&server, Protocol::GrpcUnary, "identity", echoes(2, 16), 0);
        (plan.rules.request_count, plan.rules.window) = (None, window);
        // Anything agrees.
        plan.rules.stability_percent = 1e6;
        // A window in which a slow machine answers nothing is not one of them.
        plan.rules.trials_max = 1_000;
        plan.load = Load::Concurrency(Sweep { start: 1, end: Some(4), step: 3 });
        let mut notes = Notes::default();
        let measured = nereid_perf::run(&plan, &mut notes).expect("a run");
        assert_eq!(notes.points, [LoadPoint::Concurrency(1), LoadPoint::Concurrency(4)]);
        assert_eq!((notes.measured, measured.len()), (2, 2));
        for point in &measured {
            // A window in which a slow machine answers nothing at all agrees with no other one.
            let full = |windows: &[WindowFigures]| windows.iter().all(|window| window.completed > 0);
            let first = point.windows.windows(3).position(full);
            assert!(point.stable && first == Some(point.windows.len() - 3), "{:?}", point.windows);
            let (before, counted) = point.windows.split_at(point.windows.len() - 3);
            assert!(counted.iter().all(|window| window.counted) && before.iter().all(|window| !window.counted));
            assert_eq!(counted.iter().map(|window| window.completed).sum::<u64>(), point.counts.completed);
            assert!(point.counts.completed > 0 && point.rate() > 0.0 && point.client_cpu_per_request_ns() > 0.0);
        }
        let most = measured.iter().map(|point| point.windows.len() as u32).max().unwrap_or_default();
        assert!(notes.stages.contains(&Stage::Trial(most)) && !notes.stages.contains(&Stage::Trial(most + 1)));
        // Nothing agrees.
        (plan.rules.stability_percent, plan.rules.trials_max) = (0.0, 5);
        plan.load = concurrency(2);
        let point = measure(&plan);
        assert!(!point.stable);
        let counted: Vec<bool> = point.windows.iter().map(|window| window.counted).collect();
        assert_eq!(counted, [false, false, true, true, true]);
    }
    server.stop();
}

#[test]
fn a_run_can_be_stopped_and_a_threshold_ends_a_sweep() {
    let repository = identity();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut plan = plan(&server, Protocol::Http, "identity", echoes(2, 16), 0);
    plan.rules.request_count = None;
    plan.rules.window = Window::Time(Duration::from_secs(3600));
    let mut notes = Notes { stop_at: Some(Stage::Trial(1)), ..Notes::default() };
    let cut = nereid_perf::run(&plan, &mut notes).expect("a run");
    assert!(cut.len() <= 1 && cut.iter().all(|point| !point.stable && point.windows.len() == 1), "{cut:?}");
    // No answer comes within a nanosecond.
    (plan.rules.request_count, plan.rules.latency_threshold) = (Some(10), Some(Duration::from_nanos(1)));
    plan.load = Load::Concurrency(Sweep { start: 1, end: None, step: 1 });
    let measured = nereid_perf::run(&plan, &mut ()).expect("a run");
    assert_eq!((measured.len(), measured[0].within_threshold), (1, false));
    plan.rules.latency_threshold = Some(Duration::from_secs(3600));
    plan.rules.binary_search = true;
    plan.load = Load::Concurrency(Sweep { start: 1, end: Some(4), step: 1 });
    let measured = nereid_perf::run(&plan, &mut ()).expect("a run");
    assert_eq!(
        measured.iter().map(|point| point.load).collect::<Vec<_>>(),
        [LoadPoint::Concurrency(1), LoadPoint::Concurrency(4)]
    );
    server.stop();
}

#[test]
fn tls_and_metrics_and_unix_sockets() {
    let repository = identity();
    if let Some(certificates) = Certificates::make() {
        for (service, protocol) in
            [("http", Protocol::Http), ("grpc", Protocol::GrpcUnary), ("grpc", Protocol::GrpcStream)]
        {
            let flags = certificates.mutual_flags(service);
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            let server = Server::start_saying(usual(), repository.path(), &flags, "Started HTTPService at ");
            let mut plan = plan(&server, protocol, "identity", echoes(2, 30_000), 30);
            plan.target.tls = Some(Tls {
                ca: Some(certificates.path("authority.pem").into()),
                certificate: Some(certificates.path("client.pem").into()),
                key: Some(certificates.path("client.key").into()),
                ..Tls::default()
            });
            demand_all_good(&measure(&plan), 30);
            let mut stranger = plan.clone();
            stranger.target.tls.as_mut().expect("TLS").ca = Some(certificates.path("other.pem").into());
            let error = nereid_perf::run(&stranger, &mut ()).expect_err("an unknown authority");
            assert!(error.to_string().contains("certificate"), "{error}");
            stranger.target.tls.as_mut().expect("TLS").accept_any_certificate = true;
            demand_all_good(&measure(&stranger), 30);
        }
    }
    let server = Server::start(usual(), repository.path(), &[]);
    let mut plan = plan(&server, Protocol::Http, "identity", echoes(2, 16), 50);
    let interval = Duration::from_millis(1);
    plan.metrics = Some(MetricsSource { endpoint: at(server.metrics), path: "/metrics".to_owned(), interval });
    let name = "nv_inference_request_success{model=\"identity\",version=\"1\"}";
    // On a busy machine no page may be read while a run lasts.
    let runs = (0..1000).map(|before| (before, measure(&plan)));
    let found = runs.map(|(before, run)| (before, run.metrics.get(name).copied())).find(|(_, found)| found.is_some());
    let Some((before, Some(figures))) = found else { panic!("no run reads the page") };
    let counts = f64::from(before * 50)..=f64::from(before * 50 + 50);
    assert!(counts.contains(&figures.first) && counts.contains(&figures.last), "{figures:?} in {counts:?}");
    assert!(figures.first <= figures.mean && figures.mean <= figures.last, "{figures:?}");
    assert_eq!(figures.max, figures.last);
    server.stop();
}

#[test]
fn models_are_inspected_alike_over_both_protocols() {
    let repository = Repository::new();
    repository.identity("batched", 8, &[Pair::new("FP32", "4"), Pair::new("BYTES", "-1").optional()]);
    let server = Server::start(usual(), repository.path(), &[]);
    let plan_of = |protocol, templates| plan(&server, protocol, "batched", templates, 10);
    let over = |protocol| {
        let target = plan_of(protocol, Vec::new()).target;
        inspect(&target, "batched", "", &[]).expect("a model")
    };
    let model_info = over(Protocol::Http);
    assert_eq!(model_info, over(Protocol::GrpcUnary));
    assert_eq!((model_info.max_batch_size, model_info.version.as_str()), (8, "1"));
    assert_eq!(model_info.inputs[0].shape, [-1, 4]);
    assert!(model_info.inputs[1].optional && !model_info.inputs[0].optional);
    for protocol in PROTOCOLS {
        let target = plan_of(protocol, Vec::new()).target;
        let error = inspect(&target, "missing", "", &[]).expect_err("no such model").to_string();
        assert!(error.contains("missing"), "{error}");
        let input = |shape: &[i64], bytes: usize| Template {
            inputs: vec![Input {
                name: "INPUT0".to_owned(),
                datatype: "FP32".to_owned(),
                shape: shape.to_vec(),
                data: Slice::copy_of(&vec![0; bytes]),
            }],
            ..Template::default()
        };
        demand_all_good(&measure(&plan_of(protocol, vec![input(&[2, 4], 32)])), 10);
        let error = nereid_perf::run(&plan_of(protocol, vec![input(&[9, 4], 144)]), &mut ());
        let error = error.expect_err("a batch that is too large").to_string();
        assert_eq!(error, "request 0: input 'INPUT0': a batch of 9 is more than the model's 8");
    }
    server.stop();
}

/// A plan says all of a run: a copy of it that was kept sends the same bytes again, and what differs from it does not.
#[test]
fn a_plan_that_was_kept_sends_the_same_again() {
    let repository = identity();
    let server = Server::start(usual(), repository.path(), &[]);
    // Over HTTP: a connection of HTTP/2 acknowledges and gives room as it happens to read.
    let mut first: Plan = plan(&server, Protocol::Http, "identity", echoes(3, 16), 60);
    first.load = concurrency(1);
    let kept = first.clone();
    first.work.streams[0].pop();
    first.work.streams[0].extend(echoes(1, 40));
    let sent = [&kept, &first, &kept].map(|plan| {
        let measured = measure(plan);
        demand_all_good(&measured, 60);
        measured.counts.bytes_sent
    });
    assert_eq!(sent[0], sent[2]);
    // One request of three has 24 numbers more, and a byte of its length.
    assert_eq!(sent[1] - sent[0], 20 * (24 * 4 + 1), "{sent:?}");
    server.stop();
}
