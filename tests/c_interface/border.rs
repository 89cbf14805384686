//! What foreign code may do wrong at the border to C, and what becomes of it: an error that says so, a log line that
//! names who it was, and a server that goes on (contract/c_api.md sections 4 and 5).

mod batching;
mod compiler;
mod crashes;
mod exceptions;
mod handles;
mod leaks;
mod mechanical;
mod sanitized;
