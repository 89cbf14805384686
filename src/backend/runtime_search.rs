//! Locations where the library of a runtime may be on this host, the best first, and the first that can be used.
//!
//! The search itself reads only the file system: a query of a Python interpreter would start a process, and opening a
//! library runs its code. Every location is kept with the libraries found there, so that an error can list all of them.

mod error;
mod opening;

pub use error::{LibraryError, Missing};
pub use opening::{OpenedLibrary, OpenedOnce};

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// A runtime that is opened when a model needs it.
#[derive(Debug, PartialEq, Eq)]
pub struct RuntimeKind {
    /// Names its backend, the folder of its installed versions, and it in `nereid runtime install <name>`.
    pub name: &'static str,
    /// Its name in messages: `ONNX Runtime`.
    pub title: &'static str,
    /// The library's name without its version: `libonnxruntime.so`.
    pub stem: &'static str,
    /// The name of a smaller library, which is used where a location does not have the first.
    pub smaller_stem: Option<&'static str>,
    /// Environment variables that name the library or a folder that contains it, the first one first.
    pub variables: &'static [&'static str],
    /// The folders that contain the library, below the packages of a Python and below the folder of an installed
    /// version: `onnxruntime/capi`.
    pub folders: &'static [&'static str],
    /// The file beside the library in builds for GPUs, which are preferred among the installed ones.
    pub gpu_marker: Option<&'static str>,
    /// Folders of the system's packages, which are searched last, behind those of LD_LIBRARY_PATH. Empty: neither is.
    pub loader_folders: &'static [&'static str],
}

impl RuntimeKind {
    /// The command that installs it for the current user.
    pub fn install_command(&self) -> String {
        format!("nereid runtime install {}", self.name)
    }

    /// Whether a library was built for GPUs, judged by the files beside it; it is not opened.
    pub fn computes_on_gpus(&self, library: &Path) -> bool {
        let library = library.canonicalize();
        self.gpu_marker.is_some_and(|marker| library.is_ok_and(|library| library.with_file_name(marker).is_file()))
    }
}

/// The prefix of `nereid runtime install --system`, which puts runtimes below its `lib`.
pub const SYSTEM_PREFIX: &str = "/usr/local";

/// The most directories that are opened for one location: a home with many Pythons must not slow a start down.
const DIRECTORIES_MAX: usize = 64;

/// The origin of a location. One that a person set is used or refused; one that was merely found may be skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// `--backend-config=<name>,library=<path>` of the runtime of this name.
    Setting(&'static str),
    Variable(&'static str),
    /// The target of `nereid runtime install`.
    UserFolder,
    /// Below `lib` of the installation that the program belongs to.
    Installation,
    /// The target of `nereid runtime install --system`.
    System,
    VirtualEnvironment,
    /// The site-packages of the `python3` on the PATH.
    Python,
    /// LD_LIBRARY_PATH and the folders of the system's packages.
    Loader,
}

impl Origin {
    pub fn is_explicit(self) -> bool {
        matches!(self, Origin::Setting(_) | Origin::Variable(_))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Setting(name) => write!(f, "--backend-config={name},library"),
            Origin::Variable(name) => f.write_str(name),
            Origin::UserFolder => f.write_str("user's runtime folder"),
            Origin::Installation => f.write_str("the program's installation"),
            Origin::System => f.write_str("system's runtime folder"),
            Origin::VirtualEnvironment => f.write_str("VIRTUAL_ENV"),
            Origin::Python => f.write_str("python3 on the PATH"),
            Origin::Loader => f.write_str("LD_LIBRARY_PATH and the system's libraries"),
        }
    }
}

/// One location and the libraries in it, the best first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchLocation {
    pub origin: Origin,
    /// The path that was searched, for messages; empty if the location does not exist on this host.
    pub searched_path: String,
    pub libraries: Vec<PathBuf>,
}

/// The inputs of the search, apart from the file system.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    pub library_setting: Option<PathBuf>,
    /// The values of [`RuntimeKind::variables`] that are set.
    pub variables: Vec<(&'static str, PathBuf)>,
    pub data_home: Option<PathBuf>,
    /// The prefix to which `nereid install` copied this program, if it did.
    pub installation: Option<PathBuf>,
    /// [`SYSTEM_PREFIX`], unless a test searches another one.
    pub system: Option<PathBuf>,
    pub virtual_env: Option<PathBuf>,
    pub path: Option<OsString>,
    /// LD_LIBRARY_PATH
    pub library_path: Option<OsString>,
}

impl Surroundings {
    /// Those of this process. `library_setting` comes from the command line.
    pub fn of_process(kind: &RuntimeKind, library_setting: Option<&str>) -> Surroundings {
        let path_of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Surroundings {
            library_setting: library_setting.filter(|path| !path.is_empty()).map(PathBuf::from),
            variables: kind.variables.iter().filter_map(|name| Some((*name, path_of(name)?))).collect(),
            // The XDG base directory specification: a relative XDG_DATA_HOME must be ignored.
            data_home: path_of("XDG_DATA_HOME")
                .filter(|home| home.is_absolute())
                .or_else(|| path_of("HOME").map(|home| home.join(".local/share"))),
            installation: std::env::current_exe().ok().as_deref().and_then(installation_of),
            system: Some(SYSTEM_PREFIX.into()),
            virtual_env: path_of("VIRTUAL_ENV"),
            path: std::env::var_os("PATH"),
            library_path: std::env::var_os("LD_LIBRARY_PATH"),
        }
    }

    /// `<data home>/nereid/runtimes/<name>`: one folder per installed version.
    pub fn user_folder(&self, kind: &RuntimeKind) -> Option<PathBuf> {
        Some(self.data_home.as_ref()?.join("nereid/runtimes").join(kind.name))
    }

    /// Folders of runtimes for all users, the one of the program's own installation first.
    pub fn shared_runtimes(&self) -> Vec<PathBuf> {
        self.installation.iter().chain(&self.system).map(|prefix| runtimes_below(prefix)).collect()
    }

    /// All locations, in the order in which they are tried.
    pub fn locations(&self, kind: &RuntimeKind) -> Vec<SearchLocation> {
        let mut locations = vec![named(kind, Origin::Setting(kind.name), self.library_setting.as_deref())];
        for name in kind.variables {
            let value = self.variables.iter().find(|(known, _)| known == name).map(|(_, path)| path.as_path());
            locations.push(named(kind, Origin::Variable(name), value));
        }
        locations.push(installed(kind, Origin::UserFolder, self.user_folder(kind), Vec::new()));
        let beside = self.installation.as_ref().map(|prefix| libraries_in(kind, &prefix.join("lib")));
        for (origin, prefix, beside) in [
            (Origin::Installation, &self.installation, beside.unwrap_or_default()),
            (Origin::System, &self.system, Vec::new()),
        ] {
            let folder = prefix.as_ref().map(|prefix| runtimes_below(prefix).join(kind.name));
            locations.push(installed(kind, origin, folder, beside));
        }
        let virtual_env = self.virtual_env.as_deref().into_iter().map(Path::to_path_buf).collect();
        locations.push(python_location(kind, Origin::VirtualEnvironment, virtual_env));
        locations.push(python_location(kind, Origin::Python, self.python_prefixes()));
        if !kind.loader_folders.is_empty() {
            let given = self.library_path.as_deref().map(std::env::split_paths).into_iter().flatten();
            let given = given.filter(|folder| folder.is_absolute());
            let folders: Vec<PathBuf> = given.chain(kind.loader_folders.iter().map(PathBuf::from)).collect();
            let libraries = folders.iter().flat_map(|folder| libraries_in(kind, folder)).collect();
            let searched: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
            let searched_path = searched.join(", ");
            locations.push(SearchLocation { origin: Origin::Loader, searched_path, libraries });
        }
        locations
    }

    /// The result of `open` for the first library that it accepts. A location that a person set is not silently
    /// replaced by another: if its libraries fail, the search ends.
    pub fn find<T>(
        &self,
        kind: &RuntimeKind,
        mut open: impl FnMut(&Path) -> Result<T, LibraryError>,
    ) -> Result<T, Missing> {
        let mut searched = Vec::new();
        for location in self.locations(kind) {
            let origin = location.origin;
            if location.libraries.is_empty() {
                searched.push(match (location.searched_path.is_empty(), origin) {
                    (true, Origin::Setting(_) | Origin::Variable(_) | Origin::VirtualEnvironment) => {
                        format!("{origin}: not set")
                    }
                    (true, _) => format!("{origin}: none"),
                    (false, _) => format!("{origin}: no {} in {}", kind.stem, location.searched_path),
                });
            }
            for library in &location.libraries {
                match open(library) {
                    Ok(opened) => return Ok(opened),
                    Err(error) => searched.push(format!("{origin}: {} {error}", library.display())),
                }
            }
            if origin.is_explicit() && !location.searched_path.is_empty() {
                break;
            }
        }
        Err(Missing { title: kind.title, command: kind.install_command(), searched: searched.join("; ") })
    }

    /// The first library, by its name alone: it is not opened.
    pub fn candidate(&self, kind: &RuntimeKind) -> Result<PathBuf, Missing> {
        self.find(kind, |path| {
            // The loader resolves a bare name; it is not called here.
            let is_name = path.components().count() == 1;
            match is_name || path.is_file() {
                true => Ok(path.to_path_buf()),
                false => Err(LibraryError::Open("no such file".to_owned())),
            }
        })
    }

    /// The prefixes of the first `python3` on the PATH: as on the PATH, then with its symbolic links resolved, because
    /// a virtual environment's interpreter is a link to the one it was made from.
    fn python_prefixes(&self) -> Vec<PathBuf> {
        let Some(path) = &self.path else { return Vec::new() };
        let found = std::env::split_paths(path).map(|directory| directory.join("python3")).find(|file| file.is_file());
        let Some(interpreter) = found else { return Vec::new() };
        let mut prefixes = Vec::new();
        for at in [interpreter.canonicalize().ok(), Some(interpreter)].into_iter().flatten().rev() {
            if let Some(prefix) = at.parent().and_then(Path::parent)
                && !prefixes.iter().any(|known| known == prefix)
            {
                prefixes.push(prefix.to_path_buf());
            }
        }
        prefixes
    }
}

/// The prefix of the installation that contains the program.
fn installation_of(program: &Path) -> Option<PathBuf> {
    let prefix = program.parent()?.parent()?;
    prefix.join("lib/libtritonserver.so").is_file().then(|| prefix.to_path_buf())
}

/// The directory of the runtimes that are installed below a prefix, for all users.
pub fn runtimes_below(prefix: &Path) -> PathBuf {
    prefix.join("lib/nereid/runtimes")
}

/// The libraries in a folder of installed versions, and `beside` it.
fn installed(kind: &RuntimeKind, origin: Origin, folder: Option<PathBuf>, beside: Vec<PathBuf>) -> SearchLocation {
    let Some(folder) = folder else {
        return SearchLocation { origin, searched_path: String::new(), libraries: Vec::new() };
    };
    let mut libraries = libraries_in(kind, &folder);
    libraries.extend(beside);
    for version in directories_in(&folder) {
        // A leading dot marks an unfinished installation.
        if !version.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
            libraries.extend(libraries_of_version(kind, &version));
        }
    }
    sort_newest_first(kind, &mut libraries);
    // Builds for GPUs first: a user who installed one wants it, and it computes on the host as well.
    libraries.sort_by_key(|library| !kind.computes_on_gpus(library));
    SearchLocation { origin, searched_path: folder.display().to_string(), libraries }
}

/// The libraries in the folder of one installed version: in the folder itself, or where a Python package has them.
pub fn libraries_of_version(kind: &RuntimeKind, version: &Path) -> Vec<PathBuf> {
    let mut libraries = libraries_in(kind, version);
    for folder in kind.folders {
        libraries.extend(libraries_in(kind, &version.join(folder)));
    }
    libraries
}

/// A location that a person set: a library, or a folder that contains one.
fn named(kind: &RuntimeKind, origin: Origin, path: Option<&Path>) -> SearchLocation {
    let Some(path) = path else {
        return SearchLocation { origin, searched_path: String::new(), libraries: Vec::new() };
    };
    let libraries = match path.is_dir() {
        true => libraries_of_version(kind, path),
        false => vec![path.to_path_buf()],
    };
    SearchLocation { origin, searched_path: path.display().to_string(), libraries }
}

/// The folders of the runtime below `<prefix>/lib/python3.*/{site,dist}-packages`: Debian's Python uses
/// `dist-packages`.
fn python_location(kind: &RuntimeKind, origin: Origin, prefixes: Vec<PathBuf>) -> SearchLocation {
    let mut libraries = Vec::new();
    for prefix in &prefixes {
        for lib in ["lib", "lib64", "local/lib"] {
            for python in directories_in(&prefix.join(lib)) {
                if !python.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"python3")) {
                    continue;
                }
                for packages in ["site-packages", "dist-packages"] {
                    for folder in kind.folders {
                        libraries.extend(libraries_in(kind, &python.join(packages).join(folder)));
                    }
                }
            }
        }
    }
    sort_newest_first(kind, &mut libraries);
    let below = |prefix: &PathBuf| {
        let prefix = prefix.display().to_string();
        kind.folders.iter().map(move |folder| format!("{prefix}/lib/python3.*/site-packages/{folder}"))
    };
    let searched_path: Vec<String> = prefixes.iter().flat_map(below).collect();
    SearchLocation { origin, searched_path: searched_path.join(", "), libraries }
}

fn directories_in(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut directories: Vec<PathBuf> = paths.filter(|path| path.is_dir()).take(DIRECTORIES_MAX).collect();
    directories.sort();
    directories
}

/// The part of a library's name behind its stem, and whether the stem is that of the smaller library.
fn behind_stem<'a>(kind: &RuntimeKind, path: &'a Path) -> Option<(bool, &'a str)> {
    let name = path.file_name()?.to_str()?;
    let behind = |stem: &str| name.strip_prefix(stem).filter(|rest| rest.is_empty() || rest.starts_with('.'));
    let smaller = || kind.smaller_stem.and_then(behind).map(|rest| (true, rest));
    behind(kind.stem).map(|rest| (false, rest)).or_else(smaller)
}

/// `<stem>` and `<stem>.<version>` in `directory`, newest first, those of the smaller library last.
fn libraries_in(kind: &RuntimeKind, directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let is_library = |path: &PathBuf| behind_stem(kind, path).is_some() && path.is_file();
    let mut libraries: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_library).take(DIRECTORIES_MAX).collect();
    sort_newest_first(kind, &mut libraries);
    libraries
}

fn sort_newest_first(kind: &RuntimeKind, libraries: &mut Vec<PathBuf>) {
    let is_smaller = |path: &Path| behind_stem(kind, path).is_some_and(|(is_smaller, _)| is_smaller);
    libraries.sort_by(|a, b| {
        let by_version = || version_of(kind, b).cmp(&version_of(kind, a));
        is_smaller(a).cmp(&is_smaller(b)).then_with(by_version).then_with(|| a.cmp(b))
    });
    libraries.dedup();
}

/// The numbers behind the stem, or, where a name has none, those of the folder of the installed version.
fn version_of(kind: &RuntimeKind, path: &Path) -> Vec<u64> {
    let numbers = |text: &str| -> Vec<u64> {
        text.split('.').filter(|part| !part.is_empty()).map(|part| part.parse().unwrap_or(0)).collect()
    };
    let of_name = numbers(behind_stem(kind, path).map(|(_, rest)| rest).unwrap_or_default());
    if !of_name.is_empty() {
        return of_name;
    }
    let above = path.ancestors().skip(1).filter_map(|folder| folder.file_name()?.to_str());
    let mut versions = above.filter(|name| name.starts_with(|c: char| c.is_ascii_digit()) && name.contains('.'));
    versions.next().map(numbers).unwrap_or_default()
}

#[cfg(test)]
mod tests;
