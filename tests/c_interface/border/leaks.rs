//! Thousands of loads, requests and errors: C code returns all objects, and the server uses no more memory at the end.

use crate::border::compiler;
use crate::border::handles::{ask, start};
use nereid_test_support::http::Peer;
use nereid_test_support::variant::usual;

const ROUNDS: usize = 60;
const REQUESTS: usize = 8;

/// What may be done over and over without anything being left behind.
const DEEDS: [(&str, u16); 8] = [
    ("", 200),
    ("throw", 500),
    ("error", 500),
    ("refuse", 503),
    ("numbers", 200),
    ("late final", 200),
    ("factory after delete", 200),
    ("tell", 200),
];

#[test]
fn loads_requests_and_errors_leave_nothing_behind() {
    let Some(directory) = compiler::backend("culprit.cc", &[]) else { return };
    let (_repository, server) =
        start(usual(), &directory, &["--model-control-mode=explicit", "--load-model=m", "--log-info=false"]);
    let mut peer = Peer::connect(server.http);
    let mut resident_kib = Vec::new();
    for round in 0..ROUNDS {
        for _ in 0..REQUESTS {
            for (deed, status) in DEEDS {
                let answer = ask(&mut peer, deed);
                assert_eq!(answer.status, status, "{deed}: {}", answer.text());
            }
        }
        let answer = peer.post("/v2/repository/models/m/unload", &[], b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = peer.post("/v2/repository/models/m/load", &[], b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
        if round >= ROUNDS / 3 {
            resident_kib.push(server.resident_kib());
        }
    }
    // Memory of dead handles is kept up to a bound that these rounds do not reach: some hundred bytes a handle.
    let (first, last) = (resident_kib[0], resident_kib[resident_kib.len() - 1]);
    assert!(last < first + 64 * 1024, "{resident_kib:?}");
    peer.post("/v2/logging", &[], br#"{"log_info":true}"#);
    let log = server.stop();
    assert!(!log.contains("were not given back"), "{log}");
    assert!(log.contains("at the server's end all handles were given back"), "{log}");
}
