//! The model's file, and the directories that Python searches for its imports (contract/python_backend.md section 1).

use std::path::{Path, PathBuf};

use crate::ModelContext;
use nereid_request::Status;

/// The default file of a model, and of a Python-based backend.
pub const SCRIPT: &str = "model.py";
const ENDING: &str = ".py";
/// Triton takes a directory with both files for a Python backend of its own.
const STUB_FILES: [&str; 2] = ["triton_python_backend_stub", "triton_python_backend_utils.py"];

/// The location of the model's code, which is sent to the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub file: PathBuf,
    /// `<name of the file's directory>.<name of the file>`: relative imports find the files beside it.
    pub module: String,
    /// The directories that are appended to `sys.path`, in this order: the file's directory, the one above, the Python
    /// backend's.
    pub search: Vec<PathBuf>,
}

impl Layout {
    /// `base`: the directory of the Python-based backend whose script serves the model.
    pub fn find(context: &ModelContext, base: Option<&Path>) -> Result<Layout, Status> {
        let file = match base {
            Some(base) => base.join(SCRIPT),
            None => own_file(context),
        };
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let Some(stem) = name.strip_suffix(ENDING) else {
            return Err(Status::invalid(format!("Model name must end with '.py'. Model name is \"{name}\".")));
        };
        if !file.is_file() {
            return Err(Status::internal(format!(
                "Failed to preinitialize Python stub: Python model file not found in '{}'",
                file.display()
            )));
        }
        let directory = file.parent().unwrap_or(Path::new("/"));
        let package = directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let module = format!("{package}.{stem}");
        let above = directory.parent().unwrap_or(directory);
        let search = vec![directory.to_owned(), above.to_owned(), backend_directory(context, base)];
        Ok(Layout { file, module, search })
    }
}

/// The file of a model that has its own.
fn own_file(context: &ModelContext) -> PathBuf {
    let name = &context.config.default_model_filename;
    context.version_directory.join(if name.is_empty() { SCRIPT } else { name })
}

/// The directory of modules that all models may import.
fn backend_directory(context: &ModelContext, base: Option<&Path>) -> PathBuf {
    match base {
        Some(base) if STUB_FILES.iter().all(|file| base.join(file).is_file()) => base.to_owned(),
        _ => context.backend_directory.join("python"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::fixtures::TestDirectory;

    fn relative(place: &TestDirectory, layout: &Layout) -> (String, String, Vec<String>) {
        let shown = |path: &Path| path.strip_prefix(place.path()).unwrap().display().to_string();
        (shown(&layout.file), layout.module.clone(), layout.search.iter().map(|path| shown(path)).collect())
    }

    fn texts(expected: [&str; 3]) -> Vec<String> {
        expected.map(str::to_owned).into()
    }

    #[test]
    fn a_model_has_its_file_in_its_version() {
        let place = TestDirectory::new();
        let context = place.context("m");
        let missing = Layout::find(&context, None).unwrap_err();
        assert_eq!(
            missing.message,
            format!(
                "Failed to preinitialize Python stub: Python model file not found in '{}'",
                place.path().join("m/1/model.py").display()
            )
        );
        place.file("m/1/model.py", "");
        let found = Layout::find(&context, None).unwrap();
        let search = texts(["m/1", "m", "backends/python"]);
        assert_eq!(relative(&place, &found), ("m/1/model.py".into(), "1.model".into(), search));
    }

    #[test]
    fn another_name_must_be_that_of_a_script() {
        let place = TestDirectory::new();
        let mut context = place.context("m");
        for (name, expected) in [
            ("net.onnx", "Model name must end with '.py'. Model name is \"net.onnx\"."),
            ("py", "Model name must end with '.py'. Model name is \"py\"."),
            ("model.pyc", "Model name must end with '.py'. Model name is \"model.pyc\"."),
        ] {
            place.file(&format!("m/1/{name}"), "");
            context.config.default_model_filename = name.to_owned();
            assert_eq!(Layout::find(&context, None).unwrap_err(), Status::invalid(expected));
        }
        place.file("m/1/other.py", "");
        context.config.default_model_filename = "other.py".to_owned();
        assert_eq!(Layout::find(&context, None).unwrap().module, "1.other");
        // A directory is no file.
        place.file("m/1/folder.py/x", "");
        context.config.default_model_filename = "folder.py".to_owned();
        assert!(Layout::find(&context, None).unwrap_err().message.contains("not found in"));
    }

    #[test]
    fn a_python_based_backend_serves_with_its_own_script() {
        let place = TestDirectory::new();
        place.file("backends/snake/model.py", "");
        place.file("m/1/model.py", "not this one");
        let base = place.path().join("backends/snake");
        let mut context = place.context("m");
        // There the field is for the model's own use.
        context.config.default_model_filename = "weights.bin".to_owned();
        let found = Layout::find(&context, Some(&base)).unwrap();
        let search = texts(["backends/snake", "backends", "backends/python"]);
        assert_eq!(relative(&place, &found), ("backends/snake/model.py".into(), "snake.model".into(), search));
        // With both of Triton's files beside it, it is a backend of its own; with one of them not.
        place.file("backends/snake/triton_python_backend_stub", "");
        assert!(Layout::find(&context, Some(&base)).unwrap().search[2].ends_with("python"));
        place.file("backends/snake/triton_python_backend_utils.py", "");
        assert!(Layout::find(&context, Some(&base)).unwrap().search[2].ends_with("snake"));
    }
}
