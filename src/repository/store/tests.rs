//! Directories of this host as repositories, and what a model's tree says of its age.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use super::tree::{self, Bounds};
use super::*;
use crate::request::Code;

/// A directory that goes with its owner.
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

/// Sets the time of whatever `path` leads to.
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
    let text = format!("failed to stat the model repository '{}': ", gone.display());
    assert_eq!(error.code, Code::Internal);
    assert!(error.message.starts_with(&text), "{error}");
    assert_eq!(store.stamp("model"), Ok(None));
    assert_eq!(store.localize("model").expect_err("no model").code, Code::NotFound);
    let file = folder.file("file", "");
    let store = open(file.to_str().expect("UTF-8"), &|_| None).expect("a location");
    assert!(store.models().is_err());
    assert_eq!(store.stamp("model"), Ok(None));
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

#[test]
fn each_part_of_a_tree_has_its_time() {
    let folder = folder();
    let times = [
        ("model/config.pbtxt", 10),
        ("model/configs/custom.pbtxt", 20),
        ("model/1/model.onnx", 30),
        ("model/1/deep/er/weights", 40),
        ("model/0/x", 41),
        ("model/12/x", 42),
        ("model/labels.txt", 50),
        // No versions: a leading zero, a file, a text.
        ("model/01/x", 60),
        ("model/7", 70),
        ("model/v2/x", 65),
    ];
    for (path, _) in times {
        folder.file(path, "");
    }
    for (path, seconds) in times {
        set_time(&folder.path().join(path), seconds);
    }
    let directories = [
        ("1", 1),
        ("1/deep", 2),
        ("1/deep/er", 3),
        ("0", 43),
        ("12", 4),
        ("01", 5),
        ("v2", 6),
        ("configs", 7),
        ("", 80),
    ];
    for (path, seconds) in directories {
        set_time(&folder.path().join("model").join(path), seconds);
    }
    let stamp = local(&folder).stamp("model").expect("a stamp").expect("a model");
    let expected = TreeStamp {
        newest_ns: ns(80),
        config_ns: ns(20),
        versions: BTreeMap::from([(0, ns(43)), (1, ns(40)), (12, ns(42))]),
        rest_ns: ns(70),
    };
    assert_eq!(stamp, expected);
    // A directory named like the configuration is none.
    let second = folder.path().join("second/config.pbtxt");
    fs::create_dir_all(&second).expect("a directory");
    set_time(&second, 5);
    let stamp = local(&folder).stamp("second").expect("a stamp").expect("a model");
    assert_eq!((stamp.config_ns, stamp.rest_ns), (0, ns(5)));
}

#[test]
fn times_are_told_to_the_nanosecond_and_may_lie_before_the_epoch() {
    let folder = folder();
    let path = folder.file("model/config.pbtxt", "");
    let before = SystemTime::UNIX_EPOCH - Duration::from_nanos(1_500_000_001);
    File::open(&path).expect("the file").set_modified(before).expect("a time");
    let stamp = local(&folder).stamp("model").expect("a stamp").expect("a model");
    // Older than nothing at all: such a part counts as one that is not there.
    assert_eq!(stamp.config_ns, 0);
    let after = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_500_000_001);
    File::open(&path).expect("the file").set_modified(after).expect("a time");
    let stamp = local(&folder).stamp("model").expect("a stamp").expect("a model");
    assert_eq!(stamp.config_ns, 1_500_000_001);
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
    assert_eq!(stamp.versions[&1], ns(4_000_000_000));
    assert_eq!(stamp.newest_ns, ns(4_000_000_000));
    assert!(stamp.rest_ns > 0, "a link in a circle counts with its own time");
}

#[test]
fn a_tree_beyond_its_bounds_is_an_error_that_names_where() {
    let folder = folder();
    for number in 0..10 {
        folder.file(&format!("wide/1/{number}"), "");
    }
    folder.file("deep/1/2/3/4/x", "");
    let bounds = Bounds { entries_max: 11, depth_max: 5 };
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
    // Root reads everything.
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
