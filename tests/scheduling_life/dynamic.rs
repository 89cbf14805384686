//! The dynamic batcher (schedulers.md section 2).
