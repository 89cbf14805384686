//! EXECUTION_ENV_PATH: the model's own environment, a directory or an archive (contract/python_backend.md section 5).
//!
//! An archive is unpacked once per server, into a directory of the server's own under the system's temporary one, and
//! shared by all models that name it; after a change of the file it is unpacked again for later loads. Directories of a
//! killed process are removed by the next one that unpacks; a locked file marks those that are in use.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::layout::SCRIPT;
use super::{archive, helper_program};
use crate::ModelContext;
use nereid_observe::log::verbose;
use nereid_request::Status;
use nereid_wire::inference::{ModelConfig, ModelParameter};

const PARAMETER: &str = "EXECUTION_ENV_PATH";
const MODEL_DIRECTORY: &str = "$$TRITON_MODEL_DIRECTORY";
const VENV: &str = "VIRTUAL_ENV";
const VENV_PROMPT: &str = "VIRTUAL_ENV_PROMPT";
const PROGRAMS: &str = "PATH";
/// It would make the environment's interpreter use the library of another one.
const PYTHON_HOME: &str = "PYTHONHOME";
const LIBRARIES: &str = "LD_LIBRARY_PATH";
/// The value of LD_LIBRARY_PATH before the environment's libraries were prepended. The worker restores it.
pub const ORIGINAL_LIBRARIES: &str = "NEREID_ORIGINAL_LD_LIBRARY_PATH";

/// The prefix of the directories for unpacked archives, in the system's temporary directory.
const ROOT_START: &str = "python_env_";
const ROOT_LETTERS: usize = 6;
/// Held locked by the process that uses the directory.
const LOCK: &str = "nereid.lock";
/// Names that are tried before the creation fails.
const TRIES_MAX: u32 = 100;

/// The time limit of a shell that sources a script, and of conda-unpack, which rewrites all files of an environment.
const ACTIVATION_TIME: Duration = Duration::from_secs(60);
const CONDA_UNPACK_TIME: Duration = Duration::from_secs(600);
/// Variables that a shell sets for itself.
const OF_SHELLS: [&str; 5] = ["_", "SHLVL", "PWD", "OLDPWD", "PS1"];

/// A variable to be set, or removed.
pub type Change = (OsString, Option<OsString>);

/// The environment of the model: EXECUTION_ENV_PATH, else the archive in the directory of its Python-based backend.
pub fn path_of(context: &ModelContext, base: Option<&Path>) -> Option<PathBuf> {
    if let Some(given) = context.parameter(PARAMETER).filter(|given| !given.is_empty()) {
        return Some(given.replace(MODEL_DIRECTORY, &context.directory.to_string_lossy()).into());
    }
    beside(base?)
}

/// The archive of a Python-based backend.
fn beside(base: &Path) -> Option<PathBuf> {
    let packed = base.join(format!("pb_exec_env_{SCRIPT}.tar.gz"));
    packed.is_file().then_some(packed)
}

/// Completes the configuration of a model of the Python-based backend in `base` with the script that serves it and the
/// environment. Clients and the model get these settings too, as with Triton.
pub fn complete_based(config: &mut ModelConfig, base: &Path) {
    if config.runtime.is_empty() {
        config.runtime = SCRIPT.to_owned();
    }
    if !config.parameters.contains_key(PARAMETER)
        && let Some(packed) = beside(base)
    {
        let value = ModelParameter { string_value: packed.to_string_lossy().into_owned() };
        config.parameters.insert(PARAMETER.to_owned(), value);
    }
}

/// An environment on disk, kept as long as this value lives.
#[derive(Debug, Clone)]
pub struct Environment {
    pub directory: PathBuf,
    _unpacked: Option<Arc<Unpacked>>,
}

impl Environment {
    /// Its own interpreter.
    pub fn interpreter(&self) -> Result<PathBuf, Status> {
        let bin = self.directory.join("bin");
        let found = ["python3", "python"].map(|name| bin.join(name)).into_iter().find(|program| program.is_file());
        found.ok_or_else(|| {
            let bin = bin.display();
            Status::internal(format!(
                "the Python environment of {PARAMETER} has no interpreter: {bin}/python3 is missing"
            ))
        })
    }

    /// The changes that its activation script makes to the variables, with its programs and libraries ahead of others.
    /// Runs a shell.
    pub fn activation(&self) -> Result<Vec<Change>, Status> {
        let script = activate_in(&self.directory);
        let shown = script.display();
        // conda-pack's script needs bash to find its own directory.
        let shell = if in_path("bash") { "bash" } else { "sh" };
        let mut command = Command::new(shell);
        command.args(["-c", r#". "$0" 1>&2 && exec env -0"#]).arg(&script);
        let wrong =
            |text: String| Status::internal(format!("failed to activate the Python environment '{shown}': {text}"));
        let done =
            helper_program::run(&mut command, ACTIVATION_TIME).map_err(|error| wrong(format!("{shell}: {error}")))?;
        if !done.status.success() {
            return Err(wrong(done.detail()));
        }
        let after: HashMap<OsString, OsString> = variables(&done.stdout).collect();
        let before: HashMap<OsString, OsString> = std::env::vars_os().collect();
        Ok(self.with_own_places(&after, self.with_libraries(&after, differences(&before, &after))))
    }

    /// Adds the variables that Triton sets itself, independent of the script: a script names the directory where its
    /// environment was made, not the one where the archive is unpacked, and may be written for another tool.
    fn with_own_places(&self, after: &HashMap<OsString, OsString>, mut changes: Vec<Change>) -> Vec<Change> {
        changes.retain(|(name, _)| ![VENV, VENV_PROMPT, PROGRAMS, PYTHON_HOME].iter().any(|own| name == own));
        let root = self.directory.as_os_str();
        let mut prompt = OsString::from("(");
        prompt.push(root);
        prompt.push(")");
        let mut programs = self.directory.join("bin").into_os_string();
        if let Some(others) = after.get(OsStr::new(PROGRAMS)).filter(|others| !others.is_empty()) {
            let is_ahead = std::env::split_paths(others).next().is_some_and(|first| first == programs);
            if is_ahead {
                programs = others.clone();
            } else {
                programs.push(":");
                programs.push(others);
            }
        }
        changes.push((VENV.into(), Some(root.to_owned())));
        changes.push((VENV_PROMPT.into(), Some(prompt)));
        changes.push((PROGRAMS.into(), Some(programs)));
        changes.push((PYTHON_HOME.into(), None));
        changes
    }

    fn with_libraries(&self, after: &HashMap<OsString, OsString>, mut changes: Vec<Change>) -> Vec<Change> {
        changes.retain(|(name, _)| name != LIBRARIES && name != ORIGINAL_LIBRARIES);
        let original = after.get(OsStr::new(LIBRARIES)).cloned().unwrap_or_default();
        let mut libraries = self.directory.join("lib").into_os_string();
        if !original.is_empty() {
            libraries.push(":");
            libraries.push(&original);
        }
        changes.push((LIBRARIES.into(), Some(libraries)));
        changes.push((ORIGINAL_LIBRARIES.into(), Some(original)));
        changes
    }
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// The variables that `env -0` printed, without exported functions of the shell.
fn variables(printed: &[u8]) -> impl Iterator<Item = (OsString, OsString)> + '_ {
    let pairs = printed.split(|&byte| byte == 0).filter_map(|pair| {
        let equals = pair.iter().position(|&byte| byte == b'=').filter(|&equals| equals > 0)?;
        let of = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        Some((of(pair.get(..equals)?), of(pair.get(equals + 1..)?)))
    });
    pairs.filter(|(name, _)| !name.as_bytes().starts_with(b"BASH_FUNC_") && !OF_SHELLS.iter().any(|own| name == own))
}

/// The differences, in the order of the names.
fn differences(before: &HashMap<OsString, OsString>, after: &HashMap<OsString, OsString>) -> Vec<Change> {
    let set = after.iter().filter(|(name, value)| before.get(*name) != Some(value));
    let set = set.map(|(name, value)| (name.clone(), Some(value.clone())));
    let is_shells =
        |name: &OsString| name.as_bytes().starts_with(b"BASH_FUNC_") || OF_SHELLS.iter().any(|own| name == own);
    let removed = before.keys().filter(|name| !after.contains_key(*name) && !is_shells(name));
    let mut changes: Vec<Change> = set.chain(removed.map(|name| (name.clone(), None))).collect();
    changes.sort();
    changes
}

fn activate_in(directory: &Path) -> PathBuf {
    directory.join("bin/activate")
}

/// A directory, or the archive that has to be unpacked first.
enum Source {
    Directory(PathBuf),
    Archive(PathBuf),
}

impl Source {
    fn find(path: &Path) -> Result<Source, Status> {
        let missing = |_| Status::internal(format!("Failed to get the canonical path for {}.", path.display()));
        let real = path.canonicalize().map_err(missing)?;
        if !real.is_dir() {
            return Ok(Source::Archive(real));
        }
        check_activate(&real)?;
        Ok(Source::Directory(real))
    }
}

/// Checks the environment at `path` as far as possible without unpacking it.
pub fn examine(path: &Path) -> Result<(), Status> {
    Source::find(path).map(|_| ())
}

fn check_activate(directory: &Path) -> Result<(), Status> {
    let script = activate_in(directory);
    if script.is_file() {
        return Ok(());
    }
    Err(Status::internal(format!(
        "Path {} does not exist. The Python environment should contain an 'activate' script.",
        script.display()
    )))
}

/// The environments that were unpacked, for all models of a process.
#[derive(Debug, Default)]
pub struct Environments {
    /// Made for the first archive.
    root: Mutex<Weak<Root>>,
    archives: Mutex<HashMap<PathBuf, Arc<Mutex<Option<Current>>>>>,
}

/// The last result of unpacking an archive, and the state of the file then.
#[derive(Debug)]
struct Current {
    stamp: Stamp,
    unpacked: Arc<Unpacked>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: (i64, i64),
    bytes: u64,
}

impl Stamp {
    fn of(file: &Path) -> io::Result<Stamp> {
        let metadata = fs::metadata(file)?;
        Ok(Stamp { modified: (metadata.mtime(), metadata.mtime_nsec()), bytes: metadata.len() })
    }
}

impl Environments {
    /// The environments of this process, kept as long as a server with this backend exists.
    pub fn shared() -> Arc<Environments> {
        static SHARED: Mutex<Weak<Environments>> = Mutex::new(Weak::new());
        let mut shared = lock(&SHARED);
        shared.upgrade().unwrap_or_else(|| {
            let made = Arc::default();
            *shared = Arc::downgrade(&made);
            made
        })
    }

    /// Opens the environment at `path`. May take long; only loads with the same archive wait for it.
    pub fn open(&self, path: &Path) -> Result<Environment, Status> {
        let archive = match Source::find(path)? {
            Source::Directory(directory) => return Ok(Environment { directory, _unpacked: None }),
            Source::Archive(archive) => archive,
        };
        let place = Arc::clone(lock(&self.archives).entry(archive.clone()).or_default());
        let mut current = lock(&place);
        let stamp = Stamp::of(&archive).map_err(|error| failed(&archive, error))?;
        let unpacked = match &*current {
            Some(known) if known.stamp == stamp => Arc::clone(&known.unpacked),
            _ => {
                let unpacked = Arc::new(self.unpack(&archive)?);
                *current = Some(Current { stamp, unpacked: Arc::clone(&unpacked) });
                unpacked
            }
        };
        Ok(Environment { directory: unpacked.directory.clone(), _unpacked: Some(unpacked) })
    }

    fn unpack(&self, archive: &Path) -> Result<Unpacked, Status> {
        let started = Instant::now();
        let root = self.root().map_err(|error| {
            let place = std::env::temp_dir();
            failed(archive, format!("no directory can be made in '{}': {error}", place.display()))
        })?;
        let directory = root.path.join(root.count.fetch_add(1, Ordering::Relaxed).to_string());
        verbose!(1, "Extracting Python execution env {}", archive.display());
        info!("unpacking the Python environment '{}' into '{}'", archive.display(), directory.display());
        DirBuilder::new().mode(0o755).create(&directory).map_err(|error| failed(archive, error))?;
        // From here on an error removes the directory.
        let unpacked = Unpacked { directory, _root: root };
        archive::unpack(archive, &unpacked.directory).map_err(|error| failed(archive, error))?;
        check_activate(&unpacked.directory)?;
        unpacked.relocate();
        let secs = started.elapsed().as_secs_f64();
        info!("unpacked the Python environment '{}' in {secs:.1} s", archive.display());
        Ok(unpacked)
    }

    fn root(&self) -> io::Result<Arc<Root>> {
        let mut root = lock(&self.root);
        if let Some(root) = root.upgrade() {
            return Ok(root);
        }
        let made = Arc::new(Root::make(&std::env::temp_dir())?);
        *root = Arc::downgrade(&made);
        Ok(made)
    }
}

impl Drop for Environments {
    /// The server ends: removes the unpacked directories, even if some are still held.
    fn drop(&mut self) {
        if let Some(root) = lock(&self.root).upgrade() {
            remove(&root.path);
        }
    }
}

fn failed(archive: &Path, cause: impl std::fmt::Display) -> Status {
    Status::internal(format!("Failed to unpack the Python environment '{}': {cause}", archive.display()))
}

/// One unpacked archive, which its last user removes.
#[derive(Debug)]
struct Unpacked {
    directory: PathBuf,
    _root: Arc<Root>,
}

impl Unpacked {
    /// Rewrites the paths that conda-pack left unchanged. An environment without that script, or with one that fails,
    /// mostly works as it is.
    fn relocate(&self) {
        let script = self.directory.join("bin/conda-unpack");
        let python = self.directory.join("bin/python");
        if !script.is_file() || !python.is_file() {
            return;
        }
        let text = match helper_program::run(Command::new(python).arg(&script), CONDA_UNPACK_TIME) {
            Ok(done) if done.status.success() => return,
            Ok(done) => done.detail(),
            Err(error) => error.to_string(),
        };
        warn!("'{}' failed: {text}", script.display());
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        remove(&self.directory);
    }
}

/// `<tmp>/python_env_XXXXXX`.
#[derive(Debug)]
struct Root {
    path: PathBuf,
    /// The number of directories made in it.
    count: AtomicU64,
    _lock: File,
}

impl Root {
    fn make(place: &Path) -> io::Result<Root> {
        sweep(place);
        for _ in 0..TRIES_MAX {
            let path = place.join(format!("{ROOT_START}{}", letters()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            // The file gets its name when it is locked, so that no process takes the directory for a leftover.
            let unnamed = path.join(format!("{LOCK}.new"));
            let locked = File::create_new(&unnamed).and_then(|lock| {
                lock.lock()?;
                fs::rename(&unnamed, path.join(LOCK))?;
                Ok(lock)
            });
            return match locked {
                Ok(lock) => Ok(Root { path, count: AtomicU64::new(0), _lock: lock }),
                Err(error) => {
                    remove(&path);
                    Err(error)
                }
            };
        }
        Err(io::Error::other(format!("{TRIES_MAX} directories named {ROOT_START}… are in the way")))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Six random letters and digits.
fn letters() -> String {
    const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let mut number = RandomState::new().hash_one(std::process::id());
    let mut text = String::new();
    for _ in 0..ROOT_LETTERS {
        text.push(char::from(ALPHABET[(number % ALPHABET.len() as u64) as usize]));
        number /= ALPHABET.len() as u64;
    }
    text
}

/// Removes the directories that killed processes left in `place`. Directories of unknown state are kept.
fn sweep(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_named = name.to_str().and_then(|name| name.strip_prefix(ROOT_START)).map(str::len) == Some(ROOT_LETTERS);
        if !is_named || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let path = entry.path();
        // Triton's directories have no such file.
        let Ok(lock) = File::open(path.join(LOCK)) else { continue };
        match lock.try_lock() {
            Ok(()) => {
                info!("removing the Python environments that an ended server left in '{}'", path.display());
                remove(&path);
            }
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
        }
    }
}

fn remove(path: &Path) {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            warn!("failed to remove the Python environment '{}': {error}", path.display());
        }
        _ => {}
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
