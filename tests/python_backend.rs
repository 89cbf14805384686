//! Python models behind a real server: `model.py` files as Triton's users write them (spec: python_backend.md).

mod support {
    pub mod http;
    pub mod prepared;
    pub mod python;
    pub mod repository;
    pub mod server;
    pub mod skip;
    pub mod variant;
}

mod python_life {
    mod calls;
    mod classes;
    mod environments;
    mod execution;
    mod faults;
    mod life;
    mod minilm;
    pub mod models;
    mod numbers;
    mod services;
    mod slow_clients;
    pub mod trouble;
    mod units;
}
