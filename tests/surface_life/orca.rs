//! Load reports in answers of `generate` (spec: http.md section 7).
