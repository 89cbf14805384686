//! The program: it parses, starts, waits for a signal and drains in the library, so that applications can link all of
//! it.

use std::process::ExitCode;

fn main() -> ExitCode {
    tritonserver::cli::main(std::env::args_os())
}
