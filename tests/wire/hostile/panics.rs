//! Panics on a shard end the call that caused them, are counted and logged, and when there are many the server is not
//! live. Servers of tests panic where a request's id orders it (`nereid_observe::panics::fault_point`).

use nereid_observe::panics::PANICS_MAX;
use nereid_wire::inference::{ModelStreamInferResponse, ServerLiveRequest, ServerLiveResponse};

use super::*;

/// A request to `plain`, JSON alone, with numbers so many that their reading takes turns or only one.
fn infer(id: &str, count: usize) -> String {
    let numbers = vec!["1"; count].join(",");
    format!(
        r#"{{"id":"{id}","inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[{count}],"data":[{numbers}]}}],"outputs":[{{"name":"OUTPUT0"}}]}}"#
    )
}

fn panics(server: &Server) -> u64 {
    let page = Peer::connect(server.metrics).get("/metrics").text();
    let line =
        page.lines().find(|line| line.starts_with(r#"nereid_panics_total{thread="shard"}"#)).expect("the metric");
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_panic_over_a_request_ends_that_request_alone() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant);
        // The second request's JSON is read in steps, so that it is submitted in a later turn than it came in.
        let mut other = Peer::connect(server.http);
        let points = [("submit", 2), ("submit", 100_000), ("deliver", 2), ("answer", 2)];
        for (n, (point, count)) in points.into_iter().enumerate() {
            let mut peer = Peer::connect(server.http);
            let answer = peer.post("/v2/models/plain/infer", &[], infer(&format!("panic:{point}"), count).as_bytes());
            assert_eq!(answer.status, 500, "{point} {count}: {}", answer.text());
            assert!(answer.error().contains("an internal error ended this request"), "{}", answer.text());
            // The connection goes on, and so do others.
            for peer in [&mut peer, &mut other] {
                let answer = peer.post("/v2/models/plain/infer", &[], infer("calm", 2).as_bytes());
                assert_eq!(answer.status, 200, "{point} {count}: {}", answer.text());
            }
            assert_eq!(panics(&server), n as u64 + 1);
        }
        let mut grpc = Grpc::connect(server.grpc);
        let to = |model: &str, id: String| ModelInferRequest { model_name: model.to_owned(), id, ..message(3) };
        let ordered = |model: &str, point: &str| to(model, format!("panic:{point}"));
        for point in ["deliver", "answer"] {
            let status = grpc.call::<ModelInferResponse>("ModelInfer", &ordered("plain", point)).expect_err("an error");
            assert_eq!(
                (status.code, status.message.contains("an internal error")),
                (code::INTERNAL, true),
                "{status:?}"
            );
        }
        for (model, point) in [("plain", "submit"), ("plain", "answer"), ("decoupled", "answer")] {
            // On a stream the answers before it come; it ends with the error.
            let mut stream = grpc.open(&format!("{SERVICE}ModelStreamInfer"), &[]);
            grpc.send(&mut stream, &to(model, "calm".to_owned()));
            let first: ModelStreamInferResponse = nereid_test_support::grpc::decode(&grpc.next(&mut stream).unwrap());
            assert_eq!(first.error_message, "");
            grpc.send(&mut stream, &ordered(model, point));
            let reply = grpc.finish(stream);
            assert_eq!(reply.status.code, code::INTERNAL, "{model} {point}: {:?}", reply.status);
            assert!(grpc.call::<ModelInferResponse>("ModelInfer", &message(3)).is_ok());
        }
        assert_eq!(panics(&server), 9);
        assert_eq!(Peer::connect(server.http).get("/v2/health/live").status, 200);
        server.wait_for_log("panicked at");
        server.wait_for_log("stack backtrace:");
        assert_healthy(&server);
        // It ends in time: no request counts as in flight.
        server.terminate();
        let (status, log) = server.wait();
        assert!(status.success() && log.contains("thread shard-"), "{status} {log}");
    });
}

#[test]
fn a_server_that_panics_again_and_again_is_not_live() {
    each(&[usual()], |variant| {
        let (_repository, server) = start(variant);
        let panic = || {
            let body = infer("panic:submit", 2);
            assert_eq!(Peer::connect(server.http).post("/v2/models/plain/infer", &[], body.as_bytes()).status, 500);
        };
        let is_live = || Peer::connect(server.http).get("/v2/health/live").status == 200;
        for n in 0..PANICS_MAX {
            assert!(is_live(), "after {n}");
            panic();
        }
        // So many within a minute: a slow machine may need more for that.
        server.wait_until("it is not live", || {
            let is_over = !is_live();
            if !is_over {
                panic();
            }
            is_over
        });
        assert_eq!(Peer::connect(server.http).get("/v2/health/live").status, 400);
        assert_eq!(Peer::connect(server.http).get("/v2/health/ready").status, 400);
        let mut grpc = Grpc::connect(server.grpc);
        let answer: ServerLiveResponse = grpc.call("ServerLive", &ServerLiveRequest {}).expect("an answer");
        assert!(!answer.live);
        server.wait_for_log("the server is not live");
    });
}

/// The bookkeeping of the worker is lost, and the model is not ready; others of its instances, and other models, serve.
#[test]
fn a_panic_of_a_scheduler_makes_the_model_not_ready() {
    each(&variant::ALL, |variant| {
        for instances in [1, 2] {
            let repository = Repository::new();
            let second = if instances == 2 { "instance_group [ { kind: KIND_CPU count: 1 } ]" } else { "" };
            repository.identity_of("identity", "broken", 0, &[Pair::new("INT32", "-1")], second);
            repository.identity("plain", 0, &[Pair::new("INT32", "-1"), Pair::new("BYTES", "-1").optional()]);
            let flags = ["--run-to-completion=off", "--model-control-mode=explicit", "--load-model=*"];
            let server = Server::start(variant, repository.path(), &flags);
            let mut peer = Peer::connect(server.http);
            let mut send = |id: &str| peer.post("/v2/models/broken/infer", &[], infer(id, 2).as_bytes());
            assert_eq!(send("calm").status, 200);
            let answer = send("panic:schedule");
            assert_eq!(answer.status, 500, "{}", answer.text());
            let get = |path: &str| Peer::connect(server.http).get(path).status;
            server.wait_until("the model is not ready", || get("/v2/models/broken/ready") == 400);
            assert_eq!(
                [get("/v2/health/ready"), get("/v2/health/live"), get("/v2/models/plain/ready")],
                [400, 200, 200]
            );
            server.wait_for_log("has ended because the scheduler panicked; load the model again");
            let page = Peer::connect(server.metrics).get("/metrics").text();
            assert!(page.contains("nereid_panics_total{thread=\"instance\"} 1\n"), "{page}");
            // Those that come now are answered: by the instances that are left, or with a refusal.
            for _ in 0..3 {
                let answer = send("calm");
                match instances {
                    1 => assert_eq!((answer.status, answer.header("nereid-refused")), (503, Some("model_unavailable"))),
                    _ => assert_eq!(answer.status, 200, "{}", answer.text()),
                }
            }
            for action in ["unload", "load"] {
                let path = format!("/v2/repository/models/broken/{action}");
                let answer = Peer::connect(server.http).post(&path, &[], b"{}");
                assert_eq!(answer.status, 200, "{action}: {}", answer.text());
            }
            assert_eq!(send("calm").status, 200);
            assert_eq!(get("/v2/models/broken/ready"), 200);
            server.terminate();
            let (status, log) = server.wait();
            assert!(status.success(), "{status} {log}");
        }
    });
}
