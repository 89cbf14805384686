//! Repeated requests with another id and other contents, which the plan cache recognises: each gets the response that
//! it would get without earlier requests (contract/grpc.md sections 4 and 5).

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice::{BoolParam, Int64Param};
use nereid_wire::inference::{
    InferTensorContents, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse, RepositoryModelLoadRequest,
    RepositoryModelLoadResponse, RepositoryModelUnloadRequest, RepositoryModelUnloadResponse,
};

use super::message::{infer, numbers, output, parameters, raw};
use nereid_test_support::grpc::{Grpc, SERVICE, Status, code, decode, frame_bytes};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

/// Enough for any head to be learnt and used.
const ROUNDS: i32 = 12;

/// Two inputs and one of the outputs.
fn pair(id: &str, value: i32) -> ModelInferRequest {
    let bytes = |value: i32| Bytes::copy_from_slice(&value.to_le_bytes());
    ModelInferRequest {
        id: id.into(),
        parameters: parameters([("priority", Int64Param(0)), ("mine", BoolParam(true))]),
        inputs: vec![raw("INPUT1", "INT32", &[1]), raw("INPUT0", "INT32", &[1])],
        outputs: vec![output("OUTPUT1")],
        raw_input_contents: vec![bytes(value), bytes(-value)],
        ..infer("pair")
    }
}

fn values(answer: &ModelInferResponse) -> Vec<i32> {
    let contents = answer.raw_output_contents.iter().flat_map(|contents| contents.chunks_exact(4));
    contents.map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn names(answer: &ModelInferResponse) -> Vec<(&str, &[i64])> {
    answer.outputs.iter().map(|output| (output.name.as_str(), &output.shape[..])).collect()
}

fn repository() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository.identity("pair", 0, &[Pair::new("INT32", "1"), Pair::new("INT32", "1")]);
    repository
}

#[test]
fn ids_and_contents_are_those_of_each_request() {
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = Server::start(variant, repository.path(), &[]);
        let mut grpc = Grpc::connect(server.grpc);
        for round in 0..ROUNDS {
            let id = if round % 3 == 0 { String::new() } else { "x".repeat(round as usize * 9) };
            let answer: ModelInferResponse = grpc.call("ModelInfer", &numbers("plain", &id, &[round, 7])).unwrap();
            assert_eq!((answer.id.as_str(), values(&answer)), (id.as_str(), vec![round, 7]));
            let answer: ModelInferResponse = grpc.call("ModelInfer", &pair(&id, round)).unwrap();
            assert_eq!((answer.id.as_str(), values(&answer)), (id.as_str(), vec![round]));
            assert_eq!(names(&answer), [("OUTPUT1", &[1][..])]);
            assert_eq!((answer.model_name.as_str(), answer.model_version.as_str()), ("pair", "1"));
        }
        // No two have the same head.
        for round in 0..100 {
            let given: Vec<i32> = (0..round).collect();
            let answer: ModelInferResponse = grpc.call("ModelInfer", &numbers("plain", "", &given)).unwrap();
            assert_eq!((values(&answer), names(&answer)), (given, vec![("OUTPUT0", &[i64::from(round)][..])]));
        }
    });
}

/// On a stream, behind requests for a model that there is not: what comes in pieces teaches nothing of them.
#[test]
fn what_comes_in_pieces_is_not_taken_for_what_came_before() {
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = Server::start(variant, repository.path(), &[]);
        let mut grpc = Grpc::connect(server.grpc);
        let mut stream = grpc.open(&format!("{SERVICE}ModelStreamInfer"), &[]);
        let mut ask = |model: &str, value: i32, is_cut: bool| {
            let framed = frame_bytes(0, &prost::Message::encode_to_vec(&numbers(model, "id", &[value])));
            if is_cut {
                grpc.send_bytes(&mut stream, framed.slice(..20));
                grpc.flush();
                grpc.send_bytes(&mut stream, framed.slice(20..));
            } else {
                grpc.send_bytes(&mut stream, framed);
            }
            let answer: ModelStreamInferResponse = decode(&grpc.next(&mut stream).expect("an answer"));
            (answer.error_message, answer.infer_response.map(|response| values(&response)).unwrap_or_default())
        };
        for round in 0..ROUNDS {
            for is_cut in [false, true] {
                let (error, _) = ask("absent", round, false);
                assert_eq!(error, "Request for unknown model: 'absent' is not found", "{round}");
                assert_eq!(ask("plain", round, is_cut), (String::new(), vec![round]), "{round}");
            }
        }
        grpc.half_close(&mut stream);
        grpc.finish(stream);
        server.stop();
    });
}

#[test]
fn faults_are_named_between_requests_that_are_known() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let failing = |status: Result<ModelInferResponse, Status>| status.map(|answer| values(&answer)).unwrap_err();
    for round in 0..ROUNDS {
        let known = numbers("plain", "7", &[round, 1]);
        let answer: ModelInferResponse = grpc.call("ModelInfer", &known).unwrap();
        assert_eq!(values(&answer), [round, 1]);
        let short = ModelInferRequest { raw_input_contents: vec![Bytes::from_static(b"1234")], ..known.clone() };
        let text = "[request id: 7] input byte size mismatch for input 'INPUT0' for model 'plain'. Expected 8, got 4";
        let expected = Status { code: code::INVALID_ARGUMENT, message: text.to_string() };
        assert_eq!(failing(grpc.call("ModelInfer", &short)), expected);
        let none = ModelInferRequest { raw_input_contents: vec![], ..known.clone() };
        let text = "unable to find data for input tensor 'INPUT0' for model 'plain' in request.";
        let expected = Status { code: code::INVALID_ARGUMENT, message: text.to_string() };
        assert_eq!(failing(grpc.call("ModelInfer", &none)), expected);
        // An id that is no text, in a message that is otherwise like the others.
        let mut broken = prost::Message::encode_to_vec(&known);
        let at = broken.windows(3).position(|bytes| bytes == b"\x1a\x017").expect("the id") + 2;
        broken[at] = 0xff;
        let path = format!("{SERVICE}ModelInfer");
        let reply = grpc.exchange(&path, &[], &[frame_bytes(0, &broken)]);
        assert_eq!(reply.status, Status { code: code::INTERNAL, message: "Unable to parse request".to_string() });
    }
}

/// The one form of contents is in order, the other is, and both together are not, however often each has come.
#[test]
fn what_is_known_with_typed_contents_is_not_taken_with_raw_ones_as_well() {
    let repository = repository();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    for round in 0..ROUNDS {
        let raw = numbers("plain", "7", &[round, 1]);
        let mut typed = ModelInferRequest { raw_input_contents: vec![], ..raw.clone() };
        typed.inputs[0].contents = Some(InferTensorContents { int_contents: vec![4, 2], ..Default::default() });
        let answer: ModelInferResponse = grpc.call("ModelInfer", &typed).unwrap();
        assert_eq!(values(&answer), [4, 2]);
        let both = ModelInferRequest { raw_input_contents: raw.raw_input_contents.clone(), ..typed.clone() };
        let refused = grpc.call::<ModelInferResponse>("ModelInfer", &both).unwrap_err();
        let text = "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'plain'";
        assert_eq!(refused, Status { code: code::INVALID_ARGUMENT, message: text.to_string() });
        let answer: ModelInferResponse = grpc.call("ModelInfer", &raw).unwrap();
        assert_eq!(values(&answer), [round, 1]);
    }
}

#[test]
fn streams_keep_the_order_of_known_and_unknown_requests() {
    each(&variant::ALL, |variant| {
        let repository = repository();
        let server = Server::start(variant, repository.path(), &[]);
        let mut grpc = Grpc::connect(server.grpc);
        let mut stream = grpc.open(&format!("{SERVICE}ModelStreamInfer"), &[]);
        for round in 0..ROUNDS * 4 {
            let id = round.to_string();
            match round % 4 {
                0 => grpc.send(&mut stream, &pair(&id, round)),
                1 => grpc.send(&mut stream, &numbers("absent", &id, &[round])),
                _ => grpc.send(&mut stream, &numbers("plain", &id, &[round])),
            }
        }
        grpc.half_close(&mut stream);
        let reply = grpc.finish(stream);
        assert_eq!((reply.status.code, reply.messages.len()), (code::OK, 4 * ROUNDS as usize));
        for (round, message) in reply.messages.iter().enumerate() {
            let response: ModelStreamInferResponse = decode(message);
            let answer = response.infer_response.unwrap_or_default();
            assert_eq!(answer.id, round.to_string());
            if round % 4 == 1 {
                assert_eq!(response.error_message, "Request for unknown model: 'absent' is not found");
                continue;
            }
            assert_eq!((response.error_message.as_str(), values(&answer)), ("", vec![round as i32]));
            let last = answer.parameters.get("triton_final_response").and_then(|last| last.parameter_choice.clone());
            assert_eq!(last, Some(BoolParam(true)));
        }
    });
}

#[test]
fn what_is_known_of_a_model_goes_with_it() {
    let repository = repository();
    let flags = ["--model-control-mode=explicit", "--load-model=plain"];
    let server = Server::start(usual(), repository.path(), &flags);
    let mut grpc = Grpc::connect(server.grpc);
    let ask = |grpc: &mut Grpc| -> Result<Vec<i32>, Status> {
        let answers = (0..ROUNDS).map(|round| grpc.call("ModelInfer", &numbers("plain", "", &[round, 2])));
        let answers: Result<Vec<ModelInferResponse>, Status> = answers.collect();
        answers.map(|answers| answers.iter().flat_map(values).step_by(2).collect())
    };
    let expected: Vec<i32> = (0..ROUNDS).collect();
    assert_eq!(ask(&mut grpc), Ok(expected.clone()));
    let unload = RepositoryModelUnloadRequest { model_name: "plain".into(), ..Default::default() };
    grpc.call::<RepositoryModelUnloadResponse>("RepositoryModelUnload", &unload).unwrap();
    assert!(ask(&mut grpc).is_err(), "it is gone");
    repository.identity("plain", 0, &[Pair::new("INT32", "3")]);
    let load = RepositoryModelLoadRequest { model_name: "plain".into(), ..Default::default() };
    grpc.call::<RepositoryModelLoadResponse>("RepositoryModelLoad", &load).unwrap();
    let refused = ask(&mut grpc).expect_err("it takes three numbers now");
    assert!(refused.message.contains("unexpected shape for input 'INPUT0'"), "{refused:?}");
    repository.identity("plain", 0, &[Pair::new("INT32", "2")]);
    grpc.call::<RepositoryModelLoadResponse>("RepositoryModelLoad", &load).unwrap();
    assert_eq!(ask(&mut grpc), Ok(expected));
}
