//! Ensembles with `--model-namespacing`: which repository their parts come from.

use super::*;

/// An ensemble of one step over `part`.
fn ensemble_of(part: &str) -> String {
    format!(
        "platform: \"ensemble\"\ninput {{ name: \"I\" data_type: TYPE_INT8 dims: [ -1 ] }}\n\
         output {{ name: \"O\" data_type: TYPE_INT8 dims: [ -1 ] }}\n\
         ensemble_scheduling {{ step {{ model_name: \"{part}\" model_version: -1\n\
         input_map {{ key: \"INPUT0\" value: \"I\" }} output_map {{ key: \"OUTPUT0\" value: \"O\" }} }} }}"
    )
}

/// For each repository the namespaces of the parts that its ensemble runs, as indices of repositories; `-`: it does not
/// serve.
fn parts_by_place(lifecycle: &Lifecycle, places: &[&Place]) -> String {
    let number = |namespace: &str| places.iter().position(|place| place.0.to_str() == Some(namespace)).unwrap();
    let map = lifecycle.map();
    let part = |place: &&Place| {
        let id = ModelId { name: "whole".to_owned(), namespace: place.0.to_str().unwrap().to_owned() };
        let served = map.get(&id).and_then(|entry| entry.ready().next().cloned());
        served.map(|served| number(&graph::steps_of(&served.spec.config)[0].model_namespace).to_string())
    };
    places.iter().map(|place| part(place).unwrap_or_else(|| "-".to_owned())).collect::<Vec<_>>().join(" ")
}

#[test]
fn an_ensemble_runs_the_parts_of_its_own_repository() {
    for mode in [ControlMode::Explicit, ControlMode::None, ControlMode::Poll] {
        let (one, two, three) = (Place::new(), Place::new(), Place::new());
        for place in [&one, &two, &three] {
            place.write("whole/config.pbtxt", &ensemble_of("part"));
            fs::create_dir_all(place.0.join("whole/1")).unwrap();
        }
        one.model("part", &[1], "");
        two.model("part", &[1], "");
        // A model that does not load yet.
        three.write("part/config.pbtxt", "backend: \"identity\" input {");
        let places = [&one, &two, &three];
        let lifecycle = Lifecycle::new(Settings { namespacing: true, ..settings(&places, mode) });
        let _ = lifecycle.start();
        if mode == ControlMode::Explicit {
            lifecycle.load("whole", vec![]).unwrap_err();
        }
        assert_eq!(parts_by_place(&lifecycle, &places), "0 1 -", "{mode:?}: nothing stands in for the third part");
        if mode == ControlMode::Explicit {
            lifecycle.unload("part", false).unwrap();
            assert_eq!(parts_by_place(&lifecycle, &places), "- - -");
            three.model("part", &[1], "");
            lifecycle.load("part", vec![]).unwrap();
            assert_eq!(parts_by_place(&lifecycle, &places), "0 1 2");
        }
        end(&lifecycle);
    }
}

#[test]
fn a_part_that_only_another_repository_has_is_used() {
    let (one, two) = (Place::new(), Place::new());
    two.write("whole/config.pbtxt", &ensemble_of("part"));
    fs::create_dir_all(two.0.join("whole/1")).unwrap();
    one.model("part", &[1], "");
    let places = [&one, &two];
    let lifecycle = Lifecycle::new(Settings { namespacing: true, ..settings(&places, ControlMode::Explicit) });
    assert_eq!(lifecycle.start(), Ok(true));
    lifecycle.load("whole", vec![]).unwrap();
    assert_eq!(parts_by_place(&lifecycle, &places), "- 0");
    // Its own part, once there is one.
    two.model("part", &[1], "");
    lifecycle.load("part", vec![]).unwrap();
    assert_eq!(parts_by_place(&lifecycle, &places), "- 1");
    end(&lifecycle);
}
