//! The order of the day: servers up, rounds in turns, servers down, tables out.

use super::options::Options;
use super::report::{self, Run};
use super::scenario::Scenario;
use super::side::{Kind, Side};
use crate::side::load::{self, Outcome};
use crate::side::machine::{self, Placement};
use crate::side::usage::of_this_thread_ns;
use nereid_test_support::python::Python;

/// Measures and prints everything; returns the number of errors.
pub fn run(options: &Options) -> Result<u64, String> {
    // The official backend of that release cannot read arrays of numpy 2.
    let python = Python::with("numpy-1.txt").ok_or("there is no interpreter with numpy")?;
    let placement = machine::place(options.server_cores)?;
    let mut heading = machine::describe(&placement);
    heading.push(format!(
        "run: {} rounds of {:.1} s for each scenario and side, in turns; load average {} before",
        options.rounds,
        options.measured.as_secs_f64(),
        machine::load_average()
    ));
    let mut sides = Vec::new();
    for kind in &options.sides {
        match start(*kind, &placement, &python, options)? {
            Some(side) => sides.push(side),
            None => heading.push(format!("skipped: {}", kind.name())),
        }
    }
    let mut runs = Vec::new();
    for round in 0..options.rounds {
        for scenario in &options.scenarios {
            for side in &mut sides {
                let run = match measure(scenario, side, &placement, options) {
                    Ok(run) => run,
                    Err(error) => {
                        let error = format!("{error}; the server's log ends with:\n{}", side.log_end());
                        let run = Run::failed(scenario, side.kind, error);
                        // A failed server is replaced before the next scenario.
                        let again = start(side.kind, &placement, &python, options)?;
                        *side = again.ok_or("it cannot be started again")?;
                        run
                    }
                };
                eprintln!("round {}/{}: {}", round + 1, options.rounds, run.line());
                runs.push(run);
            }
        }
    }
    let mut errors = runs.iter().map(|run| run.errors).sum();
    for side in sides {
        heading.push(format!(
            "{} was ready {:.0} ms after its start",
            side.kind.name(),
            side.start.as_secs_f64() * 1e3
        ));
        let kind = side.kind;
        if let Err(error) = side.stop() {
            // The official one's way to end is not ours to judge.
            errors += u64::from(kind == Kind::Nereid);
            eprintln!("{}: {error}", kind.name());
        }
    }
    heading.push(format!("load average {} behind", machine::load_average()));
    println!("{}", report::table(&heading, &runs));
    Ok(errors)
}

/// Starts a server on the servers' cores, and pins this thread to the client's again.
fn start(kind: Kind, placement: &Placement, python: &Python, options: &Options) -> Result<Option<Side>, String> {
    let side = Side::start(kind, &placement.server, python, options)?;
    machine::pin_this_thread(&placement.client)?;
    Ok(side)
}

fn measure(scenario: &'static Scenario, side: &Side, at: &Placement, options: &Options) -> Result<Run, String> {
    let mut marks = Vec::with_capacity(2);
    let outcome = load::run(scenario.peers(side), options.measured, || {
        marks.push((side.used(&at.server)?, of_this_thread_ns()));
        Ok(())
    })?;
    let [(before, client_before), (after, client_after)] = &marks[..] else { return Err("no marks".to_owned()) };
    let Outcome { tally, measured } = outcome;
    Ok(Run {
        scenario,
        kind: side.kind,
        requests: tally.requests,
        measured,
        latency_ns: tally.latency_ns,
        used: after.since(before),
        client_ns: client_after.saturating_sub(*client_before),
        errors: tally.errors,
        first_error: tally.first_error,
    })
}
