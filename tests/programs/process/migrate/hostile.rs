//! Repositories that cannot be read, or are large; and that nothing is written.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{pair, report, subjects};
use nereid_test_support::repository::{Repository, identity_config};
use nereid_test_support::server::{run_to_end, run_to_end_under};

#[test]
fn what_cannot_be_read_is_missing() {
    let repository = Repository::new();
    repository.identity("good", 2, &pair());
    symlink("loop", repository.path().join("loop")).expect("make a link");
    repository.identity("inner", 2, &pair());
    symlink("..", repository.path().join("inner/up")).expect("make a link");
    // A file without blocks: 100 MB of zeros.
    repository.model("large", "");
    let large = std::fs::OpenOptions::new().write(true).open(repository.path().join("large/config.pbtxt"));
    large.and_then(|file| file.set_len(100 << 20)).expect("make a large file");
    repository.model("binary", "\u{0}\u{1}\u{fffd}");
    let path = repository.path().to_str().expect("a path in UTF-8");
    let (code, found) = report(&[path, "/no/such/repository"]);
    assert_eq!(code, 2);
    let missing = subjects(&found, "missing");
    assert_eq!(missing, ["model binary", "model large", "repository"].map(str::to_owned).into(), "{found:#}");
    let works = subjects(&found, "works");
    assert_eq!(works, ["model good", "model inner"].map(str::to_owned).into(), "{found:#}");
    let text = found.to_string();
    assert!(text.contains("the file exceeds the maximum of 16777216 bytes"), "{found:#}");
    assert!(text.contains("binary/config.pbtxt:1:"), "{found:#}");
    assert!(text.contains("failed to stat file /no/such/repository"), "{found:#}");
}

#[test]
fn a_directory_without_permission_is_missing() {
    let repository = Repository::new();
    repository.identity("good", 2, &pair());
    repository.identity("closed", 2, &pair());
    let closed = repository.path().join("closed");
    let set = |mode: u32| std::fs::set_permissions(&closed, PermissionsExt::from_mode(mode)).expect("set permissions");
    set(0);
    // The superuser may read everything, unless it gives that up.
    let words = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"].map(str::to_owned);
    let is_open = std::fs::read_dir(&closed).is_ok();
    let program = nereid_test_support::server::binary().into_string().expect("a path in UTF-8");
    let words: Vec<String> = words.into_iter().chain([program]).collect();
    let path = repository.path().display().to_string();
    let (status, out, err) = run_to_end_under(if is_open { &words } else { &[] }, &["migrate", &path]);
    set(0o755);
    assert_eq!(status.code(), Some(2), "{out}{err}");
    assert!(out.contains("  model closed: ") && out.contains("Permission denied"), "{out}");
}

#[test]
fn thousands_of_models_are_read() {
    const MODELS: usize = 3_000;
    let repository = Repository::new();
    let config = identity_config("identity", "", 2, &pair(), "").replace("name: \"\"\n", "");
    for model in 0..MODELS {
        repository.model(&format!("m{model}"), &config);
    }
    let (code, found) = report(&[repository.path().to_str().expect("a path in UTF-8")]);
    assert_eq!((code, subjects(&found, "works").len()), (0, MODELS));
}

/// Every path below a directory with its time and length.
fn tree(directory: &Path) -> BTreeMap<PathBuf, (SystemTime, u64)> {
    let mut found = BTreeMap::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory") {
            let entry = entry.expect("an entry");
            let metadata = entry.metadata().expect("its metadata");
            if metadata.is_dir() {
                pending.push(entry.path());
            }
            found.insert(entry.path(), (metadata.modified().expect("a time"), metadata.len()));
        }
    }
    found
}

#[test]
fn nothing_is_written() {
    let home = Repository::new();
    let repository = Repository::new();
    repository.identity("m", 2, &pair());
    // A model whose code would leave a file, if it ran.
    let mark = home.path().join("ran");
    repository.identity_of("python", "script", 2, &pair(), "");
    let script = format!("open({:?}, 'w')\nclass TritonPythonModel:\n    pass\n", mark.display().to_string());
    repository.file("script/1/model.py", script);
    let before = (tree(home.path()), tree(repository.path()));
    let path = |repository: &Repository| repository.path().display().to_string();
    let log = format!("{}/log", path(&home));
    let variables = [format!("HOME={}", path(&home)), format!("TMPDIR={}", path(&home))];
    let program = nereid_test_support::server::binary().into_string().expect("a path in UTF-8");
    let words: Vec<String> = ["env".to_owned()].into_iter().chain(variables).chain([program]).collect();
    let line = format!("tritonserver --model-repository={} --log-file={log} --trace-file={log}", path(&repository));
    let (status, out, err) = run_to_end_under(&words, &["migrate", "--all", &line]);
    assert!(out.contains("model m: identity"), "{status}: {out}{err}");
    assert_eq!((tree(home.path()), tree(repository.path())), before);
    let (_, _, err) = run_to_end(&["migrate", &path(&home)]);
    assert_eq!(err, "");
}
