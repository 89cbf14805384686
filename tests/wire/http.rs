//! Tests of the HTTP port of a whole server with scripted peers, which send exactly the bytes that a test states
//! (contract/http.md; contract/metrics.md sections 1 to 3).

mod classification;
mod connection;
mod content_types;
mod dialect;
mod errors;
mod exiting;
mod forms;
mod management;
mod order;
mod recurring;
mod validation;
