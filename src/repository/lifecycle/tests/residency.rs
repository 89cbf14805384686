//! Loads on demand and unloading by count, over real directories, without shards.

use std::sync::mpsc::channel;

use super::*;
use crate::repository::ResidencySettings;
use crate::repository::demand::Loaded;

fn on_demand(place: &Place, mode: ControlMode, residency: ResidencySettings) -> Arc<Lifecycle> {
    let residency = ResidencySettings { on_demand: true, ..residency };
    let lifecycle = Lifecycle::new(Settings { residency, ..settings(&[place], mode) });
    assert_eq!(lifecycle.start(), Ok(true));
    lifecycle
}

/// What a request for the model waits for.
fn outcome(lifecycle: &Lifecycle, name: &str) -> Result<Loaded, Option<Status>> {
    let (ended, end) = channel();
    let demand = lifecycle.demand().expect("loads on demand");
    let wait = demand.wait(name.as_bytes(), Box::new(move |loaded| ended.send(loaded).expect("a receiver")))?;
    let loaded = end.recv().expect("an outcome");
    drop(wait);
    Ok(loaded)
}

fn ready(lifecycle: &Lifecycle) -> Vec<String> {
    lifecycle.map().ready().map(|served| served.name.clone()).collect()
}

#[test]
fn a_request_loads_its_model_and_an_unknown_name_loads_nothing() {
    let place = Place::new();
    place.model("m", &[1, 2], ALL);
    place.write("broken/config.pbtxt", "max_batch_size: -1");
    let lifecycle = on_demand(&place, ControlMode::None, ResidencySettings::default());
    assert!(ready(&lifecycle).is_empty(), "nothing is pinned");
    assert!(lifecycle.map().is_absent(b"m"));
    assert_eq!(outcome(&lifecycle, "m"), Ok(Loaded::Serves));
    assert_eq!(ready(&lifecycle), ["m", "m"]);
    assert!(!lifecycle.map().is_absent(b"m"));
    assert_eq!(outcome(&lifecycle, "nowhere"), Ok(Loaded::Unknown));
    assert_eq!(outcome(&lifecycle, "nowhere"), Err(None), "not at once again");
    assert_eq!(outcome(&lifecycle, "../m"), Ok(Loaded::Unknown));
    let Ok(Loaded::Failed(status)) = outcome(&lifecycle, "broken") else { panic!("it cannot be loaded") };
    assert!(status.message.starts_with("model 'broken' is not available: "), "{status}");
    assert_eq!(outcome(&lifecycle, "broken"), Err(Some(status)));
    assert_eq!(lifecycle.demand().map(|demand| demand.loads()), Some(1));
}

#[test]
fn one_model_makes_room_for_another() {
    let place = Place::new();
    ["a", "b", "c", "pinned"].into_iter().for_each(|name| place.model(name, &[1], ""));
    let pinned = ["pinned".to_owned()].into();
    let residency = ResidencySettings { count_max: 2, pinned, ..ResidencySettings::default() };
    let lifecycle = on_demand(&place, ControlMode::None, residency);
    for name in ["a", "b", "c", "a"] {
        assert_eq!(outcome(&lifecycle, name), Ok(Loaded::Serves));
        assert_eq!(ready(&lifecycle), [name, "pinned"]);
    }
    assert_eq!(lifecycle.demand().map(|demand| demand.reloads()), Some(1));
    let rows = lifecycle.index(false).expect("the repository can be read");
    let b = rows.iter().find(|row| row.name == "b").expect("a row");
    assert_eq!((b.state, b.reason.as_str()), ("UNAVAILABLE", "unloaded"));
}

#[test]
fn clients_decide_over_loads_on_demand() {
    let place = Place::new();
    ["a", "b"].into_iter().for_each(|name| place.model(name, &[1], ""));
    let residency = ResidencySettings { count_max: 1, ..ResidencySettings::default() };
    let lifecycle = on_demand(&place, ControlMode::Explicit, residency);
    lifecycle.load("a", Vec::new()).expect("it can be loaded");
    assert_eq!(outcome(&lifecycle, "b"), Ok(Loaded::Serves), "a is an ordinary one");
    assert_eq!(ready(&lifecycle), ["b"]);
    lifecycle.unload("a", false).expect("it can be unloaded");
    assert_eq!(outcome(&lifecycle, "a"), Err(None), "it stays unloaded");
    // A configuration of a client's own would be lost.
    let text = r#"{"backend": "identity", "input": [{"name": "INPUT0", "data_type": "TYPE_INT8", "dims": [-1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT8", "dims": [-1]}]}"#;
    let config = Parameter { name: "config".to_owned(), value: ParameterValue::Text(text.to_owned()) };
    lifecycle.load("a", vec![config]).expect("it can be loaded");
    let Ok(Loaded::Failed(status)) = outcome(&lifecycle, "b") else { panic!("there is no room") };
    assert!(status.message.contains("--model-count-max allows 1; raise it"), "{status}");
    assert_eq!(ready(&lifecycle), ["a"]);
}

#[test]
fn the_end_of_the_server_ends_loads_on_demand() {
    let place = Place::new();
    place.model("m", &[1], "");
    let lifecycle = on_demand(&place, ControlMode::None, ResidencySettings::default());
    lifecycle.refuse_changes();
    assert_eq!(outcome(&lifecycle, "m"), Err(None));
}
