//! The models of a multi-model endpoint: brought, listed and taken away by SageMaker while the server runs
//! (contract/http.md section 8).
//!
//! Each lies in a repository of its own, which is registered for it and goes with it. All of this waits for disks and
//! backends, so it runs on control threads; shards read an immutable table. A model that is taken away may take minutes
//! to finish what it has: one thread waits for all of those, and no other operation waits for that.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tracing::{error, info};

use crate::repository::Lifecycle;
use nereid_memory::Slice;
use nereid_protocol::json::Document;
use nereid_request::{Code, Status};

/// How often it is looked whether a model that goes is gone, and how long at most (contract/http.md section 8).
const POLL_EVERY: Duration = Duration::from_millis(500);
const UNLOAD_WITHIN: Duration = Duration::from_secs(350);
/// Requests that wait for models to be gone.
const WAITS_MAX: usize = 1024;
/// Sub-directories of one URL that are looked at.
const DIRECTORIES_MAX: usize = 4096;
/// Longest configuration that is searched for the word that makes an ensemble.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Longest name or path that a request may bring.
const TEXT_BYTES_MAX: usize = 4096;
/// Folders of the system, which hold no models.
const SYSTEM: [&str; 3] = ["/dev/", "/proc/", "/sys/"];

/// One model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SageMakerModel {
    /// The name under which it is served.
    pub name: String,
    /// The repository that was registered for it.
    pub repository: String,
    /// Tells it from one that comes after it under the same hash.
    load: u64,
}

pub type Table = BTreeMap<String, SageMakerModel>;

/// Says how an operation ended, once. `Err(None)`: there is no such model.
pub type Answer = Box<dyn FnOnce(Result<(), Option<Status>>) + Send>;

/// Every model that SageMaker brought, by its hash.
#[derive(Default)]
pub struct SageMakerModels {
    loads: AtomicU64,
    table: RwLock<Arc<Table>>,
    waits: Mutex<Waits>,
    arrived: Condvar,
}

#[derive(Default)]
struct Waits {
    waits: Vec<Wait>,
    /// The thread that polls them runs.
    is_polled: bool,
}

struct Wait {
    hash: String,
    model: SageMakerModel,
    until: Instant,
    answer: Answer,
}

/// A request to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    hash: String,
    url: String,
}

/// A directory to register, and which directory in it is the model.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    repository: String,
    directory: String,
}

impl std::fmt::Debug for SageMakerModels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SageMakerModels").field(&self.table()).finish()
    }
}

impl SageMakerModels {
    /// The models as they are now. The lock is held for reading or changing a pointer, so that shards may take it.
    pub fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn edit<R>(&self, edit: impl FnOnce(&mut Table) -> R) -> R {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        edit(Arc::make_mut(&mut *table))
    }

    /// Registers the model's repository and loads it, under the name `target` if there is one. On failure nothing of
    /// either stays.
    pub fn load(&self, lifecycle: &Arc<Lifecycle>, load: &Load, target: Option<String>) -> Result<(), Status> {
        let Load { hash, url } = load;
        let name = target.unwrap_or_else(|| hash.clone());
        let Place { repository, directory } = place_of(url)?;
        info!("Loading SageMaker TargetModel: {name}");
        lifecycle.register_repository(&repository, &[(directory, name.clone())])?;
        let number = self.loads.fetch_add(1, Ordering::Relaxed);
        let model = SageMakerModel { name: name.clone(), repository: repository.clone(), load: number };
        let is_new = self.edit(|table| match table.contains_key(hash) {
            true => false,
            false => table.insert(hash.clone(), model.clone()).is_none(),
        });
        if !is_new {
            unregister(lifecycle, &repository);
            return Err(Status::already_exists(format!("model '{hash}' has already been loaded")));
        }
        let outcome = lifecycle.load(&name, Vec::new());
        if outcome.is_err() && self.remove(lifecycle, hash, &model) {
            info!("Unregistered model repository due to load failure for model: {name}");
        }
        outcome
    }

    /// Takes a model out of the table, and its repository away. False if another thread has.
    fn remove(&self, lifecycle: &Lifecycle, hash: &str, model: &SageMakerModel) -> bool {
        let is_there = self.edit(|table| match table.get(hash) == Some(model) {
            true => table.remove(hash).is_some(),
            false => false,
        });
        if is_there {
            unregister(lifecycle, &model.repository);
        }
        is_there
    }

    /// Unloads a model with what was loaded for it, and answers when it is gone.
    pub fn unload(self: &Arc<Self>, lifecycle: &Arc<Lifecycle>, hash: &str, answer: Answer) {
        let Some(model) = self.table().get(hash).cloned() else { return answer(Err(None)) };
        info!("Unloading SageMaker TargetModel: {}", model.name);
        if let Err(status) = lifecycle.unload(&model.name, true) {
            return answer(Err(Some(status)));
        }
        self.wait_for(lifecycle, Wait::new(hash, model, Instant::now(), answer));
    }

    fn wait_for(self: &Arc<Self>, lifecycle: &Arc<Lifecycle>, wait: Wait) {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        if waits.waits.len() >= WAITS_MAX {
            drop(waits);
            let text = format!("{WAITS_MAX} models are being unloaded already");
            return (wait.answer)(Err(Some(Status::unavailable(text))));
        }
        waits.waits.push(wait);
        if std::mem::replace(&mut waits.is_polled, true) {
            return self.arrived.notify_one();
        }
        let (sagemaker_models, lifecycle) = (Arc::clone(self), Arc::clone(lifecycle));
        let thread = std::thread::Builder::new().name("model-unload-wait".to_owned());
        if let Err(error) = thread.spawn(move || sagemaker_models.poll_until_done(&lifecycle)) {
            waits.is_polled = false;
            let refused = std::mem::take(&mut waits.waits);
            drop(waits);
            for wait in refused {
                let text = format!("cannot start a thread that waits for the model: {error}");
                (wait.answer)(Err(Some(Status::unavailable(text))));
            }
        }
    }

    /// Polls all that wait, until there are none.
    fn poll_until_done(&self, lifecycle: &Arc<Lifecycle>) {
        loop {
            let waits = std::mem::take(&mut self.waits.lock().unwrap_or_else(PoisonError::into_inner).waits);
            let mut still = Vec::new();
            for wait in waits {
                // The call is answered even if this panics.
                let look = AssertUnwindSafe(|| self.look_at(lifecycle, &wait));
                let panicked = || Some(Err(Some(Status::internal("the operation on the model repository panicked"))));
                match catch_unwind(look).unwrap_or_else(|_| panicked()) {
                    Some(outcome) => (wait.answer)(outcome),
                    None => still.push(wait),
                }
            }
            let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
            let have_arrived = !waits.waits.is_empty();
            waits.waits.extend(still);
            if waits.waits.is_empty() {
                waits.is_polled = false;
                return;
            }
            if !have_arrived {
                drop(self.arrived.wait_timeout(waits, POLL_EVERY).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    /// What there is to answer, if anything is.
    fn look_at(&self, lifecycle: &Arc<Lifecycle>, wait: &Wait) -> Option<Result<(), Option<Status>>> {
        if lifecycle.is_unloaded(&wait.model.name) {
            // Another call that waited for the same may have been first.
            return Some(self.remove(lifecycle, &wait.hash, &wait.model).then_some(()).ok_or(None));
        }
        if lifecycle.is_stopping() {
            return Some(Err(Some(Status::unavailable("Server not ready"))));
        }
        // It stays in the table, so that this can be requested again.
        wait.lateness(Instant::now()).map(|status| Err(Some(status)))
    }
}

impl Wait {
    fn new(hash: &str, model: SageMakerModel, now: Instant, answer: Answer) -> Wait {
        Wait { hash: hash.to_owned(), model, until: now + UNLOAD_WITHIN, answer }
    }

    /// The error of an unload that has not finished.
    fn lateness(&self, now: Instant) -> Option<Status> {
        let text = || format!("model '{}' is not unloaded after {} s", self.model.name, UNLOAD_WITHIN.as_secs());
        if now < self.until {
            return None;
        }
        error!(
            "Error: UNLOAD did not complete within expected {} seconds. This may result in SageMaker UNLOAD timeout.",
            UNLOAD_WITHIN.as_secs()
        );
        Some(Status::unavailable(text()))
    }
}

fn unregister(lifecycle: &Lifecycle, repository: &str) {
    if let Err(status) = lifecycle.unregister_repository(repository) {
        error!("cannot unregister the repository of a model: {status}");
    }
}

impl Load {
    /// Reads `{"model_name": …, "url": …}`.
    pub fn read(body: &Slice) -> Result<Load, Status> {
        let document = Document::parse(body.clone()).map_err(|error| Status::internal(error.to_string()))?;
        let text = |name: &str| {
            let member =
                document.root().member(name).and_then(|member| member.as_str().map(std::borrow::Cow::into_owned));
            let text = member.map_err(|error| Status::internal(format!("Unable to parse '{name}': {error}")))?;
            let text = String::from_utf8(text).ok().filter(|text| text.len() <= TEXT_BYTES_MAX);
            text.ok_or_else(|| Status::invalid(format!("'{name}' is no text of at most {TEXT_BYTES_MAX} bytes")))
        };
        let load = Load { hash: text("model_name")?, url: text("url")? };
        if load.hash.is_empty() || load.hash.contains(['/', '\0']) || load.hash == "." || load.hash == ".." {
            return Err(Status::invalid(format!("invalid model name '{}'", load.hash)));
        }
        check_url(&load.url)?;
        Ok(load)
    }

    /// For the audit log: the model, and the directory that is registered for it.
    pub fn describe(&self) -> String {
        format!("{} {}", self.hash, self.url)
    }
}

/// A model lies where SageMaker puts models, and nowhere else.
fn check_url(url: &str) -> Result<(), Status> {
    if let Some(system) = SYSTEM.iter().find(|system| url.starts_with(**system)) {
        return Err(Status::invalid(format!("Invalid \"url\" '{url}': models cannot be loaded from {system}")));
    }
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    let parts: Option<Vec<&str>> = url.strip_prefix("/opt/ml/models/").map(|rest| rest.split('/').collect());
    let is_place = match parts.as_deref() {
        Some([hash, "model"]) => is_name(hash),
        Some([hash, "model", directory]) => is_name(hash) && is_name(directory),
        _ => false,
    };
    let expected = "expected a path of the form /opt/ml/models/<hash>/model[/<subdir>]";
    is_place.then_some(()).ok_or_else(|| Status::invalid(format!("Invalid \"url\" '{url}': {expected}")))
}

/// Where the model of a URL lies: there itself if its configuration does, else in a sub-directory, preferably an
/// ensemble, which brings the others with it.
fn place_of(url: &str) -> Result<Place, Status> {
    let root = Path::new(url);
    if root.join("config.pbtxt").is_file() {
        let above = root.parent().zip(root.file_name());
        let (repository, directory) =
            above.ok_or_else(|| Status::invalid(format!("'{url}' has no directory above")))?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        return Ok(Place { repository: text(repository), directory: text(Path::new(directory)) });
    }
    let absent = || Status::invalid(format!("failed to register '{url}', repository not found"));
    let mut directories: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(root).map_err(|_| absent())? {
        let entry = entry.map_err(|_| absent())?;
        if entry.path().is_dir()
            && let Ok(name) = entry.file_name().into_string()
        {
            directories.push(name);
        }
        if directories.len() > DIRECTORIES_MAX {
            return Err(Status::invalid(format!("'{url}' holds more than {DIRECTORIES_MAX} directories")));
        }
    }
    directories.sort_unstable();
    if directories.len() > 1 {
        info!("More than one model detected in archive. Checking if it is an ensemble.");
    }
    let ensemble = directories.iter().find(|name| is_ensemble(&root.join(name).join("config.pbtxt")));
    // Hidden ones are what tools leave behind.
    let plain = || directories.iter().find(|name| !name.starts_with('.')).or(directories.first());
    let directory = ensemble.or_else(plain).cloned();
    let none = || Status::invalid(format!("'{url}' holds neither a config.pbtxt nor the directory of a model"));
    Ok(Place { repository: url.to_owned(), directory: directory.ok_or_else(none)? })
}

/// Says `platform: "ensemble"`, with whatever blanks.
fn is_ensemble(config: &Path) -> bool {
    use std::io::Read;
    let mut text = Vec::new();
    let read = std::fs::File::open(config).and_then(|file| file.take(CONFIG_BYTES_MAX).read_to_end(&mut text));
    let text: Vec<u8> = text.into_iter().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let forms = [&b"platform:\"ensemble\""[..], b"platform:'ensemble'"];
    read.is_ok() && forms.iter().any(|form| memchr::memmem::find(&text, form).is_some())
}

/// The status of a load that failed.
pub fn load_status(status: &Status) -> u16 {
    match status.code {
        Code::AlreadyExists => 409,
        _ => crate::api::http::dialect::sagemaker_status(status.message.as_bytes()),
    }
}

#[cfg(test)]
mod tests;
