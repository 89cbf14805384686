//! The same Python models in the official server of release 2.51 and in ours: the same requests, over HTTP and gRPC,
//! and the answers held side by side, field by field (docs/differences.md has what may differ).

mod support {
    pub mod original;
    pub mod ports;
    pub mod python;
    pub mod python_backend;
    pub mod repository;
    pub mod server;
    pub mod skip;
    pub mod steadily;
    pub mod variant;
}

mod against_official {
    mod answers;
    mod comparison;
    mod known;
    mod servers;
}
