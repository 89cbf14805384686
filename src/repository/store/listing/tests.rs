//! Trees from keys, on a store in memory and from objects as services list them.

use object_store::memory::InMemory;
use object_store::{ObjectStoreExt, PutPayload};
use tokio::runtime::{Builder, Runtime};

use super::*;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn key(text: &str) -> Key {
    Key::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// An object as a listing shows it.
fn object(path: &str, size: u64, seconds: i64, e_tag: &str) -> (String, ObjectMeta) {
    let at = format!("1970-01-01T00:{:02}:{:02}Z", seconds / 60, seconds % 60);
    let meta = ObjectMeta {
        location: key(&format!("repo/model/{path}")),
        last_modified: at.parse().expect("a time"),
        size,
        e_tag: Some(e_tag.to_owned()),
        version: None,
    };
    (path.to_owned(), meta)
}

fn listing(objects: &[(String, ObjectMeta)], marked: &[&str]) -> Result<Listing, Failure> {
    let implied = objects.iter().flat_map(|(path, _)| key::parents(path)).collect();
    Listing::of(objects, &implied, &marked.iter().map(|path| (*path).to_owned()).collect())
}

fn stamp(objects: &[(String, ObjectMeta)]) -> TreeStamp {
    listing(objects, &[]).expect("a tree").stamp()
}

fn ns(seconds: i128) -> i128 {
    seconds * 1_000_000_000
}

#[test]
fn directories_follow_from_keys() {
    let store = InMemory::new();
    let listed = runtime().block_on(async {
        for path in ["repo/model/config.pbtxt", "repo/model/1/a/b", "repo/model/1/c", "repo/model2/x", "repo/y"] {
            store.put(&key(path), PutPayload::from_static(b"abc")).await.expect("an object");
        }
        list(&store, &key("repo/model")).await.expect("a listing").expect("a model")
    });
    let mut files: Vec<_> = listed.files.iter().map(|file| (file.path.as_str(), file.size_bytes)).collect();
    files.sort_unstable();
    assert_eq!(files, [("1/a/b", 3), ("1/c", 3), ("config.pbtxt", 3)]);
    assert_eq!(listed.directories.iter().collect::<Vec<_>>(), ["1", "1/a"]);
    let none = runtime().block_on(list(&store, &key("repo/mod"))).expect("a listing");
    assert!(none.is_none(), "a directory is not the beginning of another's name");
}

#[test]
fn an_empty_object_is_a_file_unless_it_is_a_marker() {
    let objects = [
        object("1", 0, 1, "a"),
        object("2", 0, 1, "a"),
        object("3", 0, 1, "a"),
        object("3/model", 5, 1, "b"),
        object("__init__.py", 0, 1, "a"),
    ];
    let listing = listing(&objects, &["2"]).expect("a tree");
    let files: Vec<_> = listing.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(files, ["1", "3/model", "__init__.py"]);
    assert_eq!(listing.directories.iter().collect::<Vec<_>>(), ["2", "3"]);
    let versions = listing.stamp().versions;
    assert_eq!(versions.into_keys().collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn a_file_that_is_a_directory_too_is_refused() {
    let failure = listing(&[object("1", 7, 1, "a"), object("1/model", 5, 1, "b")], &[]).expect_err("both");
    assert_eq!(failure, Failure::BadKey("the key 'repo/model/1' is a file and a directory at once".to_owned()));
}

#[test]
fn parts_are_what_their_objects_are() {
    let mut objects = vec![
        object("config.pbtxt", 1, 10, "a"),
        object("configs/other.pbtxt", 1, 11, "a"),
        object("1/model", 1, 20, "a"),
        object("1/more", 1, 21, "a"),
        object("2/model", 1, 5, "a"),
        object("01/model", 1, 30, "a"),
        object("labels", 1, 4, "a"),
    ];
    let sum = |objects: &[(String, ObjectMeta)]| {
        let mut fingerprint = Fingerprint::default();
        objects.iter().for_each(|(_, object)| fingerprint.add(fingerprint_of(object)));
        fingerprint
    };
    let seen = stamp(&objects);
    assert_eq!((seen.config, seen.rest), (sum(&objects[..2]), sum(&objects[5..])));
    assert_eq!(seen.versions, [(1, sum(&objects[2..4])), (2, sum(&objects[4..5]))].into());
    assert_eq!(seen.newest_ns, ns(30));
    // The model's own marker counts for the whole only.
    let (_, mut own) = object("x", 0, 40, "a");
    own.location = key("repo/model");
    objects.push((String::new(), own));
    let marked = stamp(&objects);
    assert_eq!(marked.newest_ns, ns(40));
    assert_ne!(marked, seen);
    assert_eq!((marked.config, marked.rest, marked.versions), (seen.config, seen.rest, seen.versions));
}

#[test]
fn stamps_change_with_the_objects_and_only_then() {
    let config = object("config.pbtxt", 1, 10, "a");
    let (one, two) = (object("1/model", 1, 20, "a"), object("2/model", 1, 20, "a"));
    let first = stamp(&[config.clone(), one.clone(), two.clone()]);
    // The order of a service's listing does not matter.
    assert_eq!(stamp(&[two.clone(), one.clone(), config.clone()]), first);
    // Replaced within the resolution of S3's times, one second.
    let second = stamp(&[config.clone(), object("1/model", 1, 20, "b"), two.clone()]);
    assert_ne!(second.versions[&1], first.versions[&1]);
    assert_eq!((second.versions[&2], second.config), (first.versions[&2], first.config));
    // Replaced by an older one.
    let third = stamp(&[object("config.pbtxt", 1, 3, "c"), object("1/model", 1, 20, "b"), two.clone()]);
    assert_ne!(third.config, second.config);
    assert_eq!(third.versions, second.versions);
    // One removed, and then its whole version.
    let with = stamp(&[config.clone(), one.clone(), object("1/more", 1, 5, "a"), two.clone()]);
    assert_ne!(with.versions[&1], first.versions[&1]);
    let last = stamp(&[config.clone(), one.clone()]);
    assert_eq!(last.versions.keys().collect::<Vec<_>>(), [&1]);
    assert_eq!(last.versions[&1], first.versions[&1], "the other version is as it was");
}
