//! The preloaded library of tests/support/hamper.c, and the file in which the test says what it shall do.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nereid_test_support::paths;
use nereid_test_support::skip::skip;

/// The numbers of the file, in the order of hamper.c.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    ClockOffsetS,
    EntersToFail,
    EnterError,
    SetupError,
    EntersFailed,
    ClockReadings,
}

pub struct Hamper {
    library: PathBuf,
    path: PathBuf,
    file: File,
}

impl Hamper {
    /// None, after a visible skip, without a C compiler.
    pub fn new(path: &Path) -> Option<Hamper> {
        static LIBRARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let library = match LIBRARY.get_or_init(compile) {
            Ok(library) => library.clone(),
            Err(reason) => {
                skip(reason);
                return None;
            }
        };
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.expect("the file of the preloaded library");
        file.set_len(64).expect("the file of the preloaded library");
        Some(Hamper { library, path: path.to_owned(), file })
    }

    /// The variables of a server that has it.
    pub fn environment(&self) -> [String; 2] {
        let of = |name: &str, path: &Path| format!("{name}={}", path.display());
        [of("LD_PRELOAD", &self.library), of("NEREID_HAMPER", &self.path)]
    }

    pub fn set(&self, number: Number, value: i64) {
        self.file.write_all_at(&value.to_ne_bytes(), number as u64 * 8).expect("tell the preloaded library");
    }

    pub fn get(&self, number: Number) -> i64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, number as u64 * 8).expect("ask the preloaded library");
        i64::from_ne_bytes(bytes)
    }
}

fn compile() -> Result<PathBuf, String> {
    let source = paths::root().join("tests/support/hamper.c");
    let library = paths::temporary().join(format!("hamper-{}.so", std::process::id()));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
    match compiler.arg(&library).arg(&source).arg("-ldl").output() {
        Err(error) => Err(format!("no C compiler: {error}")),
        Ok(output) => {
            assert!(output.status.success(), "{source:?}: {}", String::from_utf8_lossy(&output.stderr));
            Ok(library)
        }
    }
}
