//! Bodies that are too large, and their lengths (contract/openai.md section 1.1).

use super::frontend::{COMPLETIONS, Frontend, has_run, plain_repository};
use nereid_test_support::http::{Answer, Peer, request};
use nereid_test_support::variant::{ALL, each, usual};

const POSTED: [&str; 5] =
    ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models/plain/load", "/v1/models/plain/unload"];
const DEFAULT: usize = 67_108_864;

fn too_large(size: usize, limit: usize) -> String {
    format!(
        "{{\"error\":{{\"message\":\"Request size of {size} bytes exceeds the maximum allowed input size of {limit} \
         bytes. Use --http-max-input-size to increase the limit.\",\"type\":\"invalid_request_error\",\
         \"code\":\"content_too_large\"}}}}"
    )
}

/// A head alone: what it says of a body decides.
fn headed(peer: &mut Peer, method: &str, path: &str, length: &str) -> Answer {
    peer.send(format!("{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n").as_bytes()).answer()
}

#[test]
fn a_body_of_the_limit_passes_and_one_byte_more_does_not() {
    const LIMIT: usize = 1000;
    each(&ALL, |variant| {
        let repository = plain_repository();
        let flags = ["--http-max-input-size=1000", "--openai-compat=triton"];
        let frontend = Frontend::start_without_python(variant, &repository, &flags);
        for path in POSTED.iter().chain(&["/absent", "/v1/models", "/health/ready"]) {
            let passed = frontend.peer().send(&request("POST", path, &[], &[b' '; LIMIT])).answer();
            assert_ne!(passed.status, 413, "{path}");
            let refused = headed(&mut frontend.peer(), "POST", path, "1001");
            assert_eq!((refused.status, refused.text()), (413, too_large(1001, LIMIT)), "{path}");
            assert_eq!(refused.header("content-type"), Some("application/json"));
        }
        // A body in chunks is counted as it comes.
        let chunk = [&b"64\r\n"[..], &[b' '; 100], b"\r\n"].concat();
        let head = b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n";
        let whole = [&head[..], &chunk.repeat(10), b"0\r\n\r\n"].concat();
        assert_eq!(frontend.peer().send(&whole).answer().status, 422);
        let over = [&head[..], &chunk.repeat(11), b"0\r\n\r\n"].concat();
        let refused = frontend.peer().send(&over).answer();
        assert_eq!(refused.status, 413, "{}", refused.text());
        let size = refused.text().split(' ').nth(3).and_then(|size| size.parse().ok()).unwrap_or(0);
        assert!(size > LIMIT && size <= 1100, "{}", refused.text());
        assert_eq!(refused.text(), too_large(size, LIMIT));
        assert_eq!(frontend.get("/health/ready").status, 200);
        frontend.stop();
    });
}

#[test]
fn the_usual_limit_is_64_mib() {
    if has_run() {
        return;
    }
    let repository = plain_repository();
    let frontend = Frontend::start_without_python(usual(), &repository, &["--openai-compat=triton"]);
    let refused = headed(&mut frontend.peer(), "POST", COMPLETIONS, &(DEFAULT + 1).to_string());
    assert_eq!((refused.status, refused.text()), (413, too_large(DEFAULT + 1, DEFAULT)));
    // It is held for the schema, which wants an object.
    let mut body = vec![b' '; DEFAULT];
    body[DEFAULT - 2..].copy_from_slice(b"[]");
    let passed = frontend.peer().post(COMPLETIONS, &[], &body);
    assert_eq!(passed.status, 422, "{}", passed.text());
    frontend.stop();
}

#[test]
fn lengths_that_are_none_are_refused() {
    each(&ALL, |variant| {
        let repository = plain_repository();
        let frontend = Frontend::start_without_python(variant, &repository, &["--openai-compat=triton"]);
        let text = |problem: &str| {
            format!(
                "{{\"error\":{{\"message\":\"Invalid Content-Length header: {problem}.\",\
                 \"type\":\"invalid_request_error\",\"code\":\"invalid_content_length\"}}}}"
            )
        };
        for path in POSTED {
            for length in ["not-a-number", "", "1.5", "0x10"] {
                let answer = headed(&mut frontend.peer(), "POST", path, length);
                assert_eq!((answer.status, answer.text()), (400, text("not an integer")), "{length:?}");
            }
            let answer = headed(&mut frontend.peer(), "POST", path, "-1");
            assert_eq!((answer.status, answer.text()), (400, text("must be non-negative")));
        }
        frontend.stop();
    });
}

#[test]
fn the_limit_stands_before_the_keys_and_those_before_routes() {
    if has_run() {
        return;
    }
    let repository = plain_repository();
    let flags = ["--http-max-input-size=100", "--openai-restricted-api=inference:key=secret"];
    let frontend = Frontend::start_without_python(usual(), &repository, &flags);
    let origin = ("Origin", "http://localhost");
    let post = |headers: &[(&str, &str)], size| {
        frontend.peer().send(&request("POST", COMPLETIONS, headers, &vec![b' '; size])).answer()
    };
    let large = post(&[origin], 101);
    assert_eq!((large.status, large.header("access-control-allow-credentials")), (413, None));
    let locked = post(&[origin], 100);
    assert_eq!((locked.status, locked.header("access-control-allow-credentials")), (401, None));
    let open = post(&[origin, ("key", "secret")], 100);
    assert_eq!((open.status, open.header("access-control-allow-credentials")), (422, Some("true")));
    let get = frontend.peer().send(&request("GET", "/v1/completionsX", &[], b"")).answer();
    assert_eq!(get.status, 404, "another method is not restricted");
    frontend.stop();
}
