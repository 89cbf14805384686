//! Models in Python, in real processes: what they are given, what becomes of what they answer, and of their ends.

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
    mod environments;
    mod models;
    mod numbers;
}
