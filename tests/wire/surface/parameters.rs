//! Parameters of requests as a backend receives them (contract/http.md section 5, contract/grpc.md section 4).

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{InferParameter, ModelInferRequest, ModelInferResponse};
use serde_json::json;

use nereid_test_support::backend;
use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::usual;

/// A server of the model `asked` on tests/backends/asked.c. None, after a visible skip, without a C compiler.
fn start() -> Option<(Repository, Server)> {
    let directory = backend::compiled("asked.c")?;
    let repository = Repository::new();
    repository.identity_of("asked", "asked", 0, &[Pair::new("UINT8", "-1")], "");
    let directory = format!("--backend-directory={}", directory.display());
    let server = Server::start(usual(), repository.path(), &[&directory]);
    Some((repository, server))
}

#[test]
fn parameters_over_http() {
    let Some((_repository, server)) = start() else { return };
    let mut peer = Peer::connect(server.http);
    for (parameters, seen) in [
        ("{}", "id=0 timeout=0"),
        // The largest numbers, and the first ones beyond them: those are doubles.
        (r#"{"a":9223372036854775807}"#, "id=0 timeout=0 a:1=9223372036854775807"),
        (r#"{"a":9223372036854775808}"#, "id=0 timeout=0 a:3=9.2233720368547758e+18"),
        (r#"{"a":18446744073709551615}"#, "id=0 timeout=0 a:3=1.8446744073709552e+19"),
        (r#"{"a":-9223372036854775808}"#, "id=0 timeout=0 a:1=-9223372036854775808"),
        (r#"{"b":true,"d":0.5,"s":"x"}"#, "id=0 timeout=0 b:2=1 d:3=0.5 s:0='x'"),
        (
            r#"{"sequence_id":18446744073709551615,"timeout":18446744073709551615}"#,
            "id=18446744073709551615 timeout=18446744073709551615",
        ),
        (r#"{"sequence_id":"seven"}"#, "id='seven' timeout=0"),
    ] {
        let body = format!(
            r#"{{"parameters":{parameters},"inputs":[{{"name":"INPUT0","datatype":"UINT8","shape":[1],"data":[1]}}]}}"#
        );
        let answer = peer.post("/v2/models/asked/infer", &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{parameters}: {}", answer.text());
        assert_eq!(answer.split().0["parameters"], json!({ "seen": seen }), "{parameters}");
    }
    server.stop();
}

fn ask(grpc: &mut Grpc, parameters: &[(&str, ParameterChoice)]) -> String {
    let input = InferInputTensor {
        name: "INPUT0".to_owned(),
        datatype: "UINT8".to_owned(),
        shape: vec![1],
        ..InferInputTensor::default()
    };
    let parameter = |(name, choice): &(&str, ParameterChoice)| {
        ((*name).to_owned(), InferParameter { parameter_choice: Some(choice.clone()) })
    };
    let request = ModelInferRequest {
        model_name: "asked".to_owned(),
        parameters: parameters.iter().map(parameter).collect(),
        inputs: vec![input],
        raw_input_contents: vec![Bytes::from_static(b"x")],
        ..ModelInferRequest::default()
    };
    let answer: ModelInferResponse = grpc.call("ModelInfer", &request).expect("an answer");
    match answer.parameters.get("seen").and_then(|seen| seen.parameter_choice.clone()) {
        Some(ParameterChoice::StringParam(seen)) => seen,
        other => panic!("{other:?}"),
    }
}

#[test]
fn parameters_over_grpc() {
    use ParameterChoice::{BoolParam, DoubleParam, Int64Param, StringParam};
    let Some((_repository, server)) = start() else { return };
    let mut grpc = Grpc::connect(server.grpc);
    assert_eq!(ask(&mut grpc, &[]), "id=0 timeout=0");
    // Negative ones are stored as their unsigned images.
    let negative = [("sequence_id", Int64Param(-1)), ("timeout", Int64Param(i64::MIN))];
    assert_eq!(ask(&mut grpc, &negative), "id=18446744073709551615 timeout=9223372036854775808");
    assert_eq!(ask(&mut grpc, &[("sequence_id", StringParam("seven".to_owned()))]), "id='seven' timeout=0");
    for (choice, seen) in [
        (Int64Param(i64::MIN), "a:1=-9223372036854775808"),
        (BoolParam(true), "a:2=1"),
        (DoubleParam(0.5), "a:3=0.5"),
        (StringParam("x".to_owned()), "a:0='x'"),
    ] {
        assert_eq!(ask(&mut grpc, &[("a", choice)]), format!("id=0 timeout=0 {seen}"));
    }
    server.stop();
}
