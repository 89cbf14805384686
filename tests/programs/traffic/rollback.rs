//! A canary that fails is taken out of the rule, and stays out until it is promoted or the configuration is loaded
//! again.

use serde_json::json;

use super::{BODY, interpreter, python_model, sample, shown};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each};

const RULE: [(&str, &str); 3] = [
    ("weights", "1:50,2:50"),
    ("labels", "stable:1,canary:2"),
    ("rollback", "canary error_rate>0.5 min_requests=10 window_secs=3600"),
];

#[test]
fn a_canary_that_fails_is_rolled_back() {
    let Some(interpreter) = interpreter() else { return };
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        python_model(&repository, "m", &RULE, &["pass", "raise ValueError('a bad version')"]);
        let server = Server::start(variant, repository.path(), &[&interpreter]);
        let mut peer = Peer::connect(server.http);
        let mut failed = 0;
        server.wait_until("the canary is rolled back", || {
            let answer = peer.post("/v2/models/m/infer", &[], BODY.as_bytes());
            failed += usize::from(answer.status != 200);
            shown(&server, "m")["rollback"]["rolled_back"] == true
        });
        assert_eq!(failed, 10, "as many as the rule demands");
        server.wait_for_log("version 2 of model 'm' is rolled back: 10 of 10 requests within 3600 s failed");
        let rule = shown(&server, "m");
        assert_eq!(rule["weights"], json!({"1": 100, "2": 0}));
        assert_eq!(sample(&server, r#"nereid_traffic_rollbacks_total{model="m"}"#), Some(1.0));
        assert_eq!(sample(&server, r#"nereid_traffic_weight{model="m",version="2"}"#), Some(0.0));
        for _ in 0..50 {
            assert_eq!(peer.post("/v2/models/m/infer", &[], BODY.as_bytes()).status, 200);
        }
        // Its label still leads there, for those who look for the reason.
        assert_eq!(peer.post("/v2/models/m/versions/canary/infer", &[], BODY.as_bytes()).status, 500);
        let promoted = peer.post("/v2/models/m/traffic/promote", &[], b"").json();
        assert_eq!(promoted["rollback"]["rolled_back"], false);
        assert_eq!(peer.post("/v2/models/m/infer", &[], BODY.as_bytes()).status, 500);
        server.stop();
    });
}
