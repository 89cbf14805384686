//! The rows of contract/schedulers.md section 6, and mistakes that have to be caught.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::mutants::{self, Mutant};
use super::*;
use nereid_request::Code;
use nereid_wire::inference::ModelRateLimiter;
use nereid_wire::inference::model_rate_limiter::Resource;

/// One instance under test.
struct Instance {
    gate: Arc<dyn Gate>,
    woken: Arc<AtomicUsize>,
}

impl Instance {
    fn enter(&self) -> bool {
        self.gate.enter()
    }

    /// It has nothing to execute for now.
    fn leave(&self) {
        self.gate.executed();
        self.gate.leave();
    }

    /// It has executed, and enters again.
    fn again(&self) -> bool {
        self.gate.executed();
        self.gate.enter()
    }

    /// How often it was woken since the last call.
    fn woken(&self) -> usize {
        self.woken.swap(0, Ordering::SeqCst)
    }
}

/// A resource by its name; one that begins with `g` is global.
fn resources(demands: &[(&str, u32)]) -> Vec<Resource> {
    let resource = |(name, count): &(&str, u32)| Resource {
        name: (*name).to_owned(),
        global: name.starts_with('g'),
        count: *count,
    };
    demands.iter().map(resource).collect()
}

fn groups(demands: &[(&str, u32)]) -> Vec<ModelInstanceGroup> {
    let rate_limiter = ModelRateLimiter { resources: resources(demands), priority: 0 };
    vec![ModelInstanceGroup { rate_limiter: Some(rate_limiter), ..ModelInstanceGroup::default() }]
}

fn limiter(limits: &[(&str, u64, Option<i32>)]) -> RateLimiter {
    let limit = |(name, count, device): &(&str, u64, Option<i32>)| ResourceLimit {
        name: (*name).to_owned(),
        count: *count,
        device: *device,
    };
    RateLimiter::new(limits.iter().map(limit).collect())
}

fn on_device(limiter: &RateLimiter, model: &str, device: i32, priority: u32, demands: &[(&str, u32)]) -> Instance {
    let woken = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&woken);
    let info = WorkerInfo {
        waker: Waker::new(move || {
            seen.fetch_add(1, Ordering::SeqCst);
        }),
        name: format!("{model}_0"),
        device,
        rate_limiter: Some(ModelRateLimiter { resources: resources(demands), priority }),
    };
    Instance { gate: limiter.admit(model, &info).unwrap(), woken }
}

fn instance(limiter: &RateLimiter, model: &str, demands: &[(&str, u32)]) -> Instance {
    on_device(limiter, model, 0, 1, demands)
}

fn taken(limiter: &RateLimiter) -> u64 {
    lock(&limiter.0).pools.taken()
}

fn total(limiter: &RateLimiter, name: &str, device: Option<i32>) -> u64 {
    lock(&limiter.0).pools.total(name, device)
}

#[test]
fn an_instance_that_does_not_fit_waits_and_is_woken() {
    let limiter = limiter(&[]);
    let (a, b) = (instance(&limiter, "a", &[("R", 1)]), instance(&limiter, "b", &[("R", 1)]));
    assert!(a.enter());
    assert!(!b.enter());
    assert!(!b.enter(), "it enters again and still waits");
    assert_eq!(b.woken(), 0);
    a.leave();
    assert_eq!((a.woken(), b.woken()), (0, 1));
    assert!(!a.enter(), "it is b's until b leaves");
    assert!(b.enter());
    b.leave();
    assert_eq!(a.woken(), 1);
    a.leave();
    assert_eq!(taken(&limiter), 0);
    let free = instance(&limiter, "free", &[]);
    assert!(a.enter() && free.enter(), "an instance without demands does not wait");
}

#[test]
fn there_is_as_much_as_the_largest_demand_unless_a_limit_says_otherwise() {
    let limited = limiter(&[("L", 5, None), ("L", 9, Some(1)), ("gL", 3, Some(0)), ("gL", 7, Some(1))]);
    let both = [("L", 1), ("gL", 1)];
    let instances = (on_device(&limited, "a", 0, 1, &both), on_device(&limited, "b", 1, 1, &both));
    assert_eq!((total(&limited, "L", Some(0)), total(&limited, "L", Some(1)), total(&limited, "gL", None)), (5, 9, 7));
    assert!(instances.0.enter() && instances.1.enter());
    let limiter = limiter(&[]);
    let small = on_device(&limiter, "a", 0, 1, &[("R", 2), ("g", 3)]);
    assert_eq!((total(&limiter, "R", Some(0)), total(&limiter, "g", None)), (2, 3));
    let large = on_device(&limiter, "b", 0, 1, &[("R", 6), ("g", 4)]);
    let other = on_device(&limiter, "c", 1, 1, &[("R", 1)]);
    assert_eq!((total(&limiter, "R", Some(0)), total(&limiter, "R", Some(1)), total(&limiter, "g", None)), (6, 1, 4));
    assert!(large.enter() && other.enter() && !small.enter());
    drop(large);
    assert_eq!((total(&limiter, "R", Some(0)), total(&limiter, "g", None)), (2, 3), "they shrink with the instances");
    assert_eq!(small.woken(), 1, "and what the one had goes to the other");
    assert!(small.enter());
    drop((small, other));
    assert_eq!((taken(&limiter), total(&limiter, "R", Some(0))), (0, 0));
}

/// contract/model_config.md section 6, row "rate limiter": checked against all registered models.
#[test]
fn groups_are_held_against_limits_and_each_other() {
    let limiter = limiter(&[("R", 4, None), ("X", 1, None)]);
    let fine = limiter.register(&groups(&[("R", 4), ("X", 1)])).unwrap();
    let text = |outcome: Result<Registration, Status>| outcome.err().map(|status| status.message.into_owned());
    let limited = "Resource count for \"R\" is limited to 4 which will prevent scheduling of one or more model \
                   instances, the minimum required count is 5";
    assert_eq!(text(limiter.register(&groups(&[("R", 5)]))), Some(limited.to_owned()));
    let mut global = groups(&[("X", 1)]);
    global[0].rate_limiter.as_mut().unwrap().resources[0].global = true;
    let both = "Resource \"X\" is present as both global and device-specific resource in the model configuration.";
    assert_eq!(text(limiter.register(&global)), Some(both.to_owned()));
    // A change is checked against the others, not against the groups that it replaces; one that fails changes nothing.
    limiter.change(&fine, &global).unwrap();
    assert_eq!(limiter.change(&fine, &groups(&[("R", 5)])).unwrap_err().message, limited);
    assert_eq!(text(limiter.register(&groups(&[("X", 1)]))), Some(both.to_owned()));
    drop(fine);
    assert_eq!(text(limiter.register(&groups(&[("X", 1)]))), None, "an unload takes its groups away");
}

/// Executions of each of `instances` when all request the one resource at the same time, so many times.
fn compete(instances: &[Instance], keeper: &Instance, rounds: usize) -> Vec<usize> {
    let mut counts = vec![0; instances.len()];
    for _ in 0..rounds {
        assert!(keeper.enter());
        for instance in instances {
            assert!(!instance.enter(), "two at a time");
            instance.woken();
        }
        keeper.leave();
        let woken: Vec<usize> = (0..instances.len()).filter(|at| instances[*at].woken() > 0).collect();
        assert_eq!(woken.len(), 1, "one has its turn");
        counts[woken[0]] += 1;
        // The others find nothing to execute this time.
        instances.iter().enumerate().filter(|(at, _)| *at != woken[0]).for_each(|(_, other)| other.leave());
        assert!(instances[woken[0]].enter());
        instances[woken[0]].leave();
    }
    counts
}

fn shares(priorities: &[u32], rounds: usize) -> Vec<usize> {
    let limiter = limiter(&[]);
    let keeper = instance(&limiter, "keeper", &[("R", 1)]);
    let instances: Vec<Instance> =
        priorities.iter().enumerate().map(|(at, p)| on_device(&limiter, &at.to_string(), 0, *p, &[("R", 1)])).collect();
    compete(&instances, &keeper, rounds)
}

#[test]
fn the_least_executed_by_priority_comes_first() {
    assert_eq!(shares(&[1, 1, 1], 30), [10, 10, 10]);
    assert_eq!(shares(&[1, 2], 30), [20, 10]);
    assert_eq!(shares(&[0, 3], 40), [30, 10], "0 acts as 1");
    mutants::with(Some(Mutant::OrderIgnored), || assert_ne!(shares(&[1, 2], 30), [20, 10]));
}

/// Instances with more to execute compete with those that wait: the number of executions decides who is next, and not
/// the order of ends.
#[test]
fn an_instance_that_has_executed_competes_for_its_resources() {
    let shares = |priorities: &[u32], rounds: usize| {
        let limiter = limiter(&[]);
        let on = |(at, p): (usize, &u32)| on_device(&limiter, &at.to_string(), 0, *p, &[("R", 1)]);
        let instances: Vec<Instance> = priorities.iter().enumerate().map(on).collect();
        let mut counts = vec![0; instances.len()];
        let entered: Vec<bool> = instances.iter().map(Instance::enter).collect();
        assert_eq!(entered.iter().filter(|is_in| **is_in).count(), 1);
        let mut executing = 0;
        for _ in 0..rounds {
            counts[executing] += 1;
            if !instances[executing].again() {
                let woken: Vec<usize> = (0..instances.len()).filter(|at| instances[*at].woken() > 0).collect();
                assert_eq!(woken.len(), 1, "one has its turn");
                executing = woken[0];
                assert!(instances[executing].enter());
            }
        }
        assert_eq!(taken(&limiter), 1);
        counts
    };
    assert_eq!(shares(&[1, 2], 30), [20, 10]);
    assert_eq!(shares(&[1, 1, 1], 30), [10, 10, 10]);
    assert_eq!(shares(&[2, 1, 4], 28), [8, 16, 4]);
    // A large priority number is no large demand: no instance passes it out of turn.
    assert_eq!(shares(&[1, 50], 102), [100, 2]);
}

/// An instance that enters twice for the same execution is counted once.
#[test]
fn only_an_execution_ends_a_turn() {
    let limiter = limiter(&[]);
    let (a, b) = (instance(&limiter, "a", &[("R", 1)]), instance(&limiter, "b", &[("R", 1)]));
    assert!(a.enter() && a.enter() && !b.enter());
    assert!(a.gate.grant().is_some());
    a.gate.executed();
    assert!(a.gate.grant().is_none(), "what is over lends nothing");
    assert_eq!((taken(&limiter), b.woken()), (1, 0), "it may go on");
    a.gate.leave();
    assert_eq!((taken(&limiter), b.woken()), (1, 1));
}

#[test]
fn a_newcomer_does_not_outrun_old_instances() {
    let limiter = limiter(&[]);
    let (keeper, old) = (instance(&limiter, "keeper", &[("R", 1)]), instance(&limiter, "old", &[("R", 1)]));
    for instance in [&keeper, &old] {
        for _ in 0..1000 {
            assert!(instance.enter());
            instance.leave();
        }
    }
    let fresh = instance(&limiter, "fresh", &[("R", 1)]);
    assert_eq!(compete(&[old, fresh], &keeper, 10), [5, 5]);
}

/// How often others go first while an instance waits that needs everything; stops at `bound`.
fn passed(bound: u32) -> u32 {
    let limiter = limiter(&[("R", 2, None)]);
    let large = instance(&limiter, "large", &[("R", 2)]);
    let small = [instance(&limiter, "s", &[("R", 1)]), instance(&limiter, "t", &[("R", 1)])];
    assert!(small[0].enter() && small[1].enter() && !large.enter());
    let mut passed = 0;
    for at in [0, 1].into_iter().cycle().take(2 * bound as usize + 2) {
        small[at].leave();
        if large.enter() {
            return passed;
        }
        if !small[at].enter() {
            continue;
        }
        passed += 1;
    }
    passed
}

#[test]
fn small_demands_pass_a_blocked_one_but_not_for_ever() {
    let bound = passed(2 * PASSED_MAX);
    assert!(bound > 0 && bound <= PASSED_MAX + 1, "passed {bound} times");
    mutants::with(Some(Mutant::NoAgeing), || assert!(passed(2 * PASSED_MAX) > PASSED_MAX + 1));
}

#[test]
fn other_resources_are_none_of_its_business() {
    let limiter = limiter(&[]);
    let holder = instance(&limiter, "holder", &[("R", 1)]);
    let blocked = instance(&limiter, "blocked", &[("R", 1)]);
    let other = instance(&limiter, "other", &[("S", 1)]);
    assert!(holder.enter() && !blocked.enter());
    for _ in 0..10 * PASSED_MAX {
        assert!(other.enter(), "it takes nothing that another instance waits for");
        other.leave();
    }
}

#[test]
fn an_instance_that_leaves_gives_everything_back() {
    let leak = || {
        let limiter = limiter(&[]);
        let (a, b) = (instance(&limiter, "a", &[("R", 1)]), instance(&limiter, "b", &[("R", 1)]));
        assert!(a.enter() && !b.enter());
        a.leave();
        // b has the grant, and finds that its work is gone.
        b.leave();
        a.enter()
    };
    assert!(leak());
    mutants::with(Some(Mutant::GrantLeaked), || assert!(!leak()));
    let limiter = limiter(&[]);
    let (a, b, c) = (
        instance(&limiter, "a", &[("R", 1)]),
        instance(&limiter, "b", &[("R", 1)]),
        instance(&limiter, "c", &[("R", 1)]),
    );
    assert!(a.enter() && !b.enter() && !c.enter());
    // A waiting instance leaves the queue; an executing one is unloaded in the middle of it.
    drop(b);
    drop(a);
    assert_eq!(c.woken(), 1);
    assert!(c.enter());
}

/// server#8358: a model that calls another one with the resource that both need.
#[test]
fn a_called_model_uses_what_its_caller_holds() {
    let limiter = limiter(&[]);
    let caller = instance(&limiter, "caller", &[("R", 1)]);
    let called = instance(&limiter, "called", &[("R", 1)]);
    let rival = instance(&limiter, "rival", &[("R", 1)]);
    assert!(caller.gate.grant().is_none(), "an instance without resources lends none");
    assert!(caller.enter() && !rival.enter() && !called.enter());
    let grant = caller.gate.grant().unwrap();
    assert!(grant.lend("unknown").unwrap().is_none());
    let lease = grant.lend("called").unwrap().unwrap();
    assert_eq!((called.woken(), rival.woken()), (1, 0));
    assert!(called.enter() && !rival.enter());
    assert_eq!(taken(&limiter), 1);
    // An instance that it calls in turn uses the same resources.
    let deeper = instance(&limiter, "deeper", &[("R", 1)]);
    let inner = called.gate.grant().unwrap().lend("deeper").unwrap().unwrap();
    assert!(deeper.enter());
    deeper.leave();
    drop(inner);
    called.leave();
    drop(lease);
    assert_eq!(rival.woken(), 0, "the caller still has it");
    caller.leave();
    assert!(rival.woken() == 1 && rival.enter());
    assert!(grant.lend("called").unwrap().is_none(), "what it held is over");
    rival.leave();
    assert_eq!(taken(&limiter), 0);
}

#[test]
fn a_caller_that_ends_first_leaves_what_is_in_use() {
    let limiter = limiter(&[]);
    let caller = instance(&limiter, "caller", &[("R", 2)]);
    let called = instance(&limiter, "called", &[("R", 1)]);
    let rival = instance(&limiter, "rival", &[("R", 2)]);
    assert!(caller.enter());
    let lease = caller.gate.grant().unwrap().lend("called").unwrap();
    assert!(called.enter());
    caller.leave();
    assert_eq!(taken(&limiter), 1, "the called one still executes on it");
    assert!(!rival.enter());
    called.leave();
    assert!(rival.enter());
    drop(lease);
    rival.leave();
    assert_eq!(taken(&limiter), 0);
}

#[test]
fn a_reservation_does_not_stop_an_instance_that_others_wait_for() {
    let limiter = limiter(&[("R", 2, None)]);
    let caller = instance(&limiter, "caller", &[("R", 1)]);
    let small = instance(&limiter, "small", &[("R", 1)]);
    let large = instance(&limiter, "large", &[("R", 2)]);
    let called = instance(&limiter, "called", &[("R", 2)]);
    assert!(caller.enter() && !large.enter());
    while small.enter() {
        small.leave();
    }
    small.leave();
    // Everything is reserved for the large one, which waits for the caller, which waits for the called one.
    let lease = caller.gate.grant().unwrap().lend("called").unwrap();
    assert!(called.enter());
    called.leave();
    drop(lease);
    caller.leave();
    assert!(large.enter());
}

fn refused(outcome: Result<Option<ResourceLease>, Status>) -> String {
    let status = outcome.expect_err("a circle");
    assert_eq!(status.code, Code::Unavailable);
    let (text, circle) = status.message.rsplit_once(": ").expect("a circle in the text");
    assert!(text.starts_with("the request to model '"), "{text}");
    circle.to_owned()
}

#[test]
fn models_that_would_wait_for_each_other_are_named() {
    let limiter = limiter(&[]);
    let a = instance(&limiter, "a", &[("R", 1)]);
    let b = instance(&limiter, "b", &[("S", 1)]);
    let c = instance(&limiter, "c", &[("S", 1)]);
    let d = instance(&limiter, "d", &[("R", 1)]);
    assert!(a.enter() && b.enter());
    let (of_a, of_b) = (a.gate.grant().unwrap(), b.gate.grant().unwrap());
    assert_eq!(refused(of_a.lend("a")), "'a' -> 'a'", "its one instance is busy with the caller");
    let lease = of_a.lend("c").unwrap();
    assert!(!c.enter(), "b has it, and may end");
    assert_eq!(refused(of_b.lend("d")), "'b' -> 'd' -> 'a' -> 'c' -> 'b'");
    // The one that did not get it goes on without, and the other one has its turn.
    b.leave();
    assert!(c.enter());
    c.leave();
    drop((lease, d));
    a.leave();
    assert_eq!(taken(&limiter), 0);
    // With a second instance nothing blocks the call.
    let second = instance(&limiter, "a", &[("R", 1)]);
    assert!(a.enter());
    assert!(of_a.lend("a").unwrap().is_none(), "an old grant is worth nothing");
    let lease = a.gate.grant().unwrap().lend("a").unwrap().unwrap();
    assert!(second.enter());
    second.leave();
    drop(lease);
}

/// Instances with random demands, from a fixed seed: none has more than there is, all that wait get in, and when all
/// have left nothing is taken.
#[test]
fn random_lives_leave_nothing_behind() {
    for seed in 0..200u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let limiter = limiter(&[("R", 4, None), ("g", 3, None), ("S", 2, None)]);
        let mut instances = Vec::new();
        for at in 0..6 {
            let demands = [("R", random(5) as u32), ("g", random(4) as u32), ("S", random(3) as u32)];
            instances.push((demands, on_device(&limiter, &at.to_string(), 0, random(3) as u32, &demands)));
        }
        let mut inside = [false; 6];
        let mut waits = [0; 6];
        for step in 0..2000 {
            let at = random(6) as usize;
            if inside[at] {
                instances[at].1.leave();
                inside[at] = false;
            } else if instances[at].1.enter() {
                inside[at] = true;
                waits[at] = 0;
            } else {
                waits[at] += 1;
                assert!(waits[at] < 400, "seed {seed}: {at} never gets in, step {step}");
            }
            for (name, limit) in [("R", 4), ("g", 3)] {
                let of = |demands: &[(&str, u32)]| demands.iter().find(|(n, _)| *n == name).map_or(0, |(_, c)| *c);
                let used: u32 = instances.iter().zip(inside).filter(|(_, is)| *is).map(|((d, _), _)| of(d)).sum();
                assert!(used <= limit, "seed {seed}: {used} of {name} in step {step}");
            }
        }
        instances.iter().for_each(|(_, instance)| instance.leave());
        assert_eq!(taken(&limiter), 0, "seed {seed}");
    }
}

#[test]
fn the_log_names_the_resources_of_present_instances() {
    let limiter = limiter(&[("gA", 5, None), ("R", 3, None), ("S", 4, None)]);
    let logged = || lock(&limiter.0).pools.to_string();
    let first = on_device(&limiter, "a", 1, 1, &[("R", 3), ("gA", 2)]);
    let second = on_device(&limiter, "b", 0, 1, &[("S", 4)]);
    let global = "\tDevice: GLOBAL\n\t\tResource: gA\t Count: 5\n";
    let rest = "\tDevice: 1\n\t\tResource: R\t Count: 3\n";
    assert_eq!(logged(), format!("{global}\tDevice: 0\n\t\tResource: S\t Count: 4\n{rest}"));
    drop(second);
    assert_eq!(logged(), format!("{global}{rest}"), "nobody needs it any more");
    drop(first);
    assert_eq!(logged(), "");
}
