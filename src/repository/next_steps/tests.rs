//! Usual mistakes, planted one by one in a model's directory.

use super::*;
use std::collections::BTreeMap;
use std::path::PathBuf;

use super::super::models::{ModelEntry, ModelId, UNLOADED, VersionState};

/// A directory for one model and for libraries of backends, removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("nereid-next-steps-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("m")).unwrap();
        Scratch(path)
    }

    fn file(&self, path: &str, text: &str) -> &Scratch {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    /// The steps, with the model's directory as `~` and that of the backends as `#`.
    fn steps(&self) -> Vec<String> {
        let (model, backends) = (self.0.join("m"), self.0.join("backends"));
        let steps = FailedModel::read("m", &model, None, &backends).steps();
        let short = |step: String| {
            step.replace(&model.display().to_string(), "~").replace(&backends.display().to_string(), "#")
        };
        steps.into_iter().map(short).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_mistyped_backend_is_named_with_the_one_that_was_meant() {
    let scratch = Scratch::new("typo");
    scratch.file("m/config.pbtxt", "backend: \"onnxruntim\"").file("m/1/model.onnx", "x");
    let steps = scratch.steps();
    assert_eq!(steps[0], "no backend is called \"onnxruntim\"; did you mean \"onnxruntime\"?");
    assert_eq!(
        steps[1],
        "the backend \"onnxruntim\" is not built in; searched were libtriton_onnxruntim.so in ~/1, ~ and \
         #/onnxruntim, and model.py in #/onnxruntim: put one there, or name another directory with --backend-directory"
    );
    assert_eq!(steps.len(), 2, "{steps:?}");
    // An installed one is meant as well.
    scratch.file("backends/custom/libtriton_custom.so", "").file("m/config.pbtxt", "backend: \"costum\"");
    assert!(scratch.steps()[0].ends_with("; did you mean \"custom\"?"), "{:?}", scratch.steps());
    scratch.file("m/config.pbtxt", "backend: \"custom\"");
    assert_eq!(scratch.steps(), [""; 0], "it is there");
}

#[test]
fn a_framework_without_a_backend_can_be_exported() {
    let scratch = Scratch::new("framework");
    // Of the frameworks with a known file, one that is not built in.
    let absent = model_files().find(|file| !has(&NATIVE_NAMES, file.backend));
    let Some(file) = absent else { return };
    scratch.file("m/config.pbtxt", &format!("backend: \"{}\"", file.backend)).file("m/1/x", "");
    let steps = scratch.steps();
    let export = "or export the model to ONNX as 1/model.onnx, for backend: \"onnxruntime\", which is built in";
    assert!(steps.iter().any(|step| step == export), "{steps:?}");
}

#[test]
fn a_mistyped_platform_is_named_with_the_one_that_was_meant() {
    let scratch = Scratch::new("platform");
    scratch.file("m/config.pbtxt", "platform: \"onnxruntime_onx\"").file("m/1/model.onnx", "x");
    let steps = scratch.steps();
    let expected = "no backend has the platform \"onnxruntime_onx\"; did you mean \"onnxruntime_onnx\"";
    assert!(steps[0].starts_with(expected), "{steps:?}");
    scratch.file("m/config.pbtxt", "platform: \"something else\"");
    assert!(scratch.steps()[0].ends_with("; leave it out and give backend: \"<name>\""), "{:?}", scratch.steps());
}

#[test]
fn a_model_file_in_the_wrong_place_is_found() {
    let scratch = Scratch::new("place");
    scratch.file("m/config.pbtxt", "backend: \"onnxruntime\"").file("m/model.onnx", "x").file("m/1/.keep", "");
    let beside = "a model's file belongs into its version directory: move ~/model.onnx to ~/1/model.onnx";
    assert_eq!(scratch.steps(), [beside]);
    // Without a version directory both are missing.
    std::fs::remove_dir_all(scratch.0.join("m/1")).unwrap();
    let version = "make a version directory, ~/1, and put the model's files into it";
    assert_eq!(scratch.steps(), [version, beside]);
    // Without a configuration, too.
    std::fs::remove_file(scratch.0.join("m/config.pbtxt")).unwrap();
    assert_eq!(scratch.steps(), [version, beside]);
    // Another name with the same form.
    let scratch = Scratch::new("name");
    scratch.file("m/config.pbtxt", "backend: \"onnxruntime\"").file("m/1/net.onnx", "x");
    assert_eq!(
        scratch.steps(),
        ["~/1 has no model.onnx: rename net.onnx to model.onnx, or give default_model_filename: \"net.onnx\""]
    );
    scratch.file("m/config.pbtxt", "backend: \"onnxruntime\" default_model_filename: \"net.onnx\"");
    assert_eq!(scratch.steps(), [""; 0]);
    let scratch = Scratch::new("absent");
    scratch.file("m/config.pbtxt", "backend: \"python\"").file("m/1/.keep", "");
    assert_eq!(scratch.steps(), ["put the model's file, model.py, into ~/1"]);
    scratch.file("m/config.pbtxt", "").file("m/1/weights.bin", "");
    let steps = scratch.steps();
    assert!(steps[0].starts_with("give backend: \"<name>\" in ~/config.pbtxt, or name the file in ~/1"), "{steps:?}");
    assert!(steps[0].contains("model.onnx (onnxruntime)"), "{steps:?}");
    // A backend without files.
    scratch.file("m/config.pbtxt", "backend: \"identity\"");
    assert_eq!(scratch.steps(), [""; 0]);
}

#[test]
fn version_directories_have_numbers() {
    for (name, meant) in [("v1", "1"), ("01", "1"), ("version-12", "12"), ("latest", "1"), ("1a2", "1"), ("00", "1")] {
        let scratch = Scratch::new("versions");
        scratch.file("m/config.pbtxt", "backend: \"identity\"").file(&format!("m/{name}/x"), "");
        let expected =
            format!("the name of a version directory is a number without leading zeros: rename ~/{name} to ~/{meant}");
        assert_eq!(scratch.steps(), [expected]);
    }
}

#[test]
fn a_configuration_belongs_beside_the_versions() {
    let scratch = Scratch::new("configuration");
    scratch.file("m/1/config.pbtxt", "backend: \"identity\"").file("m/1/model.onnx", "x");
    assert_eq!(
        scratch.steps(),
        ["a model has one configuration for all versions: move ~/1/config.pbtxt to ~/config.pbtxt"]
    );
    scratch.file("m/config.pbtxt", "backend: \"identity\"");
    assert_eq!(scratch.steps(), ["~/1/config.pbtxt is not read, ~/config.pbtxt is: merge the two"]);
    // Nothing is guessed from a configuration that cannot be read.
    std::fs::remove_file(scratch.0.join("m/1/config.pbtxt")).unwrap();
    scratch.file("m/config.pbtxt", "bakend: \"identity\"");
    assert_eq!(scratch.steps(), [""; 0]);
    let step = of_repository(&scratch.0.join("m")).unwrap();
    assert!(step.contains("makes") && step.ends_with("give the directory above it"), "{step}");
    assert_eq!(of_repository(&scratch.0), None);
}

#[test]
fn an_unknown_model_is_compared_with_the_known_ones() {
    let known: BTreeSet<String> = ["simple", "digits"].map(str::to_owned).into();
    let step = |name: &str| of_unknown_model(name, &known);
    assert_eq!(step("simpel"), "no repository has a directory 'simpel'; did you mean \"simple\"?");
    assert_eq!(step("other"), "no repository has a directory 'other'; the repositories have digits, simple");
    let none = of_unknown_model("other", &BTreeSet::new());
    assert_eq!(none, "no repository has a directory 'other'; the repositories have no models");
    let many: BTreeSet<String> = (100..200).map(|number| format!("model-{number}")).collect();
    assert!(of_unknown_model("other", &many).ends_with(" model-115 and 84 more"));
}

#[test]
fn a_request_without_a_model_learns_its_state() {
    let entry = |versions: &[(i64, VersionState)], reason: &str| ModelEntry {
        versions: versions.iter().cloned().collect(),
        reason: reason.to_owned(),
        ..ModelEntry::default()
    };
    let id = |name: &str| ModelId { name: name.to_owned(), namespace: String::new() };
    let failed = VersionState::Unavailable("Internal: broken".to_owned());
    let unloaded = VersionState::Unavailable(UNLOADED.to_owned());
    let entries: BTreeMap<ModelId, ModelEntry> = [
        (id("failed"), entry(&[(1, failed), (2, VersionState::Loading)], "")),
        (id("gone"), entry(&[(3, unloaded)], "")),
        (id("never"), entry(&[], "Not found: nothing")),
    ]
    .into();
    let models = ModelMap::new(entries, false);
    let step = |name: &str, version: Option<i64>| of_request(&models, name.as_bytes(), version);
    let at_any_time = "; POST /v2/repository/index reports it at any time";
    for (name, version, expected) in [
        ("failde", None, "no model is called 'failde'; did you mean \"failed\"?".to_owned()),
        ("other", None, "no model is called 'other'; the server has failed, gone, never".to_owned()),
        ("failed", Some(1), format!("model 'failed': version 1 is UNAVAILABLE: Internal: broken{at_any_time}")),
        ("failed", Some(9), "model 'failed' has the versions 1, 2".to_owned()),
        ("gone", None, format!("model 'gone': version 3 is UNAVAILABLE: unloaded{at_any_time}")),
        ("never", None, "model 'never' is not loaded: Not found: nothing".to_owned()),
    ] {
        assert_eq!(step(name, version), expected);
    }
    let both = format!("model 'failed': version 1 is UNAVAILABLE: Internal: broken; version 2 is LOADING{at_any_time}");
    assert_eq!(step("failed", None), both);
}
