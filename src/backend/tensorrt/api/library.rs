//! The library: the three functions that it exports, its version, its plug-ins.

use std::ffi::{c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nereid_backend::runtime_search::{LibraryError, Missing, OpenedLibrary, OpenedOnce, Surroundings};

use super::abi::{Shell, Slots, Version, slots};
use super::logger;
use crate::RUNTIME as KIND;

/// `IRuntime* createInferRuntime_INTERNAL(void* logger, int32_t version)`
pub(super) type CreateRuntime = unsafe extern "C" fn(*const c_void, i32) -> *mut Shell;
type GetVersion = unsafe extern "C" fn() -> i32;
/// `bool initLibNvInferPlugins(void* logger, char const* namespace)`
type InitPlugins = unsafe extern "C" fn(*const c_void, *const c_char) -> u8;

/// A library that has this symbol computes on simulated devices; NVIDIA's does not.
const FOR_SIMULATED: &str = "nereid_computes_on_simulated_gpus";

/// The opened library.
pub struct Library {
    pub(super) create_runtime: CreateRuntime,
    pub(super) slots: Slots,
    number: i32,
    version: String,
    path: PathBuf,
    is_for_simulated: bool,
}

impl OpenedLibrary for Library {
    fn path(&self) -> &Path {
        &self.path
    }

    fn version(&self) -> &str {
        &self.version
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TensorRT {} from {}", self.version, self.path.display())
    }
}

/// The process's TensorRT, opened at the first call that finds one.
pub fn load(surroundings: &Surroundings) -> Result<&'static Library, Missing> {
    static LIBRARY: OpenedOnce<Library> = OpenedOnce::new();
    LIBRARY.find(&KIND, surroundings, Library::open)
}

/// The version of the library at `path`, which is opened and stays mapped.
pub fn inspect(path: &Path) -> Result<String, LibraryError> {
    Ok(Library::open(path)?.version)
}

impl Library {
    /// A library of its own for tests, beside the process's.
    #[cfg(test)]
    pub fn opened_at(path: &Path) -> &'static Library {
        Box::leak(Box::new(Library::open(path).unwrap()))
    }

    fn open(path: &Path) -> Result<Library, LibraryError> {
        // SAFETY: opening a library runs its initialisers; the user chose this file, or it lies where TensorRT lies.
        let library = unsafe { libloading::Library::new(path) }.map_err(|error| LibraryError::opening(&error))?;
        let foreign = |symbol| LibraryError::Foreign { title: KIND.title, symbol };
        const VERSION: &str = "getInferLibVersion";
        // SAFETY: every version of TensorRT declares it so.
        let get_version: GetVersion = *unsafe { library.get(VERSION) }.map_err(|_| foreign(VERSION))?;
        const CREATE: &str = "createInferRuntime_INTERNAL";
        // SAFETY: every version exports it with this type.
        let create_runtime: CreateRuntime = *unsafe { library.get(CREATE) }.map_err(|_| foreign(CREATE))?;
        // SAFETY: the address of the symbol is not used.
        let is_for_simulated = unsafe { library.get::<*const c_void>(FOR_SIMULATED) }.is_ok();
        // SAFETY: it takes nothing.
        let number = unsafe { get_version() };
        let version = Version::of_number(number);
        std::mem::forget(library);
        let Some(slots) = slots(version) else {
            let reason = format!("it is version {version}, and this build of the server uses versions 10 and 11");
            return Err(LibraryError::Unusable { title: KIND.title, reason });
        };
        let (path, text) = (path.to_owned(), version.to_string());
        let opened = Library { create_runtime, slots, number, version: text, path, is_for_simulated };
        opened.init_plugins(version);
        Ok(opened)
    }

    /// Registers the plug-ins of TensorRT's own plug-in library, if it lies beside this one.
    fn init_plugins(&self, version: Version) {
        let name = format!("libnvinfer_plugin.so.{}", version.major);
        let is_bare = self.path.components().count() == 1;
        let path = if is_bare { PathBuf::from(&name) } else { self.path.with_file_name(&name) };
        if !is_bare && !path.is_file() {
            return;
        }
        // SAFETY: as for the library itself.
        let library = match unsafe { libloading::Library::new(&path) } {
            Ok(library) => std::mem::ManuallyDrop::new(library),
            Err(error) if is_bare => return tracing::debug!("there are no plug-ins of TensorRT: {error}"),
            Err(error) => return tracing::warn!("the plug-ins of TensorRT cannot be used: {error}"),
        };
        // SAFETY: TensorRT's headers declare it so.
        match unsafe { library.get::<InitPlugins>("initLibNvInferPlugins") } {
            // SAFETY: the logger lives as long as the process, and an empty namespace is the common one.
            Ok(init) => match unsafe { init(self.logger(), c"".as_ptr()) } {
                0 => tracing::warn!("the plug-ins of TensorRT in {} were not registered", path.display()),
                _ => tracing::debug!("the plug-ins of TensorRT in {} are registered", path.display()),
            },
            Err(error) => tracing::warn!("{} has no plug-ins of TensorRT: {error}", path.display()),
        }
    }

    /// The number that a caller states as the version of its declarations: that of the library, whose order is known.
    pub(super) fn number(&self) -> i32 {
        self.number
    }

    /// Whether it was made for simulated devices.
    pub fn is_for_simulated(&self) -> bool {
        self.is_for_simulated
    }

    pub(super) fn logger(&self) -> *const c_void {
        logger::logger(self.slots.logger_has_version)
    }
}

/// Opens libraries of plug-ins, which register themselves. A failure is logged (contract/frameworks.md section 2).
pub fn open_plugins(paths: &str) {
    static OPENED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    for path in paths.split(';').map(str::trim).filter(|path| !path.is_empty()) {
        if opened.iter().any(|one| one == path) {
            continue;
        }
        opened.push(path.to_owned());
        // SAFETY: opening a library runs its initialisers; the user chose this file.
        match unsafe { libloading::Library::new(path) } {
            Ok(library) => {
                std::mem::forget(library);
                tracing::info!("the plug-in {path} of TensorRT is loaded");
            }
            Err(error) => tracing::error!("the plug-in {path} of TensorRT cannot be opened: {error}"),
        }
    }
}

/// Runtimes and engines are created one at a time in the process: engines that are read at the same time contend for
/// one device, and upstream does the same (contract/frameworks.md section 2).
pub(super) fn creation() -> MutexGuard<'static, ()> {
    static CREATION: Mutex<()> = Mutex::new(());
    CREATION.lock().unwrap_or_else(PoisonError::into_inner)
}
