//! The life cycle over real directories and the identity backend, without shards.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant, SystemTime};

use super::*;
use crate::repository::store;
use crate::repository::{IndexRow, ParameterValue};
use nereid_backend::HostPolicies;
use nereid_backend::plugin::no_libraries;
use nereid_memory::Pool;
use nereid_scheduler::ServedModel;

mod failing;
mod generations;
mod namespaces;
mod registration;
mod residency;

/// A repository on disk.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("nereid-lifecycle-{}-{count}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn model(&self, name: &str, versions: &[i64], more: &str) {
        for version in versions {
            fs::create_dir_all(self.0.join(name).join(version.to_string())).unwrap();
        }
        self.write(&format!("{name}/config.pbtxt"), &config(more));
        self.age(&self.0.join(name), 1000);
    }

    /// Sets the times of everything back, so that what a test touches afterwards is newer.
    fn age(&self, path: &Path, secs: u64) {
        let time = SystemTime::now() - Duration::from_secs(secs);
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                self.age(&entry.unwrap().path(), secs);
            }
        }
        File::open(path).unwrap().set_modified(time).unwrap();
    }

    /// Writes a file with a time that many seconds ago. Existing directories keep their times, so that nothing else is
    /// newer.
    fn write_at(&self, path: &str, text: &str, secs: u64) {
        let path = self.0.join(path);
        let above = path.ancestors().skip(1).filter_map(|above| Some((above, above.metadata().ok()?.modified().ok()?)));
        let above: Vec<_> = above.collect();
        let parent = path.parent().unwrap();
        let is_new = !parent.exists();
        fs::create_dir_all(parent).unwrap();
        fs::write(&path, text).unwrap();
        self.age(if is_new { parent } else { &path }, secs);
        for (directory, time) in above.into_iter().filter(|(directory, _)| directory.starts_with(&self.0)) {
            File::open(directory).unwrap().set_modified(time).unwrap();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn config(more: &str) -> String {
    format!(
        "backend: \"identity\"\ninput {{ name: \"INPUT0\" data_type: TYPE_INT8 dims: [ -1 ] }}\n\
         output {{ name: \"OUTPUT0\" data_type: TYPE_INT8 dims: [ -1 ] }}\n{more}\n"
    )
}

const ALL: &str = "version_policy { all { } }";

fn settings(places: &[&Place], mode: ControlMode) -> Settings {
    let open = |place: &&Place| Arc::from(store::open(place.0.to_str().unwrap(), &|_| None).unwrap());
    Settings {
        scheduling: Default::default(),
        stalls: None,
        host: Default::default(),
        gpus: Arc::default(),
        plugins: no_libraries,
        agents: Default::default(),
        residency: Default::default(),
        keep_generations: 0,
        keeps_provenance: true,
        stores: places.iter().map(open).collect(),
        mode,
        startup_models: Vec::new(),
        auto_complete: true,
        config_name: None,
        namespacing: false,
        load_thread_count: 4,
        load_retry_count: 0,
        backend_directory: "/nowhere".into(),
        min_compute_capability: 0.0,
        backend_settings: Arc::new(|_| Vec::new()),
        worker_cpus: Vec::new(),
        worker_cpu_count: 1,
        worker_spin: Default::default(),
        // A node that no host has, so instances of this policy cannot be made.
        host_policies: Arc::new(
            HostPolicies::new(&[("far".to_owned(), "numa-node".to_owned(), "4095".to_owned())]).unwrap(),
        ),
        pool: Pool::new(1 << 20),
        metrics: Arc::default(),
        metrics_config: Default::default(),
    }
}

/// A life cycle in the explicit mode, started without models.
fn explicit(place: &Place) -> Arc<Lifecycle> {
    let lifecycle = Lifecycle::new(settings(&[place], ControlMode::Explicit));
    assert_eq!(lifecycle.start(), Ok(true));
    lifecycle
}

fn served(lifecycle: &Lifecycle, name: &str, version: i64) -> Arc<ServedModel> {
    Arc::clone(lifecycle.map().lookup(name.as_bytes(), Some(version)).unwrap())
}

fn states(lifecycle: &Lifecycle, name: &str) -> Vec<(i64, &'static str, String)> {
    let map = lifecycle.map();
    let id = ModelId { name: name.to_owned(), ..ModelId::default() };
    let entry = map.get(&id).cloned().unwrap_or_default();
    entry.versions.iter().map(|(version, state)| (*version, state.name(), state.reason().to_owned())).collect()
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(300);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn end(lifecycle: &Arc<Lifecycle>) {
    lifecycle.refuse_changes();
    lifecycle.stop_scheduling();
    lifecycle.unload_all();
    eventually("every version ends", || lifecycle.live_models() == 0);
}

fn parameter(name: &str, text: &str) -> Parameter {
    Parameter { name: name.to_owned(), value: ParameterValue::Text(text.to_owned()) }
}

fn override_of(batch: i32) -> Vec<Parameter> {
    let tensor = |name: &str| format!(r#"[{{"name": "{name}", "data_type": "TYPE_INT8", "dims": [-1]}}]"#);
    let (input, output) = (tensor("INPUT0"), tensor("OUTPUT0"));
    let text = format!(r#"{{"backend": "identity", "max_batch_size": {batch}, "input": {input}, "output": {output}}}"#);
    vec![parameter("config", &text)]
}

#[test]
fn only_what_changed_is_loaded_again() {
    let place = Place::new();
    place.model("m", &[1, 2], ALL);
    place.write_at("m/1/model", "x", 1000);
    place.write_at("m/labels", "x", 1000);
    let lifecycle = explicit(&place);
    lifecycle.load("m", vec![]).unwrap();
    let all = |lifecycle: &Lifecycle| [1, 2].map(|version| served(lifecycle, "m", version));
    let mut before = all(&lifecycle);
    let mut check = |what: &str, reloaded: [bool; 2]| {
        lifecycle.load("m", vec![]).unwrap_or_else(|error| panic!("{what}: {error}"));
        let now = all(&lifecycle);
        for at in 0..2 {
            assert_eq!(!Arc::ptr_eq(&before[at], &now[at]), reloaded[at], "{what}: version {}", at + 1);
        }
        before = now;
    };
    check("nothing changed", [false, false]);
    place.write_at("m/1/model", "y", 900);
    check("a file of version 1", [true, false]);
    place.write_at("m/2/model", "y", 800);
    check("a file of version 2", [false, true]);
    place.write_at("m/labels", "y", 700);
    check("a file beside the versions", [true, true]);
    place.write_at("m/config.pbtxt", &config(ALL), 600);
    check("the config's time, not its text", [false, false]);
    place.write_at("m/config.pbtxt", &config(&format!("{ALL}\nparameters {{ key: \"k\" value {{ }} }}")), 500);
    check("the config", [true, true]);
    place.write_at("m/1/model", "older than what was seen", 2000);
    check("a file that became older", [true, false]);
    place.age(&place.0.join("m/config.pbtxt"), 2000);
    check("the config became older and is the same", [false, false]);
    fs::write(place.0.join("other"), "older than what was seen").unwrap();
    place.age(&place.0.join("other"), 2000);
    fs::rename(place.0.join("other"), place.0.join("m/1/model")).unwrap();
    place.age(&place.0.join("m/1"), 2000);
    check("another file of the same length", [true, false]);
    end(&lifecycle);
}

#[test]
fn versions_come_and_go_by_the_policy() {
    let place = Place::new();
    place.model("m", &[1, 2], ALL);
    let lifecycle = explicit(&place);
    lifecycle.load("m", vec![]).unwrap();
    let (first, second) = (served(&lifecycle, "m", 1), served(&lifecycle, "m", 2));
    place.write_at("m/3/model", "x", 900);
    place.write_at("m/config.pbtxt", &config("version_policy { specific { versions: [2, 3, 9] } }"), 900);
    lifecycle.load("m", vec![]).unwrap();
    let now = served(&lifecycle, "m", 2);
    assert!(Arc::ptr_eq(&second.scheduler, &now.scheduler), "its instances stay");
    assert_ne!(second.spec.config.version_policy, now.spec.config.version_policy, "and the new policy is served");
    let unloading = (1, "UNLOADING", String::new());
    assert_eq!(states(&lifecycle, "m")[0], unloading, "a reference to it is left");
    assert!(lifecycle.map().lookup(b"m", Some(1)).is_err());
    assert_eq!(lifecycle.map().lookup(b"m", None).unwrap().version, 3);
    drop(first);
    eventually("version 1 ends", || states(&lifecycle, "m")[0] == (1, "UNAVAILABLE", "unloaded".to_owned()));
    assert!(lifecycle.map().is_complete());
    place.write_at("m/config.pbtxt", &config("version_policy { specific { versions: [7] } }"), 800);
    let text = "at least one version must be available under the version policy of model 'm'";
    assert_eq!(lifecycle.load("m", vec![]), Err(Status::invalid(text)));
    assert!(Arc::ptr_eq(&now, &served(&lifecycle, "m", 2)), "what serves goes on serving");
    drop((second, now));
    end(&lifecycle);
}

#[test]
fn instances_change_while_their_version_serves() {
    let place = Place::new();
    let groups = |text: &str| config(&format!("instance_group [ {text} ]"));
    place.model("m", &[1], "instance_group [ { kind: KIND_CPU count: 2 } ]");
    let lifecycle = explicit(&place);
    lifecycle.load("m", vec![]).unwrap();
    let id = ModelId { name: "m".to_owned(), ..ModelId::default() };
    let names = || lock(&lifecycle.slot(&id)).running[&1].instance_names().join(" ");
    let first = served(&lifecycle, "m", 1);
    assert_eq!(names(), "m_0_0 m_0_1");
    for (at, (text, expected)) in [
        ("{ kind: KIND_CPU count: 3 }", "m_0_0 m_0_1 m_0_2"),
        ("{ kind: KIND_CPU name: \"g\" count: 1 }", "m_0_0"),
        ("{ kind: KIND_CPU count: 0 }, { kind: KIND_CPU passive: true }", "m_0_0 m_1_0"),
    ]
    .into_iter()
    .enumerate()
    {
        place.write_at("m/config.pbtxt", &groups(text), 900 - 100 * at as u64);
        lifecycle.load("m", vec![]).unwrap();
        assert_eq!(names(), expected, "{text}");
        let now = served(&lifecycle, "m", 1);
        assert!(Arc::ptr_eq(&first.scheduler, &now.scheduler) && !Arc::ptr_eq(&first, &now), "{text}");
    }
    let before = served(&lifecycle, "m", 1);
    place.write_at("m/config.pbtxt", &groups("{ kind: KIND_CPU count: 2 host_policy: \"far\" }"), 300);
    lifecycle.load("m", vec![]).unwrap_err();
    assert!(Arc::ptr_eq(&before, &served(&lifecycle, "m", 1)), "a failing update leaves the old instances");
    assert_eq!(names(), "m_0_0 m_1_0");
    drop((first, before));
    end(&lifecycle);
}

#[test]
fn a_failed_load_leaves_what_serves_alone() {
    let place = Place::new();
    place.model("m", &[1, 2], ALL);
    let lifecycle = explicit(&place);
    lifecycle.load("m", vec![]).unwrap();
    let before = served(&lifecycle, "m", 2);
    let poll_failed = Status::internal("failed to load 'm', failed to poll from model repository");
    place.write_at("m/config.pbtxt", "no config", 900);
    assert_eq!(lifecycle.load("m", vec![]), Err(poll_failed.clone()));
    // Version 3 is new, but another version cannot follow the change.
    fs::create_dir_all(place.0.join("m/3")).unwrap();
    let uneven = "input { name: \"INPUT1\" data_type: TYPE_INT8 dims: [ 1 ] }";
    place.write_at("m/config.pbtxt", &config(&format!("{ALL}\n{uneven}")), 800);
    let error = lifecycle.load("m", vec![]).unwrap_err();
    let reason = "Invalid argument: model configuration must have equal input/output pairs";
    assert_eq!(error.code, nereid_request::Code::InvalidArg);
    let each = [1, 2, 3].map(|version| format!("version {version} is at UNAVAILABLE state: {reason}"));
    assert!(each.iter().all(|text| error.message.contains(text)), "{error}");
    assert!(error.message.starts_with("load failed for model 'm': version 1 is") && error.message.ends_with(";\n"));
    assert!(Arc::ptr_eq(&before, &served(&lifecycle, "m", 2)));
    let rows = states(&lifecycle, "m");
    assert_eq!((rows[0].1, rows[1].1, rows[2].1), ("READY", "READY", "UNAVAILABLE"));
    assert!(rows[2].2.contains("equal input/output pairs"), "{rows:?}");
    for (name, status) in [
        ("nobody", Status::internal("failed to load 'nobody', failed to poll from model repository")),
        (" ", Status::invalid("Model name cannot be empty. Please enter a valid name to deploy.")),
        ("..", Status::invalid("invalid model name '..', model name must not contain path traversal characters")),
        ("a/b", Status::invalid("invalid model name 'a/b', model name must not contain path traversal characters")),
    ] {
        assert_eq!(lifecycle.load(name, vec![]), Err(status));
    }
    assert!(lifecycle.map().get(&ModelId { name: "nobody".to_owned(), ..ModelId::default() }).is_none());
    assert_eq!(lifecycle.load("m", vec![parameter("config", "{")]), Err(poll_failed.clone()));
    assert_eq!(lifecycle.load("m", vec![parameter("other", "{")]), Err(poll_failed));
    drop(before);
    end(&lifecycle);
}

#[test]
fn an_override_stays_until_files_become_newer() {
    let place = Place::new();
    place.model("m", &[1], "");
    let lifecycle = explicit(&place);
    let batch = || served(&lifecycle, "m", 1).spec.max_batch_size;
    lifecycle.load("m", override_of(4)).unwrap();
    assert_eq!(batch(), 4);
    lifecycle.load("m", vec![]).unwrap();
    assert_eq!(batch(), 4, "a plain load leaves it");
    let before = served(&lifecycle, "m", 1);
    place.write_at("m/1/model", "newer than at the load, older than the override", 500);
    lifecycle.load("m", vec![]).unwrap();
    assert_eq!(batch(), 4);
    assert!(!Arc::ptr_eq(&before, &served(&lifecycle, "m", 1)), "the files are loaded with the override");
    drop(before);
    lifecycle.load("m", override_of(5)).unwrap();
    assert_eq!(batch(), 5, "an override always counts as a change");
    let later = SystemTime::now() + Duration::from_secs(5);
    File::open(place.0.join("m/config.pbtxt")).unwrap().set_modified(later).unwrap();
    lifecycle.load("m", vec![]).unwrap();
    assert_eq!(batch(), 0, "a newer file wins");
    lifecycle.load("m", override_of(6)).unwrap();
    lifecycle.unload("m", false).unwrap();
    lifecycle.load("m", vec![]).unwrap();
    assert_eq!(batch(), 0, "an unload forgets it");
    end(&lifecycle);
}

#[test]
fn files_that_are_sent_along_replace_the_directory() {
    let place = Place::new();
    place.model("m", &[1], "");
    let lifecycle = explicit(&place);
    lifecycle.load("m", vec![]).unwrap();
    let mut parameters = override_of(4);
    let contents = ParameterValue::Bytes(b"x".to_vec());
    parameters.push(Parameter { name: "file:7/model".to_owned(), value: contents });
    for name in ["m", "new"] {
        lifecycle.load(name, parameters.clone()).unwrap();
        assert_eq!(served(&lifecycle, name, 7).spec.max_batch_size, 4);
    }
    eventually("version 1 ends", || states(&lifecycle, "m")[0].1 == "UNAVAILABLE");
    let rows = lifecycle.index(true).unwrap();
    let row = |name: &str| IndexRow { name: name.to_owned(), version: Some(7), state: "READY", reason: String::new() };
    assert_eq!(rows, [row("m"), row("new")], "a model that no repository has is listed while it serves");
    lifecycle.load("m", vec![]).unwrap();
    assert_eq!(served(&lifecycle, "m", 1).spec.max_batch_size, 0, "a plain load goes back to the repository");
    assert!(lifecycle.load("new", vec![]).is_err());
    assert_eq!(served(&lifecycle, "new", 7).version, 7, "and one that finds nothing changes nothing");
    end(&lifecycle);
}

#[test]
fn unloads_are_seen_and_undone() {
    let place = Place::new();
    place.model("m", &[1], "");
    let lifecycle = explicit(&place);
    assert_eq!(lifecycle.unload("m", false), Ok(()), "it was never loaded");
    assert_eq!(lifecycle.unload("nobody", false), Ok(()));
    let never = IndexRow { name: "m".to_owned(), ..IndexRow::default() };
    assert_eq!(lifecycle.index(false).unwrap(), [never]);
    assert_eq!(lifecycle.index(true).unwrap(), []);
    lifecycle.load("m", vec![]).unwrap();
    let held = served(&lifecycle, "m", 1);
    lifecycle.unload("m", false).unwrap();
    assert_eq!(states(&lifecycle, "m"), [(1, "UNLOADING", String::new())]);
    let text = |version| lifecycle.map().lookup(b"m", version).unwrap_err().message.into_owned();
    assert_eq!(text(None), "Request for unknown model: 'm' has no available versions");
    assert_eq!(text(Some(1)), "Request for unknown model: 'm' version 1 is not at ready state");
    // Loaded again while the old one is still referenced: the end of the old one must not show.
    lifecycle.load("m", vec![]).unwrap();
    drop(held);
    eventually("the old one ends", || lifecycle.live_models() == 0);
    assert_eq!(states(&lifecycle, "m"), [(1, "READY", String::new())]);
    lifecycle.unload("m", false).unwrap();
    eventually("it is unloaded", || states(&lifecycle, "m")[0].1 == "UNAVAILABLE");
    assert_eq!(states(&lifecycle, "m"), [(1, "UNAVAILABLE", "unloaded".to_owned())]);
    end(&lifecycle);
}

#[test]
fn requests_in_flight_are_counted_without_other_references() {
    let place = Place::new();
    place.model("m", &[1, 2], ALL);
    let lifecycle = explicit(&place);
    lifecycle.load("m", vec![]).unwrap();
    assert_eq!(lifecycle.in_flight(), []);
    let (_one, _two) = (served(&lifecycle, "m", 1), served(&lifecycle, "m", 2));
    let _three = served(&lifecycle, "m", 2);
    let found = lifecycle.in_flight();
    let counts: Vec<_> = found.iter().map(|found| (found.version, found.requests)).collect();
    assert_eq!(counts, [(1, 1), (2, 2)]);
    drop((_one, _two, _three));
    end(&lifecycle);
}

#[test]
fn polling_adds_changes_and_removes() {
    let (place, other) = (Place::new(), Place::new());
    place.model("a", &[1], "");
    place.write("half/config.pbtxt", "backend: \"identity\" input {");
    let lifecycle = Lifecycle::new(settings(&[&place, &other], ControlMode::Poll));
    assert_eq!(lifecycle.start(), Ok(false), "one of them is half there");
    let no_api = Status::unavailable("explicit model load / unload is not allowed if polling is enabled");
    assert_eq!(lifecycle.load("a", vec![]), Err(no_api.clone()));
    assert_eq!(lifecycle.unload("a", false), Err(no_api));
    let first = served(&lifecycle, "a", 1);
    lifecycle.poll();
    assert!(Arc::ptr_eq(&first, &served(&lifecycle, "a", 1)));
    assert!(lifecycle.map().is_complete(), "a model that failed its poll is not registered");
    place.model("half", &[1], "");
    place.model("b", &[1], "");
    place.write_at("a/1/model", "x", 2000);
    lifecycle.poll();
    assert!(!Arc::ptr_eq(&first, &served(&lifecycle, "a", 1)), "older than before, but another file");
    assert!(lifecycle.map().is_complete());
    assert_eq!(served(&lifecycle, "half", 1).version + served(&lifecycle, "b", 1).version, 2);
    drop(first);
    // The same name in two repositories does not serve until one is gone.
    other.model("b", &[1], "");
    lifecycle.poll();
    eventually("b ends", || states(&lifecycle, "b") == [(1, "UNAVAILABLE", "unloaded".to_owned())]);
    let rows = lifecycle.index(false).unwrap();
    let row = rows.iter().find(|row| row.name == "b").unwrap();
    assert_eq!((row.version, row.state, &*row.reason), (None, "UNAVAILABLE", super::super::index::DUPLICATE));
    fs::remove_dir_all(place.0.join("b")).unwrap();
    fs::remove_dir_all(place.0.join("half")).unwrap();
    lifecycle.poll();
    assert_eq!(served(&lifecycle, "b", 1).version, 1);
    eventually("half ends", || states(&lifecycle, "half") == [(1, "UNAVAILABLE", "unloaded".to_owned())]);
    // A repository that cannot be read changes nothing.
    let hidden = other.0.with_extension("gone");
    fs::rename(&other.0, &hidden).unwrap();
    lifecycle.poll();
    assert!(lifecycle.map().lookup(b"a", None).is_ok() && lifecycle.map().lookup(b"b", None).is_ok());
    assert!(lifecycle.index(false).is_err());
    fs::rename(&hidden, &other.0).unwrap();
    lifecycle.poll();
    assert!(lifecycle.map().lookup(b"b", None).is_ok());
    end(&lifecycle);
}

#[test]
fn a_bad_file_is_tried_again_only_when_it_changes() {
    let place = Place::new();
    place.model("m", &[1], "input { name: \"INPUT1\" data_type: TYPE_INT8 dims: [ 1 ] }");
    let lifecycle = Lifecycle::new(settings(&[&place], ControlMode::Poll));
    assert_eq!(lifecycle.start(), Ok(false));
    let failed = states(&lifecycle, "m");
    assert_eq!((failed.len(), failed[0].1), (1, "UNAVAILABLE"));
    let map = lifecycle.map();
    lifecycle.poll();
    assert!(Arc::ptr_eq(&map, &lifecycle.map()), "nothing was even tried");
    place.write_at("m/config.pbtxt", &config(""), 10);
    lifecycle.poll();
    assert_eq!(states(&lifecycle, "m"), [(1, "READY", String::new())]);
    end(&lifecycle);
}

#[test]
fn names_may_be_shared_with_namespacing() {
    let (place, other) = (Place::new(), Place::new());
    place.model("m", &[1], "");
    place.model("only", &[1], "");
    other.model("m", &[2], "");
    let lifecycle =
        Lifecycle::new(Settings { namespacing: true, ..settings(&[&place, &other], ControlMode::Explicit) });
    assert_eq!(lifecycle.start(), Ok(true));
    lifecycle.load("only", vec![]).unwrap();
    lifecycle.load("m", vec![]).unwrap();
    assert_eq!(lifecycle.map().lookup(b"only", None).unwrap().namespace, place.0.to_str().unwrap());
    let text = "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve \
                ambiguity.";
    assert_eq!(lifecycle.map().lookup(b"m", Some(2)).unwrap_err(), Status::invalid(text));
    let text = "Request for unknown model: 'x' is not found";
    assert_eq!(lifecycle.map().lookup(b"x", None).unwrap_err(), Status::invalid(text));
    let names: Vec<_> = lifecycle.index(false).unwrap().into_iter().map(|row| (row.name, row.version)).collect();
    let expected = [("m", Some(1)), ("m", Some(2)), ("only", Some(1))];
    let mut expected = expected.map(|(name, version)| (name.to_owned(), version)).to_vec();
    let mut sorted = names;
    sorted.sort();
    expected.sort();
    assert_eq!(sorted, expected);
    end(&lifecycle);
}

#[test]
fn explicit_starts_with_what_is_named() {
    let place = Place::new();
    for name in ["a", "b", "c"] {
        place.model(name, &[1], "");
    }
    let start = |names: &[&str]| {
        let startup_models = names.iter().map(|name| (*name).to_owned()).collect();
        let lifecycle = Lifecycle::new(Settings { startup_models, ..settings(&[&place], ControlMode::Explicit) });
        let outcome = lifecycle.start();
        let names: Vec<String> = lifecycle.map().ready().map(|served| served.name.clone()).collect();
        let is_complete = lifecycle.map().is_complete();
        end(&lifecycle);
        (outcome, names.join(" "), is_complete)
    };
    assert_eq!(start(&["a", "c"]), (Ok(true), "a c".to_owned(), true));
    assert_eq!(start(&["*"]), (Ok(true), "a b c".to_owned(), true));
    assert_eq!(start(&["a", "nobody"]), (Ok(false), "a".to_owned(), true));
}

#[test]
fn a_server_that_stops_takes_no_more_operations() {
    let place = Place::new();
    place.model("m", &[1], "");
    let lifecycle = explicit(&place);
    let (sender, receiver) = std::sync::mpsc::channel();
    lifecycle
        .spawn(move |lifecycle| sender.send((lifecycle.operations(), lifecycle.load("m", vec![]))).unwrap())
        .unwrap();
    assert_eq!(receiver.recv().unwrap(), (1, Ok(())));
    eventually("the operation is over", || lifecycle.operations() == 0);
    lifecycle.refuse_changes();
    assert_eq!(lifecycle.spawn(|_| ()), Err(Status::refused(RefusalReason::Exiting, "Server not ready")));
    end(&lifecycle);
}
