//! Dynamic batching as clients see it (contract/schedulers.md section 2). The batcher of each model waits until a
//! number of requests is queued (TRITONSERVER_DELAY_SCHEDULER), so that batches do not depend on time.

use std::time::Instant;

use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{InferParameter, ModelInferRequest, ModelInferResponse};
use serde_json::{Value, json};

use nereid_test_support::grpc::{Grpc, SERVICE, code};
use nereid_test_support::http::{Answer, Peer, request};
use nereid_test_support::repository::{Pair, Repository, identity_config};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::{self, Variant, each, usual};

/// What a request asks for: rows, elements of a row, inputs, and parameters.
#[derive(Clone, Copy)]
struct Ask {
    rows: usize,
    size: usize,
    inputs: usize,
    priority: u64,
    timeout_us: u64,
}

const ONE: Ask = Ask { rows: 1, size: 1, inputs: 1, priority: 0, timeout_us: 0 };

const fn rows(rows: usize) -> Ask {
    Ask { rows, ..ONE }
}

const fn size(size: usize) -> Ask {
    Ask { size, ..ONE }
}

impl Ask {
    const fn priority(self, priority: u64) -> Ask {
        Ask { priority, ..self }
    }

    const fn timeout_us(self, timeout_us: u64) -> Ask {
        Ask { timeout_us, ..self }
    }

    fn data(self) -> Vec<usize> {
        (0..self.rows * self.size).map(|at| at * 7 + self.rows).collect()
    }

    fn body(self, id: &str) -> String {
        let input = |at: usize| {
            let shape = [self.rows, self.size];
            json!({ "name": format!("INPUT{at}"), "datatype": "INT32", "shape": shape, "data": self.data() })
        };
        let mut parameters = json!({});
        if self.priority > 0 {
            parameters["priority"] = json!(self.priority);
        }
        if self.timeout_us > 0 {
            parameters["timeout"] = json!(self.timeout_us);
        }
        let inputs: Vec<Value> = (0..self.inputs).map(input).collect();
        json!({ "id": id, "inputs": inputs, "parameters": parameters, "outputs": [{ "name": "OUTPUT0" }] }).to_string()
    }
}

/// A server whose batchers wait for `queue_first` requests.
struct Bench {
    server: Server,
    control: Peer,
    metrics: Peer,
}

impl Bench {
    fn start(variant: Variant, repository: &Repository, queue_first: usize, flags: &[&str]) -> Bench {
        let count = queue_first.to_string();
        let environment = [("TRITONSERVER_DELAY_SCHEDULER", count.as_str())];
        let server = Server::start_in(variant, repository.path(), flags, "/v2/health/ready", &environment);
        let (control, metrics) = (Peer::connect(server.http), Peer::connect(server.metrics));
        Bench { server, control, metrics }
    }

    /// Sends a request on a connection of its own.
    fn send(&self, model: &str, ask: Ask) -> Peer {
        let mut peer = Peer::connect(self.server.http);
        peer.send(&request("POST", &format!("/v2/models/{model}/infer"), &[], ask.body("r").as_bytes()));
        peer
    }

    /// Waits until the model's sample of a family, with this label, has the value.
    fn wait_for_metric(&mut self, family: &str, model: &str, label: &str, value: u64) {
        let started = Instant::now();
        loop {
            let found = self.metric(family, model, label);
            if found == Some(value) {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{family} {model} {label} is {found:?}, not {value}");
            std::thread::yield_now();
        }
    }

    fn metric(&mut self, family: &str, model: &str, label: &str) -> Option<u64> {
        let (start, model) = (format!("{family}{{"), format!("model=\"{model}\""));
        let page = self.metrics.get("/metrics").text();
        let is_it = |line: &&str| line.starts_with(&start) && line.contains(&model) && line.contains(label);
        page.lines().find(is_it).and_then(|line| line.rsplit(' ').next()?.parse().ok())
    }

    /// Waits until so many requests of the model are queued.
    fn wait_for_pending(&mut self, model: &str, count: u64) {
        self.wait_for_metric("nv_inference_pending_request_count", model, "", count);
    }

    fn wait_for_failures(&mut self, model: &str, reason: &str, count: u64) {
        self.wait_for_metric("nv_inference_request_failure", model, &format!("reason=\"{reason}\""), count);
    }

    /// Sends one after the other: each is queued before the next one comes.
    fn queue(&mut self, model: &str, asks: &[Ask]) -> Vec<Peer> {
        let mut peers = Vec::new();
        for (number, ask) in (1..).zip(asks) {
            peers.push(self.send(model, *ask));
            if number < asks.len() as u64 {
                self.wait_for_pending(model, number);
            }
        }
        peers
    }

    /// Sends so many to `m`, until all of them are seen to wait; `None` if some were executed before that.
    fn all_wait(&mut self, count: u64) -> Option<Vec<Peer>> {
        let executed = self.statistics("m")["inference_count"].clone();
        let peers: Vec<Peer> = (0..count).map(|_| self.send("m", ONE)).collect();
        let started = Instant::now();
        loop {
            if self.metric("nv_inference_pending_request_count", "m", "") == Some(count) {
                return Some(peers);
            }
            if self.statistics("m")["inference_count"] != executed {
                return None;
            }
            assert!(started.elapsed() < PATIENCE, "{count} requests never wait");
            std::thread::yield_now();
        }
    }

    fn statistics(&mut self, model: &str) -> Value {
        self.control.get(&format!("/v2/models/{model}/stats")).json()["model_stats"][0].clone()
    }

    /// How often which batch size was executed.
    fn batches(&mut self, model: &str) -> Vec<(u64, u64)> {
        let statistics = self.statistics(model);
        let batches = statistics["batch_stats"].as_array().cloned().unwrap_or_default();
        let number = |value: &Value| value.as_u64().expect("a number");
        batches.iter().map(|batch| (number(&batch["batch_size"]), number(&batch["compute_infer"]["count"]))).collect()
    }
}

fn must_succeed(mut peer: Peer, ask: Ask, what: &str) {
    let answer = peer.answer();
    assert_eq!(answer.status, 200, "{what}: {}", answer.text());
    assert_eq!(answer.json()["outputs"][0]["data"], json!(ask.data()), "{what}");
}

fn is_refusal(answer: &Answer, text: &str) {
    assert_eq!((answer.status, answer.error().as_str()), (503, text));
}

struct Case {
    name: &'static str,
    max: u32,
    dims: &'static str,
    /// Further lines of INPUT0, and of the model.
    input: &'static str,
    batching: &'static str,
    asks: [Ask; 4],
    batches: &'static [(u64, u64)],
}

const PLAIN: Case =
    Case { name: "plain", max: 8, dims: "1", input: "", batching: "", asks: [ONE; 4], batches: &[(4, 1)] };

const LEVELS: &str = "priority_levels: 3 default_priority_level: 2";
const HOUR: &str = "default_timeout_microseconds: 3600000000";

fn cases() -> Vec<Case> {
    let delayed = "default_queue_policy { timeout_action: DELAY allow_timeout_override: true \
                   default_timeout_microseconds: 3600000000 }";
    let no_default = "default_queue_policy { allow_timeout_override: true }";
    let no_override = "default_queue_policy { default_timeout_microseconds: 3600000000 }";
    assert!(no_override.contains(HOUR) && delayed.contains(HOUR));
    let expired = rows(3).timeout_us(1);
    vec![
        PLAIN,
        Case { name: "full", max: 2, batches: &[(2, 2)], ..PLAIN },
        Case { name: "preferred", batching: "preferred_batch_size: [ 3 ]", batches: &[(1, 1), (3, 1)], ..PLAIN },
        Case {
            name: "preferred_rows",
            batching: "preferred_batch_size: [ 6 ]",
            asks: [rows(2); 4],
            batches: &[(2, 1), (6, 1)],
            ..PLAIN
        },
        Case {
            name: "late",
            batching: "preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 1",
            batches: &[(4, 1)],
            ..PLAIN
        },
        // The time of what is left comes, too.
        Case { name: "waits", batching: "max_queue_delay_microseconds: 2000", batches: &[(4, 1)], ..PLAIN },
        Case {
            name: "priority",
            max: 3,
            batching: LEVELS,
            asks: [ONE.priority(1), rows(3).priority(3), ONE.priority(2), ONE],
            batches: &[(3, 2)],
            ..PLAIN
        },
        Case { name: "one_level", max: 3, asks: [ONE, rows(3), ONE, ONE], batches: &[(1, 1), (2, 1), (3, 1)], ..PLAIN },
        Case {
            name: "delayed",
            max: 3,
            batching: delayed,
            asks: [ONE, expired, ONE, ONE],
            batches: &[(3, 2)],
            ..PLAIN
        },
        Case { name: "no_default", batching: no_default, asks: [ONE.timeout_us(1); 4], ..PLAIN },
        Case { name: "no_override", batching: no_override, asks: [ONE.timeout_us(1); 4], ..PLAIN },
        Case { name: "shapes", dims: "-1", asks: [size(2), size(2), size(3), size(3)], batches: &[(2, 2)], ..PLAIN },
        Case {
            name: "ragged",
            dims: "-1",
            input: "allow_ragged_batch: true",
            asks: [size(2), size(2), size(3), size(3)],
            ..PLAIN
        },
        Case {
            name: "optional",
            asks: [ONE, ONE, Ask { inputs: 2, ..ONE }, Ask { inputs: 2, ..ONE }],
            batches: &[(2, 2)],
            ..PLAIN
        },
        Case { name: "ordered", batching: "preserve_ordering: true", ..PLAIN },
    ]
}

#[test]
fn batches_form_as_configured() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        for case in cases() {
            let mut pairs = vec![Pair { input: case.input, ..Pair::new("INT32", case.dims) }];
            if case.name == "optional" {
                pairs.push(Pair::new("INT32", "1").optional());
            }
            let batching = format!("dynamic_batching {{ {} }}", case.batching);
            repository.identity_of("identity", case.name, case.max, &pairs, &batching);
        }
        let mut bench = Bench::start(variant, &repository, 4, &[]);
        for case in cases() {
            let peers = bench.queue(case.name, &case.asks);
            for (peer, ask) in peers.into_iter().zip(case.asks) {
                must_succeed(peer, ask, case.name);
            }
            assert_eq!(bench.batches(case.name), case.batches, "{}", case.name);
            let rows: usize = case.asks.iter().map(|ask| ask.rows).sum();
            assert_eq!(bench.statistics(case.name)["inference_count"], json!(rows), "{}", case.name);
            bench.wait_for_pending(case.name, 0);
        }
        bench.server.stop();
    });
}

fn single(batching: &str) -> Repository {
    let repository = Repository::new();
    let batching = format!("dynamic_batching {{ {batching} }}");
    repository.identity_of("identity", "m", 8, &[Pair::new("INT32", "1")], &batching);
    repository
}

fn grpc_ask(ask: Ask, id: &str) -> ModelInferRequest {
    let bytes: Vec<u8> = ask.data().iter().flat_map(|&value| (value as i32).to_le_bytes()).collect();
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    let mut request = ModelInferRequest {
        model_name: "m".to_owned(),
        id: id.to_owned(),
        inputs: vec![InferInputTensor {
            name: "INPUT0".to_owned(),
            datatype: "INT32".to_owned(),
            shape: vec![ask.rows as i64, ask.size as i64],
            ..Default::default()
        }],
        raw_input_contents: vec![bytes.into()],
        ..Default::default()
    };
    if ask.priority > 0 {
        request.parameters.insert("priority".to_owned(), parameter(ParameterChoice::Uint64Param(ask.priority)));
    }
    if ask.timeout_us > 0 {
        request.parameters.insert("timeout".to_owned(), parameter(ParameterChoice::Int64Param(ask.timeout_us as i64)));
    }
    request
}

/// A level that is full refuses at once, on both ports; another level still takes requests.
#[test]
fn a_full_queue_refuses() {
    each(&variant::ALL, |variant| {
        let repository = single(&format!(
            "{LEVELS} default_queue_policy {{ max_queue_size: 2 }} priority_queue_policy {{ key: 3 value {{ }} }}"
        ));
        let mut bench = Bench::start(variant, &repository, 3, &[]);
        let peers = bench.queue("m", &[ONE, ONE]);
        bench.wait_for_pending("m", 2);
        is_refusal(&bench.send("m", ONE).answer(), "[request id: r] Exceeds maximum queue size");
        let mut grpc = Grpc::connect(bench.server.grpc);
        let status = grpc.call::<ModelInferResponse>("ModelInfer", &grpc_ask(ONE.priority(2), "")).unwrap_err();
        let expected = "[request id: <id_unknown>] Exceeds maximum queue size";
        assert_eq!((status.code, status.message.as_str()), (code::UNAVAILABLE, expected));
        let last = bench.send("m", ONE.priority(3));
        peers.into_iter().chain([last]).for_each(|peer| must_succeed(peer, ONE, "who was accepted"));
        assert_eq!(bench.batches("m"), [(3, 1)]);
        assert_eq!(bench.statistics("m")["inference_stats"]["fail"]["count"], json!(0));
        bench.server.stop();
    });
}

/// No worker looks at the queue, and what waited too long is rejected all the same.
#[test]
fn what_waits_too_long_is_rejected() {
    each(&variant::ALL, |variant| {
        let own = format!("timeout_action: REJECT allow_timeout_override: true {HOUR}");
        let repository = single(&format!(
            "{LEVELS} default_queue_policy {{ default_timeout_microseconds: 30000 }} \
             priority_queue_policy {{ key: 1 value {{ {own} }} }} priority_queue_policy {{ key: 3 value {{ }} }}"
        ));
        let mut bench = Bench::start(variant, &repository, 6, &[]);
        // By the policy's own time, and by the request's.
        for ask in [ONE.priority(2), ONE.priority(1).timeout_us(20_000)] {
            is_refusal(&bench.send("m", ask).answer(), "Request timeout expired");
        }
        bench.wait_for_failures("m", "REJECTED", 2);
        let mut grpc = Grpc::connect(bench.server.grpc);
        let ask = grpc_ask(ONE.priority(1).timeout_us(10_000), "");
        let status = grpc.call::<ModelInferResponse>("ModelInfer", &ask).unwrap_err();
        assert_eq!((status.code, status.message.as_str()), (code::UNAVAILABLE, "Request timeout expired"));
        bench.wait_for_failures("m", "REJECTED", 3);
        bench.wait_for_pending("m", 0);
        // Who is here is who is executed: the others count for no batch.
        let peers = bench.queue("m", &[ONE.priority(3); 3]);
        peers.into_iter().for_each(|peer| must_succeed(peer, ONE, "who has time"));
        assert_eq!(bench.batches("m"), [(3, 1)]);
        bench.server.stop();
    });
}

/// A call that is given up, a client that is gone: both are cancelled in the queue at once, and count for nothing.
#[test]
fn who_leaves_is_taken_out_of_the_queue() {
    each(&variant::ALL, |variant| {
        for ordering in ["", "preserve_ordering: true"] {
            let repository = single(&format!("default_queue_policy {{ max_queue_size: 2 }} {ordering}"));
            let mut bench = Bench::start(variant, &repository, 4, &[]);
            let mut grpc = Grpc::connect(bench.server.grpc);
            let mut exchange = grpc.open(&format!("{SERVICE}ModelInfer"), &[]);
            grpc.send(&mut exchange, &grpc_ask(ONE, "gone"));
            grpc.half_close(&mut exchange);
            grpc.flush();
            bench.wait_for_pending("m", 1);
            grpc.cancel(exchange);
            bench.wait_for_failures("m", "CANCELED", 1);
            let peer = bench.send("m", ONE);
            bench.wait_for_pending("m", 1);
            drop(peer);
            bench.wait_for_failures("m", "CANCELED", 2);
            bench.wait_for_pending("m", 0);
            // Their places are free.
            let peers = bench.queue("m", &[ONE, ONE]);
            peers.into_iter().for_each(|peer| must_succeed(peer, ONE, "who stayed"));
            assert_eq!(bench.batches("m"), [(2, 1)], "{ordering}");
            bench.server.stop();
        }
    });
}

/// A queue policy with a time that never passes takes nothing from the traffic of many clients, whose requests join
/// batches that wait already.
#[test]
fn a_queue_policy_costs_no_request_under_traffic() {
    const CLIENTS: usize = 12;
    const ROUNDS: usize = 40;
    each(&variant::ALL, |variant| {
        let repository = single(&format!(
            "preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 200 default_queue_policy {{ {HOUR} }}"
        ));
        let mut bench = Bench::start(variant, &repository, 0, &[]);
        let mut peers: Vec<Peer> = (0..CLIENTS).map(|_| Peer::connect(bench.server.http)).collect();
        let ask = request("POST", "/v2/models/m/infer", &[], ONE.body("r").as_bytes());
        for _ in 0..ROUNDS {
            for peer in &mut peers {
                peer.send(&ask);
            }
            for peer in &mut peers {
                let answer = peer.answer();
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
        }
        let statistics = bench.statistics("m");
        assert_eq!(statistics["inference_count"], json!(CLIENTS * ROUNDS), "{statistics}");
        bench.wait_for_pending("m", 0);
        bench.server.stop();
    });
}

/// Requests that wait for a batch when their model is unloaded or the server stops are executed.
#[test]
fn what_waits_is_answered_at_the_end() {
    each(&variant::ALL, |variant| {
        // The end waits for the batch's time, so it is as short as the machine permits: three must come within it.
        let is_done = [6, 30, 150].into_iter().any(|seconds| answered_at_the_end(variant, seconds));
        assert!(is_done, "three requests do not wait at the same time");
    });
}

/// Whether all of them waited when the end came.
fn answered_at_the_end(variant: Variant, seconds: u64) -> bool {
    let repository = single(&format!("max_queue_delay_microseconds: {}", seconds * 1_000_000));
    let flags = ["--model-control-mode=explicit", "--load-model=m", "--exit-timeout-secs=300"];
    let mut bench = Bench::start(variant, &repository, 0, &flags);
    let Some(peers) = bench.all_wait(3) else { return false };
    assert_eq!(bench.control.post("/v2/repository/models/m/unload", &[], b"").status, 200);
    peers.into_iter().for_each(|peer| must_succeed(peer, ONE, "unload"));
    bench.server.wait_for_log("successfully unloaded 'm'");
    assert_eq!(bench.control.post("/v2/repository/models/m/load", &[], b"").status, 200);
    let Some(peers) = bench.all_wait(3) else { return false };
    bench.server.terminate();
    peers.into_iter().for_each(|peer| must_succeed(peer, ONE, "stop"));
    drop((bench.control, bench.metrics));
    bench.server.stop();
    true
}

/// Instances of different speed: an answer that is ready waits for those before it. So when the last one is here, all
/// were executed, the slow one too.
#[test]
fn answers_keep_the_order_of_their_requests() {
    let repository = Repository::new();
    let more = "parameters { key: \"execute_delay_ms\" value { string_value: \"60\" } } \
                parameters { key: \"instance_wise_delay_multiplier\" value { string_value: \"6\" } } \
                dynamic_batching { preserve_ordering: true }";
    let text = identity_config("identity", "m", 1, &[Pair::new("INT32", "1")], more);
    repository.model("m", &text.replace("count: 1", "count: 2"));
    let mut bench = Bench::start(usual(), &repository, 0, &[]);
    let mut grpc = Grpc::connect(bench.server.grpc);
    for round in 1..=4u64 {
        // One connection, so that they arrive in this order; the first two are taken by one instance each.
        let mut calls = Vec::new();
        for number in 0..3 {
            let mut exchange = grpc.open(&format!("{SERVICE}ModelInfer"), &[]);
            grpc.send(&mut exchange, &grpc_ask(ONE, &number.to_string()));
            grpc.half_close(&mut exchange);
            calls.push(exchange);
        }
        grpc.flush();
        let last = grpc.finish(calls.pop().expect("three were sent"));
        assert_eq!(last.status.code, code::OK, "{:?}", last.status);
        let executed = bench.statistics("m")["inference_stats"]["success"]["count"].clone();
        assert_eq!(executed, json!(3 * round), "the last answer overtook another one");
        for call in calls {
            assert_eq!(grpc.finish(call).status.code, code::OK);
        }
    }
    bench.server.stop();
}

/// How often the thread of an instance has gone to sleep: it does each time that it has executed all there was.
fn sleeps(server: &Server, instance: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("the threads of the server");
    let of = |task: std::fs::DirEntry, file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
    let is_it = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with(instance))
    };
    let status = tasks.flatten().find(is_it).map(|task| of(task, "status")).expect("the instance's thread");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("a count");
    line.trim().parse().expect("a number")
}

/// Whether 20 requests, one after the other, left the thread of their instance asleep.
fn leave_asleep(server: &Server, peer: &mut Peer, model: &str, body: &str) -> bool {
    let before = sleeps(server, &format!("{model}_0"));
    for _ in 0..20 {
        let answer = peer.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    sleeps(server, &format!("{model}_0")) == before
}

/// What cannot block (identity) is executed by the shard unless that is off, what turns out to be quick (affine) too,
/// unless only declarations count, and anything else by its worker, which the log says if that was not wanted.
#[test]
fn the_mode_says_which_requests_need_a_worker() {
    each(&variant::ALL, |variant| {
        for mode in ["off", "declared", "auto", "measured"] {
            let repository = single("");
            let tensor =
                |side: &str, name: &str| format!("{side} {{ name: \"{name}\" data_type: TYPE_FP32 dims: [ 1 ] }}\n");
            let affine = tensor("input", "INPUT0") + &tensor("output", "OUTPUT0");
            repository.model("a", &format!("name: \"a\"\nbackend: \"affine\"\nmax_batch_size: 8\n{affine}"));
            let delay = "parameters { key: \"execute_delay_ms\" value { string_value: \"1\" } }";
            repository.identity_of("identity", "r", 0, &[Pair::new("INT32", "1")], delay);
            let flags = [format!("--run-to-completion={mode}"), "--spin-us=0".to_owned()];
            let bench = Bench::start(variant, &repository, 0, &[&flags[0], &flags[1]]);
            let (server, mut peer) = (&bench.server, Peer::connect(bench.server.http));
            let float = r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1.5]}]}"#;
            let mut is_asleep = |model: &str| {
                let body = if model == "a" { float.to_owned() } else { ONE.body("r") };
                leave_asleep(server, &mut peer, model, &body)
            };
            match mode {
                // A worker that was woken goes to sleep again some time after its answer.
                "off" => {
                    for model in ["m", "a"] {
                        server.wait_until("the worker is needed", || !is_asleep(model));
                    }
                }
                _ => {
                    if mode == "declared" {
                        server.wait_until("the worker is needed", || !is_asleep("a"));
                    }
                    // Its worker goes to sleep for the first time some time after the server is ready.
                    server.wait_until("the worker has gone to sleep", || is_asleep("m"));
                    // What wakes it once more is a first sleep that the ready server had not seen yet.
                    assert!(is_asleep("m") || is_asleep("m"), "a shard executes what cannot block");
                }
            }
            if ["auto", "measured"].contains(&mode) {
                // When that is known depends on the host: it takes hundreds of executions, or thousands.
                let mut many = Peer::connect(server.http);
                server.wait_until("a shard executes what is quick", || {
                    for _ in 0..200 {
                        assert_eq!(many.post("/v2/models/a/infer", &[], float.as_bytes()).status, 200);
                    }
                    is_asleep("a")
                });
            }
            let text = "--run-to-completion=measured does not act on model 'r'";
            let log = bench.server.stop();
            assert_eq!((log.contains(text), log.contains("does not act on model 'a'")), (mode == "measured", false));
        }
    });
}

/// Whoever executes it, a request is counted once.
#[test]
fn quick_requests_are_counted_whoever_executes_them() {
    each(&variant::ALL, |variant| {
        for mode in ["off", "declared", "auto", "measured"] {
            let repository = single("");
            let mut bench = Bench::start(variant, &repository, 0, &[&format!("--run-to-completion={mode}")]);
            let clients: Vec<_> = (0..4)
                .map(|_| {
                    let address = bench.server.http;
                    std::thread::spawn(move || {
                        let mut peer = Peer::connect(address);
                        for _ in 0..50 {
                            let answer = peer.post("/v2/models/m/infer", &[], ONE.body("r").as_bytes());
                            assert_eq!(answer.json()["outputs"][0]["data"], json!(ONE.data()));
                        }
                    })
                })
                .collect();
            clients.into_iter().for_each(|client| client.join().expect("a client"));
            let statistics = bench.statistics("m");
            assert_eq!(statistics["inference_count"], json!(200), "{mode}");
            assert_eq!(statistics["inference_stats"]["success"]["count"], json!(200), "{mode}");
            bench.wait_for_pending("m", 0);
            bench.server.stop();
        }
    });
}
