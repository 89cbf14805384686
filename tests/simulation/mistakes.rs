//! Planted mistakes: the simulation has to catch each of them, and shows so that it would catch others of their kind.

use nereid_mutants::{self as mutants, Mutant};
use nereid_request::mutants as delivery;
use nereid_scheduler::mutants as scheduling;

use crate::{on_every_core, world};

/// Seeds that a mistake has to be caught within, and requests of each.
const SEEDS: u64 = 40;
const REQUESTS: u64 = 1_000;

/// A mistake of any of the crates that have some.
#[derive(Debug, Clone, Copy)]
enum Mistake {
    Server(Mutant),
    Scheduler(scheduling::Mutant),
    Delivery(delivery::Mutant),
}

const MISTAKES: &[Mistake] = &[
    Mistake::Server(Mutant::ChargeKept),
    Mistake::Server(Mutant::AnswersSwapped),
    Mistake::Server(Mutant::DirectMisplaced),
    Mistake::Server(Mutant::ScatterMisplaced),
    Mistake::Server(Mutant::CallsKept),
    Mistake::Server(Mutant::DeadlineForgotten),
    Mistake::Server(Mutant::DeadlineKept),
    Mistake::Server(Mutant::ConnectionCounted),
    Mistake::Server(Mutant::CancellationUnheard),
    Mistake::Server(Mutant::MapKept),
    Mistake::Server(Mutant::PlansKept),
    Mistake::Server(Mutant::WakesForgotten),
    Mistake::Server(Mutant::InFlightKept),
    Mistake::Server(Mutant::FailureOfOne),
    Mistake::Server(Mutant::SuccessUncounted),
    Mistake::Server(Mutant::QuietSendForgotten),
    Mistake::Scheduler(scheduling::Mutant::LostWake),
    Mistake::Scheduler(scheduling::Mutant::MaxBatchIgnored),
    Mistake::Scheduler(scheduling::Mutant::DelayForgotten),
    Mistake::Scheduler(scheduling::Mutant::ErrorForgotten),
    Mistake::Scheduler(scheduling::Mutant::HandOverForgotten),
    Mistake::Delivery(delivery::Mutant::FinalLost),
];

/// The seed that catches the mistake, and what it finds.
fn caught(mistake: Mistake) -> Option<(u64, String)> {
    let find = || (1..=SEEDS).find_map(|seed| world::run(seed, REQUESTS, false).err().map(|failure| (seed, failure)));
    match mistake {
        Mistake::Server(mutant) => mutants::with(Some(mutant), find),
        Mistake::Scheduler(mutant) => scheduling::with(Some(mutant), find),
        Mistake::Delivery(mutant) => delivery::with(Some(mutant), find),
    }
}

#[test]
fn planted_mistakes_are_caught() {
    let outcomes = on_every_core(0..MISTAKES.len() as u64, |at| {
        let mistake = MISTAKES[at as usize];
        // What a mistake leaves behind must not be found by the next one: each has a thread.
        (mistake, std::thread::spawn(move || caught(mistake)).join())
    });
    let mut missed = Vec::new();
    for (mistake, outcome) in outcomes {
        match outcome {
            Ok(Some((seed, failure))) => {
                println!("{mistake:?}: seed {seed}: {}", failure.lines().next().unwrap_or_default());
            }
            Ok(None) => missed.push(mistake),
            Err(_) => println!("{mistake:?}: the server panics"),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
