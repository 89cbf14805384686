//! Loads the whole server and prints the cost of a request: `cargo bench --bench server -- --help` lists the options.
//!
//! The release binary runs as a process of its own with a repository of `identity` models, pinned to its own core; one
//! client thread on another core keeps a fixed number of requests in flight, uses the server's own codecs in the
//! client's role, and compares every answer with the one that it decoded before. Scenarios and engines take turns,
//! round by round, so that drift of the machine reaches all of them; the headline is the server's CPU time a request,
//! which suffers less from neighbours than rates do. Nothing here asserts a speed: only wrong answers, and a server
//! that does not stop cleanly, fail the bench.

mod server {
    pub mod options;
    pub mod process;
    pub mod report;
    pub mod run;
    pub mod scenario;
}

#[allow(dead_code)] // What all benches of whole servers share; each uses a part.
#[path = "side"]
mod side {
    pub mod answer;
    pub mod floor;
    pub mod http;
    pub mod line;
    pub mod load;
    pub mod machine;
    pub mod region;
    pub mod request;
    pub mod stream;
    pub mod tensor;
    pub mod unary;
    pub mod usage;
}

use std::process::ExitCode;

use server::{options, run};
use side::floor;

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|argument| argument == floor::FLOOR_ARGUMENT) {
        return match floor::serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let options = match options::parse(std::env::args().skip(1)) {
        Ok(options::Command::Run(options)) => options,
        Ok(options::Command::Print(text)) => {
            println!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    match run::run(&options) {
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
