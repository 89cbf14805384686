//! Finds the library that belongs to this program: beside it, where a build or an installation puts it. Where a build
//! has left two, the newer one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const NAME: &str = "libtritonserver.so";

/// Its directory, relative to the program's: after a build, after a build for tests, in an installation.
const PLACES: [&str; 3] = ["", "deps", "../lib"];

/// A function that each of its builds has.
const MARK: &[u8] = b"TRITONSERVER_ServerInferAsync\0";

#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    #[error(
        "{NAME} is not beside this program ({}); `cargo build --release` makes it in target/release, --library=<file> \
         names one elsewhere",
        program.display()
    )]
    Missing { program: PathBuf },
    #[error("{}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{}: not a library of this server", path.display())]
    Foreign { path: PathBuf },
}

/// The named library, else the one beside the program.
pub fn find(program: &Path, named: Option<&Path>) -> Result<PathBuf, LibraryError> {
    let found = match named {
        Some(path) => path.to_owned(),
        None => beside(program).ok_or_else(|| LibraryError::Missing { program: program.to_owned() })?,
    };
    let content = fs::read(&found).map_err(|source| LibraryError::Unreadable { path: found.clone(), source })?;
    if content.starts_with(b"\x7fELF") && memchr::memmem::find(&content, MARK).is_some() {
        Ok(found)
    } else {
        Err(LibraryError::Foreign { path: found })
    }
}

fn beside(program: &Path) -> Option<PathBuf> {
    let directory = program.parent()?;
    let found = PLACES.iter().map(|place| directory.join(place).join(NAME)).filter(|path| path.is_file());
    found.max_by_key(|path| path.metadata().and_then(|it| it.modified()).ok())
}
