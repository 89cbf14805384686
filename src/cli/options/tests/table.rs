//! Every flag that takes a value: what it sets, what it refuses and with which words.

mod host;
mod models;
mod ports;

use super::*;
use nereid_observe::log::LogFormat;

/// One flag. `help` and `disable-auto-complete-config` take no value and stand elsewhere.
pub struct Row {
    pub flag: &'static str,
    /// A flag that is given besides.
    pub beside: &'static str,
    /// Values with what they change.
    pub good: &'static [(&'static str, Change)],
    /// Values with the inner text of the error.
    pub bad: &'static [(&'static str, &'static str)],
}

type Change = fn(&mut ServeOptions);

/// In the order of the flags.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    [models::ROWS, ports::ROWS, host::ROWS].into_iter().flatten()
}

fn explicit(options: &mut ServeOptions, models: &[&str]) {
    options.model_control = ModelControl::Explicit;
    options.startup_models = models.iter().map(|name| (*name).to_owned()).collect();
}
