//! Opens one TensorFlow for the whole process.
//!
//! It is never closed: its thread pools, allocators and registered operations live as long as the process, and sessions
//! end on whatever thread drops them last.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libloading::Library;
use nereid_backend::runtime_search::{LibraryError, Missing, OpenedLibrary, OpenedOnce, Surroundings};

use super::functions::Functions;
use super::status::{CallStatus, TensorFlowError, text_of};
use crate::RUNTIME as KIND;

/// The library of tensors and strings, which the one of sessions needs.
const FRAMEWORK_STEM: &str = "libtensorflow_framework.so";

/// The oldest version whose C interface was tried.
const OLDEST: (u32, u32) = (2, 16);

/// A library that was opened and returned its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    pub path: PathBuf,
    /// As the library reports it: `2.21.0`.
    pub version: String,
}

/// TensorFlow, opened.
pub struct Runtime {
    pub(super) functions: Functions,
    path: PathBuf,
    version: String,
    /// Libraries of operations that were loaded: their operations are registered for the whole process.
    operations: Mutex<BTreeSet<PathBuf>>,
}

impl OpenedLibrary for Runtime {
    fn path(&self) -> &Path {
        &self.path
    }

    fn version(&self) -> &str {
        &self.version
    }
}

impl Runtime {
    /// Loads a library of operations, once per process (`model_operations.op_library_filename`).
    pub fn load_operations(&'static self, given: &str) -> Result<(), TensorFlowError> {
        let path = Path::new(given).canonicalize().unwrap_or_else(|_| PathBuf::from(given));
        let mut loaded = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.contains(&path) {
            return Ok(());
        }
        let name = CString::new(path.as_os_str().as_bytes());
        let name = name.map_err(|_| TensorFlowError(format!("'{given}' contains a zero byte")))?;
        let status = CallStatus::new(self)?;
        // SAFETY: the name is NUL-terminated and the status live. The handle is not used again: the library stays
        // loaded. Its initialisers run: the operator of the server named it in a model's configuration.
        unsafe { (self.functions.TF_LoadLibrary)(name.as_ptr(), status.as_ptr()) };
        status.check()?;
        loaded.insert(path);
        Ok(())
    }
}

/// Opens `path` and queries its version.
pub fn inspect(path: &Path) -> Result<Inspected, LibraryError> {
    let runtime = open(path)?;
    Ok(Inspected { path: runtime.path, version: runtime.version })
}

/// The first library of `surroundings` that can be opened.
pub fn locate(surroundings: &Surroundings) -> Result<Inspected, Missing> {
    surroundings.find(&KIND, inspect)
}

/// The process's TensorFlow, opened at the first call that finds one.
pub fn load(surroundings: &Surroundings) -> Result<&'static Runtime, Missing> {
    static RUNTIME: OpenedOnce<Runtime> = OpenedOnce::new();
    RUNTIME.find(&KIND, surroundings, open)
}

fn open(path: &Path) -> Result<Runtime, LibraryError> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    // The loader finds it by the name that the other library needs, even if that one was moved away from its RUNPATH.
    if let Some(framework) = framework_beside(&path) {
        std::mem::forget(open_one(&framework)?);
    }
    let library = open_one(&path)?;
    let functions = Functions::resolve(&library);
    let functions = functions.map_err(|symbol| LibraryError::Foreign { title: KIND.title, symbol })?;
    std::mem::forget(library);
    // SAFETY: the function takes nothing and returns a static text.
    let version = unsafe { text_of((functions.TF_Version)()) };
    if numbers_of(&version) < OLDEST {
        let needed = format!("{}.{}", OLDEST.0, OLDEST.1);
        return Err(LibraryError::TooOld { title: KIND.title, version, needed });
    }
    Ok(Runtime { functions, path, version, operations: Mutex::default() })
}

fn open_one(path: &Path) -> Result<Library, LibraryError> {
    // SAFETY: opening a library runs its initialisers; the user chose this file, or it lies where TensorFlow lies.
    unsafe { Library::new(path) }.map_err(|error| LibraryError::opening(&error))
}

/// `libtensorflow_framework.so.2` for `libtensorflow_cc.so.2`.
fn framework_beside(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let version = name.split_once(".so").map(|(_, version)| version)?;
    [version, ""]
        .iter()
        .map(|version| path.with_file_name(format!("{FRAMEWORK_STEM}{version}")))
        .find(|it| it.is_file())
}

fn numbers_of(version: &str) -> (u32, u32) {
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_backend::scratch::Scratch;

    #[test]
    fn other_files_are_refused() {
        let scratch = Scratch::new("tensorflow-library");
        let file = scratch.write("libtensorflow_cc.so.2", b"not a library");
        assert!(matches!(inspect(&file), Err(LibraryError::Open(_))));
        let surroundings = Surroundings { library_setting: Some(file), ..Surroundings::default() };
        let text = locate(&surroundings).unwrap_err().to_string();
        assert!(text.contains("--backend-config=tensorflow,library: "), "{text}");
        assert!(text.ends_with("Install it with: nereid runtime install tensorflow"), "{text}");
        let foreign = ["libm.so.6", "libgcc_s.so.1"].into_iter().find_map(|name| match inspect(Path::new(name)) {
            Err(LibraryError::Open(_)) => None,
            other => Some(other),
        });
        let expected = LibraryError::Foreign { title: "TensorFlow", symbol: "TF_Version" };
        assert_eq!(foreign.expect("every host has one of these"), Err(expected));
    }

    #[test]
    fn the_second_library_is_the_one_of_the_same_version() {
        let scratch = Scratch::new("tensorflow-framework");
        let sessions = scratch.write("libtensorflow_cc.so.2", b"");
        assert_eq!(framework_beside(&sessions), None);
        let unversioned = scratch.write("libtensorflow_framework.so", b"");
        assert_eq!(framework_beside(&sessions), Some(unversioned));
        let versioned = scratch.write("libtensorflow_framework.so.2", b"");
        assert_eq!(framework_beside(&sessions), Some(versioned));
        assert_eq!(framework_beside(Path::new("libm.so.6")), None);
        assert_eq!((numbers_of("2.21.0"), numbers_of("2.9-rc1"), numbers_of("")), ((2, 21), (2, 0), (0, 0)));
    }
}
