//! Loads that fail or are overtaken when a part of their work is done: nothing of it stays.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use nereid_backend::plugin::{PluginLoader, PluginSettings};
use nereid_backend::{Backend, Instance, InstanceContext, Model, ModelContext};
use nereid_model_config::ModelSpec;
use nereid_request::RefusalReason;
use nereid_scheduler::{BatchStrategy, Payload};

/// Instances that exist, of the tests' backend in this process.
static ALIVE: Mutex<BTreeMap<String, i64>> = Mutex::new(BTreeMap::new());
/// Who is told that an instance is being created, and what its creation waits for.
type Gate = (Sender<()>, Receiver<()>);
/// Of each model whose instances wait.
static GATES: Mutex<BTreeMap<String, Gate>> = Mutex::new(BTreeMap::new());

/// A backend whose version 2 cannot have a third instance.
struct Picky;

struct PickyModel(Arc<ModelContext>);

struct PickyInstance(String);

impl Backend for Picky {
    fn name(&self) -> &str {
        "picky"
    }

    fn create_model(&self, context: Arc<ModelContext>) -> Result<Arc<dyn Model>, Status> {
        Ok(Arc::new(PickyModel(context)))
    }
}

impl Model for PickyModel {
    fn create_instance(self: Arc<Self>, context: InstanceContext) -> Result<Box<dyn Instance>, Status> {
        let PickyModel(model) = &*self;
        if model.version == 2 && context.name.ends_with("_2") {
            return Err(Status::unavailable("version 2 has no third instance"));
        }
        if let Some((reached, go_on)) = lock(&GATES).remove(&model.name) {
            reached.send(()).unwrap();
            go_on.recv().unwrap();
        }
        *lock(&ALIVE).entry(model.name.clone()).or_default() += 1;
        Ok(Box::new(PickyInstance(model.name.clone())))
    }
}

impl Instance for PickyInstance {
    fn execute(&mut self, _payload: &mut Payload) -> Result<(), Status> {
        Err(Status::internal("it only exists"))
    }
}

impl Drop for PickyInstance {
    fn drop(&mut self) {
        *lock(&ALIVE).entry(self.0.clone()).or_default() -= 1;
    }
}

fn alive(model: &str) -> i64 {
    lock(&ALIVE).get(model).copied().unwrap_or_default()
}

fn picky(_settings: &PluginSettings) -> Box<dyn PluginLoader> {
    struct PickyLoader;
    impl PluginLoader for PickyLoader {
        fn load(&self, _: &str, _: &Path, _: &Path, _: &[(String, String)]) -> Result<Arc<dyn Backend>, Status> {
            Ok(Arc::new(Picky))
        }

        fn strategy_of(
            &self,
            _: &ModelSpec,
            _: bool,
            _: &dyn Model,
            _: &Arc<ModelContext>,
            _: &Path,
        ) -> Result<Option<Arc<dyn BatchStrategy>>, Status> {
            Ok(None)
        }
    }
    Box::new(PickyLoader)
}

fn picky_config(instances: usize) -> String {
    let groups = format!("instance_group [ {{ kind: KIND_CPU count: {instances} }} ]");
    config(&format!("{ALL}\n{groups}")).replace("identity", "picky")
}

/// A repository with one model of the backend.
fn repository(model: &str, versions: &[i64], instances: usize) -> (Place, Arc<Lifecycle>) {
    let place = Place::new();
    place.model(model, versions, "");
    place.write_at(&format!("{model}/libtriton_picky.so"), "", 1000);
    place.write_at(&format!("{model}/config.pbtxt"), &picky_config(instances), 1000);
    let settings = Settings { plugins: picky, ..settings(&[&place], ControlMode::Explicit) };
    let lifecycle = Lifecycle::new(settings);
    assert_eq!(lifecycle.start(), Ok(true));
    (place, lifecycle)
}

fn instances(lifecycle: &Arc<Lifecycle>, model: &str) -> Vec<usize> {
    let slot = lifecycle.slot(&ModelId { name: model.to_owned(), ..ModelId::default() });
    lock(&slot).running.values().map(|running| running.instance_names().len()).collect()
}

#[test]
fn instances_go_back_where_another_version_cannot_follow() {
    let (place, lifecycle) = repository("back", &[1, 2], 2);
    lifecycle.load("back", vec![]).unwrap();
    let before = [1, 2].map(|version| served(&lifecycle, "back", version));
    // A version that is new is loaded first, and ends with the change that fails.
    fs::create_dir_all(place.0.join("back/3")).unwrap();
    place.write_at("back/config.pbtxt", &picky_config(3), 900);
    let error = lifecycle.load("back", vec![]).unwrap_err();
    assert!(error.message.contains("version 2 has no third instance"), "{error}");
    assert_eq!(instances(&lifecycle, "back"), [2, 2]);
    // Their own threads drop them.
    eventually("the instances of the change end", || alive("back") == 4);
    let rows = states(&lifecycle, "back");
    let rows: Vec<_> = rows.iter().map(|(version, state, reason)| (*version, *state, reason.as_str())).collect();
    assert_eq!(rows, [(1, "READY", ""), (2, "READY", ""), (3, "UNAVAILABLE", "unloaded")]);
    for (version, before) in [1, 2].into_iter().zip(before) {
        assert!(Arc::ptr_eq(&before.scheduler, &served(&lifecycle, "back", version).scheduler));
    }
    place.write_at("back/config.pbtxt", &picky_config(1), 800);
    lifecycle.load("back", vec![]).unwrap();
    assert_eq!(instances(&lifecycle, "back"), [1, 1, 1]);
    eventually("the instances before the change end", || alive("back") == 3);
    end(&lifecycle);
    assert_eq!(alive("back"), 0);
}

#[test]
fn a_load_that_ends_while_the_server_ends_leaves_nothing() {
    let (_place, lifecycle) = repository("late", &[1], 1);
    let ((reached, was_reached), (go_on, goes_on)) = (channel(), channel());
    lock(&GATES).insert("late".to_owned(), (reached, goes_on));
    let (sender, outcome) = channel();
    lifecycle.spawn(move |lifecycle| sender.send(lifecycle.load("late", vec![])).unwrap()).unwrap();
    was_reached.recv().unwrap();
    lifecycle.refuse_changes();
    lifecycle.stop_scheduling();
    lifecycle.unload_all();
    go_on.send(()).unwrap();
    assert_eq!(outcome.recv().unwrap(), Err(Status::refused(RefusalReason::Exiting, "Server not ready")));
    assert_eq!((lifecycle.live_models(), alive("late")), (0, 0));
    assert_eq!(states(&lifecycle, "late"), [(1, "UNAVAILABLE", "unloaded".to_owned())]);
}

/// The load has found that the server goes on, and then the server ends before the load has left its slot.
#[test]
fn versions_that_appear_while_the_server_ends_are_ended() {
    let (_place, lifecycle) = repository("appears", &[1], 2);
    lifecycle.load("appears", vec![]).unwrap();
    let id = ModelId { name: "appears".to_owned(), ..ModelId::default() };
    lifecycle
        .with_slot(&id, |_| {
            lifecycle.refuse_changes();
            lifecycle.unload_all();
            assert_eq!((lifecycle.live_models(), alive("appears")), (0, 2), "the slot is held");
        })
        .unwrap();
    eventually("its instances end", || alive("appears") == 0 && lifecycle.live_models() == 0);
}

#[test]
fn a_version_is_unloading_until_the_last_of_its_unloads_is_over() {
    let (_place, lifecycle) = repository("twice", &[1], 1);
    let mut held = Vec::new();
    for _ in 0..3 {
        lifecycle.load("twice", vec![]).unwrap();
        held.push(served(&lifecycle, "twice", 1));
        lifecycle.unload("twice", false).unwrap();
    }
    assert_eq!((lifecycle.live_models(), alive("twice")), (3, 3));
    // In another order than they began.
    for at in [1, 0] {
        drop(held.remove(at));
        let left = held.len();
        eventually("one of them ends", || lifecycle.live_models() == left);
        assert_eq!(states(&lifecycle, "twice"), [(1, "UNLOADING", String::new())]);
    }
    held.clear();
    eventually("the last one ends", || lifecycle.live_models() == 0);
    assert_eq!(states(&lifecycle, "twice"), [(1, "UNAVAILABLE", "unloaded".to_owned())]);
    assert_eq!(alive("twice"), 0);
    end(&lifecycle);
}

/// An ensemble is in the graph as it serves, also after a load that failed.
#[test]
fn the_graph_is_what_serves_after_a_load_that_failed() {
    let (place, lifecycle) = repository("part", &[1], 1);
    let ensemble = |part: &str, more: &str| {
        config(&format!(
            "platform: \"ensemble\"\nensemble_scheduling {{ step [ {{ model_name: \"{part}\" model_version: -1\n\
             input_map {{ key: \"INPUT0\" value: \"INPUT0\" }}\n\
             output_map {{ key: \"OUTPUT0\" value: \"OUTPUT0\" }} }} ] }}\n{more}"
        ))
        .replace("backend: \"identity\"\n", "")
    };
    place.model("e", &[1], "");
    place.write_at("e/config.pbtxt", &ensemble("part", ""), 1000);
    place.model("other", &[1], "");
    lifecycle.load("other", vec![]).unwrap();
    lifecycle.load("part", vec![]).unwrap();
    lifecycle.load("e", vec![]).unwrap();
    let parts = || {
        let id = ModelId { name: "e".to_owned(), ..ModelId::default() };
        lock(&lifecycle.graph).parts(&id).join(" ")
    };
    assert_eq!(parts(), "part");
    // Once with a part that is not there, which is found before anything is loaded, once with warm-up that fails.
    place.write_at("e/config.pbtxt", &ensemble("nobody", ""), 900);
    lifecycle.load("e", vec![]).unwrap_err();
    assert_eq!(parts(), "part");
    let warmup = "model_warmup [ { name: \"w\" inputs { key: \"INPUT0\" value: { data_type: TYPE_INT8 dims: 1 \
                  input_data_file: \"absent\" } } } ]";
    place.write_at("e/config.pbtxt", &ensemble("other", warmup), 800);
    lifecycle.load("e", vec![]).unwrap_err();
    assert_eq!(parts(), "part");
    place.write_at("e/config.pbtxt", &ensemble("other", ""), 700);
    lifecycle.load("e", vec![]).unwrap();
    assert_eq!(parts(), "other");
    lifecycle.unload("e", false).unwrap();
    assert_eq!(parts(), "");
    end(&lifecycle);
}
