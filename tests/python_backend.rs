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
    mod environments;
    pub mod models;
    mod numbers;
    mod services;
    mod slow_clients;
    mod units;
}
