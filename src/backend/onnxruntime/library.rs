//! Opens one ONNX Runtime library for the whole process, without a panic for unsuitable files.
//!
//! The binding crate panics if a library is missing, foreign or too old. So a candidate is opened and its version and
//! interface are queried first, and only a suitable one is passed to the crate.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::path::{Path, PathBuf};

use ort::sys;

use super::RUNTIME as KIND;
use super::runtime::{Runtime, RuntimeOptions};
use crate::runtime_search::{LibraryError, Missing, OpenedLibrary, OpenedOnce, Surroundings};

/// A library that was opened and returned its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    pub path: PathBuf,
    /// As the library reports it, e.g. `1.31.1`.
    pub version: String,
}

/// Opens `path` and queries its version. The library stays mapped: its destructors are not made for a process that
/// continues.
pub fn inspect(path: &Path) -> Result<Inspected, LibraryError> {
    // A path without a slash is looked up by the loader; everything else is made absolute, because the binding crate
    // would take it relative to the executable.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    // SAFETY: opening a library runs its initialisers; the user chose this file, or it lies where ONNX Runtime lies.
    let library = unsafe { libloading::Library::new(&path) }.map_err(|error| LibraryError::opening(&error))?;
    // SAFETY: a symbol of this name has this type in every library that is ONNX Runtime (onnxruntime_c_api.h).
    let base = unsafe { library.get::<unsafe extern "system" fn() -> *const sys::OrtApiBase>(b"OrtGetApiBase\0") };
    let Ok(get_base) = base else {
        return Err(LibraryError::Foreign { title: KIND.title, symbol: "OrtGetApiBase" });
    };
    // SAFETY: the function takes nothing and returns a static table, or null.
    let Some(base) = (unsafe { get_base().as_ref() }) else {
        return Err(unusable("OrtGetApiBase returned nothing"));
    };
    // SAFETY: the table's function returns a static string, or null.
    let version = unsafe { (base.GetVersionString)() };
    if version.is_null() {
        return Err(unusable("it has no version"));
    }
    // SAFETY: not null, and NUL-terminated by the interface's contract.
    let version = unsafe { CStr::from_ptr(version) }.to_string_lossy().into_owned();
    // SAFETY: any number may be passed; an unknown one gives null.
    if unsafe { (base.GetApi)(sys::ORT_API_VERSION) }.is_null() {
        return Err(LibraryError::TooOld { title: KIND.title, version, needed: format!("1.{}", sys::ORT_API_VERSION) });
    }
    std::mem::forget(library);
    Ok(Inspected { path, version })
}

fn unusable(reason: &str) -> LibraryError {
    LibraryError::Unusable { title: KIND.title, reason: reason.to_owned() }
}

impl OpenedLibrary for Runtime {
    fn path(&self) -> &Path {
        Runtime::path(self)
    }

    fn version(&self) -> &str {
        Runtime::version(self)
    }
}

/// The process's ONNX Runtime, opened at the first call that finds one. `options` count only for that call.
pub fn load(surroundings: &Surroundings, options: &RuntimeOptions) -> Result<&'static Runtime, Missing> {
    static RUNTIME: OpenedOnce<Runtime> = OpenedOnce::new();
    RUNTIME.find(&KIND, surroundings, |path| open(path, options))
}

/// The first library of `surroundings` that can be opened; it is not started.
pub fn locate(surroundings: &Surroundings) -> Result<Inspected, Missing> {
    surroundings.find(&KIND, inspect)
}

fn open(path: &Path, options: &RuntimeOptions) -> Result<Runtime, LibraryError> {
    let Inspected { path, version } = inspect(path)?;
    // The crate opens the same file again; both handles share one mapping. Its builder is not used here.
    drop(ort::init_from(&path).map_err(|error| LibraryError::Refused(error.to_string()))?);
    Runtime::start(ort::api(), path, version, options).map_err(|error| LibraryError::Start(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use nereid_request::Status;

    fn setting(path: PathBuf) -> Surroundings {
        Surroundings { library_setting: Some(path), ..Surroundings::default() }
    }

    #[test]
    fn a_text_file_is_refused() {
        let scratch = Scratch::new("library-text");
        let file = scratch.write("libonnxruntime.so", b"not a library");
        assert!(matches!(inspect(&file), Err(LibraryError::Open(_))));
        let error = locate(&setting(file.clone())).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("--backend-config=onnxruntime,library: "), "{text}");
        assert!(text.contains(&*file.to_string_lossy()) && text.contains("cannot be opened"), "{text}");
        assert!(text.ends_with("Install it with: nereid runtime install onnxruntime"), "{text}");
        assert_eq!(Status::from(error).code, nereid_request::Code::Unavailable);
    }

    #[test]
    fn a_candidate_is_found_by_its_name() {
        let scratch = Scratch::new("library-candidate");
        let file = scratch.write("libonnxruntime.so", b"not a library");
        assert_eq!(setting(file.clone()).candidate(&KIND), Ok(file.clone()));
        assert_eq!(setting("libonnxruntime.so".into()).candidate(&KIND), Ok("libonnxruntime.so".into()));
        let text = setting(file.with_file_name("absent.so")).candidate(&KIND).unwrap_err().to_string();
        assert!(text.contains("/absent.so cannot be opened: no such file"), "{text}");
    }

    #[test]
    fn another_library_is_refused() {
        let libm = ["libm.so.6", "libgcc_s.so.1"].into_iter().find_map(|name| match inspect(Path::new(name)) {
            Err(LibraryError::Open(_)) => None,
            other => Some(other),
        });
        assert_eq!(
            libm.expect("every host has one of these"),
            Err(LibraryError::Foreign { title: "ONNX Runtime", symbol: "OrtGetApiBase" })
        );
    }

    #[test]
    fn a_missing_file_that_was_named_ends_the_search() {
        let scratch = Scratch::new("library-named");
        let mut surroundings = setting(scratch.path("gone.so"));
        surroundings.data_home = Some(scratch.path("data"));
        scratch.file("data/nereid/runtimes/onnxruntime/1.31.1/libonnxruntime.so.1.31.1");
        let text = locate(&surroundings).unwrap_err().to_string();
        assert!(text.contains("gone.so cannot be opened"), "{text}");
        assert!(!text.contains("runtimes/onnxruntime"), "{text}");
    }

    #[test]
    fn every_place_is_named_and_broken_finds_are_passed_over() {
        let scratch = Scratch::new("library-places");
        scratch.file("data/nereid/runtimes/onnxruntime/1.31.1/libonnxruntime.so.1.31.1");
        let surroundings = Surroundings {
            data_home: Some(scratch.path("data")),
            virtual_env: Some(scratch.path("venv")),
            ..Surroundings::default()
        };
        let text = locate(&surroundings).unwrap_err().to_string();
        for part in [
            "--backend-config=onnxruntime,library: not set",
            "ORT_DYLIB_PATH: not set",
            "NEREID_ONNXRUNTIME_LIBRARY: not set",
            "1.31.1/libonnxruntime.so.1.31.1 cannot be opened",
            "venv/lib/python3.*/site-packages/onnxruntime/capi",
            "python3 on the PATH: none",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        // The first that opens wins, even after others that do not.
        let found = surroundings.find(&KIND, |path| Ok(path.to_path_buf())).unwrap();
        assert!(found.ends_with("1.31.1/libonnxruntime.so.1.31.1"));
    }
}
