//! curl against the HTTP port.
