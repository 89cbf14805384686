//! What the server is told to do, whoever tells it.

pub use crate::cli::options::{BackendSetting, IoEngine, Listen, ServeOptions as Options};
