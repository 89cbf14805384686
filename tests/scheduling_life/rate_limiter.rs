//! Resources that instances share (schedulers.md section 6).
