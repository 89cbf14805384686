//! The host of backend libraries: what it offers them, when it asks them, and which of them it does not let in
//! (contract/c_api.md section 5).

mod support {
    pub mod backend;
    pub mod grpc;
    pub mod http;
    pub mod ports;
    pub mod repository;
    pub mod server;
    pub mod skip;
    pub mod variant;
}

mod native_programs {
    #[allow(dead_code)] // What a backend checks is told as programs tell it.
    pub mod program;
}

mod hosting {
    pub mod calls;
    pub mod libraries;
    pub mod readiness;
}
