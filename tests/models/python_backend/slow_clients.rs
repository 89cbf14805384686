//! Clients that read slowly or disconnect: one worker answers many requests, and none of them delays the others.

use serde_json::json;

use super::models;
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, Variant, each};

/// One instance that answers COUNT times from a thread of its own for each request.
fn serve(variant: Variant) -> Option<(Repository, Server)> {
    let repository = models::repository(&["several"]);
    let config = std::fs::read_to_string(repository.path().join("several/config.pbtxt")).expect("a configuration");
    repository.file("several/config.pbtxt", config.replace("count: 2", "count: 1"));
    let server = models::serve(variant, &repository, &[])?;
    Some((repository, server))
}

fn begin(server: &Server, count: i32, size: i32) -> Peer {
    let mut peer = Peer::connect(server.http);
    let body = json!({"COUNT": count, "SIZE": size}).to_string();
    peer.send(&request("POST", "/v2/models/several/generate_stream", &[], body.as_bytes()));
    assert_eq!(peer.head().status, 200);
    peer
}

/// The events of a stream to its end.
fn rest(peer: &mut Peer) -> Vec<String> {
    let mut text = Vec::new();
    while let Some(chunk) = peer.chunk() {
        text.extend(chunk);
    }
    let text = String::from_utf8(text).expect("UTF-8");
    text.split("\n\n").filter(|event| !event.is_empty()).map(str::to_owned).collect()
}

#[test]
fn who_reads_slowly_does_not_hold_up_the_others() {
    each(&variant::ALL, |variant| {
        let Some((_repository, server)) = serve(variant) else { return };
        // More than any buffer on the way takes, and nobody reads it.
        let mut slow: Vec<Peer> = (0..2).map(|_| begin(&server, 300, 3_000)).collect();
        for count in [0, 1, 40] {
            let events = rest(&mut begin(&server, count, 3));
            assert_eq!(events.len(), count as usize, "{events:?}");
        }
        // Nothing of it is lost, and its order is what it was.
        for peer in &mut slow {
            let events = rest(peer);
            assert_eq!(events.len(), 300);
            for (at, event) in events.iter().enumerate() {
                let data = event.strip_prefix("data: ").unwrap_or_else(|| panic!("{at}: {event}"));
                let answer: serde_json::Value = serde_json::from_str(data).expect("JSON");
                let out = answer["OUT"].as_array().unwrap_or_else(|| panic!("{at}: {data}"));
                assert!(out.len() == 3_000 && out.iter().all(|value| *value == json!(at)), "{at}");
            }
        }
    });
}

/// A shared word says so, which the model's thread looks at: an endless answer ends, or its instance never would.
#[test]
fn who_leaves_is_seen_to_have_left() {
    each(&variant::ALL, |variant| {
        let Some((_repository, server)) = serve(variant) else { return };
        let mut peers: Vec<Peer> = (0..3).map(|_| begin(&server, -1, 3)).collect();
        for peer in &mut peers {
            assert!(peer.chunk().is_some());
        }
        drop(peers);
        // Its end waits for the model's threads, each of which ends with its request.
        let log = server.stop();
        assert!(!log.contains("Exit timeout expired"), "{log}");
    });
}
