//! Inspections of directories of models, whole and broken.

use super::*;
// A test opens a file that is no library, which the loader refuses.
#[cfg(test)]
use crate::abi::LIBRARIES;
use nereid_model_config::provenance::{Source, fields};

/// A directory that is removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("nereid-inspect-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("1")).unwrap();
        Scratch(path)
    }

    fn config(self, text: &str) -> Scratch {
        std::fs::write(self.0.join("config.pbtxt"), text).unwrap();
        self
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn nothing(_: &str) -> Vec<(String, String)> {
    Vec::new()
}

fn inspector(auto_complete: bool) -> Inspector<'static> {
    Inspector::new(None, auto_complete, Path::new("/nonexistent"), &nothing, 2, Arc::default(), LIBRARIES.plugins)
}

/// The problems, with the directory written as `~`.
fn problems(seen: &Inspection) -> Vec<String> {
    let directory = seen.directory.display().to_string();
    seen.problems.iter().map(|problem| problem.to_string().replace(&directory, "~")).collect()
}

const GOOD: &str = "backend: \"identity\"
max_batch_size: 4
input { name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] label_filename: \"l.txt\" }
instance_group [ { count: 2 }, { name: \"g\" kind: KIND_CPU passive: true } ]
";

#[test]
fn a_model_that_would_load() {
    let model = Scratch::new("good").config(GOOD);
    std::fs::create_dir_all(model.0.join("3")).unwrap();
    std::fs::create_dir_all(model.0.join("draft")).unwrap();
    std::fs::write(model.0.join("l.txt"), "a\nb\n").unwrap();
    let inspector = inspector(true);
    let mut seen = inspector.inspect("m", &model.0, None);
    assert_eq!(problems(&seen), [""; 0]);
    assert_eq!((&seen.versions[..], &seen.chosen[..]), (&[1, 3][..], &[3][..]));
    assert_eq!(seen.backend, BackendLocation::BuiltIn);
    assert_eq!(seen.labels, [LabelFile { output: "OUTPUT0".into(), file: "l.txt".into(), labels: 2 }]);
    assert_eq!(seen.warnings, ["ignore version directory 'draft' which fails to convert to integral number"]);
    let spec = seen.spec.clone().unwrap();
    let names: Vec<&str> = spec.instances.iter().map(|instance| instance.name.as_str()).collect();
    assert_eq!(names, ["m_0_0", "m_0_1", "g_0"]);
    inspector.complete(&mut seen);
    assert_eq!(problems(&seen), [""; 0]);
    assert!(seen.spec.is_some());
    let fields = fields(&seen.stages, seen.positions.as_ref()).unwrap();
    let source = |path: &str| fields.iter().find(|field| field.path == path).unwrap().source;
    assert_eq!(source("name"), Source::Default("the directory's name"));
    assert!(matches!(source("max_batch_size"), Source::File(place) if place.field.line == 2));
}

#[test]
fn all_that_is_wrong_comes_at_once_with_its_place() {
    let model = Scratch::new("bad").config(
        "name: \"other\"\nbackend: \"identity\"\nmax_batch_size: -1\n\
         model_repository_agents { agents { name: \"a\" } }\n\
         version_policy { specific { versions: 7 } }\n\
         input { name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }\n\
         output { name: \"OUTPUT0\"\n data_type: TYPE_FP32 dims: [ 0 ] label_filename: \"absent.txt\" }\n\
         instance_group { }\n instance_group { kind: KIND_GPU }\n",
    );
    let seen = inspector(true).inspect("m", &model.0, None);
    assert!(seen.spec.is_none() && !seen.would_load());
    assert_eq!(
        problems(&seen),
        [
            "~/config.pbtxt:5:1: at least one version must be available under the version policy of model 'm'",
            "~/config.pbtxt:3:1: 'max_batch_size' must be non-negative value for other",
            "~/config.pbtxt:1:1: unexpected directory name 'm' for model 'other', directory name must equal model name",
            "~/config.pbtxt:7:1: model output 'OUTPUT0' dimension must be integer >= 1, or -1 to indicate a \
             variable-size dimension for other",
            "~/config.pbtxt:10:19: instance group other_1 of model other has kind KIND_GPU but server does not support \
             GPUs",
            "~/config.pbtxt:8:35: failed to open text file for read ~/absent.txt: No such file or directory (os error \
             2)",
        ]
    );
    let warnings = [
        "the repository agent 'a' is not asked here, only when the model is loaded",
        "version 7 of the version policy is not there",
    ];
    assert_eq!(seen.warnings, warnings);
}

#[test]
fn configurations_that_cannot_be_read() {
    let model = Scratch::new("typo").config("backend: \"identity\"\nmax_batchsize: 1");
    let seen = inspector(true).inspect("m", &model.0, None);
    let expected =
        "~/config.pbtxt:2:1: unknown field \"max_batchsize\" in ModelConfig; did you mean \"max_batch_size\"?";
    assert_eq!(problems(&seen), [expected]);

    let model = Scratch::new("none");
    assert_eq!(problems(&inspector(false).inspect("m", &model.0, None)), [no_configuration("m").to_string()]);
    let seen = inspector(true).inspect("m", &model.0, None);
    assert!(problems(&seen)[0].starts_with("Invalid model name: Could not determine backend"), "{:?}", problems(&seen));
    // Only its name selects the backend, and that backend completes nothing.
    assert_eq!(
        problems(&inspector(true).inspect("m.identity", &model.0, None)),
        [no_configuration("m.identity").to_string()]
    );
    let seen = inspector(true).inspect("m", &model.0.join("absent"), None);
    assert_eq!(problems(&seen).len(), 1);
    assert!(problems(&seen)[0].starts_with("failed to open directory ~: "), "{:?}", problems(&seen));
}

#[test]
fn backends_are_located_and_queried() {
    let model = Scratch::new("nowhere").config("backend: \"nowhere\"");
    let expected = "~/config.pbtxt:1:1: unable to find backend library for backend 'nowhere', try specifying runtime \
                    on the model configuration.";
    assert_eq!(problems(&inspector(true).inspect("m", &model.0, None)), [expected]);
    let library = model.0.join("libtriton_nowhere.so");
    // Not a library at all, and it is not opened. The backend may complete what is missing.
    std::fs::write(&library, "").unwrap();
    let model = model.config("backend: \"nowhere\" input { name: \"I\" }");
    let seen = inspector(true).inspect("m", &model.0, None);
    assert_eq!((problems(&seen), seen.backend), (vec![], BackendLocation::Library(library)));
    assert_eq!(
        problems(&inspector(false).inspect("m", &model.0, None)),
        ["~/config.pbtxt:1:20: model input 'I' must specify 'data_type' for m"]
    );
    // Opening it fails.
    let (inspector, mut seen) = (inspector(true), inspector(true).inspect("m", &model.0, None));
    inspector.complete(&mut seen);
    assert!(problems(&seen)[0].starts_with("unable to load shared library: ~/libtriton_nowhere.so: "));
    assert!(seen.spec.is_none());

    let model =
        Scratch::new("pairs").config("backend: \"identity\" input { name: \"IN\" data_type: TYPE_FP32 dims: 1 }");
    let seen = self::inspector(true).inspect("m", &model.0, None);
    assert_eq!(problems(&seen), ["model configuration must have equal input/output pairs"]);
}

#[test]
fn an_override_stands_in_for_the_file() {
    let model = Scratch::new("override").config("nonsense");
    let json = br#"{"backend":"identity","instance_group":[{"count":3}]}"#;
    let inspector = inspector(true);
    let seen = inspector.inspect("m", &model.0, Some(json));
    assert_eq!((problems(&seen), &seen.file), (vec![], &None));
    assert_eq!(seen.spec.unwrap().instances.len(), 3);
    let seen = inspector.inspect("m", &model.0, Some(b"{\"backendd\":\"x\"}"));
    assert_eq!(
        problems(&seen),
        ["Invalid config override: unknown field \"backendd\" in ModelConfig; did you mean \"backend\"?"]
    );
    let seen = inspector.inspect("m", &model.0, Some(br#"{"runtime":"libx.so"}"#));
    assert_eq!(problems(&seen)[0], "'runtime' is not supported by this version of Nereid");
}
