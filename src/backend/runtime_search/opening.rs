//! Opens the library of a runtime once for a process.

use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::{LibraryError, Missing, RuntimeKind, Surroundings};

/// A value that needs a library, which is opened at the first call that succeeds and never closed. Threads that call
/// meanwhile wait.
#[derive(Debug)]
pub struct OpenedOnce<T> {
    opened: OnceLock<T>,
    opening: Mutex<()>,
}

impl<T> OpenedOnce<T> {
    pub const fn new() -> OpenedOnce<T> {
        OpenedOnce { opened: OnceLock::new(), opening: Mutex::new(()) }
    }

    /// The value, if a call has opened it.
    pub fn get(&self) -> Option<&T> {
        self.opened.get()
    }

    /// The value, which `open` makes unless an earlier call did. After an error the next call tries again.
    pub fn get_or_open<E>(&self, open: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let _one = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let opened = open()?;
        Ok(self.opened.get_or_init(|| opened))
    }
}

impl<T> Default for OpenedOnce<T> {
    fn default() -> OpenedOnce<T> {
        OpenedOnce::new()
    }
}

/// The library of a runtime, opened.
pub trait OpenedLibrary {
    fn path(&self) -> &Path;

    /// As the library reports it.
    fn version(&self) -> &str;
}

impl<T: OpenedLibrary> OpenedOnce<T> {
    /// The library of the process: the first one of `surroundings` that `open` accepts, found by the first call that
    /// succeeds. It is stated in the log.
    pub fn find(
        &self,
        kind: &RuntimeKind,
        surroundings: &Surroundings,
        open: impl FnMut(&Path) -> Result<T, LibraryError>,
    ) -> Result<&T, Missing> {
        self.get_or_open(|| {
            let library = surroundings.find(kind, open)?;
            tracing::info!("{} {} from {}", kind.title, library.version(), library.path().display());
            Ok(library)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn threads_that_call_at_once_get_one_value() {
        let (once, opened) = (OpenedOnce::new(), AtomicUsize::new(0));
        assert_eq!(once.get(), None);
        assert_eq!(once.get_or_open(|| Err("broken")), Err("broken"), "an error is not kept");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let open = || Ok::<usize, ()>(opened.fetch_add(1, Ordering::Relaxed) + 7);
                    assert_eq!(once.get_or_open(open), Ok(&7));
                });
            }
        });
        assert_eq!((once.get(), opened.into_inner()), (Some(&7), 1));
    }

    #[derive(Debug, PartialEq)]
    struct File(PathBuf);

    impl OpenedLibrary for File {
        fn path(&self) -> &Path {
            &self.0
        }

        fn version(&self) -> &str {
            "1"
        }
    }

    #[test]
    fn the_library_that_was_found_first_stays() {
        let kind = RuntimeKind {
            name: "r",
            title: "R",
            stem: "libr.so",
            smaller_stem: None,
            variables: &[],
            folders: &[],
            gpu_marker: None,
            loader_folders: &[],
        };
        let (scratch, calls) = (Scratch::new("opened-once"), Cell::new(0));
        let once = OpenedOnce::new();
        let find = |file: &str| {
            let surroundings = Surroundings { library_setting: Some(scratch.path(file)), ..Surroundings::default() };
            once.find(&kind, &surroundings, |path| {
                calls.set(calls.get() + 1);
                if path.is_file() { Ok(File(path.to_owned())) } else { Err(LibraryError::Open("absent".to_owned())) }
            })
        };
        let missing = find("gone.so").unwrap_err();
        assert!(missing.to_string().contains("gone.so cannot be opened: absent"), "{missing}");
        let first = scratch.file("first.so");
        scratch.file("second.so");
        assert_eq!(find("first.so"), Ok(&File(first.clone())));
        assert_eq!(find("second.so"), Ok(&File(first)));
        assert_eq!(calls.get(), 2);
    }
}
