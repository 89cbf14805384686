//! The functions that open libraries with C interfaces of Triton.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::repository::agents::OpenLibrary;
use nereid_backend::plugin::MakePluginLoader;
use nereid_request::Status;
use nereid_scheduler::cache::Store;

/// Opens the library of the cache of this name, from the file if one is given, in the folder of that name in the
/// directory, with these settings.
pub type OpenCacheLibrary = fn(&str, Option<&str>, &Path, &BTreeMap<&str, &str>) -> Result<Box<dyn Store>, Status>;

/// The code that starts a server passes this to it. `abi` has the functions: it lies above the server, because programs
/// that link the library drive a server through it.
pub struct Libraries {
    /// Makes the loader of backends and of batching libraries.
    pub plugins: MakePluginLoader,
    /// Returns the function that opens repository agents from the folders of a directory.
    pub agents: fn(PathBuf) -> OpenLibrary,
    /// Opens caches.
    pub cache: OpenCacheLibrary,
    /// Reports the handles that libraries have not given back, once the server has ended.
    pub report_handles: fn(),
}
