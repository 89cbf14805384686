//! The same models on the oldest, a middle and the newest library that the server was tested with. It downloads 100 MB,
//! so it runs only on demand.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{fixture, fp32, infer, put};
use nereid_test_support::http::Peer;
use nereid_test_support::library;
use nereid_test_support::paths;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::skip::skip;
use nereid_test_support::variant::usual;
use serde_json::json;

const DEMAND: &str = "NEREID_TEST_ONNXRUNTIME_VERSIONS";

/// Where a version's library comes from: wheels of Python have one of their own since 1.20, packages of Node before.
const VERSIONS: [(&str, &str, &str); 3] = [
    ("1.17.3", "npm", "package/bin/napi-v3/linux/x64/libonnxruntime.so.1.17.3"),
    ("1.20.1", "pip", "onnxruntime/capi/libonnxruntime.so.1.20.1"),
    ("1.31.1", "pip", "onnxruntime/capi/libonnxruntime.so.1.31.1"),
];

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    let text = || format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(()) } else { Err(text()) }
}

/// The library of a version, downloaded once.
fn library_of(version: &str, origin: &str, file: &str) -> Result<PathBuf, String> {
    let folder = paths::target().join(format!("onnxruntime-{version}"));
    let library = folder.join(file);
    if library.is_file() {
        return Ok(library);
    }
    std::fs::create_dir_all(&folder).map_err(|error| format!("{folder:?}: {error}"))?;
    if origin == "npm" {
        let package = format!("onnxruntime-node@{version}");
        run(Command::new("npm").args(["pack", "--silent", &package]).current_dir(&folder))?;
        run(Command::new("tar").arg("xzf").arg(format!("onnxruntime-node-{version}.tgz")).current_dir(&folder))?;
    } else {
        let package = format!("onnxruntime=={version}");
        let target = ["--target", "."];
        let pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", &package];
        run(Command::new("python3").args(pip).args(target).current_dir(&folder))?;
    }
    match library.is_file() {
        true => Ok(library),
        false => Err(format!("{} is not in the package", library.display())),
    }
}

#[test]
fn all_tested_versions_of_the_library_serve_the_same_models() {
    if std::env::var_os(DEMAND).is_none() {
        println!("not run: set {DEMAND}=1");
        return;
    }
    for (version, origin, file) in VERSIONS {
        match library_of(version, origin, file) {
            Ok(library) => serve_on(version, &library),
            Err(reason) => return skip(&reason),
        }
    }
}

fn serve_on(version: &str, runtime: &Path) {
    let repository = Repository::new();
    for name in ["add_sub", "maps", "split", "optionals", "external", "types", "strings"] {
        put(&repository, name, name);
    }
    repository.file("external/1/external.weights", fixture("external.weights"));
    let operators = library::compiled("onnx_operator.c");
    if let Some(operators) = &operators {
        put(&repository, "custom", "custom");
        let path = operators.display();
        let config = format!("backend: \"onnxruntime\" model_operations {{ op_library_filename: \"{path}\" }}");
        repository.file("custom/config.pbtxt", config);
    }
    let flag = format!("--backend-config=onnxruntime,library={}", runtime.display());
    let server = Server::start(usual(), repository.path(), &[&flag]);
    let mut peer = Peer::connect(server.http);
    let one = |name: &str| fp32(name, &[1, 4], &[1.0, 2.0, 3.0, 4.0]);
    let sum = infer(&mut peer, "add_sub", &json!([one("INPUT0"), one("INPUT1")]), &["OUTPUT0"]);
    assert_eq!(sum["OUTPUT0"]["data"], json!([2.0, 4.0, 6.0, 8.0]), "{version}");
    let external = infer(&mut peer, "external", &json!([one("INPUT")]), &[]);
    assert_eq!(external["OUTPUT"]["data"], json!([101.0, 202.0, 303.0, 404.0]), "{version}");
    if operators.is_some() {
        let tripled = infer(&mut peer, "custom", &json!([one("INPUT")]), &[]);
        assert_eq!(tripled["OUTPUT"]["data"], json!([3.0, 6.0, 9.0, 12.0]), "{version}");
    }
    let maps = infer(&mut peer, "maps", &json!([fp32("INPUT", &[1, 3], &[1.0, 2.0, 3.0])]), &[]);
    assert_eq!(maps["MAPS"]["data"], json!([2.0, 3.0, 1.0]), "{version}");
    let words = json!({"name": "WORDS", "datatype": "BYTES", "shape": [1, 2], "data": ["a", "b"]});
    let inputs = json!([fp32("INPUT", &[1, 2], &[1.0, 2.0]), fp32("SHORT", &[1, 2], &[3.0, 4.0]), words]);
    let split = infer(&mut peer, "split", &inputs, &["ROWS", "UNEQUAL", "LISTS"]);
    assert_eq!(split["UNEQUAL"]["data"], json!([1.0, 2.0, 3.0, 4.0]), "{version}");
    let optionals = infer(&mut peer, "optionals", &json!([fp32("OTHER", &[2], &[5.0, 6.0])]), &["HAS", "VALUE"]);
    assert_eq!(optionals["HAS"]["data"], json!([false]), "{version}");
    let log = server.stop();
    assert!(log.contains(&format!("ONNX Runtime {version} from ")), "{log}");
}
