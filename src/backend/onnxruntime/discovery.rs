//! Locations where an ONNX Runtime library may be on this host, the best first.
//!
//! Only the file system is read: a query of a Python interpreter would start a process, and opening a library runs its
//! code. Every location is kept with the libraries found there, so that an error can list all of them.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// The command that installs a library.
pub const INSTALL_COMMAND: &str = "nereid runtime install onnxruntime";

/// The prefix of `nereid runtime install --system`, which puts runtimes below its `lib`.
pub const SYSTEM_PREFIX: &str = "/usr/local";

/// The suffix of the folders of installed builds for GPUs.
pub const GPU_SUFFIX: &str = "-gpu";
/// The file beside the library in a build for GPUs.
const CUDA_PROVIDER: &str = "libonnxruntime_providers_cuda.so";

/// A library's name without its version.
const STEM: &str = "libonnxruntime.so";
/// The most directories that are opened for one location: a home with many Pythons must not slow a start down.
const DIRECTORIES_MAX: usize = 64;

/// The origin of a location. One that a person set is used or refused; one that was merely found may be skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// `--backend-config=onnxruntime,library=<path>`
    Setting,
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
}

impl Origin {
    pub fn is_explicit(self) -> bool {
        matches!(self, Origin::Setting | Origin::Variable(_))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Setting => f.write_str("--backend-config=onnxruntime,library"),
            Origin::Variable(name) => f.write_str(name),
            Origin::UserFolder => f.write_str("user's runtime folder"),
            Origin::Installation => f.write_str("the program's installation"),
            Origin::System => f.write_str("system's runtime folder"),
            Origin::VirtualEnvironment => f.write_str("VIRTUAL_ENV"),
            Origin::Python => f.write_str("python3 on the PATH"),
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
    pub ort_dylib_path: Option<PathBuf>,
    pub nereid_onnxruntime_library: Option<PathBuf>,
    pub data_home: Option<PathBuf>,
    /// The prefix to which `nereid install` copied this program, if it did.
    pub installation: Option<PathBuf>,
    /// [`SYSTEM_PREFIX`], unless a test searches another one.
    pub system: Option<PathBuf>,
    pub virtual_env: Option<PathBuf>,
    pub path: Option<OsString>,
}

impl Surroundings {
    /// Those of this process. `library_setting` comes from the command line.
    pub fn of_process(library_setting: Option<&str>) -> Surroundings {
        let path_of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Surroundings {
            library_setting: library_setting.filter(|path| !path.is_empty()).map(PathBuf::from),
            ort_dylib_path: path_of("ORT_DYLIB_PATH"),
            nereid_onnxruntime_library: path_of("NEREID_ONNXRUNTIME_LIBRARY"),
            // The XDG base directory specification: a relative XDG_DATA_HOME must be ignored.
            data_home: path_of("XDG_DATA_HOME")
                .filter(|home| home.is_absolute())
                .or_else(|| path_of("HOME").map(|home| home.join(".local/share"))),
            installation: std::env::current_exe().ok().as_deref().and_then(installation_of),
            system: Some(SYSTEM_PREFIX.into()),
            virtual_env: path_of("VIRTUAL_ENV"),
            path: std::env::var_os("PATH"),
        }
    }

    /// `<data home>/nereid/runtimes/onnxruntime`: one folder per installed version.
    pub fn user_folder(&self) -> Option<PathBuf> {
        Some(self.data_home.as_ref()?.join("nereid/runtimes/onnxruntime"))
    }

    /// Folders of runtimes for all users, the one of the program's own installation first.
    pub fn shared_runtimes(&self) -> Vec<PathBuf> {
        self.installation.iter().chain(&self.system).map(|prefix| runtimes_below(prefix)).collect()
    }

    /// All locations, in the order in which they are tried.
    pub fn locations(&self) -> Vec<SearchLocation> {
        let explicit = [
            (Origin::Setting, &self.library_setting),
            (Origin::Variable("ORT_DYLIB_PATH"), &self.ort_dylib_path),
            (Origin::Variable("NEREID_ONNXRUNTIME_LIBRARY"), &self.nereid_onnxruntime_library),
        ];
        let mut locations: Vec<SearchLocation> =
            explicit.into_iter().map(|(origin, path)| named(origin, path.as_deref())).collect();
        locations.push(installed(Origin::UserFolder, self.user_folder(), Vec::new()));
        let beside = self.installation.as_ref().map(|prefix| libraries_in(&prefix.join("lib"))).unwrap_or_default();
        for (origin, prefix, beside) in
            [(Origin::Installation, &self.installation, beside), (Origin::System, &self.system, Vec::new())]
        {
            let folder = prefix.as_ref().map(|prefix| runtimes_below(prefix).join("onnxruntime"));
            locations.push(installed(origin, folder, beside));
        }
        let virtual_env = self.virtual_env.as_deref().into_iter().map(Path::to_path_buf).collect();
        locations.push(python_location(Origin::VirtualEnvironment, virtual_env));
        locations.push(python_location(Origin::Python, self.python_prefixes()));
        locations
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
fn installed(origin: Origin, folder: Option<PathBuf>, beside: Vec<PathBuf>) -> SearchLocation {
    let Some(folder) = folder else {
        return SearchLocation { origin, searched_path: String::new(), libraries: Vec::new() };
    };
    let mut libraries = libraries_in(&folder);
    libraries.extend(beside);
    for version in directories_in(&folder) {
        // A leading dot marks an unfinished installation.
        if !version.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
            libraries.extend(libraries_in(&version));
        }
    }
    sort_newest_first(&mut libraries);
    // Builds for GPUs first: a user who installed one wants it, and it computes on the host as well.
    libraries.sort_by_key(|library| !computes_on_gpus(library));
    SearchLocation { origin, searched_path: folder.display().to_string(), libraries }
}

/// Whether a library was built for GPUs, judged by the files beside it; it is not opened.
pub fn computes_on_gpus(library: &Path) -> bool {
    let library = library.canonicalize();
    library.is_ok_and(|library| library.with_file_name(CUDA_PROVIDER).is_file())
}

/// A location that a person set: a library, or a folder that contains one.
fn named(origin: Origin, path: Option<&Path>) -> SearchLocation {
    let Some(path) = path else {
        return SearchLocation { origin, searched_path: String::new(), libraries: Vec::new() };
    };
    let libraries = match path.is_dir() {
        true => libraries_in(path),
        false => vec![path.to_path_buf()],
    };
    SearchLocation { origin, searched_path: path.display().to_string(), libraries }
}

/// `<prefix>/lib/python3.*/{site,dist}-packages/onnxruntime/capi`; Debian's Python uses `dist-packages`.
fn python_location(origin: Origin, prefixes: Vec<PathBuf>) -> SearchLocation {
    let mut libraries = Vec::new();
    for prefix in &prefixes {
        for lib in ["lib", "lib64", "local/lib"] {
            for python in directories_in(&prefix.join(lib)) {
                if !python.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"python3")) {
                    continue;
                }
                for packages in ["site-packages", "dist-packages"] {
                    libraries.extend(libraries_in(&python.join(packages).join("onnxruntime/capi")));
                }
            }
        }
    }
    sort_newest_first(&mut libraries);
    let searched_path: Vec<String> = prefixes
        .iter()
        .map(|prefix| format!("{}/lib/python3.*/site-packages/onnxruntime/capi", prefix.display()))
        .collect();
    SearchLocation { origin, searched_path: searched_path.join(", "), libraries }
}

fn directories_in(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut directories: Vec<PathBuf> = paths.filter(|path| path.is_dir()).take(DIRECTORIES_MAX).collect();
    directories.sort();
    directories
}

/// `libonnxruntime.so` and `libonnxruntime.so.<version>` in `directory`, newest first.
fn libraries_in(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let is_library = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let rest = name.and_then(|name| name.strip_prefix(STEM));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) && path.is_file()
    };
    let mut libraries: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_library).take(DIRECTORIES_MAX).collect();
    sort_newest_first(&mut libraries);
    libraries
}

fn sort_newest_first(libraries: &mut Vec<PathBuf>) {
    libraries.sort_by(|a, b| version_in_name(b).cmp(&version_in_name(a)).then_with(|| a.cmp(b)));
    libraries.dedup();
}

/// The numbers behind `libonnxruntime.so`; a name without any sorts last.
fn version_in_name(path: &Path) -> Vec<u64> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let version = name.strip_prefix(STEM).unwrap_or_default();
    version.split('.').filter(|part| !part.is_empty()).map(|part| part.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn all(locations: &[SearchLocation]) -> Vec<PathBuf> {
        locations.iter().flat_map(|location| location.libraries.clone()).collect()
    }

    #[test]
    fn places_come_in_their_order() {
        let scratch = Scratch::new("discovery-order");
        let setting = scratch.file("setting/lib.so");
        let ort = scratch.file("ort/libonnxruntime.so");
        let nereid = scratch.file("nereid/libonnxruntime.so.1.20.0");
        let user_old = scratch.file("data/nereid/runtimes/onnxruntime/1.9.0/libonnxruntime.so.1.9.0");
        let user_new = scratch.file("data/nereid/runtimes/onnxruntime/1.31.1/libonnxruntime.so.1.31.1");
        scratch.file("data/nereid/runtimes/onnxruntime/.unfinished-7/libonnxruntime.so.1.99.0");
        let beside = scratch.file("opt/lib/libonnxruntime.so.1.30.0");
        let below = scratch.file("opt/lib/nereid/runtimes/onnxruntime/1.29.0/libonnxruntime.so.1.29.0");
        let system = scratch.file("local/lib/nereid/runtimes/onnxruntime/1.31.1/libonnxruntime.so.1.31.1");
        let venv = scratch.file("venv/lib/python3.12/site-packages/onnxruntime/capi/libonnxruntime.so.1.25.0");
        scratch.file("venv/lib/python3.12/site-packages/onnxruntime/capi/libonnxruntime_providers_shared.so");
        scratch.file("usr/bin/python3");
        let python = scratch.file("usr/lib/python3.11/dist-packages/onnxruntime/capi/libonnxruntime.so.1.24.0");
        scratch.file("usr/lib/perl/dist-packages/onnxruntime/capi/libonnxruntime.so.1.99.0");
        scratch.file("empty/readme");
        let path = std::env::join_paths([scratch.path("empty"), scratch.path("usr/bin")]).unwrap();
        let surroundings = Surroundings {
            library_setting: Some(setting.clone()),
            ort_dylib_path: Some(ort.clone()),
            // A folder is accepted as well as the file in it.
            nereid_onnxruntime_library: Some(scratch.path("nereid")),
            data_home: Some(scratch.path("data")),
            installation: Some(scratch.path("opt")),
            system: Some(scratch.path("local")),
            virtual_env: Some(scratch.path("venv")),
            path: Some(path),
        };
        let locations = surroundings.locations();
        assert_eq!(all(&locations), [setting, ort, nereid, user_new, user_old, beside, below, system, venv, python]);
        let explicit: Vec<bool> = locations.iter().map(|location| location.origin.is_explicit()).collect();
        assert_eq!(explicit, [true, true, true, false, false, false, false, false]);
    }

    #[test]
    fn an_installed_build_for_gpus_goes_before_newer_ones_without() {
        let scratch = Scratch::new("discovery-gpu");
        let newest = scratch.file("data/nereid/runtimes/onnxruntime/1.31.1/libonnxruntime.so.1.31.1");
        let gpu = scratch.file("data/nereid/runtimes/onnxruntime/1.20.1-gpu/libonnxruntime.so.1.20.1");
        scratch.file("data/nereid/runtimes/onnxruntime/1.20.1-gpu/libonnxruntime_providers_cuda.so");
        let surroundings = Surroundings { data_home: Some(scratch.path("data")), ..Surroundings::default() };
        assert_eq!(all(&surroundings.locations()), [gpu.clone(), newest.clone()]);
        assert!(computes_on_gpus(&gpu) && !computes_on_gpus(&newest) && !computes_on_gpus(Path::new("absent.so")));
    }

    #[test]
    fn a_bare_host_has_places_but_no_libraries() {
        let locations = Surroundings::default().locations();
        assert_eq!(locations.len(), 8);
        assert!(all(&locations).is_empty());
        let scratch = Scratch::new("discovery-bare");
        let missing = Surroundings { data_home: Some(scratch.path("none")), ..Surroundings::default() };
        let location = &missing.locations()[3];
        assert!(location.libraries.is_empty());
        assert!(location.searched_path.ends_with("none/nereid/runtimes/onnxruntime"), "{}", location.searched_path);
    }

    #[test]
    fn a_program_belongs_to_the_installation_around_it() {
        let scratch = Scratch::new("discovery-installation");
        let program = scratch.file("opt/bin/nereid");
        assert_eq!(installation_of(&program), None, "a program in any bin is no installation");
        scratch.file("opt/lib/libtritonserver.so");
        assert_eq!(installation_of(&program), Some(scratch.path("opt")));
        let surroundings = Surroundings { installation: Some(scratch.path("opt")), ..Surroundings::default() };
        assert_eq!(surroundings.shared_runtimes(), [scratch.path("opt/lib/nereid/runtimes")]);
    }

    #[test]
    fn a_named_file_is_a_candidate_even_if_it_is_missing() {
        let surroundings = Surroundings { ort_dylib_path: Some("libonnxruntime.so".into()), ..Surroundings::default() };
        assert_eq!(all(&surroundings.locations()), [PathBuf::from("libonnxruntime.so")]);
    }

    #[test]
    fn the_prefix_of_a_virtual_environment_comes_before_the_one_behind_its_link() {
        let scratch = Scratch::new("discovery-links");
        let base = scratch.file("base/bin/python3.11");
        scratch.file("venv/bin/activate");
        std::os::unix::fs::symlink(&base, scratch.path("venv/bin/python3")).unwrap();
        let inner = scratch.file("venv/lib/python3.11/site-packages/onnxruntime/capi/libonnxruntime.so.1.20.1");
        let surroundings =
            Surroundings { path: Some(scratch.path("venv/bin").into_os_string()), ..Surroundings::default() };
        assert_eq!(surroundings.python_prefixes(), [scratch.path("venv"), scratch.path("base")]);
        assert_eq!(all(&surroundings.locations()), [inner]);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let mut names: Vec<PathBuf> =
            ["libonnxruntime.so", "libonnxruntime.so.1.9.1", "libonnxruntime.so.1.31.0", "libonnxruntime.so.1"]
                .map(PathBuf::from)
                .to_vec();
        sort_newest_first(&mut names);
        let names: Vec<&str> = names.iter().filter_map(|name| name.to_str()).collect();
        assert_eq!(
            names,
            ["libonnxruntime.so.1.31.0", "libonnxruntime.so.1.9.1", "libonnxruntime.so.1", "libonnxruntime.so"]
        );
    }
}
