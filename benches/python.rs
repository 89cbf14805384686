//! Measures Python models, beside the official server: `cargo bench --bench python -- --help` lists the options.
//!
//! One repository of `model.py` files (benches/python_side/models) is served by the release binary and by the official
//! server of a wheel from PyPI, both with the same interpreter and numpy. One client thread on a core of its own keeps a
//! fixed number of requests in flight, and compares every answer. The two take turns, run by run, so that drift of the
//! machine reaches both. The headline is CPU time a request, of the server and of all the processes that it started.
//! Nothing here asserts a speed: only wrong answers fail the bench.

#[allow(dead_code)] // What all benches of whole servers share; each uses a part.
mod side {
    pub mod answer;
    pub mod burst;
    pub mod http;
    pub mod line;
    pub mod load;
    pub mod machine;
    pub mod question;
    pub mod request;
    pub mod unary;
    pub mod usage;
}

mod python_side {
    pub mod options;
    pub mod report;
    pub mod run;
    pub mod scenario;
    pub mod side;
}

use std::process::ExitCode;

use python_side::{options, run};

fn main() -> ExitCode {
    let outcome = match options::parse(std::env::args().skip(1)) {
        Ok(options::Command::Run(options)) => run::run(&options),
        Ok(options::Command::Print(text)) => {
            println!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(0) => ExitCode::SUCCESS,
        Ok(errors) => {
            eprintln!("{errors} errors");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
