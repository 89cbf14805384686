//! Scripted peers of HTTP/2.
