//! `TRITONBACKEND_ModelInstanceReady`: every instance is asked, away from the shards, and has a say in what the server
//! answers (contract/schedulers.md section 10, "Readiness"; tests/backends/ready.c says what it is told).

use nereid_wire::health::{HealthCheckRequest, HealthCheckResponse};
use nereid_wire::inference::{ModelReadyRequest, ModelReadyResponse, ServerReadyRequest, ServerReadyResponse};

use crate::native::program::Program;
use nereid_test_support::backend;
use nereid_test_support::grpc::{Grpc, code, decode, frame};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

/// `asked` with two instances and a passive one, and `quiet` without a say.
fn repository() -> Repository {
    let repository = Repository::new();
    let asked = r#"name: "asked" backend: "ready"
        input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
        output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
        instance_group [ { kind: KIND_CPU count: 2 }, { kind: KIND_CPU passive: true } ]"#;
    repository.model("asked", asked);
    repository.identity("quiet", 0, &[Pair::new("INT32", "-1")]);
    repository
}

/// What HTTP and gRPC say of the server and of the model.
fn said(server: &Server) -> [(u16, bool); 2] {
    let (mut peer, mut grpc) = (Peer::connect(server.http), Grpc::connect(server.grpc));
    let ready = grpc.call::<ServerReadyResponse>("ServerReady", &ServerReadyRequest {}).expect("an answer").ready;
    let check = grpc.exchange("/grpc.health.v1.Health/Check", &[], &[frame(&HealthCheckRequest::default())]);
    assert_eq!(check.status.code, code::OK);
    let serving = decode::<HealthCheckResponse>(&check.messages[0]).status == 1;
    assert_eq!(serving, ready, "one question by two names");
    let asked = ModelReadyRequest { name: "asked".into(), version: String::new() };
    let model = grpc.call::<ModelReadyResponse>("ModelReady", &asked).expect("an answer").ready;
    let answer = peer.get("/v2/models/asked/ready");
    if answer.status != 200 {
        assert_eq!(answer.error(), "Model version not ready");
    }
    assert_eq!(peer.get("/v2/models/asked/versions/1/ready").status, answer.status);
    assert_eq!(peer.get("/v2/models/quiet/ready").status, 200, "another model");
    [(peer.get("/v2/health/ready").status, ready), (answer.status, model)]
}

#[test]
fn every_instance_has_a_say() {
    let Some(directory) = backend::compiled("ready.c") else { return };
    each(&variant::ALL, |variant| {
        let repository = repository();
        let flag = format!("--backend-directory={}", directory.display());
        let server = Server::start(variant, repository.path(), &[&flag, "--log-verbose=1"]);
        let (yes, no) = ((200, true), (400, false));
        assert_eq!(said(&server), [yes, yes]);
        for name in ["asked_0_0 passive 0", "asked_0_1 passive 0", "asked_1_0 passive 1"] {
            server.wait_for_log(&format!("ready.c: asked {name}."));
        }
        repository.file("asked/ready", "no");
        assert_eq!(said(&server), [no, no]);
        server.wait_for_log(
            "Model 'asked' version 1 is in READY lifecycle state but failed runtime readiness check during server \
             readiness evaluation: ",
        );
        repository.file("asked/ready", "yes");
        assert_eq!(said(&server), [yes, yes]);
        // What is no question of instances is answered as ever.
        let mut peer = Peer::connect(server.http);
        assert_eq!(peer.get("/v2/models/asked/versions/7/ready").status, 400);
        assert_eq!(peer.get("/v2/models/none/ready").status, 400);
        let log = server.stop();
        let ended = log.find("ready.c: ended").expect("instances end");
        assert!(!log[ended..].contains("ready.c: asked"), "nobody is asked about an instance that has ended:\n{log}");
    });
}

#[test]
fn without_strict_readiness_only_the_model_is_not_ready() {
    let Some(directory) = backend::compiled("ready.c") else { return };
    let repository = repository();
    repository.file("asked/ready", "no");
    let flag = format!("--backend-directory={}", directory.display());
    let server = Server::start(usual(), repository.path(), &[&flag, "--strict-readiness=false"]);
    assert_eq!(said(&server), [(200, true), (400, false)]);
    server.stop();
}

#[test]
fn an_instance_that_takes_its_time_holds_up_nobody_else() {
    let Some(directory) = backend::compiled("ready.c") else { return };
    each(&variant::ALL, |variant| {
        let repository = repository();
        let flag = format!("--backend-directory={}", directory.display());
        let server = Server::start(variant, repository.path(), &[&flag]);
        repository.file("asked/ready", "hang");
        let ask = |path: &str| {
            let mut peer = Peer::connect(server.http);
            peer.send(&request("GET", path, &[], b""));
            peer
        };
        let before = server.log().matches("ready.c: asked").count();
        let mut waiting: Vec<Peer> = ["/v2/models/asked/ready", "/v2/health/ready"].map(ask).into();
        server.wait_until("an instance is asked", || server.log().matches("ready.c: asked").count() > before);
        waiting.extend(["/v2/models/asked/ready", "/v2/health/ready"].map(ask));
        // The same shards, the metrics page, other models, and requests to the very instances.
        let mut peer = Peer::connect(server.http);
        assert_eq!(peer.get("/v2/health/live").status, 200);
        assert_eq!(peer.get("/v2/models/quiet/ready").status, 200);
        assert_eq!(Peer::connect(server.metrics).get("/metrics").status, 200);
        let body = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}"#;
        assert_eq!(peer.post("/v2/models/quiet/infer", &[], body).status, 200);
        let answer = peer.post("/v2/models/asked/infer", &[], body);
        assert_eq!((answer.status, answer.error().as_str()), (503, "ready.c: executes nothing"));
        // One that waits may leave.
        drop(waiting.pop());
        repository.file("asked/ready", "yes");
        for mut peer in waiting {
            assert_eq!(peer.answer().status, 200);
        }
        server.stop();
    });
}

#[test]
fn an_application_is_told_the_same() {
    let Some(directory) = backend::compiled("ready.c") else { return };
    let Some(program) = Program::compiled("readiness.c") else { return };
    let repository = repository();
    let told = program.run(&[repository.path(), &directory]);
    assert!(told.contains("ready.c: asked asked_1_0 passive 1."), "{told}");
}
