//! Rules as they are applied and changed, without models; `versions` tests them with some.

mod versions;

use super::*;
use nereid_wire::inference::ModelParameter;

const SECOND: u64 = 1_000_000_000;

fn traffic(parameters: &[(&str, &str)]) -> Arc<Traffic> {
    let parameter = |(key, value): &(&str, &str)| {
        (format!("nereid.traffic.{key}"), ModelParameter { string_value: (*value).to_owned() })
    };
    let config = ModelConfig { parameters: parameters.iter().map(parameter).collect(), ..ModelConfig::default() };
    let rule = check(&config, &[1, 2, 3]).unwrap().unwrap();
    let services = Services { metrics: &Registry::default(), pool: &Pool::new(1 << 20) };
    Traffic::start("m", rule, &services).unwrap()
}

fn weights(traffic: &Traffic) -> Vec<u32> {
    traffic.versions().iter().map(RuledVersion::weight).collect()
}

#[test]
fn a_promotion_moves_all_weight_and_the_stable_label() {
    let traffic = traffic(&[("weights", "1:90,2:10"), ("labels", "stable:1,canary:2")]);
    traffic.promote("canary").unwrap();
    assert_eq!(weights(&traffic), [0, 100, 0]);
    assert_eq!(traffic.labels().collect::<Vec<_>>(), [("stable", 2), ("canary", 2)]);
    traffic.promote("3").unwrap();
    assert_eq!((weights(&traffic), traffic.label(b"stable")), (vec![0, 0, 100], Some(3)));
    let text = "'beta' is neither a label nor a version of model 'm'; use one of stable, canary, 1, 2, 3";
    assert_eq!(traffic.promote("beta"), Err(Status::invalid(text)));
}

#[test]
fn weights_are_set_by_version_or_label() {
    let traffic = traffic(&[("weights", "1:90,2:10"), ("labels", "stable:1,canary:2")]);
    let given = |given: &[(&str, u32)]| {
        traffic.set_weights(&given.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect::<Vec<_>>())
    };
    given(&[("stable", 50), ("3", 50)]).unwrap();
    assert_eq!(weights(&traffic), [50, 0, 50]);
    assert_eq!(given(&[("1", 99)]), Err(Status::invalid("the weights sum to 99, they must sum to 100")));
    assert_eq!(given(&[("1", 50), ("stable", 50)]), Err(Status::invalid("version 1 has two weights; give it one")));
    assert_eq!(weights(&traffic), [50, 0, 50], "what is refused changes nothing");
}

#[test]
fn a_roll_back_gives_the_weight_to_the_rest() {
    let traffic = traffic(&[("weights", "1:60,2:10,3:30"), ("labels", "stable:1,canary:2")]);
    traffic.roll_back(None).unwrap();
    assert_eq!(weights(&traffic), [67, 0, 33]);
    assert_eq!((traffic.rolled_back().as_deref(), traffic.rollbacks()), (Some("the API requested it"), 1));
    traffic.promote("canary").unwrap();
    assert_eq!(traffic.rolled_back(), None);
    // The rest has no weight, and the stable label is where the canary is.
    traffic.roll_back(None).unwrap();
    assert_eq!(weights(&traffic), [0, 0, 100]);
    traffic.roll_back(Some("3")).unwrap();
    assert_eq!(weights(&traffic), [0, 100, 0], "the stable version");
}

#[test]
fn errors_of_the_canary_roll_it_back_once() {
    let limits = ("rollback", "canary error_rate>0.2 min_requests=5 window_secs=10");
    let traffic = traffic(&[("weights", "1:50,2:50"), ("labels", "canary:2"), limits]);
    (0..50).for_each(|_| traffic.answered(1, true, 0, SECOND));
    assert_eq!(weights(&traffic), [50, 50, 0], "another version");
    (0..4).for_each(|_| traffic.answered(2, true, 0, SECOND));
    assert_eq!(weights(&traffic), [50, 50, 0], "too few requests");
    traffic.answered(2, false, 0, SECOND);
    assert_eq!(weights(&traffic), [100, 0, 0]);
    let why = "4 of 5 requests within 10 s failed, more than the rate of 0.2";
    assert_eq!((traffic.rolled_back().as_deref(), traffic.rollbacks()), (Some(why), 1));
    (0..50).for_each(|_| traffic.answered(2, true, 0, SECOND));
    assert_eq!(traffic.rollbacks(), 1);
    traffic.promote("canary").unwrap();
    (0..50).for_each(|_| traffic.answered(2, true, 0, SECOND));
    assert_eq!(weights(&traffic), [0, 100, 0], "no other version would take its requests");
}

#[test]
fn slow_answers_of_the_canary_roll_it_back() {
    let limits = ("rollback", "2 latency_p99_ms>5 min_requests=10");
    let traffic = traffic(&[("weights", "1:50,2:50"), limits]);
    (0..9).for_each(|_| traffic.answered(2, false, 5_000_000, SECOND));
    traffic.answered(2, false, 5_000_001, SECOND);
    assert_eq!(weights(&traffic), [100, 0, 0]);
    assert_eq!(traffic.rolled_back().as_deref(), Some("1 of 10 requests within 30 s took longer than 5 ms"));
}
