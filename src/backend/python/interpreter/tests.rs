//! The choice of the interpreter, with programs that report the properties that a test gives them.

use std::fs;
use std::time::{Duration, SystemTime};

use super::*;
use crate::python::fixtures::TestDirectory;
use nereid_wire::inference::ModelParameter;

/// A program that reports this version, with this numpy (empty: none).
fn python(place: &TestDirectory, path: &str, version: &str, numpy: &str) -> PathBuf {
    let missing = if numpy.is_empty() { "ModuleNotFoundError: x" } else { "" };
    let script = format!("#!/bin/sh\nprintf 'nereid\\037cpython\\037{version}\\037{numpy}\\037{missing}\\n'\n");
    place.program(path, &script)
}

/// A 64-bit ELF file that needs one library, and nothing else.
fn stub(place: &TestDirectory, path: &str, needed: &str) {
    let strings = 64 + 2 * 56 + 4 * 16;
    let size = needed.len() as u64 + 2;
    let total = strings as u64 + size;
    let mut bytes = vec![0; strings];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[32..40].copy_from_slice(&64u64.to_le_bytes());
    bytes[54..56].copy_from_slice(&56u16.to_le_bytes());
    bytes[56..58].copy_from_slice(&2u16.to_le_bytes());
    for (at, kind, offset, length) in [(64, 1u32, 0u64, total), (120, 2, 64 + 2 * 56, 4 * 16)] {
        bytes[at..at + 4].copy_from_slice(&kind.to_le_bytes());
        for (field, value) in [(8, offset), (16, offset), (32, length), (40, length)] {
            bytes[at + field..at + field + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    for (index, (tag, value)) in [(1u64, 1u64), (5, strings as u64), (10, size), (0, 0)].into_iter().enumerate() {
        let at = 64 + 2 * 56 + index * 16;
        bytes[at..at + 8].copy_from_slice(&tag.to_le_bytes());
        bytes[at + 8..at + 16].copy_from_slice(&value.to_le_bytes());
    }
    bytes.push(0);
    bytes.extend(needed.as_bytes());
    bytes.push(0);
    place.file(path, bytes);
}

struct Case {
    place: TestDirectory,
    surroundings: Surroundings,
    settings: Settings,
    context: ModelContext,
}

impl Case {
    /// Two directories on the PATH, and a home.
    fn new() -> Case {
        let place = TestDirectory::new();
        let path = std::env::join_paths(["one", "two"].map(|name| place.path().join(name))).unwrap();
        let surroundings = Surroundings {
            data_home: Some(place.path().join("data")),
            shared: Vec::new(),
            path: Some(path),
            host: None,
        };
        let context = place.context("m");
        Case { place, surroundings, settings: Settings::default(), context }
    }

    fn environment(&mut self, path: &str) {
        let value = ModelParameter { string_value: self.place.path().join(path).display().to_string() };
        self.context.config.parameters.insert("EXECUTION_ENV_PATH".to_owned(), value);
    }

    fn find(&self) -> Result<Interpreter, Status> {
        Interpreter::find_in(&self.surroundings, &self.context, &self.settings, None, &Environments::default())
    }

    /// Program and origin; or the error, with `<place>` for the test's directory.
    fn found(&self) -> Result<(String, Origin), String> {
        let place = self.place.path().display().to_string();
        match self.find() {
            Ok(found) => Ok((found.program.strip_prefix(&place).unwrap().display().to_string(), found.origin)),
            Err(status) => Err(status.message.replace(&place, "<place>")),
        }
    }
}

fn at(program: &str, origin: Origin) -> Result<(String, Origin), String> {
    Ok((program.to_owned(), origin))
}

#[test]
fn the_nearest_word_chooses() {
    let mut case = Case::new();
    let nothing = case.find().unwrap_err();
    assert_eq!(
        nothing,
        Status::unavailable(
            "there is no python3 on the PATH, which models of the Python backend need. Install Python 3.8 or newer \
             with numpy, run `nereid runtime install python`, or name an interpreter with \
             --backend-config=python,interpreter=<path>"
        )
    );
    python(&case.place, "two/python3", "3.11.7", "1.26.4");
    case.place.file("one/python3", "not a program");
    case.place.file("one/python3.9/x", "a directory");
    assert_eq!(case.found(), at("two/python3", Origin::Path));
    assert!(case.find().unwrap().to_string().starts_with("Python 3.11.7 with numpy 1.26.4: "));
    // The last installed one; incomplete ones do not count.
    for (name, age) in [("3.10-1", 30), ("3.9-2", 20), ("3.12-3", 10)] {
        python(&case.place, &format!("data/nereid/runtimes/python/{name}/bin/python3"), "3.12.0", "2.0.0");
        let marker = case.place.file(&format!("data/nereid/runtimes/python/{name}/complete"), "");
        let time = SystemTime::now() - Duration::from_secs(age);
        fs::File::options().append(true).open(marker).unwrap().set_modified(time).unwrap();
    }
    python(&case.place, "data/nereid/runtimes/python/3.13-4/bin/python3", "3.13.0", "2.0.0");
    fs::remove_file(case.place.path().join("data/nereid/runtimes/python/3.12-3/complete")).unwrap();
    assert_eq!(case.found(), at("data/nereid/runtimes/python/3.9-2/bin/python3", Origin::Installed));
    // The Python program that loaded the server.
    case.surroundings.host = Some(python(&case.place, "host/bin/python", "3.12.1", "2.1.0"));
    assert_eq!(case.found(), at("host/bin/python", Origin::Host));
    // A setting is a path or a name.
    python(&case.place, "two/python3.8", "3.8.1", "1.20.0");
    case.settings.interpreter = Some("python3.8".into());
    assert_eq!(case.found(), at("two/python3.8", Origin::Setting));
    python(&case.place, "else/where", "3.8.2", "1.20.0");
    case.settings.interpreter = Some(case.place.path().join("else/where"));
    assert_eq!(case.found(), at("else/where", Origin::Setting));
    // The model's own environment.
    case.place.file("env/bin/activate", "export NEREID_TEST_CASE=1\n");
    python(&case.place, "env/bin/python3", "3.10.2", "1.22.0");
    case.environment("env");
    assert_eq!(case.found(), at("env/bin/python3", Origin::Environment));
    let found = case.find().unwrap();
    assert!(found.changes.contains(&("NEREID_TEST_CASE".into(), Some("1".into()))), "{:?}", found.changes);
    let environment: Vec<_> = found.command().get_envs().map(|(name, _)| name.to_owned()).collect();
    assert!(environment.contains(&"LD_LIBRARY_PATH".into()), "{environment:?}");
}

#[test]
fn what_cannot_be_run_is_told_with_its_reason() {
    let mut case = Case::new();
    let not = |what: &str, path: &str| Err(format!("--backend-config=python,interpreter={path}: {what}"));
    case.settings.interpreter = Some("python9".into());
    assert_eq!(case.found(), not("there is no such program on the PATH", "python9"));
    case.settings.interpreter = Some(case.place.path().join("none"));
    assert_eq!(case.found(), not("No such file or directory (os error 2)", "<place>/none"));
    case.settings.interpreter = Some(case.place.path().to_owned());
    assert_eq!(case.found(), not("this is no file", "<place>"));
    case.settings.interpreter = Some(case.place.file("text", ""));
    assert_eq!(case.found(), not("this file must not be executed", "<place>/text"));
    case.settings.interpreter = None;
    python(&case.place, "one/python3", "3.11.7", "");
    let error = case.find().unwrap_err();
    assert!(
        error.message.contains("/one/python3' (python3 on the PATH) cannot run models: it has no numpy"),
        "{error}"
    );
    // The next one on the PATH is not the user's python3.
    python(&case.place, "two/python3", "3.11.7", "1.26.4");
    assert!(case.find().is_err());
    case.place.file("env/bin/activate", "");
    python(&case.place, "env/bin/python", "3.7.1", "1.20.0");
    case.environment("env");
    let error = case.find().unwrap_err();
    assert!(
        error.message.contains("/env/bin/python' (EXECUTION_ENV_PATH) cannot run models: it is Python 3.7.1"),
        "{error}"
    );
    case.environment("env2");
    assert_eq!(case.found(), Err("Failed to get the canonical path for <place>/env2.".to_owned()));
}

#[test]
fn a_stub_stands_for_its_version_of_python() {
    let mut case = Case::new();
    python(&case.place, "one/python3", "3.11.7", "1.26.4");
    stub(&case.place, "m/triton_python_backend_stub", "libpython3.10.so.1.0");
    let absent = "the model's triton_python_backend_stub was built for Python 3.10, and there is no python3.10 on the \
                  PATH. Install it with numpy, name an environment with EXECUTION_ENV_PATH, or remove the stub to use \
                  the usual Python";
    let absent = Err(absent.to_owned());
    assert_eq!(case.found(), absent);
    // A shim without an effect, and after it the real one.
    case.place.program("one/python3.10", "#!/bin/sh\necho 'no such version' >&2\nexit 127\n");
    let error = case.found().unwrap_err();
    assert!(error.contains("'<place>/one/python3.10' (the version of the model's"), "{error}");
    assert!(error.contains("it does not say what it is: no such version"), "{error}");
    python(&case.place, "two/python3.10", "3.10.4", "1.26.4");
    assert_eq!(case.found(), at("two/python3.10", Origin::Stub));
    // The usual one, where it is of that version.
    stub(&case.place, "m/triton_python_backend_stub", "libpython3.11.so.1.0");
    assert_eq!(case.found(), at("one/python3", Origin::Stub));
    stub(&case.place, "m/triton_python_backend_stub", "libpython3.12m.so.1.0");
    assert!(case.found().unwrap_err().contains("built for Python 3.12,"));
    // With an environment.
    case.place.file("env/bin/activate", "");
    python(&case.place, "env/bin/python3", "3.12.1", "2.0.0");
    case.environment("env");
    assert_eq!(case.found(), at("env/bin/python3", Origin::Environment));
    python(&case.place, "env/bin/python3.12", "3.12.1", "2.0.0");
    assert_eq!(case.found(), at("env/bin/python3.12", Origin::Environment));
    stub(&case.place, "m/triton_python_backend_stub", "libpython3.9.so.1.0");
    assert_eq!(
        case.found(),
        Err("the model's triton_python_backend_stub was built for Python 3.9, but the environment of \
             EXECUTION_ENV_PATH has Python 3.12.1; remove the stub to use that one"
            .to_owned())
    );
    for (needed, is_text) in
        [("libc.so.6", false), ("libpython2.7.so.1.0", false), ("libpython3.so", false), ("", true)]
    {
        match is_text {
            true => drop(case.place.file("m/triton_python_backend_stub", "#!/bin/sh\n")),
            false => stub(&case.place, "m/triton_python_backend_stub", needed),
        }
        let error = case.found().unwrap_err();
        assert!(error.starts_with("'<place>/m/triton_python_backend_stub' does not say which Python"), "{error}");
    }
}

#[test]
fn what_can_be_known_is_known_without_running_anything() {
    let mut case = Case::new();
    case.settings.interpreter = Some(case.place.path().join("none"));
    let examine = |case: &Case| Interpreter::examine(&case.context, &case.settings, None);
    assert!(examine(&case).unwrap_err().message.contains("No such file"));
    let ran = case.place.path().join("ran");
    case.settings.interpreter = Some(case.place.program("python", &format!("#!/bin/sh\ntouch {}\n", ran.display())));
    assert_eq!(examine(&case), Ok(()));
    case.environment("env");
    assert!(examine(&case).unwrap_err().message.contains("canonical path"));
    case.place.file("env/bin/activate", format!("touch {}\n", ran.display()));
    assert_eq!(examine(&case), Ok(()));
    assert!(!ran.exists());
}
