//! `nereid status`, `nereid top` and `nereid doctor` as an operator runs them.

mod doctor;
mod status;
mod tmux;
mod top;

use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;

/// Identity models of one integer, with these names.
fn models(names: impl IntoIterator<Item = String>) -> Repository {
    let repository = Repository::new();
    for name in names {
        repository.identity(&name, 0, &[Pair::new("INT32", "-1")]);
    }
    repository
}

/// Sends one request, which must succeed.
fn infer(peer: &mut Peer, model: &str) {
    let body = br#"{"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]}"#;
    let answer = peer.post(&format!("/v2/models/{model}/infer"), &[], body);
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// The flags by which a program finds this server.
fn address(server: &Server) -> [String; 2] {
    [format!("--url={}", server.http), format!("--metrics-url={}", server.metrics)]
}
