//! The output and the exit codes of `nereid check` and `nereid explain`.

use serde_json::Value;

use nereid_test_support::is_large_runtime_wanted;
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::run_to_end;

/// Exit code, standard output and standard error, the repository written as `~`.
fn run(repository: &Repository, words: &[&str]) -> (Option<i32>, String, String) {
    let home = repository.path().display().to_string();
    let words: Vec<String> = words.iter().map(|word| word.replace('~', &home)).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (status, out, err) = run_to_end(&words);
    (status.code(), out.replace(&home, "~"), err.replace(&home, "~"))
}

/// One model without a fault.
fn good() -> Repository {
    let repository = Repository::new();
    repository.model(
        "good",
        "backend: \"identity\"\nmax_batch_size: 2\n\
         input { name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }\n\
         output { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }\n\
         instance_group [ { count: 2 }, { name: \"far\" kind: KIND_CPU host_policy: \"p\" passive: true } ]\n",
    );
    repository.version("good", "3");
    repository
}

#[test]
fn a_good_repository_is_checked() {
    let repository = good();
    let words = ["check", "~", "--host-policy=p,cpu-cores=0,1", "--io-cores=1"];
    let (code, out, err) = run(&repository, &words);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    for line in [
        "good in ~: consistent",
        "  versions   3 of 1, 3",
        "  backend    identity, built in",
        "  instance   good_0_0, KIND_CPU, ",
        "  instance   good_0_1, KIND_CPU, ",
        "  instance   far_0, KIND_CPU, cores 0-1 (host policy p), passive",
        "1 of 1 models are consistent",
    ] {
        assert!(out.contains(line), "expected {line:?} in\n{out}");
    }
    // The flag of the server names a repository too.
    let flag = run(&repository, &["check", "--model-repository=~", "--host-policy=p,cpu-cores=0,1", "--io-cores=1"]);
    assert_eq!(flag, (Some(0), out, err));
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let repository = good();
    let other = good();
    repository.model("typo", "backend: \"identity\"\nmax_batch_sise: 4\n");
    repository.model(
        "several",
        "backend: \"nowhere\"\nmax_batch_size: -1\n\
         version_policy { specific { versions: 9 } }\n",
    );
    let torn = "input {\n  name: \"I\" data_type: TYPE_FP31\n  dims: [ \"x\" ]\n}\n";
    repository.model("torn", &format!("backend: \"identity\"\nmax_batch_sise: 4\n{torn}"));
    repository.file("empty/.keep", "");
    let other_path = other.path().display().to_string();
    let (code, out, _) = run(&repository, &["check", "~", &other_path, "/no/such/repository"]);
    assert_eq!(code, Some(1), "{out}");
    for line in [
        "/no/such/repository: failed to stat file /no/such/repository",
        "empty in ~: 1 problem",
        "good in ~: 1 problem\n  model appears in two or more repositories\n",
        "several in ~: 3 problems",
        "  ~/several/config.pbtxt:1:1: unable to find backend library for backend 'nowhere'",
        "  ~/several/config.pbtxt:2:1: 'max_batch_size' must be non-negative value for several",
        "  ~/several/config.pbtxt:3:1: at least one version must be available under the version policy of model",
        "  ~/typo/config.pbtxt:2:1: unknown field \"max_batch_sise\" in ModelConfig; did you mean \"max_batch_size\"?",
        "torn in ~: 3 problems\n",
        "  ~/torn/config.pbtxt:2:1: unknown field \"max_batch_sise\" in ModelConfig; did you mean \"max_batch_size\"?\n",
        "  ~/torn/config.pbtxt:4:24: \"TYPE_FP31\" is not a value of DataType",
        "  ~/torn/config.pbtxt:5:11: Expected integer, got: \"x\"",
        "0 of 6 models are consistent",
    ] {
        assert!(out.contains(line), "expected {line:?} in\n{out}");
    }
    // Only what would be asked for at the start.
    let explicit = ["check", "~", "--model-control-mode=explicit", "--load-model=good"];
    let (code, out, _) = run(&repository, &explicit);
    assert!(code == Some(0) && out.ends_with("1 of 1 models are consistent; --deep also loads them\n"), "{out}");
    let (code, out, _) = run(&repository, &[&explicit[..], &["--load-model=absent"]].concat());
    assert!(code == Some(1) && out.contains("model 'absent' of --load-model is in no repository"), "{out}");
}

/// An ensemble of one step.
fn ensemble(model: &str, (input, output): (&str, &str), datatype: &str) -> String {
    format!(
        "platform: \"ensemble\"\n\
         input {{ name: \"X\" data_type: {datatype} dims: [ -1 ] }}\n\
         output {{ name: \"Y\" data_type: {datatype} dims: [ -1 ] }}\n\
         ensemble_scheduling {{ step {{ model_name: \"{model}\" model_version: -1\n\
         input_map {{ key: \"{input}\" value: \"X\" }} output_map {{ key: \"{output}\" value: \"Y\" }} }} }}\n"
    )
}

#[test]
fn ensembles_are_held_against_their_parts() {
    let repository = Repository::new();
    let tensors = "input { name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }\n\
                   output { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }\n";
    repository.model("part", &format!("backend: \"identity\"\n{tensors}"));
    repository.model("unused", &format!("backend: \"identity\"\n{tensors}"));
    repository.model("broken", "backend: \"identity\"\nmax_batch_size: -1\n");
    repository.model("fits", &ensemble("part", ("INPUT0", "OUTPUT0"), "TYPE_FP32"));
    // Stands before what it is made of.
    repository.model("around", &ensemble("fits", ("X", "Y"), "TYPE_FP32"));
    let (code, out, _) = run(&repository, &["check", "~", "--model-control-mode=explicit", "--load-model=around"]);
    assert!(code == Some(0) && out.ends_with("3 of 3 models are consistent; --deep also loads them\n"), "{out}");
    repository.model("lacking", &ensemble("absent", ("INPUT0", "OUTPUT0"), "TYPE_FP32"));
    repository.model("mistyped", &ensemble("part", ("INPUT0", "OUTPUT0"), "TYPE_INT32"));
    repository.model("misnamed", &ensemble("part", ("INPUT1", "OUTPUT0"), "TYPE_FP32"));
    repository.model("leaning", &ensemble("broken", ("INPUT0", "OUTPUT0"), "TYPE_FP32"));
    repository.model("above", &ensemble("lacking", ("X", "Y"), "TYPE_FP32"));
    repository.model("chicken", &ensemble("egg", ("X", "Y"), "TYPE_FP32"));
    repository.model("egg", &ensemble("chicken", ("X", "Y"), "TYPE_FP32"));
    let (code, out, _) = run(&repository, &["check", "~"]);
    assert_eq!(code, Some(1), "{out}");
    for line in [
        "fits in ~: consistent",
        "around in ~: consistent",
        "  ensemble lacking contains models that are not available or ambiguous: absent",
        "  in ensemble mistyped, ensemble tensor X: inconsistent data type",
        "  in ensemble misnamed, ensemble tensor X is mapping to non-existing input INPUT1 in model part",
        "  ensemble 'leaning' depends on 'broken' which has no loaded version. Model 'broken' loading failed with",
        "  ensemble 'above' depends on 'lacking' which is not valid. Model 'lacking' failed with error: ensemble lacking",
        "  circular dependency between ensembles: chicken -> ... -> egg -> chicken",
        "  circular dependency between ensembles: egg -> ... -> chicken -> egg",
        "4 of 12 models are consistent",
    ] {
        assert!(out.contains(line), "expected {line:?} in\n{out}");
    }
}

#[test]
fn programs_read_the_same_as_json() {
    let repository = good();
    repository.model("bad", "backend: \"identity\"\nmax_batch_size: -1\n");
    let (code, out, _) = run(&repository, &["check", "--format=json", "~"]);
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    assert_eq!((code, &report["consistent"]), (Some(1), &Value::Bool(false)));
    let text = "~/bad/config.pbtxt:2:1: 'max_batch_size' must be non-negative value for bad";
    assert_eq!(report["models"][0]["problems"][0], text, "{out}");
    assert_eq!(report["models"][1]["instances"][2]["name"], "far_0", "{out}");
    assert_eq!(report["models"][1]["versions"], serde_json::json!([3]), "{out}");
}

#[test]
fn the_named_configuration_is_the_one_that_counts() {
    let repository = good();
    repository.file("good/configs/large.pbtxt", "backend: \"identity\"\nmax_batch_size: x\n");
    assert_eq!(run(&repository, &["check", "~"]).0, Some(0));
    let (code, out, _) = run(&repository, &["check", "~", "--model-config-name=large"]);
    assert_eq!(code, Some(1));
    assert!(out.contains("~/good/configs/large.pbtxt:2:17: Expected integer, got: "), "{out}");
}

#[test]
fn values_are_explained() {
    let repository = good();
    let (code, out, err) = run(&repository, &["explain", "~/good"]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let words: Vec<String> = out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "Model good",
        "configuration ~/good/config.pbtxt",
        "versions 3 of 1, 3",
        "backend identity, built in",
        "instances good_0_0, good_0_1, far_0",
        "name: \"good\" default: the directory's name",
        "backend: \"identity\" ~/good/config.pbtxt:1:1",
        "version_policy.latest.num_versions: 1 default: the latest version",
        "max_batch_size: 2 ~/good/config.pbtxt:2:1",
        "input[0].dims: [ -1 ] ~/good/config.pbtxt:3:45",
        "instance_group[0].kind: KIND_CPU default: what the backend prefers, without GPUs the CPU",
        "instance_group[1].passive: true ~/good/config.pbtxt:5:78",
    ] {
        assert!(words.iter().any(|found| found == line), "expected {line:?} in\n{out}");
    }
    repository.file("override.json", r#"{"backend":"identity","maxBatchSize":7}"#);
    let (code, out, _) = run(&repository, &["explain", "~/good", "--override=~/override.json"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("max_batch_size: 7") && out.contains("  override\n") && !out.contains("pbtxt"), "{out}");
}

#[test]
fn the_library_of_every_framework_is_named() {
    let repository = Repository::new();
    for (backend, requirements, title) in [
        ("openvino", "openvino.txt", "OpenVINO 20"),
        ("fil", "tree_models.txt", "treelite 4."),
        ("pytorch", "torch.txt", "PyTorch 2."),
        ("tensorflow", "tensorflow.txt", "TensorFlow 2."),
    ] {
        if matches!(backend, "pytorch" | "tensorflow") && !is_large_runtime_wanted(backend) {
            continue;
        }
        let Some(python) = Python::with(requirements) else { return };
        let model = format!("of_{backend}");
        repository.version(&model, "1");
        repository.file(&format!("{model}/config.pbtxt"), format!("backend: \"{backend}\""));
        let library = format!("--backend-config={backend},library={}", python.packages().display());
        // The model has no file, which is an error; the library is named all the same.
        let (_, out, _) = run(&repository, &["explain", &format!("~/{model}"), &library]);
        let line = out.lines().find(|line| line.trim_start().starts_with("runtime "));
        let line = line.unwrap_or_else(|| panic!("{backend}: no runtime in\n{out}"));
        assert!(line.contains(title) && line.contains(".so"), "{line}");
    }
}

#[test]
fn what_the_model_file_says_is_explained_as_such() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    repository.example("simple");
    std::fs::remove_file(repository.path().join("simple/config.pbtxt")).expect("remove the configuration");
    let (code, out, err) = run(&repository, &["explain", "~/simple", &python.onnxruntime_flag()]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let line = |start: &str| {
        let found = out.lines().find(|line| line.trim_start().starts_with(start));
        found.unwrap_or_else(|| panic!("no {start} in\n{out}")).to_owned()
    };
    assert!(line("input[0].name: ").ends_with("  model file"), "{out}");
    assert!(line("backend: \"onnxruntime\"").contains("  default: "), "{out}");
    assert!(line("configuration").ends_with("none"), "{out}");
    assert!(line("runtime").contains("ONNX Runtime 1.") && line("runtime").contains(".so"), "{out}");
    // Nobody opens the file for a check, so that only its absence is found.
    std::fs::write(repository.path().join("simple/1/model.onnx"), "no model").expect("write the model file");
    assert_eq!(run(&repository, &["check", "~", &python.onnxruntime_flag()]).0, Some(0));
    let (code, out, err) = run(&repository, &["explain", "~/simple", &python.onnxruntime_flag()]);
    assert!(code == Some(1) && err.contains("onnx runtime error"), "{out}{err}");
    std::fs::remove_file(repository.path().join("simple/1/model.onnx")).expect("remove the model file");
    repository.file("simple/config.pbtxt", "backend: \"onnxruntime\"");
    let (code, out, _) = run(&repository, &["check", "~", &python.onnxruntime_flag()]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.contains("unable to find '~/simple/1/model.onnx' for model instance 'simple'"), "{out}");
}

#[test]
fn errors_of_both_end_with_one() {
    let repository = good();
    repository.model("bad", "backend: \"identity\"\nmax_batch_size: -1\nversion_policy { specific { versions: 9 } }\n");
    let (code, out, err) = run(&repository, &["explain", "~/bad"]);
    assert_eq!(code, Some(1), "{out}");
    for line in [
        "error: ~/bad/config.pbtxt:3:1: at least one version must be available under the version policy of model",
        "error: ~/bad/config.pbtxt:2:1: 'max_batch_size' must be non-negative value for bad",
    ] {
        assert!(err.contains(line), "expected {line:?} in\n{err}");
    }
    for (words, text) in [
        (&["check"][..], "missing <repository>"),
        (&["check", "~", "--format=xml"], "the formats are text and json"),
        (&["check", "~", "--nonsense"], "unrecognized option"),
        (&["explain"], "missing <model directory>"),
        (&["explain", "~/good", "~/bad"], "missing <model directory>"),
        (&["explain", "~/absent"], "~/absent: No such file or directory"),
        (&["explain", "~/good", "--override=~/absent"], "~/absent: No such file or directory"),
    ] {
        let (code, out, err) = run(&repository, words);
        assert!(code == Some(1) && err.contains(text) && out.is_empty(), "{words:?}: {code:?}\n{out}\n{err}");
    }
    for command in ["check", "explain"] {
        let (code, out, _) = run(&repository, &[command, "--help"]);
        assert!(code == Some(0) && out.starts_with(&format!("Usage: nereid {command} ")), "{out}");
    }
}

#[test]
fn a_check_of_nothing_finds_nothing() {
    let repository = Repository::new();
    let (code, out, _) = run(&repository, &["check", "~"]);
    assert_eq!((code, out.as_str()), (Some(0), "0 of 0 models are consistent\n"));
    // What the server says of the same models is the same.
    repository.identity("m", 1, &[Pair::new("INT8", "1")]);
    assert_eq!(run(&repository, &["check", "~", "--disable-auto-complete-config"]).0, Some(0));
}
