//! What fuzz targets ask the handle registry.

/// The objects that C has and has not given back: the number of each kind, and the functions that they came from.
pub fn held_handles() -> Vec<String> {
    super::handle_registry::held()
}
