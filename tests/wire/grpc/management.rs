//! Health, metadata, configuration, statistics and index over gRPC (contract/grpc.md sections 1 to 3 and 6).

use nereid_wire::health::{HealthCheckRequest, HealthCheckResponse};
use nereid_wire::inference::*;

use super::message::numbers;
use nereid_test_support::grpc::{Grpc, Status, code, decode, frame};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

#[test]
fn health_in_three_forms() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        let server = Server::start(variant, repository.path(), &[]);
        let mut grpc = Grpc::connect(server.grpc);
        assert_eq!(grpc.call("ServerLive", &ServerLiveRequest {}), Ok(ServerLiveResponse { live: true }));
        assert_eq!(grpc.call("ServerReady", &ServerReadyRequest {}), Ok(ServerReadyResponse { ready: true }));
        for version in ["", "1"] {
            let request = ModelReadyRequest { name: "plain".into(), version: version.into() };
            assert_eq!(grpc.call("ModelReady", &request), Ok(ModelReadyResponse { ready: true }));
        }
        for service in ["", "inference.GRPCInferenceService", "any name is ignored"] {
            let request = HealthCheckRequest { service: service.into() };
            let reply = grpc.exchange("/grpc.health.v1.Health/Check", &[], &[frame(&request)]);
            assert_eq!(reply.status.code, code::OK, "{service:?}");
            assert_eq!(decode::<HealthCheckResponse>(&reply.messages[0]).status, 1, "SERVING for {service:?}");
        }
        let unknown = ModelReadyRequest { name: "no".into(), version: "".into() };
        assert_eq!(grpc.call("ModelReady", &unknown), Ok(ModelReadyResponse { ready: false }));
        server.stop();
    });
}

/// gRPC's own library takes blanks at the ends of a value, though HTTP/2 forbids them, and leaves them there.
#[test]
fn blanks_at_the_ends_of_metadata_are_part_of_it() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(usual(), repository.path(), &["--grpc-restricted-protocol=health:key= padded "]);
    let mut grpc = Grpc::connect(server.grpc);
    let restricted = "This protocol is restricted, expecting header 'triton-grpc-protocol-key'";
    for (value, expected) in [
        (" padded ", (code::OK, "")),
        ("padded", (code::UNAVAILABLE, restricted)),
        ("\tpadded ", (code::UNAVAILABLE, restricted)),
    ] {
        let headers = [("triton-grpc-protocol-key", value), ("other", " x\t")];
        let path = "/inference.GRPCInferenceService/ServerLive";
        let reply = grpc.exchange(path, &headers, &[frame(&ServerLiveRequest {})]);
        assert_eq!((reply.status.code, reply.status.message.as_str()), expected, "{value:?}");
    }
    server.stop();
}

/// A name is the directory's, to the last blank.
#[test]
fn blanks_at_the_ends_of_a_name_are_part_of_it() {
    let repository = Repository::new();
    repository.identity("ends ", 0, &[Pair::new("INT32", "-1")]);
    repository.identity("begins", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(usual(), repository.path(), &["--model-control-mode=explicit", "--load-model=*"]);
    let mut grpc = Grpc::connect(server.grpc);
    for (name, ready) in [("ends ", true), ("ends", false), (" begins", false), ("begins", true), (" ", false)] {
        let request = ModelReadyRequest { name: name.into(), version: String::new() };
        assert_eq!(grpc.call("ModelReady", &request), Ok(ModelReadyResponse { ready }), "{name:?}");
        let request = RepositoryModelLoadRequest { model_name: name.into(), ..Default::default() };
        let loaded = grpc.call::<RepositoryModelLoadResponse>("RepositoryModelLoad", &request);
        assert_eq!(loaded.is_ok(), ready, "{name:?}: {loaded:?}");
    }
    server.stop();
}

fn not_found(text: &str) -> Status {
    Status { code: code::NOT_FOUND, message: text.to_string() }
}

#[test]
fn metadata_and_configuration() {
    let repository = Repository::new();
    repository.identity("batching", 8, &[Pair::new("INT64", "3"), Pair::new("BYTES", "-1").optional()]);
    let server = Server::start(usual(), repository.path(), &["--id=harbour"]);
    let mut grpc = Grpc::connect(server.grpc);

    let metadata: ServerMetadataResponse = grpc.call("ServerMetadata", &ServerMetadataRequest {}).expect("metadata");
    assert_eq!(metadata.name, "harbour");
    assert_eq!(metadata.version, "2.75.0");
    assert!(metadata.extensions.iter().any(|name| name == "binary_tensor_data"), "{metadata:?}");

    let request = ModelMetadataRequest { name: "batching".into(), version: String::new() };
    let metadata: ModelMetadataResponse = grpc.call("ModelMetadata", &request).expect("metadata");
    assert_eq!((metadata.name.as_str(), metadata.platform.as_str()), ("batching", "identity"));
    assert_eq!(metadata.versions, ["1"]);
    let shapes: Vec<_> =
        metadata.inputs.iter().map(|t| (t.name.as_str(), t.datatype.as_str(), t.shape.clone())).collect();
    assert_eq!(shapes, [("INPUT0", "INT64", vec![-1, 3]), ("INPUT1", "BYTES", vec![-1, -1])]);
    assert_eq!(metadata.outputs.len(), 2);

    let request = ModelConfigRequest { name: "batching".into(), version: "1".into() };
    let answer: ModelConfigResponse = grpc.call("ModelConfig", &request).expect("a configuration");
    let config = answer.config.expect("a configuration");
    assert_eq!((config.name.as_str(), config.backend.as_str(), config.max_batch_size), ("batching", "identity", 8));
    assert_eq!(config.input[0].dims, [3]);
    assert_eq!(config.input[0].data_type(), DataType::TypeInt64);
    assert!(config.input[1].optional);
    assert_eq!(config.instance_group[0].name, "batching_0");

    let request = ModelMetadataRequest { name: "batching".into(), version: "7".into() };
    let text = "Request for unknown model: 'batching' version 7 is not found";
    assert_eq!(grpc.call::<ModelMetadataResponse>("ModelMetadata", &request), Err(not_found(text)));
    server.stop();
}

#[test]
fn versions_that_are_no_numbers() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    for (version, text) in [
        (
            "one",
            "failed to get model version from specified version string 'one' (details: stol), version should be an \
             integral value > 0",
        ),
        (
            "99999999999999999999",
            "failed to get model version from specified version string '99999999999999999999' (details: stol), version \
             should be an integral value > 0",
        ),
        ("-3", "invalid model version specified '-3' , version should be an integral value > 0"),
    ] {
        let expected = Status { code: code::INVALID_ARGUMENT, message: text.to_string() };
        let name = || "plain".to_string();
        let version = || version.to_string();
        let ready =
            grpc.call::<ModelReadyResponse>("ModelReady", &ModelReadyRequest { name: name(), version: version() });
        assert_eq!(ready, Err(expected.clone()));
        let request = ModelInferRequest { model_version: version(), ..numbers("plain", "", &[1]) };
        assert_eq!(grpc.call::<ModelInferResponse>("ModelInfer", &request).map(|_| ()), Err(expected.clone()));
        let config =
            grpc.call::<ModelConfigResponse>("ModelConfig", &ModelConfigRequest { name: name(), version: version() });
        assert_eq!(config.map(|_| ()), Err(expected));
    }
    server.stop();
}

#[test]
fn statistics_and_index() {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository.identity("idle", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(usual(), repository.path(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    for _ in 0..7 {
        grpc.call::<ModelInferResponse>("ModelInfer", &numbers("plain", "", &[1, 2])).expect("an answer");
    }
    let of = |name: &str| ModelStatisticsRequest { name: name.to_string(), version: String::new() };
    let one: ModelStatisticsResponse = grpc.call("ModelStatistics", &of("plain")).expect("statistics");
    assert_eq!(one.model_stats.len(), 1);
    let model = &one.model_stats[0];
    assert_eq!((model.name.as_str(), model.version.as_str()), ("plain", "1"));
    assert_eq!((model.inference_count, model.execution_count), (7, 7));
    let stats = model.inference_stats.unwrap_or_default();
    assert_eq!(stats.success.unwrap_or_default().count, 7);
    assert_eq!(stats.fail.unwrap_or_default().count, 0);
    let all: ModelStatisticsResponse = grpc.call("ModelStatistics", &of("")).expect("statistics");
    let mut names: Vec<_> = all.model_stats.iter().map(|model| model.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["idle", "plain"]);

    let index: RepositoryIndexResponse =
        grpc.call("RepositoryIndex", &RepositoryIndexRequest::default()).expect("an index");
    let mut models: Vec<_> =
        index.models.iter().map(|m| (m.name.as_str(), m.version.as_str(), m.state.as_str())).collect();
    models.sort_unstable();
    assert_eq!(models, [("idle", "1", "READY"), ("plain", "1", "READY")]);
    let named = RepositoryIndexRequest { repository_name: "one".into(), ready: true };
    let text = "'repository_name' specification is not supported".to_string();
    let refused = grpc.call::<RepositoryIndexResponse>("RepositoryIndex", &named);
    assert_eq!(refused, Err(Status { code: code::UNIMPLEMENTED, message: text }));
    server.stop();
}
