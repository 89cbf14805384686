//! Tree models of XGBoost, LightGBM and scikit-learn, which tests/python/tree_models.py makes once for its contents.

use std::fs::{self, File};
use std::path::PathBuf;

use crate::paths;
use crate::python::{Python, fingerprint};

/// The environment of these packages and treelite; `None` after a message that the test is skipped.
pub fn python() -> Option<Python> {
    Python::with("tree_models.txt")
}

/// `--backend-config` that names treelite's library of this environment.
pub fn treelite_flag(python: &Python) -> String {
    format!("--backend-config=fil,library={}", python.packages().join("treelite/lib").display())
}

/// The folder of the models and of `expected.json`.
pub fn made() -> Option<PathBuf> {
    let python = python()?;
    let script = fs::read(python.script("tree_models.py")).expect("the script is in the source tree");
    let folder = paths::target().join(format!("tree-models-{:016x}", fingerprint(&script)));
    let lock = File::create(folder.with_extension("lock")).expect("the target directory can be written");
    lock.lock().expect("files of the target directory can be locked");
    let complete = folder.join("complete");
    if !complete.exists() {
        let _ = fs::remove_dir_all(&folder);
        python.run("tree_models.py", &[folder.to_str().expect("the path of the target directory is text")]);
        fs::write(&complete, b"").expect("the folder was just made");
    }
    Some(folder)
}
