//! The time breakdown of a request, for clients that request it.

use std::time::Duration;

use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::{InferParameter, ModelInferRequest};
use serde_json::{Value, json};

use super::trace::{body, message};
use nereid_test_support::backend;
use nereid_test_support::gate::{self, Gate};
use nereid_test_support::grpc::{Grpc, Reply, SERVICE, code, frame};
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

const ASK: (&str, &str) = ("x-request-timing", "true");
const ALL: [&str; 8] = ["receive", "parse", "queue", "batch", "input", "compute", "output", "encode"];

fn repository() -> Repository {
    let repository = Repository::new();
    let pair = [Pair::new("INT32", "-1")];
    repository.identity("plain", 0, &pair);
    let slow = "parameters { key: \"execute_delay_ms\" value { string_value: \"60\" } }";
    repository.identity_of("identity", "slow", 0, &pair, slow);
    repository
}

/// Names and milliseconds of a `Server-Timing` text.
fn parts(text: &str) -> Vec<(String, f64)> {
    let part = |part: &str| {
        let (name, duration) = part.split_once(";dur=").unwrap_or_else(|| panic!("no duration in {part:?}"));
        let (_, digits) = duration.split_once('.').expect("a fraction");
        assert_eq!(digits.len(), 3, "microseconds in {part:?}");
        (name.to_owned(), duration.parse().expect("milliseconds"))
    };
    text.split(", ").map(part).collect()
}

fn names(parts: &[(String, f64)]) -> Vec<&str> {
    parts.iter().map(|(name, _)| name.as_str()).collect()
}

fn of(parts: &[(String, f64)], name: &str) -> f64 {
    parts.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name} in {parts:?}")).1
}

fn infer(server: &Server, model: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    Peer::connect(server.http).post(&format!("/v2/models/{model}/infer"), headers, body.as_bytes())
}

fn call(server: &Server, headers: &[(&str, &str)], request: &ModelInferRequest) -> Reply {
    Grpc::connect(server.grpc).exchange(&format!("{SERVICE}ModelInfer"), headers, &[frame(request)])
}

fn timed_body(value: &Value) -> String {
    let mut body: Value = serde_json::from_str(&body("t")).unwrap();
    body["parameters"] = json!({ "nereid_timing": value });
    body.to_string()
}

#[test]
fn who_asks_is_told_where_the_time_went() {
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = Server::start(variant, repository.path(), &[]);
        let answer = infer(&server, "slow", &[ASK], &body("t"));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let by_http = parts(answer.header("server-timing").expect("a breakdown"));
        let reply = call(&server, &[ASK], &message("slow", "t"));
        assert_eq!(reply.status.code, code::OK);
        let by_grpc = parts(reply.trailers.get("server-timing").expect("a breakdown").to_str().unwrap());
        for parts in [by_http, by_grpc] {
            assert_eq!(names(&parts), ALL);
            assert!(of(&parts, "compute") >= 60.0, "the model sleeps 60 ms: {parts:?}");
            assert!(parts.iter().all(|(_, ms)| *ms < 60_000.0), "{parts:?}");
        }
        server.stop();
    });
}

#[test]
fn who_does_not_ask_is_told_nothing() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    for headers in [&[][..], &[("x-request-timing", "false")], &[("x-request-timing", "")]] {
        let answer = infer(&server, "plain", headers, &body("t"));
        assert_eq!((answer.status, answer.header("server-timing")), (200, None), "{headers:?}");
        let reply = call(&server, headers, &message("plain", "t"));
        assert_eq!((reply.status.code, reply.trailers.get("server-timing")), (code::OK, None), "{headers:?}");
    }
    // An answer that is an error has no breakdown.
    let wrong = body("t").replace("INPUT0", "INPUT9");
    let answer = infer(&server, "plain", &[ASK], &wrong);
    assert_eq!((answer.status, answer.header("server-timing")), (400, None));
    server.stop();
}

/// As a parameter it is known too late to tell of the arrival; it does not reach the model.
#[test]
fn a_parameter_asks_too() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    let answer = infer(&server, "plain", &[], &timed_body(&json!(true)));
    assert_eq!(names(&parts(answer.header("server-timing").expect("a breakdown"))), ALL[2..]);
    let answer = infer(&server, "plain", &[ASK], &timed_body(&json!(true)));
    assert_eq!(names(&parts(answer.header("server-timing").expect("a breakdown"))), ALL);
    let answer = infer(&server, "plain", &[], &timed_body(&json!(false)));
    assert_eq!((answer.status, answer.header("server-timing")), (200, None));
    let answer = infer(&server, "plain", &[], &timed_body(&json!("yes")));
    assert!(answer.status != 200 && answer.error().contains("'nereid_timing'"), "{}", answer.text());
    let with = |choice| {
        let parameter = InferParameter { parameter_choice: Some(choice) };
        ModelInferRequest { parameters: [("nereid_timing".to_owned(), parameter)].into(), ..message("plain", "t") }
    };
    let reply = call(&server, &[], &with(ParameterChoice::BoolParam(true)));
    let told = reply.trailers.get("server-timing").expect("a breakdown").to_str().unwrap();
    assert_eq!(names(&parts(told)), ALL[2..]);
    let reply = call(&server, &[], &with(ParameterChoice::Int64Param(1)));
    let text = "invalid value type for 'nereid_timing' parameter, expected bool_param.";
    assert_eq!((reply.status.code, &*reply.status.message), (code::INVALID_ARGUMENT, text));
    server.stop();
}

#[test]
fn waiting_for_a_worker_is_queueing_and_ensembles_are_sums() {
    let repository = repository();
    let step = |from: &str, to: &str| {
        format!(
            "step {{ model_name: \"slow\" model_version: -1 input_map {{ key: \"INPUT0\" value: \"{from}\" }} \
             output_map {{ key: \"OUTPUT0\" value: \"{to}\" }} }}"
        )
    };
    let tensor = |name: &str| format!("{{ name: \"{name}\" data_type: TYPE_INT32 dims: [ -1 ] }}");
    let config = format!(
        "platform: \"ensemble\" input {} output {} ensemble_scheduling {{ {} {} }}",
        tensor("INPUT0"),
        tensor("OUT"),
        step("INPUT0", "between"),
        step("between", "OUT")
    );
    repository.model("both", &config);
    let gate = Gate::new();
    repository.identity_of(gate::BACKEND, "held", 0, &[Pair::new("INT32", "-1")], &gate.of_executions());
    let Some(backends) = backend::directory_flag() else { return };
    let server = Server::start(usual(), repository.path(), &[&backends]);
    let answer = infer(&server, "both", &[ASK], &body("t"));
    let told = parts(answer.header("server-timing").expect("a breakdown"));
    assert!(of(&told, "compute") >= 120.0, "two steps of 60 ms: {told:?}");
    // One waits while another computes.
    let waited_ms = std::thread::scope(|scope| {
        let ask = || {
            let answer = infer(&server, "held", &[ASK], &body("t"));
            let told = parts(answer.header("server-timing").expect("a breakdown"));
            of(&told, "queue")
        };
        let computes = scope.spawn(ask);
        gate.wait_until_held(&server, "held");
        let waits = scope.spawn(ask);
        let pending = "nv_inference_pending_request_count{model=\"held\",version=\"1\"} 1\n";
        server.wait_until("one waits", || Peer::connect(server.metrics).get("/metrics").text().contains(pending));
        std::thread::sleep(Duration::from_millis(40));
        gate.open();
        computes.join().expect("a breakdown");
        waits.join().expect("a breakdown")
    });
    assert!(waited_ms >= 30.0, "{waited_ms}");
    server.stop();
}
