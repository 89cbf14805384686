//! Compiles the shim against the PyTorch that was found, once: later starts find it beside PyTorch or in the user's
//! data folder.
//!
//! The C++ interface of a PyTorch is the one of its version and of its compiler's strings, so the file's name has the
//! version, and a number of everything else that it depends on.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::shim::Shim;
use super::{RUNTIME, Torch};
use nereid_backend::python::helper_program::{self, Failure};
use nereid_backend::runtime_search::{LibraryError, Surroundings};

const SOURCE: &str = include_str!("shim.cpp");
const FLAGS: [&str; 5] = ["-std=c++20", "-O2", "-fPIC", "-shared", "-w"];
/// Searched on the PATH if the variable `CXX` names none.
const COMPILERS: [&str; 3] = ["g++", "c++", "clang++"];
/// One that exists must be in the headers.
const HEADER: &str = "torch/csrc/jit/api/module.h";
/// Half a minute is usual, several on a busy machine.
const COMPILE_TIME_MAX: Duration = Duration::from_secs(900);
const VERSION_TIME_MAX: Duration = Duration::from_secs(20);
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Why there is no shim.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    #[error(
        "PyTorch models need a C++ compiler once, which compiles the server's interface to PyTorch {version}, and \
         there is none: {tried}. Install one, on Debian: apt install g++; then load the model again"
    )]
    NoCompiler { version: String, tried: String },
    #[error(
        "the headers of PyTorch {version} are missing: there is no {header}. Install a PyTorch that has them: {command}"
    )]
    NoHeaders { version: String, header: String, command: String },
    #[error(
        "the interface to PyTorch {version} cannot be compiled by {compiler}: {detail}. Install the PyTorch that this \
         server was tested with: {command}"
    )]
    Compiler { version: String, compiler: String, detail: String, command: String },
    #[error("the compiled interface to PyTorch {version} {error}")]
    Unusable { version: String, error: LibraryError },
    #[error(
        "the compiled interface to PyTorch {version} has no place: neither XDG_DATA_HOME nor HOME is set. Install \
         PyTorch for all users: {command} --system"
    )]
    NoHome { version: String, command: String },
    #[error("the interface to PyTorch cannot be compiled into {path}: {source}")]
    File { path: String, source: io::Error },
}

/// The folder of the shim in PyTorch's own package.
pub(super) fn folder_beside(torch: &Torch) -> PathBuf {
    torch.package().join("nereid")
}

/// The folder of the shims that this user has compiled. The search for runtimes skips it for its dot.
pub(super) fn folder_of_user(torch: &Torch, surroundings: &Surroundings) -> Result<PathBuf, ShimError> {
    let folder = surroundings.user_folder(&RUNTIME).map(|folder| folder.join(".shims"));
    folder.ok_or_else(|| ShimError::NoHome { version: torch.version().to_owned(), command: RUNTIME.install_command() })
}

/// Opens the usable shim of `folder`, if there is one.
pub(super) fn open(torch: &Torch, compiler: Result<&Compiler, &ShimError>, folder: &Path) -> Option<Shim> {
    let candidates = match compiler {
        Ok(compiler) => vec![folder.join(name(torch, compiler))],
        // What another compiler made works too, as long as the library of its C++ is there.
        Err(_) => files_with_prefix(folder, &prefix(torch)),
    };
    candidates.iter().filter(|file| file.is_file()).find_map(|file| match Shim::open(file) {
        Ok(shim) => Some(shim),
        Err(error) => {
            tracing::warn!("the interface to PyTorch {} {error}", file.display());
            None
        }
    })
}

/// The shim of `folder`, which is compiled if it is not there.
pub(super) fn open_or_compile(
    torch: &Torch,
    compiler: Result<Compiler, ShimError>,
    folder: &Path,
    report: &mut dyn FnMut(&str),
) -> Result<Shim, ShimError> {
    if let Some(shim) = open(torch, compiler.as_ref(), folder) {
        return Ok(shim);
    }
    let compiler = compiler?;
    let file = folder.join(name(torch, &compiler));
    compile(torch, &compiler, &file, report)?;
    Shim::open(&file).map_err(|error| ShimError::Unusable { version: torch.version().to_owned(), error })
}

fn name(torch: &Torch, compiler: &Compiler) -> String {
    format!("{}{:016x}.so", prefix(torch), hash_of(&compiler.description))
}

/// The start of the names of all shims for this PyTorch.
fn prefix(torch: &Torch) -> String {
    let bytes = fs::metadata(torch.path()).map_or(0, |file| file.len());
    let identity = hash_of(&(SOURCE, FLAGS, torch.has_old_strings(), bytes));
    format!("{}-{identity:016x}-", torch.version())
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn files_with_prefix(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(prefix) && name.ends_with(".so"))
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_ours).collect();
    files.sort();
    files
}

/// A C++ compiler, and the first line of what it prints about itself.
#[derive(Debug)]
pub(super) struct Compiler {
    program: OsString,
    description: String,
}

impl Compiler {
    pub fn find(version: &str) -> Result<Compiler, ShimError> {
        let given = env::var_os("CXX").filter(|program| !program.is_empty());
        Compiler::first_of(given.map_or_else(|| COMPILERS.map(OsString::from).to_vec(), |given| vec![given]), version)
    }

    fn first_of(programs: Vec<OsString>, version: &str) -> Result<Compiler, ShimError> {
        let mut tried = Vec::new();
        for program in programs {
            let shown = program.to_string_lossy().into_owned();
            match helper_program::run(Command::new(&program).arg("--version"), VERSION_TIME_MAX) {
                Ok(finished) if finished.status.success() => {
                    let stdout = String::from_utf8_lossy(&finished.stdout);
                    let description = stdout.lines().next().unwrap_or_default().trim().to_owned();
                    return Ok(Compiler { program, description });
                }
                Ok(finished) => tried.push(format!("{shown} does not work ({})", finished.detail())),
                Err(Failure::Start(error)) if error.kind() == io::ErrorKind::NotFound => {
                    tried.push(format!("{shown} is not on the PATH"));
                }
                Err(error) => tried.push(format!("{shown} does not work ({error})")),
            }
        }
        Err(ShimError::NoCompiler { version: version.to_owned(), tried: tried.join(", ") })
    }
}

/// Compiles in a folder of its own beside `file`, which then appears whole: several servers may do the same.
fn compile(torch: &Torch, compiler: &Compiler, file: &Path, report: &mut dyn FnMut(&str)) -> Result<(), ShimError> {
    let (version, shown) = (torch.version(), &compiler.description);
    let include = torch.package().join("include");
    let header = include.join(HEADER);
    if !header.is_file() {
        let (version, header) = (version.to_owned(), header.display().to_string());
        return Err(ShimError::NoHeaders { version, header, command: RUNTIME.install_command() });
    }
    let work = WorkFolder::create(file.parent().unwrap_or(Path::new("/")))?;
    let (source, made) = (work.0.join("shim.cpp"), work.0.join("shim.so"));
    fs::write(&source, SOURCE).map_err(|error| failed(&source, error))?;
    let mut command = Command::new(&compiler.program);
    command.args(FLAGS).arg(format!("-D_GLIBCXX_USE_CXX11_ABI={}", u8::from(!torch.has_old_strings())));
    for folder in [include.clone(), include.join("torch/csrc/api/include")] {
        command.arg("-isystem").arg(folder);
    }
    command.arg(&source).arg("-L").arg(torch.path().parent().unwrap_or(Path::new("/")));
    // The library is open already when the shim is: it is found by its name.
    command.args(["-ltorch_cpu", "-lc10", "-Wl,-z,defs", "-o"]).arg(&made);
    report(&format!("Compiling the interface to PyTorch {version} with {shown}; this is done once"));
    let finished = run_visibly(&mut command, version, report).map_err(|error| ShimError::Compiler {
        version: version.to_owned(),
        compiler: shown.clone(),
        detail: error.to_string(),
        command: RUNTIME.install_command(),
    })?;
    if !finished.status.success() {
        return Err(ShimError::Compiler {
            version: version.to_owned(),
            compiler: shown.clone(),
            detail: first_error(&finished),
            command: RUNTIME.install_command(),
        });
    }
    fs::rename(&made, file).map_err(|error| failed(file, error))?;
    report(&format!("The interface to PyTorch {version} is compiled: {}", file.display()));
    Ok(())
}

fn failed(path: &Path, source: io::Error) -> ShimError {
    ShimError::File { path: path.display().to_string(), source }
}

/// The compiler's first complaint: the lines behind it often follow from it.
fn first_error(finished: &helper_program::Finished) -> String {
    let stderr = String::from_utf8_lossy(&finished.stderr);
    let line = stderr.lines().find(|line| line.contains("error") || line.contains("undefined"));
    line.map_or_else(|| finished.detail(), |line| line.trim().to_owned())
}

/// Runs the compiler on a thread of its own, and reports how long it has taken so far.
fn run_visibly(
    command: &mut Command,
    version: &str,
    report: &mut dyn FnMut(&str),
) -> Result<helper_program::Finished, Failure> {
    let (done, ended) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || drop(done.send(helper_program::run(command, COMPILE_TIME_MAX))));
        let mut waited = Duration::ZERO;
        loop {
            match ended.recv_timeout(REPORT_INTERVAL) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Timeout) => {
                    waited += REPORT_INTERVAL;
                    report(&format!("Still compiling the interface to PyTorch {version} after {} s", waited.as_secs()));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::Start(io::Error::other("the thread that runs the compiler ended")));
                }
            }
        }
    })
}

/// A folder for one compilation, removed at its end.
struct WorkFolder(PathBuf);

impl WorkFolder {
    fn create(beside: &Path) -> Result<WorkFolder, ShimError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = beside.join(format!(".compiling-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| failed(&path, error))?;
        Ok(WorkFolder(path))
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests;
