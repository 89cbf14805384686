//! The libraries of packages, opened from memory.
//!
//! A library is never closed: it defines symbols that glibc keeps for ever (`STB_GNU_UNIQUE`), so that closing it would
//! free nothing. Instead the process opens each one once, however often its model is loaded: libraries with the same
//! bytes are one.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::{MemfdFlags, memfd_create};

use super::super::input_checks::{self, Checks};
use super::api::symbol;
use super::container::{Functions, text_at};
use super::empty_library::empty_library;
use nereid_backend::elf::check_whole_file;
use nereid_backend::runtime_search::LibraryError;

/// The most libraries with different bytes in one process.
const LIBRARIES_MAX: usize = 4096;
/// The name of the library that packages are linked against. Its only content is that it needs the libraries of the CPU
/// and of CUDA; the former is open, and the latter may be absent.
const TORCH: &str = "libtorch.so";
const PIECE_BYTES: usize = 1 << 20;

/// Why a package's library was not opened.
#[derive(Debug, thiserror::Error)]
pub enum LibraryFault {
    #[error("memory for its library cannot be created: {0}")]
    Memory(#[from] io::Error),
    #[error("its library cannot be opened: {0}")]
    Open(String),
    #[error("its library has no function {0}")]
    Foreign(&'static str),
    #[error("the process has opened {LIBRARIES_MAX} libraries of models, which is the most; restart the server")]
    TooMany,
}

/// An opened library of a package.
#[derive(Debug)]
pub struct ModelLibrary {
    /// The bytes. The library reads weights that are behind its code from the path that it was opened by, which is that
    /// of the descriptor.
    file: File,
    functions: Functions,
    _library: Library,
}

impl ModelLibrary {
    /// The library whose bytes `write` writes to a file in memory.
    pub fn open<E: From<LibraryFault>>(
        write: impl FnOnce(&mut File) -> Result<(), E>,
    ) -> Result<&'static ModelLibrary, E> {
        let fault = |error| LibraryFault::Memory(error);
        let file = memfd_create("nereid-aoti", MemfdFlags::CLOEXEC);
        let mut file = File::from(file.map_err(|errno| fault(errno.into()))?);
        write(&mut file)?;
        // A library that is cut off would end the process while it is opened.
        check_whole_file(&file).map_err(LibraryFault::Open)?;
        match input_checks::enable(&file).map_err(fault)? {
            Checks::On | Checks::AsSet => {}
            Checks::NoVariable => {
                tracing::warn!(
                    "models of AOTInductor do not check their inputs: set AOTI_RUNTIME_CHECK_INPUTS=1 in the \
                     environment"
                );
            }
            Checks::None => tracing::warn!("the model's library has no code that checks its inputs"),
        }
        Ok(ModelLibrary::of(file)?)
    }

    fn of(file: File) -> Result<&'static ModelLibrary, LibraryFault> {
        let mut opened = opened();
        for known in opened.iter() {
            if is_same(&known.file, &file)? {
                return Ok(known);
            }
        }
        if opened.len() >= LIBRARIES_MAX {
            return Err(LibraryFault::TooMany);
        }
        provide_torch()?;
        let path = path_of(&file, opened.len() + 1);
        // SAFETY: opening a library runs its initialisers: a package is code that the repository's owner chose to run.
        // Local: all packages define the same names.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| LibraryFault::Open(LibraryError::opening(&error).to_string()))?;
        let functions = functions(&library)?;
        let model: &'static ModelLibrary = Box::leak(Box::new(ModelLibrary { file, functions, _library: library }));
        opened.push(model);
        Ok(model)
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.functions
    }

    /// The text of an error that a function of the library has just returned.
    pub(super) fn error(&self, what: &str) -> String {
        let mut text = std::ptr::null();
        let Some(last_error) = self.functions.last_error else { return format!("{what} failed; see standard error") };
        // SAFETY: the function writes a text of the calling thread, which stays until its next call of the library.
        let text = unsafe {
            last_error(&mut text);
            text_at(text)
        };
        if text.is_empty() { format!("{what} failed") } else { text }
    }
}

/// The opened libraries, which are locked while one is opened.
fn opened() -> MutexGuard<'static, Vec<&'static ModelLibrary>> {
    static OPENED: Mutex<Vec<&'static ModelLibrary>> = Mutex::new(Vec::new());
    OPENED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens an empty library in the place of `libtorch.so`, once, unless the process has the real one.
fn provide_torch() -> Result<(), LibraryFault> {
    // SAFETY: RTLD_NOLOAD runs no code, it only checks whether the name is loaded.
    if unsafe { Library::open(Some(TORCH), RTLD_NOW | rtld_noload()) }.is_ok() {
        return Ok(());
    }
    let file = memfd_create("nereid-libtorch", MemfdFlags::CLOEXEC).map_err(io::Error::from)?;
    let mut file = File::from(file);
    io::copy(&mut &empty_library(TORCH)[..], &mut file)?;
    // SAFETY: the library has no code.
    let library = unsafe { Library::open(Some(path_of(&file, 0)), RTLD_NOW | RTLD_GLOBAL) };
    std::mem::forget(library.map_err(|error| LibraryFault::Open(LibraryError::opening(&error).to_string()))?);
    Ok(())
}

fn rtld_noload() -> i32 {
    // Of <dlfcn.h> of Linux.
    0x4
}

/// A path of the file that no other library of this process has: the loader takes libraries with the same path for one,
/// and numbers of descriptors are used again. `./` and `.//` write `number` in binary digits without another meaning.
fn path_of(file: &File, number: usize) -> String {
    let digits = 0..usize::BITS - LIBRARIES_MAX.leading_zeros();
    let digits: String = digits.map(|digit| if number >> digit & 1 == 1 { ".//" } else { "./" }).collect();
    format!("/proc/self/fd/{digits}{}", file.as_raw_fd())
}

fn functions(library: &Library) -> Result<Functions, LibraryFault> {
    let foreign = |error| match error {
        LibraryError::Foreign { symbol, .. } => LibraryFault::Foreign(symbol),
        other => LibraryFault::Open(other.to_string()),
    };
    // SAFETY: each symbol has, in every library of a package, the type of its field (aoti_runtime/interface.h).
    unsafe {
        Ok(Functions {
            create: symbol(library, "AOTInductorModelContainerCreateWithDevice").map_err(foreign)?,
            delete: symbol(library, "AOTInductorModelContainerDelete").map_err(foreign)?,
            input_count: symbol(library, "AOTInductorModelContainerGetNumInputs").map_err(foreign)?,
            output_count: symbol(library, "AOTInductorModelContainerGetNumOutputs").map_err(foreign)?,
            call_spec: symbol(library, "AOTInductorModelContainerGetCallSpec").map_err(foreign)?,
            run: symbol(library, "AOTInductorModelContainerRun").map_err(foreign)?,
            last_error: symbol(library, "AOTInductorGetLastError").ok(),
            weights_size: symbol(library, "AOTInductorModelContainerGetConstantsBlobSize").ok(),
            update_weights: symbol(library, "AOTInductorModelUpdateConstantsFromBlob").ok(),
            constant_count: symbol(library, "AOTInductorModelContainerGetNumConstants").ok(),
            is_folded_constant: symbol(library, "AOTInductorModelContainerGetConstantFromFolded").ok(),
            constants: symbol(library, "AOTInductorModelContainerExtractConstantsMapEntries").ok(),
        })
    }
}

/// True if both have the same bytes.
fn is_same(a: &File, b: &File) -> io::Result<bool> {
    let length = a.metadata()?.len();
    if length != b.metadata()?.len() {
        return Ok(false);
    }
    let (mut of_a, mut of_b) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    let mut at = 0;
    while at < length {
        let count = usize::try_from(length - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let (Some(of_a), Some(of_b)) = (of_a.get_mut(..count), of_b.get_mut(..count)) else { break };
        a.read_exact_at(of_a, at)?;
        b.read_exact_at(of_b, at)?;
        if of_a != of_b {
            return Ok(false);
        }
        at += count as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::io::Write;

    fn in_memory(bytes: &[u8]) -> File {
        let mut file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn every_library_has_a_path_of_its_own_that_leads_to_its_file() {
        let file = in_memory(b"library");
        let paths: BTreeSet<String> = (0..=LIBRARIES_MAX).map(|number| path_of(&file, number)).collect();
        assert_eq!(paths.len(), LIBRARIES_MAX + 1);
        for path in [path_of(&file, 0), path_of(&file, LIBRARIES_MAX)] {
            assert_eq!(std::fs::read(&path).unwrap(), b"library", "{path}");
        }
    }

    #[test]
    fn the_same_bytes_are_the_same_library() {
        let long = vec![7; PIECE_BYTES + 9];
        let mut other = long.clone();
        other[PIECE_BYTES] = 8;
        let same = |a: &[u8], b: &[u8]| is_same(&in_memory(a), &in_memory(b)).unwrap();
        assert!(same(b"", b"") && same(&long, &long));
        assert!(!same(&long, &other) && !same(&long, &long[1..]));
    }

    #[test]
    fn what_is_no_library_of_a_package_is_refused() {
        let open = |bytes: &[u8]| {
            ModelLibrary::open::<LibraryFault>(|file| Ok(file.write_all(bytes)?)).unwrap_err().to_string()
        };
        let text = open(b"not a library");
        assert!(text.starts_with("its library cannot be opened: "), "{text}");
        let text = open(&empty_library("libmodel.so"));
        assert_eq!(text, "its library has no function AOTInductorModelContainerCreateWithDevice");
    }

    #[test]
    fn the_place_of_torch_is_taken_once() {
        provide_torch().unwrap();
        provide_torch().unwrap();
        // SAFETY: the flag only checks whether the name is loaded.
        assert!(unsafe { Library::open(Some(TORCH), RTLD_NOW | rtld_noload()) }.is_ok());
    }
}
