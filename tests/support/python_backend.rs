//! The official Python backend from the wheel, unmodified, copied to a place where a server finds it and its stub.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::original::original;
use crate::paths;
use crate::python::Python;
use crate::skip::skip;

/// A directory with a copy of the backend and the files that it needs beside itself.
#[derive(Clone)]
pub struct Installed {
    pub backends: PathBuf,
    /// The directory of the stub's libpython, unless the system's loader finds it.
    pub environment: Vec<(String, String)>,
}

/// The first caller copies it. None, after a visible skip, if the wheel or numpy is not available.
pub fn installed() -> Option<Installed> {
    static MADE: OnceLock<Option<Result<Installed, String>>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        // Each of these functions has printed the reason.
        let (words, python) = (original()?, Python::with("numpy-1.txt")?);
        Some(install(Path::new(words.last()?), &python))
    });
    match made.as_ref()? {
        Ok(installed) => Some(installed.clone()),
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

/// The package finds its own libraries four directories above the backend.
fn install(server: &Path, python: &Python) -> Result<Installed, String> {
    let wheel = server.ancestors().nth(4).ok_or("the official server lies elsewhere")?;
    let root = paths::temporary().join(format!("python-backend-{}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    let backends = root.join("pytriton/tritonserver/backends");
    let to = backends.join("python");
    let wrong = |what: &Path| {
        let what = what.display().to_string();
        move |error: std::io::Error| format!("{what}: {error}")
    };
    fs::create_dir_all(&to).map_err(wrong(&to))?;
    symlink(wheel.join("nvidia_pytriton.libs"), root.join("nvidia_pytriton.libs")).map_err(wrong(&root))?;
    let from = wheel.join("pytriton/tritonserver");
    for file in ["libtriton_python.so", "triton_python_backend_utils.py"] {
        let from = from.join("backends/python").join(file);
        fs::copy(&from, to.join(file)).map_err(wrong(&from))?;
    }
    let packages = python.packages();
    let version = packages.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let version = version.as_deref().and_then(|name| name.strip_prefix("python")).ok_or("no version of Python")?;
    let stub = from.join("python_backend_stubs").join(version).join("triton_python_backend_stub");
    let copied = to.join("triton_python_backend_stub");
    // Not by this process: a child that another thread starts would have the file open to write, so that it could not
    // be executed.
    let status = Command::new("cp").arg(&stub).arg(&copied).status().map_err(wrong(&stub))?;
    if !status.success() {
        return Err(format!("cp of {}: {status}", stub.display()));
    }
    let _ = Command::new("chmod").arg("+x").arg(&copied).status();
    // The stub searches modules beside the backend, and ignores PYTHONPATH.
    for package in ["numpy", "numpy.libs"] {
        symlink(packages.join(package), to.join(package)).map_err(wrong(&to))?;
    }
    let environment = library_path(&copied)?;
    Ok(Installed { backends, environment })
}

/// The environment with which the stub finds its libpython.
fn library_path(stub: &Path) -> Result<Vec<(String, String)>, String> {
    let missing = |environment: &[(String, String)]| {
        let output = Command::new("ldd").arg(stub).envs(environment.iter().cloned()).output();
        output.map_or(true, |output| String::from_utf8_lossy(&output.stdout).contains("not found"))
    };
    let ask = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))";
    let place = Command::new("python3").args(["-c", ask]).output().map_err(|error| format!("python3: {error}"))?;
    let place = String::from_utf8_lossy(&place.stdout).trim().to_owned();
    let tries = [Vec::new(), vec![("LD_LIBRARY_PATH".to_owned(), place)]];
    tries.into_iter().find(|environment| !missing(environment)).ok_or_else(|| format!("{stub:?} lacks a library here"))
}

/// A prefix for shared memory that no other server uses. Dropping it removes the objects that killed servers left.
pub struct Regions(pub String);

impl Regions {
    pub fn new() -> Regions {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        Regions(format!("nereid_test_{}_{}_", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
    }

    pub fn flag(&self) -> String {
        format!("--backend-config=python,shm-region-prefix-name={}", self.0)
    }

    pub fn present(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir("/dev/shm") else { return Vec::new() };
        let ours = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&self.0));
        entries.flatten().map(|entry| entry.path()).filter(ours).collect()
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        for path in self.present() {
            let _ = fs::remove_file(path);
        }
    }
}

/// Names the library as `runtime`: without it our server would use its built-in Python backend.
pub const BACKEND: &str = r#"backend: "python" runtime: "libtriton_python.so""#;
