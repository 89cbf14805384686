//! Copies of remote models: in a directory of this process, removed when it is no longer used.
//!
//! A process that is killed leaves its copies behind, which may be large. So every directory has a file beside it that
//! its owner holds locked: the next process that starts with the same mount directory removes the directories with
//! unlocked files. A lock separates live owners from dead ones where a process number cannot: between containers that
//! share a disk.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::{info, warn};

use nereid_request::Status;

const NAME_START: &str = "nereid-models-";
const LOCK_END: &str = ".lock";

/// Names tried before this is an error.
const TRIES_MAX: u32 = 1000;

/// The directory of one store.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    lock_path: PathBuf,
    /// Held locked as long as the directory is in use.
    _lock: File,
    copies: AtomicU64,
}

/// The directory of one copy, removed when dropped.
#[derive(Debug)]
pub struct ModelCopy {
    path: PathBuf,
    _scratch: Arc<Scratch>,
}

impl Scratch {
    /// Removes what dead processes left in `mount`, and makes a directory of our own there. `setting` is the setting
    /// that named `mount`, for messages.
    pub fn make(mount: &Path, setting: &str) -> Result<Arc<Scratch>, Status> {
        let shown = mount.display();
        let wrong = |cause: String| {
            Status::invalid(format!("copies of models cannot be kept in '{shown}' (set by {setting}): {cause}"))
        };
        if !fs::metadata(mount).map_err(|error| wrong(error.to_string()))?.is_dir() {
            return Err(wrong("not a directory".to_owned()));
        }
        sweep(mount);
        for attempt in 0..TRIES_MAX {
            let name = format!("{NAME_START}{}-{attempt}", std::process::id());
            match Scratch::claim(mount, &name) {
                Ok(Some(scratch)) => return Ok(Arc::new(scratch)),
                Ok(None) => {}
                Err(error) => return Err(wrong(error.to_string())),
            }
        }
        Err(wrong(format!("{TRIES_MAX} directories named {NAME_START}… are in the way")))
    }

    /// `None` if the name is taken.
    fn claim(mount: &Path, name: &str) -> io::Result<Option<Scratch>> {
        let lock_path = mount.join(format!("{name}{LOCK_END}"));
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&lock_path);
        let lock = match made {
            Ok(lock) => lock,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(None),
            Err(error) => return Err(error),
        };
        // Another process may have removed the new file as a leftover before it was locked.
        match lock.try_lock() {
            Ok(()) if is_file_at(&lock, &lock_path) => {}
            Ok(()) | Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => {
                let _ = fs::remove_file(&lock_path);
                return Err(error);
            }
        }
        let path = mount.join(name);
        if let Err(error) = DirBuilder::new().mode(0o700).create(&path) {
            let _ = fs::remove_file(&lock_path);
            return if error.kind() == ErrorKind::AlreadyExists { Ok(None) } else { Err(error) };
        }
        Ok(Some(Scratch { path, lock_path, _lock: lock, copies: AtomicU64::new(0) }))
    }

    /// A new directory whose last component is `name`, as backends expect of a model.
    pub fn copy(self: &Arc<Scratch>, name: &str) -> io::Result<ModelCopy> {
        let number = self.copies.fetch_add(1, Ordering::Relaxed);
        let outer = self.path.join(number.to_string());
        DirBuilder::new().mode(0o700).create(&outer)?;
        let copy = ModelCopy { path: outer.join(name), _scratch: Arc::clone(self) };
        DirBuilder::new().mode(0o700).create(&copy.path)?;
        Ok(copy)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.path);
        // Last, so that a directory never lacks its lock file, without which no sweep would remove it.
        let _ = fs::remove_file(&self.lock_path);
    }
}

impl ModelCopy {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ModelCopy {
    fn drop(&mut self) {
        remove(self.path.parent().unwrap_or(&self.path));
    }
}

fn remove(path: &Path) {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            warn!("failed to remove the copies of models in '{}': {error}", path.display());
        }
        _ => {}
    }
}

/// Removes the directories of which the owners are gone. What cannot be checked or removed is left alone: it is no
/// reason not to start.
fn sweep(mount: &Path) {
    let Ok(entries) = fs::read_dir(mount) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(stem) = name.to_str().and_then(|name| name.strip_suffix(LOCK_END)) else { continue };
        if !stem.starts_with(NAME_START) {
            continue;
        }
        let lock_path = entry.path();
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&lock_path);
        let Ok(lock) = opened else { continue };
        let is_plain = lock.metadata().is_ok_and(|metadata| metadata.is_file());
        if !is_plain || lock.try_lock().is_err() || !is_file_at(&lock, &lock_path) {
            continue;
        }
        let directory = mount.join(stem);
        match fs::remove_dir_all(&directory) {
            Ok(()) => info!("removed the copies of models that an ended server left in '{}'", directory.display()),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                warn!("failed to remove what an ended server left in '{}': {error}", directory.display());
                continue;
            }
        }
        let _ = fs::remove_file(&lock_path);
    }
}

/// Whether `path` still names the open file.
fn is_file_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(mount: &Path) -> Vec<String> {
        let entries = fs::read_dir(mount).expect("the mount directory");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }

    #[test]
    fn copies_go_with_their_owners_and_the_directory_with_the_last() {
        let mount = super::super::tests::folder();
        let scratch = Scratch::make(mount.path(), "a test").expect("a directory");
        let mode = fs::metadata(&scratch.path).expect("the directory").mode();
        assert_eq!(mode & 0o777, 0o700);
        let (one, two) = (scratch.copy("model").expect("a copy"), scratch.copy("model").expect("another"));
        assert_ne!(one.path(), two.path());
        assert!(one.path().ends_with("model") && two.path().ends_with("model"));
        fs::write(one.path().join("file"), "x").expect("a file");
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && !path.parent().expect("a parent").exists());
        drop(scratch);
        assert!(two.path().is_dir(), "a copy keeps the directory");
        drop(two);
        assert_eq!(names(mount.path()), [""; 0]);
    }

    #[test]
    fn only_unlocked_directories_are_swept() {
        let mount = super::super::tests::folder();
        let living = Scratch::make(mount.path(), "a test").expect("a directory");
        fs::create_dir_all(mount.path().join("nereid-models-1-0/0/model/1")).expect("a leftover");
        fs::write(mount.path().join("nereid-models-1-0.lock"), "").expect("its lock file");
        // A lock file alone: killed between two steps.
        fs::write(mount.path().join("nereid-models-2-0.lock"), "").expect("a lock file");
        // Not ours: another name, a directory without a lock file, a link, a directory in a lock file's place.
        fs::create_dir(mount.path().join("other-1-0")).expect("another directory");
        fs::write(mount.path().join("other-1-0.lock"), "").expect("another file");
        fs::create_dir(mount.path().join("nereid-models-3-0")).expect("a directory without a lock file");
        std::os::unix::fs::symlink("other-1-0.lock", mount.path().join("nereid-models-4-0.lock")).expect("a link");
        fs::create_dir(mount.path().join("nereid-models-5-0.lock")).expect("a directory");
        let second = Scratch::make(mount.path(), "a test").expect("a second directory");
        let own = |scratch: &Scratch| scratch.path.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
        let (first, second) = (own(&living), own(&second));
        let mut expected = vec![
            "nereid-models-3-0".to_owned(),
            "nereid-models-4-0.lock".to_owned(),
            "nereid-models-5-0.lock".to_owned(),
            "other-1-0".to_owned(),
            "other-1-0.lock".to_owned(),
            format!("{first}.lock"),
            format!("{second}.lock"),
            first,
            second,
        ];
        expected.sort();
        assert_eq!(names(mount.path()), expected);
    }

    #[test]
    fn a_place_that_cannot_be_used_is_named_with_what_chose_it() {
        let mount = super::super::tests::folder();
        fs::write(mount.path().join("file"), "").expect("a file");
        for name in ["missing", "file"] {
            let place = mount.path().join(name);
            let error = Scratch::make(&place, "TRITON_AWS_MOUNT_DIRECTORY").expect_err(name);
            let start = format!(
                "copies of models cannot be kept in '{}' (set by TRITON_AWS_MOUNT_DIRECTORY): ",
                place.display()
            );
            assert!(error.message.starts_with(&start), "{error}");
        }
    }
}
