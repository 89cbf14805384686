//! Instances on devices of the simulated driver.

use super::*;
use crate::ExecutionPolicy;
use nereid_gpu::simulated::{Simulated, Spec};
use nereid_gpu::{DriverError, Settings};
use nereid_observe::statistics::Execution;
use nereid_scheduler::{Verdict, wait_for_all};

fn devices(count: usize, settings: &Settings) -> Arc<Gpus> {
    Gpus::with(Arc::new(Simulated::new(Spec::prompt(count, 1))), settings)
}

fn on(gpus: &[i32], count: i32) -> ModelInstanceGroup {
    ModelInstanceGroup { kind: Kind::Gpu.into(), gpus: gpus.to_vec(), ..group("g", count) }
}

fn plan_on(
    gpus: &Arc<Gpus>,
    groups: &[ModelInstanceGroup],
    create: impl Fn(&InstanceContext) -> Made + Send + Sync + 'static,
) -> Plan {
    let mut plan = plan(groups, create);
    plan.context = model_context_on(Arc::clone(gpus), &plan.spec.config);
    plan
}

fn broken() -> DriverError {
    let text = "an illegal memory access was encountered".to_owned();
    DriverError { call: "cuEventQuery", code: 700, name: "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned(), text }
}

const BROKEN: &str = "cuEventQuery failed: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered";

#[test]
fn a_group_has_its_instances_on_each_device() {
    let gpus = devices(3, &Settings::default());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let plan = plan_on(&gpus, &[on(&[2, 0], 2), group("c", 1)], {
        let seen = Arc::clone(&seen);
        move |context| {
            let gpu = context.gpu.as_ref().map(nereid_gpu::Gpu::id);
            let policy = context.host_policy.name.clone();
            lock(&seen).push((context.name.clone(), context.ordinal, context.kind, context.device, gpu, policy));
            context.report_batch(1, &Execution::default());
            Log::default().instance(context, answer)
        }
    });
    let (instances, source) = started(&plan);
    assert_eq!(instances.names(), ["g_0", "g_0", "g_1", "g_1", "c_0"]);
    let placed = |name: &str, ordinal, device: i32| {
        (name.to_owned(), ordinal, Kind::Gpu, device, Some(device), format!("gpu_{device}"))
    };
    let on_gpus = [placed("g_0", 0, 2), placed("g_0", 1, 0), placed("g_1", 2, 2), placed("g_1", 3, 0)];
    assert_eq!(lock(&seen)[..4], on_gpus);
    assert_eq!(lock(&seen)[4], ("c_0".to_owned(), 4, Kind::Cpu, 0, None, "cpu".to_owned()));
    // Each device counts for itself; the rest is the model's.
    let statistics = &plan.context.statistics;
    let counts: Vec<_> =
        statistics.devices().iter().map(|one| (one.uuid.to_string(), one.counters.execution_count)).collect();
    let uuid = |id| gpus.get(id).unwrap().description().uuid.clone();
    let mut expected = vec![(uuid(0), 2), (uuid(2), 2)];
    expected.sort();
    assert_eq!(counts, expected);
    assert_eq!((statistics.counters().execution_count, statistics.snapshot().execution_count), (1, 5));
    // A change of the number alone keeps the present instances on both devices.
    let more = Plan { context: Arc::clone(&plan.context), ..regrouped(&plan, &[on(&[2, 0], 3), group("c", 1)]) };
    instances.update(&more).unwrap();
    assert_eq!(lock(&seen)[5..], [placed("g_2", 5, 2), placed("g_2", 6, 0)]);
    assert_eq!(instances.names(), ["g_0", "g_0", "g_1", "g_1", "g_2", "g_2", "c_0"]);
    source.stop();
    instances.join();
}

#[test]
fn instances_of_a_device_take_turns_on_its_thread() {
    let log = Log::default();
    let gpus = devices(2, &Settings::default());
    let mut plan = plan_on(&gpus, &[on(&[1], 2)], {
        let log = log.clone();
        move |context| log.instance(context, answer)
    });
    plan.attributes.execution_policy = ExecutionPolicy::DeviceBlocking;
    let (instances, source) = started(&plan);
    assert_eq!(lock(&instances.running).len(), 1);
    assert_eq!(instances.names(), ["g_0", "g_1"]);
    (0..3).for_each(|_| assert_eq!(source.submit().recv().unwrap(), Ok(())));
    let lines = log.take();
    assert_eq!(lines[..2], ["create g_0 on m_gpu1", "create g_1 on m_gpu1"]);
    assert_eq!(lines[2..], ["g_0", "g_1", "g_0"].map(|name| format!("execute {name} on m_gpu1")));
    assert_eq!(keep(&lock(&instances.running), &groups::instance_specs(&plan.spec)), [None, None], "never kept");
    source.stop();
    instances.join();
    // Both devices: a thread each.
    plan.spec = regrouped(&plan, &[on(&[0, 1], 2)]).spec;
    let (instances, source) = started(&plan);
    assert_eq!(lock(&instances.running).len(), 2);
    source.stop();
    instances.join();
}

/// contract/schedulers.md section 10, "GPU limit".
#[test]
fn a_device_whose_memory_is_in_use_takes_no_more_instances() {
    let limits = Settings { load_limits: [(0, 0.01), (1, 1.0)].into(), ..Settings::default() };
    let gpus = devices(2, &limits);
    // The memory of an instance counts for the check of the next one.
    let kept = Arc::new(Mutex::new(Vec::new()));
    let plan = plan_on(&gpus, &[on(&[1], 1), ModelInstanceGroup { name: "h".into(), ..on(&[0], 2) }], {
        let kept = Arc::clone(&kept);
        move |context| {
            lock(&kept).push(context.gpu.as_ref().unwrap().allocate(128 << 20).unwrap());
            Log::default().instance(context, answer)
        }
    });
    let text = "can not create model 'h_1': memory limit set for GPU 0 has exceeded, model loading is rejected.";
    assert_eq!(start(&plan).0.unwrap_err(), Status::unavailable(text));
    assert_eq!(lock(&kept).len(), 2);
}

#[test]
fn a_device_that_is_lost_fails_its_instances_and_says_so() {
    let gpus = devices(2, &Settings::default());
    let log = Log::default();
    let plan = plan_on(&gpus, &[on(&[1], 1)], {
        let log = log.clone();
        move |context| log.instance(context, answer)
    });
    let (instances, source) = started(&plan);
    let checks = Arc::clone(instances.checks());
    assert_eq!(source.submit().recv().unwrap(), Ok(()));
    gpus.get(0).unwrap().record_failure(&broken());
    assert!(!checks.is_needed() && source.submit().recv().unwrap().is_ok(), "another device");
    log.take();
    gpus.get(1).unwrap().record_failure(&broken());
    let refused = Status::unavailable(format!("instance 'g_0' is on GPU 1, which is lost to the server: {BROKEN}"));
    assert_eq!(source.submit().recv().unwrap(), Err(refused.clone()));
    assert!(log.take().is_empty(), "nobody executes it");
    let loss = format!("GPU 1 is lost to the server: {BROKEN}");
    assert!(checks.is_needed());
    assert_eq!(checks.objection(), Some(loss.clone()));
    let verdict = Verdict::NotReady(Status::unavailable(loss));
    assert_eq!(wait_for_all(&[Arc::clone(&checks)], false), verdict);
    assert_eq!(start(&plan).0.unwrap_err(), refused, "and nobody comes any more");
    // What moves away is ready again.
    let away = regrouped(&plan, &[group("c", 1)]);
    instances.update(&Plan { context: Arc::clone(&plan.context), ..away }).unwrap();
    assert_eq!(wait_for_all(&[checks], false), Verdict::Ready);
    assert_eq!(source.submit().recv().unwrap(), Ok(()));
    source.stop();
    instances.join();
}

#[test]
fn an_instance_for_a_device_that_is_not_used_fails_its_load() {
    let plan = plan_on(&Arc::default(), &[on(&[1], 1)], |_| panic!("no device"));
    let text = "instance 'g_0' is for GPU 1, which the server does not use";
    assert_eq!(start(&plan).0.unwrap_err(), Status::internal(text));
}
