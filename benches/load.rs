//! Loads one running server, once, and prints one line of JSON, of which `benches/side_by_side` makes its tables.
//!
//! `cargo bench --bench load -- --help` lists the options. The load is closed: a fixed number of requests in flight,
//! each on its connection, every answer compared. Beside rate and latency it reports the CPU time that the server's
//! process and all its children have used in the measured time.

#[allow(dead_code)] // What all benches of whole servers share; each uses a part.
#[path = "side"]
mod side {
    pub mod answer;
    pub mod burst;
    pub mod floor;
    pub mod http;
    pub mod line;
    pub mod load;
    pub mod machine;
    pub mod question;
    pub mod region;
    pub mod request;
    pub mod stream;
    pub mod tensor;
    pub mod unary;
    pub mod usage;
    pub mod varied;
}

#[path = "load"]
mod single {
    pub mod kind;
    pub mod options;
    pub mod outcome;
}

use std::process::ExitCode;

use side::floor;
use single::options::{self, Command};
use single::outcome;

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|argument| argument == floor::FLOOR_ARGUMENT) {
        return ended(floor::serve());
    }
    match options::parse(std::env::args().skip(1)) {
        Ok(Command::Run(options)) => ended(outcome::measure(&options).map(|line| println!("{line}"))),
        Ok(Command::Print(text)) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}\n{}", options::USAGE);
            ExitCode::from(2)
        }
    }
}

fn ended(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
