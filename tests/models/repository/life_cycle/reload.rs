//! One model, reloaded repeatedly while clients of both protocols use it: no request fails, and no resource leaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};

use crate::repository::life_cycle::control::{BODY, EXPLICIT, Life, make_old, parameter, touch};
use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository, identity_config};
use nereid_test_support::server::{OTHER_SERVER, PATIENCE};
use nereid_test_support::variant::{self, each};

/// How often the model is loaded again, over all variants.
const RELOADS: &str = "NEREID_TEST_RELOADS";

fn reloads() -> u64 {
    match std::env::var(RELOADS) {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("{RELOADS}={text}: {error}")),
        Err(_) => 100,
    }
}

fn config(generation: u64) -> String {
    let more = parameter("generation", &generation.to_string());
    identity_config("identity", "m", 0, &[Pair::new("INT32", "-1")], &more)
}

/// Clients that send one request after the other until told to stop.
struct Traffic {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Traffic {
    fn start(life: &Life) -> Traffic {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (http, grpc) = (life.server.http, life.server.grpc);
        let threads = (0..4).map(|client| {
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            std::thread::spawn(move || {
                let mut send: Box<dyn FnMut()> = if client % 2 == 0 {
                    let mut peer = Peer::connect(http);
                    Box::new(move || {
                        let answer = peer.post("/v2/models/m/infer", &[], BODY.as_bytes());
                        assert_eq!(answer.status, 200, "{}", answer.text());
                    })
                } else {
                    let mut connection = Grpc::connect(grpc);
                    Box::new(move || {
                        let answer: ModelInferResponse = connection.call("ModelInfer", &message()).expect("an answer");
                        assert_eq!(answer.raw_output_contents[0].as_ref(), [7, 0, 0, 0]);
                    })
                };
                while !stop.load(Ordering::Relaxed) {
                    send();
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let threads = threads.collect();
        Traffic { stop, answered, threads }
    }

    /// Waits for another answer: requests run beside what the test does.
    fn wait_for_another(&self) {
        let seen = self.answered.load(Ordering::Relaxed);
        let started = Instant::now();
        while self.answered.load(Ordering::Relaxed) == seen {
            assert!(self.threads.iter().all(|thread| !thread.is_finished()), "a client gave up");
            assert!(started.elapsed() < PATIENCE, "no request is answered any more");
            std::thread::yield_now();
        }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("a request failed"));
    }
}

fn message() -> ModelInferRequest {
    ModelInferRequest {
        model_name: "m".into(),
        inputs: vec![InferInputTensor {
            name: "INPUT0".into(),
            datatype: "INT32".into(),
            shape: vec![1],
            ..Default::default()
        }],
        raw_input_contents: vec![bytes::Bytes::from_static(&[7, 0, 0, 0])],
        ..Default::default()
    }
}

#[test]
fn reloads_under_load_fail_no_request_and_leave_nothing() {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return;
    }
    let share = reloads().div_ceil(variant::ALL.len() as u64);
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.model("m", &config(0));
        make_old(&repository.path().join("m"));
        let Some(mut life) = Life::start(variant, &repository, &[EXPLICIT, "--load-model=m"]) else { return };
        let traffic = Traffic::start(&life);
        let reload = |life: &mut Life, generation: u64| {
            repository.file("m/config.pbtxt", config(generation));
            touch(&repository, "m/config.pbtxt", generation as i64);
            life.must_load("m");
            assert_eq!(life.generation("m"), generation.to_string());
            traffic.wait_for_another();
        };
        // Pools and maps find their size first.
        let first = 10;
        (1..=first).for_each(|generation| reload(&mut life, generation));
        let (threads, descriptors, resident_kib) = measure(&life);
        (first + 1..=first + share).for_each(|generation| reload(&mut life, generation));
        traffic.end();
        // The last old model ends beside the answers; what it held is gone then.
        life.wait_until("as few threads and descriptors as before", |life| {
            let (now_threads, now_descriptors, _) = measure(life);
            now_threads <= threads && now_descriptors <= descriptors
        });
        // Unused memory is released within seconds.
        let allowed_kib = resident_kib + 8 * 1024 + 4 * share;
        life.wait_until(&format!("{share} reloads have left no more than {allowed_kib} KiB"), |life| {
            measure(life).2 <= allowed_kib
        });
        assert_eq!(life.rows_of("m"), ["1:READY:"]);
        life.server.stop();
    });
}

/// Threads, descriptors and KiB of memory of the server.
fn measure(life: &Life) -> (usize, usize, u64) {
    (life.server.threads(), life.server.descriptors(), life.server.resident_kib())
}
