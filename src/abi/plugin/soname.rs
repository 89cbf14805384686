//! Stubs for the server's library name, which loaded libraries list as needed.
//!
//! A plug-in that was linked against `libtritonserver.so` lists that name as needed, and the loader would search the
//! disk for it; some are packed with a renamed copy (`libtritonserver-717102f0.so`) and its path. Either would bring a
//! second server into this process, or fail the load. So before a plug-in is opened, an empty library of each such name
//! is loaded: the loader reuses it, and the functions resolve to those of this process.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::{Library as Handle, RTLD_GLOBAL, RTLD_NOW};
use nereid_backend::needed_libraries::needed;

/// The prefix of the names of the server's library.
const SERVER: &[u8] = b"libtritonserver";
/// The empty library, and the name in it that is replaced.
static STUB: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libtritonserver_stub.so"));
const PLACEHOLDER: &[u8] = include_bytes!("soname.txt").trim_ascii_end();
/// More names for the server would be a mistake.
const STUBS_MAX: usize = 256;

/// Loads a stub for each name of the server's library that `library` needs. A file that is no library passes: the
/// loader reports it.
pub(super) fn provide_for(library: &Path) -> io::Result<()> {
    static LOADED: Mutex<BTreeSet<Vec<u8>>> = Mutex::new(BTreeSet::new());
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut names = needed(library).unwrap_or_default();
    names.retain(|name| name.starts_with(SERVER));
    // Libraries without such an entry may open it themselves.
    names.insert(b"libtritonserver.so".to_vec());
    for name in names {
        if loaded.contains(&name) {
            continue;
        }
        if loaded.len() >= STUBS_MAX {
            return Err(io::Error::other("too many names for libtritonserver.so"));
        }
        let text = String::from_utf8(name.clone()).map_err(io::Error::other)?;
        // A program that links or opens the real one has it already. One that opened it for itself alone, as Java and
        // Python do, hides its functions from plug-ins that do not list it; RTLD_GLOBAL shows them. SAFETY:
        // RTLD_NOLOAD runs no code, it only looks for the name.
        if unsafe { Handle::open(Some(&text), RTLD_NOW | RTLD_GLOBAL | libc::RTLD_NOLOAD) }.is_err() {
            load_stub(&name, loaded.len())?;
        }
        loaded.insert(name);
    }
    Ok(())
}

/// Loads an empty library of this name. `before` is the number of those that were loaded so far.
fn load_stub(name: &[u8], before: usize) -> io::Result<()> {
    let stub = named(name).ok_or_else(|| io::Error::other("the name is too long"))?;
    // SAFETY: a plain system call with a constant name.
    let fd = unsafe { libc::memfd_create(c"libtritonserver.so".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and has no other owner.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.write_all(&stub)?;
    // The loader identifies libraries by their paths, and descriptor numbers are reused: no path may occur twice.
    let path = format!("/proc/self/fd/{}{}", "./".repeat(before), file.as_raw_fd());
    // SAFETY: the library has no code.
    let library = unsafe { Handle::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) }.map_err(io::Error::other)?;
    std::mem::forget(library);
    Ok(())
}

/// A copy of the empty library with another name.
fn named(name: &[u8]) -> Option<Vec<u8>> {
    let at = memchr::memmem::find(STUB, PLACEHOLDER)?;
    let mut stub = STUB.to_vec();
    let place = stub.get_mut(at..at.checked_add(PLACEHOLDER.len())?)?;
    place.fill(0);
    place.get_mut(..name.len())?.copy_from_slice(name);
    Some(stub)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nereid_backend::needed_libraries::{HEADER_BYTES, NAME_BYTES_MAX, SEGMENT_BYTES};

    fn written(name: &str, contents: &[u8]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("nereid-soname-{}-{name}", std::process::id()));
        std::fs::write(&path, contents).expect("a temporary file");
        path
    }

    #[test]
    fn a_program_needs_the_library_of_c() {
        let own = std::env::current_exe().expect("this program");
        let names = needed(&own).expect("an ELF file");
        assert!(names.iter().any(|name| name == b"libc.so.6"), "{names:?}");
    }

    #[test]
    fn what_is_no_library_needs_nothing() {
        for (name, contents) in [("empty", &b""[..]), ("text", b"no library"), ("magic", b"\x7fELF\x02\x01\x01")] {
            let path = written(name, contents);
            assert_eq!(needed(&path), None, "{name}");
            let _ = std::fs::remove_file(path);
        }
        assert_eq!(needed(Path::new("/nowhere")), None);
    }

    /// Changes every byte of the headers and of the dynamic section in turn: no panic, no read beyond the bounds, and
    /// no name that the file does not contain.
    #[test]
    fn a_broken_library_is_left_to_the_loader() {
        let whole = written("whole", STUB);
        assert_eq!(needed(&whole), Some(BTreeSet::new()), "the stub needs nothing");
        let (mut refused, mut taken) = (0, 0);
        for at in 0..STUB.len().min(1024) {
            for value in [0x00, 0x7f, 0xff] {
                let mut broken = STUB.to_vec();
                broken[at] = value;
                let names = needed(&written("broken", &broken));
                if at < 6 && STUB[at] != value {
                    assert_eq!(names, None, "byte {at} of the magic number is {value:#x}");
                }
                match names {
                    None => refused += 1,
                    Some(names) => {
                        taken += 1;
                        names.iter().for_each(|name| check_name(name, &broken));
                    }
                }
            }
        }
        assert!(refused > 0 && taken > 0, "{refused} {taken}");
        let cut = written("cut", &STUB[..HEADER_BYTES + SEGMENT_BYTES]);
        assert_eq!(needed(&cut), None);
        for path in [whole, cut, written("broken", b"")] {
            std::fs::remove_file(path).expect("a temporary file");
        }
    }

    /// A name of the file, within the bounds.
    fn check_name(name: &[u8], file: &[u8]) {
        assert!(name.len() <= NAME_BYTES_MAX && !name.contains(&0), "{name:?}");
        let text = [name, b"\0"].concat();
        assert!(memchr::memmem::find(file, &text).is_some(), "{name:?}");
    }

    #[test]
    fn a_stub_has_the_name_that_is_asked_for() {
        let stub = named(b"libtritonserver-0123abcd.so").expect("a stub");
        assert!(memchr::memmem::find(&stub, b"libtritonserver-0123abcd.so\0").is_some());
        assert!(memchr::memmem::find(&stub, PLACEHOLDER).is_none());
        assert_eq!(named(&[b'x'; 300]), None, "longer than its place");
    }
}
