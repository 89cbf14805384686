//! What this version does not do is refused by name, never ignored.

use crate::support::http::{Peer, infer_with_tail, request};
use crate::support::repository::{Pair, Repository};
use crate::support::server::Server;
use crate::support::variant::usual;

/// 501, and an error text that names the thing (any of the words, in any case).
fn refused(peer: &mut Peer, bytes: &[u8], words: &[&str]) {
    let shown = String::from_utf8_lossy(bytes).into_owned();
    let answer = peer.send(bytes).answer();
    assert_eq!(answer.status, 501, "{shown}: {}", answer.text());
    let text = answer.error().to_lowercase();
    assert!(words.iter().any(|word| text.contains(word)), "{shown}: expected one of {words:?} in {text:?}");
}

fn start() -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    (repository, server)
}

#[test]
fn routes_of_later_versions() {
    let (_repository, server) = start();
    let mut peer = Peer::connect(server.http);
    for (method, path, body, words) in [
        ("GET", "/v2/trace/setting", "", &["trace"][..]),
        ("POST", "/v2/trace/setting", "{}", &["trace"]),
        ("GET", "/v2/models/plain/trace/setting", "", &["trace"]),
        ("GET", "/v2/systemsharedmemory/status", "", &["shared"]),
        ("POST", "/v2/systemsharedmemory/region/a/register", "{\"key\":\"/a\",\"byte_size\":4}", &["shared"]),
        ("POST", "/v2/systemsharedmemory/unregister", "", &["shared"]),
        ("GET", "/v2/cudasharedmemory/status", "", &["shared"]),
        ("POST", "/v2/cudasharedmemory/region/a/register", "{}", &["shared"]),
        ("POST", "/v2/models/plain/generate", "{\"INPUT0\":1}", &["generate"]),
        ("POST", "/v2/models/plain/generate_stream", "{\"INPUT0\":1}", &["generate"]),
    ] {
        refused(&mut peer, &request(method, path, &[], body.as_bytes()), words);
    }
    server.stop();
}

#[test]
fn tensors_in_shared_memory() {
    let (_repository, server) = start();
    let mut peer = Peer::connect(server.http);
    let path = "/v2/models/plain/infer";
    let input = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"parameters":{"shared_memory_region":"r","shared_memory_byte_size":4}}]}"#;
    refused(&mut peer, &request("POST", path, &[], input.as_bytes()), &["shared"]);
    let output = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"parameters":{"binary_data_size":4}}],"outputs":[{"name":"OUTPUT0","parameters":{"shared_memory_region":"r","shared_memory_byte_size":4}}]}"#;
    refused(&mut peer, &infer_with_tail(path, output, b"abcd"), &["shared"]);
    server.stop();
}
