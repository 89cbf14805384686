//! Routes, methods and heads of answers (contract/openai.md sections 1 and 1.1).

use serde_json::json;

use super::frontend::{Frontend, has_run, plain_repository};
use nereid_test_support::http::{Answer, request};
use nereid_test_support::variant::{ALL, each, usual};

const COMPATS: [&str; 2] = ["--openai-compat=openai", "--openai-compat=triton"];

fn sent(frontend: &Frontend, method: &str, path: &str) -> Answer {
    frontend.peer().send(&request(method, path, &[], b"")).answer()
}

/// Of an answer to HEAD, which has no body.
fn head(frontend: &Frontend, path: &str) -> Answer {
    frontend.peer().send(format!("HEAD {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes()).head()
}

fn assert_refused(answer: &Answer, status: u16, detail: &str, compat: &str) {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    if compat.ends_with("triton") {
        assert_eq!(answer.text(), format!("{{\"detail\":\"{detail}\"}}"));
        return;
    }
    assert_eq!(answer.json()["detail"], detail);
    assert_eq!(answer.json()["error"]["message"], detail, "{}", answer.text());
    assert!(answer.json()["error"]["type"].is_string(), "{}", answer.text());
}

#[test]
fn paths_and_methods_are_answered_as_by_the_original() {
    each(&ALL, |variant| {
        for compat in COMPATS {
            let repository = plain_repository();
            let frontend = Frontend::start_without_python(variant, &repository, &[compat]);
            for path in ["/", "/v1", "/v1/absent", "/v1/models/plain/reload", "/v1/models/a%2Fb", "/v1/models/a/b"] {
                assert_refused(&sent(&frontend, "GET", path), 404, "Not Found", compat);
            }
            assert_refused(&sent(&frontend, "GET", "/v1/models/absent"), 404, "Unknown model: absent", compat);
            assert_refused(&sent(&frontend, "GET", "/v1/models/%20%20"), 404, "Unknown model:   ", compat);
            assert_refused(&sent(&frontend, "GET", "/v1/models/.."), 404, "Unknown model: ..", compat);
            let posted = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models/plain/load"];
            for path in posted {
                for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
                    let answer = sent(&frontend, method, path);
                    assert_refused(&answer, 405, "Method Not Allowed", compat);
                    assert_eq!(answer.header("allow"), Some("POST"), "{method} {path}");
                }
            }
            for path in ["/v1/models", "/v1/models/plain", "/health/ready", "/metrics"] {
                for method in ["POST", "PATCH"] {
                    let answer = sent(&frontend, method, path);
                    assert_refused(&answer, 405, "Method Not Allowed", compat);
                    assert_eq!(answer.header("allow"), Some("GET"), "{method} {path}");
                }
                let answer = head(&frontend, path);
                assert_eq!((answer.status, answer.header("allow")), (405, Some("GET")), "HEAD {path}");
            }
            frontend.stop();
        }
    });
}

#[test]
fn a_slash_too_many_is_a_redirect() {
    each(&ALL, |variant| {
        let repository = plain_repository();
        let frontend = Frontend::start_without_python(variant, &repository, &[]);
        for (method, path, target) in [
            ("GET", "/v1/models/", "/v1/models"),
            ("GET", "/v1/models/plain/", "/v1/models/plain"),
            ("POST", "/v1/completions/", "/v1/completions"),
            ("GET", "/health/ready/", "/health/ready"),
        ] {
            let answer = sent(&frontend, method, path);
            assert_eq!((answer.status, answer.body.len()), (307, 0), "{method} {path}");
            assert_eq!(answer.header("location"), Some(format!("http://test{target}").as_str()));
        }
        assert_eq!(sent(&frontend, "GET", "/absent/").status, 404);
        frontend.stop();
    });
}

#[test]
fn models_health_and_metrics_are_shown() {
    each(&ALL, |variant| {
        for compat in COMPATS {
            let repository = plain_repository();
            let frontend = Frontend::start_without_python(variant, &repository, &[compat]);
            let mut peer = frontend.peer();
            let answer = peer.get("/v1/models?limit=1&after=x");
            assert_eq!(answer.status, 200);
            assert_eq!(answer.header("content-type"), Some("application/json"));
            if compat.ends_with("triton") {
                assert!(answer.header("date").is_some_and(|date| date.ends_with(" GMT")), "{:?}", answer.headers);
                assert_eq!(answer.header("server"), Some("uvicorn"));
            }
            let created = answer.json()["data"][0]["created"].clone();
            assert!(created.as_u64().is_some_and(|seconds| seconds > 1_700_000_000), "{}", answer.text());
            let model = format!(
                "{{\"id\":\"plain\",\"created\":{created},\"object\":\"model\",\
                 \"owned_by\":\"Triton Inference Server\"}}"
            );
            assert_eq!(answer.text(), format!("{{\"object\":\"list\",\"data\":[{model}]}}"));
            // On the same connection.
            assert_eq!(peer.get("/v1/models/plain").text(), model);

            let health = peer.get("/health/ready");
            assert_eq!((health.status, health.body.len()), (200, 0));
            assert_eq!(health.header("content-length"), Some("0"));
            assert_eq!(health.header("content-type"), None);

            let metrics = peer.get("/metrics");
            assert_eq!(metrics.header("content-type"), Some("text/plain; charset=utf-8"));
            assert!(metrics.text().contains("nv_inference_request_success{model=\"plain\""), "{}", metrics.text());
            frontend.stop();
        }
    });
}

#[test]
fn routes_that_only_nereid_has_are_hidden_for_compatibility() {
    if has_run() {
        return;
    }
    let repository = plain_repository();
    let frontend = Frontend::start_without_python(usual(), &repository, &["--openai-compat=triton"]);
    for path in ["/v1/responses", "/v1/rerank", "/rerank", "/v1/score", "/tokenize", "/detokenize", "/ping"] {
        let answer = frontend.post(path, &json!({}));
        assert_refused(&answer, 404, "Not Found", "triton");
    }
    for path in ["/health", "/health/live", "/ping", "/version", "/live", "/v2", "/v2/health/ready"] {
        assert_refused(&frontend.get(path), 404, "Not Found", "triton");
    }
    frontend.stop();
}

#[test]
fn the_port_describes_itself() {
    if has_run() {
        return;
    }
    let repository = plain_repository();
    let flags = ["--openai-restricted-api=inference,model-repository,metrics,health:admin-key=secret"];
    let frontend = Frontend::start_without_python(usual(), &repository, &flags);
    let description = frontend.get("/openapi.json");
    assert_eq!(description.header("content-type"), Some("application/json"));
    let description = description.json();
    assert_eq!(description["info"]["title"], "OpenAI API");
    assert_eq!(description["info"]["version"], "2.0.0");
    for (path, method) in [
        ("/v1/chat/completions", "post"),
        ("/v1/completions", "post"),
        ("/v1/embeddings", "post"),
        ("/v1/models", "get"),
        ("/v1/models/{model_name}", "get"),
        ("/v1/models/{model_name}/load", "post"),
        ("/v1/models/{model_name}/unload", "post"),
        ("/health/ready", "get"),
        ("/metrics", "get"),
    ] {
        assert!(description["paths"][path][method].is_object(), "{method} {path}");
    }
    for path in ["/docs", "/redoc"] {
        let page = frontend.get(path);
        assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")), "{path}");
        assert!(page.text().contains("/openapi.json"), "{}", page.text());
    }
    assert_eq!(frontend.get("/docs/oauth2-redirect").status, 200);
    frontend.stop();
}

#[test]
fn requests_that_are_no_http_end_their_connection_only() {
    each(&ALL, |variant| {
        let repository = plain_repository();
        let frontend = Frontend::start_without_python(variant, &repository, &[]);
        let mut peer = frontend.peer();
        peer.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03nonsense\r\n\r\n");
        assert!(peer.try_answer().is_err_and(|problem| problem.contains("ended")) || peer.try_answer().is_err());
        // A request in the smallest pieces.
        let mut peer = frontend.peer();
        for byte in b"GET /health/ready HTTP/1.1\r\nHost: test\r\n\r\n" {
            peer.send(&[*byte]);
        }
        assert_eq!(peer.answer().status, 200);
        // Several at once are answered in order.
        let many = "GET /v1/models/plain HTTP/1.1\r\nHost: a\r\n\r\nGET /absent HTTP/1.1\r\nHost: a\r\n\r\n".repeat(20);
        peer.send(many.as_bytes());
        for _ in 0..20 {
            assert_eq!(peer.answer().status, 200);
            assert_eq!(peer.answer().status, 404);
        }
        frontend.stop();
    });
}
