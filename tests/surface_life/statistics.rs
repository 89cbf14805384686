//! Statistics that only backends can tell (spec: metrics.md section 3).
