//! Disk → models: configuration, versions, loading.

mod loader;
mod models;
pub mod store;

pub use loader::{Loaded, RunningModel, Settings, load};
pub use models::{Entry, ModelMap, ServedModel, VersionState, parse_version};
