//! The sandbox of docs/tuning.md: the server under the profile `tuning/seccomp.json`, as a user without privileges, on
//! a file system that it cannot write to, serves models of the native backends, of ONNX Runtime and in Python.
//!
//! The kernel applies the profile (support/confine.c). Here a system call that is not in it ends the process, where the
//! profile itself refuses it: a call that is missing is then a test that fails, and no fault that shows elsewhere.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use nereid_test_support::confine;
use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::Peer;
use nereid_test_support::paths;
use nereid_test_support::python::Python;
use nereid_test_support::server::{OTHER_SERVER, Server};
use nereid_test_support::skip::skip;
use nereid_test_support::variant::{self, Variant, each, usual};
use nereid_wire::inference as wire;

use super::service::SEVEN;

const MODEL: &str = "
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, 'INPUT0').as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', tensor + 1)]) for tensor in inputs]
";
const CONFIG: &str = "input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ -1 ] } \
                      output { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ -1 ] }";

/// In a mount namespace of its own: everything is read-only but /tmp; `$1` is shown at `$2`, because users without
/// privileges may not reach an interpreter under another one's home.
const SCRIPT: &str = "set -e
mount --make-rprivate /
mount --bind \"$1\" \"$2\"
mount -o remount,bind,ro /
mount -t tmpfs -o mode=1777,size=64m tmpfs /tmp
shift 2
exec setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --no-new-privs \"$@\"";

/// The numbers of system calls by name on this host.
fn numbers() -> Option<HashMap<String, u32>> {
    let source = "echo '#include <sys/syscall.h>' | cc -dM -E -";
    let output = Command::new("sh").args(["-c", source]).output().expect("sh");
    if !output.status.success() {
        skip("no C compiler that has the numbers of system calls");
        return None;
    }
    let text = String::from_utf8(output.stdout).expect("definitions");
    let defined = text.lines().filter_map(|line| line.strip_prefix("#define __NR_")?.split_once(' '));
    Some(defined.filter_map(|(name, number)| Some((name.to_owned(), number.trim().parse().ok()?))).collect())
}

/// The profile as confine.c takes it, without some calls. Names that this architecture lacks are left out.
fn profile(without: &[&str]) -> Option<String> {
    let numbers = numbers()?;
    let text = std::fs::read_to_string(paths::root().join("tuning/seccomp.json")).expect("the profile");
    let profile: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&profile["defaultAction"], &profile["defaultErrnoRet"]), (&"SCMP_ACT_ERRNO".into(), &1.into()));
    let mut calls = Vec::new();
    for rule in profile["syscalls"].as_array().expect("rules") {
        let effect = match (rule["action"].as_str().expect("an action"), rule["args"].as_array()) {
            ("SCMP_ACT_ALLOW", None) => String::new(),
            ("SCMP_ACT_ERRNO", None) => format!("={}", rule["errnoRet"]),
            ("SCMP_ACT_ALLOW", Some(arguments)) => {
                let argument = &arguments[0];
                assert_eq!((arguments.len(), &argument["index"]), (1, &0.into()));
                assert_eq!((&argument["op"], &argument["valueTwo"]), (&"SCMP_CMP_MASKED_EQ".into(), &0.into()));
                format!("&{}", argument["value"])
            }
            (action, _) => panic!("the test knows no {action}"),
        };
        for name in rule["names"].as_array().expect("names") {
            let name = name.as_str().expect("a name");
            if let Some(number) = numbers.get(name).filter(|_| !without.contains(&name)) {
                calls.push(format!("{number}{effect}"));
            }
        }
    }
    assert!(calls.len() > 200, "{} calls", calls.len());
    Some(calls.join(","))
}

/// A directory that every user may read, and that is removed at the end.
struct Site(PathBuf);

impl Site {
    fn new(name: &str) -> Site {
        let path = paths::temporary().join(format!("sandbox-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        for folder in ["python", "models/py/1", "models/plain/1"] {
            std::fs::create_dir_all(path.join(folder)).expect("a directory");
        }
        let write = |name: &str, text: &str| std::fs::write(path.join("models").join(name), text).expect("a file");
        write("py/1/model.py", MODEL);
        write("py/config.pbtxt", &format!("backend: \"python\" {CONFIG}"));
        write("plain/config.pbtxt", &format!("backend: \"identity\" {CONFIG}"));
        let digits = paths::root().join("model_repository/digits");
        let output = Command::new("cp").arg("-r").arg(digits).arg(path.join("models")).output().expect("cp");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Site(path)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The command line up to the server's flags. None, after a visible skip, if this host cannot run it.
fn command(site: &Site, python: &Python, confined: &[String]) -> Option<Vec<String>> {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    let unshares = || Command::new("unshare").args(["--mount", "true"]).status().is_ok_and(|status| status.success());
    let drops = || Command::new("setpriv").arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_root || !unshares() || !drops() {
        skip("the sandbox needs root, unshare and setpriv to be set up");
        return None;
    }
    let base = "import sys; print(sys.base_prefix); print(sys.executable)";
    let output = Command::new(python.interpreter()).args(["-c", base]).output().expect("the interpreter");
    let prefix = String::from_utf8(output.stdout).expect("a path").lines().next().expect("a line").to_owned();
    let shown = site.0.join("python");
    let script = ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", &prefix];
    let mut words: Vec<String> = script.map(str::to_owned).to_vec();
    words.push(shown.display().to_string());
    words.extend(["env".to_owned(), "-i".to_owned()]);
    words.push(format!("PATH={}:/usr/bin:/bin", shown.join("bin").display()));
    words.push(format!("PYTHONPATH={}", python.packages().display()));
    words.extend_from_slice(confined);
    Some(words)
}

fn status_of(pid: u32) -> HashMap<String, String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the status of the server");
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect()
}

/// The confinement is as the page says, in the server and in the process of the Python model.
fn assert_confined(pid: u32) {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("children");
    let workers: Vec<u32> = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    for pid in [pid].into_iter().chain(workers) {
        let status = status_of(pid);
        let expected =
            [("Seccomp", "2"), ("NoNewPrivs", "1"), ("CapEff", "0000000000000000"), ("CapBnd", "0000000000000000")];
        for (field, value) in expected {
            assert_eq!(status[field], value, "{field} of {pid}");
        }
        assert!(status["Uid"].starts_with("65534\t65534"), "{status:?}");
        let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("mounts");
        let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).expect("the root");
        assert!(root.split(' ').nth(5).is_some_and(|options| options.split(',').any(|one| one == "ro")), "{root}");
    }
}

fn serve(variant: Variant, site: &Site, python: &Python, words: &[String], said: &str) {
    let flags = [python.onnxruntime_flag(), "--audit-log=-".to_owned(), "--trace-config=rate=1".to_owned()];
    let more = ["--trace-config=level=TIMESTAMPS".to_owned(), "--trace-config=triton,file=/tmp/trace".to_owned()];
    let flags: Vec<&str> = flags.iter().chain(&more).map(String::as_str).collect();
    let server = Server::start_under(words, variant, &site.0.join("models"), &flags, "/v2/health/ready");
    assert_confined(server.pid());
    let mut peer = Peer::connect(server.http);
    for (model, value) in [("plain", 7), ("py", 8)] {
        let body = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[7]}]}"#;
        let answer = peer.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{model}: {}", answer.text());
        assert_eq!(answer.json()["outputs"][0]["data"][0], value, "{model}");
    }
    let answer = peer.post("/v2/models/digits/infer", &[], SEVEN.as_bytes());
    assert!(answer.text().contains(":7:seven"), "{}", answer.text());
    let mut grpc = Grpc::connect(server.grpc);
    let asked = wire::ModelMetadataRequest { name: "py".to_owned(), version: String::new() };
    let answer: wire::ModelMetadataResponse = grpc.call("ModelMetadata", &asked).expect("metadata");
    assert_eq!(answer.name, "py");
    assert_eq!(peer.post("/v2/logging", &[], b"{\"log_verbose_level\":1}").status, 200);
    assert_eq!(Peer::connect(server.metrics).get("/metrics").status, 200);
    let log = server.stop();
    assert!(log.contains(said), "{log}");
    assert!(log.contains("\"action\":\"log-settings\""), "{log}");
    assert!(!log.contains("failed creating trace file"), "{log}");
}

#[test]
fn the_profile_has_all_that_a_server_calls() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return;
    }
    let (Some(python), Some(calls)) = (Python::get(), profile(&[])) else { return };
    let Some(confined) = confine::allowing(&calls, true) else { return };
    let site = Site::new("whole");
    let Some(words) = command(&site, &python, &confined) else { return };
    each(&variant::ALL, |variant| serve(variant, &site, &python, &words, "Started HTTPService"));
}

/// Some hosts allow no io_uring: the server then takes epoll, under the profile without it.
#[test]
fn the_profile_without_io_uring_is_served_by_epoll() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return;
    }
    let without = ["io_uring_setup", "io_uring_enter", "io_uring_register"];
    let (Some(python), Some(calls)) = (Python::get(), profile(&without)) else { return };
    let Some(confined) = confine::allowing(&calls, false) else { return };
    let site = Site::new("epoll");
    let Some(words) = command(&site, &python, &confined) else { return };
    let auto = Variant { io_engine: "auto", ..usual() };
    serve(auto, &site, &python, &words, "epoll");
}

/// What the profile is for: none of these may be in it.
#[test]
fn the_profile_refuses_what_changes_the_host() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tuning/seccomp.json"));
    let profile: Value = serde_json::from_str(&text.expect("the profile")).expect("JSON");
    let rules = profile["syscalls"].as_array().expect("rules");
    let names: Vec<&str> =
        rules.iter().flat_map(|rule| rule["names"].as_array().expect("names")).filter_map(Value::as_str).collect();
    let mut unique = names.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), names.len(), "a call is listed twice");
    for refused in [
        "acct",
        "add_key",
        "bpf",
        "chroot",
        "delete_module",
        "finit_module",
        "init_module",
        "kexec_load",
        "keyctl",
        "mount",
        "move_mount",
        "name_to_handle_at",
        "open_by_handle_at",
        "open_tree",
        "perf_event_open",
        "personality",
        "pidfd_getfd",
        "pivot_root",
        "process_vm_readv",
        "process_vm_writev",
        "ptrace",
        "quotactl",
        "reboot",
        "request_key",
        "setgid",
        "setns",
        "setuid",
        "swapon",
        "umount2",
        "unshare",
        "userfaultfd",
    ] {
        assert!(!names.contains(&refused), "{refused}");
    }
}
