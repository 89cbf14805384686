//! The tree of a model as its objects' keys imply it.
//!
//! A bucket has no directories. They follow from keys (`model/1/model.onnx`), and tools leave empty objects with keys
//! that end in `/` to mark directories without files, which a repository may need: a version without files is a
//! version.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::path::Path as Key;
use object_store::{ObjectMeta, ObjectStore};

use super::failure::Failure;
use super::key;
use super::{Fingerprint, TreePart, TreeStamp};

/// Most objects of one model; each costs memory while it is listed.
const OBJECTS_MAX: usize = 100_000;

/// Time limit for all pages of one listing together.
pub const LIST_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub struct Listing {
    pub files: Vec<RemoteFile>,
    /// All directories but the model's own.
    pub directories: BTreeSet<String>,
    marks: Vec<ListedObject>,
}

/// An object that is a file.
#[derive(Debug, Clone)]
pub struct RemoteFile {
    pub key: Key,
    /// Relative to the model's directory.
    pub path: String,
    pub size_bytes: u64,
}

/// Fingerprint of an object when it was listed, file or marker.
#[derive(Debug)]
struct ListedObject {
    path: String,
    is_directory: bool,
    modified_ns: i128,
    fingerprint: Fingerprint,
}

/// Lists the objects in `directory`; `None` if there are none.
pub async fn list(store: &dyn ObjectStore, directory: &Key) -> Result<Option<Listing>, Failure> {
    match tokio::time::timeout(LIST_TIMEOUT, list_all(store, directory)).await {
        Ok(listing) => listing,
        Err(_) => Err(Failure::TooSlow(LIST_TIMEOUT)),
    }
}

async fn list_all(store: &dyn ObjectStore, directory: &Key) -> Result<Option<Listing>, Failure> {
    let mut objects: Vec<(String, ObjectMeta)> = Vec::new();
    let mut pages = store.list(Some(directory));
    while let Some(object) = pages.try_next().await.map_err(|error| Failure::of(&error))? {
        if objects.len() == OBJECTS_MAX {
            return Err(Failure::BadKey(format!("it holds more than {OBJECTS_MAX} objects")));
        }
        let path = key::below(directory, &object.location)
            .map_err(|cause| Failure::BadKey(format!("the key '{}' cannot be a file: {cause}", object.location)))?;
        objects.push((path.to_owned(), object));
    }
    if objects.is_empty() {
        return Ok(None);
    }
    let implied: BTreeSet<&str> = objects.iter().flat_map(|(path, _)| key::parents(path)).collect();
    let marked = marked_directories(store, directory, &objects, &implied).await?;
    Listing::of(&objects, &implied, &marked).map(Some)
}

/// The empty objects that are markers. The crate drops the `/` that separates a marker's key from a file's, so where an
/// empty object has nothing below it, its directory is listed once more: there a marker shows as a common prefix.
async fn marked_directories(
    store: &dyn ObjectStore,
    directory: &Key,
    objects: &[(String, ObjectMeta)],
    implied: &BTreeSet<&str>,
) -> Result<BTreeSet<String>, Failure> {
    let in_doubt = objects
        .iter()
        .filter(|(path, object)| object.size == 0 && !path.is_empty() && !implied.contains(path.as_str()));
    let parents: BTreeSet<&str> =
        in_doubt.map(|(path, _)| path.rsplit_once('/').map_or("", |(parent, _)| parent)).collect();
    let mut marked = BTreeSet::new();
    for parent in parents {
        let parent = match (directory.as_ref(), parent) {
            (directory, "") => Key::parse(directory),
            ("", parent) => Key::parse(parent),
            (directory, parent) => Key::parse(format!("{directory}/{parent}")),
        };
        let parent = parent.map_err(|error| Failure::of(&error.into()))?;
        let listed = store.list_with_delimiter(Some(&parent)).await.map_err(|error| Failure::of(&error))?;
        for prefix in &listed.common_prefixes {
            marked.extend(key::below(directory, prefix).ok().map(str::to_owned));
        }
    }
    Ok(marked)
}

impl Listing {
    fn of(
        objects: &[(String, ObjectMeta)],
        implied: &BTreeSet<&str>,
        marked: &BTreeSet<String>,
    ) -> Result<Listing, Failure> {
        let mut listing = Listing::default();
        listing.directories.extend(implied.iter().map(|path| (*path).to_owned()));
        for (path, object) in objects {
            let is_implied = implied.contains(path.as_str());
            let is_directory = path.is_empty() || (object.size == 0 && (is_implied || marked.contains(path)));
            listing.marks.push(ListedObject {
                path: path.clone(),
                is_directory,
                modified_ns: modified_ns(object),
                fingerprint: fingerprint_of(object),
            });
            if is_directory {
                listing.directories.extend((!path.is_empty()).then(|| path.clone()));
            } else if is_implied {
                return Err(Failure::BadKey(format!(
                    "the key '{}' is a file and a directory at once",
                    object.location
                )));
            } else {
                let (key, size_bytes) = (object.location.clone(), object.size);
                listing.files.push(RemoteFile { key, path: path.clone(), size_bytes });
            }
        }
        Ok(listing)
    }

    /// The stamp of the model. A bucket has no times of directories, and S3 counts in seconds, so an object that is
    /// replaced twice in one second keeps its time; its entity tag differs.
    pub fn stamp(&self) -> TreeStamp {
        let mut stamp = TreeStamp::default();
        for mark in &self.marks {
            let (first, below) = mark.path.split_once('/').map_or((mark.path.as_str(), ""), |parts| parts);
            let part = (!first.is_empty()).then(|| TreePart::of(first, mark.is_directory || !below.is_empty()));
            stamp.note(part, mark.modified_ns, mark.fingerprint);
        }
        stamp
    }
}

fn modified_ns(object: &ObjectMeta) -> i128 {
    let at = object.last_modified;
    i128::from(at.timestamp()) * 1_000_000_000 + i128::from(at.timestamp_subsec_nanos())
}

fn fingerprint_of(object: &ObjectMeta) -> Fingerprint {
    Fingerprint::of((object.location.as_ref(), object.size, modified_ns(object), &object.e_tag))
}

#[cfg(test)]
mod tests;
