//! The host of backend libraries: what it offers them, when it asks them, and which of them it does not let in
//! (contract/c_api.md section 5).

mod calls;
mod libraries;
mod readiness;
