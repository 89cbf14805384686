//! Python models behind a real server: `model.py` files as Triton's users write them (contract/python_backend.md).

mod calls;
mod chat;
mod classes;
mod cost;
mod devices;
mod dropped;
mod engines;
mod environments;
mod execution;
mod faults;
mod leftovers;
mod life;
mod loading;
mod minilm;
pub mod models;
mod numbers;
mod quickstarted;
mod readiness;
mod restart;
mod services;
mod slow_clients;
mod soak;
pub mod trouble;
mod units;
