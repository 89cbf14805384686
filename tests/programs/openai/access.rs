//! Who may ask for what: restricted interfaces, keys, and the identifiers of requests (contract/openai.md sections 1.1
//! and 5).

use serde_json::json;

use super::frontend::{COMPLETIONS, Frontend, completion, has_run, plain_repository, repository};
use nereid_test_support::http::{Answer, Peer, request};
use nereid_test_support::server::run_to_end;
use nereid_test_support::variant::{ALL, each, usual};

fn locked(key: &str) -> String {
    format!(
        "{{\"error\":{{\"message\":\"This API is restricted, expecting header '{key}' with valid value\",\
         \"type\":\"authentication_error\",\"code\":\"invalid_auth\"}}}}"
    )
}

fn sent(frontend: &Frontend, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    frontend.peer().send(&request(method, path, headers, b"")).answer()
}

#[test]
fn restricted_interfaces_want_their_header() {
    each(&ALL, |variant| {
        let repository = plain_repository();
        let flags = [
            "--openai-restricted-api=inference:Infer-Key=infer-secret",
            "--openai-restricted-api=model-repository:admin-key=admin-secret",
            "--openai-compat=triton",
        ];
        let frontend = Frontend::start_without_python(variant, &repository, &flags);
        for (method, path, key, secret, open) in [
            ("POST", "/v1/chat/completions", "Infer-Key", "infer-secret", 422),
            ("POST", "/v1/completions", "Infer-Key", "infer-secret", 422),
            ("POST", "/v1/embeddings", "Infer-Key", "infer-secret", 422),
            ("POST", "/v1/completions/more", "Infer-Key", "infer-secret", 404),
            ("GET", "/v1/models", "admin-key", "admin-secret", 200),
            ("GET", "/v1/models/plain", "admin-key", "admin-secret", 200),
            ("GET", "/v1/modelsXYZ", "admin-key", "admin-secret", 404),
            ("POST", "/v1/models/plain/load", "admin-key", "admin-secret", 400),
            ("POST", "/v1/models/plain/unload", "admin-key", "admin-secret", 400),
        ] {
            for headers in [&[][..], &[(key, "wrong")], &[(key, "INFER-SECRET")], &[("other", secret)], &[(key, "")]] {
                let answer = sent(&frontend, method, path, headers);
                assert_eq!((answer.status, answer.text()), (401, locked(key)), "{method} {path} {headers:?}");
                assert_eq!(answer.header("content-type"), Some("application/json"));
            }
            for name in [key.to_owned(), key.to_uppercase(), key.to_lowercase()] {
                let answer = sent(&frontend, method, path, &[(&name, secret)]);
                assert_eq!(answer.status, open, "{method} {path} {name}: {}", answer.text());
            }
        }
        // What no group names is open.
        for (path, status) in [("/health/ready", 200), ("/metrics", 200), ("/v1/completions", 405), ("/v1", 404)] {
            assert_eq!(sent(&frontend, "GET", path, &[]).status, status, "{path}");
        }
        let log = frontend.stop();
        assert!(log.contains("API restrictions enabled"), "{log}");
        for named in ["inference", "model-repository", "Infer-Key", "admin-key"] {
            assert!(log.contains(named), "{named} in {log}");
        }
        assert!(!log.contains("infer-secret") && !log.contains("admin-secret"), "{log}");
    });
}

#[test]
fn groups_that_are_wrong_stop_the_start() {
    if has_run() {
        return;
    }
    let repository = plain_repository();
    let model_repository = format!("--model-repository={}", repository.path().display());
    let duplicate = "restricted api 'inference' can not be specified in multiple config groups";
    let unknown = "Unknown API 'embedding'. Available APIs: ['inference', 'model-repository', 'metrics', 'health']";
    for (groups, text) in [
        (&["embedding:k=v"][..], unknown),
        (&["inference:k=v", "inference:k=v"], duplicate),
        (&["inference,health:k=v", "metrics,inference:k2=v2"], duplicate),
    ] {
        let groups: Vec<String> = groups.iter().map(|group| format!("--openai-restricted-api={group}")).collect();
        let flags: Vec<&str> =
            [model_repository.as_str(), "--openai-port=0", "--allow-http=false", "--allow-grpc=false"]
                .into_iter()
                .chain(groups.iter().map(String::as_str))
                .collect();
        let (status, out, err) = run_to_end(&flags);
        assert_eq!(status.code(), Some(1), "{groups:?}: {out}{err}");
        assert!(err.contains(text), "{groups:?}: {out}{err}");
    }
}

#[test]
fn keys_stand_in_the_authorization_of_clients() {
    each(&ALL, |variant| {
        let repository = plain_repository();
        let file = repository.path().join("keys");
        std::fs::write(&file, "from-a-file\n").expect("a file of keys");
        let by_file = format!("--openai-api-key-file={}", file.display());
        for (flag, key) in [("--openai-api-key=from-a-flag", "from-a-flag"), (by_file.as_str(), "from-a-file")] {
            let frontend = Frontend::start_without_python(variant, &repository, &[flag]);
            for (method, path) in [("GET", "/v1/models"), ("POST", COMPLETIONS), ("GET", "/metrics"), ("GET", "/v1/x")]
            {
                for value in [None, Some("Bearer wrong"), Some("Bearer "), Some(key), Some("Basic eA==")] {
                    let headers: Vec<(&str, &str)> = value.iter().map(|value| ("Authorization", *value)).collect();
                    let answer = sent(&frontend, method, path, &headers);
                    assert_eq!(answer.status, 401, "{method} {path} {value:?}: {}", answer.text());
                    let error = answer.json()["error"].clone();
                    assert_eq!(error["code"], "invalid_api_key", "{error}");
                    assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
                }
                let bearer = format!("Bearer {key}");
                let answer = sent(&frontend, method, path, &[("authorization", &bearer)]);
                assert_ne!(answer.status, 401, "{method} {path}: {}", answer.text());
            }
            assert_eq!(frontend.get("/health/ready").status, 200, "probes have no key");
            let log = frontend.stop();
            assert!(!log.contains(key), "the log has the key:\n{log}");
        }
    });
}

#[test]
fn identifiers_of_requests_are_answered() {
    each(&ALL, |variant| {
        let repository = plain_repository();
        let frontend = Frontend::start_without_python(variant, &repository, &[]);
        let answer = sent(&frontend, "GET", "/v1/models", &[("X-Request-Id", "mine-7")]);
        assert_eq!(answer.header("x-request-id"), Some("mine-7"));
        let answer = frontend.post(COMPLETIONS, &completion("absent", "x"));
        let made = answer.header("x-request-id").map(str::to_owned);
        assert!(made.as_deref().is_some_and(|id| id.len() >= 16), "{:?}", answer.headers);
        let again = frontend.post(COMPLETIONS, &completion("absent", "x"));
        assert_ne!(again.header("x-request-id").map(str::to_owned), made);
        // What could split a head is not sent back.
        let answer = sent(&frontend, "GET", "/v1/models", &[("X-Request-Id", &"x".repeat(5000))]);
        assert!(answer.header("x-request-id").is_none_or(|id| id.len() < 1000), "{:?}", answer.headers);
        frontend.stop();
    });
}

#[test]
fn the_model_has_the_answers_identifier() {
    if has_run() {
        return;
    }
    let repository = repository(&["openai_mock"]);
    let Some(frontend) = Frontend::start_as(usual(), &repository, &[]) else { return };
    let answer = frontend.asked(COMPLETIONS, &completion("openai_mock", "<<inputs>>"));
    let said: serde_json::Value =
        serde_json::from_str(answer["choices"][0]["text"].as_str().expect("a text")).expect("JSON");
    assert_eq!((&said["id"], said["parameters"].clone()), (&answer["id"], json!({})));
    frontend.stop();
}

/// Browsers send no key with the request by which they ask whether a page may send one.
#[test]
fn pages_may_ask_without_a_key() {
    let frontend = Frontend::start_without_python(usual(), &plain_repository(), &["--openai-api-key=k"]);
    let asks = [("Origin", "http://localhost"), ("Access-Control-Request-Method", "POST")];
    let answer = sent(&frontend, "OPTIONS", COMPLETIONS, &asks);
    assert_eq!((answer.status, answer.text()), (200, "OK".to_owned()));
    assert_eq!(sent(&frontend, "OPTIONS", COMPLETIONS, &[]).status, 405, "nothing else is answered");
    assert_eq!(sent(&frontend, "POST", COMPLETIONS, &asks[..1]).status, 401);
    frontend.stop();
}

/// Where the HTTP port serves the routes, its own groups hold; a change through either port is in the audit log.
#[test]
fn the_groups_of_the_http_port_and_the_audit_log_hold_for_the_routes() {
    let repository = plain_repository();
    let audit = repository.path().join("audit");
    let log = format!("--audit-log={}", audit.display());
    let flags = [
        "--openai-on-http=true",
        "--http-restricted-api=model-repository:admin=hush",
        "--model-control-mode=explicit",
        log.as_str(),
    ];
    let frontend = Frontend::start_without_python(usual(), &repository, &flags);
    let mut http = Peer::connect(frontend.server.http);
    for (method, path) in
        [("GET", "/v1/models"), ("POST", "/v1/models/plain/load"), ("POST", "/v1/models/plain/unload")]
    {
        let refused = http.send(&request(method, path, &[], b"")).answer();
        assert_eq!(refused.status, 403, "{method} {path}: {}", refused.text());
    }
    let loaded = http.send(&request("POST", "/v1/models/plain/load", &[("admin", "hush")], b"")).answer();
    assert_eq!(loaded.status, 200, "{}", loaded.text());
    let unloaded = sent(&frontend, "POST", "/v1/models/plain/unload", &[]);
    assert_eq!(unloaded.status, 200, "{}", unloaded.text());
    frontend.stop();
    let written = std::fs::read_to_string(&audit).expect("the audit log");
    let records: Vec<serde_json::Value> = written.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let seen: Vec<[&str; 3]> = records
        .iter()
        .filter(|record| record["protocol"] == "openai")
        .map(|record| ["action", "subject", "outcome"].map(|name| record[name].as_str().unwrap_or_default()))
        .collect();
    let expected = [
        ["load", "plain", "refused"],
        ["unload", "plain", "refused"],
        ["load", "plain", "done"],
        ["unload", "plain", "done"],
    ];
    assert_eq!(seen, expected, "{written}");
}
