//! The stamp of a model's directory: one walk over everything in it.
//!
//! The directory belongs to the users who deploy models, and may hold anything: links that lead in circles or nowhere,
//! folders that cannot be read, more files than a walk should visit. Each of these ends in a stamp or in an error that
//! names the path, and the walk always ends.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Fingerprint, TreePart, TreeStamp};
use nereid_request::Status;

/// Limits of a walk.
#[derive(Debug, Clone, Copy)]
pub struct WalkLimits {
    pub entries_max: usize,
    /// Depth of nested directories, the model's own counted as one.
    pub depth_max: usize,
}

pub const BOUNDS: WalkLimits = WalkLimits { entries_max: 1_000_000, depth_max: 128 };

/// The magic number that `statfs` returns for a file system in user space.
const FUSE_MAGIC: i64 = 0x6573_5546;

/// The stamp of the tree at `root`; `None` if there is no such directory.
///
/// Links are followed, but no directory is walked twice, however it is reached: that ends circles. A broken link counts
/// with its own time. Entries that vanish during the walk are left out.
pub fn stamp(root: &Path, bounds: WalkLimits) -> Result<Option<TreeStamp>, Status> {
    let metadata = match fs::metadata(root) {
        Ok(metadata) => metadata,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(cannot("stat", root, &error)),
    };
    if !metadata.is_dir() {
        return Ok(None);
    }
    let (has_inodes, stamp) = (has_inodes(root), TreeStamp::default());
    let mut walk = TreeWalk { bounds, root, has_inodes, stamp, seen: HashSet::new(), entries: 0 };
    walk.note(None, root, &metadata);
    walk.seen.insert((metadata.dev(), metadata.ino()));
    let mut pending = vec![Folder { path: root.to_owned(), part: None, depth: 1 }];
    while let Some(folder) = pending.pop() {
        walk.folder(&folder, &mut pending)?;
    }
    match fs::metadata(root) {
        // Gone since the walk began: what was left out of the stamp may be all of the model.
        Err(error) if is_absent(&error) => Ok(None),
        _ => Ok(Some(walk.stamp)),
    }
}

struct Folder {
    path: PathBuf,
    /// `None` for the model's own directory, where each entry has its own part.
    part: Option<TreePart>,
    depth: usize,
}

struct TreeWalk<'a> {
    bounds: WalkLimits,
    root: &'a Path,
    /// Files keep their inode numbers.
    has_inodes: bool,
    stamp: TreeStamp,
    seen: HashSet<(u64, u64)>,
    entries: usize,
}

impl TreeWalk<'_> {
    /// Files of one length and one time differ by their inodes: archives that are built reproducibly give all their
    /// files the same time. A directory counts by its entries only; some file systems number directories anew.
    fn note(&mut self, part: Option<TreePart>, path: &Path, metadata: &Metadata) {
        let path = path.strip_prefix(self.root).unwrap_or(path);
        let time_ns = time_ns(metadata);
        let file = (!metadata.is_dir()).then(|| (metadata.len(), self.has_inodes.then(|| metadata.ino())));
        self.stamp.note(part, time_ns, Fingerprint::of((path, time_ns, file)));
    }

    fn folder(&mut self, folder: &Folder, pending: &mut Vec<Folder>) -> Result<(), Status> {
        let entries = match fs::read_dir(&folder.path) {
            Ok(entries) => entries,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(cannot("read directory", &folder.path, &error)),
        };
        for entry in entries {
            let entry = entry.map_err(|error| cannot("read directory", &folder.path, &error))?;
            self.entries += 1;
            if self.entries > self.bounds.entries_max {
                let max = self.bounds.entries_max;
                let path = folder.path.display();
                return Err(Status::internal(format!("the model's tree holds more than {max} entries, at '{path}'")));
            }
            let path = entry.path();
            let Some(metadata) = metadata_of_target(&path)? else { continue };
            let is_directory = metadata.is_dir();
            let part = folder.part.unwrap_or_else(|| match entry.file_name().to_str() {
                Some(name) => TreePart::of(name, is_directory),
                None => TreePart::Rest,
            });
            self.note(Some(part), &path, &metadata);
            if is_directory && self.seen.insert((metadata.dev(), metadata.ino())) {
                let depth = folder.depth + 1;
                if depth > self.bounds.depth_max {
                    let (max, path) = (self.bounds.depth_max, path.display());
                    return Err(Status::internal(format!("directories lie more than {max} deep, at '{path}'")));
                }
                pending.push(Folder { path, part: Some(part), depth });
            }
        }
        Ok(())
    }
}

/// Whether the inode numbers below `root` last: file systems in user space may number files anew at each read.
fn has_inodes(root: &Path) -> bool {
    rustix::fs::statfs(root).is_ok_and(|system| system.f_type != FUSE_MAGIC)
}

/// The metadata of a path's target, or of the link itself if it is broken; `None` if the path is gone.
fn metadata_of_target(path: &Path) -> Result<Option<Metadata>, Status> {
    let followed = match fs::metadata(path) {
        Ok(metadata) => return Ok(Some(metadata)),
        Err(error) => error,
    };
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() && leads_nowhere(&followed) => Ok(Some(metadata)),
        Err(error) if is_absent(&error) => Ok(None),
        _ => Err(cannot("stat", path, &followed)),
    }
}

fn leads_nowhere(error: &io::Error) -> bool {
    is_absent(error) || error.raw_os_error() == Some(libc::ELOOP)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn time_ns(metadata: &Metadata) -> i128 {
    i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec())
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Status {
    Status::internal(format!("failed to {what} '{}': {error}", path.display()))
}
