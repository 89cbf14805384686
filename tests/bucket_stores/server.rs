//! The whole server on a repository in a bucket.

use std::path::Path;

use super::stands::{Mount, Stands};
use crate::support::http::Peer;
use crate::support::repository::{Pair, identity_config};
use crate::support::server::{Server, free_port, run_to_end};
use crate::support::variant::usual;

#[test]
fn models_of_a_bucket_are_served() {
    let Some(mut stands) = Stands::start() else { return };
    let config = identity_config("identity", "echo", 0, &[Pair::new("FP32", "-1")], "");
    stands.put("repo/echo/config.pbtxt", config.as_bytes());
    stands.put("repo/echo/1/", b"");
    stands.sign(true);
    let mount = Mount::new();
    let location = stands.s3_location("models/repo");
    let keys = stands.s3_keys();
    let mut environment: Vec<(&str, &str)> = keys.iter().map(|(name, value)| (*name, value.as_str())).collect();
    environment.push(("TRITON_AWS_MOUNT_DIRECTORY", mount.text()));
    let server = Server::start_in(usual(), Path::new(&location), &[], "/v2/health/ready", &environment);
    let mut peer = Peer::connect(server.http);
    let body = r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[2],"data":[1.5,2.5]}]}"#;
    let answer = peer.post("/v2/models/echo/infer", &[], body.as_bytes());
    assert_eq!(answer.json()["outputs"][0]["data"], serde_json::json!([1.5, 2.5]));
    let log = server.stop();
    assert!(log.contains(&location), "the table of options names the repository as it was written:\n{log}");
    let leftover: Vec<String> = mount.tree().into_iter().filter(|path| path.contains('/')).collect();
    assert_eq!(leftover, [""; 0], "copies are gone with the server");
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
