//! The directory that an archive is unpacked into.
//!
//! Names lead downwards only. Symbolic links are made last, deepest first, so that while files are written every
//! directory of their paths is one that this value made.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use super::{ArchiveError, shown};

/// The mode bits that are kept: no set-user-id or set-group-id.
const MODE_BITS: u32 = 0o777;
/// The process that unpacks a directory can fill and remove it.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

pub struct Tree {
    root: PathBuf,
    /// The targets of links, by the paths of the links.
    links: BTreeMap<PathBuf, PathBuf>,
    /// Hard links to members that have not been read yet.
    later: Vec<(Vec<u8>, PathBuf, PathBuf)>,
}

impl Tree {
    /// `root` exists and is empty.
    pub fn new(root: &Path) -> Tree {
        Tree { root: root.to_owned(), links: BTreeMap::new(), later: Vec::new() }
    }

    pub fn directory(&mut self, name: &[u8], mode: u32) -> Result<(), ArchiveError> {
        let path = self.place(name)?;
        self.make(name, &path)?;
        if path != self.root {
            let mode = (mode & MODE_BITS) | DIRECTORY_MODE;
            let done = fs::set_permissions(&path, Permissions::from_mode(mode));
            done.map_err(|error| ArchiveError::Write(shown(name), error))?;
        }
        Ok(())
    }

    /// Writes all of `contents`. Of members of one name the last counts.
    pub fn file(
        &mut self,
        name: &[u8],
        mode: u32,
        modified: Option<SystemTime>,
        contents: &mut impl Read,
    ) -> Result<(), ArchiveError> {
        let path = self.free(name)?;
        let wrong = |error| ArchiveError::Write(shown(name), error);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&path).map_err(wrong)?;
        // Separates errors of the archive from those of the disk by the side that failed.
        let mut failed = None;
        let mut source = Watched { inner: contents, failed: &mut failed };
        if let Err(error) = io::copy(&mut source, &mut file) {
            return Err(failed.map_or_else(|| wrong(error), ArchiveError::Io));
        }
        file.set_permissions(Permissions::from_mode((mode & MODE_BITS) | FILE_MODE)).map_err(wrong)?;
        if let Some(modified) = modified {
            // Python uses byte code only if its source has the modification time that the byte code records.
            file.set_modified(modified).map_err(wrong)?;
        }
        Ok(())
    }

    /// The target may be anything: nothing is written through it.
    pub fn symlink(&mut self, name: &[u8], target: &[u8]) -> Result<(), ArchiveError> {
        let path = self.free(name)?;
        self.links.insert(path, PathBuf::from(OsStr::from_bytes(target)));
        Ok(())
    }

    /// Makes another name for the member `target`.
    pub fn hard_link(&mut self, name: &[u8], target: &[u8]) -> Result<(), ArchiveError> {
        let source = self.place(target)?;
        let path = self.free(name)?;
        self.later.push((name.to_owned(), path, source));
        Ok(())
    }

    /// Makes the links.
    pub fn finish(mut self) -> Result<(), ArchiveError> {
        for (name, path, source) in std::mem::take(&mut self.later) {
            let wrong = |error| ArchiveError::Write(shown(&name), error);
            if let Some(target) = self.links.get(&source).cloned() {
                self.links.insert(path, target);
            } else if fs::symlink_metadata(&source).map_err(wrong)?.is_file() {
                fs::hard_link(&source, &path).map_err(wrong)?;
            } else {
                return Err(ArchiveError::Unfit(shown(&name), "a second name for what is no file"));
            }
        }
        // A path sorts after its parents, so the deepest come first in reverse.
        for (path, target) in self.links.iter().rev() {
            let made = std::os::unix::fs::symlink(target, path);
            made.map_err(|error| ArchiveError::Write(path.display().to_string(), error))?;
        }
        Ok(())
    }

    /// The path that a member is unpacked to.
    fn place(&self, name: &[u8]) -> Result<PathBuf, ArchiveError> {
        let mut path = self.root.clone();
        for component in Path::new(OsStr::from_bytes(name)).components() {
            match component {
                Component::Normal(part) => path.push(part),
                Component::CurDir => {}
                Component::ParentDir => return Err(ArchiveError::Escapes(shown(name), "Path contains '..'")),
                Component::RootDir | Component::Prefix(_) => {
                    return Err(ArchiveError::Escapes(shown(name), "Path is absolute"));
                }
            }
        }
        Ok(path)
    }

    /// The same, after making its parent directories and removing a former file of that name.
    fn free(&mut self, name: &[u8]) -> Result<PathBuf, ArchiveError> {
        let path = self.place(name)?;
        if path == self.root {
            return Err(ArchiveError::Outside(shown(name)));
        }
        if let Some(above) = path.parent() {
            self.make(name, above)?;
        }
        self.links.remove(&path);
        self.later.retain(|(_, known, _)| *known != path);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(ArchiveError::Write(shown(name), error)),
            _ => Ok(path),
        }
    }

    fn make(&mut self, name: &[u8], path: &Path) -> Result<(), ArchiveError> {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
        made.map_err(|error| ArchiveError::Write(shown(name), error))
    }
}

/// A reader that records whether the source failed.
struct Watched<'a, R> {
    inner: &'a mut R,
    failed: &'a mut Option<io::Error>,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buffer).map_err(|error| {
            let kind = error.kind();
            *self.failed = Some(error);
            kind.into()
        })
    }
}
