//! The files of a release, made from this build by the scripts of `packaging/`: the package of Debian and the container
//! image are unpacked or installed into roots of their own, and the server starts there as it would on a host.
//!
//! With `NEREID_TEST_DIST` these are the files of that folder, as `packaging/release` writes them, and their sizes
//! count.

mod debian;
mod image;
mod release;
mod texts;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nereid_test_support::paths;
use nereid_test_support::prepared::step;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::skip::{skip, skip_for_want_of};

/// A folder with files of a release.
const DIST: &str = "NEREID_TEST_DIST";

/// The package `nereid`.
#[derive(Debug)]
struct Package {
    deb: PathBuf,
    /// The folder of a package that was built here, for its user to write into.
    folder: PathBuf,
}

impl Drop for Package {
    fn drop(&mut self) {
        // The program and the library are large.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The folder of a release that is tested in place of files of this build.
fn dist() -> Option<PathBuf> {
    std::env::var_os(DIST).map(PathBuf::from)
}

/// The only file of the folder whose name begins and ends so.
fn only_file(folder: &Path, begin: &str, end: &str) -> PathBuf {
    let entries = std::fs::read_dir(folder).expect("the folder of the release");
    let fits = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with(begin) && name.ends_with(end)
    };
    let found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(fits).collect();
    let [file] = found.as_slice() else { panic!("not one {begin}*{end} in {}: {found:?}", folder.display()) };
    file.clone()
}

/// The architecture of this host, as Debian names it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

impl Package {
    /// None, after a visible skip, on a host that has no tools of Debian or no binutils.
    fn get() -> Option<Arc<Package>> {
        static SHARED: Mutex<Weak<Package>> = Mutex::new(Weak::new());
        for tool in ["dpkg-deb", "objcopy"] {
            if Command::new(tool).arg("--version").output().is_err() {
                skip(&format!("no {tool}"));
                return None;
            }
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(package) = shared.upgrade() {
            return Some(package);
        }
        let folder = paths::temporary().join(format!("packages-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder for the package");
        let deb = match dist() {
            Some(dist) => only_file(&dist, "nereid_", &format!("_{}.deb", architecture())),
            None => build(&folder),
        };
        let package = Arc::new(Package { deb, folder });
        *shared = Arc::downgrade(&package);
        Some(package)
    }
}

fn build(folder: &Path) -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_nereid"));
    let library = program.with_file_name("deps").join("libtritonserver.so");
    let mut build = strictly("packaging/deb");
    build.arg("--program").arg(program).arg("--library").arg(library).arg("--out").arg(folder);
    let out = step(build.args(["--no-debug", "--compression=0"])).expect("the package is built");
    PathBuf::from(out.lines().last().expect("the path of the package"))
}

/// A script of the project, called by someone whose files nobody else may read.
fn strictly(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077; exec \"$@\"", "sh"]).arg(paths::root().join(script));
    command
}

/// False, after a visible skip, where roots of their own cannot be set up.
fn can_mount() -> bool {
    const PROBE: &str = "mount --make-rprivate / && mount -t tmpfs tmpfs /mnt && mkdir /mnt/proc && \
        mount -t proc proc /mnt/proc && setpriv --reuid=65532 --regid=65532 --clear-groups true";
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    let probe = || Command::new("unshare").args(["--mount", "sh", "-c", PROBE]).output();
    let is_possible = is_root && probe().is_ok_and(|output| output.status.success());
    if !is_possible {
        skip_for_want_of("mounts and users for a root of its own");
    }
    is_possible
}

/// A repository with one model that needs no runtime, `plain`.
fn models() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository
}

/// The request for it, and what its answer has.
const REQUEST: &str = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[7]}]}"#;

/// What a command printed; it must have succeeded.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}
