//! Registration and removal of repositories.

use super::*;

fn path(place: &Place) -> &str {
    place.0.to_str().unwrap()
}

fn mapping(directory: &str, model: &str) -> [(String, String); 1] {
    [(directory.to_owned(), model.to_owned())]
}

fn names(lifecycle: &Lifecycle) -> Vec<String> {
    lifecycle.index(false).unwrap().into_iter().map(|row| row.name).collect()
}

#[test]
fn a_registered_repository_serves_its_models_until_it_is_unregistered() {
    let (start, later) = (Place::new(), Place::new());
    start.model("first", &[1], "");
    later.model("inside", &[1], "name: \"its_own\"");
    later.model("beside", &[1], "");
    let lifecycle = explicit(&start);
    lifecycle.register_repository(path(&later), &mapping("inside", "hash")).unwrap();
    assert_eq!(names(&lifecycle), ["beside", "first", "hash"]);
    lifecycle.load("hash", Vec::new()).unwrap();
    assert_eq!(served(&lifecycle, "hash", 1).spec.config.name, "hash");
    lifecycle.load("beside", Vec::new()).unwrap();
    assert!(lifecycle.load("inside", Vec::new()).is_err(), "it goes by another name");
    lifecycle.unregister_repository(path(&later)).unwrap();
    // A serving model stays, and can still be unloaded.
    assert_eq!(names(&lifecycle), ["beside", "first", "hash"]);
    assert!(!lifecycle.is_unloaded("hash"));
    lifecycle.unload("hash", false).unwrap();
    eventually("the model ends", || lifecycle.is_unloaded("hash"));
    assert!(lifecycle.load("hash", Vec::new()).is_err(), "it is no longer registered");
    lifecycle.unload("beside", false).unwrap();
    eventually("what was forgotten goes", || lifecycle.map().iter().next().is_none() && lifecycle.slots().is_empty());
    end(&lifecycle);
}

#[test]
fn idle_models_are_removed_with_their_repository() {
    let (start, later) = (Place::new(), Place::new());
    later.model("inside", &[1], "");
    later.model("broken", &[1], "instance_group [ { kind: KIND_CPU host_policy: \"far\" } ]");
    let lifecycle = explicit(&start);
    lifecycle.register_repository(path(&later), &mapping("inside", "hash")).unwrap();
    lifecycle.load("hash", Vec::new()).unwrap();
    assert!(lifecycle.load("broken", Vec::new()).is_err());
    assert!(!lifecycle.map().is_complete(), "a model failed");
    lifecycle.unload("hash", true).unwrap();
    eventually("the model ends", || lifecycle.is_unloaded("hash"));
    assert_eq!(states(&lifecycle, "hash"), [(1, "UNAVAILABLE", "unloaded".to_owned())]);
    lifecycle.unregister_repository(path(&later)).unwrap();
    assert_eq!(names(&lifecycle), Vec::<String>::new());
    assert!(lifecycle.map().iter().next().is_none() && lifecycle.slots().is_empty(), "nothing is left");
    assert!(lifecycle.map().is_complete());
    end(&lifecycle);
}

#[test]
fn registrations_that_are_refused() {
    let (start, later, other) = (Place::new(), Place::new(), Place::new());
    start.model("first", &[1], "");
    let lifecycle = explicit(&start);
    let text = format!("model repository '{}' has already been registered", path(&start));
    assert_eq!(lifecycle.register_repository(path(&start), &[]), Err(Status::already_exists(text)));
    let text = "failed to register '/nowhere/at/all', repository not found";
    assert_eq!(lifecycle.register_repository("/nowhere/at/all", &[]), Err(Status::invalid(text)));
    lifecycle.register_repository(path(&later), &mapping("x", "hash")).unwrap();
    let twice = [mapping("y", "same"), mapping("z", "same")].concat();
    let text = format!("failed to register '{}', there is a conflicting mapping for 'same'", path(&other));
    assert_eq!(lifecycle.register_repository(path(&other), &twice), Err(Status::invalid(text)));
    let text = "failed to register 'hash', there is a conflicting mapping for 'hash'".to_owned();
    let conflict = lifecycle.register_repository(path(&other), &mapping("y", "hash"));
    assert_eq!(conflict, Err(Status::already_exists(text)));
    lifecycle.unregister_repository(path(&later)).unwrap();
    lifecycle.register_repository(path(&other), &mapping("y", "hash")).unwrap();
    let text = format!("failed to unregister '{}', repository not found", path(&later));
    assert_eq!(lifecycle.unregister_repository(path(&later)), Err(Status::invalid(text)));
    end(&lifecycle);
    for mode in [ControlMode::None, ControlMode::Poll] {
        let lifecycle = Lifecycle::new(settings(&[&start], mode));
        let text = "repository registration is not allowed if model control mode is not EXPLICIT";
        assert_eq!(lifecycle.register_repository(path(&later), &[]), Err(Status::unsupported(text)));
        let text = "repository unregistration is not allowed if model control mode is not EXPLICIT";
        assert_eq!(lifecycle.unregister_repository(path(&start)), Err(Status::unsupported(text)));
    }
}

#[test]
fn a_mapping_decides_where_a_model_lies() {
    let (start, later) = (Place::new(), Place::new());
    start.model("hash", &[1], "");
    later.model("inside", &[1, 2], ALL);
    let lifecycle = explicit(&start);
    lifecycle.register_repository(path(&later), &mapping("inside", "hash")).unwrap();
    assert_eq!(names(&lifecycle), ["hash"], "once");
    lifecycle.load("hash", Vec::new()).unwrap();
    assert_eq!(states(&lifecycle, "hash").len(), 2, "those of the mapped directory");
    lifecycle.unload("hash", false).unwrap();
    eventually("the model ends", || lifecycle.is_unloaded("hash"));
    lifecycle.unregister_repository(path(&later)).unwrap();
    lifecycle.load("hash", Vec::new()).unwrap();
    assert_eq!(states(&lifecycle, "hash").len(), 1, "those of the other one");
    end(&lifecycle);
}
