//! Searches on simulated models: an execution of a batch b takes a + c b, on so many cores, with noise.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::json;

use super::*;
use crate::configuration::ModelFacts;
use crate::plan::LoadRule;
use crate::space::{FieldKind, ServerFacts, Value};

const CORES: u64 = 4;

fn facts() -> ModelFacts {
    let config = json!({
        "backend": "onnxruntime", "max_batch_size": 8, "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
    });
    ModelFacts::read("m", &config)
}

fn space() -> Space {
    let ladders = BTreeMap::from([("m".to_owned(), vec![500, 1000, 2000])]);
    let server = ServerFacts { cores: CORES as usize, run_to_completion: "auto".to_owned() };
    Space::new(&[facts()], &[], &ladders, &LoadRule::Follows, &server).unwrap()
}

/// Batch, instances, delay in ms (none: off), threads.
#[derive(Debug, Clone, Copy)]
struct Settings {
    batch: f64,
    instances: f64,
    delay_ms: f64,
    threads: f64,
    is_half: bool,
}

fn settings(space: &Space, choice: &Choice) -> Settings {
    let number = |kind: &FieldKind| match space.of_model(choice, "m", kind) {
        Some(Value::Number(number)) => Some(*number as f64),
        _ => None,
    };
    let delay = number(&FieldKind::Delay);
    Settings {
        batch: if delay.is_some() { number(&FieldKind::MaxBatch).unwrap_or(1.0) } else { 1.0 },
        instances: number(&FieldKind::Instances).unwrap_or(1.0),
        delay_ms: delay.unwrap_or(0.0) / 1000.0,
        threads: number(&FieldKind::Threads).unwrap_or(1.0),
        is_half: space.of_model(choice, "m", &FieldKind::Preferred) == Some(&Value::Half),
    }
}

/// Requests a second.
fn rate(a: f64, c: f64, settings: &Settings) -> f64 {
    let Settings { batch, instances, delay_ms, threads, is_half } = *settings;
    let batch = if is_half { batch * 0.9 } else { batch };
    let cores = CORES as f64;
    let at_once = instances.min(cores) / (1.0 + 0.1 * (instances - cores).max(0.0));
    // Threads help an execution, but less than instances.
    let time = (a + c * batch) / (1.0 + 0.7 * (threads - 1.0)) + 0.3 * delay_ms;
    at_once * batch / time * 1000.0
}

type Model<'a> = Box<dyn Fn(&Settings, &Choice) -> Result<(f64, Standing, f64), String> + 'a>;

struct Simulated<'a> {
    space: &'a Space,
    model: Model<'a>,
    noise: f64,
    state: u64,
    values: BTreeMap<Choice, Vec<f64>>,
    bursts: usize,
    bursts_max: usize,
    /// Bursts behind which the time of the search is over.
    search_max: usize,
    /// The last comparison has begun.
    confirms: Rc<Cell<bool>>,
}

impl<'a> Simulated<'a> {
    fn new(space: &'a Space, noise: f64, seed: u64, model: Model<'a>) -> Simulated<'a> {
        let values = BTreeMap::new();
        let (bursts_max, search_max) = (usize::MAX, usize::MAX);
        Simulated {
            space,
            model,
            noise,
            state: seed,
            values,
            bursts: 0,
            bursts_max,
            search_max,
            confirms: Rc::default(),
        }
    }

    fn plain(space: &'a Space, noise: f64, seed: u64, a: f64, c: f64) -> Simulated<'a> {
        Simulated::new(space, noise, seed, Box::new(move |settings, _| Ok((rate(a, c, settings), Standing::Fits, 1.0))))
    }

    fn fraction(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// About normal, with a deviation of 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.fraction()).sum::<f64>() - 6.0
    }

    fn truth(&self, choice: &Choice) -> f64 {
        (self.model)(&settings(self.space, choice), choice).map_or(0.0, |(rate, _, _)| rate)
    }
}

impl Measure for Simulated<'_> {
    fn burst(&mut self, choice: &Choice) -> Result<Burst, Stop> {
        if self.bursts >= self.bursts_max {
            return Err(Stop::Interrupted);
        }
        self.bursts += 1;
        let (rate, standing, excess) = match (self.model)(&settings(self.space, choice), choice) {
            Ok(outcome) => outcome,
            Err(reason) => {
                self.values.entry(choice.clone()).or_default();
                return Ok(Burst::Failed(reason));
            }
        };
        // A burst has a noise of its own beside that of its slices.
        let common = 1.0 + self.noise / 2.0 * self.normal();
        let last: Vec<f64> = (0..3).map(|_| rate * common * (1.0 + self.noise * self.normal())).collect();
        let all = self.values.entry(choice.clone()).or_default();
        all.extend(&last);
        let limit_used = if standing == Standing::Fits { 0.5 } else { excess.max(1.01) };
        Ok(Burst::Measured { all: all.clone(), last, standing, excess, limit_used })
    }

    fn may_go_on(&self, phase: Phase) -> bool {
        phase != Phase::Search || self.bursts < self.search_max
    }

    fn begin_pair(&mut self, _number: usize) {
        self.confirms.set(true);
    }
}

/// The best of all choices, in truth.
fn best_of_all(simulated: &Simulated<'_>, space: &Space) -> f64 {
    space.walk().flatten().map(|choice| simulated.truth(&choice)).fold(0.0, f64::max)
}

#[test]
fn racing_finds_the_best_in_a_tenth_of_the_points() {
    let space = space();
    let size = space.size();
    for (a, c) in [(10.0, 0.5), (20.0, 0.01), (1.0, 1.0), (5.0, 5.0), (0.1, 2.0)] {
        for seed in 0..5 {
            let mut simulated = Simulated::plain(&space, 0.02, seed, a, c);
            let best = best_of_all(&simulated, &space);
            let found = search(&mut simulated, &space, Search::Race);
            let truth = simulated.truth(&found.best.choice);
            let what = format!("a {a}, c {c}, seed {seed}: {} of {size}", found.tried);
            assert!(truth >= 0.95 * best, "{what}: {truth} of {best} with {}", space.describe(&found.best.choice));
            assert!(found.tried * 10 <= size, "{what}");
            assert!(found.is_better && found.stopped.is_none(), "{what}");
            let gain = found.gain.unwrap().mean;
            let real = truth / simulated.truth(&found.baseline.choice);
            assert!((gain / real - 1.0).abs() < 0.1, "{what}: {gain}, really {real}");
        }
    }
}

#[test]
fn the_exhaustive_search_tries_everything_and_agrees() {
    let space = space();
    let mut simulated = Simulated::plain(&space, 0.01, 7, 10.0, 0.5);
    let best = best_of_all(&simulated, &space);
    let found = search(&mut simulated, &space, Search::Exhaustive);
    assert_eq!(found.tried, space.size());
    assert!(simulated.truth(&found.best.choice) >= 0.95 * best && found.is_better);
}

#[test]
fn the_quick_search_climbs_in_batch_and_instances() {
    let space = space();
    let mut simulated = Simulated::plain(&space, 0.01, 3, 10.0, 0.5);
    let best = best_of_all(&simulated, &space);
    let found = search(&mut simulated, &space, Search::Quick);
    assert!(found.is_better && simulated.truth(&found.best.choice) >= 0.7 * best, "{found:?}");
    assert!(found.tried * 4 <= space.size(), "{}", found.tried);
}

/// Every configuration is equally good.
#[test]
fn of_equal_configurations_none_is_better() {
    let space = space();
    let mut claims = 0;
    for seed in 0..100 {
        let model: Model<'_> = Box::new(|_, _| Ok((1000.0, Standing::Fits, 1.0)));
        let mut simulated = Simulated::new(&space, 0.04, 1000 + seed, model);
        let found = search(&mut simulated, &space, Search::Race);
        claims += usize::from(found.is_better);
    }
    assert!(claims < 5, "{claims} of 100");
}

#[test]
fn what_fails_is_a_result_and_the_search_goes_on() {
    let space = space();
    let model: Model<'_> = Box::new(|settings, _| match settings.batch > 32.0 || settings.instances > 2.0 {
        true => Err("does not fit".to_owned()),
        false => Ok((rate(10.0, 0.5, settings), Standing::Fits, 1.0)),
    });
    let mut simulated = Simulated::new(&space, 0.01, 5, model);
    let found = search(&mut simulated, &space, Search::Race);
    let best = settings(&space, &found.best.choice);
    assert_eq!((best.batch, best.instances), (32.0, 2.0), "{found:?}");
    assert!(found.is_better);
}

#[test]
fn a_baseline_that_fails_ends_the_search() {
    let space = space();
    let mut simulated = Simulated::new(&space, 0.01, 5, Box::new(|_, _| Err("no file".to_owned())));
    let found = search(&mut simulated, &space, Search::Race);
    assert!(matches!(found.stopped, Some(Stop::Failed(reason)) if reason.contains("no file")));
}

/// The latency is the work in flight by the rate; a limit makes the search take lower loads.
#[test]
fn limits_of_latency_choose_the_load() {
    let space = space();
    let limit_ms = 12.0;
    let latency = |settings: &Settings, choice: &Choice| {
        let in_flight = 2.0 * settings.batch * settings.instances / f64::from(1 << choice.load);
        (in_flight.max(1.0), in_flight.max(1.0) / rate(2.0, 0.2, settings) * 1000.0)
    };
    let model: Model<'_> = Box::new(move |settings, choice| {
        let (in_flight, ms) = latency(settings, choice);
        let full = 2.0 * settings.batch * settings.instances;
        // A lower load leaves instances idle only below half of it.
        let rate = rate(2.0, 0.2, settings) * (2.0 * in_flight / full).min(1.0);
        let standing = if ms > limit_ms { Standing::Slow } else { Standing::Fits };
        Ok((rate, standing, (ms / limit_ms).max(1.0)))
    });
    let mut simulated = Simulated::new(&space, 0.01, 5, model);
    let found = search(&mut simulated, &space, Search::Race);
    assert!(found.best.fits() && found.is_better, "{found:?}");
    let (_, ms) = latency(&settings(&space, &found.best.choice), &found.best.choice);
    assert!(ms <= limit_ms, "{ms}");
}

#[test]
fn a_limit_that_nothing_keeps_leaves_the_nearest() {
    let space = space();
    let model: Model<'_> =
        Box::new(|settings, _| Ok((rate(10.0, 0.5, settings), Standing::Breaks, 10.0 / settings.instances)));
    let mut simulated = Simulated::new(&space, 0.01, 5, model);
    let found = search(&mut simulated, &space, Search::Race);
    assert!(!found.is_better && !found.best.fits());
    assert_eq!(settings(&space, &found.best.choice).instances, 8.0);
}

#[test]
fn an_interrupt_keeps_what_was_found() {
    let space = space();
    for bursts in [0, 1, 2, 5, 11, 30] {
        let mut simulated = Simulated::plain(&space, 0.01, 5, 10.0, 0.5);
        simulated.bursts_max = bursts;
        let found = search(&mut simulated, &space, Search::Race);
        assert_eq!(found.stopped, Some(Stop::Interrupted));
        assert!(found.tried <= bursts && !found.is_better);
    }
}

#[test]
fn a_machine_that_changes_is_noticed() {
    let space = space();
    let baseline = space.baseline();
    let calls = std::cell::Cell::new(0);
    let model: Model<'_> = Box::new(move |settings, choice| {
        calls.set(calls.get() + usize::from(*choice == baseline));
        let slower = if calls.get() > 4 { 0.8 } else { 1.0 };
        Ok((rate(10.0, 0.5, settings) * slower, Standing::Fits, 1.0))
    });
    let mut simulated = Simulated::new(&space, 0.005, 5, model);
    assert!(search(&mut simulated, &space, Search::Race).drift > DRIFT_MAX);
    let mut steady = Simulated::plain(&space, 0.005, 5, 10.0, 0.5);
    assert!(search(&mut steady, &space, Search::Race).drift < DRIFT_MAX);
}

/// Instances alone: 1, 4 and 8.
fn instances(load: &LoadRule) -> Space {
    let set = [
        ("instances", "1,4,8"),
        ("max_batch_size", "8"),
        ("max_queue_delay_microseconds", "off"),
        ("preferred_batch_size", "default"),
        ("intra_op_thread_count", "default"),
    ];
    let set = set.map(|(field, values)| crate::plan::Setting {
        field: field.to_owned(),
        values: values.split(',').map(str::to_owned).collect(),
    });
    let server = ServerFacts { cores: 2 * CORES as usize, run_to_completion: "auto".to_owned() };
    Space::new(&[facts()], &set, &BTreeMap::new(), load, &server).unwrap()
}

#[test]
fn what_misses_its_limit_in_the_last_comparison_gives_way_to_the_next() {
    let space = instances(&LoadRule::Follows);
    for (kept, wanted) in [(4.0, 4.0), (1.0, 1.0)] {
        let confirms: Rc<Cell<bool>> = Rc::default();
        let seen = Rc::clone(&confirms);
        let model: Model<'_> = Box::new(move |settings, _| {
            let is_missed = seen.get() && settings.instances > kept;
            let standing = if is_missed { Standing::Breaks } else { Standing::Fits };
            Ok((100.0 * settings.instances, standing, if is_missed { 1.5 } else { 1.0 }))
        });
        let mut simulated = Simulated::new(&space, 0.01, 5, model);
        simulated.confirms = confirms;
        let found = search(&mut simulated, &space, Search::Race);
        assert_eq!(settings(&space, &found.best.choice).instances, wanted, "{found:?}");
        assert!(found.keeps_limits && found.best.fits() && found.stopped.is_none());
        assert_eq!((found.is_better, found.gain.is_some()), (wanted > 1.0, wanted > 1.0));
        assert!(!found.is_kept_alone);
    }
}

#[test]
fn a_limit_that_only_chance_separates_makes_nothing_better() {
    let space = instances(&LoadRule::Follows);
    for is_chance in [true, false] {
        let confirms: Rc<Cell<bool>> = Rc::default();
        let seen = Rc::clone(&confirms);
        // All are equally fast; the present one misses the limit, or seems to.
        let model: Model<'_> = Box::new(move |settings, _| {
            let is_missed = settings.instances < 2.0 && !(is_chance && seen.get());
            let standing = if is_missed { Standing::Breaks } else { Standing::Fits };
            Ok((100.0, standing, if is_missed { 1.1 } else { 1.0 }))
        });
        let mut simulated = Simulated::new(&space, 0.001, 5, model);
        simulated.confirms = confirms;
        let found = search(&mut simulated, &space, Search::Race);
        assert_eq!((found.is_better, found.is_kept_alone), (!is_chance, !is_chance), "{found:?}");
    }
    assert!(are_apart(&[(1.5, 0.9), (1.4, 0.8), (1.6, 1.2), (1.5, 0.9)]), "nearer in each");
    assert!(!are_apart(&[(1.1, 0.9), (0.9, 1.1), (1.2, 1.0), (0.8, 1.0)]));
    assert!(are_apart(&[(f64::INFINITY, 0.9); 4]) && !are_apart(&[(f64::INFINITY, 1.1); 4]));
}

#[test]
fn another_load_is_no_other_configuration() {
    let space = instances(&LoadRule::Concurrency(vec![1, 2, 4]));
    for seed in 0..20 {
        // The lower loads seem to be better later on.
        let bursts = Cell::new(0);
        let model: Model<'_> = Box::new(move |settings, choice| {
            bursts.set(bursts.get() + 1);
            let later = if bursts.get() > 8 { 1.0 + 0.2 * choice.load as f64 } else { 1.0 };
            Ok((if settings.instances > 1.0 { 50.0 } else { 100.0 * later }, Standing::Fits, 1.0))
        });
        let found = search(&mut Simulated::new(&space, 0.01, seed, model), &space, Search::Exhaustive);
        assert!(!found.is_better && found.best.choice == found.baseline.choice, "{found:?}");
        assert_eq!(found.baseline.choice.values, space.baseline().values);
    }
}

#[test]
fn a_search_that_the_time_cuts_says_so() {
    let space = space();
    let mut simulated = Simulated::plain(&space, 0.01, 5, 10.0, 0.5);
    simulated.search_max = 8;
    assert!(search(&mut simulated, &space, Search::Race).is_cut);
    let mut whole = Simulated::plain(&space, 0.01, 5, 10.0, 0.5);
    assert!(!search(&mut whole, &space, Search::Race).is_cut);
}
