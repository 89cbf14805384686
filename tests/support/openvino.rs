//! OpenVINO's library and the models of its tests, made once by the script in tests/python.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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

    /// A library with the operation of the model `triple`. `None`, after a visible skip, without a compiler.
    pub fn extension(&self) -> Option<PathBuf> {
        let path = source("tests/backends/openvino_extension.cc");
        let text = fs::read(&path).expect("the source of the extension");
        let core = self.file_of_library("libopenvino.so.");
        let name = format!("openvino-extension-{}", fingerprint(&[&text, core.as_os_str().as_encoded_bytes()]));
        let made = prepared(&name, |folder| {
            let mut compiler = Command::new("c++");
            compiler.args(["-std=c++17", "-O1", "-shared", "-fPIC", "-I"]).arg(self.library().join("../include"));
            step(compiler.arg("-o").arg(folder.join("extension.so")).arg(&path).arg(&core)).map(|_| ())
        });
        match made {
            Ok(folder) => Some(folder.join("extension.so")),
            Err(reason) => {
                skip(&format!("the extension of OpenVINO cannot be compiled: {reason}"));
                None
            }
        }
    }

    /// A folder with the library's files, those left out whose names contain one of these texts.
    pub fn library_without(&self, parts: &[&str]) -> PathBuf {
        let name = format!("openvino-without-{}", fingerprint(&[parts.join(" ").as_bytes()]));
        let made = prepared(&name, |folder| {
            for file in self.files_of_library().filter(|file| !parts.iter().any(|part| file_name(file).contains(part)))
            {
                fs::hard_link(&file, folder.join(file_name(&file))).map_err(|error| format!("{file:?}: {error}"))?;
            }
            Ok(())
        });
        made.expect("files of the target directory can be linked")
    }

    fn files_of_library(&self) -> impl Iterator<Item = PathBuf> {
        let entries = fs::read_dir(self.library()).expect("the folder of the libraries");
        entries.map(|entry| entry.expect("a library").path())
    }

    fn file_of_library(&self, start: &str) -> PathBuf {
        self.files_of_library().find(|file| file_name(file).starts_with(start)).expect("a library")
    }

    /// The files of one model, `<name>.xml` and `<name>.bin`, by what stands behind the name.
    pub fn files(&self, name: &str) -> Vec<(&'static str, Vec<u8>)> {
        let file = |suffix: &'static str| Some((suffix, fs::read(self.models.join(format!("{name}{suffix}"))).ok()?));
        [".xml", ".bin"].into_iter().filter_map(file).collect()
    }
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("a name of UTF-8")
}
