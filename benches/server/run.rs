//! The order of the day: servers up, rounds in turns, servers down, tables out.

use super::options::Options;
use super::process::Server;
use super::report::{self, Run};
use super::scenario::Scenario;
use crate::side::load::{self, Outcome};
use crate::side::machine::{self, Placement};
use crate::side::usage::{Usage, of_this_thread_ns};

/// Measures and prints everything; returns the number of errors.
pub fn run(options: &Options) -> Result<u64, String> {
    let placement = machine::place(options.server_cores)?;
    let mut heading = machine::describe(&placement);
    heading.push(format!(
        "run: {} rounds of {:.1} s for each scenario and engine, in turns; load average {} before",
        options.rounds,
        options.measured.as_secs_f64(),
        machine::load_average()
    ));
    let mut servers = Vec::with_capacity(options.engines.len());
    for engine in &options.engines {
        servers.push(start(engine, &placement, options)?);
    }
    let mut runs = Vec::new();
    let mut resident_kib: Vec<(String, Vec<u64>)> = Vec::new();
    for server in &servers {
        resident_kib.push((server.engine.clone(), vec![Usage::of(server.pid(), &[])?.resident_kib]));
    }
    for round in 0..options.rounds {
        for scenario in &options.scenarios {
            for server in &mut servers {
                let run = match measure(scenario, server, &placement, options) {
                    Ok(run) => run,
                    Err(error) => {
                        let error = format!("{error}; the server's log ends with:\n{}", server.log_end());
                        let run = Run::failed(scenario, &server.engine, error);
                        // A failed server is replaced before the next scenario.
                        *server = start(&server.engine.clone(), &placement, options)?;
                        run
                    }
                };
                eprintln!("round {}/{}: {}", round + 1, options.rounds, run.line());
                runs.push(run);
            }
        }
        for (server, (_, sizes)) in servers.iter().zip(&mut resident_kib) {
            sizes.push(Usage::of(server.pid(), &[])?.resident_kib);
        }
    }
    let mut errors = runs.iter().map(|run| run.errors).sum();
    for server in servers {
        let engine = server.engine.clone();
        if let Err(error) = server.stop() {
            errors += 1;
            eprintln!("{engine}: {error}");
        }
    }
    heading.push(format!("load average {} behind", machine::load_average()));
    println!("{}", report::tables(&heading, &runs, &resident_kib));
    if let Some(file) = &options.json {
        let json = report::json(&heading, &runs, &resident_kib);
        std::fs::write(file, json).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(errors)
}

/// Starts a server on the servers' cores, and pins this thread to the client's again.
fn start(engine: &str, placement: &Placement, options: &Options) -> Result<Server, String> {
    let server = Server::start(engine, &placement.server, options)?;
    machine::pin_this_thread(&placement.client)?;
    Ok(server)
}

fn measure(scenario: &'static Scenario, server: &Server, at: &Placement, options: &Options) -> Result<Run, String> {
    let mut marks = Vec::with_capacity(2);
    let outcome = load::run(scenario.peers(server)?, options.measured, || {
        marks.push((Usage::of(server.pid(), &at.server)?, of_this_thread_ns()));
        Ok(())
    })?;
    let [(before, client_before), (after, client_after)] = &marks[..] else { return Err("no marks".to_owned()) };
    let Outcome { tally, measured } = outcome;
    Ok(Run {
        scenario,
        engine: server.engine.clone(),
        requests: tally.requests,
        measured,
        latency_ns: tally.latency_ns,
        usage: after.since(before),
        client_ns: client_after.saturating_sub(*client_before),
        server_cores: at.server.len(),
        load_average: machine::load_average(),
        errors: tally.errors,
        first_error: tally.first_error,
    })
}
