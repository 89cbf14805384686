//! The content types of responses, class by class (contract/http.md section 1): without one from the handlers it is
//! `text/plain`.

use nereid_test_support::backend;
use nereid_test_support::http::{Answer, Peer, infer_with_tail, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each};

const JSON: &str = "application/json";
const PLAIN: &str = "text/plain";
const GOOD: &str = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[2],"data":[1,2]}]}"#;

fn label(answer: &Answer) -> &str {
    answer.header("content-type").unwrap_or("none")
}

#[test]
fn every_class_of_answer_has_its_label() {
    let Some(directory) = backend::directory() else { return };
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let pairs = [Pair::new("INT32", "-1")];
        repository.identity_of("copycat", "plain", 0, &pairs, "");
        repository.identity_of("copycat", "decoupled", 0, &pairs, "model_transaction_policy { decoupled: true }");
        repository.identity("half", 0, &[Pair::new("FP16", "-1")]);
        repository.identity("flag", 0, &[Pair::new("BOOL", "-1")]);
        let flag = format!("--backend-directory={}", directory.display());
        let server = Server::start(variant, repository.path(), &[&flag, "--http-max-input-size=2000"]);
        let mut peer = Peer::connect(server.http);

        for (method, path, status, expected) in [
            // No route: no handler sets a content type.
            ("GET", "/", 404, PLAIN),
            ("GET", "/v2/nowhere", 404, PLAIN),
            ("POST", "/v2/models/plain/nothing", 404, PLAIN),
            // A wrong method: the handler has set it already, except those of health, readiness and infer.
            ("POST", "/v2", 405, JSON),
            ("POST", "/v2/models/plain", 405, JSON),
            ("POST", "/v2/models/plain/versions/1", 405, JSON),
            ("PUT", "/v2/models/plain/config", 405, JSON),
            ("POST", "/v2/models/plain/stats", 405, JSON),
            ("POST", "/v2/models/stats", 405, JSON),
            ("PUT", "/v2/logging", 405, JSON),
            ("GET", "/v2/repository/index", 405, JSON),
            ("GET", "/v2/repository/models/plain/load", 405, JSON),
            ("GET", "/v2/repository/models/plain/unload", 405, JSON),
            ("POST", "/v2/health/live", 405, PLAIN),
            ("POST", "/v2/health/ready", 405, PLAIN),
            ("POST", "/v2/models/plain/ready", 405, PLAIN),
            ("GET", "/v2/models/plain/infer", 405, PLAIN),
            // A lookup that fails.
            ("GET", "/v2/models/absent", 404, JSON),
            ("GET", "/v2/models/absent/config", 404, JSON),
            ("GET", "/v2/models/absent/versions/1/stats", 400, JSON),
            ("GET", "/v2/models/plain/versions/99999999999999999999", 400, JSON),
            ("GET", "/v2/models/absent/ready", 400, PLAIN),
            ("GET", "/v2/models/plain/versions/99999999999999999999/ready", 400, PLAIN),
            ("POST", "/v2/models/absent/infer", 404, PLAIN),
            ("POST", "/v2/models/plain/versions/7/infer", 404, PLAIN),
            ("POST", "/v2/models/plain/versions/99999999999999999999/infer", 400, PLAIN),
            ("POST", "/v2/models/decoupled/infer", 501, PLAIN),
            // Successful requests.
            ("GET", "/v2", 200, JSON),
            ("GET", "/v2/models/plain", 200, JSON),
            ("GET", "/v2/models/plain/config", 200, JSON),
            ("GET", "/v2/models/plain/stats", 200, JSON),
            ("GET", "/v2/models/stats", 200, JSON),
            ("GET", "/v2/logging", 200, JSON),
            ("POST", "/v2/repository/index", 200, JSON),
            ("GET", "/v2/health/live", 200, PLAIN),
            ("GET", "/v2/health/ready", 200, PLAIN),
            ("GET", "/v2/models/plain/ready", 200, PLAIN),
            // Refused management requests.
            ("POST", "/v2/repository/models/plain/load", 503, JSON),
            ("POST", "/v2/repository/models/plain/unload", 503, JSON),
            ("POST", "/v2/repository/any/models/plain/load", 501, JSON),
            ("POST", "/v2/logging", 500, JSON),
        ] {
            let answer = peer.send(&request(method, path, &[], b"")).answer();
            assert_eq!((answer.status, label(&answer)), (status, expected), "{method} {path}: {}", answer.text());
        }

        let infer = "/v2/models/plain/infer";
        let long = " ".repeat(2001);
        let with = |parameter: &str| format!(r#"{{"parameters":{{{parameter}}},{}"#, &GOOD[1..]);
        for (what, headers, body, status, expected) in [
            ("success", &[][..], GOOD, 200, JSON),
            ("encoding", &[("Content-Encoding", "br")], GOOD, 501, PLAIN),
            ("header length", &[("Inference-Header-Content-Length", "1000")], GOOD, 400, PLAIN),
            ("header length", &[("Inference-Header-Content-Length", "x")], GOOD, 400, PLAIN),
            ("size", &[], &long, 400, JSON),
            ("syntax", &[], "{", 500, JSON),
            ("accessor", &[], "{}", 500, JSON),
            ("validation", &[], r#"{"inputs":[]}"#, 400, JSON),
            ("the model fails the request", &[], &with(r#""fail":"as told""#), 400, PLAIN),
            ("the model refuses it", &[], &with(r#""refuse":"not now""#), 503, PLAIN),
        ] {
            let answer = Peer::connect(server.http).post(infer, headers, body.as_bytes());
            assert_eq!((answer.status, label(&answer)), (status, expected), "{what}: {}", answer.text());
        }
        let binary = format!(r#"{},"parameters":{{"binary_data_output":true}}}}"#, &GOOD[..GOOD.len() - 1]);
        let answer = peer.post(infer, &[], binary.as_bytes());
        assert_eq!((answer.status, label(&answer)), (200, "application/octet-stream"));

        // Errors after the execution, while the response is encoded.
        let json =
            r#"{"inputs":[{"name":"INPUT0","datatype":"FP16","shape":[1],"parameters":{"binary_data_size":2}}]}"#;
        let answer = peer.send(&infer_with_tail("/v2/models/half/infer", json, b"ab")).answer();
        let text = "sending FP16 data via JSON is not supported. Please use the binary data format for output";
        assert_eq!((answer.status, label(&answer), answer.error().as_str()), (400, PLAIN, text));
        let json = r#"{"inputs":[{"name":"INPUT0","datatype":"BOOL","shape":[1],"data":[true]}],
            "outputs":[{"name":"OUTPUT0","parameters":{"classification":1}}]}"#;
        let answer = peer.post("/v2/models/flag/infer", &[], json.as_bytes());
        let text = "class result not available for output due to unsupported type 'BOOL'";
        assert_eq!((answer.status, label(&answer), answer.error().as_str()), (400, PLAIN, text));

        let mut metrics = Peer::connect(server.metrics);
        for (method, path, status, expected) in [
            ("GET", "/metrics", 200, "text/plain; charset=utf-8"),
            ("GET", "/metrics/", 200, "text/plain; charset=utf-8"),
            ("POST", "/metrics", 405, PLAIN),
            ("PUT", "/metrics/", 405, PLAIN),
        ] {
            let answer = metrics.send(&request(method, path, &[], b"")).answer();
            assert_eq!((answer.status, label(&answer)), (status, expected), "{method} {path}");
        }
        for path in ["/", "/metric", "/metrics//", "/v2/health/live", "/metrics/x"] {
            let answer = metrics.get(path);
            assert_eq!((answer.status, answer.text().as_str()), (200, ""), "the metrics port answers {path}");
        }
        server.stop();
    });
}
