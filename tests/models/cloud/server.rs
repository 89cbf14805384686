//! The whole server on a repository in a bucket.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use super::stands::{Mount, Stands};
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::repository::{Pair, identity_config};
use nereid_test_support::server::{Server, binary, free_port, run_to_end, run_to_end_under};
use nereid_test_support::variant::usual;

/// A model that gives back what it gets.
fn put_echo(stands: &mut Stands, more: &str) {
    let config = identity_config("identity", "echo", 0, &[Pair::new("FP32", "-1")], more);
    stands.put("repo/echo/config.pbtxt", config.as_bytes());
    stands.put("repo/echo/1/", b"");
}

fn start(stands: &Stands, mount: &Mount, flags: &[&str], probe: &str) -> Server {
    let location = stands.s3_location("models/repo");
    let keys = stands.s3_keys();
    let mut environment: Vec<(&str, &str)> = keys.iter().map(|(name, value)| (*name, value.as_str())).collect();
    environment.push(("TRITON_AWS_MOUNT_DIRECTORY", mount.text()));
    Server::start_in(usual(), Path::new(&location), flags, probe, &environment)
}

fn infer(peer: &mut Peer, path: &str) -> Answer {
    let body = r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[2],"data":[1.5,2.5]}]}"#;
    peer.post(path, &[], body.as_bytes())
}

/// What lies in the directories for copies.
fn copies(mount: &Mount) -> Vec<String> {
    mount.tree().into_iter().filter(|path| path.contains('/')).collect()
}

#[test]
fn models_of_a_bucket_are_served() {
    let Some(mut stands) = Stands::start() else { return };
    put_echo(&mut stands, "");
    stands.sign(true);
    let mount = Mount::new();
    let server = start(&stands, &mount, &[], "/v2/health/ready");
    let answer = infer(&mut Peer::connect(server.http), "/v2/models/echo/infer");
    assert_eq!(answer.json()["outputs"][0]["data"], serde_json::json!([1.5, 2.5]));
    let log = server.stop();
    let location = stands.s3_location("models/repo");
    assert!(log.contains(&location), "the table of options names the repository as it was written:\n{log}");
    assert_eq!(copies(&mount), [""; 0], "copies are gone with the server");
}

#[test]
fn a_model_is_loaded_and_reloaded_from_its_bucket() {
    let Some(mut stands) = Stands::start() else { return };
    put_echo(&mut stands, "");
    let mount = Mount::new();
    let server = start(&stands, &mount, &["--model-control-mode=explicit"], "/v2/health/ready");
    let mut peer = Peer::connect(server.http);
    let load = "/v2/repository/models/echo/load";
    assert_eq!(peer.post(load, &[], b"").status, 200);
    assert_eq!(infer(&mut peer, "/v2/models/echo/versions/1/infer").status, 200);
    // A version more, and the policy that serves both.
    put_echo(&mut stands, "version_policy { all { } }");
    stands.put("repo/echo/2/", b"");
    assert_eq!(peer.post(load, &[], b"").status, 200);
    for version in ["1", "2"] {
        assert_eq!(infer(&mut peer, &format!("/v2/models/echo/versions/{version}/infer")).status, 200, "{version}");
    }
    // One version less shows, though nothing that is left became newer.
    stands.delete("repo/echo/2/");
    assert_eq!(peer.post(load, &[], b"").status, 200);
    assert_eq!(infer(&mut peer, "/v2/models/echo/versions/1/infer").status, 200);
    assert_ne!(infer(&mut peer, "/v2/models/echo/versions/2/infer").status, 200);
    let answer = peer.post("/v2/repository/models/nobody/load", &[], b"");
    assert_eq!(answer.status, 500);
    assert!(answer.error().contains("failed to load 'nobody', failed to poll from model repository"), "{answer:?}");
    server.stop();
    assert_eq!(copies(&mount), [""; 0]);
}

#[test]
fn copies_of_a_killed_server_go_with_the_next_start() {
    let Some(mut stands) = Stands::start() else { return };
    put_echo(&mut stands, "");
    let mount = Mount::new();
    // Killed, not stopped.
    drop(start(&stands, &mount, &[], "/v2/health/ready"));
    let left = copies(&mount);
    assert!(left.iter().any(|path| path.ends_with("/echo/config.pbtxt")), "{left:?}");
    let server = start(&stands, &mount, &[], "/v2/health/ready");
    assert!(copies(&mount).iter().all(|path| !left.contains(path)), "{:?}", copies(&mount));
    server.wait_for_log("removed the copies of models that an ended server left in");
    server.stop();
    assert_eq!(mount.tree(), [""; 0]);
}

#[test]
fn a_bucket_that_cannot_be_read_ends_the_start() {
    let Some(stands) = Stands::start() else { return };
    let location = format!("--model-repository={}", stands.s3_location("no-such-bucket/repo"));
    let ports = ["http", "grpc", "metrics"].map(|name| format!("--{name}-port={}", free_port()));
    let mut flags = vec![location.as_str(), "--io-cores=1"];
    flags.extend(ports.iter().map(String::as_str));
    let (status, out, err) = run_to_end(&flags);
    assert_eq!(status.code(), Some(1), "{out}{err}");
    let log = format!("{out}{err}");
    assert!(log.contains("NoSuchBucket") && log.contains("check the name of the bucket"), "{log}");
}

/// A proxy that answers every listing of a bucket by itself, with nothing in it, and reports what it is asked for.
fn empty_buckets() -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (report, reports) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.expect("a connection"));
            let mut lines = stream.by_ref().lines().map_while(Result::ok);
            let Some(first) = lines.next() else { continue };
            // The end of the head: a listing has no body.
            lines.find(String::is_empty);
            if report.send(first).is_err() {
                return;
            }
            let body = "<ListBucketResult><Name>models</Name><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated>\
                        </ListBucketResult>";
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.get_mut().write_all(format!("{head}{body}").as_bytes());
        }
    });
    (address, reports)
}

#[test]
fn requests_to_s3_name_the_bucket_where_the_addressing_style_says() {
    let mount = Mount::new();
    let file =
        mount.file("keys.json", r#"{"s3": {"": {"key_id": "a", "secret_key": "b", "addressing_style": "auto"}}}"#);
    let table = [
        (vec![], "http://store.test:9000/models?"),
        (vec![("AWS_S3_ADDRESSING_STYLE", "path")], "http://store.test:9000/models?"),
        (vec![("AWS_S3_ADDRESSING_STYLE", "virtual")], "http://models.store.test:9000/?"),
        (vec![("TRITON_CLOUD_CREDENTIAL_PATH", file.as_str())], "http://models.store.test:9000/?"),
    ];
    for (more, expected) in table {
        let (proxy, asked) = empty_buckets();
        let proxy = format!("http://{proxy}");
        let mut environment = vec![
            ("HTTP_PROXY", proxy.as_str()),
            ("http_proxy", proxy.as_str()),
            ("NO_PROXY", ""),
            ("no_proxy", ""),
            ("AWS_ACCESS_KEY_ID", "a"),
            ("AWS_SECRET_ACCESS_KEY", "b"),
            ("TRITON_AWS_MOUNT_DIRECTORY", mount.text()),
        ];
        environment.extend(&more);
        let location = Path::new("s3://http://store.test:9000/models/repo");
        let server = Server::start_in(usual(), location, &["--log-verbose=1"], "/v2/health/ready", &environment);
        let line = asked.recv().expect("the repository is listed");
        let target = line.strip_prefix("GET ").expect("a listing");
        assert!(target.starts_with(expected) && target.contains("prefix=repo"), "{more:?}: {target}");
        let log = server.stop();
        let texts = [
            format!("Reading cloud credential from {file}"),
            "Using credential    for path  s3://http://store.test:9000/models/repo".to_owned(),
        ];
        let has_file = more.iter().any(|(name, _)| *name == "TRITON_CLOUD_CREDENTIAL_PATH");
        assert!(texts.iter().all(|text| log.contains(text) == has_file), "{more:?}: {log}");
    }
}

#[test]
fn an_addressing_style_that_is_none_ends_the_start() {
    let program = binary().into_string().expect("the binary's path is UTF-8");
    let words = ["env".to_owned(), "AWS_S3_ADDRESSING_STYLE=host".to_owned(), program];
    let ports = ["http", "grpc", "metrics"].map(|name| format!("--{name}-port={}", free_port()));
    let mut flags = vec!["--model-repository=s3://store.test:9000/models", "--io-cores=1"];
    flags.extend(ports.iter().map(String::as_str));
    let (status, out, err) = run_to_end_under(&words, &flags);
    assert_eq!(status.code(), Some(1), "{out}{err}");
    let text = "AWS_S3_ADDRESSING_STYLE is 'host', but must be 'path', 'virtual' or 'auto'";
    assert!(format!("{out}{err}").contains(text), "{out}{err}");
}
