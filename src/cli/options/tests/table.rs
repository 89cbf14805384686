//! Every flag that takes a value: the option that it sets, the values that it refuses, and their errors.

mod host;
mod ipc;
mod models;
mod openai;
mod ports;
mod record;
mod residency;
mod shares;

use super::*;
use nereid_observe::log::LogFormat;

/// One flag. `help` and `disable-auto-complete-config` take no value and stand elsewhere.
pub struct Row {
    pub flag: &'static str,
    /// A further flag on the same command line.
    pub beside: &'static str,
    /// Values, with the change that they make.
    pub good: &'static [(&'static str, Change)],
    /// Values with the inner text of the error.
    pub bad: &'static [(&'static str, &'static str)],
}

type Change = fn(&mut ServeOptions);

/// In the order of the flags.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [models::ROWS, ports::ROWS, host::ROWS, shares::ROWS, residency::ROWS, record::ROWS, ipc::ROWS, openai::ROWS]
        .into_iter()
        .flatten()
}

fn explicit(options: &mut ServeOptions, models: &[&str]) {
    options.model_control = ModelControl::Explicit;
    options.startup_models = models.iter().map(|name| (*name).to_owned()).collect();
}
