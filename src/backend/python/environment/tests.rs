//! Directories and archives, the effect of a script on the variables, and the removal after the last use.

use std::thread;

use super::*;
use crate::python::fixtures::TestDirectory;

const ACTIVATE: &str = "export NEREID_TEST_ENVIRONMENT=\"$(basename \"$0\")\"\nunset NEREID_TEST_GONE\n";

fn text(status: Status) -> String {
    status.message.into_owned()
}

/// `<place>/<name>.tar` of an environment, written by the test: a tar program is not needed.
fn packed(place: &TestDirectory, name: &str, script: &str) -> PathBuf {
    let mut bytes = Vec::new();
    for (file, contents) in [("bin/activate", script), ("bin/python3", "#!/bin/sh\n")] {
        let mut header = [0; 512];
        header[..file.len()].copy_from_slice(file.as_bytes());
        header[100..107].copy_from_slice(b"0000755");
        header[124..135].copy_from_slice(format!("{:011o}", contents.len()).as_bytes());
        header[148..156].fill(b' ');
        header[156] = b'0';
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        bytes.extend(header);
        bytes.extend(contents.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    place.file(name, bytes)
}

#[test]
fn the_parameter_names_it_and_may_stand_on_the_models_directory() {
    let place = TestDirectory::new();
    let of = |value: &str| path_of(&place.context_with("m", &[("EXECUTION_ENV_PATH", value)]), None);
    assert_eq!(of("/envs/one"), Some("/envs/one".into()));
    assert_eq!(of("$$TRITON_MODEL_DIRECTORY/env.tar.gz"), Some(place.path().join("m/env.tar.gz")));
    assert_eq!(of("/x/$$TRITON_MODEL_DIRECTORY"), Some(format!("/x/{}", place.path().join("m").display()).into()));
    assert_eq!(of(""), None);
    assert_eq!(path_of(&place.context("m"), None), None);
    // The environment of a Python-based backend is the second choice.
    let base = place.path().join("backends/snake");
    assert_eq!(path_of(&place.context("m"), Some(&base)), None);
    let default = place.file("backends/snake/pb_exec_env_model.py.tar.gz", "");
    assert_eq!(path_of(&place.context("m"), Some(&base)), Some(default));
    let context = place.context_with("m", &[("EXECUTION_ENV_PATH", "/envs/one")]);
    assert_eq!(path_of(&context, Some(&base)), Some("/envs/one".into()));
}

#[test]
fn a_model_of_a_python_based_backend_says_what_serves_it() {
    let place = TestDirectory::new();
    let base = place.path().join("backends/snake");
    let completed = |mut config: ModelConfig| {
        complete_based(&mut config, &base);
        let path = config.parameters.get(PARAMETER).map(|parameter| parameter.string_value.clone());
        (config.runtime, path)
    };
    let given = place.context_with("m", &[(PARAMETER, "/envs/one")]).config;
    assert_eq!(completed(place.context("m").config), ("model.py".to_owned(), None));
    let packed = place.file("backends/snake/pb_exec_env_model.py.tar.gz", "").display().to_string();
    assert_eq!(completed(place.context("m").config), ("model.py".to_owned(), Some(packed)));
    assert_eq!(completed(given), ("model.py".to_owned(), Some("/envs/one".to_owned())));
}

#[test]
fn what_is_missing_is_told_in_tritons_words() {
    let place = TestDirectory::new();
    let environments = Environments::default();
    let missing = place.path().join("missing");
    let expected = format!("Failed to get the canonical path for {}.", missing.display());
    assert_eq!(environments.open(&missing).unwrap_err(), Status::internal(expected.clone()));
    assert_eq!(examine(&missing), Err(Status::internal(expected)));
    let bare = place.file("bare/bin/python3", "").parent().unwrap().parent().unwrap().to_owned();
    let expected = format!(
        "Path {}/bin/activate does not exist. The Python environment should contain an 'activate' script.",
        bare.display()
    );
    assert_eq!(environments.open(&bare).map_err(text).unwrap_err(), expected);
    assert_eq!(examine(&bare).map_err(text), Err(expected));
    let file = place.file("words.tar.gz", "just words");
    let error = environments.open(&file).map_err(text).unwrap_err();
    assert_eq!(error, format!("Failed to unpack the Python environment '{}': it is cut off", file.display()));
    place.file("empty/bin/activate", "");
    let empty = environments.open(&place.path().join("empty")).unwrap();
    assert!(empty.interpreter().map_err(text).unwrap_err().ends_with("empty/bin/python3 is missing"));
    place.file("empty/bin/python", "");
    assert_eq!(empty.interpreter(), Ok(place.path().join("empty/bin/python")));
    place.file("empty/bin/python3", "");
    assert_eq!(empty.interpreter(), Ok(place.path().join("empty/bin/python3")));
}

#[test]
fn a_directory_is_used_where_it_lies() {
    let place = TestDirectory::new();
    place.file("env/bin/activate", "");
    std::os::unix::fs::symlink("env", place.path().join("link")).unwrap();
    let environment = Environments::default().open(&place.path().join("link")).unwrap();
    assert_eq!(environment.directory, place.path().join("env"), "without links, as Triton has it");
    drop(environment);
    assert!(place.path().join("env/bin/activate").is_file());
}

#[test]
fn an_archive_is_unpacked_once_and_again_when_it_has_changed() {
    let place = TestDirectory::new();
    let environments = Environments::default();
    let archive = packed(&place, "env.tar", "first");
    let read = |environment: &Environment| fs::read_to_string(environment.directory.join("bin/activate")).unwrap();
    let opened: Vec<Environment> = thread::scope(|scope| {
        let open = || scope.spawn(|| environments.open(&archive).unwrap());
        let threads: Vec<_> = (0..4).map(|_| open()).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let first = &opened[0];
    assert!(opened.iter().all(|other| other.directory == first.directory), "shared");
    assert_eq!(read(first), "first");
    let root = first.directory.parent().unwrap().to_owned();
    let name = root.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("python_env_") && name.len() == "python_env_XXXXXX".len(), "{name}");
    assert_eq!(root.parent(), Some(&*std::env::temp_dir()));
    assert_eq!(fs::metadata(&root).unwrap().mode() & 0o777, 0o700);
    // Another archive, another directory of the same root.
    let other = environments.open(&packed(&place, "other.tar", "other")).unwrap();
    assert_eq!((other.directory.parent(), &*read(&other)), (Some(&*root), "other"));
    packed(&place, "env.tar", "second");
    File::open(&archive).unwrap().set_modified(std::time::SystemTime::now() + Duration::from_secs(9)).unwrap();
    let second = environments.open(&archive).unwrap();
    assert_eq!(read(&second), "second");
    assert_eq!(read(first), "first", "who has it keeps it");
    let old = first.directory.clone();
    drop(opened);
    assert!(!old.exists(), "nobody has it any more");
    drop((second, other));
    assert!(root.join("1").exists(), "the server keeps what it may need again");
    drop(environments);
    assert!(!root.exists());
}

#[test]
fn an_archive_that_fails_leaves_nothing() {
    let place = TestDirectory::new();
    let environments = Environments::default();
    let keep = environments.open(&packed(&place, "good.tar", "")).unwrap();
    let root = keep.directory.parent().unwrap().to_owned();
    let bytes = fs::read(packed(&place, "whole.tar", "")).unwrap();
    let cut = place.file("cut.tar", &bytes[..600]);
    assert!(environments.open(&cut).is_err());
    let bare = place.file("bare.tar", &bytes[512..]);
    assert!(environments.open(&bare).map_err(text).unwrap_err().ends_with("should contain an 'activate' script."));
    let mut names: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["0", LOCK]);
}

#[test]
fn conda_unpack_is_run_where_it_was_packed() {
    let place = TestDirectory::new();
    let environments = Environments::default();
    let unpacked = environments.open(&packed(&place, "env.tar", "")).unwrap()._unpacked.unwrap();
    let bin = unpacked.directory.join("bin");
    fs::write(bin.join("conda-unpack"), "the script").unwrap();
    place.program("python", "#!/bin/sh\ncp \"$1\" \"$(dirname \"$1\")/done\"\n");
    fs::rename(place.path().join("python"), bin.join("python")).unwrap();
    unpacked.relocate();
    assert_eq!(fs::read_to_string(bin.join("done")).unwrap(), "the script");
}

#[test]
fn activation_changes_variables_and_puts_the_libraries_ahead() {
    let place = TestDirectory::new();
    place.file(
        "env/bin/activate",
        format!("echo noise\necho more noise >&2\n{ACTIVATE}cd /\nalias x=y\nfunction_of_ours() {{ :; }}\n"),
    );
    let environments = Environments::default();
    let environment = environments.open(&place.path().join("env")).unwrap();
    let changes = environment.activation().unwrap();
    let of = |name: &str| changes.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    assert_eq!(of("NEREID_TEST_ENVIRONMENT"), Some(Some("activate".into())));
    assert!(changes.iter().all(|(name, _)| !OF_SHELLS.iter().any(|own| name == own)), "{changes:?}");
    let original = std::env::var_os(LIBRARIES).unwrap_or_default();
    let lib = place.path().join("env/lib").into_os_string().into_string().unwrap();
    let ahead = of(LIBRARIES).unwrap().unwrap().into_string().unwrap();
    assert!(ahead == lib || ahead.starts_with(&format!("{lib}:")), "{ahead}");
    assert_eq!(of(ORIGINAL_LIBRARIES), Some(Some(original)));
    place.file("env/bin/activate", "echo this does not work >&2\nfalse\n");
    let error = environment.activation().map_err(text).unwrap_err();
    let script = place.path().join("env/bin/activate");
    let expected = format!("failed to activate the Python environment '{}': this does not work", script.display());
    assert_eq!(error, expected);
}

#[test]
fn variables_are_compared_one_by_one() {
    let map = |pairs: &[(&str, &str)]| -> HashMap<OsString, OsString> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    };
    let before = map(&[("SAME", "1"), ("OTHER", "1"), ("GONE", "1"), ("SHLVL", "1"), ("BASH_FUNC_x%%", "() { :; }")]);
    let printed = b"SAME=1\0OTHER=2=\n3\0NEW=\0SHLVL=2\0_=/usr/bin/env\0BASH_FUNC_y%%=() { :; }\0=odd\0odder\0";
    let after: HashMap<OsString, OsString> = variables(printed).collect();
    let expected: Vec<Change> =
        vec![("GONE".into(), None), ("NEW".into(), Some("".into())), ("OTHER".into(), Some("2=\n3".into()))];
    assert_eq!(differences(&before, &after), expected);
    let environment = Environment { directory: "/env".into(), _unpacked: None };
    for (libraries, ahead, original) in [(None, "/env/lib", ""), (Some("/a:/b"), "/env/lib:/a:/b", "/a:/b")] {
        let pairs: Vec<(&str, &str)> = libraries.map(|value| (LIBRARIES, value)).into_iter().collect();
        let changes = environment.with_libraries(&map(&pairs), vec![(LIBRARIES.into(), libraries.map(Into::into))]);
        let expected: Vec<Change> =
            vec![(LIBRARIES.into(), Some(ahead.into())), (ORIGINAL_LIBRARIES.into(), Some(original.into()))];
        assert_eq!(changes, expected);
    }
}

#[test]
fn an_environment_names_its_own_place_whatever_its_script_says() {
    let map = |pairs: &[(&str, &str)]| -> HashMap<OsString, OsString> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    };
    let environment = Environment { directory: "/env".into(), _unpacked: None };
    for (programs, expected) in [
        (None, "/env/bin"),
        (Some("/env/bin:/bin"), "/env/bin:/bin"),
        (Some("/made/here/bin:/bin"), "/env/bin:/made/here/bin:/bin"),
        (Some("/bin:/env/bin"), "/env/bin:/bin:/env/bin"),
    ] {
        let mut after = map(&[(VENV, "/made/here"), (PYTHON_HOME, "/home")]);
        after.extend(programs.map(|programs| (PROGRAMS.into(), programs.into())));
        let script: Vec<Change> = after.iter().map(|(name, value)| (name.clone(), Some(value.clone()))).collect();
        let changes = environment.with_own_places(&after, [script, vec![("OTHER".into(), None)]].concat());
        let expected: Vec<Change> = vec![
            ("OTHER".into(), None),
            (VENV.into(), Some("/env".into())),
            (VENV_PROMPT.into(), Some("(/env)".into())),
            (PROGRAMS.into(), Some(expected.into())),
            (PYTHON_HOME.into(), None),
        ];
        assert_eq!(changes, expected, "{programs:?}");
    }
}

#[test]
fn what_an_ended_server_left_is_removed_and_nothing_else() {
    let place = TestDirectory::new();
    let living = Root::make(place.path()).unwrap();
    place.file("python_env_aaaaaa/nereid.lock", "");
    place.file("python_env_aaaaaa/0/bin/activate", "");
    // One of Triton's, one that is being made, other names, a file.
    place.file("python_env_bbbbbb/0/bin/activate", "");
    place.file("python_env_cccccc/nereid.lock.new", "");
    place.file("python_env_long_name/nereid.lock", "");
    place.file("python_env_dddddd", "");
    std::os::unix::fs::symlink("python_env_long_name", place.path().join("python_env_eeeeee")).unwrap();
    let second = Root::make(place.path()).unwrap();
    let name = |root: &Root| root.path.file_name().unwrap().to_owned().into_string().unwrap();
    let mut expected = vec![
        "python_env_bbbbbb".to_owned(),
        "python_env_cccccc".to_owned(),
        "python_env_dddddd".to_owned(),
        "python_env_eeeeee".to_owned(),
        "python_env_long_name".to_owned(),
        name(&living),
        name(&second),
    ];
    expected.sort();
    let entries = fs::read_dir(place.path()).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, expected);
    assert!(place.path().join("python_env_long_name/nereid.lock").is_file());
    let path = living.path.clone();
    drop(living);
    assert!(!path.exists());
}
