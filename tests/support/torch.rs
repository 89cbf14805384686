//! PyTorch for the tests that run it: an environment with its package, and models that it compiles.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::OnceLock;

use crate::large_runtimes::is_large_runtime_wanted;
use crate::paths;
use crate::python::Python;

/// The script that compiles packages, and the one that lets it run.
const SCRIPTS: [&str; 2] = ["aoti_packages.py", "torch_on_cpu.py"];

/// The library, and a directory with packages of AOTInductor.
#[derive(Debug, Clone)]
pub struct Torch {
    /// `…/torch/lib/libtorch_cpu.so`
    pub library: PathBuf,
    /// It contains `<name>.pt2` for each name in aoti_packages.py.
    pub packages: PathBuf,
}

impl Torch {
    /// None if PyTorch is not wanted, or, after a visible skip, if the environment cannot be created.
    pub fn get() -> Option<Torch> {
        static MADE: OnceLock<Option<Torch>> = OnceLock::new();
        if !is_large_runtime_wanted("pytorch") {
            return None;
        }
        MADE.get_or_init(make).clone()
    }

    /// The flag that names the library to a server.
    pub fn flag(&self) -> String {
        format!("--backend-config=pytorch,library={}", self.library.display())
    }
}

/// The packages stay in target/ until a script changes; other test binaries wait while one compiles them.
fn make() -> Option<Torch> {
    let python = Python::with("torch.txt")?;
    let sources = SCRIPTS.map(|script| fs::read(python.script(script)).expect("the scripts are in the tree"));
    let folder = format!("aoti-packages-{:016x}", crate::python::fingerprint(&sources.concat()));
    let packages = paths::target().join(folder);
    fs::create_dir_all(&packages).expect("the target directory can be written");
    let lock = File::create(packages.join("lock")).expect("the directory of packages can be written");
    lock.lock().expect("a lock on a file");
    python.run(SCRIPTS[0], &[&packages.to_string_lossy()]);
    Some(Torch { library: python.packages().join("torch/lib/libtorch_cpu.so"), packages })
}
