//! What this version does not do is refused by name, never ignored.

use crate::support::http::{Peer, request};
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
fn compressed_bodies() {
    let (_repository, server) = start();
    let body = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}"#;
    let mut peer = Peer::connect(server.http);
    for coding in ["gzip", "deflate", "br"] {
        let bytes = request("POST", "/v2/models/plain/infer", &[("Content-Encoding", coding)], body);
        refused(&mut peer, &bytes, &["compress", "encoding"]);
    }
    for coding in ["identity", ""] {
        let answer = peer.post("/v2/models/plain/infer", &[("Content-Encoding", coding)], body);
        assert_eq!(answer.status, 200, "Content-Encoding {coding:?}: {}", answer.text());
    }
    // A client that could take a compressed answer gets a plain one.
    for accepted in ["gzip", "gzip, deflate, br", "identity;q=0, gzip"] {
        let answer = peer.post("/v2/models/plain/infer", &[("Accept-Encoding", accepted)], body);
        assert_eq!((answer.status, answer.header("content-encoding")), (200, None), "{accepted}");
        assert_eq!(answer.json()["outputs"][0]["data"], serde_json::json!([1]), "{accepted}");
    }
    server.stop();
}
