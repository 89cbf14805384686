//! The service of the documentation: the command line of `tuning/nereid.service` needs only the files of `nereid
//! install` and `nereid runtime install`; a user without a home and without environment variables runs it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nereid_test_support::http::Peer;
use nereid_test_support::python::Python;
use nereid_test_support::server::{OTHER_SERVER, Server};
use nereid_test_support::skip::skip;
use nereid_test_support::variant::usual;

/// A seven, 8 x 8.
pub const SEVEN: &str = r#"{"inputs":[{"name":"image","datatype":"FP32","shape":[1,64],"data":[
    0,0,7,16,16,16,7,0, 0,0,9,8,8,14,11,0, 0,0,0,0,2,15,4,0, 0,0,2,8,12,16,8,0,
    0,0,9,16,16,11,5,0, 0,0,0,14,6,0,0,0, 0,0,4,15,0,0,0,0, 0,0,9,10,0,0,0,0]}],
    "outputs":[{"name":"probabilities","parameters":{"classification":1}}]}"#;

/// Where every user may read, and what is removed at the end.
struct Site(PathBuf);

impl Site {
    fn new() -> Site {
        let path = std::env::temp_dir().join(format!("nereid-service-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("its mode");
        Site(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn succeeded(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}: {}{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// A `python3` whose pip has a package that holds `library`: no test should need a network.
fn python_with(directory: &Path, library: &Path) {
    let script = format!(
        r#"#!/bin/sh
case "$*" in
  "-m pip download"*)
    for word in "$@"; do [ "$before" = --dest ] && dest="$word"; before="$word"; done
    : > "$dest/onnxruntime-1.31.1-cp311-cp311-manylinux_2_28_x86_64.whl" ;;
  -c*) cp "{}" "$4/libonnxruntime.so.1.31.1" ;;
esac
"#,
        library.display()
    );
    std::fs::create_dir_all(directory).expect("a directory");
    std::fs::write(directory.join("python3"), script).expect("a script");
    std::fs::set_permissions(directory.join("python3"), std::fs::Permissions::from_mode(0o755)).expect("its mode");
}

/// `ExecStart` of the unit, with the places of this test.
fn command_line(prefix: &Path, models: &Path) -> Vec<String> {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("tuning/nereid.service");
    let unit = std::fs::read_to_string(unit).expect("the unit");
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("ExecStart");
    let words = line.split_whitespace().filter(|word| *word != "$NEREID_FLAGS");
    let placed = words.map(|word| {
        let word = word.replace("/opt/nereid", &prefix.display().to_string());
        word.replace("/var/lib/nereid/models", &models.display().to_string())
    });
    placed.collect()
}

fn copy(from: &Path, to: &Path) {
    let output = Command::new("cp").arg("-r").args([from, to]).output();
    succeeded(&output.expect("cp starts"));
}

#[test]
fn an_installed_service_classifies_a_digit() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return;
    }
    let Some(python) = Python::get() else { return };
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    let drop_rights = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    if is_root && Command::new("setpriv").arg("--version").output().is_err() {
        return skip("no setpriv to become another user with");
    }
    let site = Site::new();
    let (prefix, models) = (site.path("opt"), site.path("models"));
    let place = format!("--prefix={}", prefix.display());
    succeeded(&Command::new(env!("CARGO_BIN_EXE_nereid")).args(["install", &place]).output().expect("install"));
    python_with(&site.path("python"), &python.onnxruntime());
    let path = format!("{}:/usr/bin:/bin", site.path("python").display());
    let mut install = Command::new(prefix.join("bin/nereid"));
    install.args(["runtime", "install", "onnxruntime", &place]).env_clear().env("PATH", path);
    succeeded(&install.output().expect("runtime install"));
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("model_repository"), &models);
    let mut words: Vec<String> = if is_root { drop_rights.map(str::to_owned).to_vec() } else { Vec::new() };
    words.extend(["env".to_owned(), "-i".to_owned()]);
    let command = command_line(&prefix, &models);
    assert!(command.iter().any(|word| *word == format!("--backend-directory={}/backends", prefix.display())));
    words.extend(command);
    let server = Server::start_under(&words, usual(), &models_beside(&site), &[], "/v2/health/ready");
    let answer = Peer::connect(server.http).post("/v2/models/digits/infer", &[], SEVEN.as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let best = answer.json()["outputs"][0]["data"][0].as_str().expect("a class").to_owned();
    assert!(best.ends_with(":7:seven"), "{best}");
    let log = server.stop();
    let library = prefix.join("lib/nereid/runtimes/onnxruntime/1.31.1/libonnxruntime.so.1.31.1");
    let library = library.canonicalize().expect("the installed library");
    assert!(log.contains(&format!("from {}", library.display())), "{log}");
}

/// A repository for the flag that every started server gets; the unit's own comes besides.
fn models_beside(site: &Site) -> PathBuf {
    let path = site.path("beside");
    std::fs::create_dir_all(path.join("beside/1")).expect("a directory");
    let config = "backend: \"identity\" input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ -1 ] } \
                  output { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ -1 ] }";
    std::fs::write(path.join("beside/config.pbtxt"), config).expect("a configuration");
    path
}
