//! Python-based backends that the program brings itself: their scripts are written to the user's data folder when a
//! model needs them. A backend of the same name in `--backend-directory` takes precedence.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::SCRIPT;
use super::interpreter::Surroundings;
use nereid_request::Status;

/// The backends and their scripts (contract/frameworks.md section 1b).
const SCRIPTS: [(&str, &str); 1] = [("pytorch", include_str!("based/pytorch.py"))];

/// The directory with the script of `backend`; `None`: the program brings none for it.
pub fn directory_of(backend: &str) -> Option<Result<PathBuf, Status>> {
    let (name, script) = SCRIPTS.into_iter().find(|(name, _)| *name == backend)?;
    let Some(runtimes) = Surroundings::of_process().user_folder() else {
        let text = format!(
            "the script of backend '{backend}' has no place: neither XDG_DATA_HOME nor HOME is set. Set one of them, \
             or put the script into the backend directory"
        );
        return Some(Err(Status::unavailable(text)));
    };
    // Beside the runtimes: servers of different versions may use the folder at once.
    let mut hasher = DefaultHasher::new();
    script.hash(&mut hasher);
    let version = format!("{:016x}", hasher.finish());
    let directory = runtimes.with_file_name("python-based").join(version).join(name);
    let written = write_once(&directory, script).map_err(|error| {
        Status::unavailable(format!("the script of backend '{backend}' in {}: {error}", directory.display()))
    });
    Some(written.map(|()| directory))
}

/// Writes the script, whole or not at all, unless it is there.
fn write_once(directory: &Path, script: &str) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let file = directory.join(SCRIPT);
    if fs::read(&file).is_ok_and(|found| found == script.as_bytes()) {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let unfinished = directory.join(format!(".{SCRIPT}-{}-{number}", std::process::id()));
    fs::write(&unfinished, script)?;
    fs::rename(&unfinished, &file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_script_is_written_once_and_replaced_if_it_is_another() {
        let scratch = Scratch::new("python-based");
        let directory = scratch.path("backends/pytorch");
        write_once(&directory, "one").unwrap();
        let read = || fs::read_to_string(directory.join(SCRIPT)).unwrap();
        assert_eq!(read(), "one");
        scratch.write("backends/pytorch/model.py", b"damaged");
        write_once(&directory, "one").unwrap();
        assert_eq!((read(), fs::read_dir(&directory).unwrap().count()), ("one".to_owned(), 1));
        assert!(directory_of("snake").is_none());
    }
}
