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

fn stamp(seen: &mut Seen, objects: &[(String, ObjectMeta)]) -> TreeStamp {
    listing(objects, &[]).expect("a tree").stamp(seen)
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
fn an_empty_object_is_a_file_unless_it_is_known_for_a_marker() {
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
    let versions = listing.stamp(&mut Seen::default()).versions;
    assert_eq!(versions.into_keys().collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn a_file_that_is_a_directory_too_is_refused() {
    let failure = listing(&[object("1", 7, 1, "a"), object("1/model", 5, 1, "b")], &[]).expect_err("both");
    assert_eq!(failure, Failure::BadKey("the key 'repo/model/1' is a file and a directory at once".to_owned()));
}

#[test]
fn parts_have_the_times_of_their_newest_objects() {
    let mut objects = vec![
        object("config.pbtxt", 1, 10, "a"),
        object("configs/other.pbtxt", 1, 11, "a"),
        object("1/model", 1, 20, "a"),
        object("1/more", 1, 21, "a"),
        object("2/model", 1, 5, "a"),
        object("01/model", 1, 30, "a"),
        object("labels", 1, 4, "a"),
    ];
    // The model's own marker counts for the whole only.
    let (_, mut own) = object("x", 0, 40, "a");
    own.location = key("repo/model");
    objects.push((String::new(), own));
    let expected = TreeStamp {
        newest_ns: ns(40),
        config_ns: ns(11),
        versions: BTreeMap::from([(1, ns(21)), (2, ns(5))]),
        rest_ns: ns(30),
    };
    assert_eq!(stamp(&mut Seen::default(), &objects), expected);
}

#[test]
fn times_move_with_the_objects_and_only_then() {
    let config = object("config.pbtxt", 1, 10, "a");
    let (one, two) = (object("1/model", 1, 20, "a"), object("2/model", 1, 20, "a"));
    let mut seen = Seen::default();
    let first = stamp(&mut seen, &[config.clone(), one.clone(), two.clone()]);
    // The order in which a service lists is nothing.
    assert_eq!(stamp(&mut seen, &[two.clone(), one.clone(), config.clone()]), first);

    // Replaced within the second that S3 counts in.
    let second = stamp(&mut seen, &[config.clone(), object("1/model", 1, 20, "b"), two.clone()]);
    assert_eq!(second.versions, BTreeMap::from([(1, ns(20) + 1), (2, ns(20))]));
    assert_eq!((second.newest_ns, second.config_ns), (ns(20) + 1, ns(10)));

    // Replaced by an older one.
    let third = stamp(&mut seen, &[object("config.pbtxt", 1, 3, "c"), object("1/model", 1, 20, "b"), two.clone()]);
    assert_eq!((third.newest_ns, third.config_ns), (ns(20) + 2, ns(10) + 1));
    assert_eq!(third.versions, second.versions);

    // One gone, and then its whole version.
    let more = [config.clone(), one.clone(), object("1/more", 1, 5, "a"), two.clone()];
    let with = stamp(&mut seen, &more);
    let without = stamp(&mut seen, &[config.clone(), one.clone(), two.clone()]);
    assert!(without.versions[&1] > with.versions[&1] && without.newest_ns > with.newest_ns);
    let last = stamp(&mut seen, &[config.clone(), one.clone()]);
    assert!(last.newest_ns > without.newest_ns);
    assert_eq!(last.versions.keys().collect::<Vec<_>>(), [&1]);
    assert_eq!(last.versions[&1], without.versions[&1], "the other version is as it was");
}
