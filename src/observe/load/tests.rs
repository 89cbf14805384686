//! Reports from given readings, and the thread that makes them.

use std::sync::atomic::AtomicUsize;

use super::*;

const MS: u64 = 1_000_000;

fn model(executed_ms: u64, executions: &[u64], pending: u64) -> ModelReading {
    ModelReading {
        key: "m".to_owned(),
        executed_ns: executed_ms * MS,
        executions: executions.to_vec(),
        pending,
        ..ModelReading::default()
    }
}

fn reading(at_ms: u64, models: Vec<ModelReading>) -> Reading {
    Reading { at_ns: at_ms * MS, models, ..Reading::default() }
}

fn report(readings: Vec<Reading>) -> Report {
    let mut window = Window::new(VecDeque::new());
    readings.into_iter().for_each(|reading| window.add(reading));
    window.report()
}

/// The utilization of one model at 0 s and at 1 s.
fn utilization(before: ModelReading, after: ModelReading) -> f64 {
    report(vec![reading(0, vec![before]), reading(1000, vec![after])]).application_utilization
}

#[test]
fn a_model_is_busy_for_the_part_of_its_instances_that_executes() {
    for (before, after, expected) in [
        (model(0, &[0], 0), model(0, &[0], 0), 0.0),
        (model(100, &[0], 0), model(600, &[2], 0), 0.5),
        (model(100, &[0, 0], 0), model(600, &[2, 0], 0), 0.25),
        // An execution that lasts all the time has not been counted, one that ended is counted whole.
        (model(0, &[1, 0], 0), model(0, &[1, 0], 0), 0.5),
        (model(0, &[1], 0), model(9000, &[2], 0), 1.0),
        // One that began in between is as long as is known.
        (model(0, &[0], 0), model(0, &[1], 0), 0.0),
        // Requests wait, but an instance is free.
        (model(0, &[0, 1], 0), model(0, &[0, 1], 6), 0.5),
        (model(0, &[1, 1], 0), model(0, &[1, 1], 6), 4.0),
        (model(0, &[0], 0), model(950, &[2], 2), 3.0),
        // After a reload the counters begin anew.
        (model(5000, &[8], 0), model(100, &[2], 0), 0.0),
        (model(0, &[], 3), model(0, &[], 3), 0.0),
    ] {
        let shown = format!("{before:?} {after:?}");
        assert_eq!(utilization(before, after), expected, "{shown}");
    }
}

#[test]
fn the_busiest_model_counts() {
    let named = |key: &str, executed_ms: u64| ModelReading { key: key.to_owned(), ..model(executed_ms, &[0], 0) };
    let readings =
        vec![reading(0, vec![named("a", 0), named("b", 0)]), reading(1000, vec![named("a", 700), named("b", 20)])];
    assert_eq!(report(readings).application_utilization, 0.7);
}

#[test]
fn a_report_is_about_the_last_seconds() {
    let mut window = Window::new(VecDeque::new());
    for at in 0..1000u64 {
        // Busy in the first half of the time only.
        window.add(reading(at * 100, vec![model((at * 100).min(50_000), &[0], 0)]));
    }
    assert_eq!(window.report().application_utilization, 0.0);
    window.add(reading(200_000, vec![model(150_100, &[0], 0)]));
    assert_eq!(window.report().application_utilization, 1.0, "longer, where no reading is as new");
}

#[test]
fn rates_are_those_of_clients() {
    let of = |key: &str, succeeded: u64, failed: u64, steps: u64| ModelReading {
        key: key.to_owned(),
        succeeded,
        failed,
        steps,
        ..ModelReading::default()
    };
    let first = reading(0, vec![of("e", 10, 0, 2), of("s", 100, 1, 0), of("t", 10, 0, 0)]);
    // 20 for the ensemble, of which 4 failed in their second step, and 5 for its first step, of which 2 failed.
    let last = reading(2000, vec![of("e", 26, 4, 2), of("s", 100 + 20 + 3, 3, 0), of("t", 10 + 16, 4, 0)]);
    let report = report(vec![first, last]);
    // The first steps of the four that failed are not known to be such.
    assert_eq!((report.requests_per_second, report.errors_per_second), (14.5, 3.0));
}

#[test]
fn the_container_and_the_queue_are_reported() {
    let first = Reading { cpu: Some((1000 * MS, 2.0)), ..reading(0, Vec::new()) };
    let cache = Some(CacheUse { utilization: 0.5, tokens_max: 7 });
    let last = Reading {
        cpu: Some((2000 * MS, 2.0)),
        memory: Some((1, 4)),
        cache,
        ..reading(1000, vec![model(0, &[0], 3), ModelReading { key: "n".to_owned(), ..model(0, &[0], 4) }])
    };
    let report = report(vec![first, last]);
    assert_eq!((report.cpu_utilization, report.memory_utilization), (0.5, 0.25));
    assert_eq!((report.queue_depth, report.cache), (7, cache));
}

#[test]
fn what_is_not_known_is_0() {
    assert_eq!(report(Vec::new()), Report::default());
    let same = Reading { cpu: Some((5, 0.0)), memory: Some((0, 0)), ..reading(5, vec![model(1, &[0], 0)]) };
    assert_eq!(report(vec![same.clone(), same.clone()]), Report::default(), "no time has passed");
    assert_eq!(report(vec![same]), Report::default());
}

/// Nobody asks: nothing is read but the first counters. The first question has its answer, later ones newer answers.
#[test]
fn reports_come_as_long_as_somebody_asks() {
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reads);
    let monitor = Monitor::new(Box::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Reading { at_ns: now_ns(), ..Reading::default() }
    }));
    assert_eq!((monitor.number(), reads.load(Ordering::Relaxed)), (0, 1));
    monitor.ask();
    assert!(monitor.number() >= 1);
    let last = monitor.number();
    while monitor.number() < last + 3 {
        monitor.ask();
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(monitor);
    let read = reads.load(Ordering::Relaxed);
    std::thread::sleep(SAMPLE_EACH * 2);
    assert_eq!(reads.load(Ordering::Relaxed), read, "the thread has ended");
}

/// With many models the first question does not wait for the reading.
#[test]
fn the_first_question_reads_only_a_few_models() {
    let on = Arc::new(Mutex::new(Vec::new()));
    let threads = Arc::clone(&on);
    let monitor = Monitor::new(Box::new(move || {
        threads.lock().unwrap().push(std::thread::current().id());
        let model = |at: usize| ModelReading { key: format!("{at:04}"), ..ModelReading::default() };
        Reading { at_ns: now_ns(), models: (0..=MODELS_AT_ONCE).map(model).collect(), ..Reading::default() }
    }));
    monitor.ask();
    while monitor.number() == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(monitor);
    let own = std::thread::current().id();
    assert_eq!(on.lock().unwrap().iter().filter(|thread| **thread == own).count(), 1);
}
