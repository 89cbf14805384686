//! Generations over real directories: what a load keeps, what an activation brings back, and what ends it.

use super::*;
use crate::repository::generations::Generations;

/// A life cycle that keeps two generations, with the model `m` loaded.
fn keeping(place: &Place, mode: ControlMode) -> Arc<Lifecycle> {
    let lifecycle = Lifecycle::new(Settings { keep_generations: 2, ..settings(&[place], mode) });
    assert_eq!(lifecycle.start(), Ok(true));
    if mode == ControlMode::Explicit {
        lifecycle.load("m", vec![]).unwrap();
    }
    lifecycle
}

fn shown(lifecycle: &Lifecycle) -> Arc<Generations> {
    Arc::clone(lifecycle.map().generations(b"m").unwrap())
}

fn present(lifecycle: &Lifecycle) -> String {
    shown(lifecycle).present().map(|present| present.id.to_string()).unwrap_or_default()
}

fn parameter_of(text: &str) -> String {
    config(&format!("parameters {{ key: \"k\" value {{ string_value: \"{text}\" }} }}"))
}

fn k_of(lifecycle: &Lifecycle) -> String {
    let config = &served(lifecycle, "m", 1).spec.config;
    config.parameters.get("k").map(|value| value.string_value.clone()).unwrap_or_default()
}

#[test]
fn versions_that_stay_show_the_present_generation_too() {
    let place = Place::new();
    place.model("m", &[1, 2], ALL);
    let lifecycle = keeping(&place, ControlMode::Explicit);
    let first = present(&lifecycle);
    place.write_at("m/2/model", "y", 800);
    let stays = served(&lifecycle, "m", 1);
    assert_eq!(*stays.statistics.generation(), *first);
    lifecycle.load("m", vec![]).unwrap();
    let second = present(&lifecycle);
    assert_ne!(first, second);
    assert!(Arc::ptr_eq(&stays, &served(&lifecycle, "m", 1)));
    for version in [1, 2] {
        assert_eq!(*served(&lifecycle, "m", version).statistics.generation(), *second);
    }
    // Touched: nothing is loaded, and it is the same generation.
    place.write_at("m/config.pbtxt", &config(ALL), 600);
    lifecycle.load("m", vec![]).unwrap();
    assert_eq!(present(&lifecycle), second);
    drop(stays);
    end(&lifecycle);
}

#[test]
fn files_and_configuration_come_back_as_they_were() {
    let place = Place::new();
    place.model("m", &[1], "");
    place.write_at("m/1/model", "old", 1000);
    let lifecycle = keeping(&place, ControlMode::Explicit);
    let first = present(&lifecycle);
    place.write_at("m/1/model", "new", 900);
    place.write_at("m/config.pbtxt", &parameter_of("b"), 900);
    lifecycle.load("m", vec![]).unwrap();
    assert_eq!(k_of(&lifecycle), "b");
    lifecycle.activate("m", &first).unwrap();
    assert_eq!((k_of(&lifecycle), present(&lifecycle)), (String::new(), first.clone()));
    assert!(shown(&lifecycle).is_rolled_back);
    let error = lifecycle.activate("m", "x").unwrap_err();
    assert!(error.message.starts_with("model 'm' has no generation 'x', known: "), "{error}");
    // It stays after an unload, which ends the roll-back.
    lifecycle.unload("m", false).unwrap();
    assert_eq!((present(&lifecycle), shown(&lifecycle).is_rolled_back), (String::new(), false));
    lifecycle.activate("m", &first).unwrap();
    assert_eq!(present(&lifecycle), first);
    lifecycle.load("m", vec![]).unwrap();
    assert_eq!((k_of(&lifecycle).as_str(), shown(&lifecycle).is_rolled_back), ("b", false));
    end(&lifecycle);
    let text = "Server not ready";
    assert_eq!(lifecycle.run(|lifecycle| lifecycle.activate("m", &first)).unwrap_err().message, text);
}

#[test]
fn a_configuration_of_a_load_request_is_part_of_its_generation() {
    let place = Place::new();
    place.model("m", &[1], "");
    let lifecycle = keeping(&place, ControlMode::Explicit);
    lifecycle.load("m", override_of(4)).unwrap();
    let overridden = present(&lifecycle);
    place.write_at("m/config.pbtxt", &parameter_of("b"), 0);
    let newer = SystemTime::now() + Duration::from_secs(100);
    File::open(place.0.join("m/config.pbtxt")).unwrap().set_modified(newer).unwrap();
    lifecycle.load("m", vec![]).unwrap();
    assert_eq!(k_of(&lifecycle), "b");
    lifecycle.activate("m", &overridden).unwrap();
    assert_eq!(served(&lifecycle, "m", 1).spec.max_batch_size, 4);
    lifecycle.load("m", vec![]).unwrap();
    assert_eq!(k_of(&lifecycle), "b");
    end(&lifecycle);
}

#[test]
fn what_fails_leaves_what_serves() {
    let place = Place::new();
    place.model("m", &[1], "");
    let lifecycle = keeping(&place, ControlMode::Explicit);
    let first = present(&lifecycle);
    // An instance that cannot be made.
    let bad = config("instance_group [ { kind: KIND_CPU host_policy: \"far\" } ]\nparameters { key: \"x\" value { } }");
    place.write_at("m/config.pbtxt", &bad, 900);
    assert!(lifecycle.load("m", vec![]).is_err());
    assert_eq!((present(&lifecycle), shown(&lifecycle).entries.len()), (first.clone(), 1));
    place.write_at("m/config.pbtxt", &parameter_of("b"), 800);
    lifecycle.load("m", vec![]).unwrap();
    let second = present(&lifecycle);
    // The kept files are damaged.
    let id = ModelId { name: "m".to_owned(), ..ModelId::default() };
    let path = {
        let slot = lifecycle.slot(&id);
        let slot = lock(&slot);
        let kept = slot.generations.find(&first).and_then(|found| found.kept.clone()).unwrap();
        kept.path().to_owned()
    };
    fs::write(path.join("1/more"), "x").unwrap();
    let error = lifecycle.activate("m", &first).unwrap_err();
    assert_eq!(error.message, format!("the kept files of generation '{first}' of model 'm' were changed"));
    assert_eq!((present(&lifecycle), k_of(&lifecycle).as_str()), (second, "b"));
    end(&lifecycle);
    assert!(!path.exists(), "the copies go with the models");
}

#[test]
fn polling_leaves_a_roll_back_until_the_content_changes() {
    let place = Place::new();
    place.model("m", &[1], "");
    let lifecycle = keeping(&place, ControlMode::Poll);
    let first = present(&lifecycle);
    place.write_at("m/config.pbtxt", &parameter_of("b"), 900);
    lifecycle.poll();
    assert_eq!(k_of(&lifecycle), "b");
    lifecycle.activate("m", &first).unwrap();
    lifecycle.poll();
    assert_eq!(present(&lifecycle), first, "nothing changed");
    place.write_at("m/config.pbtxt", &parameter_of("b"), 800);
    lifecycle.poll();
    lifecycle.poll();
    assert_eq!((present(&lifecycle), shown(&lifecycle).is_rolled_back), (first, true), "only times changed");
    place.write_at("m/config.pbtxt", &parameter_of("c"), 700);
    lifecycle.poll();
    assert_eq!((k_of(&lifecycle).as_str(), shown(&lifecycle).is_rolled_back), ("c", false));
    end(&lifecycle);
}

#[test]
fn without_the_flag_nothing_is_kept_and_the_mode_none_changes_nothing() {
    let place = Place::new();
    place.model("m", &[1], "");
    let lifecycle = explicit(&place);
    lifecycle.load("m", vec![]).unwrap();
    let first = present(&lifecycle);
    place.write_at("m/config.pbtxt", &parameter_of("b"), 900);
    lifecycle.load("m", vec![]).unwrap();
    let second = present(&lifecycle);
    let error = lifecycle.activate("m", &first).unwrap_err();
    let text = format!("model 'm' has no generation '{first}', known: {second}; --keep-generations keeps earlier ones");
    assert_eq!(error, Status::not_found(text));
    end(&lifecycle);
    let lifecycle = keeping(&place, ControlMode::None);
    let error = lifecycle.activate("m", &present(&lifecycle)).unwrap_err();
    assert!(error.message.contains("model control mode NONE"), "{error}");
    end(&lifecycle);
}
