//! NVIDIA's in-process API and its front ends, in a Python environment that is created once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::prepared::{fingerprint, prepared, source, step};
use crate::python::Python;
use crate::skip::{skip, skip_for_want_of};

/// The library with the functions that older hosts lack, beside the environment.
const SHIM: &str = "older_host.so";

/// The platform for which the packages were built; on older hosts pip installs them only if the platform is named.
const PLATFORMS: [&str; 5] = ["manylinux_2_39", "manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014"];

/// The environment, and the library to preload in it on an older host. None, after a visible skip, if Python 3.12 or
/// the packages are not available.
pub fn python() -> Option<(Python, Option<PathBuf>)> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let Some(interpreter) = python_312() else {
        // Debian's stable release has another version, and the packages contain no interpreter.
        skip_for_want_of("Python 3.12, for which alone NVIDIA's in-process API is published");
        return None;
    };
    match MADE.get_or_init(|| make(&interpreter)) {
        Ok(root) => {
            let shim = root.join(SHIM);
            Some((Python::at(root), shim.is_file().then_some(shim)))
        }
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

fn make(interpreter: &Path) -> Result<PathBuf, String> {
    let (requirements, older_host) = (source("tests/python/tritonserver.txt"), source("tests/python/older_host.py"));
    let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let name = format!("python-env-{}", fingerprint(&[&read(&requirements)?, &read(&older_host)?]));
    prepared(&name, |root| {
        step(Command::new(interpreter).args(["-m", "venv"]).arg(root))?;
        let python = Python::at(root);
        let packages = python.packages();
        let mut install = Command::new(python.interpreter());
        install.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps"]);
        install.args(["--only-binary=:all:", "--python-version=3.12"]).arg("--target").arg(&packages);
        install.args(PLATFORMS.map(|one| format!("--platform={one}_{}", std::env::consts::ARCH)));
        step(install.arg("-r").arg(&requirements))?;
        let folders = ["tritonserver/_c", "tritonfrontend/_c", "tritonfrontend.libs"];
        let libraries = folders.iter().flat_map(|folder| entries(&packages.join(folder)));
        let libraries = libraries.filter(|path| path.to_string_lossy().contains(".so"));
        step(Command::new(python.interpreter()).arg(&older_host).arg(root.join(SHIM)).args(libraries))?;
        Ok(())
    })
}

/// The Python 3.12 of the PATH, or one of pyenv's.
fn python_312() -> Option<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".pyenv"));
    let pyenv = std::env::var_os("PYENV_ROOT").map(PathBuf::from).or_else(home);
    let kept = pyenv.map(|root| entries(&root.join("versions"))).unwrap_or_default();
    let kept = kept.into_iter().map(|version| version.join("bin/python3.12"));
    let test = "import sys; sys.exit(sys.version_info[:2] != (3, 12))";
    let works = |program: &PathBuf| {
        let output = Command::new(program).args(["-c", test]).output();
        output.is_ok_and(|output| output.status.success())
    };
    std::iter::once("python3.12".into()).chain(kept).find(works)
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(read) = fs::read_dir(directory) else { return Vec::new() };
    read.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect()
}
