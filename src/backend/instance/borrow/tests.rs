//! Which threads may run an instance, and until when.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::channel;

use super::*;
use crate::instance::tests::model_context;
use nereid_model_config::ModelSpec;
use nereid_wire::inference::ModelConfig;

struct Counted {
    mobility: Mobility,
    runs: Arc<AtomicUsize>,
}

impl Instance for Counted {
    fn mobility(&self) -> Mobility {
        self.mobility
    }

    fn execute(&mut self, _payload: &mut Payload) -> Result<(), Status> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

fn borrowable(mobilities: &[Mobility], run_to_completion: RunToCompletion) -> (WorkerInstances, Arc<AtomicUsize>) {
    let config = ModelConfig { name: "m".into(), ..Default::default() };
    let context = InstanceContext::new("m", Arc::new(ModelSpec::new(config.clone()).unwrap()), model_context(&config));
    let (borrowable, runs) = (WorkerInstances::default(), Arc::<AtomicUsize>::default());
    let member = |&mobility: &Mobility| {
        let instance: Box<dyn Instance> = Box::new(Counted { mobility, runs: Arc::clone(&runs) });
        (instance, context.clone())
    };
    borrowable.open(mobilities.iter().map(member).collect(), run_to_completion);
    (borrowable, runs)
}

#[test]
fn what_is_lent_is_for_backend_and_operator_to_say() {
    use Mobility::{Bound, Free, FreeIfShort};
    let rows: [(&[Mobility], RunToCompletion, (bool, bool)); 8] = [
        (&[Free], RunToCompletion::Off, (false, false)),
        (&[Free], RunToCompletion::Declared, (true, true)),
        (&[Free], RunToCompletion::Measured, (true, true)),
        (&[Bound], RunToCompletion::Measured, (false, false)),
        (&[FreeIfShort], RunToCompletion::Declared, (false, false)),
        (&[FreeIfShort], RunToCompletion::Measured, (true, false)),
        // All instances that share the thread must allow it.
        (&[Free, Bound], RunToCompletion::Declared, (false, false)),
        (&[], RunToCompletion::Declared, (false, false)),
    ];
    for (mobilities, run_to_completion, expected) in rows {
        let (borrowable, _) = borrowable(mobilities, run_to_completion);
        assert_eq!(
            (borrowable.is_offered(), borrowable.borrow().is_some()),
            expected,
            "{mobilities:?} {run_to_completion:?}"
        );
    }
}

#[test]
fn short_runs_earn_it_and_one_long_run_ends_it() {
    let (borrowable, _) = borrowable(&[Mobility::FreeIfShort], RunToCompletion::Measured);
    (1..SHORT_RUNS_MIN).for_each(|_| borrowable.judge(MEASURED, LONGEST_RUN_NS));
    assert!(borrowable.borrow().is_none());
    borrowable.judge(MEASURED, LONGEST_RUN_NS + 1);
    (1..SHORT_RUNS_MIN).for_each(|_| borrowable.judge(MEASURED, 0));
    assert!(borrowable.borrow().is_none(), "a long run starts the count again");
    borrowable.judge(MEASURED, 0);
    assert!(borrowable.borrow().is_some());
    borrowable.judge(EARNED, LONGEST_RUN_NS);
    assert!(borrowable.borrow().is_some());
    borrowable.judge(EARNED, LONGEST_RUN_NS + 1);
    assert!(borrowable.borrow().is_none());
    (0..2 * SHORT_RUNS_MIN).for_each(|_| borrowable.run(Payload::default()));
    assert!(borrowable.borrow().is_none(), "for good");
}

#[test]
fn one_runs_at_a_time_and_a_borrower_never_waits() {
    let (borrowable, runs) = borrowable(&[Mobility::Free], RunToCompletion::Declared);
    let borrowed = borrowable.borrow().unwrap();
    assert!(borrowable.borrow().is_none());
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        let (borrowable, runs) = (&borrowable, &runs);
        scope.spawn(move || {
            tell.send(()).unwrap();
            borrowable.run(Payload::default());
            assert_eq!(runs.load(Ordering::SeqCst), 2, "the worker waited for the borrower");
        });
        told.recv().unwrap();
        borrowed.run(Payload::default());
    });
    assert!(borrowable.borrow().is_some());
    assert_eq!(borrowable.close().len(), 1);
    assert!(borrowable.borrow().is_none(), "the instances are gone");
}
