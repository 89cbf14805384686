//! Cross-origin requests of browsers (contract/openai.md section 1).

use super::frontend::{Frontend, has_run, plain_repository};
use nereid_test_support::http::{Answer, request};
use nereid_test_support::variant::usual;

const CREDENTIALS: &str = "access-control-allow-credentials";
const ORIGIN: &str = "access-control-allow-origin";

fn sent(frontend: &Frontend, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    frontend.peer().send(&request(method, path, headers, b"")).answer()
}

#[test]
fn only_pages_of_this_host_may_read_answers() {
    if has_run() {
        return;
    }
    let repository = plain_repository();
    let frontend = Frontend::start_without_python(usual(), &repository, &[]);
    let bare = sent(&frontend, "GET", "/v1/models", &[]);
    assert_eq!((bare.header(ORIGIN), bare.header(CREDENTIALS)), (None, None));
    for (path, status) in [("/v1/models", 200), ("/absent", 404), ("/v1/models/absent", 404), ("/health/ready", 200)] {
        let known = sent(&frontend, "GET", path, &[("Origin", "http://localhost")]);
        assert_eq!(known.status, status);
        assert_eq!(known.header(ORIGIN), Some("http://localhost"), "{path}");
        assert_eq!(known.header(CREDENTIALS), Some("true"));
        assert_eq!(known.header("vary"), Some("Origin"));
        for origin in ["http://localhost:3000", "https://localhost", "http://LOCALHOST", "null", "http://evil.test"] {
            let other = sent(&frontend, "GET", path, &[("Origin", origin)]);
            assert_eq!((other.status, other.header(ORIGIN)), (status, None), "{origin}");
            assert_eq!(other.header(CREDENTIALS), Some("true"));
        }
    }
    frontend.stop();
}

#[test]
fn questions_before_a_request_are_answered_for_any_path() {
    if has_run() {
        return;
    }
    let repository = plain_repository();
    let frontend = Frontend::start_without_python(usual(), &repository, &[]);
    let asks = [("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "authorization, x-b")];
    for path in ["/v1/chat/completions", "/absent"] {
        let known = sent(&frontend, "OPTIONS", path, &[asks[0], asks[1], ("Origin", "http://localhost")]);
        assert_eq!((known.status, known.text().as_str()), (200, "OK"));
        assert!(known.header("content-type").is_some_and(|kind| kind.starts_with("text/plain")));
        assert_eq!(known.header(ORIGIN), Some("http://localhost"));
        assert_eq!(known.header(CREDENTIALS), Some("true"));
        assert_eq!(known.header("access-control-max-age"), Some("600"));
        let methods = known.header("access-control-allow-methods").map(str::to_owned);
        assert_eq!(methods.as_deref(), Some("DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"));
        let headers = known.header("access-control-allow-headers").unwrap_or_default();
        assert!(headers.contains("authorization") && headers.contains("x-b"), "{headers}");
        let other = sent(&frontend, "OPTIONS", path, &[asks[0], ("Origin", "http://evil.test")]);
        assert_eq!((other.status, other.text().as_str()), (400, "Disallowed CORS origin"));
        assert_eq!(other.header(ORIGIN), None);
    }
    // Neither without an origin nor without a method is it such a question.
    for headers in [&asks[..1], &[("Origin", "http://localhost")][..]] {
        assert_eq!(sent(&frontend, "OPTIONS", "/v1/chat/completions", headers).status, 405);
    }
    frontend.stop();
}
