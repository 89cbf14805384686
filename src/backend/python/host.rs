//! The Python program that has loaded the server as a library, if one has: models run with its interpreter, so that
//! they find the packages that the program was installed with.
//!
//! The program's `sys.executable` is used: its link target does not identify the virtual environment. It is read
//! without the interpreter's lock, which the caller may hold while it waits for a model to load.

#![allow(unsafe_code)]

use std::ffi::{CStr, OsString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// The most characters of a path.
const PATH_MAX: usize = 4096;

/// The interpreter of this process, if it is a file.
pub fn interpreter() -> Option<PathBuf> {
    let named = executable().filter(|path| path.is_file());
    named.or_else(|| of_command_line(&std::fs::read_link("/proc/self/exe").ok()?, std::env::args_os().next()?))
}

/// `sys.executable`, from an interpreter in this process.
fn executable() -> Option<PathBuf> {
    type IsInitialized = unsafe extern "C" fn() -> c_int;
    type ProgramPath = unsafe extern "C" fn() -> *const libc::wchar_t;
    let (is_initialized, path) = (symbol(c"Py_IsInitialized")?, symbol(c"Py_GetProgramFullPath")?);
    // SAFETY: Python's own function of this name, with the type of its C interface.
    let is_initialized = unsafe { std::mem::transmute::<Symbol, IsInitialized>(is_initialized) };
    // SAFETY: Python's own function of this name, with the type of its C interface.
    let path = unsafe { std::mem::transmute::<Symbol, ProgramPath>(path) };
    // SAFETY: both may be called without the interpreter's lock; the first also before an interpreter exists. The text
    // that the second returns stays valid until the interpreter ends, which cannot happen during its own call.
    let text = unsafe { if is_initialized() == 0 { std::ptr::null() } else { path() } };
    if text.is_null() {
        return None;
    }
    let mut found = String::new();
    for at in 0..PATH_MAX {
        // SAFETY: the text ends with a zero, and the loop stops there.
        let character = unsafe { *text.add(at) };
        match u32::try_from(character).ok()? {
            0 => return (!found.is_empty()).then(|| PathBuf::from(found)),
            character => found.push(char::from_u32(character)?),
        }
    }
    None
}

type Symbol = NonNull<libc::c_void>;

fn symbol(name: &CStr) -> Option<Symbol> {
    // SAFETY: a look-up of a name, which ends in a zero, among the global symbols of the process.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
}

/// The same from the first word of the command line, for a Python whose interface has no such function any more.
fn of_command_line(program: &Path, word: OsString) -> Option<PathBuf> {
    program.file_name().filter(|name| name.as_bytes().starts_with(b"python"))?;
    let is_it = |path: &PathBuf| path.canonicalize().is_ok_and(|path| path == program);
    let word = PathBuf::from(word);
    let named = match word.components().count() {
        1 => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).map(|directory| directory.join(&word)).find(is_it)
        }
        _ => Some(word).filter(is_it),
    };
    named.or_else(|| Some(program.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_program_of_that_name_is_an_interpreter() {
        assert_eq!(interpreter(), None, "this is none");
        let folder = std::env::temp_dir().join(format!("nereid-host-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let folder = folder.canonicalize().unwrap();
        let (program, link, other) = (folder.join("python3.12"), folder.join("python"), folder.join("other"));
        [&program, &other].into_iter().for_each(|path| std::fs::write(path, "").unwrap());
        std::os::unix::fs::symlink(&program, &link).unwrap();
        assert_eq!(of_command_line(&program, link.clone().into()), Some(link), "of a virtual environment");
        assert_eq!(of_command_line(&program, "ray::worker".into()), Some(program.clone()), "it has another title");
        assert_eq!(of_command_line(&program, other.clone().into()), Some(program), "that is another one");
        assert_eq!(of_command_line(&other, other.clone().into()), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
