//! Tests of the server as the host of backend libraries: the functions that it provides, when it calls a library, and
//! which libraries it refuses (contract/c_api.md section 5).

mod calls;
mod libraries;
mod readiness;
