//! The process's PyTorch: locates `libtorch_cpu.so` and opens it once; and the shim through which its C++ interface is
//! called.

#![allow(unsafe_code)]

mod compile;
mod shim;

use std::fs;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use compile::Compiler;
pub use compile::ShimError;
pub use shim::{Argument, ArgumentKind, Input, InputData, Module, Options, Output, Place, Run, Shim};

use nereid_backend::runtime_search::{LibraryError, Missing, OpenedLibrary, OpenedOnce, RuntimeKind, Surroundings};

/// The part of the library for NVIDIA's GPUs, in builds that have one.
const CUDA_LIBRARY: &str = "libtorch_cuda.so";

/// How the library is found.
pub static RUNTIME: RuntimeKind = RuntimeKind {
    name: super::NAME,
    title: "PyTorch",
    stem: "libtorch_cpu.so",
    smaller_stem: None,
    variables: &["NEREID_PYTORCH_LIBRARY"],
    folders: &["torch/lib"],
    gpu_marker: Some(CUDA_LIBRARY),
    loader_folders: &[],
};

/// PyTorch, opened. It stays open: its destructors are not made for a process that continues.
#[derive(Debug)]
pub struct Torch {
    library: Library,
    path: PathBuf,
    version: String,
    shim: OpenedOnce<Shim>,
    cuda: OpenedOnce<Library>,
}

impl Torch {
    /// Opens the part for GPUs, once. It makes its functions known to the library when it is opened.
    pub fn open_cuda(&self) -> Result<(), LibraryError> {
        let path = self.path.with_file_name(CUDA_LIBRARY);
        let opened = self.cuda.get_or_open(|| {
            // SAFETY: opening a library runs its initialisers; this one lies beside the opened one and belongs to it.
            unsafe { Library::open(Some(&path), RTLD_LAZY | RTLD_LOCAL) }
        });
        opened.map(drop).map_err(|error| LibraryError::opening(&error))
    }

    /// The opened `libtorch_cpu.so`, for symbols of its C interface.
    pub fn library(&self) -> &Library {
        &self.library
    }

    /// The absolute path of `libtorch_cpu.so`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// As the package states it, e.g. `2.15.0+cu132`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The folder of the package that holds the library: its headers are in `include` there.
    pub fn package(&self) -> &Path {
        self.path.parent().and_then(Path::parent).unwrap_or(Path::new("/"))
    }

    /// Whether its C++ interface has the strings of GCC 4 (contract/frameworks.md section 11, trap 12). What is
    /// compiled for it must have the same.
    pub fn has_old_strings(&self) -> bool {
        let symbol = b"_ZN3c106Symbol14fromQualStringERKSs\0";
        // SAFETY: `c10::Symbol::fromQualString(std::string const&)` is only looked for; it is not called.
        unsafe { self.library.get::<unsafe extern "C" fn()>(symbol) }.is_ok()
    }

    /// The shim for this PyTorch. The first call opens it, and compiles it if it is not there yet, which takes about
    /// half a minute; `report` gets a sentence about that now and then.
    pub fn shim(&self, surroundings: &Surroundings, report: &mut dyn FnMut(&str)) -> Result<&Shim, ShimError> {
        self.shim.get_or_open(|| {
            let compiler = Compiler::find(&self.version);
            match compile::open(self, compiler.as_ref(), &compile::folder_beside(self)) {
                Some(installed) => Ok(installed),
                None => {
                    let folder = compile::folder_of_user(self, surroundings)?;
                    compile::open_or_compile(self, compiler, &folder, report)
                }
            }
        })
    }

    /// The shim, if a TorchScript module needed it.
    pub fn opened_shim(&self) -> Option<&Shim> {
        self.shim.get()
    }

    /// Compiles the shim into the package's own folder, unless it is there: for an installation.
    pub fn install_shim(&self, report: &mut dyn FnMut(&str)) -> Result<(), ShimError> {
        let compiler = Compiler::find(&self.version);
        compile::open_or_compile(self, compiler, &compile::folder_beside(self), report).map(drop)
    }
}

impl OpenedLibrary for Torch {
    fn path(&self) -> &Path {
        &self.path
    }

    fn version(&self) -> &str {
        &self.version
    }
}

/// The process's PyTorch, opened at the first call that finds one.
pub fn load(surroundings: &Surroundings) -> Result<&'static Torch, Missing> {
    static TORCH: OpenedOnce<Torch> = OpenedOnce::new();
    TORCH.find(&RUNTIME, surroundings, open)
}

/// Opens `path`, which must be a `libtorch_cpu.so` with its dependencies where its package has them.
pub fn open(path: &Path) -> Result<Torch, LibraryError> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    // Local: other libraries of this process must not see its copies of oneDNN, MKL and protobuf. What is linked
    // against it finds it by its name.
    // SAFETY: opening a library runs its initialisers; the user chose this file, or it lies where PyTorch lies.
    let library = unsafe { Library::open(Some(&path), RTLD_LAZY | RTLD_LOCAL) };
    let library = library.map_err(|error| LibraryError::opening(&error))?;
    let symbol = "aoti_torch_create_tensor_from_blob";
    // SAFETY: the symbol is only looked for; it is not called.
    if unsafe { library.get::<unsafe extern "C" fn()>(symbol.as_bytes()) }.is_err() {
        return Err(LibraryError::Foreign { title: RUNTIME.title, symbol });
    }
    let version = version_beside(&path).ok_or_else(|| LibraryError::Unusable {
        title: RUNTIME.title,
        reason: "neither version.py nor include/torch/version.h is in its package".to_owned(),
    })?;
    Ok(Torch { library, path, version, shim: OpenedOnce::new(), cuda: OpenedOnce::new() })
}

/// The version of the package that holds `library`: that of the Python package, else of the archive of libtorch, else
/// of the headers.
fn version_beside(library: &Path) -> Option<String> {
    let package = library.parent()?.parent()?;
    let read = |file: &str| fs::read_to_string(package.join(file)).ok();
    let quoted = |text: &str, start: &str| {
        let line = text.lines().map(str::trim).skip_while(|line| !line.starts_with(start));
        // The value may be on the line behind that of the name.
        let found = line.take(2).find_map(|line| line.split(['\'', '"']).nth(1))?;
        Some(found.to_owned()).filter(|version| is_version(version))
    };
    read("version.py")
        .and_then(|text| quoted(&text, "__version__"))
        .or_else(|| read("build-version").map(|text| text.trim().to_owned()).filter(|text| is_version(text)))
        .or_else(|| read("include/torch/headeronly/version.h").and_then(|text| quoted(&text, "#define TORCH_VERSION ")))
        .or_else(|| {
            let header = read("include/torch/csrc/api/include/torch/version.h")?;
            quoted(&header, "#define TORCH_VERSION ")
        })
}

/// It becomes the name of a folder.
fn is_version(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-' | '_');
    text.starts_with(|c: char| c.is_ascii_digit()) && text.len() <= 64 && text.chars().all(is_part)
}

#[cfg(test)]
mod tests;
