//! ModelStreamInfer: order, ids, errors in band, the end of the stream (contract/grpc.md section 5).

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};

use super::message::{numbers, parameter};
use nereid_test_support::backend;
use nereid_test_support::gate::{self, Gate};
use nereid_test_support::grpc::{Exchange, Grpc, SERVICE, code, decode};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

const RPC: &str = "ModelStreamInfer";

fn open(grpc: &mut Grpc) -> Exchange {
    grpc.open(&format!("{SERVICE}{RPC}"), &[])
}

fn next(grpc: &mut Grpc, exchange: &mut Exchange) -> ModelStreamInferResponse {
    decode(&grpc.next(exchange).expect("a message on the stream"))
}

fn is_final(response: &ModelStreamInferResponse) -> bool {
    let parameters = response.infer_response.as_ref().map(|response| &response.parameters);
    parameters.is_some_and(|all| all.get("triton_final_response") == Some(&parameter(ParameterChoice::BoolParam(true))))
}

#[test]
fn answers_come_in_the_order_of_the_requests() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        // Two models, the second slower: its answers must hold back those of the first.
        repository.identity("quick", 0, &[Pair::new("INT32", "-1")]);
        let delay = "parameters { key: \"execute_delay_ms\" value { string_value: \"3\" } }";
        repository.identity_of("identity", "slow", 0, &[Pair::new("INT32", "-1")], delay);
        let server = Server::start(variant, repository.path(), &[]);
        let mut grpc = Grpc::connect(server.grpc);
        let mut exchange = open(&mut grpc);
        for number in 0..100i32 {
            let model = if number % 10 == 0 { "slow" } else { "quick" };
            grpc.send(&mut exchange, &numbers(model, &number.to_string(), &[number]));
        }
        for number in 0..100i32 {
            let response = next(&mut grpc, &mut exchange);
            assert_eq!(response.error_message, "", "{number}");
            assert!(is_final(&response), "{number}: {response:?}");
            let response = response.infer_response.unwrap_or_default();
            assert_eq!(response.id, number.to_string());
            assert_eq!(response.raw_output_contents[0].as_ref(), number.to_le_bytes());
        }
        grpc.half_close(&mut exchange);
        let reply = grpc.finish(exchange);
        assert_eq!((reply.status.code, reply.messages.len()), (code::OK, 0), "{reply:?}");
        server.stop();
    });
}

#[test]
fn errors_stay_in_band_and_in_order() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        let server = Server::start(variant, repository.path(), &[]);
        let mut grpc = Grpc::connect(server.grpc);
        let mut exchange = open(&mut grpc);
        let short =
            ModelInferRequest { raw_input_contents: vec![Bytes::from_static(b"123")], ..numbers("plain", "2", &[1]) };
        for request in [numbers("plain", "1", &[1]), short, numbers("absent", "3", &[1]), numbers("plain", "4", &[4])] {
            grpc.send(&mut exchange, &request);
        }
        let texts = [
            "",
            "[request id: 2] input byte size mismatch for input 'INPUT0' for model 'plain'. Expected 4, got 3",
            "Request for unknown model: 'absent' is not found",
            "",
        ];
        for (index, text) in texts.into_iter().enumerate() {
            let response = next(&mut grpc, &mut exchange);
            assert_eq!(response.error_message, text);
            let inner = response.infer_response.clone().unwrap_or_default();
            assert_eq!(inner.id, (index + 1).to_string(), "the id of the request stands in errors too");
            if text.is_empty() {
                assert!(is_final(&response), "{response:?}");
            } else {
                // An error before the request was accepted carries the id and nothing else.
                assert!(
                    inner.model_name.is_empty() && inner.outputs.is_empty() && inner.parameters.is_empty(),
                    "{inner:?}"
                );
            }
        }
        grpc.half_close(&mut exchange);
        assert_eq!(grpc.finish(exchange).status.code, code::OK);
        server.stop();
    });
}

#[test]
fn the_stream_ends_after_its_last_answer() {
    let repository = Repository::new();
    let delay = "parameters { key: \"execute_delay_ms\" value { string_value: \"5\" } }";
    repository.identity_of("identity", "slow", 0, &[Pair::new("INT32", "-1")], delay);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    // Half-closed while every request is still in flight.
    let mut exchange = open(&mut grpc);
    for number in 0..20 {
        grpc.send(&mut exchange, &numbers("slow", &number.to_string(), &[number]));
    }
    grpc.half_close(&mut exchange);
    let reply = grpc.finish(exchange);
    assert_eq!((reply.status.code, reply.messages.len()), (code::OK, 20));
    // A stream without a request.
    let mut exchange = open(&mut grpc);
    grpc.half_close(&mut exchange);
    let reply = grpc.finish(exchange);
    assert_eq!((reply.status.code, reply.messages.len()), (code::OK, 0));
    server.stop();
}

#[test]
fn many_streams_share_a_connection() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        let server = Server::start(variant, repository.path(), &[]);
        let mut grpc = Grpc::connect(server.grpc);
        let mut exchanges: Vec<Exchange> = (0..50).map(|_| open(&mut grpc)).collect();
        for round in 0..4 {
            for (index, exchange) in exchanges.iter_mut().enumerate() {
                grpc.send(exchange, &numbers("plain", &format!("{index}/{round}"), &[index as i32]));
            }
        }
        for round in 0..4 {
            for (index, exchange) in exchanges.iter_mut().enumerate() {
                let response = next(&mut grpc, exchange).infer_response.unwrap_or_default();
                assert_eq!(response.id, format!("{index}/{round}"));
            }
        }
        // Half of them are given up, the others end well; the server serves on.
        for (index, mut exchange) in exchanges.into_iter().enumerate() {
            if index % 2 == 0 {
                grpc.send(&mut exchange, &numbers("plain", "never read", &[1]));
                grpc.cancel(exchange);
            } else {
                grpc.half_close(&mut exchange);
                assert_eq!(grpc.finish(exchange).status.code, code::OK);
            }
        }
        let mut exchange = open(&mut grpc);
        grpc.send(&mut exchange, &numbers("plain", "after", &[1]));
        assert_eq!(next(&mut grpc, &mut exchange).infer_response.unwrap_or_default().id, "after");
        drop(exchange);
        server.stop();
    });
}

/// Tools count the lines: one for each call and each stream that its client has given up, none for those that end.
#[test]
fn the_log_has_one_line_for_each_cancellation() {
    let (repository, gate) = (Repository::new(), Gate::new());
    repository.identity_of(gate::BACKEND, "slow", 0, &[Pair::new("INT32", "-1")], &gate.of_executions());
    repository.identity("quick", 0, &[Pair::new("INT32", "-1")]);
    let Some(backends) = backend::directory_flag() else { return };
    let server = Server::start(usual(), repository.path(), &["--log-verbose=1", &backends]);
    let count = |handler: &str| {
        server.log().matches(&format!("Cancellation notification received for {handler}, rpc_ok=1, context ")).count()
    };
    let mut grpc = Grpc::connect(server.grpc);
    let mut call = grpc.open(&format!("{SERVICE}ModelInfer"), &[]);
    grpc.send(&mut call, &numbers("slow", "given up", &[1]));
    grpc.half_close(&mut call);
    grpc.flush();
    gate.wait_until_held(&server, "slow");
    // Two requests on one stream, given up together.
    let mut stream = open(&mut grpc);
    grpc.send(&mut stream, &numbers("slow", "first", &[1]));
    grpc.send(&mut stream, &numbers("slow", "second", &[2]));
    grpc.flush();
    grpc.cancel(call);
    grpc.cancel(stream);
    server.wait_until("both are logged", || count("ModelInferHandler") > 0 && count("ModelStreamInferHandler") > 0);
    // What ends is not given up.
    let mut exchange = open(&mut grpc);
    grpc.send(&mut exchange, &numbers("quick", "kept", &[1]));
    grpc.half_close(&mut exchange);
    assert_eq!(grpc.finish(exchange).status.code, code::OK);
    assert_eq!((count("ModelInferHandler"), count("ModelStreamInferHandler")), (1, 1), "{}", server.log());
    gate.open();
    let log = server.stop();
    for line in ["| GRPC KeepAlive Option ", "| http2_max_ping_strikes ", "| keepalive_time_ms "] {
        assert!(log.contains(line), "{line}: {log}");
    }
}

#[test]
fn a_message_that_is_no_message_ends_the_call() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let mut exchange = open(&mut grpc);
    grpc.send(&mut exchange, &numbers("plain", "1", &[1]));
    next(&mut grpc, &mut exchange);
    grpc.send_bytes(&mut exchange, nereid_test_support::grpc::frame_bytes(0, b"\xff\xff\xff"));
    grpc.half_close(&mut exchange);
    // The original takes it for the end of the requests and finishes with OK, a stricter server with an error: either
    // way the stream ends without an answer to it, and the connection lives on.
    let reply = grpc.finish(exchange);
    assert_eq!(reply.messages.len(), 0, "{reply:?}");
    let answer = grpc.call::<ModelInferResponse>("ModelInfer", &numbers("plain", "2", &[2])).expect("an answer");
    assert_eq!(answer.id, "2");
    server.stop();
}
