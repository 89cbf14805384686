//! Which Python runs a model: environments in directories and archives, their errors, and Python-based backends.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use serde_json::{Value, json};

use super::models::{self, add};
use nereid_test_support::http::Peer;
use nereid_test_support::prepared::step;
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::{Server, run_to_end};
use nereid_test_support::skip::skip;
use nereid_test_support::variant::usual;

/// Virtual environments, and a temporary directory for servers.
struct Place {
    root: PathBuf,
    python: Python,
}

impl Place {
    /// None, after a visible skip, where there is no Python with numpy.
    fn new(name: &str) -> Option<Place> {
        let python = Python::get()?;
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("environments-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("tmp")).expect("a directory");
        Some(Place { root: root.canonicalize().expect("a directory"), python })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A virtual environment of the tests' own Python, made once and copied; it sees their numpy if it shall.
    fn environment(&self, name: &str, has_numpy: bool) -> Option<PathBuf> {
        static MAKING: Mutex<()> = Mutex::new(());
        let made = {
            let _one = MAKING.lock();
            let mut command = Command::new(self.python.interpreter());
            step(command.args(["-m", "venv", "--without-pip", "--clear"]).arg(self.path(name)))
        };
        if let Err(reason) = made {
            skip(&format!("no virtual environment can be made: {reason}"));
            return None;
        }
        let root = self.path(name);
        let activate = root.join("bin/activate");
        let mut script = fs::read_to_string(&activate).expect("its script");
        script.push_str("\nexport NEREID_TEST_ACTIVATED=yes\n");
        fs::write(&activate, script).expect("its script");
        if has_numpy {
            let lib =
                fs::read_dir(root.join("lib")).expect("its libraries").flatten().next().expect("a version").path();
            let packages = self.python.packages().display().to_string();
            fs::write(lib.join("site-packages/tests.pth"), packages).expect("a line for numpy");
        }
        Some(root)
    }

    /// What `environment` has, as `tar -czf` packs it.
    fn pack(&self, environment: &Path, archive: &Path) -> bool {
        let mut command = Command::new("tar");
        match step(command.arg("-czf").arg(archive).arg("-C").arg(environment).arg(".")) {
            Ok(_) => true,
            Err(reason) => {
                skip(&format!("no archive can be made: {reason}"));
                false
            }
        }
    }

    /// An archive as conda-pack makes it, with an interpreter of its own.
    fn conda(&self, name: &str, more: &[&str]) -> PathBuf {
        let (archive, packages) = (self.path(name), self.python.packages());
        let [given, packages] = [&archive, &packages].map(|path| path.display().to_string());
        self.python.run("conda_packed.py", &[&[given.as_str(), &packages], more].concat());
        archive
    }

    /// A server whose temporary directory is our own.
    fn serve(&self, repository: &Repository, flags: &[&str], probe: &str) -> Server {
        let interpreter = format!("--backend-config=python,interpreter={}", self.python.interpreter().display());
        let mut all = vec![interpreter.as_str()];
        all.extend(flags);
        let temporary = self.path("tmp").display().to_string();
        let environment = [("TMPDIR", temporary.as_str()), ("LD_LIBRARY_PATH", "/as/before")];
        Server::start_in(usual(), repository.path(), &all, probe, &environment)
    }

    /// What lies in that directory.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("tmp")).expect("the temporary directory");
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// The model of the same name in tests/python_models, with more lines of configuration.
fn places(repository: &Repository, name: &str, more: &str) {
    add(repository, "places", name);
    let config = repository.path().join(name).join("config.pbtxt");
    let text = fs::read_to_string(&config).expect("its configuration");
    fs::write(config, format!("{text}\n{more}\n")).expect("its configuration");
}

fn environment_of(path: &str) -> String {
    format!("parameters {{ key: \"EXECUTION_ENV_PATH\" value {{ string_value: \"{path}\" }} }}")
}

/// What a model says of where it runs.
fn ask(server: &Server, model: &str) -> Vec<String> {
    let body = r#"{"inputs":[{"name":"ASKED","datatype":"INT32","shape":[1],"data":[1]}]}"#;
    let answer = Peer::connect(server.http).post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes());
    assert_eq!(answer.status, 200, "{model}: {}\n{}", answer.text(), server.log());
    let places = answer.json()["outputs"][0]["data"].clone();
    let places: Vec<String> = serde_json::from_value(places).expect("a list of texts");
    assert_eq!(places.len(), 12, "{places:?}");
    places
}

/// Why a model is not there.
fn reason(index: &Value, model: &str) -> String {
    let row = index.as_array().into_iter().flatten().find(|row| row["name"] == model).cloned().unwrap_or_default();
    assert_eq!(row["state"], "UNAVAILABLE", "{model}: {index}");
    row["reason"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn environments_are_directories_or_archives_which_models_share() {
    let Some(place) = Place::new("shared") else { return };
    let Some(environment) = place.environment("venv", true) else { return };
    let repository = Repository::new();
    let archive = place.path("packed");
    if !place.pack(&environment, &archive) {
        return;
    }
    places(&repository, "plain", "");
    places(&repository, "directory", &environment_of(&environment.display().to_string()));
    places(&repository, "archive", &environment_of(&archive.display().to_string()));
    places(&repository, "again", &environment_of(&archive.display().to_string()));
    places(&repository, "inside", &environment_of("$$TRITON_MODEL_DIRECTORY/own/env.tar.gz"));
    repository.file("inside/own/env.tar.gz", fs::read(&archive).expect("the archive"));
    let backends = format!("--backend-directory={}", place.path("backends").display());
    let server = place.serve(&repository, &[&backends, "--log-verbose=1"], "/v2/health/ready");

    let [plain, directory, archived, again, inside] =
        ["plain", "directory", "archive", "again", "inside"].map(|model| ask(&server, model));
    assert_eq!(plain[1], "none");
    assert_eq!(directory[..2], [environment.display().to_string(), "yes".to_owned()]);
    let unpacked = format!("{}/python_env_", place.path("tmp").display());
    for places in [&archived, &again, &inside] {
        assert!(places[0].starts_with(&unpacked), "{places:?}");
        assert_eq!(places[1], "yes");
    }
    assert_eq!(archived[0], again[0], "unpacked once");
    assert_ne!(archived[0], inside[0]);
    for places in [&directory, &archived, &again, &inside] {
        let root = &places[0];
        assert_eq!(places[8..], [root.clone(), format!("({root})"), format!("{root}/bin"), "none".to_owned()]);
    }
    // What the model starts has the libraries that the server has.
    for (model, places) in
        [("plain", &plain), ("directory", &directory), ("archive", &archived), ("again", &again), ("inside", &inside)]
    {
        let version = repository.path().join(model).join("1");
        let search = [&version, version.parent().expect("the model's directory"), &place.path("backends/python")]
            .map(|path| path.display().to_string());
        let expected = ["/as/before", &version.display().to_string(), "1.model", "1.sibling", &search.join(":")];
        assert_eq!(places[2..7], expected, "{model}");
    }
    let log = server.stop();
    assert!(log.contains("(EXECUTION_ENV_PATH)") && log.contains("(--backend-config=python,interpreter)"), "{log}");
    // Lines that scripts look for in a verbose log of Triton.
    let (packed, venv) = (archive.display(), environment.display());
    for line in [
        format!("Starting Python backend stub: {}", place.python.interpreter().display()),
        format!("Starting Python backend stub with custom environment: {venv}/bin/"),
        format!("Using Python execution env {venv}"),
        format!("Using Python execution env {packed}"),
        format!("Extracting Python execution env {packed}"),
        "Shared memory configuration is shm-default-byte-size=".to_owned(),
        ",stub-timeout-seconds=30".to_owned(),
    ] {
        assert!(log.contains(&line), "{line}: {log}");
    }
    assert_eq!(place.left(), [""; 0], "removed with the server");
}

/// An environment that needs nothing of where it was made: it runs where it was unpacked, and knows that.
#[test]
fn what_conda_pack_packed_runs_where_it_is_unpacked() {
    let Some(place) = Place::new("conda") else { return };
    if Command::new("bash").arg("--version").output().is_err() {
        return skip("the activation script of conda-pack is one for bash, which is not here");
    }
    let repository = Repository::new();
    for (model, exit_code) in [("moved", "0"), ("half_moved", "3")] {
        let archive = place.conda(model, &["--unpack-exits", exit_code]);
        places(&repository, model, &environment_of(&archive.display().to_string()));
    }
    let server = place.serve(&repository, &[], "/v2/health/ready");
    for model in ["moved", "half_moved"] {
        let places = ask(&server, model);
        let prefix = Path::new(&places[0]);
        assert!(prefix.starts_with(place.path("tmp")), "its own interpreter and libraries run: {places:?}");
        assert_eq!(places[1], format!("by {}", places[0]), "what packages have to say is heard");
        assert_eq!(places[2], "/as/before");
        let read = |name: &str| fs::read_to_string(prefix.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(read("share/of the environment.txt"), format!("prefix={}\n", places[0]));
        assert_eq!(read("bin/tool").lines().next(), Some(format!("#!{}/bin/python", places[0]).as_str()));
        let long = format!("share/{}é/file", "a long name, ".repeat(9));
        assert_eq!(read(&long), "a name that needs an extended header\n");
        assert!(prefix.join("var/empty").is_dir());
        let link = fs::read_link(prefix.join("bin/python")).expect("a link");
        assert_eq!(link, Path::new(&format!("python{}", places[7])), "links lead to where they led");
        let [one, other] = ["", "-again"].map(|end| fs::read(prefix.join(format!("bin/python{}{end}", places[7]))));
        assert_eq!(one.expect("the interpreter"), other.expect("its other name"));
    }
    let log = server.stop();
    // What the script has done until it failed is done, and the environment is used.
    let failed = "bin/conda-unpack' failed: ";
    assert_eq!(log.matches(failed).count(), 1, "{log}");
    assert_eq!(place.left(), [""; 0], "removed with the server");
}

/// What a server left that was killed, the next one removes.
#[test]
fn what_a_killed_server_unpacked_is_removed_by_the_next() {
    let Some(place) = Place::new("killed") else { return };
    let Some(environment) = place.environment("venv", true) else { return };
    let archive = place.path("packed");
    if !place.pack(&environment, &archive) {
        return;
    }
    let repository = Repository::new();
    places(&repository, "archive", &environment_of(&archive.display().to_string()));
    let server = place.serve(&repository, &[], "/v2/health/ready");
    // Dropped, it is killed.
    drop(server);
    let left = place.left();
    assert!(left.len() == 1 && left[0].starts_with("python_env_"), "{left:?}");
    let server = place.serve(&repository, &[], "/v2/health/ready");
    let now = place.left();
    assert!(now.len() == 1 && now != left, "{now:?}");
    server.stop();
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn what_is_wrong_with_an_environment_is_the_reason_of_its_model() {
    let Some(place) = Place::new("wrong") else { return };
    let Some(bare) = place.environment("bare", false) else { return };
    let repository = Repository::new();
    let root = place.root.display().to_string();
    let program = |path: &str, text: &str| {
        let file = place.path(path);
        fs::create_dir_all(file.parent().expect("its directory")).expect("a directory");
        fs::write(&file, text).expect("a program");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a program");
    };
    fs::create_dir_all(place.path("no-activate/bin")).expect("a directory");
    let old = "#!/bin/sh\nprintf 'nereid\\037cpython\\0373.7.17\\0371.21.6\\037\\n'\n";
    program("old/bin/python3", old);
    fs::write(place.path("old/bin/activate"), "").expect("a script");
    program("broken/bin/python3", old);
    fs::write(place.path("broken/bin/activate"), "echo this does not work >&2\nfalse\n").expect("a script");
    fs::write(place.path("words.tar.gz"), "this is no archive at all, however long it may be").expect("a file");
    fs::create_dir_all(place.path("headless/bin")).expect("a directory");
    fs::write(place.path("headless/bin/activate"), "").expect("a script");
    for (model, path) in [
        ("no_activate", "no-activate"),
        ("missing", "missing"),
        ("no_numpy", "bare"),
        ("old", "old"),
        ("broken", "broken"),
        ("words", "words.tar.gz"),
        ("headless", "headless"),
    ] {
        places(&repository, model, &environment_of(&place.path(path).display().to_string()));
    }
    places(&repository, "stub", "");
    repository.file("stub/triton_python_backend_stub", "#!/bin/sh\n");
    places(&repository, "no_script", "default_model_filename: \"model.txt\"");
    places(&repository, "absent", "default_model_filename: \"other.py\"");
    let gpu = "parameters { key: \"FORCE_CPU_ONLY_INPUT_TENSORS\" value { string_value: \"maybe\" } }";
    places(&repository, "gpu", gpu);
    places(&repository, "semi;colon", "");
    places(&repository, "instance", "instance_group { name: \"a|b\" kind: KIND_CPU }");
    places(&repository, "good", "");
    let server = place.serve(&repository, &["--exit-on-error=false"], "/v2/health/live");
    let index = Peer::connect(server.http).post("/v2/repository/index", &[], b"").json();
    let no_activate = format!(
        "Internal: Path {root}/no-activate/bin/activate does not exist. The Python environment should contain an \
         'activate' script."
    );
    for (model, expected) in [
        ("no_activate", no_activate.as_str()),
        ("missing", &format!("Internal: Failed to get the canonical path for {root}/missing.")),
        ("words", &format!("Internal: Failed to unpack the Python environment '{root}/words.tar.gz': it is cut off")),
        (
            "headless",
            &format!(
                "Internal: the Python environment of EXECUTION_ENV_PATH has no interpreter: {root}/headless/bin/python3 \
                 is missing"
            ),
        ),
        (
            "broken",
            &format!(
                "Internal: failed to activate the Python environment '{root}/broken/bin/activate': this does not work"
            ),
        ),
        ("no_script", "Invalid argument: Model name must end with '.py'. Model name is \"model.txt\"."),
        (
            "absent",
            &format!(
                "Internal: Failed to preinitialize Python stub: Python model file not found in \
                 '{}/absent/1/other.py'",
                repository.path().display()
            ),
        ),
        ("gpu", "Unsupported: Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe'"),
        ("semi;colon", "Invalid argument: Invalid stub name: contains invalid characters"),
        ("instance", "Invalid argument: Invalid stub name: contains invalid characters"),
    ] {
        assert_eq!(reason(&index, model), expected, "{model}");
    }
    for (model, parts) in [
        ("no_numpy", [format!("'{}/bin/python3' (EXECUTION_ENV_PATH)", bare.display()), "it has no numpy".to_owned()]),
        ("old", [format!("'{root}/old/bin/python3'"), "it is Python 3.7.17, and models need Python 3.8".to_owned()]),
        ("stub", ["stub/triton_python_backend_stub' does not say".to_owned(), "remove it".to_owned()]),
    ] {
        let reason = reason(&index, model);
        assert!(parts.iter().all(|part| reason.contains(part)), "{model}: {reason}");
    }
    assert_eq!(ask(&server, "good")[1], "none", "what others have done to themselves is theirs");
    server.stop();
    assert_eq!(place.left(), [""; 0]);
}

#[test]
fn settings_that_are_wrong_fail_the_load_in_tritons_words() {
    let Some(place) = Place::new("settings") else { return };
    let repository = models::repository(&["places"]);
    for (flag, expected) in [
        ("--backend-config=python,thread-pool-size=0", "Invalid argument: thread-pool-size can't be less than 1."),
        (
            "--backend-config=python,shm-default-byte-size=4096",
            "Invalid argument: shm-default-byte-size can't be smaller than 4 MiBs",
        ),
        (
            "--backend-config=python,interpreter=/nonexistent/python",
            "Invalid argument: --backend-config=python,interpreter=/nonexistent/python: No such file or directory (os \
             error 2)",
        ),
    ] {
        let server = place.serve(&repository, &[flag, "--exit-on-error=false"], "/v2/health/live");
        let index = Peer::connect(server.http).post("/v2/repository/index", &[], b"").json();
        assert_eq!(reason(&index, "places"), expected, "{flag}");
        server.stop();
    }
    let flags = ["--backend-config=python,colour=red", "--python-execute-timeout=600", "--python-restart=false"];
    let flags = [&flags[..], &["--log-verbose=1"]].concat();
    let server = place.serve(&repository, &flags, "/v2/health/ready");
    ask(&server, "places");
    let log = server.stop();
    assert_eq!(log.matches("knows no setting 'colour'").count(), 1, "{log}");
    assert!(log.contains("execute-timeout=600, restart=false"), "{log}");
}

#[test]
fn a_python_based_backend_serves_all_its_models() {
    let Some(place) = Place::new("based") else { return };
    let Some(environment) = place.environment("venv", true) else { return };
    let backends = place.path("backends");
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python_models/places/1");
    for backend in ["snake", "packed"] {
        fs::create_dir_all(backends.join(backend)).expect("a directory");
        for file in ["model.py", "sibling.py"] {
            fs::copy(from.join(file), backends.join(backend).join(file)).expect("a copy");
        }
    }
    if !place.pack(&environment, &backends.join("packed/pb_exec_env_model.py.tar.gz")) {
        return;
    }
    let repository = Repository::new();
    let tensors = r#"input { name: "ASKED" data_type: TYPE_INT32 dims: [ 1 ] }
        output { name: "PLACES" data_type: TYPE_STRING dims: [ -1 ] }"#;
    repository.model("one", &format!("backend: \"snake\" {tensors}"));
    // A file that means something else to the model.
    repository
        .model("two", &format!("backend: \"snake\" runtime: \"model.py\" {tensors}"))
        .file("two/1/model.py", "x(");
    repository.model("three", &format!("backend: \"packed\" {tensors}"));
    repository.model("four", &format!("backend: \"python\" runtime: \"model.py\" {tensors}"));
    for file in ["model.py", "sibling.py"] {
        repository.file(&format!("four/1/{file}"), fs::read(from.join(file)).expect("the script"));
    }
    repository.model("five", &format!("backend: \"nobody\" runtime: \"model.py\" {tensors}"));
    let directory = format!("--backend-directory={}", backends.display());
    let flags = [directory.as_str(), "--exit-on-error=false", "--backend-config=snake,thread-pool-size=0"];
    // Its settings are those of python, so that its own are not looked at.
    let server = place.serve(&repository, &flags, "/v2/health/live");
    let [one, two, three, four] = ["one", "two", "three", "four"].map(|model| ask(&server, model));
    for (model, places) in [("one", &one), ("two", &two)] {
        let snake = backends.join("snake").display().to_string();
        let search = format!("{snake}:{}:{}", backends.display(), backends.join("python").display());
        let version = repository.path().join(model).join("1").display().to_string();
        assert_eq!(places[3..7], [version.as_str(), "snake.model", "snake.sibling", &search], "{model}");
    }
    assert_eq!((&*one[1], &*three[1], &*three[4], &*four[4]), ("none", "yes", "packed.model", "1.model"));
    let mut peer = Peer::connect(server.http);
    for (model, runtime) in [("one", "model.py"), ("two", "model.py"), ("four", "model.py")] {
        assert_eq!(peer.get(&format!("/v2/models/{model}/config")).json()["runtime"], runtime, "{model}");
    }
    let packed = &peer.get("/v2/models/three/config").json()["parameters"]["EXECUTION_ENV_PATH"]["string_value"];
    assert_eq!(packed, &json!(backends.join("packed/pb_exec_env_model.py.tar.gz")), "clients see it");
    let index = peer.post("/v2/repository/index", &[], b"").json();
    let expected = format!(
        "Invalid argument: unable to find backend library 'model.py' for model 'five', searched: '{}/nobody'",
        backends.display()
    );
    assert_eq!(reason(&index, "five"), expected);
    let log = server.stop();
    let script = backends.join("snake/model.py").display().to_string();
    assert!(log.lines().any(|line| line.contains("snake") && line.contains(&script)), "{log}");
    assert_eq!(place.left(), [""; 0]);

    let store = repository.path().display().to_string();
    let interpreter = format!("--backend-config=python,interpreter={}", place.python.interpreter().display());
    let (status, out, err) = run_to_end(&["check", &store, "--format=json", &directory, &interpreter]);
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    let problems = |model: &str| {
        let found = report["models"].as_array().into_iter().flatten().find(|row| row["name"] == model);
        found.map(|row| row["problems"].clone()).unwrap_or_default()
    };
    for model in ["one", "two", "three", "four"] {
        assert_eq!(problems(model), json!([]), "{model}: {report}");
    }
    assert!(!status.success() && problems("five")[0].as_str().is_some_and(|text| text.contains("unable to find")));
    let (status, out, err) = run_to_end(&["explain", &format!("{store}/one"), &directory, &interpreter]);
    assert!(status.success() && out.contains(&script), "{out}{err}");
}
