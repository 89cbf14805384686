//! Which instances are defined, which are kept, and on which threads.

use super::*;
use nereid_model_config::parse;

fn group(name: &str, kind: Kind, count: i32) -> ModelInstanceGroup {
    ModelInstanceGroup { name: name.into(), kind: kind.into(), count, ..Default::default() }
}

fn spec(name: &str, groups: Vec<ModelInstanceGroup>) -> ModelSpec {
    let config =
        nereid_wire::inference::ModelConfig { name: name.into(), instance_group: groups, ..Default::default() };
    ModelSpec::new(config).unwrap()
}

fn instance_spec(name: &str, kind: Kind, device: i32) -> InstanceSpec {
    InstanceSpec { name: name.into(), key: InstanceKey { group: group("", kind, 0), device }, group: 0 }
}

/// Names of the instances of each thread.
fn shared(instance_specs: Vec<InstanceSpec>, policy: ExecutionPolicy, spec: &ModelSpec) -> Vec<Vec<String>> {
    let names = |thread_plan: ThreadPlan| thread_plan.instance_specs.into_iter().map(|spec| spec.name).collect();
    plan_threads(instance_specs, policy, spec).into_iter().map(names).collect()
}

#[test]
fn keys_ignore_names_and_counts_only() {
    let two = instance_specs(&spec(
        "m",
        vec![group("a", Kind::Cpu, 2), group("b", Kind::Cpu, 1), group("c", Kind::Model, 1)],
    ));
    assert_eq!(two.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>(), ["a_0", "a_1", "b_0", "c_0"]);
    assert_eq!(two[0].key, two[1].key);
    assert_eq!(two[0].key, two[2].key);
    assert_ne!(two[0].key, two[3].key);
    for text in [
        "passive: true",
        "host_policy: \"p\"",
        "profile: \"1\"",
        "rate_limiter { priority: 2 }",
        "secondary_devices { device_id: 1 }",
        "gpus: 1",
    ] {
        let text = format!("name: \"m\" instance_group {{ name: \"a\" count: 1 kind: KIND_CPU {text} }}");
        let document = parse("config.pbtxt", text.as_bytes()).unwrap();
        let config = nereid_model_config::from_dynamic(&document.message).unwrap();
        let other = instance_specs(&ModelSpec::new(config).unwrap());
        assert_ne!(two[0].key, other[0].key, "{text}");
    }
    let same = InstanceKey { device: 1, ..two[0].key.clone() };
    assert_ne!(two[0].key, same, "another device");
}

#[test]
fn policies_are_named_by_the_group_or_by_the_kind() {
    for (kind, device, name) in [(Kind::Cpu, 0, "cpu"), (Kind::Model, 0, "model"), (Kind::Gpu, 3, "gpu_3")] {
        assert_eq!(instance_spec("i", kind, device).key.policy(), name);
    }
    let mut named = instance_spec("i", Kind::Cpu, 0);
    named.key.group.host_policy = "mine".into();
    assert_eq!(named.key.policy(), "mine");
}

#[test]
fn gpu_instances_of_a_device_share_a_thread_where_devices_are_blocked() {
    let spec = spec("m", vec![]);
    let all = || {
        let mut passive = instance_spec("p", Kind::Gpu, 0);
        passive.key.group.passive = true;
        vec![
            instance_spec("a", Kind::Gpu, 0),
            instance_spec("c", Kind::Cpu, 0),
            instance_spec("b", Kind::Gpu, 1),
            instance_spec("a", Kind::Gpu, 0),
            instance_spec("d", Kind::Cpu, 0),
            instance_spec("b2", Kind::Gpu, 1),
            passive,
        ]
    };
    let alone = ["a", "c", "b", "a", "d", "b2", "p"].map(|name| vec![name.to_owned()]);
    assert_eq!(shared(all(), ExecutionPolicy::Blocking, &spec), alone);
    let blocked = shared(all(), ExecutionPolicy::DeviceBlocking, &spec);
    assert_eq!(blocked, [vec!["a", "a"], vec!["c"], vec!["b", "b2"], vec!["d"], vec!["p"]]);
    let thread_plans = plan_threads(all(), ExecutionPolicy::DeviceBlocking, &spec);
    let names: Vec<_> =
        thread_plans.iter().map(|thread_plan| (thread_plan.thread_name.as_str(), thread_plan.is_device)).collect();
    assert_eq!(names, [("m_gpu0", true), ("c", false), ("m_gpu1", true), ("d", false), ("p", false)]);
    assert_eq!(thread_plans.iter().map(|plan| plan.is_passive).collect::<Vec<_>>(), [false, false, false, false, true]);

    let mut sequences = spec.clone();
    sequences.config.scheduling_choice = Some(SchedulingChoice::SequenceBatching(Default::default()));
    assert_eq!(shared(all(), ExecutionPolicy::DeviceBlocking, &sequences), alone, "a sequence stays with its instance");

    let mut elsewhere = instance_spec("e", Kind::Gpu, 0);
    elsewhere.key.group.host_policy = "far".into();
    let two = shared(vec![instance_spec("a", Kind::Gpu, 0), elsewhere], ExecutionPolicy::DeviceBlocking, &spec);
    assert_eq!(two, [["a"], ["e"]], "a thread has one policy");
}

#[test]
fn threads_bear_names_that_fit() {
    let name_in = |model: &str, name: &str, group: usize| {
        thread_name(&InstanceSpec { group, ..instance_spec(name, Kind::Cpu, 0) }, model)
    };
    assert_eq!(name_in("m", "m_0_1", 0), "m_0_1");
    assert_eq!(name_in("resnet50", "resnet50_0_1023", 0), "resnet50_0_1023", "just fits");
    assert_eq!(name_in("recommendation", "recommendation_0_1", 0), "recommendat_0_1");
    assert_eq!(name_in("recommendation", "recommendation_0", 0), "recommendatio_0", "a synthesised group");
    assert_eq!(name_in("m", "on_the_first_socket_1", 0), "on_the_firs_0_1");
    assert_eq!(name_in("m", "on_the_first_but_one_1", 2), "on_the_firs_2_1", "groups are told apart");
    assert_eq!(name_in("größenordnungen", "größenordnungen_0_0", 0), "größenord_0_0", "cut between characters");
    for (model, name) in [("x", "________________"), ("größenordnungen", "größenordnungen_1023_1023"), ("", "")] {
        assert!(name_in(model, name, 1023).len() <= THREAD_NAME_BYTES_MAX);
    }
}
