//! Puts an ONNX Runtime library into the user's runtime folder, all of it or nothing.
//!
//! Work is done in a folder beside the target whose name begins with a dot, which the search passes over; a library
//! that was opened and answered is then moved in by one rename. So a second installation, a kill or a full disk at
//! any moment leaves either the old state or the new one.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::Progress;
use super::download::{Package, Python};
use nereid_backend::onnxruntime::{Inspected, LibraryError, Surroundings, inspect, runtimes_below};

/// The version that this build was tested with.
pub const TESTED_VERSION: &str = "1.31.1";

const UNFINISHED: &str = ".unfinished-";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstallOptions {
    /// `None`: [`TESTED_VERSION`], or the newest there is if that one is not offered.
    pub version: Option<String>,
    /// The build that computes on GPUs too.
    pub gpu: bool,
    /// Install again, even if it is installed already.
    pub force: bool,
    /// For all users below this prefix; `None`: for this user.
    pub prefix: Option<PathBuf>,
}

/// Why a runtime could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("there is no place for runtimes: neither XDG_DATA_HOME nor HOME is set")]
    NoHome,
    #[error(
        "python3 is needed to download ONNX Runtime, but it does not start ({0}). Install Python 3 with pip, or give \
         the library's path with --backend-config=onnxruntime,library=<path>"
    )]
    NoPython(String),
    #[error("python3 has no pip, which is needed to download ONNX Runtime ({0}). On Debian: apt install python3-pip")]
    NoPip(String),
    #[error("onnxruntime {version} is not offered for this machine ({platform}): {detail}")]
    NoSuchVersion { version: String, platform: String, detail: String },
    #[error("onnxruntime cannot be downloaded; is this host connected, and are proxies set? pip said: {0}")]
    Download(String),
    #[error("the downloaded package cannot be unpacked: {0}")]
    Unpack(String),
    #[error("the downloaded library {0}")]
    Unusable(#[from] LibraryError),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}

/// Installs the library for this user, or for all, and returns its path. An installed usable library is kept, unless
/// forced.
pub fn install_onnxruntime(options: &InstallOptions, progress: &mut dyn Progress) -> Result<PathBuf, InstallError> {
    let folder = match &options.prefix {
        Some(prefix) => runtimes_below(prefix).join("onnxruntime"),
        None => Surroundings::of_process(None).user_folder().ok_or(InstallError::NoHome)?,
    };
    install_into(&folder, &Python::default(), options, progress)
}

pub(super) fn install_into(
    folder: &Path,
    python: &Python,
    options: &InstallOptions,
    progress: &mut dyn Progress,
) -> Result<PathBuf, InstallError> {
    let wanted = options.version.as_deref().unwrap_or(TESTED_VERSION);
    let package = Package { is_for_gpus: options.gpu };
    if !options.force
        && let Some(installed) = usable_in(&folder.join(package.folder(wanted)))
    {
        progress.done(&format!("ONNX Runtime {} is installed already", installed.version));
        return Ok(installed.path);
    }
    remove_abandoned(folder);
    let work = WorkFolder::create(folder)?;
    progress.step("Looking for python3 and pip");
    python.check()?;
    let name = package.name();
    progress.step(&format!("Downloading {name} {wanted} with pip"));
    let wheel = match python.download(package, Some(wanted), &work.0, progress) {
        Err(InstallError::NoSuchVersion { .. }) if options.version.is_none() => {
            progress.step(&format!("Downloading the newest {name} with pip"));
            python.download(package, None, &work.0, progress)?
        }
        other => other?,
    };
    progress.step("Unpacking the library");
    let unpacked = work.0.join("unpacked");
    create_folder(&unpacked)?;
    python.unpack(package, &wheel.path, &unpacked)?;
    progress.step("Opening the library");
    let library = only_library_in(&unpacked)?;
    // It is opened where it was unpacked, and moved after that: a broken library is never installed.
    let Inspected { version, .. } = inspect(&library)?;
    flush(&library)?;
    if options.prefix.is_some() {
        readable_by_all(&unpacked)?;
    }
    let target = folder.join(package.folder(&wheel.version));
    put_in_place(&unpacked, &target, &work)?;
    let name = library.file_name().unwrap_or_default();
    progress.done(&format!("ONNX Runtime {version} is installed in {}", target.display()));
    Ok(target.join(name))
}

fn usable_in(folder: &Path) -> Option<Inspected> {
    inspect(&only_library_in(folder).ok()?).ok()
}

/// The one file called `libonnxruntime.so*`.
fn only_library_in(folder: &Path) -> Result<PathBuf, InstallError> {
    let entries = fs::read_dir(folder).map_err(|source| InstallError::File { path: folder.to_path_buf(), source })?;
    let mut names: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"libonnxruntime.so")))
        .collect();
    names.sort();
    names.pop().ok_or_else(|| InstallError::Unpack("it has no capi/libonnxruntime.so".to_owned()))
}

/// Moves `unpacked` to `target`. An existing folder is moved aside first, and is removed with the work folder.
fn put_in_place(unpacked: &Path, target: &Path, work: &WorkFolder) -> Result<(), InstallError> {
    let failed = |source| InstallError::File { path: target.to_path_buf(), source };
    if target.exists() {
        fs::rename(target, work.0.join("replaced")).map_err(failed)?;
    }
    match fs::rename(unpacked, target) {
        // Another installation was faster, and has opened its library too.
        Err(_) if usable_in(target).is_some() => Ok(()),
        other => other.map_err(failed),
    }
}

fn flush(path: &Path) -> Result<(), InstallError> {
    let file = fs::File::open(path).and_then(|file| file.sync_all());
    file.map_err(|source| InstallError::File { path: path.to_path_buf(), source })
}

/// Makes the folder readable by all users, whatever the umask, because a service runs as another user than the one that
/// installs.
fn readable_by_all(folder: &Path) -> Result<(), InstallError> {
    let entries = fs::read_dir(folder).map_err(|source| InstallError::File { path: folder.to_path_buf(), source })?;
    for path in entries.flatten().map(|entry| entry.path()).chain([folder.to_path_buf()]) {
        let opened = fs::set_permissions(&path, fs::Permissions::from_mode(0o755));
        opened.map_err(|source| InstallError::File { path: path.clone(), source })?;
    }
    Ok(())
}

fn create_folder(path: &Path) -> Result<(), InstallError> {
    fs::create_dir_all(path).map_err(|source| InstallError::File { path: path.to_path_buf(), source })
}

/// A folder for one installation, removed at its end.
struct WorkFolder(PathBuf);

impl WorkFolder {
    fn create(folder: &Path) -> Result<WorkFolder, InstallError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{UNFINISHED}{}-{number}", std::process::id()));
        create_folder(&path)?;
        Ok(WorkFolder(path))
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes leftovers of installations whose process has ended.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(UNFINISHED)).and_then(|rest| {
            let (process, _) = rest.split_once('-')?;
            process.parse::<u32>().ok()
        });
        if process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests;
