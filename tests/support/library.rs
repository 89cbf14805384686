//! The caches and repository agents of tests/backends, each compiled when a test first needs it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::paths;
use crate::skip::skip;

/// The library of a source in tests/backends. None, after a visible skip, without a compiler.
pub fn compiled(source: &str) -> Option<PathBuf> {
    static MADE: Mutex<Option<HashMap<String, Result<PathBuf, String>>>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let made = made.get_or_insert_default().entry(source.to_owned()).or_insert_with(|| compile(source));
    match made {
        Ok(library) => Some(library.clone()),
        Err(reason) => {
            skip(reason);
            None
        }
    }
}

/// The text of a source in tests/backends.
pub fn text_of(source: &str) -> String {
    std::fs::read_to_string(path_of(source)).expect("a source of tests/backends")
}

fn path_of(source: &str) -> PathBuf {
    paths::root().join("tests/backends").join(source)
}

fn compile(source: &str) -> Result<PathBuf, String> {
    let root = paths::root();
    let directory = paths::temporary().join(format!("libraries-{}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(|error| format!("{directory:?}: {error}"))?;
    let library = directory.join(format!("{source}.so"));
    let (program, standard) = if source.ends_with(".cc") { ("c++", "-std=c++17") } else { ("cc", "-std=c11") };
    let mut compiler = Command::new(program);
    compiler.args([standard, "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-shared", "-fPIC"]);
    compiler.arg("-I").arg(root.join("include")).arg("-I").arg(root.join("tests/native_programs"));
    match compiler.args(["-pthread", "-o"]).arg(&library).arg(path_of(source)).output() {
        Err(error) => Err(format!("no compiler '{program}': {error}")),
        Ok(output) => {
            // If there is a compiler and it rejects our own source, that is a failure and not a reason to skip.
            assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stderr));
            Ok(library)
        }
    }
}

/// A directory of libraries for `--cache-directory` or `--repoagent-directory`.
pub struct Libraries(PathBuf);

impl Libraries {
    pub fn new() -> Libraries {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("library-directory-{}-{count}", std::process::id());
        let directory = paths::temporary().join(name);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).expect("a directory for libraries");
        Libraries(directory)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Puts the library into the folder `name` as `file`.
    pub fn add(&self, name: &str, file: &str, library: &Path) -> &Libraries {
        let folder = self.0.join(name);
        std::fs::create_dir_all(&folder).expect("a folder for a library");
        std::fs::copy(library, folder.join(file)).expect("copy a library");
        self
    }

    pub fn agent(&self, name: &str, library: &Path) -> &Libraries {
        self.add(name, &format!("libtritonrepoagent_{name}.so"), library)
    }

    pub fn cache(&self, name: &str, library: &Path) -> &Libraries {
        self.add(name, &format!("libtritoncache_{name}.so"), library)
    }

    /// The flag `--<flag>` with this directory as its value.
    pub fn flag(&self, flag: &str) -> String {
        format!("--{flag}={}", self.0.display())
    }
}

impl Drop for Libraries {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
