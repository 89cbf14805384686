//! Changes of rules: by the API, by reloads, by versions that go.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::{BODY, identity, parameters, shown, version, version_of};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository, identity_config};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

fn post(server: &Server, path: &str, body: &str) -> (u16, Value) {
    let answer = Peer::connect(server.http).post(&format!("/v2/models/{path}"), &[], body.as_bytes());
    (answer.status, answer.json())
}

#[test]
fn the_api_shows_and_changes_a_rule() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        identity(&repository, "m", &[("weights", "1:100"), ("labels", "stable:1,canary:2")]);
        identity(&repository, "plain", &[]);
        let audit = repository.path().join("audit");
        let server = Server::start(variant, repository.path(), &[&format!("--audit-log={}", audit.display())]);
        let mut peer = Peer::connect(server.http);
        let infer = "/v2/models/m/infer";
        assert_eq!(version(&mut peer, infer, &[]), 1);
        let (status, rule) = post(&server, "m/traffic", r#"{"weights":{"3":100}}"#);
        assert_eq!((status, &rule["weights"]), (200, &json!({"1": 0, "2": 0, "3": 100})));
        assert_eq!(version(&mut peer, infer, &[]), 3);
        let (status, rule) = post(&server, "m/traffic/promote", r#"{"label":"canary"}"#);
        assert_eq!((status, &rule["labels"]), (200, &json!({"stable": 2, "canary": 2})));
        assert_eq!(version(&mut peer, infer, &[]), 2);
        assert_eq!(version(&mut peer, "/v2/models/m/versions/stable/infer", &[]), 2);
        let (status, rule) = post(&server, "m/traffic/rollback", "");
        assert_eq!((status, &rule["rollback"]["rolled_back"]), (200, &json!(true)));
        assert_eq!(version(&mut peer, infer, &[]), 3, "the highest of the others");
        assert_eq!(shown(&server, "m"), rule_without_requests(&server));

        let error = |path: &str, body: &str| {
            let (status, answer) = post(&server, path, body);
            (status, answer["error"].as_str().unwrap_or_default().to_owned())
        };
        let text = "the weights sum to 99, they must sum to 100";
        assert_eq!(error("m/traffic", r#"{"weights":{"1":99}}"#), (400, text.to_owned()));
        let text = "'9' is neither a label nor a version of model 'm'; use one of stable, canary, 1, 2, 3";
        assert_eq!(error("m/traffic", r#"{"weights":{"9":100}}"#), (400, text.to_owned()));
        assert_eq!(error("m/traffic/promote", r#"{"label":"9"}"#), (400, text.to_owned()));
        let text = "Request for unknown model: 'absent' is not found";
        assert_eq!(error("absent/traffic", "{}"), (404, text.to_owned()));
        let text = "model 'plain' has no traffic rule; add the parameter 'nereid.traffic.weights' to its configuration";
        assert_eq!(error("plain/traffic", "{}"), (400, text.to_owned()));
        assert_eq!(peer.get("/v2/models/m/traffic/promote").status, 405);
        server.stop();
        let audit = std::fs::read_to_string(audit).expect("the audit log");
        for action in ["traffic-weights", "traffic-promote", "traffic-rollback"] {
            let line = format!("\"action\":\"{action}\",\"subject\":\"m\"");
            assert!(audit.contains(&line), "{action}: {audit}");
        }
    });
}

/// The answer does not change between two reads.
fn rule_without_requests(server: &Server) -> Value {
    shown(server, "m")
}

#[test]
fn a_wrong_rule_fails_the_load_with_its_reason() {
    let repository = Repository::new();
    identity(&repository, "sum", &[("weights", "1:90,2:20")]);
    identity(&repository, "absent", &[("weights", "1:90,4:10")]);
    identity(&repository, "name", &[("wieghts", "1:100")]);
    let flags = ["--model-control-mode=explicit"];
    let server = Server::start(usual(), repository.path(), &flags);
    let mut peer = Peer::connect(server.http);
    for (model, why) in [
        ("sum", "parameter 'nereid.traffic.weights' is '1:90,2:20': the weights sum to 110, they must sum to 100"),
        (
            "absent",
            "parameter 'nereid.traffic.weights' is '1:90,4:10': it names version 4, which the version policy does not \
             load (it loads 1, 2, 3)",
        ),
        ("name", "parameter 'nereid.traffic.wieghts' is unknown; the nearest is 'nereid.traffic.weights'"),
    ] {
        let answer = peer.post(&format!("/v2/repository/models/{model}/load"), &[], b"");
        assert_eq!((answer.status, answer.error()), (400, format!("model '{model}': {why}")));
    }
    server.stop();
}

/// Ends the clients of a test, also when it fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Clients notice neither a reload nor a version that goes; the API's weights last until the configuration is loaded
/// again.
#[test]
fn requests_go_on_while_versions_come_and_go() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let rule = [("weights", "1:50,2:50"), ("labels", "canary:2")];
        identity(&repository, "m", &rule);
        let flags = ["--model-control-mode=explicit", "--load-model=m"];
        let server = Server::start(variant, repository.path(), &flags);
        let (is_over, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
        let load = |more: &str| {
            let pairs = [Pair::new("INT32", "-1")];
            repository.file("m/config.pbtxt", identity_config("identity", "m", 0, &pairs, more));
            let answer = Peer::connect(server.http).post("/v2/repository/models/m/load", &[], b"");
            assert_eq!(answer.status, 200, "{}", answer.text());
        };
        std::thread::scope(|scope| {
            let _over = Over(&is_over);
            let clients: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut peer = Peer::connect(server.http);
                        while !is_over.load(Ordering::Relaxed) {
                            let answer = peer.post("/v2/models/m/infer", &[], BODY.as_bytes());
                            assert_eq!(answer.status, 200, "{}", answer.text());
                            assert!((1..=3).contains(&version_of(&answer)));
                            sent.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            let wait = |count: usize| {
                let until = sent.load(Ordering::Relaxed) + count;
                server.wait_until("requests are answered", || sent.load(Ordering::Relaxed) >= until);
            };
            wait(50);
            assert_eq!(post(&server, "m/traffic", r#"{"weights":{"3":100}}"#).0, 200);
            wait(50);
            // A load that changes nothing of the configuration keeps them.
            load(&format!("{}# a comment\n", parameters(&rule)));
            assert_eq!(shown(&server, "m")["weights"], json!({"1": 0, "2": 0, "3": 100}));
            let other = "parameters { key: \"other\" value { string_value: \"1\" } }\n";
            load(&format!("{}{other}", parameters(&rule)));
            assert_eq!(shown(&server, "m")["weights"], json!({"1": 50, "2": 50, "3": 0}));
            wait(50);
            // The version with the rest of the weight goes.
            let specific = "version_policy { specific { versions: [ 1, 3 ] } }";
            let only = parameters(&[("weights", "1:100")]).replace("version_policy { all {} }", specific);
            load(&only);
            wait(50);
            let mut peer = Peer::connect(server.http);
            assert_eq!(version(&mut peer, "/v2/models/m/infer", &[]), 1);
            // The rule goes: the highest version answers, as ever.
            load("version_policy { all {} }\n");
            assert_eq!(version(&mut peer, "/v2/models/m/infer", &[]), 3);
            assert_eq!(peer.get("/v2/models/m/traffic").status, 400);
            wait(50);
            is_over.store(true, Ordering::Relaxed);
            clients.into_iter().for_each(|client| client.join().expect("a client"));
        });
        let answer = Peer::connect(server.http).post("/v2/repository/models/m/unload", &[], b"");
        assert_eq!(answer.status, 200);
        server.wait_for_log("successfully unloaded 'm' version 3");
        server.stop();
    });
}
