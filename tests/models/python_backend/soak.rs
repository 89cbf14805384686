//! Many requests of all kinds while workers are killed at random: every one is answered, and nothing grows.
//!
//! `NEREID_TEST_SOAK` says how many requests; the full one of docs/python-faults.md has 200,000.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};

use super::{models, trouble};
use nereid_test_support::grpc::{Grpc, code};
use nereid_test_support::http::Peer;
use nereid_test_support::random::Random;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

const SCALE: &str = "NEREID_TEST_SOAK";
const CLIENTS: usize = 8;
/// Resident memory that may come on top of what there was after a third of the requests.
const GROWTH_KIB: u64 = 24 * 1024;

/// A model of tests/python_models with as many instances.
fn with_instances(repository: &Repository, model: &str, count: usize, more: &str) {
    models::add(repository, model, model);
    let path = repository.path().join(model).join("config.pbtxt");
    let config = std::fs::read_to_string(&path).expect("the model's configuration");
    let groups = "instance_group [ { kind: KIND_CPU count: 1 } ]";
    assert!(config.contains(groups), "{model}: {config}");
    std::fs::write(&path, config.replace(groups, &format!("{} {more}", groups.replace(": 1", &format!(": {count}")))))
        .expect("write the model's configuration");
}

#[derive(Default)]
struct Tally {
    asked: AtomicUsize,
    worked: AtomicUsize,
    refused: AtomicUsize,
}

impl Tally {
    /// What an answer says where it is no success: only what a dead worker leaves may be said.
    fn fail(&self, what: &str, text: &str) {
        let is_known = ["Stub process '", "Failed to process the request(s) for model"];
        assert!(is_known.iter().any(|known| text.contains(known)), "{what}: {text}");
        self.refused.fetch_add(1, Ordering::Relaxed);
        // A client that is refused does not come back at once.
        std::thread::sleep(Duration::from_millis(5));
    }

    fn work(&self) {
        self.worked.fetch_add(1, Ordering::Relaxed);
    }
}

/// One client, until enough was asked.
fn client(server: &Server, seed: u64, total: usize, tally: &Tally) {
    let mut random = Random::new(seed);
    let (mut peer, mut grpc) = (Peer::connect(server.http), Grpc::connect(server.grpc));
    while tally.asked.fetch_add(1, Ordering::Relaxed) < total {
        let number = random.below(1000) as f32;
        match random.below(6) {
            0 => sum(&mut peer, "add_sub", number, number + 1.0, tally),
            // It adds and subtracts twice: (l + r) + (l - r).
            1 => sum(&mut peer, "chain", number, number * 2.0, tally),
            2 | 3 => sum_over_grpc(&mut grpc, number, tally),
            4 => texts(&mut peer, &mut random, tally),
            _ => several(&mut peer, random.below(20), tally),
        }
    }
}

/// Numbers through a model, of which the first output is looked at.
fn sum(peer: &mut Peer, model: &str, left: f32, expected: f32, tally: &Tally) {
    let tensor = |name: &str, value: f32| {
        format!(r#"{{"name":"{name}","datatype":"FP32","shape":[4],"data":[{value},{value},{value},{value}]}}"#)
    };
    let body = format!(r#"{{"inputs":[{},{}]}}"#, tensor("INPUT0", left), tensor("INPUT1", 1.0));
    let answer = peer.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes());
    if answer.status != 200 {
        return tally.fail(model, &answer.error());
    }
    let first = answer.json()["outputs"][0]["data"][3].as_f64();
    assert_eq!(first, Some(f64::from(expected)), "{model}: {}", answer.text());
    tally.work();
}

fn sum_over_grpc(grpc: &mut Grpc, number: f32, tally: &Tally) {
    let input = |name: &str| InferInputTensor {
        name: name.to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![4],
        ..InferInputTensor::default()
    };
    let raw = |value: f32| Bytes::from([value; 4].iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
    let message = ModelInferRequest {
        model_name: "add_sub".to_owned(),
        inputs: vec![input("INPUT0"), input("INPUT1")],
        raw_input_contents: vec![raw(number), raw(3.0)],
        ..ModelInferRequest::default()
    };
    match grpc.call::<ModelInferResponse>("ModelInfer", &message) {
        Ok(answer) => {
            assert_eq!(answer.raw_output_contents[0], raw(number + 3.0));
            tally.work();
        }
        Err(status) => {
            assert!([code::INTERNAL, code::UNAVAILABLE].contains(&status.code), "{status:?}");
            tally.fail("gRPC", &status.message);
        }
    }
}

/// Texts of all lengths in batches.
fn texts(peer: &mut Peer, random: &mut Random, tally: &Tally) {
    let text = "x".repeat(1 << random.below(16));
    let body = trouble::body(&format!("echo {text}"));
    let body = String::from_utf8(body).expect("JSON").replace("\"shape\":[1]", "\"shape\":[1,1]");
    let answer = peer.post("/v2/models/trouble/infer", &[], body.as_bytes());
    if answer.status != 200 {
        return tally.fail("trouble", &answer.error());
    }
    assert_eq!(trouble::done(&answer), text);
    tally.work();
}

/// So many responses, and an end.
fn several(peer: &mut Peer, count: usize, tally: &Tally) {
    let body = format!(r#"{{"DO":"count {count}"}}"#);
    let answer = peer.post("/v2/models/owing/generate_stream", &[], body.as_bytes());
    let text = answer.text();
    let mut came = 0;
    for event in text.split("\n\n").filter(|event| !event.is_empty()) {
        if event.contains("\"error\"") {
            return tally.fail("owing", &text);
        }
        assert!(event.contains(&format!(r#""DONE":"{came}""#)), "response {came}: {text}");
        came += 1;
    }
    assert_eq!((answer.status, came), (200, count), "{text}");
    tally.work();
}

#[test]
fn every_request_is_answered_while_workers_are_killed() {
    let total: usize = std::env::var(SCALE).ok().and_then(|text| text.parse().ok()).unwrap_or(1500);
    let repository = models::repository(&["sums"]);
    with_instances(&repository, "add_sub", 3, "");
    with_instances(&repository, "chain", 2, "");
    trouble::add(&repository, "trouble", 2, "max_batch_size: 4\ndynamic_batching { }");
    trouble::add_owing(&repository, 2);
    let flags = ["--model-control-mode=explicit", "--load-model=*"];
    let Some(server) = models::serve(usual(), &repository, &flags) else { return };
    let (tally, started) = (Tally::default(), Instant::now());
    let (mut kills, mut resident, mut after) = (0, 0, 0);
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (server, tally) = (&server, &tally);
            scope.spawn(move || client(server, number as u64 + 1, total, tally));
        }
        let mut random = Random::new(4711);
        // Some for a small one, and for a large one so many that workers live for a while.
        let between = (total / 5).min(4000);
        loop {
            let asked = tally.asked.load(Ordering::Relaxed);
            if resident == 0 && asked >= total / 3 {
                resident = server.resident_kib();
            }
            if asked >= total {
                break;
            }
            if asked >= after {
                after += between;
                let workers = trouble::children(server.pid());
                if !workers.is_empty() {
                    // It may have ended by itself meanwhile.
                    let victim = workers[random.below(workers.len())];
                    let _ = std::process::Command::new("kill").args(["-KILL", &victim.to_string()]).status();
                    kills += 1;
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let took = started.elapsed();
    let (worked, refused) = (tally.worked.load(Ordering::Relaxed), tally.refused.load(Ordering::Relaxed));
    let grown = server.resident_kib();
    let workers: Vec<u64> = trouble::children(server.pid()).into_iter().map(trouble::resident_kib).collect();
    println!(
        "{total} requests in {:.1} s, {kills} workers killed: {worked} worked, {refused} told of a dead worker; the \
         server held {resident} KiB after a third of them and {grown} KiB after all, its workers {workers:?} KiB",
        took.as_secs_f64()
    );
    assert_eq!(worked + refused, total, "every request has one answer");
    assert!(kills > 0 && worked * 2 > total, "{worked} of {total} worked");
    assert!(grown <= resident + GROWTH_KIB, "the server grew from {resident} KiB to {grown} KiB");
    assert!(workers.iter().all(|kib| *kib < 200 * 1024), "{workers:?} KiB");
    assert_eq!(trouble::shared_names(server.pid()), Vec::<String>::new());
    let mut peer = Peer::connect(server.http);
    for model in ["chain", "add_sub", "trouble", "owing", "sums"] {
        let answer = peer.post(&format!("/v2/repository/models/{model}/unload"), &[], b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    trouble::wait_until("all workers are gone", || trouble::children(server.pid()).is_empty());
    trouble::wait_until("no segment is left", || trouble::segments(server.pid()) == 0);
    server.stop();
}
