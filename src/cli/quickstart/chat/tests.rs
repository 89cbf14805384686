//! The steps with a made-up python3, so that no test needs a network; those of the environment are tested with minilm.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;
use nereid_backend::scratch::Scratch;

struct RecordedProgress(Vec<String>);

impl Progress for RecordedProgress {
    fn step(&mut self, what: &str) {
        self.0.push(what.to_owned());
    }

    fn done(&mut self, what: &str) {
        self.0.push(what.to_owned());
    }
}

/// A python3 that makes environments of itself and, as the script, a repository; where there is a file `fail`, the
/// script fails with its text.
fn python3(scratch: &Scratch) -> PathBuf {
    let script = format!(
        r#"#!/bin/sh
root="{}"
case "$*" in
  "-m venv "*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
  -B*)
    if [ -e "$root/fail" ]; then cat "$root/fail" >&2; exit 1; fi
    echo "Training it"; test -e "${{2%/*}}/corpus.txt" && mkdir "$4" && echo "$6" > "$4/environment" ;;
esac
"#,
        scratch.path("").display()
    );
    let python = scratch.write("python3", script.as_bytes());
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    python
}

#[test]
fn it_is_trained_once() {
    let scratch = Scratch::new("chat-once");
    let python = python3(&scratch);
    let folder = scratch.path("data");
    let mut progress = RecordedProgress(Vec::new());
    let repository = prepare_in(&folder, python.as_os_str(), &mut progress).unwrap();
    assert_eq!(fs::read_to_string(repository.join("environment")).unwrap().trim(), environment::FROM_A_MODEL);
    for step in ["Python environment", "numpy and tokenizers with pip", "Training it", "chat is made"] {
        assert!(progress.0.iter().any(|progress| progress.contains(step)), "{step}: {:?}", progress.0);
    }
    assert!(!folder.join(WORK).exists(), "the working folder is left");

    let mut progress = RecordedProgress(Vec::new());
    assert_eq!(prepare_in(&folder, python.as_os_str(), &mut progress).unwrap(), repository);
    assert!(progress.0.iter().any(|step| step.contains("is there already")), "{:?}", progress.0);
    assert!(!progress.0.iter().any(|step| step.contains("Training")), "{:?}", progress.0);
}

#[test]
fn a_training_that_fails_leaves_nothing_and_is_tried_again() {
    let scratch = Scratch::new("chat-fails");
    let python = python3(&scratch);
    let folder = scratch.path("data");
    let fail = scratch.write("fail", b"OSError: [Errno 28] No space left on device");
    let mut progress = RecordedProgress(Vec::new());
    let error = prepare_in(&folder, python.as_os_str(), &mut progress).unwrap_err().to_string();
    assert!(error.contains("no space left in") && error.contains("300 MiB"), "{error}");
    scratch.write("fail", b"boo");
    let error = prepare_in(&folder, python.as_os_str(), &mut progress).unwrap_err().to_string();
    assert!(error.contains("training the model chat failed: boo"), "{error}");
    let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(entries.collect::<BTreeSet<_>>(), ["lock", "python"].map(str::to_owned).into());
    fs::remove_file(fail).unwrap();
    prepare_in(&folder, python.as_os_str(), &mut progress).unwrap();
}

/// A file that is missing in the list would be missing in the work of an installed program only.
#[test]
fn all_files_of_the_example_are_on_board() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/chat");
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
    assert_eq!(found, FILES.iter().map(|(name, _)| (*name).to_owned()).collect());
}
