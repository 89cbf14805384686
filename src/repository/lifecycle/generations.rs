//! Generations of models in their life cycle: naming them, keeping what loads them again, and loading one by its id
//! (docs/generations.md).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::{info, warn};

use super::super::ControlMode;
use super::super::generations::{self, Content, FLAG, Generations, KeptFiles, Loaded};
use super::super::models::ModelId;
use super::super::overrides::Override;
use super::super::poll::{Polled, poll};
use super::super::store::Store;
use super::super::version::Directory;
use super::operation::{LoadSource, Loading};
use super::{Lifecycle, ModelSlot, lock, poll_failed};
use nereid_request::{RefusalReason, Status};
use nereid_wire::inference::ModelConfig;

/// What loads a generation again.
#[derive(Debug, Clone)]
pub struct KeptLoad {
    files: Arc<KeptFiles>,
    /// The configuration that came with the load request, in place of the file's.
    config: Option<Arc<ModelConfig>>,
    pub location: String,
    /// It is served under a name that is not that of its directory.
    is_renamed: bool,
}

#[cfg(test)]
impl KeptLoad {
    pub fn path(&self) -> &std::path::Path {
        &self.files.directory.path
    }
}

/// The files of a model as a load has read them, before agents act on them.
pub struct FilesRead<'a> {
    pub directory: &'a Directory,
    /// They are a copy of the server's own.
    pub is_copy: bool,
    pub is_renamed: bool,
    /// Of the repository; empty for files of a request.
    pub location: &'a str,
}

impl Lifecycle {
    /// The content of what a load has read, and with `--keep-generations` a copy of it.
    pub(super) fn read_content(
        &self,
        name: &str,
        files: &FilesRead<'_>,
        config: Option<Arc<ModelConfig>>,
        polled: &Polled,
    ) -> (Content, Option<KeptLoad>) {
        let is_over = || self.is_stopping();
        let kept = match self.settings.keep_generations {
            0 => None,
            _ => self.keeper.keep(name, files.directory, files.is_copy, &is_over).map_or_else(
                |why| {
                    warn!("this generation of model '{name}' is not kept for {FLAG}: {why}");
                    None
                },
                Some,
            ),
        };
        // Of the copy, if there is one: that is what the id will bring back.
        let path = kept.as_ref().map_or(&files.directory.path, |kept| &kept.directory.path);
        let content = generations::read(path, polled, &is_over);
        let (location, is_renamed) = (files.location.to_owned(), files.is_renamed);
        (content, kept.map(|files| KeptLoad { files, config, location, is_renamed }))
    }

    /// Records a load that is about to serve; returns the id of its generation.
    pub(super) fn note_generation(
        &self,
        slot: &mut ModelSlot,
        source: &LoadSource,
        fitted: &Polled,
        has_fresh: bool,
    ) -> Arc<str> {
        if let Some(id) = &source.restores {
            slot.generations.restored(id);
            return Arc::clone(id);
        }
        if let Some(present) = slot.generations.unchanged(&source.content).filter(|_| !has_fresh) {
            return present;
        }
        let id = slot.generations.next_id(&source.content);
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let kept = source.kept.clone().map(|kept| {
            let bytes = kept.files.bytes;
            (kept, bytes)
        });
        let loaded = Loaded { content: source.content, versions: fitted.versions.clone(), at_ms, kept };
        slot.generations.loaded(&id, loaded, self.settings.keep_generations);
        id
    }

    pub(super) fn shown_generations(&self, slot: &ModelSlot) -> Arc<Generations> {
        Arc::new(slot.generations.shown(!slot.running.is_empty(), self.settings.keep_generations))
    }

    /// Whether a poll leaves the model as it is: an earlier generation was activated, and the files of the repository
    /// only look new.
    pub(super) fn is_rolled_back_from(&self, id: &ModelId, slot: &ModelSlot, store: &Arc<dyn Store>) -> bool {
        if !slot.generations.is_rolled_back() {
            return false;
        }
        // What is wrong with the files is reported by the load that follows.
        let read = self.poll_slot(id, slot, Some(store), &Override::None, 0, &mut Vec::new());
        matches!(read, Ok(Some(source)) if slot.generations.holds_against(&source.content))
    }

    /// Loads a kept generation of a model beside the one that serves, and lets it serve. Returns when it does, or with
    /// the reason why it does not.
    pub fn activate(self: &Arc<Self>, name: &str, wanted: &str) -> Result<(), Status> {
        if self.settings.mode == ControlMode::None {
            let text = "generations cannot be activated in the model control mode NONE; use explicit or poll";
            return Err(Status::unavailable(text));
        }
        let map = self.map();
        map.generations(name.as_bytes())?;
        let id = map.only(name).cloned().unwrap_or_default();
        drop(map);
        let load = || {
            // Or a poll that finds the model gone could take its slot away while this waits for it.
            let _polling = (self.settings.mode == ControlMode::Poll).then(|| lock(&self.polling));
            let loading = self.with_slot(&id, |slot| self.activate_in_slot(&id, slot, wanted))??;
            if loading == Loading::Changed {
                let changed = BTreeSet::from([id.clone()]);
                self.follow(&changed, &changed);
            }
            Ok(())
        };
        let Some(demand) = &self.demand else { return load() };
        self.with_room(demand, name, &BTreeSet::from([id.clone()]), load)?;
        demand.release(name);
        // A load on demand would bring the repository's files back.
        demand.activated(name);
        Ok(())
    }

    fn activate_in_slot(self: &Arc<Self>, id: &ModelId, slot: &mut ModelSlot, wanted: &str) -> Result<Loading, Status> {
        let name = &id.name;
        let Some(found) = slot.generations.find(wanted) else {
            let known = self.shown_generations(slot).known();
            let hint = match self.settings.keep_generations {
                0 => format!("; {FLAG} keeps earlier ones"),
                _ => String::new(),
            };
            return Err(Status::not_found(format!(
                "model '{name}' has no generation '{wanted}', known: {known}{hint}"
            )));
        };
        let generation = Arc::clone(&found.id);
        let is_present = self.shown_generations(slot).present().is_some_and(|present| present.id == generation);
        if is_present {
            return Ok(Loading::Same);
        }
        let Some(kept) = found.kept.clone() else {
            let text = format!("the files of generation '{generation}' of model '{name}' are not kept; set {FLAG}");
            return Err(Status::invalid(text));
        };
        info!("model '{name}' goes to generation {generation}");
        let config = kept.config.as_deref();
        let polled = poll(&self.settings, name, kept.files.directory.clone(), config, kept.is_renamed);
        let (directory, polled) = polled.map_err(|status| poll_failed(name, &status))?;
        let content = generations::read(&kept.files.directory.path, &polled, &|| self.is_stopping());
        if self.is_stopping() {
            return Err(Status::refused(RefusalReason::Exiting, "Server not ready"));
        }
        if content != found.content {
            let text = format!("the kept files of generation '{generation}' of model '{name}' were changed");
            return Err(Status::internal(text));
        }
        let source = LoadSource::of_generation(generation, directory, polled, content, kept);
        self.load_source(id, slot, Arc::new(source), false)
    }
}
