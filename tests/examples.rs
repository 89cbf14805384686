//! Backends behind Triton's C interface, both ways: those of `examples/backends/` in our server and in the official
//! one, and the official Python backend, as it comes in its package, in ours. Who answers must make no difference.

mod support {
    pub mod grpc;
    pub mod http;
    pub mod original;
    pub mod ports;
    pub mod prepared;
    pub mod python;
    pub mod python_backend;
    pub mod repository;
    pub mod server;
    pub mod skip;
    pub mod steadily;
    pub mod variant;
}

mod example_backends {
    mod answers;
    mod built;
    mod python;
    mod servers;
    mod streams;
}
