//! Unpacks an environment from one file: tar, plain or compressed, and zip.
//!
//! The names in an archive are not trusted. So every name must lie in the target directory, and symbolic links are made
//! after all files are written, so that no write follows one (`tree`). The links themselves may lead out, as the
//! interpreter of a virtual environment does. The crate of that name reads zip, a reader of this server reads tar
//! (docs/design.md, "Libraries"). gzip is built in; programs of the host decompress the other formats.

mod tar;
mod tree;
mod zip;

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use flate2::bufread::MultiGzDecoder;

use tree::Tree;

/// Why an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is neither a tar archive (plain, gzip, bzip2, xz, zstd) nor a zip archive")]
    Unknown,
    #[error("it is cut off")]
    CutOff,
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    #[error("its member '{0}' would lie outside of the directory that it is unpacked into")]
    Outside(String),
    /// With the texts of the library that unpacks archives for Triton, which Triton's tests search for.
    #[error("archive_write_header() failed with error code = -25 error message is {1} (member '{0}')")]
    Escapes(String, &'static str),
    #[error("its member '{0}' is {1}, which an environment cannot have")]
    Unfit(String, &'static str),
    #[error("its member '{0}' cannot be written: {1}")]
    Write(String, io::Error),
    #[error("'{0}' is needed to decompress it: {1}")]
    Program(&'static str, String),
}

/// The programs that decompress, by the bytes that a file begins with.
const PROGRAMS: [(&[u8], &str); 3] = [(b"BZh", "bzip2"), (b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd")];
const GZIP: &[u8] = b"\x1f\x8b";
/// The first bytes of a zip file: a member, or the end of an archive without any.
const ZIP: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];
const HEAD_BYTES: u64 = 8;

/// Unpacks `archive` into the empty directory `into`. After an error the files unpacked so far stay there.
pub fn unpack(archive: &Path, into: &Path) -> Result<(), ArchiveError> {
    let mut file = File::open(archive)?;
    let mut head = Vec::new();
    (&mut file).take(HEAD_BYTES).read_to_end(&mut head)?;
    file.seek(SeekFrom::Start(0))?;
    let mut tree = Tree::new(into);
    if ZIP.iter().any(|start| head.starts_with(start)) {
        zip::read(&file, &mut tree)?;
    } else if head.starts_with(GZIP) {
        tar::read(&mut BufReader::new(MultiGzDecoder::new(BufReader::new(file))), &mut tree)?;
    } else if let Some((_, program)) = PROGRAMS.iter().find(|(start, _)| head.starts_with(start)) {
        read_through(program, file, &mut tree)?;
    } else {
        tar::read(&mut BufReader::new(file), &mut tree)?;
    }
    tree.finish()
}

/// Reads a tar archive as `program` decompresses it.
fn read_through(program: &'static str, file: File, tree: &mut Tree) -> Result<(), ArchiveError> {
    let mut command = Command::new(program);
    command.arg("-dc").stdin(file).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| ArchiveError::Program(program, error.to_string()))?;
    let mut child = Ended(child);
    let Some(stdout) = child.0.stdout.take() else { return Err(ArchiveError::CutOff) };
    let read = tar::read(&mut BufReader::new(stdout), tree);
    let mut said = String::new();
    if let Some(stderr) = child.0.stderr.take() {
        // Its output has no reader any more, so the program ends.
        let _ = stderr.take(4096).read_to_string(&mut said);
    }
    let status = child.0.wait()?;
    // The program's own message is better than the error that a truncated archive causes.
    match read {
        Err(
            error @ (ArchiveError::Write(..)
            | ArchiveError::Outside(_)
            | ArchiveError::Escapes(..)
            | ArchiveError::Unfit(..)),
        ) => Err(error),
        _ if !status.success() && !said.trim().is_empty() => {
            Err(ArchiveError::Program(program, said.trim().replace('\n', "; ")))
        }
        other => other,
    }
}

/// A program that is killed when this value is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// For messages; names need not be UTF-8.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Fills `buffer`; false: the input ended before its first byte.
fn read_whole(input: &mut impl Read, buffer: &mut [u8]) -> Result<bool, ArchiveError> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(ArchiveError::CutOff),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
