//! The backends of `examples/backends/`, built with the commands that their READMEs name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nereid_test_support::prepared::{source, step};
use nereid_test_support::repository::Repository;
use nereid_test_support::skip::skip;

/// Those in C: `<name>/<name>.c`.
const IN_C: [&str; 3] = ["accumulator", "caller", "identity"];
/// Those in Rust: packages of the workspace.
const IN_RUST: [&str; 2] = ["repeat", "square"];

/// A directory for `--backend-directory` with all of them. None, after a visible skip, where they cannot be built.
pub fn backends() -> Option<PathBuf> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match MADE.get_or_init(build) {
        Ok(directory) => Some(directory.clone()),
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

/// Every model of the examples' own repositories.
pub fn models() -> Repository {
    let repository = Repository::new();
    for name in IN_C.iter().chain(&IN_RUST) {
        let from = source("examples/backends").join(name).join("model_repository");
        for entry in fs::read_dir(&from).unwrap_or_else(|error| panic!("{from:?}: {error}")) {
            let model = entry.expect("a model").file_name().into_string().expect("a name");
            let config = fs::read_to_string(from.join(&model).join("config.pbtxt")).expect("a configuration");
            repository.model(&model, &config);
        }
    }
    repository
}

fn build() -> Result<PathBuf, String> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("example-backends-{}", std::process::id()));
    for name in IN_C {
        let to = place(&directory, name)?;
        let from = source("examples/backends").join(name);
        let mut compiler = Command::new("cc");
        compiler.current_dir(&from).args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]);
        compiler.args(["-fvisibility=hidden", "-pthread", "-I", "../../../include", "-o"]).arg(&to);
        match compiler.arg(format!("{name}.c")).output() {
            Err(error) => return Err(format!("no compiler 'cc': {error}")),
            Ok(output) => assert!(output.status.success(), "{from:?}: {}", String::from_utf8_lossy(&output.stderr)),
        }
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().ok_or("no target directory")?.join("example-backends");
    // The crates that they need are among those of the server: a machine that built it has them.
    if let Err(text) = cargo(&target, &["--offline"]) {
        assert!(!text.contains("could not compile"), "{text}");
        cargo(&target, &[]).map_err(|text| format!("the examples in Rust cannot be built: {text}"))?;
    }
    // Cargo has a folder for each target that is not the host's own.
    let built = std::env::var_os("CARGO_BUILD_TARGET").map_or_else(|| target.clone(), |triple| target.join(triple));
    for name in IN_RUST {
        let from = built.join("release").join(format!("libtriton_{name}.so"));
        fs::copy(&from, place(&directory, name)?).map_err(|error| format!("{from:?}: {error}"))?;
    }
    Ok(directory)
}

fn place(directory: &Path, name: &str) -> Result<PathBuf, String> {
    let folder = directory.join(name);
    fs::create_dir_all(&folder).map_err(|error| format!("{folder:?}: {error}"))?;
    Ok(folder.join(format!("libtriton_{name}.so")))
}

fn cargo(target: &Path, flags: &[&str]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--release", "--locked"]).args(flags).arg("--manifest-path");
    step(command.arg(source("examples/backends/Cargo.toml")).arg("--target-dir").arg(target))
}
