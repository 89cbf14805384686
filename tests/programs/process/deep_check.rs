//! `nereid check --deep` on models with one mistake of each kind, crashes and hangs of their runtimes included.

use std::time::{Duration, Instant};

use serde_json::Value;

use nereid_test_support::backend;
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, binary, run_to_end, run_to_end_under};

/// Exit code, standard output and standard error of a deep check, the repository written as `~`.
fn deep(repository: &Repository, words: &[&str]) -> (Option<i32>, String, String) {
    let home = repository.path().display().to_string();
    let words: Vec<&str> = ["check", "--deep", &home].into_iter().chain(words.iter().copied()).collect();
    let (status, out, err) = run_to_end(&words);
    (status.code(), out.replace(&home, "~"), err.replace(&home, "~"))
}

fn demand(lines: &[&str], out: &str) {
    for line in lines {
        assert!(out.contains(line), "expected {line:?} in\n{out}");
    }
}

/// A model of a library in `tests/backends`.
fn plug_in(repository: &Repository, backend: &str, name: &str) {
    repository.identity_of(backend, name, 0, &[Pair::new("INT32", "-1")], "");
}

const PYTHON_MODEL: &str = "backend: \"python\"\n\
    input { name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }\n\
    output { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }\n";

/// A model in Python: the top of its file, and the body of `initialize`.
fn python_model(repository: &Repository, name: &str, top: &str, initialize: &str) {
    let text = format!(
        "{top}\nclass TritonPythonModel:\n    def initialize(self, args):\n        {initialize}\n\n    \
         def execute(self, requests):\n        raise RuntimeError('this model always fails')\n"
    );
    repository.file(&format!("{name}/config.pbtxt"), PYTHON_MODEL).file(&format!("{name}/1/model.py"), text);
}

/// The flags under which models in Python have numpy, and the ONNX models their runtime.
fn flags(python: &Python) -> [String; 2] {
    [python.onnxruntime_flag(), format!("--backend-config=python,interpreter={}", python.interpreter().display())]
}

/// A process that loads a model serves nothing: what requests may hold does not count for it.
#[test]
fn a_limit_on_addresses_below_the_memory_of_requests_is_enough_to_load_models() {
    let repository = Repository::new();
    repository.identity("plain", 2, &[Pair::new("FP32", "-1")]);
    let limited = "ulimit -c 0; ulimit -v 1000000; exec \"$0\" \"$@\"".to_owned();
    let words = ["sh".to_owned(), "-c".to_owned(), limited, binary().to_string_lossy().into_owned()];
    let home = repository.path().display().to_string();
    let flags = ["check", "--deep", &home, "--request-memory-byte-size=2000000000"];
    let (status, out, err) = run_to_end_under(&words, &flags);
    assert_eq!(status.code(), Some(0), "{out}{err}");
    demand(&["1 of 1 models would load\n"], &out);
}

#[test]
fn models_that_load_are_reported_as_such() {
    let Some(backends) = backend::compiled("ending.c") else { return };
    let repository = Repository::new();
    repository.identity("plain", 2, &[Pair::new("FP32", "-1")]);
    plug_in(&repository, "ending", "fine");
    let directory = format!("--backend-directory={}", backends.display());
    let (code, out, err) = deep(&repository, &[&directory]);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    demand(&["fine in ~: would load\n", "plain in ~: would load\n", "  loaded     and unloaded in "], &out);
    assert!(out.ends_with("2 of 2 models would load\n"), "{out}");
    // Without --deep it is only consistent, and the report names the way to know more.
    let (status, out, _) = run_to_end(&["check", &repository.path().display().to_string(), &directory]);
    assert_eq!(status.code(), Some(0), "{out}");
    assert!(out.ends_with("2 of 2 models are consistent; --deep also loads them\n"), "{out}");
    let (code, out, _) = deep(&repository, &[&directory, "--format=json", "--model=fine"]);
    assert_eq!(code, Some(0), "{out}");
    let report: Value = serde_json::from_str(&out).expect("a JSON report");
    assert_eq!(report["would_load"], true);
    assert_eq!(report["models"].as_array().map(Vec::len), Some(1));
    let model = &report["models"][0];
    assert!(model["name"] == "fine" && model["would_load"] == true && model["load_secs"].as_f64() > Some(0.0), "{out}");
}

#[test]
fn a_runtime_that_crashes_is_a_finding_on_its_model_alone() {
    let Some(backends) = backend::compiled("ending.c") else { return };
    let repository = Repository::new();
    for name in ["segfault", "abort", "exit", "late", "chatty", "fine"] {
        plug_in(&repository, "ending", name);
    }
    let (code, out, _) = deep(&repository, &[&format!("--backend-directory={}", backends.display())]);
    assert_eq!(code, Some(1), "{out}");
    demand(
        &[
            "fine in ~: would load\n",
            "segfault in ~: 1 problem\n  the model crashes the runtime (signal 11, SIGSEGV in backend ending)\n    | ",
            // The stack names the library.
            "libtriton_ending.so",
            "abort in ~: 1 problem\n  the model crashes the runtime (signal 6, SIGABRT in backend ending)\n",
            "exit in ~: 1 problem\n  the model ends the process that loads it (exit code 0, backend ending)\n",
            "chatty in ~: 1 problem\n  the model crashes the runtime (signal 11, SIGSEGV in backend ending)\n",
            // It loads; its end is a warning.
            "late in ~: would load\n",
            "  warning: the runtime crashes when the model is unloaded (signal 11, SIGSEGV in backend ending)\n",
            "2 of 6 models would load\n",
        ],
        &out,
    );
}

#[test]
fn a_runtime_that_hangs_is_stopped_with_all_that_it_started() {
    let Some(backends) = backend::compiled("ending.c") else { return };
    let repository = Repository::new();
    plug_in(&repository, "ending", "hang");
    plug_in(&repository, "ending", "fine");
    let directory = format!("--backend-directory={}", backends.display());
    // On a busy machine the model beside it may need more time.
    for secs in [10, 60, 180] {
        let timeout = format!("--timeout-secs={secs}");
        let (code, out, _) = deep(&repository, &[&*directory, &timeout, "--jobs=2"]);
        assert_eq!(code, Some(1), "{out}");
        if secs < 180 && out.contains("0 of 2 models would load\n") {
            continue;
        }
        let text = format!(
            "hang in ~: 1 problem\n  the model is not loaded within {secs} s (backend ending); --timeout-secs sets another"
        );
        demand(&[&*text, "    | ending.c: hang.\n", "1 of 2 models would load\n"], &out);
        break;
    }
    let child = std::fs::read_to_string(repository.path().join("hang/child")).expect("the number of its child");
    // One that was killed is there until somebody has waited for it.
    let runs = || {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat"));
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_none_or(|(_, rest)| !rest.starts_with(['Z', 'X'])))
    };
    let started = Instant::now();
    while runs() {
        assert!(started.elapsed() < PATIENCE, "the child of the model is alive: {child}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_model_that_takes_too_much_memory_is_stopped_alone() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    python_model(&repository, "small", "", "pass");
    // It stops by itself before it could do harm, and waits for its end.
    let greedy = "import time; kept = [b'x' * (64 << 20) for _ in range(24)]; time.sleep(3600)";
    python_model(&repository, "greedy", "", greedy);
    // So does a process that it has started.
    let parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', \"import time; kept = [b'x' * (64 << 20) \
                  for _ in range(24)]; time.sleep(3600)\"])";
    python_model(&repository, "parent", "", parent);
    python_model(&repository, "first", "", "raise ValueError('score ' + open('/proc/self/oom_score_adj').read())");
    let flags = flags(&python);
    let (code, out, _) = deep(&repository, &[&flags[1], "--memory-mib=800", "--jobs=1"]);
    assert_eq!(code, Some(1), "{out}");
    demand(&["small in ~: would load\n", "1 of 4 models would load\n", "score 1000"], &out);
    for name in ["greedy", "parent"] {
        let found = out.split_once(&format!("{name} in ~: 1 problem\n  the process that loads the model takes "));
        let found = found.unwrap_or_else(|| panic!("{name}: {out}")).1.split_once(" MiB of memory where ");
        let (used, rest) = found.unwrap_or_else(|| panic!("{name}: {out}"));
        assert!(used.parse::<u64>().is_ok_and(|used| used > 800), "{name}: {used}");
        assert!(rest.starts_with("800 MiB are allowed (backend python); --memory-mib sets another limit\n"), "{rest}");
    }
}

#[test]
fn models_of_one_name_in_two_repositories_are_loaded_each_by_itself() {
    let Some(backends) = backend::compiled("ending.c") else { return };
    let [repository, other] = [Repository::new(), Repository::new()];
    repository.identity("segfault", 0, &[Pair::new("INT32", "-1")]);
    plug_in(&other, "ending", "segfault");
    plug_in(&other, "ending", "fine");
    let ensemble = |model: &str| {
        format!(
            "platform: \"ensemble\"\ninput {{ name: \"X\" data_type: TYPE_INT32 dims: [ -1 ] }}\n\
             output {{ name: \"Y\" data_type: TYPE_INT32 dims: [ -1 ] }}\n\
             ensemble_scheduling {{ step {{ model_name: \"{model}\" model_version: -1\n\
             input_map {{ key: \"INPUT0\" value: \"X\" }} output_map {{ key: \"OUTPUT0\" value: \"Y\" }} }} }}\n"
        )
    };
    // Its part is that of its own repository; the part of the second one is in the other repository only.
    repository.model("above", &ensemble("segfault"));
    repository.model("across", &ensemble("fine"));
    other.model("broken", &ensemble("segfault"));
    let other_home = other.path().display().to_string();
    let directory = format!("--backend-directory={}", backends.display());
    let (code, out, _) = deep(&repository, &[&other_home, &directory, "--model-namespacing=true"]);
    let out = out.replace(&other_home, "^");
    assert_eq!(code, Some(1), "{out}");
    demand(
        &[
            "above in ~: would load\n",
            "across in ~: would load\n",
            "broken in ^: 1 problem\n  ensemble 'broken' depends on 'segfault' which has no loaded version. Model \
             'segfault' loading failed with error: the model crashes the runtime",
            "fine in ^: would load\n",
            "segfault in ~: would load\n",
            "segfault in ^: 1 problem\n  the model crashes the runtime (signal 11, SIGSEGV in backend ending)\n",
            "4 of 6 models would load\n",
        ],
        &out,
    );
    // Without namespaces a name is a finding of both.
    let (code, out, _) = deep(&repository, &[&other_home, &directory]);
    let out = out.replace(&other_home, "^");
    assert_eq!(code, Some(1), "{out}");
    let text = "model appears in two or more repositories";
    demand(&[&format!("segfault in ~: 1 problem\n  {text}"), &format!("segfault in ^: 1 problem\n  {text}")], &out);
}

#[test]
fn mistakes_in_python_models_are_found() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    python_model(&repository, "good", "", "pass");
    python_model(&repository, "importing", "import a_module_that_no_host_has", "pass");
    python_model(&repository, "exiting", "import os", "os._exit(3)");
    python_model(&repository, "raising", "", "raise ValueError('no weights here')");
    repository.file("classless/config.pbtxt", PYTHON_MODEL).file("classless/1/model.py", "value = 1\n");
    python_model(&repository, "cold", "", "pass");
    let warmup = "model_warmup { name: \"w\" batch_size: 1 inputs { key: \"INPUT0\" value { data_type: TYPE_FP32 \
                  dims: [ 4 ] zero_data: true } } }\n";
    repository.file("cold/config.pbtxt", format!("{PYTHON_MODEL}{warmup}"));
    let flags = flags(&python);
    let words: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (code, out, _) = deep(&repository, &words);
    assert_eq!(code, Some(1), "{out}");
    demand(
        &[
            "good in ~: would load\n",
            "importing in ~: 1 problem\n  version 1 is at UNAVAILABLE state: Internal: ",
            "ModuleNotFoundError: No module named 'a_module_that_no_host_has'",
            "exiting in ~: 1 problem\n  version 1 is at UNAVAILABLE state: Internal: ",
            "exited with code 3",
            "raising in ~: 1 problem\n",
            "no weights here",
            "classless in ~: 1 problem\n",
            "cold in ~: 1 problem\n",
            "this model always fails",
            "1 of 6 models would load\n",
        ],
        &out,
    );
}

#[test]
fn mistakes_that_only_the_model_file_shows_are_found() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    repository.example("simple");
    let simple = std::fs::read_to_string(repository.path().join("simple/config.pbtxt")).expect("its configuration");
    let file = std::fs::read(repository.path().join("simple/1/model.onnx")).expect("its file");
    let renamed = simple.replace("INPUT1", "INPUT9");
    let wrong_dims = simple.replace("16", "17");
    let wrong_type = simple.replacen("TYPE_INT32", "TYPE_FP32", 1);
    for (name, config) in [("names", &renamed), ("dims", &wrong_dims), ("types", &wrong_type)] {
        assert_ne!(config, &simple, "{name}: the mistake is not planted");
        let config = config.replace("name: \"simple\"", &format!("name: \"{name}\""));
        repository.file(&format!("{name}/config.pbtxt"), config).file(&format!("{name}/1/model.onnx"), &file);
    }
    let torn = simple.replace("name: \"simple\"", "name: \"torn\"");
    repository.file("torn/config.pbtxt", torn).file("torn/1/model.onnx", "no model");
    let flags = flags(&python);
    // None of them is found without opening the file.
    let home = repository.path().display().to_string();
    assert_eq!(run_to_end(&["check", &home, &flags[0]]).0.code(), Some(0));
    let (code, out, _) = deep(&repository, &[&flags[0]]);
    assert_eq!(code, Some(1), "{out}");
    demand(
        &[
            "simple in ~: would load\n",
            "names in ~: 1 problem\n  version 1 is at UNAVAILABLE state: Invalid argument: unexpected inference input \
             'INPUT9', allowed inputs are: INPUT0, INPUT1",
            "dims in ~: 1 problem\n  version 1 is at UNAVAILABLE state: Invalid argument: model 'dims', tensor 'INPUT0'",
            "types in ~: 1 problem\n  version 1 is at UNAVAILABLE state: Invalid argument: ",
            "torn in ~: 1 problem\n  version 1 is at UNAVAILABLE state: Internal: onnx runtime error",
            "1 of 5 models would load\n",
        ],
        &out,
    );
    // A missing runtime is an error with the command that installs it.
    let nowhere = "--backend-config=onnxruntime,library=/nonexistent/libonnxruntime.so";
    let (code, out, _) = deep(&repository, &[nowhere, "--model=simple"]);
    assert_eq!(code, Some(1), "{out}");
    demand(&["nereid runtime install onnxruntime", "0 of 1 models would load\n"], &out);
}

#[test]
fn ensembles_are_loaded_after_their_models() {
    let Some(backends) = backend::compiled("ending.c") else { return };
    let repository = Repository::new();
    let ensemble = |model: &str| {
        format!(
            "platform: \"ensemble\"\ninput {{ name: \"X\" data_type: TYPE_INT32 dims: [ -1 ] }}\n\
             output {{ name: \"Y\" data_type: TYPE_INT32 dims: [ -1 ] }}\n\
             ensemble_scheduling {{ step {{ model_name: \"{model}\" model_version: -1\n\
             input_map {{ key: \"INPUT0\" value: \"X\" }} output_map {{ key: \"OUTPUT0\" value: \"Y\" }} }} }}\n"
        )
    };
    plug_in(&repository, "ending", "fine");
    plug_in(&repository, "ending", "segfault");
    repository.model("above", &ensemble("fine"));
    repository.model("broken", &ensemble("segfault"));
    repository.model("lacking", &ensemble("absent"));
    repository.model("mistyped", &ensemble("fine").replace("TYPE_INT32", "TYPE_FP32"));
    let directory = format!("--backend-directory={}", backends.display());
    let (code, out, _) = deep(&repository, &[&directory]);
    assert_eq!(code, Some(1), "{out}");
    demand(
        &[
            "above in ~: would load\n",
            "broken in ~: 1 problem\n  ensemble 'broken' depends on 'segfault' which has no loaded version. Model \
             'segfault' loading failed with error: the model crashes the runtime",
            "lacking in ~: 1 problem\n  ensemble lacking contains models that are not available or ambiguous: absent",
            "mistyped in ~: 1 problem\n  Invalid argument: in ensemble mistyped, ensemble tensor X: inconsistent data",
            "2 of 6 models would load\n",
        ],
        &out,
    );
    // One model, and what it is made of.
    let (code, out, _) = deep(&repository, &[&directory, "--model=above"]);
    assert!(code == Some(0) && out.ends_with("2 of 2 models would load\n"), "{out}");
}

#[test]
fn what_agents_and_scripts_of_backends_do_is_part_of_the_load() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    let agent = |digest: &str| {
        format!(
            "model_repository_agents {{ agents {{ name: \"checksum\" parameters {{ key: \"MD5:1/data\" value: \
             \"{digest}\" }} }} }}\n"
        )
    };
    let pairs = [Pair::new("INT32", "-1")];
    // The digest of an empty file.
    let right = agent("d41d8cd98f00b204e9800998ecf8427e");
    repository.identity_of("identity", "sealed", 0, &pairs, &right).file("sealed/1/data", "");
    repository.identity_of("identity", "altered", 0, &pairs, &right).file("altered/1/data", "x");
    repository.identity_of("identity", "guarded", 0, &pairs, &agent("0").replace("checksum", "nobody"));
    // A backend that is a script, beside the repository.
    let backends = Repository::new();
    let script = "class TritonPythonModel:\n    \
                  @staticmethod\n    def auto_complete_config(config):\n        return config\n\n    \
                  def initialize(self, args):\n        raise RuntimeError('the script is called')\n\n    \
                  def execute(self, requests):\n        return []\n";
    backends.file("snake/model.py", script);
    repository.model("scripted", &PYTHON_MODEL.replace("python", "snake"));
    let flags = flags(&python);
    let directory = format!("--backend-directory={}", backends.path().display());
    let agents = format!("--repoagent-directory={}", backends.path().display());
    let (code, out, _) = deep(&repository, &[&directory, &agents, &flags[1]]);
    assert_eq!(code, Some(1), "{out}");
    demand(
        &[
            "sealed in ~: would load\n",
            "altered in ~: 1 problem\n",
            "guarded in ~: 1 problem\n",
            "scripted in ~: 1 problem\n",
            "the script is called",
            "1 of 4 models would load\n",
        ],
        &out,
    );
}

#[test]
fn every_finding_on_a_usual_mistake_has_its_next_step() {
    let repository = Repository::new();
    repository.file("typo/config.pbtxt", "backend: \"identiti\"\n").version("typo", "1");
    repository.file("beside/config.pbtxt", "backend: \"python\"\n").file("beside/model.py", "").version("beside", "1");
    repository.file("named/config.pbtxt", "backend: \"identity\"\n").version("named", "v1");
    repository.file("inside/1/config.pbtxt", "backend: \"identity\"\n");
    let home = repository.path().display().to_string();
    for words in [&["check", &home][..], &["check", "--deep", &home]] {
        let (status, out, _) = run_to_end(words);
        let out = out.replace(&home, "~");
        assert_eq!(status.code(), Some(1), "{out}");
        demand(
            &[
                "  next step: no backend is called \"identiti\"; did you mean \"identity\"?\n",
                "  next step: a model's file belongs into its version directory: move ~/beside/model.py to \
                 ~/beside/1/model.py\n",
                "  next step: the name of a version directory is a number without leading zeros: rename ~/named/v1 to \
                 ~/named/1\n",
                "  next step: a model has one configuration for all versions: move ~/inside/1/config.pbtxt to \
                 ~/inside/config.pbtxt\n",
            ],
            &out,
        );
    }
    let (status, out, _) = run_to_end(&["check", &home, "--model=namde"]);
    assert_eq!(status.code(), Some(1));
    demand(
        &[
            "model 'namde' of --model is in no repository\n",
            "next step: no repository has a directory 'namde'; did you mean \"named\"?\n",
        ],
        &out,
    );
    let (_, out, _) = run_to_end(&["check", &format!("{home}/typo")]);
    demand(&["a repository has a directory for each model, and "], &out);
}
