//! Opens the libraries of one server, and holds those that are open.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use super::PluginBackend;
use super::batching;
use super::library::Library;
use crate::abi::handles::BackendHandle;
use nereid_backend::plugin::{PluginLoader, PluginSettings, config_json};
use nereid_backend::{Backend, Model, ModelContext};
use nereid_model_config::ModelSpec;
use nereid_request::Status;
use nereid_scheduler::BatchStrategy;

/// The libraries of one server.
struct OpenLibraries {
    settings: PluginSettings,
    /// Keyed by the path of the file, with links resolved.
    open: Mutex<HashMap<PathBuf, Arc<LibrarySlot>>>,
}

/// The library of one path: open as long as it is in use, and opened again only after its end.
#[derive(Default)]
struct LibrarySlot {
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

/// Makes the loader of a server with these settings.
pub fn loader(settings: &PluginSettings) -> Box<dyn PluginLoader> {
    Box::new(OpenLibraries { settings: settings.clone(), open: Mutex::default() })
}

impl PluginLoader for OpenLibraries {
    fn load(
        &self,
        backend: &str,
        directory: &Path,
        file: &Path,
        settings: &[(String, String)],
    ) -> Result<Arc<dyn Backend>, Status> {
        let library = self.open(backend, file, directory, settings)?;
        Ok(Arc::new(PluginBackend { name: backend.to_owned(), library }))
    }

    fn strategy_of(
        &self,
        spec: &ModelSpec,
        was_sequence: bool,
        model: &dyn Model,
        context: &Arc<ModelContext>,
        backend_directory: &Path,
    ) -> Result<Option<Arc<dyn BatchStrategy>>, Status> {
        batching::strategy_of(spec, was_sequence, model, context, backend_directory)
    }
}

impl OpenLibraries {
    fn open(
        &self,
        backend: &str,
        path: &Path,
        directory: &Path,
        settings: &[(String, String)],
    ) -> Result<Arc<Library>, Status> {
        // For the loader two names of one file are one library.
        let key = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let slot = {
            let mut open = lock(&self.open);
            open.retain(|_, slot| Arc::strong_count(slot) > 1 || lock(&slot.library).strong_count() > 0);
            Arc::clone(open.entry(key).or_default())
        };
        // Loads of this library wait; loads of others do not.
        let mut known = lock(&slot.library);
        if let Some(library) = known.upgrade() {
            return Ok(library);
        }
        let presence = Presence::of(&slot.life);
        let PluginSettings { directory: all, auto_complete, min_compute_capability, .. } = &self.settings;
        let config = config_json(all, *auto_complete, *min_compute_capability, settings);
        let memory = (self.settings.pool.clone(), Arc::clone(&self.settings.gpus));
        let handle = BackendHandle::new(backend, &config, &directory.to_string_lossy(), memory);
        let library = Arc::new(Library::open(path, handle, presence)?);
        *known = Arc::downgrade(&library);
        Ok(library)
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_begins_again_only_after_its_end() {
        let life: Arc<Life> = Arc::default();
        let first = Presence::of(&life);
        let (begun, order) = std::sync::mpsc::channel();
        let again = {
            let (life, begun) = (Arc::clone(&life), begun.clone());
            std::thread::spawn(move || {
                let _second = Presence::of(&life);
                begun.send("begins again").unwrap();
            })
        };
        begun.send("ends").unwrap();
        drop(first);
        again.join().unwrap();
        assert_eq!(order.recv(), Ok("ends"));
        assert_eq!(order.recv(), Ok("begins again"));
        drop(Presence::of(&life));
    }
}
