//! Multi-model endpoints: models are loaded and unloaded while the server runs (contract/http.md section 8).

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use super::{BINARY_JSON, BODY, Endpoint, MIME, ask, binary_body, plain};
use nereid_test_support::backend;
use nereid_test_support::gate::Gate;
use nereid_test_support::http::{Answer, Peer, request};
use nereid_test_support::repository::{Pair, Repository, identity_config};
use nereid_test_support::server::PATIENCE;
use nereid_test_support::skip::skip;
use nereid_test_support::variant::{self, Variant, each, usual};

const EXPLICIT: &str = "--model-control-mode=explicit";

/// A directory below the place where SageMaker puts models, removed with its owner.
struct Place {
    hash: String,
    root: PathBuf,
}

impl Place {
    /// None, after a visible skip, where nothing can be put there.
    fn new() -> Option<Place> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let hash = format!("nereid-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let root = PathBuf::from("/opt/ml/models").join(&hash);
        match fs::create_dir_all(root.join("model")) {
            Ok(()) => Some(Place { hash, root }),
            Err(error) => {
                skip(&format!("{}: {error}", root.display()));
                None
            }
        }
    }

    /// A model in that directory of the URL; empty: in the URL itself.
    fn model(&self, directory: &str, config: &str) {
        let inside = self.root.join("model").join(directory);
        fs::create_dir_all(inside.join("1")).expect("make a version directory");
        fs::write(inside.join("config.pbtxt"), config).expect("write a configuration");
    }

    fn url(&self) -> String {
        self.root.join("model").display().to_string()
    }

    fn body(&self) -> String {
        json!({ "model_name": self.hash, "url": self.url() }).to_string()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn copycat(more: &str) -> String {
    identity_config("copycat", "its_own_name", 0, &[Pair::new("INT32", "-1")], more)
}

fn parameter(key: &str, value: &str) -> String {
    format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n")
}

/// A server for models that come and go. None, after a visible skip, without a C compiler.
fn hosting(variant: Variant, repository: &Repository) -> Option<Endpoint> {
    Some(Endpoint::start(variant, repository, &[EXPLICIT, &backend::directory_flag()?], &[]))
}

fn load(peer: &mut Peer, place: &Place) -> Answer {
    peer.post("/models", &[], place.body().as_bytes())
}

fn must_load(peer: &mut Peer, place: &Place) {
    let answer = load(peer, place);
    assert_eq!((answer.status, answer.text().as_str()), (200, ""), "load {}", place.hash);
}

fn must_unload(peer: &mut Peer, place: &Place) {
    let answer = ask(peer, "DELETE", &format!("/models/{}", place.hash), "");
    assert_eq!((answer.status, answer.text().as_str()), (200, ""), "unload {}", place.hash);
}

fn invoke(peer: &mut Peer, hash: &str, body: &str) -> Answer {
    peer.post(&format!("/models/{hash}/invoke"), &[], body.as_bytes())
}

/// The list, sorted by name.
fn listed(peer: &mut Peer) -> Vec<Value> {
    let answer = peer.get("/models");
    assert_eq!(answer.status, 200);
    let mut models = answer.json()["models"].as_array().cloned().expect("models");
    models.sort_by_key(|model| model["modelName"].to_string());
    models
}

fn index(endpoint: &Endpoint) -> Value {
    Peer::connect(endpoint.server.http).post("/v2/repository/index", &[], b"").json()
}

#[test]
fn models_come_and_go() {
    each(&variant::ALL, |variant| {
        let (Some(first), Some(second)) = (Place::new(), Place::new()) else { return };
        let repository = Repository::new();
        let Some(endpoint) = hosting(variant, &repository) else { return };
        let mut peer = endpoint.peer();
        assert_eq!(listed(&mut peer), Vec::<Value>::new());
        // The one lies in the URL itself, the other in a directory of it.
        first.model("", &copycat(""));
        second.model("inside", &copycat(""));
        must_load(&mut peer, &first);
        must_load(&mut peer, &second);
        let entry = |place: &Place, url: String| json!({ "modelName": place.hash, "modelUrl": url });
        let above = first.root.display().to_string();
        let expected = vec![entry(&first, above), entry(&second, second.url())];
        assert_eq!(listed(&mut peer), expected);
        assert_eq!(peer.get("/models/").json()["models"].as_array().map(Vec::len), Some(2));
        for (place, expected) in [&first, &second].into_iter().zip(&expected) {
            assert_eq!(peer.get(&format!("/models/{}", place.hash)).json(), *expected);
            let answer = invoke(&mut peer, &place.hash, BODY);
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.json()["outputs"][0]["data"], json!([1, 2]));
            assert_eq!(answer.json()["model_name"], place.hash.as_str());
        }
        for place in [&first, &second] {
            let answer = load(&mut peer, place);
            assert_eq!(answer.status, 409, "{}", answer.text());
            assert!(answer.error().ends_with("has already been registered"), "{}", answer.text());
        }
        must_unload(&mut peer, &first);
        assert_eq!(listed(&mut peer), expected[1..]);
        assert_eq!(invoke(&mut peer, &second.hash, BODY).status, 200, "the other one serves on");
        for answer in [
            peer.get(&format!("/models/{}", first.hash)),
            invoke(&mut peer, &first.hash, BODY),
            ask(&mut peer, "DELETE", &format!("/models/{}", first.hash), ""),
        ] {
            assert_eq!((answer.status, answer.text().as_str()), (404, ""));
        }
        must_load(&mut peer, &first);
        assert_eq!(listed(&mut peer), expected);
        must_unload(&mut peer, &second);
        must_unload(&mut peer, &first);
        assert_eq!(listed(&mut peer), Vec::<Value>::new());
        assert_eq!(index(&endpoint), json!([]), "nothing is left behind");
        assert_eq!(peer.get("/ping").status, 200);
        let log = endpoint.server.stop();
        assert!(log.contains(&format!("Model repository registered: {}", second.url())), "{log}");
        assert!(log.contains(&format!("Model repository unregistered: {}", second.url())), "{log}");
    });
}

#[test]
fn an_ensemble_brings_its_parts_and_takes_them_along() {
    let Some(place) = Place::new() else { return };
    let repository = Repository::new();
    let Some(endpoint) = hosting(usual(), &repository) else { return };
    place.model("a_part", &identity_config("identity", "a_part", 0, &[Pair::new("INT32", "-1")], ""));
    let ends = "input { name: \"INPUT0\" data_type: TYPE_INT32 dims: [ -1 ] }\n\
                output { name: \"OUTPUT0\" data_type: TYPE_INT32 dims: [ -1 ] }\n";
    let step = "ensemble_scheduling { step [ { model_name: \"a_part\" model_version: -1 \
                input_map { key: \"INPUT0\" value: \"INPUT0\" } \
                output_map { key: \"OUTPUT0\" value: \"OUTPUT0\" } } ] }";
    place.model("whole", &format!("platform: \"ensemble\"\n{ends}{step}"));
    let mut peer = endpoint.peer();
    must_load(&mut peer, &place);
    let answer = invoke(&mut peer, &place.hash, BODY);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let names: Vec<String> = index(&endpoint)
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| {
            format!("{} {}", row["name"].as_str().unwrap_or_default(), row["state"].as_str().unwrap_or_default())
        })
        .collect();
    assert_eq!(names, ["a_part READY".to_owned(), format!("{} READY", place.hash)]);
    must_unload(&mut peer, &place);
    let started = Instant::now();
    while index(&endpoint) != json!([]) {
        assert!(started.elapsed() < PATIENCE, "the part stays: {}", index(&endpoint));
    }
    endpoint.server.stop();
}

#[test]
fn the_target_model_names_what_is_meant() {
    let Some(place) = Place::new() else { return };
    let repository = Repository::new();
    let Some(endpoint) = hosting(usual(), &repository) else { return };
    place.model("inside", &copycat(""));
    let mut peer = endpoint.peer();
    let target = [("X-Amzn-SageMaker-Target-Model", "by.another.name")];
    let answer = peer.post("/models", &target, place.body().as_bytes());
    assert_eq!((answer.status, answer.text().as_str()), (200, ""));
    assert_eq!(listed(&mut peer), [json!({})], "the hash is not the name of a model");
    let expected = json!({ "modelName": place.hash, "modelUrl": place.url() });
    assert_eq!(peer.get(&format!("/models/{}", place.hash)).json(), expected);
    let path = format!("/models/{}/invoke", place.hash);
    for headers in [&target[..], &[]] {
        let answer = peer.post(&path, headers, BODY.as_bytes());
        assert_eq!((answer.status, &answer.json()["model_name"]), (200, &json!("by.another.name")));
    }
    let other = [("X-Amzn-SageMaker-Target-Model", "nobody")];
    let text = "X-Amzn-SageMaker-Target-Model header does not match the model requested in the URL";
    let unload = format!("/models/{}", place.hash);
    for (method, path, body) in [("POST", &path, BODY), ("DELETE", &unload, "")] {
        let hash = [("X-Amzn-SageMaker-Target-Model", place.hash.as_str())];
        for wrong in [&other, &hash] {
            let answer = peer.send(&request(method, path, wrong, body.as_bytes())).answer();
            assert_eq!((answer.status, answer.error().as_str()), (400, text), "{method} {wrong:?}");
        }
        let unknown = path.replace(&place.hash, "unknown");
        let answer = peer.send(&request(method, &unknown, &other, body.as_bytes())).answer();
        assert_eq!((answer.status, answer.text().as_str()), (404, ""), "the hash comes first: {method}");
    }
    let answer = peer.post(&path, &[], BODY.as_bytes());
    assert_eq!(answer.status, 200, "what was refused unloaded nothing: {}", answer.text());
    let answer = peer.send(&request("DELETE", &unload, &target, b"")).answer();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(index(&endpoint), json!([]));
    let log = endpoint.server.stop();
    for line in ["Loading", "Invoking", "Unloading"] {
        assert!(log.contains(&format!("{line} SageMaker TargetModel: by.another.name")), "{line}: {log}");
    }
}

#[test]
fn loads_that_are_refused_leave_nothing() {
    let Some(place) = Place::new() else { return };
    let repository = Repository::new();
    let Some(endpoint) = hosting(usual(), &repository) else { return };
    let mut peer = endpoint.peer();
    let expected = "expected a path of the form /opt/ml/models/<hash>/model[/<subdir>]";
    for url in ["/tmp", "/opt/ml/models/x/model/../../../../etc", "/opt/ml/models/x", "s3://bucket/models", ""] {
        let answer = peer.post("/models", &[], json!({ "model_name": "h", "url": url }).to_string().as_bytes());
        assert_eq!((answer.status, answer.error()), (400, format!("Invalid \"url\" '{url}': {expected}")));
    }
    for url in ["/dev/shm", "/proc/self/cwd", "/sys/fs"] {
        let answer = peer.post("/models", &[], json!({ "model_name": "h", "url": url }).to_string().as_bytes());
        assert_eq!(answer.status, 400, "{url}");
        assert!(answer.error().starts_with(&format!("Invalid \"url\" '{url}': ")), "{}", answer.text());
    }
    for body in ["", "{", "[]", "{}", r#"{"model_name":"h"}"#, r#"{"model_name":1,"url":"/x"}"#] {
        let answer = peer.post("/models", &[], body.as_bytes());
        assert_eq!(answer.status, 400, "{body}");
        assert!(!answer.error().is_empty(), "{body}");
    }
    let answer = peer.post("/models", &[], br#"{"model_name":"h","url":"/opt/ml/models/nereid-nowhere/model"}"#);
    let text = "failed to register '/opt/ml/models/nereid-nowhere/model', repository not found";
    assert_eq!((answer.status, answer.error().as_str()), (400, text));
    // No model, a configuration that is none, a backend that fails, memory that runs out.
    assert_eq!(load(&mut peer, &place).status, 400);
    for (config, status, text) in [
        ("nonsense".to_owned(), 400, "failed to load"),
        (copycat(&parameter("fail_load", "no luck")), 400, "no luck"),
        (copycat(&parameter("fail_load", "CUDA out of memory. Tried")), 507, "CUDA out of memory. Tried"),
        (copycat(&parameter("fail_load", "a MemoryError")), 507, "a MemoryError"),
    ] {
        place.model("inside", &config);
        let answer = load(&mut peer, &place);
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(answer.error().contains(text), "{}", answer.text());
        assert_eq!(listed(&mut peer), Vec::<Value>::new());
        assert_eq!(index(&endpoint), json!([]));
        assert_eq!(peer.get("/ping").status, 200, "what failed is forgotten");
    }
    place.model("inside", &copycat(""));
    must_load(&mut peer, &place);
    // Another repository cannot bring the same name.
    let Some(other) = Place::new() else { return };
    other.model("inside", &copycat(""));
    let body = json!({ "model_name": place.hash, "url": other.url() }).to_string();
    let answer = peer.post("/models", &[], body.as_bytes());
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert!(answer.error().contains("conflicting mapping"), "{}", answer.text());
    let target = [("X-Amzn-SageMaker-Target-Model", "fresh")];
    let answer = peer.post("/models", &target, body.as_bytes());
    assert_eq!(answer.status, 409, "a hash stands for one model: {}", answer.text());
    assert_eq!(invoke(&mut peer, &place.hash, BODY).status, 200);
    must_load(&mut peer, &other);
    endpoint.server.stop();
}

#[test]
fn models_are_brought_in_the_explicit_mode_only() {
    let Some(place) = Place::new() else { return };
    place.model("inside", &copycat(""));
    let repository = plain();
    let endpoint = Endpoint::start(usual(), &repository, &[], &[]);
    let answer = load(&mut endpoint.peer(), &place);
    let text = "repository registration is not allowed if model control mode is not EXPLICIT";
    assert_eq!((answer.status, answer.error().as_str()), (400, text));
    endpoint.server.stop();
}

#[test]
fn errors_of_an_invocation_are_bad_requests_or_a_lack_of_memory() {
    each(&variant::ALL, |variant| {
        let Some(place) = Place::new() else { return };
        let repository = Repository::new();
        let Some(endpoint) = hosting(variant, &repository) else { return };
        place.model("inside", &copycat(""));
        let mut peer = endpoint.peer();
        must_load(&mut peer, &place);
        let failing = |key: &str, text: &str| {
            let inputs = &BODY[1..];
            format!("{{\"parameters\":{{\"{key}\":\"{text}\"}},{inputs}")
        };
        for (body, status) in [
            ("{".to_owned(), 400),
            ("{}".to_owned(), 400),
            (BODY.replace("INPUT0", "OTHER"), 400),
            (BODY.replace("INPUT0", "OOM"), 507),
            (failing("fail", "no luck"), 400),
            (failing("fail", "Out Of Memory"), 507),
            (failing("refuse", "not today"), 400),
            (failing("refuse", "CUBLAS_STATUS_ALLOC_FAILED"), 507),
            (BODY.to_owned(), 200),
        ] {
            let answer = invoke(&mut peer, &place.hash, &body);
            assert_eq!(answer.status, status, "{body}: {}", answer.text());
        }
        // Binary in, binary out.
        let path = format!("/models/{}/invoke", place.hash);
        let content_type = format!("{MIME}{}", BINARY_JSON.len());
        let answer = peer.post(&path, &[("Content-Type", &content_type)], &binary_body());
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.header("content-type").is_some_and(|given| given.starts_with(MIME)));
        let answer = peer.post(&path, &[("Content-Type", &format!("{MIME}x"))], &binary_body());
        assert_eq!(answer.error(), "Unable to parse inference header size, got: x");
        endpoint.server.stop();
    });
}

/// Invokes a model twice, and waits until it executes the one and keeps the other waiting.
fn in_flight(endpoint: &Endpoint, gate: &Gate, hash: &str) -> [Peer; 2] {
    let send = || {
        let mut peer = endpoint.peer();
        peer.send(&request("POST", &format!("/models/{hash}/invoke"), &[], BODY.as_bytes()));
        peer
    };
    let first = send();
    gate.wait_until_held(&endpoint.server, hash);
    let peers = [first, send()];
    let mut metrics = Peer::connect(endpoint.server.metrics);
    let family = format!("nv_inference_pending_request_count{{model=\"{hash}\"");
    let started = Instant::now();
    loop {
        let text = metrics.get("/metrics").text();
        let line = text.lines().find(|line| line.starts_with(&family));
        if line.is_some_and(|line| line.ends_with(" 1")) {
            return peers;
        }
        assert!(started.elapsed() < PATIENCE, "no request waits: {line:?}");
    }
}

#[test]
fn a_model_that_goes_finishes_what_it_has() {
    each(&variant::ALL, |variant| {
        let (Some(slow), Some(quick)) = (Place::new(), Place::new()) else { return };
        let repository = Repository::new();
        let Some(endpoint) = hosting(variant, &repository) else { return };
        let gate = Gate::new();
        slow.model("inside", &copycat(&gate.of_executions()));
        quick.model("inside", &copycat(""));
        let mut peer = endpoint.peer();
        must_load(&mut peer, &slow);
        must_load(&mut peer, &quick);
        let busy = in_flight(&endpoint, &gate, &slow.hash);
        let mut going = endpoint.peer();
        going.send(&request("DELETE", &format!("/models/{}", slow.hash), &[], b""));
        // Neither waits for the other, and nobody waits for either.
        must_unload(&mut peer, &quick);
        must_load(&mut peer, &quick);
        assert_eq!(invoke(&mut peer, &quick.hash, BODY).status, 200);
        gate.open();
        for mut busy in busy {
            let answer = busy.answer();
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let answer = going.answer();
        assert_eq!((answer.status, answer.text().as_str()), (200, ""));
        assert_eq!(listed(&mut peer).len(), 1);
        endpoint.server.stop();
    });
}

#[test]
fn the_end_of_the_server_does_not_wait_for_a_model_to_go() {
    let Some(slow) = Place::new() else { return };
    let repository = Repository::new();
    let Some(endpoint) = hosting(usual(), &repository) else { return };
    let gate = Gate::new();
    slow.model("inside", &copycat(&gate.of_executions()));
    let mut peer = endpoint.peer();
    must_load(&mut peer, &slow);
    let busy = in_flight(&endpoint, &gate, &slow.hash);
    peer.send(&request("DELETE", &format!("/models/{}", slow.hash), &[], b""));
    endpoint.server.wait_for_log("Unloading SageMaker TargetModel");
    endpoint.server.terminate();
    endpoint.server.wait_for_log("Signal (15) received.");
    gate.open();
    for mut busy in busy {
        assert_eq!(busy.answer().status, 200, "what was accepted is answered");
    }
    let answer = peer.answer();
    assert!([200, 503].contains(&answer.status), "{}", answer.text());
    endpoint.server.stop();
}

/// Servers to which models are brought for years know no more of them than those of today.
#[test]
fn many_models_leave_no_trace() {
    let repository = Repository::new();
    let Some(endpoint) = hosting(usual(), &repository) else { return };
    let address = endpoint.address;
    let threads: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn(move || {
                let mut peer = Peer::connect(address);
                for _ in 0..4 {
                    let Some(place) = Place::new() else { return };
                    place.model("inside", &copycat(""));
                    must_load(&mut peer, &place);
                    assert_eq!(invoke(&mut peer, &place.hash, BODY).status, 200);
                    must_unload(&mut peer, &place);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a client"));
    assert_eq!(index(&endpoint), json!([]));
    assert_eq!(listed(&mut endpoint.peer()), Vec::<Value>::new());
    endpoint.server.stop();
}
