//! HTTP and gRPC on Unix sockets beside their ports: clients from other projects, the life cycle of the file, and paths
//! that are refused.

use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;

use nereid_wire::inference::{ServerLiveRequest, ServerLiveResponse};
use prost::Message;

use nereid_test_support::certificates::Certificates;
use nereid_test_support::grpc::SERVICE;
use nereid_test_support::http::Peer;
use nereid_test_support::http2::RawPeer;
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server, binary, free_port, run_to_end, run_to_end_under, signal};
use nereid_test_support::skip::skip;
use nereid_test_support::variant::{self, Variant, each, usual};

/// A path that is short enough for a socket, wherever the build lies.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("nereid-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Directory(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn repository() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository
}

/// A server on both sockets, and their paths.
fn start(variant: Variant, repository: &Repository, directory: &Directory) -> (Server, String, String) {
    let (http, grpc) = (directory.path("http"), directory.path("grpc"));
    let flags = [format!("--http-unix-socket={http}"), format!("--grpc-unix-socket={grpc}")];
    let server = Server::start(variant, repository.path(), &[&flags[0], &flags[1]]);
    server.wait_for_log(&format!("Started GRPCInferenceService at unix:{grpc}"));
    server.wait_for_log(&format!("Started HTTPService at unix:{http}"));
    (server, http, grpc)
}

fn ask(path: &str) -> String {
    let mut stream = UnixStream::connect(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    stream.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
    stream.write_all(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("send");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn assert_live(path: &str) {
    let stream = UnixStream::connect(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    stream.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
    let mut peer = RawPeer::over(stream);
    peer.shake_hands(&[]);
    peer.open(1, &format!("{SERVICE}ServerLive")).message(1, &ServerLiveRequest {}.encode_to_vec());
    let (data, reset) = peer.finish(1);
    assert_eq!(reset, None);
    assert!(ServerLiveResponse::decode(&data[5..]).expect("an answer").live);
}

#[test]
fn both_protocols_are_served_beside_their_ports() {
    each(&variant::ALL, |variant| {
        let (repository, directory) = (repository(), Directory::new());
        let (server, http, grpc) = start(variant, &repository, &directory);
        for _ in 0..5 {
            assert!(ask(&http).starts_with("HTTP/1.1 200"));
            assert_live(&grpc);
        }
        assert_eq!(Peer::connect(server.http).get("/v2/health/ready").status, 200);
        for path in [&http, &grpc] {
            assert!(std::fs::symlink_metadata(path).expect("the file").file_type().is_socket());
        }
        // Connections of both kinds are part of the drain.
        let idle = UnixStream::connect(&http).expect("a connection");
        server.stop();
        drop(idle);
        assert_eq!(
            std::fs::read_dir(&directory.0).expect("the directory").count(),
            0,
            "the files went with the server"
        );
    });
}

#[test]
fn clients_of_others_take_a_path_for_an_address() {
    let (repository, directory) = (repository(), Directory::new());
    let (server, http, grpc) = start(usual(), &repository, &directory);
    let words = ["-sS", "--max-time", "60", "--unix-socket", &http, "-d"];
    let body = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[5,6]}]}"#;
    match Command::new("curl").args(words).args([body, "http://any/v2/models/plain/infer"]).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("\"data\":[5,6]"), "{said}{}", String::from_utf8_lossy(&output.stderr));
        }
        Err(error) => skip(&format!("curl: {error}")),
    }
    if let Some(python) = Python::get() {
        for target in [format!("unix:{grpc}"), format!("unix://{grpc}")] {
            python.run("channel.py", &["--target", &target, "--calls", "5"]);
        }
    }
    server.stop();
}

#[test]
fn the_umask_decides_who_may_connect() {
    let (repository, directory) = (repository(), Directory::new());
    let path = directory.path("http");
    let program = binary().into_string().expect("the binary's path is UTF-8");
    let words = ["sh", "-c", &format!("umask 077; exec {program} \"$@\""), "sh"].map(str::to_owned);
    let flag = format!("--http-unix-socket={path}");
    let server = Server::start_under(&words, usual(), repository.path(), &[&flag], "/v2/health/ready");
    let mode = std::fs::metadata(&path).expect("the file").permissions().mode() & 0o777;
    assert_eq!(mode, 0o700);
    server.stop();
}

#[test]
fn a_dead_servers_file_is_replaced() {
    let (repository, directory) = (repository(), Directory::new());
    let (server, http, grpc) = start(usual(), &repository, &directory);
    signal(server.pid(), "KILL");
    let _ = server.wait();
    assert!(std::fs::symlink_metadata(&http).is_ok(), "nobody could remove it");
    let (server, ..) = start(usual(), &repository, &directory);
    assert!(ask(&http).starts_with("HTTP/1.1 200"));
    assert_live(&grpc);
    server.stop();
}

/// Runs a second server to its end; returns what it says on stderr.
fn refused(repository: &Repository, flag: &str) -> String {
    let root = format!("--model-repository={}", repository.path().display());
    let ports = ["http", "grpc", "metrics"].map(|service| format!("--{service}-port={}", free_port()));
    let (status, out, err) = run_to_end(&[&root, &ports[0], &ports[1], &ports[2], flag]);
    assert_eq!(status.code(), Some(1), "{out}{err}");
    err
}

#[test]
fn what_is_in_the_way_is_told_and_left_alone() {
    let (repository, directory) = (repository(), Directory::new());
    let (server, http, grpc) = start(usual(), &repository, &directory);
    for (service, name, path) in [("http", "HTTP", &http), ("grpc", "GRPC", &grpc)] {
        let said = refused(&repository, &format!("--{service}-unix-socket={path}"));
        let expected = format!("failed to start {name} service: Unavailable - Socket 'unix:{path}' already in use ");
        assert_eq!(said.matches(&expected).count(), 1, "{said}");
    }
    assert!(ask(&http).starts_with("HTTP/1.1 200"), "the first server is not disturbed");
    assert_live(&grpc);
    server.stop();
    let file = directory.path("file");
    std::fs::write(&file, "mine").expect("write a file");
    let long = directory.path(&"x".repeat(108));
    for (path, reason) in [
        (&file, "a file that is no socket is in the way"),
        (&long, "the path is longer than 107 bytes"),
        (&directory.path("none/socket"), "No such file or directory (os error 2)"),
    ] {
        let said = refused(&repository, &format!("--http-unix-socket={path}"));
        let expected = format!("failed to start HTTP service: Unavailable - cannot listen at 'unix:{path}': {reason}");
        assert!(said.contains(&expected), "expected {expected:?} in {said}");
    }
    assert_eq!(std::fs::read(&file).expect("the file"), b"mine");
}

#[test]
fn a_service_that_is_not_allowed_has_no_socket_either() {
    let (repository, directory) = (repository(), Directory::new());
    let path = directory.path("grpc");
    let flag = format!("--grpc-unix-socket={path}");
    let server = Server::start(usual(), repository.path(), &["--allow-grpc=false", &flag]);
    assert!(std::fs::symlink_metadata(&path).is_err());
    server.stop();
    // One path for both.
    let both = [format!("--http-unix-socket={path}"), flag];
    let ports = ["http", "grpc", "metrics"].map(|service| format!("--{service}-port={}", free_port()));
    let root = format!("--model-repository={}", repository.path().display());
    let words = [&root, &ports[0], &ports[1], &ports[2], &both[0], &both[1]].map(String::as_str);
    let (status, _, err) = run_to_end_under(&[], &words);
    assert_eq!(status.code(), Some(1));
    assert!(err.contains(&format!("Socket 'unix:{path}' already in use ")), "{err}");
    assert!(std::fs::symlink_metadata(&path).is_err(), "a start that fails leaves nothing");
}

#[test]
fn a_path_speaks_plain_text_where_the_port_speaks_tls() {
    let Some(files) = Certificates::make() else { return };
    let (repository, directory) = (repository(), Directory::new());
    let (http, grpc) = (directory.path("http"), directory.path("grpc"));
    let mut flags = [files.server_flags("http"), files.server_flags("grpc")].concat();
    flags.extend([format!("--http-unix-socket={http}"), format!("--grpc-unix-socket={grpc}")]);
    let words: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start_saying(usual(), repository.path(), &words, &format!("HTTPService at unix:{http}"));
    assert!(ask(&http).starts_with("HTTP/1.1 200"));
    assert_live(&grpc);
    server.stop();
}

/// Somebody else's file that took the place of ours stays.
#[test]
fn a_file_that_took_its_place_survives_the_server() {
    let (repository, directory) = (repository(), Directory::new());
    let (server, http, _) = start(usual(), &repository, &directory);
    std::fs::rename(&http, directory.path("moved")).expect("move the socket");
    let _other = UnixListener::bind(&http).expect("another socket");
    server.stop();
    assert!(std::fs::symlink_metadata(&http).is_ok());
}
