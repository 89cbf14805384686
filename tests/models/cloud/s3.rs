//! A repository in S3: listed, dated, copied.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use nereid_request::{Code, Status};
use tritonserver::repository::store::{Fingerprint, Store, TreeStamp};

use super::stands::{Mount, Stands, open, tree};

/// Three models, with what tools and people leave in buckets.
fn fill(stands: &mut Stands) {
    for (key, content) in [
        ("repo/", &b""[..]),
        ("repo/plain/config.pbtxt", b"name: \"plain\""),
        ("repo/plain/1/model.onnx", b"one"),
        ("repo/plain/2/model.onnx", b"two"),
        ("repo/plain/2/deep/er/weights", b"weights"),
        ("repo/plain/labels.txt", b"a\nb"),
        ("repo/plain/2/empty", b""),
        ("repo/marked/", b""),
        ("repo/marked/config.pbtxt", b"name: \"marked\""),
        ("repo/marked/1/", b""),
        ("repo/.hidden/1/a b%20c+d\u{fc}#?&=", b"odd"),
        ("repo/file", b"no model"),
        ("elsewhere/model/config.pbtxt", b""),
        ("repository/model/config.pbtxt", b""),
    ] {
        stands.put(key, content);
    }
    let large: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
    stands.put("repo/plain/1/large", &large);
}

fn stamp(store: &dyn Store, model: &str) -> TreeStamp {
    store.stamp(model).expect("a stamp").expect("a model")
}

#[test]
fn a_repository_is_listed_and_its_models_are_copied() {
    let Some(mut stands) = Stands::start() else { return };
    fill(&mut stands);
    stands.sign(true);
    let mount = Mount::new();
    let location = stands.s3_location("models/repo");
    let store = open(&location, &mount, &stands.s3_keys()).expect("a store");
    assert_eq!(store.location(), location);
    assert_eq!(store.models().expect("models"), [".hidden", "marked", "plain"]);

    let plain = store.localize("plain").expect("a copy");
    assert!(plain.path().starts_with(mount.path()) && plain.path().ends_with("plain"));
    let expected = [
        "1",
        "1/large",
        "1/model.onnx",
        "2",
        "2/deep",
        "2/deep/er",
        "2/deep/er/weights",
        "2/empty",
        "2/model.onnx",
        "config.pbtxt",
        "labels.txt",
    ];
    assert_eq!(tree(plain.path()), expected);
    let read = |path: &str| fs::read(plain.path().join(path)).expect("a file");
    assert_eq!(read("2/deep/er/weights"), b"weights");
    assert_eq!(read("2/empty"), b"");
    let large = read("1/large");
    assert!(large.len() == 3_000_000 && large.iter().zip(0u32..).all(|(byte, at)| u32::from(*byte) == at % 251));
    let mode = |path: &str| fs::metadata(plain.path().join(path)).expect("metadata").permissions().mode() & 0o777;
    assert_eq!((mode("2/deep"), mode("labels.txt")), (0o700, 0o600));

    // A marker makes a directory without files; keys are names, whatever is in them.
    let marked = store.localize("marked").expect("a copy");
    assert_eq!(tree(marked.path()), ["1", "config.pbtxt"]);
    assert!(marked.path().join("1").is_dir());
    let hidden = store.localize(".hidden").expect("a copy");
    assert_eq!(tree(hidden.path()), ["1", "1/a b%20c+d\u{fc}#?&="]);

    // Each copy goes with its owner, and all that is left with the last.
    let path = plain.path().to_owned();
    drop(plain);
    assert!(!path.exists());
    drop(store);
    assert!(marked.path().join("config.pbtxt").exists(), "a copy outlives its store");
    drop((marked, hidden));
    assert_eq!(mount.tree(), [""; 0]);
}

#[test]
fn a_model_that_is_not_there_is_none() {
    let Some(mut stands) = Stands::start() else { return };
    fill(&mut stands);
    let mount = Mount::new();
    let store = open(&stands.s3_location("models/repo"), &mount, &stands.s3_keys()).expect("a store");
    // Neither the beginning of a name nor a plain file is a model.
    for name in ["pla", "file", "nobody", "model", "a\u{1}b"] {
        assert_eq!(store.stamp(name), Ok(None), "{name:?}");
        let text = format!("directory or file does not exist at {}/{name}", stands.s3_location("models/repo"));
        assert_eq!(store.localize(name).expect_err(name), Status::internal(text), "{name:?}");
    }
    assert_eq!(store.stamp("..").expect_err("a path").code, Code::InvalidArg);
    // A place without objects is a repository without models.
    let empty = open(&stands.s3_location("models/nothing/here"), &mount, &stands.s3_keys()).expect("a store");
    assert_eq!(empty.models().expect("no models"), [""; 0]);
    // The bucket itself may be the repository.
    let whole = open(&stands.s3_location("models"), &mount, &stands.s3_keys()).expect("a store");
    assert_eq!(whole.models().expect("models"), ["elsewhere", "repo", "repository"]);
    assert!(whole.localize("elsewhere").expect("a copy").path().join("model/config.pbtxt").exists());
}

#[test]
fn what_changes_looks_different_and_nothing_else() {
    let Some(mut stands) = Stands::start() else { return };
    fill(&mut stands);
    let mount = Mount::new();
    let store = open(&stands.s3_location("models/repo"), &mount, &stands.s3_keys()).expect("a store");
    let first = stamp(&*store, "plain");
    let versions: Vec<i64> = first.versions.keys().copied().collect();
    assert_eq!(versions, [1, 2]);
    let parts = [first.config, first.rest, first.versions[&1], first.versions[&2]];
    assert!(parts.iter().all(|part| *part != Fingerprint::default()) && first.newest_ns > 0, "{first:?}");
    assert_eq!(stamp(&*store, "plain"), first, "asking changes nothing");
    let marked = stamp(&*store, "marked");
    assert_eq!(marked.versions.keys().collect::<Vec<_>>(), [&1], "a marked version is one");

    // Uploaded again, most likely within the same second.
    stands.put("repo/plain/2/model.onnx", b"more");
    let second = stamp(&*store, "plain");
    assert!(second.versions[&2] != first.versions[&2]);
    assert_eq!(second.versions[&1], first.versions[&1]);
    assert_eq!((second.config, second.rest), (first.config, first.rest));

    stands.put("repo/plain/config.pbtxt", b"name: \"plain\" max_batch_size: 1");
    let third = stamp(&*store, "plain");
    assert_ne!(third.config, second.config);
    assert_eq!((third.rest, &third.versions), (second.rest, &second.versions));

    // A whole version comes, and one goes.
    stands.put("repo/plain/3/model.onnx", b"three");
    let fourth = stamp(&*store, "plain");
    assert!(fourth.versions.contains_key(&3));
    stands.delete("repo/plain/3/model.onnx");
    let fifth = stamp(&*store, "plain");
    assert_ne!(fifth, fourth, "what goes is a change");
    assert_eq!(fifth.versions, third.versions);
    assert_eq!(stamp(&*store, "marked"), marked, "the other model is as it was");

    // And the copy holds what is there now.
    let copy = store.localize("plain").expect("a copy");
    assert_eq!(fs::read(copy.path().join("2/model.onnx")).expect("a file"), b"more");
    assert!(!copy.path().join("3").exists());
}

#[test]
fn keys_that_cannot_be_files_fail_their_model_only() {
    let Some(mut stands) = Stands::start() else { return };
    let long = format!("repo/long/1/{}", "x".repeat(256));
    for key in ["repo/good/config.pbtxt", "repo/both/1", "repo/both/1/model", "repo/up/1/../../escaped", &long] {
        stands.put(key, b"content");
    }
    let mount = Mount::new();
    let store = open(&stands.s3_location("models/repo"), &mount, &stands.s3_keys()).expect("a store");
    assert_eq!(store.models().expect("models"), ["both", "good", "long", "up"]);
    for (model, text) in [
        ("both", "is a file and a directory at once"),
        ("up", "repo/up/1/../../escaped"),
        ("long", "a part of it is longer than 255 bytes"),
    ] {
        let error = store.stamp(model).expect_err(model);
        assert!(error.message.contains(text) && error.message.contains(&format!("'{model}' of")), "{error}");
        assert_eq!(store.localize(model).expect_err(model), error);
    }
    assert_eq!(tree(store.localize("good").expect("a copy").path()), ["config.pbtxt"]);
    let leftover: Vec<String> = mount.tree().into_iter().filter(|path| path.contains('/')).collect();
    assert_eq!(leftover, [""; 0], "nothing of a failed copy stays");
}

#[test]
fn several_threads_ask_one_store() {
    let Some(mut stands) = Stands::start() else { return };
    fill(&mut stands);
    let mount = Mount::new();
    let store = open(&stands.s3_location("models/repo"), &mount, &stands.s3_keys()).expect("a store");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for model in ["plain", "marked", ".hidden"] {
                    let copy = store.localize(model).expect("a copy");
                    assert!(!tree(copy.path()).is_empty());
                    stamp(&*store, model);
                }
            });
        }
    });
}
