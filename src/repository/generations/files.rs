//! The files of generations that can be loaded again: copies in a directory of this process.
//!
//! They are copies and no hard links, because programs that deploy models write into existing files too (`cp` over a
//! file), which changes every hard link to it. File systems that share blocks between files (XFS, Btrfs) do so here.
//! Files that came from a bucket or with a load request are in a copy of the server's own already, and that one is
//! kept.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::super::store::Scratch;
use super::super::version::Directory;
use super::FLAG;
use super::content::files_of;

/// Bytes that the files of all kept generations of a server have together.
const BYTES_MAX: u64 = 64 << 30;
/// What copies leave free of the file system: one part of so many, and at most so many bytes. A share alone would
/// demand a terabyte of a large disk.
const FREE_SHARE: u64 = 10;
const FREE_BYTES_MAX: u64 = 1 << 30;

/// Keeps files of generations.
#[derive(Default)]
pub struct Keeper {
    /// Made for the first copy. Held while the directory is made.
    scratch: Mutex<Option<Arc<Scratch>>>,
    /// Of all kept files.
    bytes: Arc<AtomicU64>,
}

/// The files of one generation; their bytes are given back with the value.
pub struct KeptFiles {
    pub directory: Directory,
    pub bytes: u64,
    account: Arc<AtomicU64>,
}

impl std::fmt::Debug for KeptFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptFiles").field("path", &self.directory.path).field("bytes", &self.bytes).finish()
    }
}

impl Drop for KeptFiles {
    fn drop(&mut self) {
        self.account.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Keeper {
    /// Keeps the files of a model. `is_copy`: the directory is a copy that its `keep` removes. The error says why they
    /// cannot be kept.
    pub fn keep(
        &self,
        model: &str,
        directory: &Directory,
        is_copy: bool,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Arc<KeptFiles>, String> {
        let (files, is_whole) = files_of(&directory.path, is_over);
        if !is_whole {
            return Err("its directory is too large, or cannot be read".to_owned());
        }
        let sizes = files.iter().filter(|file| file.metadata.is_file()).map(|file| file.metadata.len());
        let bytes = sizes.fold(0, u64::saturating_add);
        let reserve = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= BYTES_MAX);
        if self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve).is_err() {
            return Err(format!("with its {bytes} bytes, kept generations exceed the bound of {BYTES_MAX} bytes"));
        }
        let plain = Directory { path: directory.path.clone(), keep: Arc::clone(&directory.keep), agents: None };
        // From here on the bytes are given back.
        let mut kept = KeptFiles { directory: plain, bytes, account: Arc::clone(&self.bytes) };
        if is_copy {
            return Ok(Arc::new(kept));
        }
        let copy = self.scratch()?.copy(model).map_err(|error| format!("no directory for a copy: {error}"))?;
        check_room(copy.path(), bytes)?;
        for file in &files {
            if is_over() {
                return Err("the server ends".to_owned());
            }
            let target = copy.path().join(&file.relative);
            let made = match (file.metadata.is_dir(), file.metadata.is_file()) {
                (true, _) => DirBuilder::new().mode(0o700).create(&target),
                (_, true) => fs::copy(&file.path, &target).map(drop),
                // Sockets, devices and broken links are no part of a model.
                _ => Ok(()),
            };
            made.map_err(|error| format!("'{}' cannot be copied: {error}", file.path.display()))?;
        }
        kept.directory = Directory { path: copy.path().to_owned(), keep: Arc::new(copy), agents: None };
        Ok(Arc::new(kept))
    }

    /// No more is kept; the directory goes with the last copy in it.
    pub fn close(&self) {
        let scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Removing a directory takes as long as the disk does.
        drop(scratch);
    }

    fn scratch(&self) -> Result<Arc<Scratch>, String> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scratch) = &*scratch {
            return Ok(Arc::clone(scratch));
        }
        let place: PathBuf = std::env::temp_dir();
        let made = Scratch::make(&place, FLAG).map_err(|status| status.message.into_owned())?;
        Ok(Arc::clone(scratch.insert(made)))
    }
}

/// Copies must not fill the disk, on which other programs write too.
fn check_room(place: &Path, bytes: u64) -> Result<(), String> {
    let system = rustix::fs::statvfs(place).map_err(|error| format!("'{}': {error}", place.display()))?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    let reserve = left_free(system.f_blocks.saturating_mul(system.f_frsize));
    match bytes.saturating_add(reserve) <= free {
        true => Ok(()),
        false => Err(format!(
            "a copy of its {bytes} bytes in '{}' leaves less than {reserve} of {free} free bytes in the file system; \
             set TMPDIR to a larger one",
            place.display()
        )),
    }
}

/// Bytes that copies leave free in a file system of `total` bytes.
fn left_free(total: u64) -> u64 {
    (total / FREE_SHARE).min(FREE_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_disk_keeps_a_tenth_and_a_large_one_no_more_than_a_gibibyte() {
        assert_eq!(left_free(1 << 20), (1 << 20) / 10);
        assert_eq!(left_free(10 << 30), 1 << 30);
        // A disk that builds and data have filled nearly.
        assert_eq!(left_free(10 << 40), 1 << 30);
    }

    #[test]
    fn what_has_no_room_names_the_place_and_what_to_set() {
        let error = check_room(&std::env::temp_dir(), u64::MAX / 2).unwrap_err();
        assert!(error.contains("free bytes in the file system; set TMPDIR to a larger one"), "{error}");
    }
}
