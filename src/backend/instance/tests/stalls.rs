//! Instances that stall, and the readiness that reports it.

use std::time::Duration;

use super::*;
use nereid_scheduler::{Verdict, wait_for_all};

fn wait_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A model in native code whose executions return when the test lets them: the one that takes longer than the limit is
/// a stall, and the model is ready as long as another instance goes on.
#[test]
fn an_execution_that_does_not_return_is_a_stall_until_it_does() {
    let (release, gate) = channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let mut plan = plan(&[group("m_0", 2)], move |context| {
        let gate = Arc::clone(&gate);
        Log::default().instance(context, move |payload| {
            let _ = lock(&gate).recv();
            answer(payload)
        })
    });
    let watch = StallWatch::new(Duration::from_millis(40));
    plan.stalls = Some(Arc::clone(&watch));
    let (instances, source) = started(&plan);
    let checks = Arc::clone(instances.checks());
    let stalls = || {
        let count = Mutex::new(0.0);
        plan.context.metrics.read("nereid_instance_stalls", |_, value| *lock(&count) = value);
        *lock(&count)
    };
    let first = source.submit();
    wait_until(|| stalls() == 1.0);
    assert_eq!((checks.objection(), checks.is_needed()), (None, false), "the other one can work");
    let second = source.submit();
    wait_until(|| checks.objection().is_some());
    assert_eq!(stalls(), 2.0);
    assert!(matches!(wait_for_all(&[Arc::clone(&checks)], false), Verdict::NotReady(_)));
    release.send(()).unwrap();
    wait_until(|| checks.objection().is_none());
    assert_eq!(wait_for_all(&[Arc::clone(&checks)], false), Verdict::Ready);
    release.send(()).unwrap();
    assert_eq!([first.recv().unwrap(), second.recv().unwrap()], [Ok(()), Ok(())]);
    source.stop();
    instances.join();
    assert_eq!(checks.objection(), None);
}
