//! Load reports in answers of `generate` (contract/http.md section 7).
//!
//! `custom_metrics` tests their content, with a backend that has the metrics. These tests cover responses without a
//! report.

use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

const ASKS: &str = "Endpoint-Load-Metrics-Format";

#[test]
fn without_metrics_there_is_no_report_and_an_error_in_the_log() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut peer = Peer::connect(server.http);
    let missing = "load cannot be reported: not all of the metrics 'nv_trt_llm_kv_cache_block_metrics' are there";
    for (action, format, text) in [
        ("generate", "json", missing),
        ("generate_stream", "text", missing),
        ("generate", "xml", "'endpoint-load-metrics-format: xml': load is reported as 'json' or 'text'"),
        ("generate_stream", "JSON", "'endpoint-load-metrics-format: JSON': load is reported as 'json' or 'text'"),
    ] {
        let logged = |server: &Server| server.log().matches(text).count();
        let before = logged(&server);
        let path = format!("/v2/models/plain/{action}");
        let answer = peer.send(&request("POST", &path, &[(ASKS, format)], br#"{"INPUT0":1}"#)).answer();
        assert_eq!((answer.status, answer.header("endpoint-load-metrics")), (200, None), "{action} {format}");
        let started = std::time::Instant::now();
        while logged(&server) == before {
            assert!(started.elapsed() < nereid_test_support::server::PATIENCE, "{action} {format}: {}", server.log());
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
    // Who does not ask is not told, and other routes do not look.
    let before = server.log();
    peer.post("/v2/models/plain/generate", &[], br#"{"INPUT0":1}"#);
    let body = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}"#;
    assert_eq!(peer.post("/v2/models/plain/infer", &[(ASKS, "json")], body).status, 200);
    assert_eq!(
        server.stop().matches("load cannot be reported").count(),
        before.matches("load cannot be reported").count()
    );
}
