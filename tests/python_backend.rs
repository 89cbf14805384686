//! Python models behind a real server: `model.py` files as Triton's users write them (spec: python_backend.md).

mod support {
    pub mod http;
    pub mod python;
    pub mod repository;
    pub mod server;
    pub mod skip;
    pub mod variant;
}

mod python_life {
    mod faults;
    pub mod models;
    mod numbers;
    pub mod trouble;
    mod units;
}
