//! gRPC server reflection, which Triton does not have (contract/grpc.md section 1 lists the services that it
//! describes).

use bytes::Bytes;
use nereid_wire::reflection::server_reflection_request::MessageRequest as Ask;
use nereid_wire::reflection::server_reflection_response::MessageResponse as Answer;
use nereid_wire::reflection::{ServerReflectionRequest, ServerReflectionResponse};
use prost::Message;

use nereid_test_support::grpc::{Grpc, code, decode, frame, frame_bytes};
use nereid_test_support::python::Python;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

const PATHS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

fn ask(asked: Ask) -> ServerReflectionRequest {
    ServerReflectionRequest { host: "test".to_owned(), message_request: Some(asked) }
}

fn answer(message: &Bytes) -> Answer {
    let response: ServerReflectionResponse = decode(message);
    assert_eq!(response.valid_host, "test");
    assert!(response.original_request.is_some());
    response.message_response.expect("an answer")
}

#[test]
fn requests_are_answered_in_their_order() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let server = Server::start(variant, repository.path(), &[]);
        let mut grpc = Grpc::connect(server.grpc);
        for path in PATHS {
            let mut exchange = grpc.open(path, &[]);
            grpc.send(&mut exchange, &ask(Ask::ListServices(String::new())));
            let Answer::ListServicesResponse(list) = answer(&grpc.next(&mut exchange).expect("services")) else {
                panic!("expected services")
            };
            assert!(list.service.iter().any(|service| service.name == "inference.GRPCInferenceService"));
            for asked in [
                Ask::FileContainingSymbol("inference.ModelInferRequest".to_owned()),
                Ask::FileByFilename("nothing.proto".to_owned()),
                Ask::FileByFilename("health.proto".to_owned()),
            ] {
                grpc.send(&mut exchange, &ask(asked));
            }
            grpc.half_close(&mut exchange);
            let reply = grpc.finish(exchange);
            assert_eq!((reply.status.code, reply.messages.len()), (code::OK, 3), "{:?}", reply.status);
            let answers: Vec<Answer> = reply.messages.iter().map(answer).collect();
            let [
                Answer::FileDescriptorResponse(inference),
                Answer::ErrorResponse(error),
                Answer::FileDescriptorResponse(health),
            ] = answers.as_slice()
            else {
                panic!("{answers:?}")
            };
            assert_eq!((inference.file_descriptor_proto.len(), health.file_descriptor_proto.len()), (2, 1));
            assert_eq!((error.error_code, error.error_message.as_str()), (5, "File not found: nothing.proto"));
        }
        server.stop();
    });
}

#[test]
fn streams_end_in_order() {
    let repository = Repository::new();
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    for path in PATHS {
        let reply = grpc.exchange(path, &[], &[]);
        assert_eq!((reply.status.code, reply.messages.len()), (code::OK, 0), "nothing asked");
        let reply = grpc.exchange(path, &[], &[frame_bytes(0, b"\xff\xff\xff")]);
        assert_eq!((reply.status.code, reply.status.message.as_str()), (code::INTERNAL, "Unable to parse request"));
        let reply = grpc.exchange(path, &[], &[frame(&ServerReflectionRequest::default())]);
        let response: ServerReflectionResponse = decode(&reply.messages[0]);
        let Some(Answer::ErrorResponse(error)) = response.message_response else { panic!("{response:?}") };
        assert_eq!((error.error_code, reply.status.code), (3, code::OK));
        let mut exchange = grpc.open(path, &[]);
        grpc.send(&mut exchange, &ask(Ask::ListServices(String::new())));
        grpc.cancel(exchange);
    }
    for path in ["/grpc.reflection.v1.ServerReflection/Other", "/inference.GRPCInferenceService/ServerReflectionInfo"] {
        assert_eq!(grpc.exchange(path, &[], &[]).status.code, code::UNIMPLEMENTED, "{path}");
    }
    server.stop();
}

/// Small requests with large answers, to a client that reads only when it has asked for everything.
#[test]
fn many_requests_at_once_are_all_answered() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let server = Server::start(variant, repository.path(), &[]);
        let mut grpc = Grpc::connect(server.grpc);
        let asked = ask(Ask::FileContainingSymbol("inference.GRPCInferenceService".to_owned()));
        let mut exchange = grpc.open(PATHS[0], &[]);
        let count = 1500;
        grpc.send_bytes(&mut exchange, frame(&asked).repeat(count).into());
        grpc.half_close(&mut exchange);
        let reply = grpc.finish(exchange);
        assert_eq!((reply.status.code, reply.messages.len()), (code::OK, count), "{:?}", reply.status);
        assert!(reply.messages.iter().all(|message| message.len() > 10_000));
        // More than may wait is refused, and the connection goes on.
        let mut exchange = grpc.open(PATHS[0], &[]);
        grpc.send_bytes(&mut exchange, frame(&asked).repeat(100_000).into());
        let reply = grpc.finish(exchange);
        let text = "more than 4096 requests of the stream wait for their answers";
        assert_eq!((reply.status.code, reply.status.message.as_str()), (8, text));
        let long = ask(Ask::FileByFilename("x".repeat(2 << 20)));
        let reply = grpc.exchange(PATHS[0], &[], &[frame(&long)]);
        let text = "more than 1048576 bytes of requests wait for their answers";
        assert_eq!((reply.status.code, reply.status.message.as_str()), (8, text));
        let reply = grpc.exchange(PATHS[0], &[], &[frame(&asked)]);
        assert_eq!((reply.status.code, reply.messages.len()), (code::OK, 1));
        assert!(asked.encoded_len() < 100);
        server.stop();
    });
}

/// gRPC's own client of reflection: services, messages, and a call through what it learned.
#[test]
fn the_official_client_of_reflection() {
    let Some(python) = Python::with("reflection-requirements.txt") else { return };
    let repository = Repository::new();
    let server = Server::start(usual(), repository.path(), &[]);
    let text = python.run("reflection.py", &["--url", &server.grpc.to_string()]);
    assert!(text.contains("ok"), "{text}");
    server.stop();
}
