//! What OpenAI's interface knows of the models that are served: their conventions, which their files say too, and when
//! they were first seen.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nereid_openai::form::{LoraError, ModelFacts};
use nereid_openai::prepare::{Language, Model, Settings};
use nereid_openai::template::Templates;
use nereid_openai::tokenizer::Tokenizer;
use nereid_scheduler::ServedModel;

/// The folder of a model, where it is on this host.
pub type FolderOf = Box<dyn Fn(&str) -> Option<PathBuf> + Send + Sync>;

/// Entries beyond which those of models that are gone are removed, and beyond twice as many as there were alive.
const KEPT_MIN: usize = 8;

/// The table. Its lock is held for a look-up only.
pub struct Models {
    folder_of: FolderOf,
    /// `--chat-template`, which replaces those of models too.
    template: Option<String>,
    /// Bytes of the prefixes that each tokenizer keeps.
    cache_bytes_max: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// By the address of the model, which the entry's weak reference keeps from being used again.
    entries: HashMap<usize, Entry>,
    kept_max: usize,
}

struct Entry {
    of: Weak<ServedModel>,
    /// Seconds since 1970.
    created: u64,
    /// Once it was read.
    model: Option<Model>,
}

impl Models {
    pub fn new(folder_of: FolderOf, template: Option<String>, cache_bytes_max: usize) -> Models {
        Models { folder_of, template, cache_bytes_max, table: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of a model, if its files were read.
    pub fn known(&self, served: &Arc<ServedModel>) -> Option<Model> {
        self.table().entries.get(&address(served))?.model.clone()
    }

    /// The same; reads its files if that was not done.
    pub fn read(&self, served: &Arc<ServedModel>, settings: &Settings, now_s: u64) -> Model {
        if let Some(model) = self.known(served) {
            return model;
        }
        let (facts, error) = self.facts(served, settings);
        if let Some(error) = error {
            tracing::error!("the LoRA adapters of model '{}' cannot be used: {error}", served.name);
        }
        // That of the flags wins.
        let folder = facts.tokenizer_folder().filter(|_| settings.language.is_none());
        let language = folder.and_then(|folder| {
            let loaded = load_language(folder, self.template.as_deref(), self.cache_bytes_max);
            let log =
                |error: &String| tracing::error!("the tokenizer of model '{}' cannot be used: {error}", served.name);
            loaded.inspect_err(log).ok().map(Arc::new)
        });
        let model = Model { name: served.name.clone(), facts: Arc::new(facts), language };
        let mut table = self.table();
        let gone = table.prune();
        table.entry(served, now_s).model = Some(model.clone());
        drop(table);
        // Tokenizers are large: threads that wait for the table do not wait for their end.
        drop(gone);
        model
    }

    fn facts(&self, served: &Arc<ServedModel>, settings: &Settings) -> (ModelFacts, Option<LoraError>) {
        let folder = (self.folder_of)(&served.name);
        let mut facts = ModelFacts::of(&served.spec, folder.as_deref());
        let read = settings.lora_separator.as_ref().map(|_| facts.read_loras(settings.form));
        facts.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        (facts, read.and_then(Result::err))
    }

    /// Whether the files of a model that is there at the start are as they have to be.
    pub fn check(&self, served: &Arc<ServedModel>, settings: &Settings) -> Result<(), LoraError> {
        let (facts, error) = self.facts(served, settings);
        tracing::info!("Found model: name='{}', backend='{}'", served.name, facts.backend());
        error.map_or(Ok(()), Err)
    }

    /// When a model was first seen, in seconds since 1970.
    pub fn created(&self, served: &Arc<ServedModel>, now_s: u64) -> u64 {
        self.table().entry(served, now_s).created
    }
}

impl Table {
    /// The entries of models that are gone, where there may be many.
    fn prune(&mut self) -> Vec<Entry> {
        if self.entries.len() < self.kept_max {
            return Vec::new();
        }
        let gone = self.entries.extract_if(|_, entry| entry.of.strong_count() == 0).map(|(_, entry)| entry).collect();
        self.kept_max = self.entries.len().saturating_mul(2).max(KEPT_MIN);
        gone
    }

    fn entry(&mut self, served: &Arc<ServedModel>, now_s: u64) -> &mut Entry {
        let new = || Entry { of: Arc::downgrade(served), created: now_s, model: None };
        self.entries.entry(address(served)).or_insert_with(new)
    }
}

fn address(served: &Arc<ServedModel>) -> usize {
    Arc::as_ptr(served).addr()
}

/// A tokenizer with its templates, of a folder. `template` replaces the templates.
pub fn load_language(folder: &Path, template: Option<&str>, cache_bytes_max: usize) -> Result<Language, String> {
    let templates = Templates::load(folder, template).map_err(|error| error.to_string())?;
    let tokenizer = match folder.join("tokenizer.json").is_file() {
        true => Some(Tokenizer::load(folder, cache_bytes_max).map_err(|error| error.to_string())?),
        false => None,
    };
    Ok(Language { tokenizer, templates })
}
