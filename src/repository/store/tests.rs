//! Directories of this host as repositories, and the stamps of models' trees.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use super::tree::{self, WalkLimits};
use super::*;
use nereid_request::Code;

/// A directory that is removed with this value.
pub struct Folder(PathBuf);

impl Folder {
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, its directories included.
    pub fn file(&self, path: &str, contents: &str) -> PathBuf {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(&path, contents).expect("a file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn folder() -> Folder {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("nereid-store-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    fs::create_dir(&path).expect("a directory");
    Folder(path)
}

fn local(folder: &Folder) -> Box<dyn Store> {
    open(folder.path().to_str().expect("UTF-8"), &|_| None).expect("a directory")
}

/// Sets the time of the target of `path`.
fn set_time(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    File::open(path).and_then(|file| file.set_modified(time)).unwrap_or_else(|error| panic!("{path:?}: {error}"));
}

fn ns(seconds: i128) -> i128 {
    seconds * 1_000_000_000
}

#[test]
fn every_sub_directory_is_a_model() {
    let folder = folder();
    folder.file("plain/config.pbtxt", "");
    folder.file(".hidden/1/model", "");
    folder.file("file", "");
    fs::create_dir(folder.path().join("empty")).expect("a directory");
    symlink("plain", folder.path().join("link")).expect("a link");
    symlink("nowhere", folder.path().join("dangling")).expect("a link");
    symlink("loop", folder.path().join("loop")).expect("a link");
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::ffi::OsStrExt;
        let name = std::ffi::OsStr::from_bytes(b"not-utf8-\xff");
        fs::create_dir(folder.path().join(name)).expect("a directory");
    }
    let store = local(&folder);
    assert_eq!(store.models(), Ok(vec![".hidden", "empty", "link", "plain"].into_iter().map(str::to_owned).collect()));
    assert_eq!(Path::new(store.location()), folder.path());
}

#[test]
fn a_repository_that_is_not_there_is_an_error_and_its_models_are_none() {
    let folder = folder();
    let gone = folder.path().join("gone");
    let store = open(gone.to_str().expect("UTF-8"), &|_| None).expect("a location");
    let error = store.models().expect_err("no directory");
    assert_eq!(error, Status::internal(format!("failed to stat file {}", gone.display())));
    assert_eq!(store.stamp("model"), Ok(None));
    assert_eq!(store.localize("model").expect_err("no model").code, Code::NotFound);
    let file = folder.file("file", "");
    let store = open(file.to_str().expect("UTF-8"), &|_| None).expect("a location");
    assert_eq!(store.models(), Err(Status::invalid("repository path is not a valid directory")));
    assert_eq!(store.stamp("model"), Ok(None));
}

/// A thread moves the repository away and back again while it is listed.
#[test]
fn a_listing_of_a_repository_that_moves_is_whole_or_an_error() {
    let folder = folder();
    let names: Vec<String> = (10..60).map(|number| format!("model{number}")).collect();
    for name in &names {
        folder.file(&format!("repository/{name}/config.pbtxt"), "");
    }
    symlink("../repository/model10", folder.path().join("repository/model60")).expect("a link");
    let names: Vec<String> = names.into_iter().chain(["model60".to_owned()]).collect();
    let (here, away) = (folder.path().join("repository"), folder.path().join("away"));
    let store = open(here.to_str().expect("UTF-8"), &|_| None).expect("a location");
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            for _ in 0..10_000 {
                fs::rename(&here, &away).expect("move the repository away");
                fs::rename(&away, &here).expect("move the repository back");
            }
        });
        while !mover.is_finished() {
            let Ok(found) = store.models() else { continue };
            // The link leads to where the repository was: it may count as broken if the repository came back since.
            assert_eq!(found[..50], names[..50]);
            assert!(found.len() == 50 || found == names, "{found:?}");
        }
    });
}

/// A link whose target cannot be examined may be a model that serves: its own poll reports the error.
#[test]
fn an_entry_that_cannot_be_examined_is_not_left_out() {
    let folder = folder();
    folder.file("plain/config.pbtxt", "");
    symlink("x".repeat(300), folder.path().join("link")).expect("a link");
    let store = local(&folder);
    assert_eq!(store.models(), Ok(vec!["link".to_owned(), "plain".to_owned()]));
    assert!(store.stamp("link").is_err());
}

#[test]
fn a_local_model_is_its_directory_and_stays() {
    let folder = folder();
    folder.file("model/config.pbtxt", "name");
    let store = local(&folder);
    let model = store.localize("model").expect("a model");
    assert_eq!(model.path(), folder.path().join("model"));
    drop(model);
    assert!(folder.path().join("model/config.pbtxt").exists());
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let folder = folder();
    let store = local(&folder);
    for name in ["", ".", "..", "a/b", "../a", "/etc", "a\0b"] {
        let expected = format!("invalid model name '{name}', model name must not contain path traversal characters");
        assert_eq!(store.stamp(name), Err(Status::invalid(expected.clone())), "{name:?}");
        assert_eq!(store.localize(name).expect_err(name), Status::invalid(expected), "{name:?}");
    }
}

/// The parts with different fingerprints: `config`, `rest`, `own`, and versions by their numbers.
fn changed(one: &TreeStamp, other: &TreeStamp) -> String {
    let versions: BTreeSet<i64> = one.versions.keys().chain(other.versions.keys()).copied().collect();
    let differs = |version: &i64| one.versions.get(version) != other.versions.get(version);
    let versions = versions.into_iter().filter(differs).map(|version| version.to_string());
    let parts =
        [("config", one.config != other.config), ("rest", one.rest != other.rest), ("own", one.own != other.own)];
    let parts = parts.into_iter().filter(|(_, differs)| *differs).map(|(part, _)| part.to_owned());
    parts.chain(versions).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_change_of_anything_changes_its_part_alone() {
    let folder = folder();
    let model = folder.path().join("model");
    let files = [
        "config.pbtxt",
        "configs/custom.pbtxt",
        "1/model.onnx",
        "1/deep/er/weights",
        "0/x",
        "12/x",
        "labels.txt",
        // No versions: a leading zero, a file, a text.
        "01/x",
        "7",
        "v2/x",
    ];
    for path in files {
        folder.file(&format!("model/{path}"), "12345");
    }
    let store = local(&folder);
    let stamp = || store.stamp("model").expect("a stamp").expect("a model");
    let mut before = stamp();
    assert_eq!(before.versions.keys().copied().collect::<Vec<_>>(), [0, 1, 12]);
    assert_eq!(stamp(), before);
    let mut check = |what: &str, expected: &str| {
        let now = stamp();
        assert_eq!(changed(&before, &now), expected, "{what}");
        before = now;
    };
    // Each gets a time long ago: a change counts even if it is not newer.
    for (path, part) in [
        ("config.pbtxt", "config"),
        ("configs/custom.pbtxt", "config"),
        ("configs", "config"),
        ("1/model.onnx", "1"),
        ("1/deep/er", "1"),
        ("12/x", "12"),
        ("0", "0"),
        ("labels.txt", "rest"),
        ("01/x", "rest"),
        ("7", "rest"),
        ("v2", "rest"),
        ("", "own"),
    ] {
        set_time(&model.join(path), 10);
        check(path, part);
    }
    // Another length, with the file's former time and name.
    fs::write(model.join("1/model.onnx"), "123456").expect("a file");
    set_time(&model.join("1/model.onnx"), 10);
    check("length", "1");
    // Another file of the same length and time, as in reproducible archives.
    fs::write(folder.path().join("other"), "54321").expect("a file");
    set_time(&folder.path().join("other"), 10);
    fs::rename(folder.path().join("other"), model.join("12/x")).expect("a move");
    set_time(&model.join("12"), 10);
    check("the time of the version's directory", "12");
    fs::write(folder.path().join("other"), "abcde").expect("a file");
    set_time(&folder.path().join("other"), 10);
    fs::rename(folder.path().join("other"), model.join("12/x")).expect("a move");
    set_time(&model.join("12"), 10);
    check("another file", "12");
    // Another name.
    fs::rename(model.join("0/x"), model.join("0/y")).expect("a move");
    set_time(&model.join("0"), 10);
    check("name", "0");
    fs::remove_dir_all(model.join("12")).expect("a removal");
    set_time(&model, 10);
    check("a version that goes", "12");
    // A directory named like the configuration is no configuration.
    fs::create_dir_all(folder.path().join("second/config.pbtxt")).expect("a directory");
    let stamp = store.stamp("second").expect("a stamp").expect("a model");
    assert_eq!(stamp.config, Fingerprint::default());
    assert_ne!(stamp.rest, Fingerprint::default());
}

#[test]
fn the_newest_time_is_kept_to_the_nanosecond() {
    let folder = folder();
    let path = folder.file("model/config.pbtxt", "");
    let after = SystemTime::UNIX_EPOCH + Duration::new(4_000_000_000, 1);
    File::open(&path).expect("the file").set_modified(after).expect("a time");
    let stamp = local(&folder).stamp("model").expect("a stamp").expect("a model");
    assert_eq!(stamp.newest_ns, ns(4_000_000_000) + 1);
    let before = SystemTime::UNIX_EPOCH - Duration::from_nanos(1_500_000_001);
    File::open(&path).expect("the file").set_modified(before).expect("a time");
    let older = local(&folder).stamp("model").expect("a stamp").expect("a model");
    assert_eq!(changed(&stamp, &older), "config");
}

#[test]
fn links_are_followed_but_never_in_circles() {
    let folder = folder();
    let outside = super::tests::folder();
    let weights = outside.file("store/weights", "");
    folder.file("model/1/model.onnx", "");
    let model = folder.path().join("model");
    symlink(outside.path().join("store"), model.join("1/linked")).expect("a link");
    symlink(&model, model.join("1/circle")).expect("a link");
    symlink("circle", model.join("circle")).expect("a link");
    symlink("/nowhere/at/all", model.join("1/dangling")).expect("a link");
    set_time(&weights, 4_000_000_000);
    let stamp = local(&folder).stamp("model").expect("a stamp").expect("a model");
    assert_eq!(stamp.newest_ns, ns(4_000_000_000));
    assert_ne!(stamp.rest, Fingerprint::default(), "a link in a circle counts itself");
    set_time(&weights, 10);
    let older = local(&folder).stamp("model").expect("a stamp").expect("a model");
    assert_eq!(changed(&stamp, &older), "1");
}

#[test]
fn a_tree_beyond_its_bounds_is_an_error_that_names_where() {
    let folder = folder();
    for number in 0..10 {
        folder.file(&format!("wide/1/{number}"), "");
    }
    folder.file("deep/1/2/3/4/x", "");
    let bounds = WalkLimits { entries_max: 11, depth_max: 5 };
    let at = |model: &str| tree::stamp(&folder.path().join(model), bounds);
    assert!(at("wide").expect("within bounds").is_some());
    assert!(at("deep").expect("within bounds").is_some());
    folder.file("wide/1/one-more", "");
    let error = at("wide").expect_err("too many");
    let place = folder.path().join("wide/1");
    assert_eq!(error.message, format!("the model's tree holds more than 11 entries, at '{}'", place.display()));
    folder.file("deep/1/2/3/4/5/x", "");
    let error = at("deep").expect_err("too deep");
    let place = folder.path().join("deep/1/2/3/4/5");
    assert_eq!(error.message, format!("directories lie more than 5 deep, at '{}'", place.display()));
}

#[test]
fn a_folder_that_cannot_be_read_is_an_error_that_names_it() {
    let folder = folder();
    folder.file("model/1/model.onnx", "");
    let locked = folder.path().join("model/1");
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).expect("a mode");
    // Root can read everything.
    let is_readable = fs::read_dir(&locked).is_ok();
    let stamp = local(&folder).stamp("model");
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o755)).expect("a mode");
    match stamp {
        Err(error) => {
            let start = format!("failed to read directory '{}': ", locked.display());
            assert!(!is_readable && error.message.starts_with(&start), "{error}");
        }
        Ok(stamp) => assert!(is_readable && stamp.is_some()),
    }
}

#[test]
fn a_model_that_is_a_file_is_none() {
    let folder = folder();
    folder.file("model", "");
    assert_eq!(local(&folder).stamp("model"), Ok(None));
}
