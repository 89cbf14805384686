//! The hash of what a load reads: the configuration as it passed the poll, and the files of the versions that it
//! chooses.
//!
//! The directory belongs to the users who deploy models, and may hold anything, so the walk and what it reads have
//! bounds. Beyond them only names and sizes count, and what cannot be read counts by its name: a hash never fails a
//! load.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use prost::Message;
use ring::digest::{Context, SHA256};

use super::super::poll::Polled;

/// Entries of a model's directory; the rest does not count.
const ENTRIES_MAX: usize = 100_000;
/// Depth of nested directories.
const DEPTH_MAX: usize = 128;
/// A larger file counts by pieces that are spread over it, its first and its last bytes among them.
const WHOLE_BYTES_MAX: u64 = 4 << 20;
const PIECES: u64 = 64;
const PIECE_BYTES: usize = 64 << 10;
/// Bytes and files that are read of one model; of the files behind them only names and sizes count.
const READ_BYTES_MAX: u64 = 256 << 20;
const READ_FILES_MAX: usize = 1024;
/// What Python writes beside the files that it compiles; it follows from them.
const BYTECODE: &str = "__pycache__";

/// The hash of one content, in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content([u8; 6]);

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// One entry of a model's directory.
pub struct FoundFile {
    /// Within the model's directory.
    pub relative: PathBuf,
    pub path: PathBuf,
    pub metadata: Metadata,
}

/// The files and directories below `root` in the order of their names, each directory before what it holds; without
/// compiled Python. Links are followed, but not to a directory that they are in. The second value is false if there is
/// more than the bounds allow, or if some of it cannot be read.
pub fn files_of(root: &Path, is_over: &dyn Fn() -> bool) -> (Vec<FoundFile>, bool) {
    let (mut found, mut is_whole) = (Vec::new(), true);
    let identity = |metadata: &Metadata| (metadata.dev(), metadata.ino());
    // Each with the directories that it is in, itself included; the next one last.
    let mut pending = vec![(PathBuf::new(), Vec::from_iter(fs::metadata(root).ok().map(|root| identity(&root))))];
    while let Some((folder, within)) = pending.pop() {
        if is_over() || within.len() > DEPTH_MAX {
            return (found, false);
        }
        let Ok(entries) = fs::read_dir(root.join(&folder)) else {
            is_whole = false;
            continue;
        };
        let room = ENTRIES_MAX.saturating_sub(found.len());
        let mut names: Vec<_> = entries.take(room + 1).flatten().map(|entry| entry.file_name()).collect();
        if names.len() > room {
            return (found, false);
        }
        names.sort_unstable();
        let mut folders = Vec::new();
        for name in names {
            let relative = folder.join(name);
            let path = root.join(&relative);
            // A broken link counts as itself.
            let Ok(metadata) = fs::metadata(&path).or_else(|_| fs::symlink_metadata(&path)) else {
                is_whole = false;
                continue;
            };
            if metadata.is_dir() {
                let is_bytecode = relative.file_name().is_some_and(|name| name == BYTECODE);
                if is_bytecode || within.contains(&identity(&metadata)) {
                    continue;
                }
                let within = within.iter().copied().chain([identity(&metadata)]).collect();
                folders.push((relative.clone(), within));
            }
            found.push(FoundFile { relative, path, metadata });
        }
        pending.extend(folders.into_iter().rev());
    }
    (found, is_whole)
}

/// The content of a model in `directory`. `is_over`: nobody waits for the result any more.
pub fn read(directory: &Path, polled: &Polled, is_over: &dyn Fn() -> bool) -> Content {
    let mut context = Context::new(&SHA256);
    put(&mut context, &polled.config.encode_to_vec());
    for version in &polled.versions {
        context.update(&version.to_le_bytes());
    }
    let mut room = Room { bytes: READ_BYTES_MAX, files: READ_FILES_MAX };
    let (files, _) = files_of(directory, is_over);
    for file in files.iter().filter(|file| counts(&file.relative, polled)) {
        if is_over() {
            break;
        }
        put(&mut context, file.relative.as_os_str().as_encoded_bytes());
        if file.metadata.is_file() {
            put_file(&mut context, file, &mut room);
        }
    }
    let mut short = [0; 6];
    let digest = context.finish();
    short.iter_mut().zip(digest.as_ref()).for_each(|(short, byte)| *short = *byte);
    Content(short)
}

/// Files of configurations count as the configuration that was read from them, and versions only if they are chosen.
fn counts(relative: &Path, polled: &Polled) -> bool {
    let first = relative.iter().next().and_then(|first| first.to_str()).unwrap_or_default();
    let is_other_version = || first.parse::<i64>().is_ok_and(|version| !polled.versions.contains(&version));
    !matches!(first, "config.pbtxt" | "configs") && !is_other_version()
}

/// With its length in front, so that no two sequences of parts are the same bytes.
fn put(context: &mut Context, bytes: &[u8]) {
    context.update(&(bytes.len() as u64).to_le_bytes());
    context.update(bytes);
}

/// What may still be read.
struct Room {
    bytes: u64,
    files: usize,
}

/// What cannot be read is left out; its size counts.
fn put_file(context: &mut Context, file: &FoundFile, room: &mut Room) {
    let size = file.metadata.len();
    context.update(&size.to_le_bytes());
    let pieces: Vec<(u64, u64)> = match size <= WHOLE_BYTES_MAX {
        true => vec![(0, size)],
        false => {
            let piece = PIECE_BYTES as u64;
            let last = size - piece;
            // Not beyond 64 bits: files are at most 2^63 bytes long.
            let start = |at: u64| u64::try_from(u128::from(last) * u128::from(at) / u128::from(PIECES - 1));
            (0..PIECES).map(|at| (start(at).unwrap_or(last), piece)).collect()
        }
    };
    let wanted: u64 = pieces.iter().map(|(_, len)| len).sum();
    if wanted > room.bytes || room.files == 0 {
        return;
    }
    room.bytes -= wanted;
    room.files -= 1;
    let Ok(mut open) = File::open(&file.path) else { return };
    let mut buffer = vec![0; PIECE_BYTES];
    for (start, len) in pieces {
        if open.seek(SeekFrom::Start(start)).is_err() {
            return;
        }
        let mut piece = (&mut open).take(len);
        while let Ok(count @ 1..) = piece.read(&mut buffer) {
            context.update(buffer.get(..count).unwrap_or_default());
        }
    }
}
