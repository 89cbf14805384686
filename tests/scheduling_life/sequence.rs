//! The sequence batcher (schedulers.md section 3).
