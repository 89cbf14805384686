//! A model repository in a directory of this host.

use std::fs;
use std::path::PathBuf;

use tracing::warn;

use super::{LocalModel, Store, TreeStamp, check_name, tree};
use nereid_model_config::layout::is_directory;
use nereid_request::Status;

/// Most sub-directories that a repository may hold: start-up and polling list them all.
const MODELS_MAX: usize = 100_000;

#[derive(Debug)]
pub struct LocalStore {
    location: String,
    root: PathBuf,
}

impl LocalStore {
    pub fn new(location: &str) -> LocalStore {
        LocalStore { location: location.to_owned(), root: PathBuf::from(location) }
    }
}

impl Store for LocalStore {
    fn location(&self) -> &str {
        &self.location
    }

    fn models(&self) -> Result<Vec<String>, Status> {
        let cannot = |error: std::io::Error| {
            Status::internal(format!("failed to read the model repository '{}': {error}", self.location))
        };
        let metadata = fs::metadata(&self.root);
        let metadata = metadata.map_err(|_| Status::internal(format!("failed to stat file {}", self.location)))?;
        if !metadata.is_dir() {
            return Err(Status::invalid("repository path is not a valid directory"));
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            // What cannot be examined counts as a model, the poll of which fails: an entry that is left out is
            // unloaded. If the repository itself is gone, nothing of the listing holds.
            match is_directory(&self.root, &entry) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(_) if fs::metadata(&self.root).is_ok() => {}
                Err(error) => return Err(cannot(error)),
            }
            match entry.file_name().into_string() {
                Ok(name) => names.push(name),
                Err(name) => {
                    warn!("ignoring '{}' in the model repository: its name is not UTF-8", name.to_string_lossy());
                }
            }
            if names.len() > MODELS_MAX {
                let location = &self.location;
                return Err(Status::internal(format!(
                    "the model repository '{location}' holds more than {MODELS_MAX} directories"
                )));
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn stamp(&self, model: &str) -> Result<Option<TreeStamp>, Status> {
        check_name(model)?;
        tree::stamp(&self.root.join(model), tree::BOUNDS)
    }

    fn holds(&self, model: &str) -> Result<bool, Status> {
        check_name(model)?;
        Ok(self.root.join(model).is_dir())
    }

    fn localize(&self, model: &str) -> Result<LocalModel, Status> {
        check_name(model)?;
        let path = self.root.join(model);
        if !path.is_dir() {
            return Err(Status::not_found(format!("no model directory '{}'", path.display())));
        }
        Ok(LocalModel::of_directory(path))
    }
}
