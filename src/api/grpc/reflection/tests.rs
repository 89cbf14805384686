//! What each kind of request is answered.

use prost::Message as _;
use prost_reflect::prost_types::FileDescriptorProto;

use super::*;
use nereid_wire::reflection::ExtensionRequest;

fn ask(asked: Ask) -> Answer {
    let request = ServerReflectionRequest { host: "here".to_owned(), message_request: Some(asked) };
    let response = answer(request.clone(), true);
    assert_eq!((response.valid_host.as_str(), response.original_request), ("here", Some(request)));
    response.message_response.expect("an answer")
}

fn names(answer: Answer) -> Vec<String> {
    let Answer::FileDescriptorResponse(files) = answer else { panic!("expected files, got {answer:?}") };
    let files = files.file_descriptor_proto.into_iter();
    files.map(|file| FileDescriptorProto::decode(file).unwrap().name().to_owned()).collect()
}

fn error(answer: Answer) -> (i32, String) {
    let Answer::ErrorResponse(error) = answer else { panic!("expected an error, got {answer:?}") };
    (error.error_code, error.error_message)
}

#[test]
fn all_services_are_listed() {
    let Answer::ListServicesResponse(list) = ask(Ask::ListServices("*".to_owned())) else { panic!() };
    let mut names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    names.sort();
    let expected = [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
        "xds.service.orca.v3.OpenRcaService",
    ];
    assert_eq!(names, expected);
    let message_request = Some(Ask::ListServices("*".to_owned()));
    let without = answer(ServerReflectionRequest { message_request, ..Default::default() }, false);
    let Some(Answer::ListServicesResponse(list)) = without.message_response else { panic!() };
    assert!(list.service.iter().all(|service| service.name != load_streams::SERVICE), "with --orca=off");
}

#[test]
fn files_come_with_what_they_need() {
    let table: &[(&str, &[&str])] = &[
        ("inference.proto", &["inference.proto", "model_config.proto"]),
        ("model_config.proto", &["model_config.proto"]),
        ("health.proto", &["health.proto"]),
        ("reflection.proto", &["reflection.proto"]),
        ("reflection_v1alpha.proto", &["reflection_v1alpha.proto"]),
    ];
    for (name, expected) in table {
        assert_eq!(names(ask(Ask::FileByFilename((*name).to_owned()))), *expected, "{name}");
    }
}

#[test]
fn symbols_of_every_kind_are_found() {
    for (symbol, file) in [
        ("inference.GRPCInferenceService", "inference.proto"),
        ("inference.GRPCInferenceService.ModelInfer", "inference.proto"),
        ("inference.ModelInferRequest", "inference.proto"),
        ("inference.ModelInferRequest.InferInputTensor", "inference.proto"),
        ("inference.ModelInferRequest.model_name", "inference.proto"),
        ("inference.InferParameter.parameter_choice", "inference.proto"),
        ("inference.ModelConfig", "model_config.proto"),
        ("inference.DataType", "model_config.proto"),
        ("inference.TYPE_FP32", "model_config.proto"),
        ("grpc.health.v1.Health.Check", "health.proto"),
        ("grpc.reflection.v1.ServerReflection", "reflection.proto"),
        ("grpc.reflection.v1alpha.ServerReflectionRequest", "reflection_v1alpha.proto"),
    ] {
        let found = names(ask(Ask::FileContainingSymbol(symbol.to_owned())));
        assert_eq!(found.first().map(String::as_str), Some(file), "{symbol}");
    }
}

#[test]
fn what_is_not_there_is_said_in_the_answer() {
    let extension = ExtensionRequest { containing_type: "inference.ModelConfig".to_owned(), extension_number: 7 };
    for (asked, text) in [
        (Ask::FileByFilename("nothing.proto".to_owned()), "File not found: nothing.proto"),
        (Ask::FileByFilename(String::new()), "File not found: "),
        (Ask::FileContainingSymbol("inference.Nothing".to_owned()), "Symbol not found: inference.Nothing"),
        (Ask::FileContainingSymbol("inference".to_owned()), "Symbol not found: inference"),
        (Ask::FileContainingExtension(extension), "Extension not found: 7 of inference.ModelConfig"),
        (Ask::AllExtensionNumbersOfType("inference.Nothing".to_owned()), "Type not found: inference.Nothing"),
    ] {
        assert_eq!(error(ask(asked)), (5, text.to_owned()));
    }
    let numbers = ask(Ask::AllExtensionNumbersOfType("inference.ModelConfig".to_owned()));
    let base_type_name = "inference.ModelConfig".to_owned();
    let none = ExtensionNumberResponse { base_type_name, extension_number: Vec::new() };
    assert_eq!(numbers, Answer::AllExtensionNumbersResponse(none));
    let nothing = answer(ServerReflectionRequest::default(), true).message_response.expect("an answer");
    assert_eq!(error(nothing), (3, "the request asks for nothing".to_owned()));
}

#[test]
fn both_versions_are_one_method() {
    for path in PATHS {
        let plan = plan(path).expect("a plan");
        assert!(plan.streaming && plan.method == METHOD && plan.mode == Mode::Collect);
    }
    for path in ["", "/grpc.reflection.v1.ServerReflection/Other", "/grpc.reflection.v2.ServerReflection/x"] {
        assert_eq!(plan(path.as_bytes()), None, "{path}");
    }
}
