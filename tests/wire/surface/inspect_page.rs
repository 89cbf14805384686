//! The inspect page on the metrics port (docs/inspect-page.md): its routes and keys byte by byte, and the page in a
//! browser.

use std::process::Command;

use serde_json::Value;

use nereid_test_support::http::{Peer, request};
use nereid_test_support::paths;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::skip::skip;
use nereid_test_support::variant::{self, each, usual};

/// A name that browsers would take for an element.
const ODD: &str = "<img src=x onerror=alert(1)>";
const INFER: &str = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2,4],"data":[1,2,3,4,5,6,7,8]}]}"#;

/// Two models that serve and one that cannot be loaded.
fn repository() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 8, &[Pair::new("INT32", "4")]);
    repository.identity(ODD, 0, &[Pair::new("INT32", "-1")]);
    repository.model("broken", "backend: \"<b>nothing</b>\" max_batch_size: 0");
    repository
}

fn start(variant: variant::Variant, repository: &Repository, more: &[&str]) -> Server {
    let mut flags = vec!["--exit-on-error=false", "--strict-readiness=false"];
    flags.extend(more);
    Server::start_with(variant, repository.path(), &flags, "/v2/health/live")
}

fn infer(server: &Server) {
    let path = "/v2/models/plain/infer";
    assert_eq!(Peer::connect(server.http).send(&request("POST", path, &[], INFER.as_bytes())).answer().status, 200);
}

fn snapshot(server: &Server, query: &str, headers: &[(&str, &str)]) -> Value {
    let path = format!("/ui/data{query}");
    let answer = Peer::connect(server.metrics).send(&request("GET", &path, headers, b"")).answer();
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    serde_json::from_str(&answer.text()).expect("the snapshot is JSON")
}

fn named<'a>(list: &'a Value, key: &str, name: &str) -> &'a Value {
    let found = list.as_array().expect("a list").iter().find(|entry| entry[key] == name);
    found.unwrap_or_else(|| panic!("no {key} {name} in {list}"))
}

#[test]
fn the_page_is_one_document_that_runs_nothing_else() {
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = start(variant, &repository, &[]);
        let mut peer = Peer::connect(server.metrics);
        for path in ["/ui", "/ui/", "/ui?x=1"] {
            let page = peer.get(path);
            assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")), "{path}");
            let policy = page.header("content-security-policy").expect("a policy").to_owned();
            assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
            assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
            assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
            assert_eq!(page.header("access-control-allow-origin"), None);
            let text = page.text();
            assert!(text.len() < 150 * 1024 && text.starts_with("<!DOCTYPE html>") && text.contains("</html>"));
            assert!(!text.contains("src=") && !text.contains("/*script*/"));
        }
        for (method, path, status) in [
            ("POST", "/ui", 405),
            ("POST", "/ui/data", 405),
            ("GET", "/ui/models/plain/load", 405),
            ("OPTIONS", "/ui/models/plain/load", 405),
        ] {
            let answer = peer.send(&request(method, path, &[], b"")).answer();
            assert_eq!(
                (answer.status, answer.header("access-control-allow-origin")),
                (status, None),
                "{method} {path}"
            );
        }
        // The port's other paths are as they were.
        for path in ["/", "/ui/other", "/uix"] {
            let answer = peer.get(path);
            assert_eq!((answer.status, answer.text().as_str()), (200, ""), "{path}");
        }
        assert!(peer.get("/metrics").text().contains("nv_inference_count"));
        server.stop();
    });
}

#[test]
fn without_the_page_the_port_answers_as_it_always_did() {
    let repository = repository();
    let server = start(usual(), &repository, &["--allow-ui=false"]);
    let mut peer = Peer::connect(server.metrics);
    for path in ["/ui", "/ui/data"] {
        let answer = peer.get(path);
        assert_eq!((answer.status, answer.text().as_str()), (200, ""), "{path}");
    }
    assert_eq!(peer.send(&request("POST", "/ui/models/plain/unload", &[], b"")).answer().status, 405);
    infer(&server);
    server.stop();
}

#[test]
fn a_snapshot_shows_models_requests_messages_and_flags() {
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = start(variant, &repository, &["--metrics-config=histogram_phases=true", "--id=shown"]);
        (0..3).for_each(|_| infer(&server));
        // Threads of their own bring messages and slow requests there.
        let mut all = Value::Null;
        server.wait_until("the page has messages, slow requests and shards", || {
            all = snapshot(&server, "", &[]);
            let list = |name: &str| all[name].as_array().cloned().unwrap_or_default();
            all["messages"].to_string().contains("<b>nothing</b>")
                && list("slow").iter().any(|request| request["model"] == "plain")
                && !list("shards").is_empty()
        });
        assert_eq!((&all["server"]["name"], &all["server"]["state"]), (&"shown".into(), &"READY".into()));
        assert_eq!(all["server"]["version"], env!("CARGO_PKG_VERSION"));
        let plain = named(&all["models"], "name", "plain");
        let seen = ["state", "success", "executions", "inferences", "queue"].map(|name| plain[name].to_string());
        assert_eq!(seen, ["\"READY\"", "3", "3", "6", "0"]);
        assert!(plain["ns"][0].as_u64() > Some(0));
        assert_eq!(named(&all["models"], "name", ODD)["state"], "READY");
        let broken = named(&all["models"], "name", "broken");
        assert_ne!(broken["state"], "READY");
        assert!(broken["reason"].as_str().is_some_and(|reason| reason.contains("<b>nothing</b>")), "{broken}");
        assert!(all["messages"].to_string().contains("<b>nothing</b>"), "{}", all["messages"]);
        let slow = named(&all["slow"], "model", "plain");
        let ns: Vec<u64> = slow["ns"].as_array().expect("phases").iter().filter_map(Value::as_u64).collect();
        assert!(ns.len() == 5 && ns[0] >= ns[1..].iter().sum(), "{slow}");
        assert_eq!((&slow["version"], &slow["batch"], &slow["ending"]), (&1.into(), &2.into(), &"success".into()));
        let flag = |name: &str| named(&all["flags"], "name", name);
        assert_eq!((&flag("id")["value"], &flag("id")["source"]), (&"shown".into(), &"flag".into()));
        assert_eq!((&flag("allow-ui")["value"], &flag("allow-ui")["source"]), (&"true".into(), &"default".into()));
        assert!(all["shards"].as_array().is_some_and(|shards| !shards.is_empty()));
        assert!(all["memory"]["resident"].as_u64() > Some(1 << 20) && all.get("model").is_none());
        assert_eq!(all["management"]["repository_header"], Value::Null);

        let detail = &snapshot(&server, "?model=plain", &[])["model"]["versions"][0];
        assert_eq!(detail["batches"][0]["size"], 2);
        assert_eq!(
            (&detail["workers"][0]["names"], &detail["inputs"][0]["name"]),
            (&"plain_0_0".into(), &"INPUT0".into())
        );
        let counts = detail["histograms"]["request"]["counts"].as_array().expect("a histogram");
        assert_eq!(counts.iter().filter_map(Value::as_u64).sum::<u64>(), 3);
        let source = |path: &str| named(&detail["config"], "path", path)["source"].as_str().unwrap_or_default();
        assert!(source("max_batch_size").contains("plain/config.pbtxt:"), "{}", detail["config"]);
        assert_eq!(source("version_policy.latest.num_versions"), "default: the latest version");
        let odd = snapshot(&server, "?model=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E", &[]);
        assert_eq!(odd["model"]["name"], ODD);
        assert_eq!(snapshot(&server, "?model=absent", &[])["model"], Value::Null);
        server.stop();
    });
}

#[test]
fn changes_need_a_key_and_are_recorded() {
    each(&variant::ALL, |variant| {
        let repository = repository();
        let audit = repository.path().join("audit");
        let log = format!("--audit-log={}", audit.display());
        let key = "--http-restricted-api=model-repository,logging,model-config:admin=secret-1";
        let more = [&log, key, "--model-control-mode=explicit", "--load-model=plain"];
        let server = start(variant, &repository, &more);
        let mut peer = Peer::connect(server.metrics);
        let mut post = |path: &str, headers: &[(&str, &str)], body: &[u8]| {
            let answer = peer.send(&request("POST", path, headers, body)).answer();
            (answer.status, answer.text())
        };
        let (good, bad) = ([("admin", "secret-1")], [("admin", "secret-2")]);
        for path in ["/ui/models/plain/unload", "/ui/models/plain/load", "/ui/logging"] {
            for headers in [&[][..], &bad[..]] {
                let expected = r#"{"error":"This API is restricted, expecting header 'admin'"}"#.to_owned();
                assert_eq!(post(path, headers, b"{}"), (403, expected), "{path}");
            }
        }
        let state = |query: &str, headers: &[(&str, &str)]| {
            let all = snapshot(&server, query, headers);
            (named(&all["models"], "name", "plain")["state"].clone(), all)
        };
        let (before, all) = state("?model=plain", &[]);
        assert_eq!((before, &all["management"]["repository_header"]), ("READY".into(), &"admin".into()));
        assert_eq!(
            (all["model"]["versions"][0].get("config"), &all["model"]["config_header"]),
            (None, &"admin".into())
        );
        assert!(state("?model=plain", &good).1["model"]["versions"][0]["config"].is_array());
        assert_eq!(post("/ui/models/plain/unload", &good, b"").0, 200);
        server.wait_until("the model is unloaded", || state("", &[]).0 == "UNAVAILABLE");
        // A configuration is not taken over this way: the model has its own.
        let other = br#"{"parameters":{"config":"{\"backend\":\"absent\"}"}}"#;
        assert_eq!(post("/ui/models/plain/load", &good, other).0, 200);
        assert_eq!(state("", &[]).0, "READY");
        let (status, text) = post("/ui/models/absent/load", &good, b"");
        assert!(status != 200 && text.contains("absent"), "{status} {text}");
        let (status, text) = post("/ui/logging", &good, br#"{"log_verbose_level":1}"#);
        assert!(status == 200 && text.contains("\"log_verbose_level\":1"), "{status} {text}");
        let answer = state("", &[]).1;
        assert_eq!(answer["log"]["verbose_level"], 1);
        let flag = named(&answer["flags"], "name", "http-restricted-api");
        assert_eq!(flag["value"], "model-repository,logging,model-config:admin=<hidden>");
        server.stop();
        let text = std::fs::read_to_string(&audit).expect("the audit log");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a record"));
        let brief = |line: Value| {
            ["protocol", "action", "subject", "outcome"]
                .map(|name| line[name].as_str().unwrap_or("-").to_owned())
                .join("|")
        };
        let mut expected = vec!["ui|unload|plain|refused"; 2];
        expected.extend(["ui|load|plain|refused"; 2]);
        expected.extend(["ui|log-settings|-|refused"; 2]);
        expected.extend([
            "ui|unload|plain|done",
            "ui|load|plain|done",
            "ui|load|absent|failed",
            "ui|log-settings|-|done",
        ]);
        assert_eq!(lines.map(brief).collect::<Vec<_>>(), expected, "{text}");
        assert!(!text.contains("secret"), "{text}");
    });
}

#[test]
fn without_a_key_nothing_can_be_changed() {
    let repository = repository();
    let server = start(usual(), &repository, &["--model-control-mode=explicit", "--load-model=plain"]);
    let mut peer = Peer::connect(server.metrics);
    for (path, group) in [("/ui/models/plain/unload", "model-repository"), ("/ui/logging", "logging")] {
        let answer = peer.send(&request("POST", path, &[("admin", "x")], b"{}")).answer();
        let text = format!("start the server with --http-restricted-api={group}:<header>=<value>");
        assert!(answer.status == 403 && answer.text().contains(&text), "{} {}", answer.status, answer.text());
    }
    infer(&server);
    server.stop();
}

/// Debian's chromium, where it is installed.
fn chromium() -> Option<&'static str> {
    let answers =
        |program: &str| Command::new(program).arg("--version").output().is_ok_and(|told| told.status.success());
    match (answers("chromium"), answers("python3")) {
        (true, true) => Some("chromium"),
        _ => {
            skip("there is no chromium, or no python3");
            None
        }
    }
}

/// tests/python/inspect_page.py tells what is tried.
#[test]
fn a_browser_shows_it() {
    let Some(chromium) = chromium() else { return };
    let repository = repository();
    let more = [
        "--http-restricted-api=model-repository,logging:admin=secret-1",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--metrics-config=histogram_phases=true",
    ];
    let server = start(usual(), &repository, &more);
    let (ui, http) = (format!("http://{}/ui", server.metrics), format!("http://{}", server.http));
    let script = paths::root().join("tests/python/inspect_page.py");
    let told = Command::new("python3").arg("-B").arg(script).args([chromium, &ui, &http, "secret-1"]).output();
    let told = told.expect("python3 starts");
    let text = String::from_utf8_lossy(&told.stdout).into_owned() + &String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success(), "{text}");
    server.stop();
}
