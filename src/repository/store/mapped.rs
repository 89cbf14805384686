//! A repository with directories that are served under other names than their own.

use std::collections::BTreeMap;

use super::{LocalModel, Store, TreeStamp};
use nereid_request::Status;

/// See the [module](self). Directories that no mapping names keep their own names.
#[derive(Debug)]
pub struct MappedStore {
    store: Box<dyn Store>,
    /// Directories by the names of their models.
    directories: BTreeMap<String, String>,
}

impl MappedStore {
    /// `directories`: by the names of their models.
    pub fn new(store: Box<dyn Store>, directories: BTreeMap<String, String>) -> MappedStore {
        MappedStore { store, directories }
    }

    /// The directory of a model, if it has one: a directory with another name is not found by its own.
    fn directory<'a>(&'a self, model: &'a str) -> Option<&'a str> {
        match self.directories.get(model) {
            Some(directory) => Some(directory),
            None => (!self.directories.values().any(|directory| directory == model)).then_some(model),
        }
    }
}

impl Store for MappedStore {
    fn location(&self) -> &str {
        self.store.location()
    }

    fn models(&self) -> Result<Vec<String>, Status> {
        let mut names = self.store.models()?;
        let held: Vec<String> = names.clone();
        names.retain(|name| self.directory(name).is_some() && !self.directories.contains_key(name));
        let mapped = self.directories.iter().filter(|(_, directory)| held.contains(directory));
        names.extend(mapped.map(|(model, _)| model.clone()));
        names.sort_unstable();
        Ok(names)
    }

    fn stamp(&self, model: &str) -> Result<Option<TreeStamp>, Status> {
        match self.directory(model) {
            Some(directory) => self.store.stamp(directory),
            None => Ok(None),
        }
    }

    fn holds(&self, model: &str) -> Result<bool, Status> {
        self.directory(model).map_or(Ok(false), |directory| self.store.holds(directory))
    }

    fn localize(&self, model: &str) -> Result<LocalModel, Status> {
        let absent = || Status::not_found(format!("no model '{model}' in '{}'", self.location()));
        self.store.localize(self.directory(model).ok_or_else(absent)?)
    }

    fn maps(&self, model: &str) -> bool {
        self.directories.contains_key(model)
    }

    fn mapped_path(&self, model: &str) -> Option<String> {
        self.directories.get(model).map(|directory| format!("{}/{directory}", self.location()))
    }

    fn mapped(&self) -> Vec<String> {
        self.directories.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::local::LocalStore;
    use super::*;

    #[test]
    fn directories_go_by_the_names_they_are_given() {
        let root = std::env::temp_dir().join(format!("nereid-mapped-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for directory in ["model", "part", "taken"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        let mapping = [("hash", "model"), ("taken", "part"), ("ghost", "nowhere")];
        let mapping = mapping.map(|(model, directory)| (model.to_owned(), directory.to_owned()));
        let store = MappedStore::new(Box::new(LocalStore::new(root.to_str().unwrap())), mapping.into());
        assert_eq!(store.models().unwrap(), ["hash", "taken"]);
        for (model, directory) in
            [("hash", Some("model")), ("taken", Some("part")), ("model", None), ("part", None), ("ghost", None)]
        {
            assert_eq!(store.stamp(model).unwrap().is_some(), directory.is_some(), "{model}");
            let local = store.localize(model).ok().map(|local| local.path().to_owned());
            assert_eq!(local, directory.map(|directory| root.join(directory)), "{model}");
        }
        assert!(store.maps("hash") && store.maps("ghost") && !store.maps("model") && !store.maps("x"));
        let plain = MappedStore::new(Box::new(LocalStore::new(root.to_str().unwrap())), BTreeMap::new());
        assert_eq!(plain.models().unwrap(), ["model", "part", "taken"]);
        assert!(plain.stamp("../etc").is_err(), "a name is no path");
        let _ = fs::remove_dir_all(&root);
    }
}
