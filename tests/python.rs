//! Models in Python, in real processes: what they are given, what becomes of what they answer, and of their ends.

// rustfmt looks beside the scripts in tests/python otherwise.
#[path = "support"]
mod support {
    pub mod http;
    pub mod prepared;
    pub mod python;
    pub mod repository;
    pub mod server;
    pub mod skip;
    pub mod variant;
}

#[path = "python_life"]
mod python_life {
    mod environments;
    mod models;
    mod numbers;
}
