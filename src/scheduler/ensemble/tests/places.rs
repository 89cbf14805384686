//! Where steps are executed and where a request is advanced: its shard, within the budget of a turn, and workers.

use std::sync::Barrier;

use super::super::hand_over::HandOver;
use super::super::turn::counts;
use super::super::turn::{STEPS_AT_ONCE, begin_turn, executed, is_spent};
use super::*;
use crate::mutants::{self, Mutant};
use crate::{More, Payload};
use nereid_request::CorrelationId;

const CHAIN: [&str; 3] = ["p I=X -> O=A", "q I=A -> O=B", "r I=B -> O=Y"];

/// Runs a test on a thread of its own, which is a shard from the first turn on. Its stack is small: no request may need
/// more for more steps.
fn on_shard(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(512 << 10).spawn(test).unwrap();
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn chain() -> Bench {
    chain_with("")
}

fn chain_with(scheduling: &str) -> Bench {
    let parts = ["p", "q", "r"].map(|name| model(name, "I", "O", "")).to_vec();
    Bench::new(ensemble("X", "Y", &CHAIN, "", scheduling), parts)
}

impl Bench {
    fn runs_here(&self, parts: &[&str]) {
        parts.iter().for_each(|part| self.part(part).runs_here.store(true, Ordering::Relaxed));
    }

    fn send_on_shard(&self, key: u64) -> Ticket {
        let mut request = request_to(&self.spec, &self.client, key, &[("X", "x")]);
        request.ingress.is_on_shard = true;
        self.hand_in(request)
    }

    /// A worker executes the oldest request of a part; `behind` happens between its answer and its return.
    fn execute(&self, part: &str, behind: impl FnOnce()) {
        self.execute_with(part, behind, |part, request| request.finish(response_of(part, &request, "")));
    }

    fn execute_with(&self, part: &str, behind: impl FnOnce(), answer: impl FnOnce(&Part, Box<Request>)) {
        self.execute_on(part, true, behind, answer);
    }

    /// `answers_last`: what the instance declares.
    fn execute_on(
        &self,
        part: &str,
        answers_last: bool,
        behind: impl FnOnce(),
        answer: impl FnOnce(&Part, Box<Request>),
    ) {
        let part = self.part(part);
        let mut payload = Payload::default();
        payload.push(part.take().expect("a request waits"));
        let hand_over = HandOver::of(&payload, answers_last);
        answer(&part, payload.take_only().unwrap());
        behind();
        hand_over.finish();
    }

    fn jobs(&self) -> usize {
        lock(&self.client.jobs).len()
    }
}

fn long_chain(length: usize) -> Bench {
    let tensor = |at: usize| match at {
        0 => "X".to_owned(),
        at if at == length => "Y".to_owned(),
        at => format!("T{at}"),
    };
    let steps: Vec<String> = (0..length).map(|at| format!("p I={} -> O={}", tensor(at), tensor(at + 1))).collect();
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    Bench::new(ensemble("X", "Y", &steps, "", ""), vec![model("p", "I", "O", "")])
}

fn answer_of_chain(length: usize) -> String {
    format!("Y={}x{}.", "p.O(".repeat(length), ")".repeat(length))
}

#[test]
fn a_turn_ends_by_the_count_of_its_steps_and_by_their_time() {
    on_shard(|| {
        begin_turn();
        (0..STEPS_AT_ONCE).for_each(|_| {
            assert!(!is_spent());
            executed(1);
        });
        assert!(is_spent());
        begin_turn();
        assert!(!is_spent());
        executed(u64::MAX);
        assert!(is_spent());
    });
}

#[test]
fn a_shard_executes_a_long_chain_turn_by_turn() {
    on_shard(|| {
        const STEPS: usize = 1_000;
        let bench = long_chain(STEPS);
        bench.runs_here(&["p"]);
        begin_turn();
        let ticket = bench.send_on_shard(1);
        bench.client.work_all();
        let mut turns = 1;
        let mut steps = counts::take().steps_of_shards;
        loop {
            assert!((1..=u64::from(STEPS_AT_ONCE)).contains(&steps), "{steps} steps in turn {turns}");
            if !bench.answered(1).is_empty() {
                break;
            }
            assert!(bench.client.turn(), "turn {turns} is the last");
            turns += 1;
            steps = counts::take().steps_of_shards;
        }
        assert_eq!(turns, STEPS.div_ceil(STEPS_AT_ONCE as usize));
        assert_eq!(bench.answered(1), answer_of_chain(STEPS));
        assert!(!bench.client.turn(), "nothing is left to do");
        drop(ticket);
        assert_eq!(bench.runs(), 0);
    });
}

#[test]
fn requests_of_a_shard_share_its_turn() {
    on_shard(|| {
        let bench = long_chain(100);
        bench.runs_here(&["p"]);
        begin_turn();
        let _tickets: Vec<_> = (0..5).map(|key| bench.send_on_shard(key)).collect();
        bench.client.work_all();
        assert!(counts::take().steps_of_shards <= u64::from(STEPS_AT_ONCE));
        while bench.client.turn() {
            assert!(counts::take().steps_of_shards <= u64::from(STEPS_AT_ONCE));
        }
        (0..5).for_each(|key| assert_eq!(bench.answered(key), answer_of_chain(100)));
    });
}

#[test]
fn a_spent_turn_puts_off_no_step_that_only_workers_execute() {
    on_shard(|| {
        let bench = chain();
        bench.runs_here(&["q"]);
        begin_turn();
        (0..STEPS_AT_ONCE).for_each(|_| executed(1));
        let _ticket = bench.send_on_shard(1);
        assert_eq!(bench.waiting("p"), 1);
        bench.execute_on("p", false, || (), |part, request| request.finish(response_of(part, &request, "")));
        bench.client.work_all();
        assert_eq!((bench.waiting("q"), bench.waiting("r")), (0, 0), "the shard executes this one in its next turn");
        bench.client.turn();
        assert_eq!(bench.waiting("r"), 1);
    });
}

/// Its model may have been quick, or its answer was in a cache.
#[test]
fn a_step_that_is_answered_at_once_is_not_one_that_the_shard_executed() {
    on_shard(|| {
        let bench = chain();
        bench.part("p").is_quick.store(true, Ordering::Relaxed);
        begin_turn();
        let _ticket = bench.send_on_shard(1);
        assert_eq!((bench.waiting("q"), counts::take().steps_of_shards), (1, 0));
    });
}

#[test]
fn a_request_is_cancelled_between_two_turns() {
    on_shard(|| {
        let bench = long_chain(1_000);
        bench.runs_here(&["p"]);
        begin_turn();
        let ticket = bench.send_on_shard(1);
        bench.client.turn();
        assert_eq!(bench.answered(1), "");
        let before = lock(&bench.part("p").calls).values().sum::<usize>();
        bench.ensemble.cancel(&ticket).now();
        bench.client.turn();
        assert_eq!(bench.answered(1), "!in ensemble 'e', .");
        assert_eq!(lock(&bench.part("p").calls).values().sum::<usize>(), before, "no step begins any more");
        drop(ticket);
        bench.client.turn();
        assert_eq!(bench.runs(), 0);
    });
}

#[test]
fn only_steps_of_the_shards_own_requests_run_there() {
    on_shard(|| {
        let bench = chain();
        bench.runs_here(&["p", "q", "r"]);
        begin_turn();
        let _ticket = bench.send(1, &[("X", "x")]);
        assert_eq!(bench.waiting("p"), 1, "a request that is at home elsewhere");
        let mut request = request_to(&bench.spec, &bench.client, 2, &[("X", "x")]);
        request.ingress.is_on_shard = true;
        request.correlation_id = CorrelationId::Number(7);
        let _ticket = bench.hand_in(request);
        assert_eq!(bench.waiting("p"), 2, "requests of a sequence would overtake each other");
        bench.execute("p", || ());
        assert_eq!(bench.jobs(), 0, "the first request was handed over");
        assert_eq!(bench.waiting("q"), 0, "and was executed to its end by the worker");
        assert_eq!(bench.answered(1), "Y=r.O(q.O(p.O(x))).");
        bench.execute("p", || ());
        assert_eq!((bench.jobs(), bench.waiting("q")), (1, 0), "the sequence goes home");
        ["q", "r"].iter().for_each(|part| {
            bench.client.work_all();
            bench.execute(part, || ());
        });
        bench.client.work_all();
        assert_eq!(bench.answered(2), "Y=r.O(q.O(p.O(x))).");
    });
}

#[test]
fn a_worker_submits_the_step_that_needs_only_its_answer() {
    counts::take();
    let bench = chain();
    let ticket = bench.send(1, &[("X", "x")]);
    bench.execute("p", || assert_eq!((bench.waiting("q"), bench.jobs()), (0, 0), "not within its execution"));
    assert_eq!((bench.waiting("q"), bench.jobs()), (1, 0));
    bench.execute("q", || ());
    assert_eq!((bench.waiting("r"), bench.jobs()), (1, 0));
    bench.execute("r", || assert_eq!(bench.jobs(), 1, "the last answer goes home at once"));
    bench.client.work_all();
    assert_eq!(bench.answered(1), "Y=r.O(q.O(p.O(x))).");
    assert_eq!(counts::take().handed_over, 2);
    drop(ticket);
    assert_eq!(bench.runs(), 0);
}

#[test]
fn answers_of_a_batch_go_home() {
    let bench = chain();
    let _tickets = [1, 2].map(|key| bench.send(key, &[("X", "x")]));
    let part = bench.part("p");
    let mut payload = Payload::default();
    (0..2).for_each(|_| payload.push(part.take().unwrap()));
    let hand_over = HandOver::of(&payload, true);
    payload.take().into_iter().for_each(|request| request.finish(response_of(&part, &request, "")));
    assert_eq!(bench.jobs(), 2);
    hand_over.finish();
    bench.client.work_all();
    assert_eq!(bench.waiting("q"), 2);
}

/// An instance that runs the code of others may wait behind its answer, even for the next step.
#[test]
fn only_instances_that_declare_it_keep_a_request_behind_their_answer() {
    let bench = chain();
    let _ticket = bench.send(1, &[("X", "x")]);
    let until_submitted = || {
        assert_eq!(bench.jobs(), 1);
        bench.client.work_all();
        assert_eq!(bench.waiting("q"), 1, "the execution would never end");
    };
    let answer = |part: &Part, request: Box<Request>| request.finish(response_of(part, &request, ""));
    bench.execute_on("p", false, until_submitted, answer);
    assert_eq!((bench.waiting("q"), bench.jobs()), (1, 0), "it is submitted once");
}

#[test]
fn what_a_worker_keeps_goes_home_if_its_execution_goes_on() {
    let bench = chain();
    let _ticket = bench.send(1, &[("X", "x")]);
    bench.execute("p", || {
        assert!(Payload::default().with_more(More::new(|| None)).more().is_none());
        assert_eq!(bench.jobs(), 0, "no payload came, so that it returns now");
        assert!(Payload::default().with_more(More::new(|| Some(Payload::default()))).more().is_some());
        bench.client.work_all();
        assert_eq!(bench.waiting("q"), 1);
    });
    assert_eq!(bench.waiting("q"), 1, "it is submitted once");
}

#[test]
fn a_cancellation_takes_home_what_a_worker_keeps() {
    let bench = chain();
    let ticket = bench.send(1, &[("X", "x")]);
    bench.execute("p", || {
        bench.ensemble.cancel(&ticket).now();
        assert_eq!(bench.jobs(), 1);
        bench.client.work_all();
        // The answer was there before, so that the next step was asked for, and cancelled.
        bench.client.work_all();
    });
    bench.client.work_all();
    assert_eq!(bench.answered(1), "!in ensemble 'e', .");
    drop(ticket);
    lock(&bench.part("q").held).clear();
    assert_eq!(bench.runs(), 0);
}

/// Each step fails once, where a worker has it and where the shard executes those before it.
#[test]
fn an_error_of_any_step_is_the_answer() {
    on_shard(|| {
        let names = ["p", "q", "r"];
        for (failing, before) in [("p", &names[..0]), ("q", &names[..1]), ("r", &names[..2])] {
            for runs_here in [false, true] {
                let bench = chain_with("max_inflight_requests: 1");
                begin_turn();
                if runs_here {
                    bench.runs_here(before);
                }
                let ticket = bench.send_on_shard(1);
                if !runs_here {
                    before.iter().for_each(|part| bench.execute(part, || ()));
                }
                let fail = |_: &Part, request: Box<Request>| request.fail(Status::internal("it fails"));
                bench.execute_with(failing, || (), fail);
                bench.client.work_all();
                assert_eq!(bench.answered(1), "!in ensemble 'e', it fails.", "{failing}, here: {runs_here}");
                drop(ticket);
                assert_eq!(bench.runs(), 0);
                let limiters = bench.ensemble.0.limiters.iter().flatten();
                limiters.for_each(|limiter| assert_eq!(limiter.counts(), (0, 0)));
            }
        }
    });
}

#[test]
fn a_decoupled_step_in_the_midst_and_those_behind_it_are_left_to_workers() {
    on_shard(|| {
        const DECOUPLED: &str = "model_transaction_policy { decoupled: true }";
        let parts = vec![model("p", "I", "O", ""), model("q", "I", "O", DECOUPLED), model("r", "I", "O", "")];
        let bench = Bench::new(ensemble("X", "Y", &CHAIN, DECOUPLED, ""), parts);
        bench.runs_here(&["p", "q", "r"]);
        begin_turn();
        let ticket = bench.send_on_shard(1);
        assert_eq!((bench.waiting("q"), counts::take().steps_of_shards), (1, 1));
        let stream = |part: &Part, request: Box<Request>| {
            let responses = request.responses();
            (0..3).for_each(|at| responses.send(response_of(part, &request, &format!("#{at}")), at == 2));
        };
        bench.execute_with("q", || (), stream);
        bench.client.work_all();
        // The shard could execute it: but values behind a worker's would overtake it.
        assert_eq!((bench.waiting("r"), counts::take().steps_of_shards), (3, 0));
        (0..3).for_each(|_| bench.execute("r", || ()));
        bench.client.work_all();
        let response = |at: usize| format!("Y=r.O(q.O#{at}(p.O(x)))");
        let answered = bench.answered(1);
        let answered: Vec<_> = answered.trim_end_matches('.').split("; ").filter(|one| *one != "-").collect();
        assert_eq!(answered, [response(0), response(1), response(2)]);
        drop(ticket);
        assert_eq!(bench.runs(), 0);
    });
}

/// Both branches of a diamond are answered at the same time, and go on by themselves before they meet.
#[test]
fn two_workers_answer_steps_of_one_request_at_the_same_time() {
    let steps =
        ["t I=X -> O=A P=B", "l I=A -> O=C", "r I=B -> O=D", "m I=C -> O=E", "s I=D -> O=F", "j I=E J=F -> O=Y"];
    let parts = || {
        let single = ["l", "r", "m", "s"].map(|name| model(name, "I", "O", ""));
        [vec![model("t", "I", "O P", ""), model("j", "I J", "O", "")], single.to_vec()].concat()
    };
    let bench = Bench::new(ensemble("X", "Y", &steps, "", ""), parts());
    for key in 0..300 {
        let _ticket = bench.send(key, &[("X", "x")]);
        bench.execute("t", || ());
        for pair in [["l", "r"], ["m", "s"]] {
            bench.client.work_all();
            let both = Barrier::new(2);
            std::thread::scope(|scope| {
                for part in pair {
                    let (bench, both) = (&bench, &both);
                    scope.spawn(move || {
                        both.wait();
                        bench.execute(part, || ());
                    });
                }
            });
        }
        bench.client.work_all();
        assert_eq!(bench.waiting("j"), 1, "request {key}");
        bench.execute("j", || ());
        bench.client.work_all();
        assert_eq!(bench.answered(key), "Y=j.O(m.O(l.O(t.O(x))),s.O(r.O(t.P(x)))).");
    }
    assert_eq!(bench.runs(), 0);
}

#[test]
fn a_panic_ends_its_request_and_no_other() {
    on_shard(|| {
        let bench = chain_with("max_inflight_requests: 1");
        begin_turn();
        let mut tickets = vec![bench.send_on_shard(1)];
        let part = bench.part("q");
        part.panics.store(true, Ordering::Relaxed);
        bench.execute("p", || ());
        bench.client.work_all();
        assert_eq!(bench.answered(1), "!in ensemble 'e', the ensemble failed while it handled the request.");
        part.panics.store(false, Ordering::Relaxed);
        tickets.push(bench.send_on_shard(2));
        CHAIN.iter().for_each(|step| {
            bench.execute(&step[..1], || ());
            bench.client.work_all();
        });
        assert_eq!(bench.answered(2), "Y=r.O(q.O(p.O(x))).");
        drop(tickets);
        assert_eq!(bench.runs(), 0);
    });
}

#[test]
fn a_panic_cancels_the_steps_that_are_in_flight() {
    on_shard(|| {
        let steps = ["p I=X -> O=A", "q I=X -> O=B", "r I=A J=B -> O=Y"];
        let parts = vec![model("p", "I", "O", ""), model("q", "I", "O", ""), model("r", "I J", "O", "")];
        let bench = Bench::new(ensemble("X", "Y", &steps, "", "max_inflight_requests: 1"), parts);
        bench.part("q").panics.store(true, Ordering::Relaxed);
        begin_turn();
        let ticket = bench.send_on_shard(1);
        bench.client.work_all();
        assert_eq!(bench.answered(1), "!in ensemble 'e', the ensemble failed while it handled the request.");
        assert_eq!(bench.waiting("p"), 1);
        assert!(bench.part("p").take().is_none(), "it is cancelled");
        let limiters = bench.ensemble.0.limiters.iter().flatten();
        limiters.for_each(|limiter| assert_eq!(limiter.counts(), (0, 0)));
        drop(ticket);
        assert_eq!(bench.runs(), 0);
    });
}

#[test]
fn a_hand_over_that_is_forgotten_is_noticed() {
    mutants::with(Some(Mutant::HandOverForgotten), || {
        let bench = chain();
        let ticket = bench.send(1, &[("X", "x")]);
        drop(ticket);
        bench.execute("p", || ());
        bench.client.work_all();
        assert_eq!(bench.waiting("q"), 0);
        assert_eq!(bench.answered(1), "", "no thread goes on");
    });
}
