//! `nereid doctor` on ports that are taken and files that the server's user may not read.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use nereid_test_support::server::{free_port, run_to_end};

/// A user that owns nothing.
const STRANGER: &str = "--user=64321:64321";

/// A repository that everybody reaches, with one model; removed when it is dropped.
struct PublicRepository(PathBuf);

impl PublicRepository {
    fn new(name: &str) -> PublicRepository {
        let root = Path::new("/tmp").join(format!("nereid-doctor-{name}-{}", std::process::id()));
        let version = root.join("model/1");
        fs::create_dir_all(&version).expect("a directory below /tmp");
        fs::write(root.join("model/config.pbtxt"), "backend: \"identity\"\n").expect("a configuration");
        [&root, &root.join("model"), &version].into_iter().for_each(|path| mode(path, 0o755));
        mode(&root.join("model/config.pbtxt"), 0o644);
        PublicRepository(root)
    }

    fn flag(&self) -> String {
        format!("--model-repository={}", self.0.display())
    }
}

impl Drop for PublicRepository {
    fn drop(&mut self) {
        mode(&self.0.join("model/1"), 0o755);
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("change the mode");
}

/// Three ports that are free.
fn ports() -> [String; 3] {
    ["http", "grpc", "metrics"].map(|service| format!("--{service}-port={}", free_port()))
}

fn doctor(words: &[&str]) -> (Option<i32>, Value) {
    let words: Vec<&str> = ["doctor", "--format=json"].into_iter().chain(words.iter().copied()).collect();
    let (status, out, err) = run_to_end(&words);
    let document = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error} in {out}\n{err}"));
    (status.code(), document)
}

fn finding<'a>(document: &'a Value, name: &str) -> &'a Value {
    let findings = document["findings"].as_array().expect("findings");
    let found = findings.iter().find(|finding| finding["name"] == name);
    found.unwrap_or_else(|| panic!("no finding '{name}' in {document:#}"))
}

#[test]
fn a_port_in_use_and_an_unreadable_folder_are_problems() {
    let repository = PublicRepository::new("bad");
    let hidden = repository.0.join("model/1");
    mode(&hidden, 0o700);
    let taken = TcpListener::bind("0.0.0.0:0").expect("a port");
    let [_, grpc, metrics] = ports();
    let http = format!("--http-port={}", taken.local_addr().expect("its address").port());
    let flag = repository.flag();
    let (code, document) = doctor(&[&flag, STRANGER, &http, &grpc, &metrics]);
    assert_eq!(code, Some(1), "{document:#}");
    let port = finding(&document, "http-port");
    assert_eq!(port["level"], "problem");
    let holder = format!("(process {})", std::process::id());
    assert!(
        port["what"].as_str().is_some_and(|what| what.contains("is in use by") && what.contains(&holder)),
        "{port}"
    );
    assert!(port["next"].as_str().is_some_and(|next| next.contains("--http-port")), "{port}");
    assert_eq!(finding(&document, "grpc-port")["level"], "ok");
    let files = finding(&document, "model-repository");
    assert_eq!(files["level"], "problem");
    let expected = format!("may not read {}", hidden.display());
    assert!(files["what"].as_str().is_some_and(|what| what.contains(&expected)), "{files}");
    assert!(files["next"].as_str().is_some_and(|next| next.contains("chmod -R o+rX")), "{files}");
    // The text has the same findings.
    let (status, out, err) = run_to_end(&["doctor", &flag, STRANGER, &http, &grpc, &metrics]);
    assert_eq!((status.code(), err.as_str()), (Some(1), ""), "{out}");
    for part in ["problem  http-port", "is in use by", "next: stop it, or choose another --http-port", " problems\n"] {
        assert!(out.contains(part), "{part:?} in\n{out}");
    }
}

#[test]
fn a_host_in_order_has_no_problem() {
    let repository = PublicRepository::new("good");
    let [http, grpc, metrics] = ports();
    let (code, document) = doctor(&[&repository.flag(), STRANGER, &http, &grpc, &metrics]);
    for name in ["http-port", "grpc-port", "metrics-port", "model-repository", "memory"] {
        assert_eq!(finding(&document, name)["level"], "ok", "{document:#}");
    }
    assert_eq!((&document["user"]["uid"], &document["user"]["gid"]), (&64_321.into(), &64_321.into()));
    for name in [
        "kernel",
        "io_uring",
        "cores",
        "cpu-governor",
        "huge-pages",
        "open-files",
        "locked-memory",
        "gpu",
        "onnxruntime",
    ] {
        assert!(["ok", "warning"].contains(&finding(&document, name)["level"].as_str().unwrap_or("")), "{document:#}");
    }
    assert_eq!(code, Some(i32::from(document["problems"] != 0)), "{document:#}");
}

#[test]
fn what_the_flags_name_is_checked() {
    let repository = PublicRepository::new("flags");
    let [http, grpc, metrics] = ports();
    let log = "--log-file=/nonsense/directory/log";
    let absent = repository.0.join("absent").display().to_string();
    let words = [STRANGER, &http, &grpc, &metrics, log, &absent];
    let (code, document) = doctor(&words);
    assert_eq!(code, Some(1), "{document:#}");
    assert_eq!(finding(&document, "log-file")["level"], "problem");
    let what = finding(&document, "model-repository")["what"].as_str().unwrap_or_default();
    assert!(what.ends_with("does not exist"), "{what}");
    // A port that only root may open.
    if fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").is_ok_and(|text| text.trim() == "1024") {
        let (_, document) = doctor(&[STRANGER, "--http-port=443", &grpc, &metrics]);
        let port = finding(&document, "http-port");
        assert!(port["level"] == "problem" && port["what"].to_string().contains("below 1024"), "{port}");
    }
    // Mistakes of the command line are named.
    for (word, part) in [("--user=nobody-of-this-name", "no such user"), ("--nonsense", "unrecognized option")] {
        let (status, _, err) = run_to_end(&["doctor", word]);
        assert!(status.code() == Some(1) && err.contains(part), "{word}: {err}");
    }
}
