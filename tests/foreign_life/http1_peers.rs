//! Scripted peers of HTTP/1.1.
