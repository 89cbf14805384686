//! Locates libraries, and holds those that are open.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use super::PluginBackend;
use super::library::Library;
use crate::abi::handles::BackendHandle;
use crate::backend::Backend;
use crate::backend::python::SCRIPT;
use nereid_gpu::Gpus;
use nereid_memory::Pool;
use nereid_request::Status;

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

/// Locates the libraries of one server, and holds those that are open.
pub struct Plugins {
    settings: PluginSettings,
    /// Keyed by the path of the file, with links resolved.
    open: Mutex<HashMap<PathBuf, Arc<Place>>>,
}

/// The library of one path: open as long as it is in use, and opened again only after its end.
#[derive(Default)]
struct Place {
    library: Mutex<Weak<Library>>,
    life: Arc<Life>,
}

#[derive(Default)]
struct Life {
    is_open: Mutex<bool>,
    ended: Condvar,
}

/// Held by an open library until its finalisation has ended.
pub(super) struct Presence(Arc<Life>);

impl Presence {
    /// Waits until the library's former use is finalised.
    fn of(life: &Arc<Life>) -> Presence {
        let mut is_open = lock(&life.is_open);
        while *is_open {
            is_open = life.ended.wait(is_open).unwrap_or_else(PoisonError::into_inner);
        }
        *is_open = true;
        Presence(Arc::clone(life))
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        *lock(&self.0.is_open) = false;
        self.0.ended.notify_all();
    }
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
    pub fn new(settings: PluginSettings) -> Plugins {
        Plugins { settings, open: Mutex::default() }
    }

    /// `--backend-directory`.
    pub fn directory(&self) -> &Path {
        &self.settings.directory
    }

    /// Opens the library `file` of `backend` that was found in `directory`.
    pub fn load(
        &self,
        backend: &str,
        directory: &Path,
        file: &Path,
        settings: &[(String, String)],
    ) -> Result<Arc<dyn Backend>, Status> {
        let library = self.open(backend, file, directory, settings)?;
        Ok(Arc::new(PluginBackend { name: backend.to_owned(), library }))
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
            return match own.join(SCRIPT).is_file() {
                true => Ok(Located::Script { directory: own }),
                false => Err(absent(&file, model, &[own])),
            };
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

    fn open(
        &self,
        backend: &str,
        path: &Path,
        directory: &Path,
        settings: &[(String, String)],
    ) -> Result<Arc<Library>, Status> {
        // For the loader two names of one file are one library.
        let key = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let place = {
            let mut open = lock(&self.open);
            open.retain(|_, place| Arc::strong_count(place) > 1 || lock(&place.library).strong_count() > 0);
            Arc::clone(open.entry(key).or_default())
        };
        // Loads of this library wait; loads of others do not.
        let mut known = lock(&place.library);
        if let Some(library) = known.upgrade() {
            return Ok(library);
        }
        let presence = Presence::of(&place.life);
        let PluginSettings { directory: all, auto_complete, min_compute_capability, .. } = &self.settings;
        let config = config_json(all, *auto_complete, *min_compute_capability, settings);
        let memory = (self.settings.pool.clone(), Arc::clone(&self.settings.gpus));
        let handle = BackendHandle::new(backend, &config, &directory.to_string_lossy(), memory);
        let library = Arc::new(Library::open(path, handle, presence)?);
        *known = Arc::downgrade(&library);
        Ok(library)
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

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
