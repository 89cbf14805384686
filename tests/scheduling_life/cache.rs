//! The response cache, local and in Redis (schedulers.md section 8).
