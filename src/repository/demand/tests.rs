//! Waiting for loads, without repositories: what is asked of a life cycle that is gone fails.

use std::sync::mpsc::{Receiver, channel};

use super::*;

fn demand() -> Arc<Demand> {
    Arc::new(Demand::new(&ResidencySettings { on_demand: true, ..ResidencySettings::default() }, 1, Weak::new()))
}

fn waiter() -> (Waiter, Receiver<Loaded>) {
    let (ended, end) = channel();
    (Box::new(move |loaded| ended.send(loaded).unwrap_or_default()), end)
}

#[test]
fn what_waits_is_called_when_the_load_has_ended() {
    let demand = demand();
    let (first, first_end) = waiter();
    let (second, second_end) = waiter();
    let waits = [demand.wait(b"m", first), demand.wait(b"n", second)];
    assert!(waits.iter().all(Result::is_ok));
    for end in [first_end, second_end] {
        let Ok(Loaded::Failed(status)) = end.recv() else { panic!("the server is gone") };
        assert_eq!(status.refusal, Some(RefusalReason::Exiting));
    }
    drop(waits);
    assert_eq!(demand.waiting(), 0);
}

#[test]
fn what_leaves_is_not_called_and_has_no_place() {
    let demand = demand();
    {
        // No thread begins: as if it were at work.
        demand.state().lookers = demand.lookers_max;
    }
    let (waiter, end) = waiter();
    let wait = demand.wait(b"m", waiter).unwrap_or_else(|_| panic!("it may wait"));
    assert_eq!(demand.waiting(), 1);
    drop(wait);
    assert_eq!(demand.waiting(), 0);
    demand.look_up();
    assert!(end.recv().is_err() && demand.state().pending.is_empty(), "nothing was loaded for it");
}

#[test]
fn places_and_loads_are_bounded() {
    let demand = demand();
    demand.state().lookers = demand.lookers_max;
    let refusal = |name: &str| match demand.wait(name.as_bytes(), Box::new(|_| ())) {
        Ok(_) => panic!("there is no place"),
        Err(status) => status.unwrap_or_else(|| panic!("it is refused with a reason")),
    };
    let wait = |name: &str| demand.wait(name.as_bytes(), Box::new(|_| ())).unwrap_or_else(|_| panic!("a place"));
    let mut waits: Vec<LoadWait> = (0..WAITING_FOR_MODEL_MAX).map(|_| wait("m")).collect();
    let status = refusal("m");
    assert_eq!((status.refusal, status.code), (Some(RefusalReason::ModelLoading), nereid_request::Code::Unavailable));
    waits.extend((1..QUEUED_MAX).map(|at| wait(&at.to_string())));
    assert_eq!(refusal("other").refusal, Some(RefusalReason::ModelLoading));
    assert_eq!(demand.waiting(), WAITING_FOR_MODEL_MAX + QUEUED_MAX - 1);
    drop(waits);
    assert_eq!(demand.waiting(), 0);
}

#[test]
fn what_a_client_unloads_stays_unloaded() {
    let demand = demand();
    demand.hold_back("m", true);
    demand.hold_back("n", false);
    assert!(!demand.is_held_back("n"), "it is in no repository");
    assert!(matches!(demand.wait(b"m", Box::new(|_| ())), Err(None)), "answered as without loads on demand");
    demand.release("m");
    assert!(demand.wait(b"m", Box::new(|_| ())).is_ok());
}

#[test]
fn a_model_that_failed_is_not_loaded_at_once_again() {
    let demand = demand();
    let failed = Loaded::Failed(Status::refused(RefusalReason::ModelUnavailable, "it is broken"));
    assert!(demand.end("m", &failed, 7).is_empty());
    let Err(Some(status)) = demand.wait(b"m", Box::new(|_| ())) else { panic!("it has failed just now") };
    assert_eq!(status.message, "it is broken");
    assert_eq!(demand.failures_to_check(), [("m".to_owned(), 7)]);
    demand.forget_failure("m");
    assert!(demand.wait(b"m", Box::new(|_| ())).is_ok(), "its files changed");
    demand.end("unknown", &Loaded::Unknown, 0);
    assert!(matches!(demand.wait(b"unknown", Box::new(|_| ())), Err(None)));
}

#[test]
fn the_end_of_the_server_refuses_what_waits() {
    let demand = demand();
    demand.state().lookers = demand.lookers_max;
    let (waiter, end) = waiter();
    let wait = demand.wait(b"m", waiter);
    demand.stop();
    assert!(matches!(end.recv(), Ok(Loaded::Failed(status)) if status.refusal == Some(RefusalReason::Exiting)));
    drop(wait);
    assert!(matches!(demand.wait(b"m", Box::new(|_| ())), Err(None)) && !demand.sleep(Duration::from_secs(60)));
    assert_eq!(demand.waiting(), 0);
}

#[test]
fn a_model_is_looked_for_while_all_loads_are_at_work() {
    let demand = demand();
    demand.state().threads = 1;
    let (waiter, end) = waiter();
    let _wait = demand.wait(b"m", waiter);
    assert!(matches!(end.recv(), Ok(Loaded::Failed(status)) if status.refusal == Some(RefusalReason::Exiting)));
}

#[test]
fn what_is_found_waits_for_a_thread_in_its_turn() {
    let demand = demand();
    demand.state().lookers = demand.lookers_max;
    let waits = ["m", "n"].map(|name| demand.wait(name.as_bytes(), Box::new(|_| ())));
    assert_eq!(["m", "n"].map(|name| demand.pass_on(name).ok()), [Some(true), Some(false)], "one thread for both");
    assert_eq!(demand.state().queue, ["m", "n"]);
    for at in 2..QUEUED_MAX {
        assert!(demand.pass_on(&at.to_string()).is_ok());
    }
    assert_eq!(demand.pass_on("other").map_err(|status| status.refusal), Err(Some(RefusalReason::ModelLoading)));
    demand.stop();
    assert_eq!(demand.pass_on("m").map_err(|status| status.refusal), Err(Some(RefusalReason::Exiting)));
    assert_eq!(demand.waiting(), 0);
    drop(waits);
}
