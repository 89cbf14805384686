//! Ensembles with decoupled steps (contract/schedulers.md section 5, "decoupled steps").

use std::collections::BTreeMap;
use std::time::Duration;

use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};
use serde_json::Value;

use super::decoupled::{
    Answer, BIG, all_of, backends, later, next, open, repeat, repeat_config, rest, single, start_later,
    statistics_until, with_empty_final,
};
use super::ensemble::{ensemble, statistics};
use nereid_test_support::grpc::{Grpc, code};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::steadily::in_time;
use nereid_test_support::variant::{self, each, usual};

/// `e` repeats, and hands the values, not the numbers, through `plain`; `around` is an ensemble of it.
fn repeaters() -> Repository {
    let repository = Repository::new();
    repository.model("repeat", &repeat_config());
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let map = |side: &str, pairs: &[(&str, &str)]| -> String {
        pairs.iter().map(|(key, value)| format!("{side} {{ key: \"{key}\" value: \"{value}\" }}\n")).collect()
    };
    let step = |model: &str, reads: &[(&str, &str)], writes: &[(&str, &str)]| {
        let maps = map("input_map", reads) + &map("output_map", writes);
        format!("step {{ model_name: \"{model}\" model_version: -1 {maps} }}\n")
    };
    let inputs = ["IN", "DELAY", "WAIT"].map(|name| (name, name));
    for (name, inner) in [("e", "repeat"), ("around", "e")] {
        let steps = step(inner, &inputs, &[("OUT", "A"), ("IDX", "IDX")])
            + &step("plain", &[("INPUT0", "A")], &[("OUTPUT0", "OUT")]);
        let config = format!(
            r#"platform: "ensemble"
            input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }},
                    {{ name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] }},
                    {{ name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] }} ]
            output [ {{ name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }},
                     {{ name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] }} ]
            ensemble_scheduling {{ {steps} }}"#
        );
        repository.model(name, &config);
    }
    repository
}

fn of(model: &str, request: ModelInferRequest) -> ModelInferRequest {
    ModelInferRequest { model_name: model.into(), ..request }
}

/// The values of each request's responses in the order in which they came; the end stands behind all of them.
fn by_id(answers: &[Answer]) -> BTreeMap<String, Vec<Vec<i32>>> {
    let mut by_id: BTreeMap<String, Vec<Vec<i32>>> = BTreeMap::new();
    let mut ended = Vec::new();
    for answer in answers {
        assert_eq!(answer.error, "");
        assert!(!ended.contains(&answer.id()), "{answer:?} comes behind the end");
        let values = by_id.entry(answer.id().to_owned()).or_default();
        match answer.values() {
            empty if empty.is_empty() => assert_eq!(answer.is_final(), Some(true), "{answer:?}"),
            full => values.push(full),
        }
        if answer.is_final() == Some(true) {
            ended.push(answer.id());
        }
    }
    assert_eq!(ended.len(), by_id.len(), "each is told of its end: {answers:?}");
    by_id
}

#[test]
fn responses_go_through_the_steps_one_by_one_and_in_their_order() {
    each(&variant::ALL, |variant| {
        let repository = repeaters();
        let server = Server::start(variant, repository.path(), &[]);
        for model in ["e", "around"] {
            let config = Peer::connect(server.http).get(&format!("/v2/models/{model}/config")).json();
            assert_eq!(config["model_transaction_policy"]["decoupled"], true, "{config}");
            let mut grpc = Grpc::connect(server.grpc);
            let mut requests = Vec::new();
            let mut expected = BTreeMap::new();
            for count in 0..12_i32 {
                let values: Vec<i32> = (0..count * 10).map(|number| count * 1000 + number).collect();
                let delays = vec![0; values.len()];
                let id = format!("r{count}");
                requests.push(with_empty_final(of(model, repeat(&id, &values, &delays, 0))));
                let pairs = values.iter().enumerate().map(|(at, value)| vec![*value, at as i32]);
                expected.insert(id, pairs.collect::<Vec<_>>());
            }
            let answers = all_of(&mut grpc, &requests);
            assert_eq!(by_id(&answers), expected);
            assert!(answers.iter().all(|answer| answer.inner.model_name == model));
            // Whoever did not ask for an end is not told of one that comes apart.
            assert!(all_of(&mut grpc, &[of(model, repeat("none", &[], &[], 0))]).is_empty());
        }
        let count = |model: &str| statistics(&server, model)["inference_stats"]["success"]["count"].clone();
        let responses = 10 * (0..12).sum::<i32>();
        assert_eq!(["e", "around", "plain"].map(count), [26, 13, 3 * responses].map(Value::from));
        server.stop();
    });
}

#[test]
fn an_error_in_the_middle_is_the_last_response() {
    let repository = repeaters();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let answers = all_of(&mut grpc, &[of("e", repeat("unequal", &[1], &[2, 3], 0))]);
    let [answer] = &answers[..] else { panic!("{answers:?}") };
    let text = "in ensemble 'e', expected IN and DELAY shape to match, got [1] and [2]";
    assert_eq!((answer.error.as_str(), answer.id(), answer.is_final()), (text, "unequal", Some(true)));
    assert_eq!(statistics(&server, "e")["inference_stats"]["fail"]["count"], 1);
    server.stop();
}

#[test]
fn a_slow_reader_holds_the_first_step_back_and_not_the_memory() {
    let Some(directory) = backends() else { return };
    each(&variant::ALL, |variant| {
        for flags in [&[][..], &["--grpc-max-response-pool-size=1"]] {
            in_time(|window| {
                let (repository, server) = start_later(variant, &directory, &[flags, &EXPLICIT[..]].concat());
                let steps = ["later INPUT0=INPUT0 -> OUTPUT0=A", "plain INPUT0=A -> OUTPUT0=OUT"];
                repository.model("e", &ensemble("e", "INPUT0", "OUT", &steps, ""));
                load(&server, "e");
                let before = server.resident_kib();
                let mut grpc = Grpc::connect(server.grpc);
                let mut exchange = open(&mut grpc);
                let values: Vec<i32> = (0..BIG as i32).collect();
                grpc.send(&mut exchange, &of("e", later("big", &values)));
                grpc.half_close(&mut exchange);
                let mut most = 0;
                for value in 0..BIG as i32 {
                    // A client that reads nothing for so long loses its stream.
                    window.open(Duration::from_secs(10));
                    let answer = next(&mut grpc, &mut exchange);
                    assert_eq!((answer.values(), answer.inner.raw_output_contents[0].len()), (vec![value], 1 << 20));
                    if value % 20 == 0 {
                        // Nothing is read meanwhile; others are served, also by the same step.
                        let mut other = Grpc::connect(server.grpc);
                        let plain = single("plain", "p", "INPUT0", &[value]);
                        other.call::<ModelInferResponse>("ModelInfer", &plain).expect("an answer");
                        most = most.max(server.resident_kib());
                    }
                }
                assert_eq!(grpc.finish(exchange).status.code, code::OK);
                let grown = most.saturating_sub(before) >> 10;
                assert!(grown < BIG as u64 / 3, "the server grew by {grown} MiB");
                server.stop();
            });
        }
    });
}

const EXPLICIT: [&str; 2] = ["--model-control-mode=explicit", "--load-model=plain"];

fn load(server: &Server, model: &str) {
    let answer = Peer::connect(server.http).post(&format!("/v2/repository/models/{model}/load"), &[], b"");
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn a_client_that_leaves_in_the_middle_ends_the_step() {
    let Some(directory) = backends() else { return };
    each(&variant::ALL, |variant| {
        let (repository, server) = start_later(variant, &directory, &EXPLICIT);
        let steps = ["later INPUT0=INPUT0 -> OUTPUT0=A", "plain INPUT0=A -> OUTPUT0=OUT"];
        repository.model("e", &ensemble("e", "INPUT0", "OUT", &steps, ""));
        load(&server, "e");
        let mut grpc = Grpc::connect(server.grpc);
        // The step goes on only once it knows.
        let mut exchange = open(&mut grpc);
        grpc.send(&mut exchange, &of("e", later("cancelled", &[1, 2])));
        assert_eq!(next(&mut grpc, &mut exchange).values(), [1]);
        grpc.cancel(exchange);
        server.wait_for_log("later.c: saw the cancellation");
        // Here it waits for a client that reads nothing.
        let mut exchange = open(&mut grpc);
        let values: Vec<i32> = (0..BIG as i32).collect();
        grpc.send(&mut exchange, &of("e", later("big", &values)));
        assert_eq!(next(&mut grpc, &mut exchange).values(), [0]);
        grpc.cancel(exchange);
        // Both are over, and nothing that they handed on waits anywhere.
        let started = std::time::Instant::now();
        let nothing_pends = |text: &str| {
            let mut lines = text.lines().filter(|line| line.starts_with("nv_inference_pending_request_count{"));
            lines.all(|line| line.ends_with("} 0"))
        };
        while !nothing_pends(&Peer::connect(server.metrics).get("/metrics").text()) {
            assert!(started.elapsed() < PATIENCE, "something still waits");
            std::thread::yield_now();
        }
        let ended = |found: &Value| {
            let stats = &found["inference_stats"];
            stats["success"]["count"].as_i64().unwrap_or(0) + stats["fail"]["count"].as_i64().unwrap_or(0) == 2
        };
        statistics_until(&server, "e", ended);
        // Neither the connection nor the step has suffered.
        let exchange = {
            let mut exchange = open(&mut grpc);
            grpc.send(&mut exchange, &of("e", later("plainly", &[1, 2])));
            exchange
        };
        let (answers, status) = rest(&mut grpc, exchange);
        assert_eq!(status.code, code::OK);
        assert_eq!(answers.iter().map(Answer::values).filter(|values| !values.is_empty()).count(), 2);
        server.stop();
    });
}
