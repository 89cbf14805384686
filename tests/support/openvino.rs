//! OpenVINO's library and the models of its tests, made once by the script in tests/python.

use std::fs;
use std::path::{Path, PathBuf};

use crate::prepared::{fingerprint, prepared, source, step};
use crate::python::Python;
use crate::skip::skip;

const SCRIPT: &str = "openvino_models.py";

/// An environment with OpenVINO, and a folder of models.
#[derive(Clone, Debug)]
pub struct OpenVino {
    python: Python,
    models: PathBuf,
}

impl OpenVino {
    /// `None`, after a visible skip, if the packages are not available.
    pub fn get() -> Option<OpenVino> {
        let python = Python::with("openvino.txt")?;
        let script = fs::read(source("tests/python").join(SCRIPT)).expect("the script that makes the models");
        let packages = fs::read(source("tests/python/openvino.txt")).expect("the list of packages");
        let name = format!("openvino-models-{}", fingerprint(&[&script, &packages]));
        let made = prepared(&name, |folder| step(python.command(SCRIPT).arg(folder)).map(|_| ()));
        match made {
            Ok(models) => Some(OpenVino { python, models }),
            Err(reason) => {
                skip(&format!("the models for OpenVINO cannot be made: {reason}"));
                None
            }
        }
    }

    /// The folder of the libraries.
    pub fn library(&self) -> PathBuf {
        self.python.packages().join("openvino/libs")
    }

    /// `--backend-config` that names it.
    pub fn flag(&self) -> String {
        format!("--backend-config=openvino,library={}", self.library().display())
    }

    /// The folder of the models.
    pub fn models(&self) -> &Path {
        &self.models
    }

    /// The files of one model, `<name>.xml` and `<name>.bin`, by what stands behind the name.
    pub fn files(&self, name: &str) -> Vec<(&'static str, Vec<u8>)> {
        let file = |suffix: &'static str| Some((suffix, fs::read(self.models.join(format!("{name}{suffix}"))).ok()?));
        [".xml", ".bin"].into_iter().filter_map(file).collect()
    }
}
