//! Decoupled models over plain HTTP: one event for each response.
