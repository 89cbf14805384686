//! Libraries of caches and repository agents: opens them, finds their exports, and guards every call into them.

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::os::unix::Library as Handle;

use super::server::Error;
use crate::abi::guard::{ForeignCode, guarded};
use crate::abi::plugin::{open_file, reason_of};
use nereid_request::Status;

/// One library. Never closed: its threads and destructors may outlive the last call.
pub(super) struct Library {
    handle: ManuallyDrop<Handle>,
    pub path: PathBuf,
}

impl Library {
    /// Opens the library at `path`; its undefined symbols bind to the server's own functions.
    pub fn open(path: &Path) -> Result<Library, Status> {
        let handle = open_file(path);
        let handle = handle.map_err(|text| Status::not_found(format!("unable to load shared library: {text}")))?;
        Ok(Library { handle: ManuallyDrop::new(handle), path: path.to_owned() })
    }

    /// # Safety
    /// `F` is the type of the function of this name.
    pub unsafe fn find<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: `F` is the type of the function of this name: this function requires it of its caller.
        unsafe { self.handle.get::<F>(name) }.ok().map(|symbol| *symbol)
    }

    /// The same for an export that is required.
    ///
    /// # Safety
    /// As for [`Library::find`].
    pub unsafe fn require<F: Copy>(&self, name: &str) -> Result<F, Status> {
        // SAFETY: `F` is the type of the function of this name: this function requires it of its caller.
        unsafe { self.handle.get::<F>(name) }.map(|symbol| *symbol).map_err(|error| {
            let reason = reason_of(&error);
            Status::not_found(format!("unable to find required entrypoint '{name}' in shared library: {reason}"))
        })
    }
}

/// The path of the library that an operator's settings name: `file` in the folder `name` of `directory`. Neither may be
/// a path.
pub(super) fn locate(directory: &Path, name: &str, file: &str) -> Option<PathBuf> {
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(['/', '\0']);
    let path = directory.join(name).join(file);
    (is_plain(name) && is_plain(file) && path.is_file()).then_some(path)
}

/// Runs `function`, which calls one export that returns an error or NULL, and takes ownership of the error.
pub(super) fn call(work: &ForeignCode<'_>, function: impl FnOnce() -> *mut Error) -> Result<(), Status> {
    let threw = |thrown| Status::internal(format!("the {} threw an exception: {thrown}", work.kind));
    let error = guarded(work, function).map_err(threw)?;
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: an error that a library returns came from this interface, and belongs to the caller from then on.
    Err(unsafe { Error::returned(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_no_paths() {
        let root = std::env::temp_dir().join(format!("nereid-locate-{}", std::process::id()));
        std::fs::create_dir_all(root.join("a/inner")).unwrap();
        for file in ["a/lib.so", "a/inner/lib.so", "lib.so"] {
            std::fs::write(root.join(file), "").unwrap();
        }
        assert_eq!(locate(&root, "a", "lib.so"), Some(root.join("a/lib.so")));
        let cases = [
            ("a", "inner/lib.so"),
            ("a", "../lib.so"),
            ("..", "lib.so"),
            (".", "lib.so"),
            ("", "lib.so"),
            ("a/inner", "lib.so"),
            ("a", ""),
            ("a", "inner"),
            ("b", "lib.so"),
        ];
        for (name, file) in cases {
            assert_eq!(locate(&root, name, file), None, "{name} {file}");
        }
        let _ = std::fs::remove_dir_all(&root);
    }

    #[test]
    fn what_is_no_library_is_refused() {
        let error = Library::open(Path::new("/etc/passwd")).map(|_| ()).unwrap_err();
        assert!(error.message.starts_with("unable to load shared library: /etc/passwd: "), "{error}");
        assert_eq!(error.code, nereid_request::Code::NotFound);
    }
}
