//! Wrong calls of foreign code at the C interface: each results in an error that describes it and a log line that names
//! the code, and the server continues (contract/c_api.md sections 4 and 5).

mod batching;
mod compiler;
mod crashes;
mod exceptions;
mod handles;
mod leaks;
mod mechanical;
mod sanitized;
