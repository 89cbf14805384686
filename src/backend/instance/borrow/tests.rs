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
    answers_last: bool,
    runs: Arc<AtomicUsize>,
}

impl Instance for Counted {
    fn mobility(&self) -> Mobility {
        self.mobility
    }

    fn answers_last(&self) -> bool {
        self.answers_last
    }

    fn execute(&mut self, _payload: &mut Payload) -> Result<(), Status> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

fn borrowable(mobilities: &[Mobility], run_to_completion: RunToCompletion) -> (WorkerInstances, Arc<AtomicUsize>) {
    with_scheduling(mobilities, run_to_completion, None)
}

fn with_scheduling(
    mobilities: &[Mobility],
    run_to_completion: RunToCompletion,
    scheduling_choice: Option<SchedulingChoice>,
) -> (WorkerInstances, Arc<AtomicUsize>) {
    let config = ModelConfig { name: "m".into(), scheduling_choice, ..Default::default() };
    let context = InstanceContext::new("m", Arc::new(ModelSpec::new(config.clone()).unwrap()), model_context(&config));
    let (borrowable, runs) = (WorkerInstances::default(), Arc::<AtomicUsize>::default());
    let member = |&mobility: &Mobility| {
        let instance: Box<dyn Instance> = Box::new(Counted { mobility, answers_last: false, runs: Arc::clone(&runs) });
        (instance, context.clone())
    };
    borrowable.open(mobilities.iter().map(member).collect(), run_to_completion);
    (borrowable, runs)
}

#[test]
fn what_is_lent_is_for_backend_and_operator_to_say() {
    use Mobility::{Bound, Free, FreeIfAsked, FreeIfShort};
    let rows: [(&[Mobility], RunToCompletion, (bool, bool)); 13] = [
        (&[Free], RunToCompletion::Off, (false, false)),
        (&[Free], RunToCompletion::Declared, (true, true)),
        (&[Free], RunToCompletion::Measured, (true, true)),
        (&[Bound], RunToCompletion::Measured, (false, false)),
        (&[FreeIfShort], RunToCompletion::Declared, (false, false)),
        (&[Free], RunToCompletion::Auto, (true, true)),
        (&[FreeIfShort], RunToCompletion::Auto, (true, false)),
        (&[FreeIfShort], RunToCompletion::Measured, (true, false)),
        (&[FreeIfAsked], RunToCompletion::Auto, (false, false)),
        (&[FreeIfAsked], RunToCompletion::Measured, (true, false)),
        (&[FreeIfShort, FreeIfAsked], RunToCompletion::Auto, (false, false)),
        // All instances that share the thread must allow it.
        (&[Free, Bound], RunToCompletion::Declared, (false, false)),
        (&[], RunToCompletion::Declared, (false, false)),
    ];
    for (mobilities, run_to_completion, expected) in rows {
        let (borrowable, _) = borrowable(mobilities, run_to_completion);
        assert_eq!(
            (borrowable.is_offered(), borrowable.borrow(|| 0).is_some()),
            expected,
            "{mobilities:?} {run_to_completion:?}"
        );
    }
}

#[test]
fn a_worker_answers_last_if_all_its_instances_declare_it() {
    let config = ModelConfig { name: "m".into(), ..Default::default() };
    let context = InstanceContext::new("m", Arc::new(ModelSpec::new(config.clone()).unwrap()), model_context(&config));
    let rows: [(&[bool], bool); 4] = [(&[true, true], true), (&[true, false], false), (&[false], false), (&[], false)];
    for (declared, expected) in rows {
        let member = |&answers_last: &bool| {
            let instance: Box<dyn Instance> =
                Box::new(Counted { mobility: Mobility::Bound, answers_last, runs: Arc::default() });
            (instance, context.clone())
        };
        let instances = WorkerInstances::default();
        instances.open(declared.iter().map(member).collect(), RunToCompletion::Auto);
        assert_eq!(instances.answer_last(), expected, "{declared:?}");
    }
}

#[test]
fn batches_form_unless_the_operator_says_otherwise() {
    for (run_to_completion, is_offered) in [(RunToCompletion::Auto, false), (RunToCompletion::Measured, true)] {
        let batcher = Some(SchedulingChoice::DynamicBatching(Default::default()));
        let (borrowable, _) = with_scheduling(&[Mobility::FreeIfShort], run_to_completion, batcher);
        assert_eq!(borrowable.is_offered(), is_offered, "{run_to_completion:?}");
    }
}

/// The clock decides how many runs it takes.
#[test]
fn short_runs_of_the_worker_let_shards_borrow() {
    let (borrowable, runs) = borrowable(&[Mobility::FreeIfShort], RunToCompletion::Measured);
    assert!(borrowable.borrow(|| 0).is_none());
    while borrowable.borrow(|| 0).is_none() {
        borrowable.run(Payload::default());
    }
    assert!(runs.load(Ordering::SeqCst) >= 100);
    assert!(borrowable.borrow(|| 1).is_none(), "no request of that size was short");
    let mut judge = Judge::new(20_000);
    borrowable.heed(Verdict::Lost, &mut judge);
    assert!(borrowable.borrow(|| 0).is_none());
    borrowable.heed(Verdict::Earned, &mut judge);
    assert!(borrowable.borrow(|| 0).is_some());
    borrowable.close();
    borrowable.heed(Verdict::Earned, &mut judge);
    assert!(!borrowable.is_offered(), "what has left stays away");
}

#[test]
fn one_runs_at_a_time_and_a_borrower_never_waits() {
    let (borrowable, runs) = borrowable(&[Mobility::Free], RunToCompletion::Declared);
    let borrowed = borrowable.borrow(|| 0).unwrap();
    assert!(borrowable.borrow(|| 0).is_none());
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
    assert!(borrowable.borrow(|| 0).is_some());
    assert_eq!(borrowable.close().len(), 1);
    assert!(borrowable.borrow(|| 0).is_none(), "the instances are gone");
}

/// Shards that borrow all the time leave the lock free only for moments.
#[test]
fn a_worker_that_waits_comes_next() {
    let (borrowable, runs) = borrowable(&[Mobility::Free], RunToCompletion::Declared);
    let borrowed = borrowable.borrow(|| 0).unwrap();
    std::thread::scope(|scope| {
        let borrowable = &borrowable;
        scope.spawn(move || borrowable.run(Payload::default()));
        while !borrowable.worker_wants.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        drop(borrowed);
        // Until the worker has the lock nobody else gets it; then its run has begun.
        let next = loop {
            match borrowable.borrow(|| 0) {
                Some(next) => break next,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(runs.load(Ordering::SeqCst), 1, "the worker's run comes before the borrower's");
        next.run(Payload::default());
    });
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}
