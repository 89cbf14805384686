//! The families of the metrics page and its settings (spec: metrics.md sections 1 and 2).
