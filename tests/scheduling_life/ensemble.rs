//! Ensembles of models (schedulers.md section 5).
