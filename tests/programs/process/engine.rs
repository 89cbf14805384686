//! Which engine runs if the kernel, a container or an operator refuses io_uring or a part of it, and that epoll then
//! serves the same.

use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{ModelInferRequest, ModelInferResponse};
use serde_json::json;

use nereid_test_support::confine::{locking_at_most, refusing};
use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{OTHER_SERVER, Server, free_port, run_to_end_under};
use nereid_test_support::skip::skip;
use nereid_test_support::variant::{Variant, io_uring_works};

const AUTO: Variant = Variant { io_engine: "auto", io_cores: "2" };

/// The confinements, and what the log must say about each.
fn refusals() -> Vec<(Vec<String>, &'static str)> {
    let cases = [
        (refusing("EPERM", "io_uring_setup"), "io_uring_setup is forbidden to this process, by a seccomp filter or"),
        (
            refusing("EPERM", "io_uring_setup,io_uring_enter,io_uring_register"),
            "io_uring_setup is forbidden to this process, by a seccomp filter or by kernel.io_uring_disabled",
        ),
        (refusing("ENOSYS", "io_uring_setup"), "io_uring_setup answers ENOSYS: the kernel has no io_uring, or a"),
        (refusing("EPERM", "io_uring_register"), "io_uring_register is forbidden to this process"),
        (refusing("EPERM", "io_uring_enter"), "io_uring_enter is forbidden to this process"),
        (refusing("ENOSYS", "io_uring_enter"), "io_uring_enter answers ENOSYS"),
        (locking_at_most(65536), "only 65536 bytes of memory may be locked (ulimit -l), 524288 are needed"),
        (locking_at_most(0), "only 0 bytes of memory may be locked (ulimit -l), 524288 are needed"),
    ];
    cases.into_iter().filter_map(|(words, text)| Some((words?, text))).collect()
}

/// Whether there is something here that could be refused.
fn can_be_refused() -> bool {
    if std::env::var_os(OTHER_SERVER).is_some() {
        return false;
    }
    if !io_uring_works() {
        skip("this host refuses io_uring by itself");
    }
    io_uring_works()
}

fn infer_over_both(server: &Server) {
    let body = br#"{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[3],"data":[1,2,3]}]}"#;
    let answer = Peer::connect(server.http).post("/v2/models/plain/infer", &[], body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["outputs"][0]["data"], json!([1, 2, 3]));
    // More than a chunk both ways, so that the engine receives into the tensor and continues partial sends.
    let tensor: Vec<u8> = (0..1 << 20).map(|byte| (byte % 251) as u8).collect();
    let request = ModelInferRequest {
        model_name: "plain".into(),
        inputs: vec![InferInputTensor {
            name: "INPUT0".into(),
            datatype: "INT32".into(),
            shape: vec![1 << 18],
            ..Default::default()
        }],
        raw_input_contents: vec![tensor.clone().into()],
        ..Default::default()
    };
    let answer: ModelInferResponse = Grpc::connect(server.grpc).call("ModelInfer", &request).expect("an answer");
    assert!(answer.raw_output_contents[0] == tensor, "another tensor came back");
}

#[test]
fn epoll_serves_where_io_uring_is_refused() {
    if !can_be_refused() {
        return;
    }
    for (confined, text) in refusals() {
        println!("--- {confined:?}");
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        let server = Server::start_under(&confined, AUTO, repository.path(), &[], "/v2/health/ready");
        infer_over_both(&server);
        let log = server.stop();
        assert!(log.contains("using the epoll engine") && log.contains(text), "expected {text:?} in:\n{log}");
    }
}

#[test]
fn io_uring_demanded_and_refused_ends_the_start() {
    if !can_be_refused() {
        return;
    }
    for (confined, text) in refusals() {
        println!("--- {confined:?}");
        let repository = Repository::new();
        repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
        let ports = ["http", "grpc", "metrics"].map(|name| format!("--{name}-port={}", free_port()));
        let store = format!("--model-repository={}", repository.path().display());
        let mut flags = vec!["--io-engine=io_uring", &store, "--http-address=127.0.0.1", "--grpc-address=127.0.0.1"];
        flags.extend(ports.iter().map(String::as_str));
        let (status, out, err) = run_to_end_under(&confined, &flags);
        assert_eq!(status.code(), Some(1), "{out}{err}");
        let problems: Vec<&str> = err.lines().filter(|line| line.contains("--io-engine=io_uring: ")).collect();
        let [problem] = problems[..] else { panic!("it is not said once:\n{err}") };
        assert!(problem.contains(text), "expected {text:?} in:\n{err}");
        assert!(!err.contains("panicked at"), "{err}");
    }
}

#[test]
fn nothing_refused_means_io_uring() {
    if !can_be_refused() {
        return;
    }
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(AUTO, repository.path(), &[]);
    infer_over_both(&server);
    let log = server.stop();
    assert!(log.contains("using the io_uring engine"), "{log}");
}
