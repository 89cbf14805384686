//! More requests than the server takes: what is refused names its reason on both protocols, what is accepted is
//! answered, and neither one connection nor one client nor one model takes what belongs to the others.
//!
//! Everything is counted, nothing is timed: a batcher that waits for so many requests
//! (`TRITONSERVER_DELAY_SCHEDULER`) keeps them in its queue.

use std::sync::atomic::{AtomicBool, Ordering};

use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{InferParameter, ModelInferRequest, infer_parameter::ParameterChoice};
use prost::Message;

use nereid_test_support::grpc::{Exchange, Grpc, Reply, SERVICE, code, frame, frame_bytes};
use nereid_test_support::http::{Answer, Peer, infer_with_tail, request};
use nereid_test_support::http2::{RawPeer, call_fields, frame as http2_frame, kind};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, Variant, each, usual};

/// The least that a shard takes, however small its budget is.
const CALLS: usize = 256;
/// A budget with which a shard takes so many calls.
const SMALL_BUDGET: &str = "--request-memory-byte-size=4000000";

struct Bench {
    #[expect(dead_code, reason = "dropped at the end")]
    repository: Repository,
    server: Server,
}

impl Bench {
    /// A server with the model `held`, whose queue waits for so many requests and has `batching`, and with `free`.
    fn start(variant: Variant, held: usize, batching: &str, flags: &[&str]) -> Bench {
        let repository = Repository::new();
        let more = format!("dynamic_batching {{ {batching} }}");
        repository.identity_of("identity", "held", 1, &[Pair::new("INT32", "-1")], &more);
        repository.identity("free", 1, &[Pair::new("INT32", "-1")]);
        let flags: Vec<&str> = flags.iter().copied().chain(["--io-cores=1", "--log-info=false"]).collect();
        let count = held.to_string();
        let environment = [("TRITONSERVER_DELAY_SCHEDULER", count.as_str())];
        let server = Server::start_in(variant, repository.path(), &flags, "/v2/health/ready", &environment);
        Bench { repository, server }
    }

    /// The value of the series of a family with all these parts.
    fn metric(&self, family: &str, parts: &[&str]) -> u64 {
        let page = Peer::connect(self.server.metrics).get("/metrics").text();
        let is_it =
            |line: &&str| line.starts_with(&format!("{family}{{")) && parts.iter().all(|part| line.contains(part));
        let line = page.lines().find(is_it).unwrap_or_else(|| panic!("no {family} {parts:?} in {page}"));
        line.rsplit(' ').next().and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{line}"))
    }

    fn pending(&self) -> u64 {
        self.metric("nv_inference_pending_request_count", &["model=\"held\""])
    }

    fn sent(&self, reason: &str) -> u64 {
        self.metric("nereid_refused_requests_total", &[&format!("reason=\"{reason}\"")])
    }

    fn wait_for_pending(&self, count: u64) {
        self.server.wait_until(&format!("{count} requests wait"), || self.pending() == count);
    }

    fn wait_for_sent(&self, reason: &str, count: u64) {
        self.server.wait_until(&format!("{count} are refused: {reason}"), || self.sent(reason) == count);
    }

    /// Sends one request after the other until `count` wait. A place is given back a moment after its request has left
    /// the queue, and what comes before that is refused for one of these reasons: then it is sent again.
    fn fill<Sent>(&self, count: u64, reasons: &[&str], mut send: impl FnMut() -> Sent) -> Vec<Sent> {
        let refused = || reasons.iter().map(|reason| self.sent(reason)).sum::<u64>();
        let mut sent = Vec::new();
        for waiting in self.pending() + 1..=count {
            self.server.wait_until(&format!("{waiting} requests wait"), || {
                let before = refused();
                sent.push(send());
                let mut is_accepted = false;
                self.server.wait_until("the request waits or is refused", || {
                    is_accepted = self.pending() == waiting;
                    is_accepted || refused() > before
                });
                is_accepted
            });
        }
        sent
    }

    /// A client of its own is served by the other model.
    fn assert_others_are_served(&self) {
        let answer = Peer::connect(self.server.http).send(&post("free", 1, 4)).answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

/// A request of so many bytes over HTTP.
fn post(model: &str, priority: u64, bytes: usize) -> Vec<u8> {
    let json = format!(
        r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[1,{}],"parameters":{{"binary_data_size":{bytes}}}}}],"parameters":{{"priority":{priority}}}}}"#,
        bytes / 4
    );
    infer_with_tail(&format!("/v2/models/{model}/infer"), &json, &vec![0; bytes])
}

fn message(model: &str) -> ModelInferRequest {
    let input =
        InferInputTensor { name: "INPUT0".into(), datatype: "INT32".into(), shape: vec![1, 1], ..Default::default() };
    ModelInferRequest {
        model_name: model.into(),
        inputs: vec![input],
        raw_input_contents: vec![vec![7u8; 4].into()],
        ..Default::default()
    }
}

/// Sends unary calls without waiting for their answers.
fn call(grpc: &mut Grpc, model: &str, count: usize) -> Vec<Exchange> {
    let message = frame(&message(model));
    let calls = (0..count).map(|_| {
        let mut exchange = grpc.open(&format!("{SERVICE}ModelInfer"), &[]);
        grpc.send_bytes(&mut exchange, message.clone());
        grpc.half_close(&mut exchange);
        exchange
    });
    let calls = calls.collect();
    grpc.flush();
    calls
}

/// The metadata at the end of a call.
fn field<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    let trailers = if reply.trailers.is_empty() { &reply.headers } else { &reply.trailers };
    trailers.get(name).map(|value| value.to_str().expect("a text"))
}

fn assert_refused_over_http(answer: &Answer, reason: &str) {
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(answer.header("nereid-refused"), Some(reason), "{}", answer.text());
    assert_eq!(answer.header("retry-after"), Some("1"), "{}", answer.text());
}

fn assert_refused_over_grpc(reply: &Reply, code: u32, reason: &str, pushback: Option<&str>) {
    assert_eq!(reply.status.code, code, "{:?}", reply.status);
    assert_eq!(field(reply, "nereid-refused"), Some(reason), "{:?}", reply.status);
    assert_eq!(field(reply, "grpc-retry-pushback-ms"), pushback, "{:?}", reply.status);
}

/// Ten times what the queue takes comes at once over both protocols: as many wait as may, the others are refused with
/// Triton's text and our reason, and those that waited are answered.
#[test]
fn a_flooded_queue_keeps_its_bound_and_answers_what_it_took() {
    each(&variant::ALL, |variant| {
        const QUEUE: usize = 8;
        let levels = format!(
            "priority_levels: 2 default_priority_level: 1 default_queue_policy {{ max_queue_size: {QUEUE} }} \
             priority_queue_policy {{ key: 2 value {{ }} }}"
        );
        let bench = Bench::start(variant, QUEUE + 1, &levels, &[]);
        let mut peers: Vec<Peer> = (0..5 * QUEUE).map(|_| Peer::connect(bench.server.http)).collect();
        let mut grpc = Grpc::connect(bench.server.grpc);
        for peer in &mut peers {
            peer.send(&post("held", 1, 4));
        }
        let exchanges = call(&mut grpc, "held", 5 * QUEUE);
        bench.wait_for_sent("queue_full", 9 * QUEUE as u64);
        assert_eq!(bench.pending(), QUEUE as u64);
        bench.assert_others_are_served();
        // One of the other level completes what the batcher waits for.
        let last = Peer::connect(bench.server.http).send(&post("held", 2, 4)).answer();
        assert_eq!(last.status, 200, "{}", last.text());
        let mut answered = 0;
        for peer in &mut peers {
            let answer = peer.answer();
            if answer.status == 200 {
                answered += 1;
                assert_eq!(answer.header("nereid-refused"), None);
                continue;
            }
            assert_refused_over_http(&answer, "queue_full");
            assert!(answer.error().ends_with("Exceeds maximum queue size"), "{}", answer.text());
        }
        for exchange in exchanges {
            let reply = grpc.finish(exchange);
            if reply.status.code == code::OK {
                answered += 1;
                assert_eq!(field(&reply, "nereid-refused"), None);
                continue;
            }
            assert_refused_over_grpc(&reply, code::UNAVAILABLE, "queue_full", Some("1000"));
            assert!(reply.status.message.ends_with("Exceeds maximum queue size"), "{:?}", reply.status);
        }
        assert_eq!(answered, QUEUE);
        let of_model = bench.metric("nereid_model_refused_requests_total", &["\"held\"", "\"queue_full\""]);
        assert_eq!((of_model, bench.pending()), (9 * QUEUE as u64, 0));
        bench.server.stop();
    });
}

/// One connection may have half of the calls, one client and one model three quarters: others are served meanwhile,
/// and what ends makes room.
#[test]
fn one_connection_and_one_model_leave_calls_to_others() {
    let bench = Bench::start(usual(), 2 * CALLS, "", &[SMALL_BUDGET, "--request-count-client-share=1"]);
    let (mut one, mut two) = (Grpc::connect(bench.server.grpc), Grpc::connect(bench.server.grpc));
    let mut held = call(&mut one, "held", CALLS / 2 + 40);
    bench.wait_for_sent("connection_calls", 40);
    bench.wait_for_pending(CALLS as u64 / 2);
    bench.assert_others_are_served();
    for exchange in held.drain(CALLS / 2..) {
        assert_refused_over_grpc(&one.finish(exchange), code::RESOURCE_EXHAUSTED, "connection_calls", Some("1000"));
    }
    // A second connection of the client takes what is left of the model's part.
    let mut more = call(&mut two, "held", CALLS / 4 + 10);
    bench.wait_for_sent("model_calls", 10);
    bench.wait_for_pending(3 * CALLS as u64 / 4);
    bench.assert_others_are_served();
    for exchange in more.drain(CALLS / 4..) {
        let reply = two.finish(exchange);
        assert_refused_over_grpc(&reply, code::UNAVAILABLE, "model_calls", Some("1000"));
        assert!(reply.status.message.contains("held"), "{:?}", reply.status);
    }
    assert_refused_over_http(&Peer::connect(bench.server.http).send(&post("held", 0, 4)).answer(), "model_calls");
    let refused = bench.metric("nereid_model_refused_requests_total", &["\"held\"", "\"model_calls\""]);
    assert_eq!(refused, 11);
    // What is cancelled makes room.
    held.into_iter().for_each(|exchange| one.cancel(exchange));
    bench.wait_for_pending(CALLS as u64 / 4);
    let again = bench.fill(3 * CALLS as u64 / 4, &["model_calls", "connection_calls"], || call(&mut one, "held", 1));
    drop((again, more, one, two));
    bench.wait_for_pending(0);
    bench.server.stop();
}

/// The connections of one address have their part together, however many they are; one call of each is its own.
#[test]
fn one_client_leaves_calls_to_others() {
    let bench = Bench::start(usual(), 4 * CALLS, "", &[SMALL_BUDGET, "--request-count-client-share=0.25"]);
    let mut clients: Vec<Grpc> = (0..4).map(|_| Grpc::connect(bench.server.grpc)).collect();
    let calls: Vec<_> = clients.iter_mut().flat_map(|grpc| call(grpc, "held", CALLS / 8)).collect();
    // Four connections have a quarter of the calls, and one more each.
    let taken = CALLS as u64 / 4 + 4;
    bench.wait_for_sent("client_calls", CALLS as u64 / 2 - taken);
    assert_eq!(bench.pending(), taken);
    bench.assert_others_are_served();
    drop((calls, clients));
    bench.wait_for_pending(0);
    // Those that were refused have left nothing counted: one connection may have the part of the client again.
    let mut again = Grpc::connect(bench.server.grpc);
    let calls = bench.fill(CALLS as u64 / 4, &["client_calls", "connection_calls"], || call(&mut again, "held", 1));
    drop((calls, again));
    bench.wait_for_pending(0);
    bench.server.stop();
}

/// Requests on streams are calls of their connection.
#[test]
fn streams_have_no_more_calls_than_their_connection() {
    let bench = Bench::start(usual(), CALLS, "", &[SMALL_BUDGET]);
    let mut grpc = Grpc::connect(bench.server.grpc);
    let mut streams: Vec<_> = (0..3).map(|_| grpc.open(&format!("{SERVICE}ModelStreamInfer"), &[])).collect();
    for stream in &mut streams {
        (0..60).for_each(|_| grpc.send(stream, &message("held")));
    }
    grpc.flush();
    // The streams are three of the calls.
    bench.wait_for_sent("connection_calls", 180 - (CALLS as u64 / 2 - 3));
    assert_eq!(bench.pending(), CALLS as u64 / 2 - 3);
    bench.assert_others_are_served();
    drop((streams, grpc));
    bench.wait_for_pending(0);
    bench.server.stop();
}

/// The inputs that wait for one model leave memory to the others; over a stream the error has the reason.
#[test]
fn one_model_leaves_memory_to_others() {
    each(&variant::ALL, |variant| {
        const BYTES: usize = 256 << 10;
        let flags = ["--request-memory-byte-size=40000000", "--request-memory-model-share=0.025"];
        let bench = Bench::start(variant, CALLS, "", &flags);
        let mut peers: Vec<Peer> = (0..3).map(|_| Peer::connect(bench.server.http)).collect();
        for peer in &mut peers {
            peer.send(&post("held", 0, BYTES));
        }
        bench.wait_for_pending(3);
        // However many are refused: they are counted nowhere afterwards.
        for _ in 0..8 {
            assert_refused_over_http(
                &Peer::connect(bench.server.http).send(&post("held", 0, BYTES)).answer(),
                "model_memory",
            );
        }
        let answer = Peer::connect(bench.server.http).send(&post("free", 0, BYTES)).answer();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let mut grpc = Grpc::connect(bench.server.grpc);
        let mut stream = grpc.open(&format!("{SERVICE}ModelStreamInfer"), &[]);
        let mut large = message("held");
        large.inputs[0].shape = vec![1, BYTES as i64 / 4];
        large.raw_input_contents = vec![vec![0u8; BYTES].into()];
        grpc.send(&mut stream, &large);
        let bytes = grpc.next(&mut stream).expect("an error in band");
        let answer = nereid_wire::inference::ModelStreamInferResponse::decode(bytes).expect("a response");
        let parameters = answer.infer_response.expect("with the reason").parameters;
        let expected = InferParameter { parameter_choice: Some(ParameterChoice::StringParam("model_memory".into())) };
        assert_eq!(parameters.get("nereid-refused"), Some(&expected), "{}", answer.error_message);
        // Small ones are bounded by their number.
        let mut small = Peer::connect(bench.server.http);
        small.send(&post("held", 0, 4));
        bench.wait_for_pending(4);
        drop((peers, small));
        bench.wait_for_pending(0);
        let again = bench.fill(3, &["model_memory"], || {
            let mut peer = Peer::connect(bench.server.http);
            peer.send(&post("held", 0, BYTES));
            peer
        });
        drop(again);
        bench.wait_for_pending(0);
        bench.server.stop();
    });
}

/// A request that cannot be in time is refused while others are in front of it, and accepted when none is.
#[test]
fn a_request_that_would_be_late_is_refused_where_that_is_wanted() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let delay = "parameters { key: \"execute_delay_ms\" value { string_value: \"300\" } }";
        let own = format!("{delay} parameters {{ key: \"deadline_admission\" value {{ string_value: \"off\" }} }}");
        repository.identity_of("identity", "slow", 1, &[Pair::new("INT32", "-1")], delay);
        repository.identity_of("identity", "always", 1, &[Pair::new("INT32", "-1")], &own);
        let flags = ["--deadline-admission=on", "--io-cores=1", "--log-info=false"];
        let server = Server::start(variant, repository.path(), &flags);
        // Accepted whatever it requests: nothing is measured, and nothing waits.
        let hurried = |model: &str| {
            let json = r#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,1],"data":[1]}],"parameters":{"timeout":1}}"#;
            request("POST", &format!("/v2/models/{model}/infer"), &[], json.as_bytes())
        };
        assert_eq!(Peer::connect(server.http).send(&hurried("slow")).answer().status, 200);
        // While others wait, for twelve seconds a time: one of the attempts meets them.
        let mut peers: Vec<Peer> = Vec::new();
        let mut fill = |model: &str| {
            for _ in 0..40 {
                let mut peer = Peer::connect(server.http);
                peer.send(&post(model, 0, 4));
                peers.push(peer);
            }
        };
        let mut refused = None;
        server.wait_until("a late request is refused", || {
            fill("slow");
            refused = Some(Peer::connect(server.http).send(&hurried("slow")).answer());
            refused.as_ref().is_some_and(|answer| answer.status == 503)
        });
        let refused = refused.expect("it was refused");
        assert_refused_over_http(&refused, "deadline");
        assert!(refused.error().contains("after the request's timeout"), "{}", refused.text());
        let mut grpc = Grpc::connect(server.grpc);
        let mut reply = None;
        server.wait_until("a call with a deadline is refused", || {
            fill("slow");
            let headers = [("grpc-timeout", "200m")];
            let last = grpc.exchange(&format!("{SERVICE}ModelInfer"), &headers, &[frame(&message("slow"))]);
            reply = Some(last).filter(|reply| reply.status.code == code::UNAVAILABLE);
            reply.is_some()
        });
        let reply = reply.expect("it was refused");
        assert_refused_over_grpc(&reply, code::UNAVAILABLE, "deadline", None);
        assert!(reply.status.message.contains("after the deadline of the request"), "{:?}", reply.status);
        // The parameter of a model overrides the flag.
        fill("always");
        assert_eq!(Peer::connect(server.http).send(&hurried("always")).answer().status, 200);
        // Those in front are gone: whatever is left of the estimate, the next one is accepted.
        drop(peers);
        let page = || Peer::connect(server.metrics).get("/metrics").text();
        let idle = "nv_inference_pending_request_count{model=\"slow\",version=\"1\"} 0\n";
        server.wait_until("nothing waits", || page().contains(idle));
        assert_eq!(Peer::connect(server.http).send(&hurried("slow")).answer().status, 200);
        let refusals = page();
        let family = "nereid_model_refused_requests_total{model=\"slow\",reason=\"deadline\",version=\"1\"} 2\n";
        assert!(refusals.contains(family), "{refusals}");
        server.stop();
    });
}

/// A request of a sequence over HTTP that may wait for so many microseconds; 0: without an end.
fn of_sequence(model: &str, id: u64, [start, end]: [bool; 2], timeout_us: u64) -> Vec<u8> {
    let sequence = format!(r#""sequence_id":{id},"sequence_start":{start},"sequence_end":{end}"#);
    let json = format!(
        r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[1,1],"data":[1]}}],"parameters":{{{sequence},"timeout":{timeout_us}}}}}"#
    );
    request("POST", &format!("/v2/models/{model}/infer"), &[], json.as_bytes())
}

/// With both strategies: a request in the middle of a sequence and the first one of another are refused where they
/// would be late, the last one is not, and the sequence goes on without what was refused.
#[test]
fn late_requests_of_sequences_are_refused_and_leave_their_sequence_as_it_was() {
    /// Sequences that have begun; of the four slots one is free.
    const BEGUN: [u64; 3] = [1, 3, 4];
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let delay = "parameters { key: \"execute_delay_ms\" value { string_value: \"100\" } }";
        let patient = "max_sequence_idle_microseconds: 600000000";
        let models = [("direct", 4, "direct { }"), ("oldest", 2, "oldest { max_candidate_sequences: 4 }")];
        for (model, rows, strategy) in models {
            let more = format!("{delay} sequence_batching {{ {patient} {strategy} }}");
            repository.identity_of("identity", model, rows, &[Pair::new("INT32", "-1")], &more);
        }
        let flags = ["--deadline-admission=on", "--io-cores=1", "--log-info=false"];
        let server = Server::start(variant, repository.path(), &flags);
        let send = |request: Vec<u8>| Peer::connect(server.http).send(&request).answer();
        for (model, ..) in models {
            for id in BEGUN {
                // Accepted whatever it requests: nothing waits.
                assert_eq!(send(of_sequence(model, id, [true, false], 1)).status, 200);
            }
            // While others wait, for many executions: one of the attempts meets them.
            let mut peers: Vec<Peer> = Vec::new();
            let mut fill = || {
                for id in BEGUN.repeat(10) {
                    let mut peer = Peer::connect(server.http);
                    peer.send(&of_sequence(model, id, [false, false], 0));
                    peers.push(peer);
                }
            };
            for (id, start, what) in [(1, false, "in the middle"), (2, true, "a first one")] {
                let mut answer = None;
                server.wait_until(&format!("a late request is refused: {what} ({model})"), || {
                    fill();
                    let last = send(of_sequence(model, id, [start, false], 1));
                    let is_refused = last.status == 503;
                    answer = Some(last);
                    // A sequence that has begun would go on, and its next start would be one in the middle.
                    if start && !is_refused {
                        assert_eq!(send(of_sequence(model, id, [false, true], 1)).status, 200);
                    }
                    is_refused
                });
                let answer = answer.expect("it was refused");
                assert_refused_over_http(&answer, "deadline");
                assert!(answer.error().contains("after the request's timeout"), "{}", answer.text());
            }
            // The one that was refused has not begun.
            let unknown = send(of_sequence(model, 2, [false, false], 0));
            assert_eq!(unknown.status, 400, "{}", unknown.text());
            assert!(unknown.error().contains("must specify the START flag"), "{}", unknown.text());
            // The others go on to their ends, which are not refused while they wait.
            for id in BEGUN {
                let last = send(of_sequence(model, id, [false, true], 1));
                assert_eq!(last.status, 200, "{}", last.text());
            }
            for mut peer in peers {
                let answer = peer.answer();
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
            let page = Peer::connect(server.metrics).get("/metrics").text();
            let family = format!(
                "nereid_model_refused_requests_total{{model=\"{model}\",reason=\"deadline\",version=\"1\"}} 2\n"
            );
            assert!(page.contains(&family), "{page}");
        }
        server.stop();
    });
}

/// Steps of an ensemble continue a sequence although they are late: its first model has executed what a client would
/// repeat. Without a sequence, the same step is refused.
#[test]
fn late_steps_of_a_sequence_are_not_refused_behind_its_first_one() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let delay = "parameters { key: \"execute_delay_ms\" value { string_value: \"100\" } }";
        let pair = [Pair::new("INT32", "-1")];
        let patient = "sequence_batching { max_sequence_idle_microseconds: 600000000 }";
        // A slot for each sequence: none waits in the backlog.
        repository.identity_of("identity", "begun", 4, &pair, patient);
        repository.identity_of("identity", "slow", 1, &pair, delay);
        let ends =
            |side: &str, name: &str| format!("{side} [ {{ name: \"{name}\" data_type: TYPE_INT32 dims: [ -1 ] }} ]\n");
        let step = |model: &str, from: &str, to: &str| {
            format!(
                "step {{ model_name: \"{model}\" model_version: -1 input_map {{ key: \"INPUT0\" value: \"{from}\" }} \
                 output_map {{ key: \"OUTPUT0\" value: \"{to}\" }} }}\n"
            )
        };
        for (name, first, second) in [("sequence", "begun", "slow"), ("plain", "slow", "slow")] {
            let steps = [step(first, "INPUT0", "between"), step(second, "between", "OUTPUT0")].concat();
            let config = format!(
                "name: \"{name}\"\nplatform: \"ensemble\"\nmax_batch_size: 1\n{}{}ensemble_scheduling {{ {steps} }}\n",
                ends("input", "INPUT0"),
                ends("output", "OUTPUT0")
            );
            repository.model(name, &config);
        }
        let flags = ["--deadline-admission=on", "--io-cores=1", "--log-info=false"];
        let server = Server::start(variant, repository.path(), &flags);
        let send = |request: Vec<u8>| Peer::connect(server.http).send(&request).answer();
        assert_eq!(send(of_sequence("sequence", 1, [true, true], 0)).status, 200);
        let mut peers: Vec<Peer> = Vec::new();
        let mut requests = 1;
        // Each time after twelve requests were sent to the slow model, until one of no sequence finds that they wait.
        for part in [[true, true], [true, false], [false, false], [false, true]] {
            let id = if part == [true, true] { 9 } else { 2 };
            server.wait_until("what is late waits behind others", || {
                for _ in 0..12 {
                    let mut peer = Peer::connect(server.http);
                    peer.send(&post("slow", 0, 4));
                    peers.push(peer);
                }
                send(of_sequence("plain", 0, [false, false], 1)).status == 503
            });
            let answer = send(of_sequence("sequence", id, part, 1));
            assert_eq!(answer.status, 200, "{part:?}: {}", answer.text());
            requests += 1;
        }
        for mut peer in peers {
            assert_eq!(peer.answer().status, 200);
        }
        let page = Peer::connect(server.metrics).get("/metrics").text();
        let executed = format!("nv_inference_count{{model=\"begun\",version=\"1\"}} {requests}\n");
        assert!(page.contains(&executed), "{page}");
        server.stop();
    });
}

/// The deadline of a stream bounds all answers of it, and the parameter that of one: what would be late is refused in
/// its place, and the stream goes on.
#[test]
fn late_requests_of_a_stream_are_refused_in_their_places() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let delay = "parameters { key: \"execute_delay_ms\" value { string_value: \"300\" } }";
        repository.identity_of("identity", "slow", 1, &[Pair::new("INT32", "-1")], delay);
        repository.identity("free", 1, &[Pair::new("INT32", "-1")]);
        let flags = ["--deadline-admission=on", "--io-cores=1", "--log-info=false"];
        let server = Server::start(variant, repository.path(), &flags);
        assert_eq!(Peer::connect(server.http).send(&post("slow", 0, 4)).answer().status, 200);
        let mut grpc = Grpc::connect(server.grpc);
        let refusal_in = |bytes| {
            let answer = nereid_wire::inference::ModelStreamInferResponse::decode(bytes).expect("a response");
            let parameters = answer.infer_response.expect("one in any case").parameters;
            let reason = parameters.get("nereid-refused").and_then(|parameter| parameter.parameter_choice.clone());
            reason.map(|reason| {
                assert_eq!(reason, ParameterChoice::StringParam("deadline".into()));
                answer.error_message
            })
        };
        let mut hurried = message("slow");
        let timeout = InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(1)) };
        hurried.parameters.insert("timeout".into(), timeout);
        // Both are refused behind others that wait for twelve seconds a time: one of the attempts meets them. The
        // deadline of the second stream ends after the answers that the test waits for.
        let cases = [
            (None, &hurried, "after the request's timeout"),
            (Some("9S"), &message("slow"), "after the deadline of the request"),
        ];
        for (deadline, request, text) in cases {
            let mut peers: Vec<Peer> = Vec::new();
            let mut refused = None;
            server.wait_until(&format!("a request of a stream is refused {text}"), || {
                for _ in 0..40 {
                    let mut peer = Peer::connect(server.http);
                    peer.send(&post("slow", 0, 4));
                    peers.push(peer);
                }
                let headers: Vec<_> = deadline.iter().map(|deadline| ("grpc-timeout", *deadline)).collect();
                let mut stream = grpc.open(&format!("{SERVICE}ModelStreamInfer"), &headers);
                grpc.send(&mut stream, request);
                // The same request again is taken by a way of its own.
                grpc.send(&mut stream, request);
                grpc.send(&mut stream, &message("free"));
                grpc.half_close(&mut stream);
                let reply = grpc.finish(stream);
                let refusals: Vec<Option<String>> = reply.messages.into_iter().map(refusal_in).collect();
                refused = match &refusals[..] {
                    [Some(first), Some(second), None] => Some([first.clone(), second.clone()]),
                    // They met no other ones, or their stream ended before their answers.
                    _ => None,
                };
                refused.is_some()
            });
            for refusal in refused.expect("they were refused") {
                assert!(refusal.contains(text), "{refusal}");
            }
            drop(peers);
            let page = || Peer::connect(server.metrics).get("/metrics").text();
            let idle = "nv_inference_pending_request_count{model=\"slow\",version=\"1\"} 0\n";
            server.wait_until("nothing waits", || page().contains(idle));
        }
        server.stop();
    });
}

/// One connection opens streams without end, each with one small request; another client is served beside it.
#[test]
fn streams_without_end_leave_turns_to_others() {
    each(&variant::ALL, |variant| {
        const AT_ONCE: u32 = 500;
        const HONEST: usize = 200;
        let bench = Bench::start(variant, 1, "", &[]);
        let (address, is_over) = (bench.server.grpc, AtomicBool::new(false));
        let path = format!("{SERVICE}ModelInfer");
        let opened = std::thread::scope(|scope| {
            let flood = scope.spawn(|| {
                let framed = frame_bytes(0, &message("free").encode_to_vec());
                let (mut peer, mut stream) = (RawPeer::greet(address, &[]), 1);
                // More than all answers together.
                peer.send(&http2_frame(kind::WINDOW_UPDATE, 0, 0, &(1u32 << 30).to_be_bytes()));
                while !is_over.load(Ordering::Relaxed) {
                    let mut bytes = Vec::new();
                    for _ in 0..AT_ONCE {
                        bytes.extend(http2_frame(kind::HEADERS, 4, stream, &call_fields(&path)));
                        bytes.extend(http2_frame(kind::DATA, 1, stream, &framed));
                        stream += 2;
                    }
                    peer.send(&bytes);
                    for _ in 0..AT_ONCE {
                        while !peer.expect(kind::HEADERS).has(1) {}
                    }
                }
                (stream - 1) / 2
            });
            let mut honest = Peer::connect(bench.server.http);
            for _ in 0..HONEST {
                let answer = honest.send(&post("free", 0, 4)).answer();
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
            is_over.store(true, Ordering::Relaxed);
            flood.join().expect("the flood ends")
        });
        assert!(opened >= AT_ONCE, "the flood was one");
        let counted = bench.metric("nv_inference_request_success", &["model=\"free\""]);
        assert_eq!(counted, u64::from(opened) + HONEST as u64, "each of them was answered");
        bench.server.stop();
    });
}
