//! The scheduler of ensembles over models that answer when a test says so.
