//! Parse, start, wait for a signal, drain: all of it in the library, so that it can be linked as well.

use std::process::ExitCode;

fn main() -> ExitCode {
    tritonserver::cli::main(std::env::args_os())
}
