//! Fields, their values, and which choices are the same.

use std::collections::BTreeMap;

use super::*;
use serde_json::json;

fn facts(config: serde_json::Value) -> ModelFacts {
    ModelFacts::read("m", &config)
}

fn batching() -> ModelFacts {
    facts(json!({"max_batch_size": 8, "backend": "python", "instance_group": [{"count": 1, "kind": "KIND_CPU"}]}))
}

fn server() -> ServerFacts {
    ServerFacts { cores: 2, run_to_completion: "auto".to_owned() }
}

fn space_of(facts: &ModelFacts, settings: &[Setting]) -> Result<Space, String> {
    let ladders = BTreeMap::from([("m".to_owned(), vec![100, 500])]);
    Space::new(std::slice::from_ref(facts), settings, &ladders, &LoadRule::Follows, &server())
}

fn set(field: &str, values: &[&str]) -> Setting {
    Setting { field: field.to_owned(), values: values.iter().map(|value| (*value).to_owned()).collect() }
}

#[test]
fn the_automatic_space_begins_at_the_present_configuration() {
    let space = space_of(&batching(), &[]).unwrap();
    let names: Vec<String> = space.fields.iter().map(Field::name).collect();
    assert_eq!(names, ["m/max_queue_delay_microseconds", "m/max_batch_size", "m/instances", "m/preferred_batch_size"]);
    let baseline = space.baseline();
    assert_eq!(space.value(&baseline, 0), Some(&Value::Off));
    assert_eq!(space.value(&baseline, 1), Some(&Value::Number(8)));
    assert!(space.changes(&baseline).is_empty() && space.allows(&baseline));
    assert_eq!(space.describe(&baseline), "the present configuration");
    assert_eq!(space.fields[1].values.len(), 8, "1 to 128 in powers of 2");
}

#[test]
fn a_model_without_batches_has_instances_alone() {
    let space = space_of(&facts(json!({"max_batch_size": 0, "instance_group": [{"count": 1}]})), &[]).unwrap();
    assert_eq!(space.fields.iter().map(Field::name).collect::<Vec<_>>(), ["m/instances"]);
    let groups = json!({"max_batch_size": 0, "instance_group": [{"count": 1}, {"count": 2}]});
    assert!(space_of(&facts(groups), &[]).unwrap().fields.is_empty());
}

#[test]
fn values_without_an_effect_are_one() {
    let space = space_of(&batching(), &[]).unwrap();
    let choice = |delay: usize, batch: usize, preferred: usize| {
        space.canonical(&Choice { values: vec![delay, batch, 0, preferred], load: 0 })
    };
    let start = space.fields[1].start;
    // Without a batcher the largest batch does not matter, nor do preferred sizes without a delay.
    assert_eq!(choice(0, 5, 1), choice(0, start, 0));
    assert_eq!(choice(1, 5, 1), choice(1, 5, 0));
    assert_ne!(choice(2, 5, 1), choice(2, 5, 0));
    assert_eq!(choice(2, 0, 1), choice(1, 0, 0), "batches of one wait for nothing");
    let all: Vec<Choice> = space.walk().flatten().collect();
    // Off, delay 0, and each of two delays, with instances 1, 2, 4.
    assert_eq!(all.len(), 3 * (1 + 8 + 2 * 7 * 2));
    assert!(all.contains(&space.baseline()) && space.size() == all.len());
}

#[test]
fn threads_of_all_instances_fit_the_cores() {
    let config = json!({"max_batch_size": 0, "backend": "onnxruntime",
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}]});
    let space = space_of(&facts(config), &[]).unwrap();
    let allowed =
        |instances: usize, threads: usize| space.allows(&Choice { values: vec![instances, threads], load: 0 });
    assert_eq!(space.fields[1].values, [Value::Default, Value::Number(1), Value::Number(2)]);
    assert!(allowed(0, 2) && allowed(1, 1) && !allowed(1, 2) && allowed(2, 0));
}

#[test]
fn settings_limit_and_extend() {
    let space = space_of(&batching(), &[set("instances", &["1", "3"]), set("m/max_batch_size", &["8"])]).unwrap();
    let names: Vec<String> = space.fields.iter().map(Field::name).collect();
    assert!(!names.contains(&"m/max_batch_size".to_owned()), "one value is no dimension");
    let at = space.position(Some("m"), &FieldKind::Instances).unwrap();
    assert_eq!(space.fields[at].values, [Value::Number(1), Value::Number(3)]);
    let space = space_of(&batching(), &[set("parameters.precision", &["fp16"])]).unwrap();
    let at = space.position(Some("m"), &FieldKind::Parameter("precision".to_owned())).unwrap();
    assert_eq!(space.fields[at].values, [Value::Default, Value::Text("fp16".to_owned())]);
    for (setting, part) in [
        (set("instancs", &["1"]), "there is no field 'instancs'"),
        (set("instances", &["0"]), "'0' is no value"),
        (set("instances", &[]), "1 to 64 values"),
        (set("other/instances", &["1"]), "the models that are tuned are m"),
    ] {
        let error = space_of(&batching(), &[setting]).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn loads_fall_where_the_goal_is_not_met() {
    let list = Loads::of(&LoadRule::Concurrency(vec![4, 16, 4]));
    let levels: Vec<String> = list.levels.iter().map(Level::to_string).collect();
    assert_eq!(levels, ["concurrency 16", "concurrency 4", "concurrency 2", "concurrency 1"]);
    assert_eq!((list.wanted, list.is_dimension), (2, true));
    let rate = Loads::of(&LoadRule::Rate(80.0));
    assert_eq!((rate.wanted, rate.levels[1]), (1, Level::Rate(40.0)));
    assert!(!Loads::of(&LoadRule::Follows).is_dimension);
}

#[test]
fn keys_name_what_differs_and_the_load() {
    let space = space_of(&batching(), &[]).unwrap();
    let mut choice = space.baseline();
    choice.values[2] = 1;
    assert_eq!(space.key(&choice), "m/instances=2 @ 2 x batch x instances");
}
