//! "Not ready" is not an error (contract/grpc.md section 3): the responses for failed models, and of a server with one.

use nereid_wire::health::{HealthCheckRequest, HealthCheckResponse};
use nereid_wire::inference::*;

use super::message::numbers;
use nereid_test_support::backend;
use nereid_test_support::grpc::{Grpc, Status, code, decode, frame};
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

#[test]
fn a_model_that_failed_makes_the_server_not_ready() {
    let Some(directory) = backend::directory() else { return };
    let repository = Repository::new();
    let pairs = [Pair::new("INT32", "-1")];
    let fails = "parameters { key: \"fail_load\" value { string_value: \"as told\" } }";
    repository.identity_of("copycat", "broken", 0, &pairs, fails);
    repository.identity_of("copycat", "plain", 0, &pairs, "");
    let backends = format!("--backend-directory={}", directory.display());
    for (strictness, is_ready) in [("--strict-readiness=true", false), ("--strict-readiness=false", true)] {
        let flags = [backends.as_str(), "--exit-on-error=false", strictness];
        let server = Server::start_with(usual(), repository.path(), &flags, "/v2/health/live");
        let mut grpc = Grpc::connect(server.grpc);
        assert_eq!(grpc.call("ServerLive", &ServerLiveRequest {}), Ok(ServerLiveResponse { live: true }));
        let ready = grpc.call("ServerReady", &ServerReadyRequest {});
        assert_eq!(ready, Ok(ServerReadyResponse { ready: is_ready }), "{strictness}");
        let reply = grpc.exchange("/grpc.health.v1.Health/Check", &[], &[frame(&HealthCheckRequest::default())]);
        assert_eq!(reply.status.code, code::OK);
        let serving = if is_ready { 1 } else { 2 };
        assert_eq!(decode::<HealthCheckResponse>(&reply.messages[0]).status, serving, "{strictness}");

        let mut of = |name: &str, version: &str| {
            let request = ModelReadyRequest { name: name.into(), version: version.into() };
            grpc.call::<ModelReadyResponse>("ModelReady", &request)
        };
        assert_eq!(of("plain", ""), Ok(ModelReadyResponse { ready: true }));
        assert_eq!(of("plain", "1"), Ok(ModelReadyResponse { ready: true }));
        // What failed and what is unknown, a model or a version of one, is not ready and no error.
        for (name, version) in [("broken", "1"), ("broken", ""), ("broken", "2"), ("absent", ""), ("absent", "1")] {
            assert_eq!(of(name, version), Ok(ModelReadyResponse { ready: false }), "{name} {version}");
        }
        let no_number = of("plain", "x").expect_err("a version that is no number");
        assert_eq!(no_number.code, code::INVALID_ARGUMENT);

        let unavailable = "Request for unknown model: 'broken' version 1 is not at ready state";
        let request = ModelInferRequest { model_version: "1".into(), ..numbers("broken", "", &[1]) };
        let refused = grpc.call::<ModelInferResponse>("ModelInfer", &request);
        assert_eq!(refused, Err(Status { code: code::UNAVAILABLE, message: unavailable.to_string() }));

        // The same over HTTP, where it is an error.
        let mut peer = Peer::connect(server.http);
        let answer = peer.get("/v2/health/ready");
        assert_eq!((answer.status, answer.text()), (if is_ready { 200 } else { 400 }, String::new()), "{strictness}");
        assert_eq!((peer.get("/v2/health/live").status, peer.get("/v2/models/plain/ready").status), (200, 200));
        for path in ["broken/versions/1", "broken", "broken/versions/2", "absent", "absent/versions/1"] {
            let answer = peer.get(&format!("/v2/models/{path}/ready"));
            assert_eq!((answer.status, answer.error().as_str()), (400, "Model version not ready"), "{path}");
        }
        server.stop();
    }
}
