//! `nereid status` against servers that are ready, that are not, and that are not there.

use serde_json::Value;

use super::{address, infer, models};
use nereid_test_support::certificates::Certificates;
use nereid_test_support::http::Peer;
use nereid_test_support::server::{Server, free_port, run_to_end};
use nereid_test_support::variant::usual;

/// Exit code, standard output and standard error.
fn status(words: &[&str]) -> (Option<i32>, String, String) {
    let words: Vec<&str> = ["status"].into_iter().chain(words.iter().copied()).collect();
    let (status, out, err) = run_to_end(&words);
    (status.code(), out, err)
}

fn json(words: &[&str]) -> (Option<i32>, Value) {
    let (code, out, err) = status(&[words, &["--format=json"]].concat());
    let document = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error} in {out}\n{err}"));
    (code, document)
}

#[test]
fn a_ready_server_is_reported_with_what_was_sent() {
    let repository = models(["busy".to_owned(), "idle".to_owned()]);
    let server = Server::start(usual(), repository.path(), &["--id=mine"]);
    let at = address(&server);
    let words = [at[0].as_str(), at[1].as_str()];
    let mut peer = Peer::connect(server.http);
    (0..23).for_each(|_| infer(&mut peer, "busy"));
    // The counters follow the responses.
    server.wait_until("23 requests are counted", || json(&words).1["totals"]["requests"] == 23);
    let (code, document) = json(&words);
    assert_eq!(code, Some(0), "{document:#}");
    let of = &document["server"];
    assert_eq!((&of["live"], &of["ready"], &of["name"]), (&true.into(), &true.into(), &"mine".into()));
    assert_eq!((&of["version"], &of["build"]), (&"2.75.0".into(), &env!("CARGO_PKG_VERSION").into()));
    let of_models = document["models"].as_array().expect("models");
    let counts: Vec<_> = of_models.iter().map(|model| (&model["name"], &model["state"], &model["requests"])).collect();
    let (busy, idle, ready) = ("busy".into(), "idle".into(), "READY".into());
    assert_eq!(counts, [(&busy, &ready, &23.into()), (&idle, &ready, &0.into())]);
    assert_eq!((&document["totals"]["ready"], &document["totals"]["failures"]), (&2.into(), &0.into()));
    let (code, out, err) = status(&words);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    for part in
        [": live, ready\n", "server: mine 2.75.0", "busy  1  READY", "2 ready, 0 loading", "23 requests answered"]
    {
        assert!(out.contains(part), "{part:?} in\n{out}");
    }
    server.stop();
}

#[test]
fn a_model_that_failed_is_named_with_its_reason() {
    let repository = models(["good".to_owned()]);
    repository.model("bad", "backend: \"nonsense\"\ninput { name: \"A\" data_type: TYPE_INT32 dims: [ 1 ] }\n");
    let server = Server::start_with(usual(), repository.path(), &["--exit-on-error=false"], "/v2/health/live");
    let at = address(&server);
    let (code, document) = json(&[&at[0], &at[1]]);
    assert_eq!(code, Some(1), "{document:#}");
    let bad = &document["models"][0];
    assert_eq!((&bad["name"], &bad["is_available"]), (&"bad".into(), &false.into()));
    assert!(bad["reason"].as_str().is_some_and(|reason| reason.contains("nonsense")), "{bad}");
    assert_eq!(document["totals"]["unavailable"], 1);
    let (code, out, _) = status(&[&at[0], &at[1]]);
    assert!(code == Some(1) && out.contains("FAILED") && out.contains("READY"), "{out}");
    // Without metrics there are states, and a note.
    let nowhere = format!("--metrics-url=127.0.0.1:{}", free_port());
    let (code, document) = json(&[&at[0], &nowhere]);
    assert_eq!((code, &document["totals"]["requests"]), (Some(1), &Value::Null));
    assert!(document["notes"][0].as_str().is_some_and(|note| note.starts_with("no metrics: ")), "{document}");
}

#[test]
fn no_server_and_no_sense_have_exit_codes_of_their_own() {
    let url = format!("--url=127.0.0.1:{}", free_port());
    let (code, out, err) = status(&[&url]);
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    assert!(err.starts_with("error: cannot connect to 127.0.0.1:") && err.contains("is the server running"), "{err}");
    let (code, document) = json(&[&url]);
    assert_eq!((code, &document["server"]["ready"]), (Some(2), &false.into()));
    assert!(document["error"].as_str().is_some_and(|error| error.contains("cannot connect")), "{document}");
    let (code, _, err) = status(&["--nonsense"]);
    assert_eq!(code, Some(3));
    assert!(err.contains("there is no --nonsense"), "{err}");
    let (code, out, _) = status(&["--help"]);
    assert!(code == Some(0) && out.starts_with("Usage: nereid status"), "{out}");
}

#[test]
fn a_server_behind_tls_is_read_with_its_authority() {
    let Some(certificates) = Certificates::make() else { return };
    let repository = models(["m".to_owned()]);
    let flags = certificates.mutual_flags("http");
    // Metrics are at the same port, and need no other address.
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["--http-metrics=true"]).collect();
    let server = Server::start_saying(usual(), repository.path(), &flags, "Started HTTPService at ");
    let url = format!("--url=https://{}", server.http);
    let [ca, other, certificate, key] = [
        ("ca-certificates", "authority.pem"),
        ("ca-certificates", "other.pem"),
        ("client-certificate", "client.pem"),
        ("private-key", "client.key"),
    ]
    .map(|(flag, file)| format!("--ssl-https-{flag}-file={}", certificates.path(file)));
    server.wait_until("the server is ready", || status(&[&url, &ca, &certificate, &key]).0 == Some(0));
    let (_, document) = json(&[&url, &ca, &certificate, &key]);
    assert_eq!((&document["totals"]["requests"], &document["notes"]), (&0.into(), &Value::Array(Vec::new())));
    let (code, _, err) = status(&[&url, &other, &certificate, &key]);
    assert!(code == Some(2) && err.contains("certificate"), "{err}");
    server.stop();
}
