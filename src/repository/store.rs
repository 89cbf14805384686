//! Model repositories: a directory of this host, or a bucket.
//!
//! The life cycle needs three things of a repository: the models that it holds, whether the files of one changed, and
//! its files as a directory. The form of the location selects the implementation (contract/model_config.md section 4),
//! so that nothing above this module depends on buckets.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use nereid_request::Status;

mod addressing;
mod bucket;
mod client;
mod credentials;
mod environment;
mod failure;
mod key;
mod listing;
mod local;
mod location;
mod mapped;
mod profile;
pub mod scratch;
mod transport;
mod tree;

use bucket::BucketStore;
use environment::Environment;
use local::LocalStore;
pub use mapped::MappedStore;
pub use scratch::{ModelCopy, Scratch};

/// A model repository.
pub trait Store: Send + Sync + Debug {
    /// As the operator wrote it.
    fn location(&self) -> &str;

    /// The names of the sub-directories, sorted; each is a model. Hidden ones are included, plain files are ignored,
    /// and names that are not UTF-8 are skipped with a warning.
    fn models(&self) -> Result<Vec<String>, Status>;

    /// The stamp of a model's tree, without copying it; `None` if there is no such model directory.
    fn stamp(&self, model: &str) -> Result<Option<TreeStamp>, Status>;

    /// Whether there is such a model directory.
    fn holds(&self, model: &str) -> Result<bool, Status> {
        Ok(self.stamp(model)?.is_some())
    }

    /// The model's files as a directory of this host, kept until the value is dropped (temporary copies are removed
    /// then; a local directory is the directory itself).
    fn localize(&self, model: &str) -> Result<LocalModel, Status>;

    /// Whether the model is served under a name that is not that of its directory.
    fn maps(&self, _model: &str) -> bool {
        false
    }

    /// The path of such a model, whether its directory exists or not.
    fn mapped_path(&self, _model: &str) -> Option<String> {
        None
    }

    /// The names of all such models, whether their directories exist or not.
    fn mapped(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Fingerprints of the parts of a model: the parts that changed decide what a reload touches.
///
/// A part changed if anything in it did, even to an older time: a rollback copies the files of the last release with
/// the times that they had (`cp -a`, `rsync -a`, `tar`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TreeStamp {
    /// The newest time of anything in the tree, in ns since the epoch.
    pub newest_ns: i128,
    /// The model's own directory. Its time changes whenever an entry is added or removed.
    own: Fingerprint,
    /// `config.pbtxt` and the files in `configs/`.
    pub config: Fingerprint,
    /// Each version directory with everything in it.
    pub versions: BTreeMap<i64, Fingerprint>,
    /// All else.
    pub rest: Fingerprint,
}

/// Fingerprint of a set of files, independent of the order in which they are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Of one file or directory: its path and everything that changes when another replaces it.
    fn of(looks: impl Hash) -> Fingerprint {
        let mut hasher = DefaultHasher::new();
        looks.hash(&mut hasher);
        Fingerprint(hasher.finish())
    }

    fn add(&mut self, other: Fingerprint) {
        self.0 = self.0.wrapping_add(other.0);
    }
}

/// A model's directory on this host.
#[derive(Debug)]
pub struct LocalModel {
    path: PathBuf,
    /// Removed with the value; `None` where the repository is on this host.
    copy: Option<ModelCopy>,
}

impl LocalModel {
    fn of_directory(path: PathBuf) -> LocalModel {
        LocalModel { path, copy: None }
    }

    fn of_copy(copy: ModelCopy) -> LocalModel {
        LocalModel { path: copy.path().to_owned(), copy: Some(copy) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory is a copy that nothing changes and that is removed with the value.
    pub fn is_copy(&self) -> bool {
        self.copy.is_some()
    }
}

/// Opens the repository at `location`; `environment` returns the variables of contract/cli.md section 4.
///
/// This parses the location, reads its credentials, and removes the copies of models that ended servers left. Whether
/// the repository can be reached shows at its first use.
pub fn open(location: &str, environment: &dyn Fn(&str) -> Option<OsString>) -> Result<Box<dyn Store>, Status> {
    match location::parse(location)? {
        None => Ok(Box::new(LocalStore::new(location))),
        Some(place) => Ok(Box::new(BucketStore::open(location, place, Environment::capture(environment))?)),
    }
}

/// Whether the location is a bucket; the error is that of a location that is neither that nor a directory.
pub fn is_bucket(location: &str) -> Result<bool, Status> {
    Ok(location::parse(location)?.is_some())
}

/// A model is one directory of its repository, never a path that leads elsewhere (contract/schedulers.md section 10).
fn check_name(model: &str) -> Result<(), Status> {
    let leads_elsewhere = model.is_empty() || model == "." || model == ".." || model.contains(['/', '\0']);
    if leads_elsewhere {
        return Err(Status::invalid(format!(
            "invalid model name '{model}', model name must not contain path traversal characters"
        )));
    }
    Ok(())
}

/// The part of a model that the first component of a path within it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TreePart {
    Config,
    Version(i64),
    Rest,
}

impl TreePart {
    /// `is_directory`: of the component itself. Version directories follow contract/model_config.md section 4: an
    /// integer without a leading zero.
    fn of(first_component: &str, is_directory: bool) -> TreePart {
        match first_component {
            "config.pbtxt" if !is_directory => TreePart::Config,
            "configs" if is_directory => TreePart::Config,
            name if is_directory => version_of(name).map_or(TreePart::Rest, TreePart::Version),
            _ => TreePart::Rest,
        }
    }
}

fn version_of(name: &str) -> Option<i64> {
    let has_leading_zero = name.len() > 1 && name.starts_with('0');
    let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    if is_number && !has_leading_zero { name.parse().ok() } else { None }
}

impl TreeStamp {
    /// `part`: none for the model's own directory.
    fn note(&mut self, part: Option<TreePart>, time_ns: i128, fingerprint: Fingerprint) {
        self.newest_ns = self.newest_ns.max(time_ns);
        let slot = match part {
            None => &mut self.own,
            Some(TreePart::Config) => &mut self.config,
            Some(TreePart::Version(version)) => self.versions.entry(version).or_default(),
            Some(TreePart::Rest) => &mut self.rest,
        };
        slot.add(fingerprint);
    }
}

#[cfg(test)]
mod tests;
