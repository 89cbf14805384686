//! Trace settings and trace files (spec: metrics.md section 4, http.md section 3).
