//! Backends that are libraries: where their files lie, and the contract with the code that opens them.
//!
//! `abi` opens libraries, because they call its functions. It lies above the server, which is given it at its start.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::python::{SCRIPT, based};
use super::{Backend, Model, ModelContext};
use nereid_gpu::Gpus;
use nereid_memory::Pool;
use nereid_model_config::ModelSpec;
use nereid_request::Status;
use nereid_scheduler::BatchStrategy;

/// Opens the libraries of one server: those of backends, and those that form batches for a model.
pub trait PluginLoader: Send + Sync {
    /// Opens the library `file` of `backend` that was found in `directory`, or returns it if it is open.
    fn load(
        &self,
        backend: &str,
        directory: &Path,
        file: &Path,
        settings: &[(String, String)],
    ) -> Result<Arc<dyn Backend>, Status>;

    /// The library that forms batches for a model, if it has one. `was_sequence`: the model's own file requests
    /// sequence batching, not only the configuration that its backend completed. `backend_directory` is that of the
    /// model's backend.
    fn strategy_of(
        &self,
        spec: &ModelSpec,
        was_sequence: bool,
        model: &dyn Model,
        context: &Arc<ModelContext>,
        backend_directory: &Path,
    ) -> Result<Option<Arc<dyn BatchStrategy>>, Status>;
}

/// Makes the loader of a server with these settings.
pub type MakePluginLoader = fn(&PluginSettings) -> Box<dyn PluginLoader>;

/// The settings for all libraries of one server.
#[derive(Clone)]
pub struct PluginSettings {
    /// `--backend-directory`.
    pub directory: PathBuf,
    pub auto_complete: bool,
    /// `--min-supported-compute-capability`.
    pub min_compute_capability: f64,
    /// The pool of the memory that libraries allocate through the server.
    pub pool: Pool,
    /// The devices whose memory they may use.
    pub gpus: Arc<Gpus>,
}

/// Locates the libraries of one server, and opens them.
pub struct Plugins {
    settings: PluginSettings,
    loader: Box<dyn PluginLoader>,
}

/// The code of a backend, as the search found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Located {
    /// A library, and the directory in which it was searched.
    Library { directory: PathBuf, file: PathBuf },
    /// The directory of a Python-based backend, whose script serves all its models.
    Script { directory: PathBuf },
}

impl Plugins {
    pub fn new(settings: PluginSettings, make_loader: MakePluginLoader) -> Plugins {
        Plugins { loader: make_loader(&settings), settings }
    }

    /// Opens libraries.
    pub fn loader(&self) -> &dyn PluginLoader {
        &*self.loader
    }

    /// `--backend-directory`.
    pub fn directory(&self) -> &Path {
        &self.settings.directory
    }

    /// Finds the code of `backend` for a model; nothing is opened (contract/c_api.md section 5, "Library search"; for
    /// scripts contract/python_backend.md section 1).
    pub fn locate(
        &self,
        backend: &str,
        runtime: &str,
        model_directory: &Path,
        version_directory: &Path,
        model: &str,
    ) -> Result<Located, Status> {
        let file = if runtime.is_empty() { format!("libtriton_{backend}.so") } else { runtime.to_owned() };
        let own = self.settings.directory.join(backend);
        let places = [version_directory.to_owned(), model_directory.to_owned(), own.clone()];
        let escapes = |place: &Path| {
            let place = place.display();
            Status::invalid(format!(
                "backend library name '{file}' escapes backend directory '{place}', for model '{model}', check model \
                 config runtime field"
            ))
        };
        if leaves(Path::new(&file)) {
            return Err(escapes(&own));
        }
        if runtime == SCRIPT {
            // A model may have a file of that name for other purposes.
            if own.join(SCRIPT).is_file() {
                return Ok(Located::Script { directory: own });
            }
            let built_in = based::directory_of(backend).unwrap_or_else(|| Err(absent(&file, model, &[own])));
            return built_in.map(|directory| Located::Script { directory });
        }
        for place in &places {
            let path = place.join(&file);
            if !path.exists() {
                continue;
            }
            // The file of the backend's own name comes from the operator and may be a link to anywhere; one that a
            // model names must lie in the directory.
            if !runtime.is_empty() && !lies_in(&path, place) {
                return Err(escapes(place));
            }
            return Ok(Located::Library { directory: place.clone(), file: path });
        }
        if runtime.is_empty() {
            if own.join(SCRIPT).is_file() {
                return Ok(Located::Script { directory: own });
            }
            return Err(Status::invalid(format!(
                "unable to find backend library for backend '{backend}', try specifying runtime on the model \
                 configuration."
            )));
        }
        Err(absent(&file, model, &places))
    }
}

/// Whether the path, read without the disk, leaves its directory.
fn leaves(file: &Path) -> bool {
    let mut depth = 0usize;
    for component in file.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return true,
        }
    }
    depth == 0
}

/// Whether `path` lies in `place`, with the links of both resolved.
fn lies_in(path: &Path, place: &Path) -> bool {
    match (path.canonicalize(), place.canonicalize()) {
        (Ok(path), Ok(place)) => path.starts_with(place),
        _ => false,
    }
}

fn absent(file: &str, model: &str, places: &[PathBuf]) -> Status {
    let searched: Vec<String> = places.iter().map(|place| format!("'{}'", place.display())).collect();
    let searched = searched.join(" ");
    Status::invalid(format!("unable to find backend library '{file}' for model '{model}', searched: {searched}"))
}

/// `{"cmdline":{…}}`: the message of `TRITONBACKEND_BackendConfig` (contract/c_api.md section 5). All backends get
/// the same settings of the server, and then their own, which override these; later ones override earlier ones.
pub fn config_json(
    directory: &Path,
    auto_complete: bool,
    min_compute_capability: f64,
    settings: &[(String, String)],
) -> String {
    let of_server = [
        ("auto-complete-config", auto_complete.to_string()),
        ("backend-directory", directory.to_string_lossy().into_owned()),
        ("min-compute-capability", format!("{min_compute_capability:.6}")),
        ("default-max-batch-size", "4".to_owned()),
    ];
    let of_server = of_server.map(|(key, value)| (key.to_owned(), value));
    let all = of_server.into_iter().chain(settings.iter().cloned());
    let cmdline: serde_json::Map<_, _> = all.map(|(key, value)| (key, value.into())).collect();
    serde_json::json!({ "cmdline": cmdline }).to_string()
}

/// The loader of tests that open no library.
#[cfg(any(test, feature = "testing"))]
pub fn no_libraries(_settings: &PluginSettings) -> Box<dyn PluginLoader> {
    struct NoLibraries;
    impl PluginLoader for NoLibraries {
        fn load(&self, _: &str, _: &Path, _: &Path, _: &[(String, String)]) -> Result<Arc<dyn Backend>, Status> {
            unreachable!("the test opens no library")
        }

        fn strategy_of(
            &self,
            _: &ModelSpec,
            _: bool,
            _: &dyn Model,
            _: &Arc<ModelContext>,
            _: &Path,
        ) -> Result<Option<Arc<dyn BatchStrategy>>, Status> {
            Ok(None)
        }
    }
    Box::new(NoLibraries)
}

#[cfg(test)]
mod tests;
