//! The process as an operator sees it: flags, exit codes, errors of models and ports, and how it stops (contract/cli.md
//! sections 1, 2, 5, 6, 7).

mod bound;
mod crash;
mod deep_check;
mod engine;
mod explain;
mod flags;
mod front;
mod instances;
mod logging;
mod migrate;
mod models;
mod next_steps;
mod one_number;
mod rolling;
mod sandbox;
mod service;
mod stages;
mod statistics;
mod stop;
mod tuning;
mod warmup;
mod without;

pub use service::SEVEN;
