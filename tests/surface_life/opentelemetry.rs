//! Traces for a collector (spec: metrics.md section 4).
