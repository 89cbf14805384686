//! Opens one treelite for the whole process, and reads model files with it.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use libloading::os::unix::{Library as Object, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

use super::handle::Handle;
use crate::RUNTIME as KIND;
use nereid_backend::runtime_search::{LibraryError, Missing, OpenedLibrary, OpenedOnce, Surroundings};
use nereid_request::Status;

pub(super) type Model = *mut c_void;
pub(super) type Configuration = *mut c_void;

/// `TreelitePyBufferFrame`: an array inside a model.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub buffer: *mut c_void,
    pub format: *mut c_char,
    pub item_size: usize,
    pub item_count: usize,
}

type ReadBytes = unsafe extern "C" fn(*const c_char, usize, *const c_char, *mut Model) -> c_int;
type ReadText = unsafe extern "C" fn(*const c_char, *const c_char, *mut Model) -> c_int;
type ReadCheckpoint = unsafe extern "C" fn(*const c_char, usize, *mut Model) -> c_int;
type Callback = extern "C" fn(*const c_char);

/// The functions of the interface that are used, and where they are from.
pub struct Library {
    pub(super) read_json: ReadBytes,
    pub(super) read_ubjson: ReadBytes,
    pub(super) read_legacy: ReadBytes,
    pub(super) read_lightgbm: ReadText,
    pub(super) read_lightgbm_file: ReadText,
    pub(super) read_checkpoint: ReadCheckpoint,
    pub(super) free_model: unsafe extern "C" fn(Model) -> c_int,
    pub(super) feature_count: unsafe extern "C" fn(Model, *mut c_int) -> c_int,
    pub(super) tree_count: unsafe extern "C" fn(Model, *mut usize) -> c_int,
    pub(super) header_field: unsafe extern "C" fn(Model, *const c_char, *mut Frame) -> c_int,
    pub(super) set_header_field: unsafe extern "C" fn(Model, *const c_char, Frame) -> c_int,
    pub(super) tree_field: unsafe extern "C" fn(Model, u64, *const c_char, *mut Frame) -> c_int,
    pub(super) parse_configuration: unsafe extern "C" fn(*const c_char, *mut Configuration) -> c_int,
    pub(super) free_configuration: unsafe extern "C" fn(Configuration) -> c_int,
    pub(super) output_shape: unsafe extern "C" fn(Model, u64, Configuration, *mut *const u64, *mut u64) -> c_int,
    pub(super) predict:
        unsafe extern "C" fn(Model, *const c_void, *const c_char, u64, *mut c_void, Configuration) -> c_int,
    on_warning: unsafe extern "C" fn(Callback) -> c_int,
    on_information: unsafe extern "C" fn(Callback) -> c_int,
    last_error: unsafe extern "C" fn() -> *const c_char,
    found: Inspected,
}

/// A library that was opened and returned its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    pub path: PathBuf,
    /// As the library reports it: `4.8.1`.
    pub version: String,
}

/// What treelite says of a call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TreeliteError(pub String);

impl From<TreeliteError> for Status {
    fn from(error: TreeliteError) -> Status {
        Status::unknown(error.0)
    }
}

/// The formats of model files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    XgboostJson,
    XgboostUbjson,
    XgboostLegacy,
    LightGbm,
    Checkpoint,
}

/// The content of a file, with a zero byte behind it: treelite reads texts up to that, in messages also buffers whose
/// length it has.
pub struct Content(Vec<u8>);

impl Content {
    pub fn read(path: &Path) -> std::io::Result<Content> {
        let mut file = File::open(path)?;
        let len = usize::try_from(file.metadata()?.len()).unwrap_or_default();
        let mut bytes = Vec::with_capacity(len.saturating_add(1));
        file.read_to_end(&mut bytes)?;
        bytes.push(0);
        Ok(Content(bytes))
    }

    pub fn bytes(&self) -> &[u8] {
        self.0.split_last().map_or(&[], |(_, bytes)| bytes)
    }
}

/// The oldest version whose interface has every function that is used.
const OLDEST: &str = "4.4";

/// `TreeliteQueryTreeliteVersion` as C++ names it: the library exports it so since 4.8.
const VERSION_SYMBOL: &[u8] = b"_Z28TreeliteQueryTreeliteVersionv\0";

/// Opens `path` and queries its version. The library stays mapped: its thread pool does not survive an unload.
pub fn inspect(path: &Path) -> Result<Inspected, LibraryError> {
    let library = Library::open(path)?;
    Ok(library.found)
}

/// The process's treelite, opened at the first call that finds one.
pub fn load(surroundings: &Surroundings) -> Result<&'static Library, Missing> {
    static LIBRARY: OpenedOnce<Library> = OpenedOnce::new();
    LIBRARY.find(&KIND, surroundings, Library::open)
}

impl OpenedLibrary for Library {
    fn path(&self) -> &Path {
        &self.found.path
    }

    fn version(&self) -> &str {
        &self.found.version
    }
}

impl Library {
    fn open(path: &Path) -> Result<Library, LibraryError> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        open_beside(&path);
        let object = open_object(&path, RTLD_NOW | RTLD_LOCAL)?;
        if !has_symbol(&object, b"TreeliteFreeModel\0") {
            return Err(LibraryError::Foreign { title: KIND.title, symbol: "TreeliteFreeModel" });
        }
        let version = version_of(&object, &path);
        let library = Library::bind(&object, Inspected { path, version: version.clone() })
            .ok_or(LibraryError::TooOld { title: KIND.title, version, needed: OLDEST.to_owned() })?;
        std::mem::forget(object);
        Ok(library)
    }

    /// `None` if a function is missing.
    fn bind(object: &Object, found: Inspected) -> Option<Library> {
        // SAFETY: each field has the type that treelite/c_api.h declares for the function of that name, in all versions
        // of the library that export the whole set.
        unsafe {
            Some(Library {
                read_json: *object.get(b"TreeliteLoadXGBoostModelFromJSONString\0").ok()?,
                read_ubjson: *object.get(b"TreeliteLoadXGBoostModelFromUBJSONString\0").ok()?,
                read_legacy: *object.get(b"TreeliteLoadXGBoostModelLegacyBinaryFromMemoryBuffer\0").ok()?,
                read_lightgbm: *object.get(b"TreeliteLoadLightGBMModelFromString\0").ok()?,
                read_lightgbm_file: *object.get(b"TreeliteLoadLightGBMModel\0").ok()?,
                read_checkpoint: *object.get(b"TreeliteDeserializeModelFromBytes\0").ok()?,
                free_model: *object.get(b"TreeliteFreeModel\0").ok()?,
                feature_count: *object.get(b"TreeliteQueryNumFeature\0").ok()?,
                tree_count: *object.get(b"TreeliteQueryNumTree\0").ok()?,
                header_field: *object.get(b"TreeliteGetHeaderField\0").ok()?,
                set_header_field: *object.get(b"TreeliteSetHeaderField\0").ok()?,
                tree_field: *object.get(b"TreeliteGetTreeField\0").ok()?,
                parse_configuration: *object.get(b"TreeliteGTILParseConfig\0").ok()?,
                free_configuration: *object.get(b"TreeliteGTILDeleteConfig\0").ok()?,
                output_shape: *object.get(b"TreeliteGTILGetOutputShape\0").ok()?,
                predict: *object.get(b"TreeliteGTILPredict\0").ok()?,
                on_warning: *object.get(b"TreeliteRegisterWarningCallback\0").ok()?,
                on_information: *object.get(b"TreeliteRegisterLogCallback\0").ok()?,
                last_error: *object.get(b"TreeliteGetLastError\0").ok()?,
                found,
            })
        }
    }

    /// Reads the content of a model file, which must have been validated (`crate::validation`).
    pub fn read(
        &'static self,
        format: Format,
        content: &Content,
        allow_unknown_field: bool,
    ) -> Result<Handle, TreeliteError> {
        self.log_to_server();
        let bytes = content.bytes();
        let at = bytes.as_ptr().cast();
        let options = match allow_unknown_field {
            true => c"{\"allow_unknown_field\":true}",
            false => c"{\"allow_unknown_field\":false}",
        };
        let mut model = null_mut();
        let result = match format {
            Format::LightGbm => {
                if bytes.contains(&0) {
                    return Err(TreeliteError("the LightGBM model file contains a zero byte".to_owned()));
                }
                // SAFETY: a zero byte follows the content; the model is written before the call returns.
                unsafe { (self.read_lightgbm)(at, c"{}".as_ptr(), &raw mut model) }
            }
            // SAFETY: `at` is readable for the given length, which is all that the function reads.
            Format::Checkpoint => unsafe { (self.read_checkpoint)(at, bytes.len(), &raw mut model) },
            Format::XgboostJson | Format::XgboostUbjson | Format::XgboostLegacy => {
                let read = match format {
                    Format::XgboostJson => self.read_json,
                    Format::XgboostUbjson => self.read_ubjson,
                    _ => self.read_legacy,
                };
                // SAFETY: the function takes a buffer with its length, and options that end with a zero byte.
                unsafe { read(at, bytes.len(), options.as_ptr(), &raw mut model) }
            }
        };
        self.check(result)?;
        Ok(Handle::new(self, model))
    }

    /// What treelite says of a file that does not exist.
    pub fn missing_file(&self, path: &Path) -> TreeliteError {
        let text = || TreeliteError(format!("Path \"{}\" does not exist", path.display()));
        let Ok(name) = CString::new(path.as_os_str().as_encoded_bytes()) else { return text() };
        let mut model = null_mut();
        // SAFETY: both texts end with a zero byte, and the model is written before the call returns.
        let result = unsafe { (self.read_lightgbm_file)(name.as_ptr(), c"{}".as_ptr(), &raw mut model) };
        match self.check(result) {
            Err(error) => error,
            Ok(()) => {
                // Somebody has put the file there in the meantime.
                drop(Handle::from_raw(self.free_model, model));
                text()
            }
        }
    }

    /// The error of a call on this thread that returned `result`.
    pub(super) fn check(&self, result: c_int) -> Result<(), TreeliteError> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: the function takes nothing and returns the text of this thread's last error, or null.
        let text = unsafe { (self.last_error)() };
        Err(TreeliteError(text_of(text).unwrap_or_else(|| "treelite gave no reason".to_owned())))
    }

    /// Messages of treelite on this thread go to the server's log.
    fn log_to_server(&self) {
        // SAFETY: treelite keeps the functions for this thread; they live as long as the process.
        unsafe {
            (self.on_warning)(warn);
            (self.on_information)(inform);
        }
    }
}

extern "C" fn warn(text: *const c_char) {
    tracing::warn!("treelite: {}", text_of(text).unwrap_or_default());
}

extern "C" fn inform(text: *const c_char) {
    tracing::info!("treelite: {}", text_of(text).unwrap_or_default());
}

fn text_of(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: treelite passes texts that end with a zero byte, valid during the call or until the thread's next one.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().trim_end().to_owned())
}

/// Opens the OpenMP library of the same package. The library's own search path leads to it only where both were
/// unpacked as they lie in the wheel; one that is loaded already is found by its name.
fn open_beside(library: &Path) {
    let Some(folder) = library.parent() else { return };
    for folder in [folder.to_path_buf(), folder.join("../../treelite.libs"), folder.join("../treelite.libs")] {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        let is_openmp = |path: &PathBuf| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            name.starts_with("libgomp") && name.contains(".so")
        };
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_openmp) {
            match open_object(&path, RTLD_NOW | RTLD_GLOBAL) {
                Ok(object) => {
                    std::mem::forget(object);
                    return;
                }
                Err(error) => tracing::debug!("{} {error}", path.display()),
            }
        }
    }
}

fn open_object(path: &Path, flags: i32) -> Result<Object, LibraryError> {
    // SAFETY: opening a library runs its initialisers; the user chose this file, or it lies where treelite lies.
    unsafe { Object::open(Some(path), flags) }.map_err(|error| LibraryError::opening(&error))
}

fn has_symbol(object: &Object, name: &[u8]) -> bool {
    // SAFETY: the symbol is only looked up; nothing is read through it.
    unsafe { object.get::<unsafe extern "C" fn()>(name) }.is_ok()
}

/// From the library, or from the file `VERSION` of the package that it is part of.
fn version_of(object: &Object, path: &Path) -> String {
    // SAFETY: treelite/c_api.h declares the function of this name without arguments, with a static text as result.
    let query = unsafe { object.get::<unsafe extern "C" fn() -> *const c_char>(VERSION_SYMBOL) };
    let of_library = query.ok().and_then(|query| {
        // SAFETY: the function has no preconditions.
        text_of(unsafe { query() })
    });
    let of_package = || {
        let text = std::fs::read_to_string(path.parent()?.parent()?.join("VERSION")).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty() && text.len() < 32)
    };
    of_library.or_else(of_package).unwrap_or_else(|| "of an unknown version".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use nereid_backend::scratch::Scratch;

    #[test]
    fn other_files_are_not_taken_for_treelite() {
        let scratch = Scratch::new("fil-library");
        let text = scratch.write("libtreelite.so", b"not a library");
        assert!(matches!(inspect(&text), Err(LibraryError::Open(_))));
        let foreign = ["libm.so.6", "libgcc_s.so.1"].into_iter().find_map(|name| match inspect(Path::new(name)) {
            Err(LibraryError::Open(_)) => None,
            other => Some(other),
        });
        let expected = LibraryError::Foreign { title: "treelite", symbol: "TreeliteFreeModel" };
        assert_eq!(foreign.expect("every host has one of these"), Err(expected));
        let setting = Surroundings { library_setting: Some(text), ..Surroundings::default() };
        let missing = setting.find(&KIND, inspect).unwrap_err().to_string();
        assert!(missing.starts_with("treelite is not available (--backend-config=fil,library: "), "{missing}");
        assert!(missing.ends_with("Install it with: nereid runtime install fil"), "{missing}");
    }

    #[test]
    fn the_library_of_a_package_opens_beside_its_openmp_and_alone() {
        let Some(python) = fixtures::python() else { return };
        let library = python.packages().join("treelite/lib/libtreelite.so");
        let inspected = inspect(&library).unwrap();
        assert_eq!(inspected.version, "4.8.1");
        // Unpacked without the folders of the wheel, its search path leads nowhere.
        let scratch = Scratch::new("fil-flat");
        let copy = scratch.write("libtreelite.so", &std::fs::read(&library).unwrap());
        for entry in std::fs::read_dir(python.packages().join("treelite.libs")).unwrap() {
            let path = entry.unwrap().path();
            scratch.write(path.file_name().unwrap().to_str().unwrap(), &std::fs::read(&path).unwrap());
        }
        assert_eq!(inspect(&copy).unwrap().version, "4.8.1");
    }
}
