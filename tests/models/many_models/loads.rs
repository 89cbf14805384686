//! Which requests load a model, what loads fail with, and what clients undo.

use nereid_wire::inference::{
    ModelConfigRequest, ModelConfigResponse, ModelMetadataRequest, ModelMetadataResponse, ModelStreamInferResponse,
};
use serde_json::json;

use super::*;
use nereid_test_support::grpc::{SERVICE, code, decode};
use nereid_test_support::variant::{ALL, each};

const ENSEMBLE: &str = r#"platform: "ensemble"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "first" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" }
    output_map { key: "OUTPUT0" value: "between" } },
  { model_name: "second" model_version: -1 input_map { key: "INPUT0" value: "between" }
    output_map { key: "OUTPUT0" value: "OUTPUT0" } } ] }
"#;

#[test]
fn every_kind_of_request_loads_its_model() {
    let names =
        ["http", "compressed", "grpc", "streamed", "generated", "metadata", "config", "grpc_meta", "grpc_config"];
    let repository = Repository::new();
    names.into_iter().chain(["first", "second", "untouched"]).for_each(|name| add_identity(&repository, name));
    repository.model("pipeline", ENSEMBLE);
    each(&ALL, |variant| {
        let server = Server::start(variant, repository.path(), &[EXPLICIT, ON_DEMAND, PATIENT]);
        let (mut peer, mut grpc) = (Peer::connect(server.http), Grpc::connect(server.grpc));
        assert_eq!(peer.get("/v2/models/http/ready").status, 400, "it is not loaded, and readiness does not load it");
        assert_eq!(state(&mut peer, "http"), Default::default(), "a name only");
        must_infer(&mut peer, "http", 1);
        assert_eq!(peer.get("/v2/models/http/ready").status, 200);
        // A packed body, with its version in the path.
        let packed = nereid_protocol_gzip(body(2).as_bytes());
        let headers = [("Content-Encoding", "gzip")];
        let answer = peer.post("/v2/models/compressed/versions/1/infer", &headers, &packed);
        assert_eq!((answer.status, &answer.json()["outputs"][0]["data"]), (200, &json!([2])), "{}", answer.text());
        assert_eq!(grpc_infer(&mut grpc, "grpc", 3), Ok(()));
        let answer = peer.post("/v2/models/generated/generate", &[], br#"{"INPUT0": 4}"#);
        assert_eq!((answer.status, &answer.json()["OUTPUT0"]), (200, &json!(4)), "{}", answer.text());
        let answer = peer.get("/v2/models/metadata");
        assert_eq!((answer.status, &answer.json()["versions"]), (200, &json!(["1"])));
        assert_eq!(peer.get("/v2/models/config/config").json()["name"], "config");
        let asked = ModelMetadataRequest { name: "grpc_meta".to_owned(), ..Default::default() };
        let metadata: ModelMetadataResponse = grpc.call("ModelMetadata", &asked).expect("metadata");
        assert_eq!(metadata.name, "grpc_meta");
        let asked = ModelConfigRequest { name: "grpc_config".to_owned(), ..Default::default() };
        let config: ModelConfigResponse = grpc.call("ModelConfig", &asked).expect("a configuration");
        assert_eq!(config.config.map(|config| config.name), Some("grpc_config".to_owned()));
        // Order holds on a stream whose second request waits.
        let mut stream = grpc.open(&format!("{SERVICE}ModelStreamInfer"), &[]);
        for (model, value) in [("http", 1), ("streamed", 2), ("http", 3), ("streamed", 4)] {
            grpc.send(&mut stream, &grpc_request(model, value));
        }
        grpc.half_close(&mut stream);
        let reply = grpc.finish(stream);
        assert_eq!(reply.status.code, code::OK, "{}", reply.status.message);
        let values = reply.messages.iter().map(|message| {
            let response: ModelStreamInferResponse = decode(message);
            assert_eq!(response.error_message, "");
            let contents = response.infer_response.expect("a response").raw_output_contents;
            i32::from_le_bytes(contents[0][..].try_into().expect("four bytes"))
        });
        assert_eq!(values.collect::<Vec<_>>(), [1, 2, 3, 4]);
        // An ensemble comes with its models.
        must_infer(&mut peer, "pipeline", 7);
        for (name, state, _) in index(&mut peer) {
            assert_eq!(state, if name == "untouched" { "" } else { "READY" }, "{name}");
        }
        let loads = names.len() as f64 + 1.0;
        assert_eq!(metric(&server, "nereid_model_loads_on_demand_total"), loads, "parts belong to their ensemble");
        assert_eq!(metric(&server, "nereid_models_resident"), loads + 2.0);
        assert_eq!(metric(&server, "nereid_model_load_waiting"), 0.0);
        assert_eq!(peer.get("/v2/health/ready").status, 200);
        server.stop();
    });
}

fn nereid_protocol_gzip(body: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(body).expect("memory");
    packer.finish().expect("memory")
}

#[test]
fn what_no_repository_has_is_answered_as_without_loads_on_demand() {
    let repository = Repository::new();
    add_identity(&repository, "there");
    let server = start(&repository, &[]);
    let (mut peer, mut grpc) = (Peer::connect(server.http), Grpc::connect(server.grpc));
    for _ in 0..3 {
        let answer = infer(&mut peer, "nowhere", 1);
        let text = "Request for unknown model: 'nowhere' is not found";
        assert_eq!((answer.status, answer.error().as_str()), (404, text));
        let status = grpc_infer(&mut grpc, "nowhere", 1).expect_err("there is none");
        assert_eq!((status.code, status.message.as_str()), (code::NOT_FOUND, text));
        assert_eq!(peer.get("/v2/models/nowhere").status, 404);
    }
    // A version that a loaded model does not have.
    must_infer(&mut peer, "there", 1);
    let answer = peer.post("/v2/models/there/versions/9/infer", &[], body(1).as_bytes());
    assert_eq!(answer.error(), "Request for unknown model: 'there' version 9 is not found");
    assert_eq!(infer(&mut peer, "..%2Fthere", 1).status, 404);
    server.stop();
}

#[test]
fn a_load_that_fails_answers_with_its_reason_and_is_tried_again_when_the_files_change() {
    let repository = Repository::new();
    repository.model("broken", "backend: \"identity\"\nmax_batch_size: -1\n");
    let server = start(&repository, &[]);
    let (mut peer, mut grpc) = (Peer::connect(server.http), Grpc::connect(server.grpc));
    for _ in 0..3 {
        let answer = infer(&mut peer, "broken", 1);
        assert_eq!((answer.status, answer.header("nereid-refused")), (503, Some("model_unavailable")));
        let text = answer.error();
        assert!(text.starts_with("model 'broken' is not available: ") && text.contains("max_batch_size"), "{text}");
        let status = grpc_infer(&mut grpc, "broken", 1).expect_err("it is broken");
        assert_eq!((status.code, status.message), (code::UNAVAILABLE, text));
    }
    server.wait_until("the log says what failed", || {
        ["failed to load 'broken'", "Poll failed"].iter().any(|text| server.log().contains(text))
    });
    add_identity(&repository, "broken");
    server.wait_until("the mended model serves", || infer(&mut peer, "broken", 5).status == 200);
    must_infer(&mut peer, "broken", 6);
    server.stop();
}

#[test]
fn what_a_client_unloads_stays_unloaded_until_a_client_loads_it() {
    let repository = Repository::new();
    ["m", "first", "second"].into_iter().for_each(|name| add_identity(&repository, name));
    repository.model("pipeline", ENSEMBLE);
    let server = start(&repository, &[]);
    let mut peer = Peer::connect(server.http);
    let mut ask = |what: &str, model: &str| {
        let answer = peer.post(&format!("/v2/repository/models/{model}/{what}"), &[], b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    let mut other = Peer::connect(server.http);
    must_infer(&mut other, "m", 1);
    ask("unload", "m");
    server.wait_until("the model is gone", || state(&mut other, "m").0 == "UNAVAILABLE");
    assert_eq!(state(&mut other, "m").1, "unloaded");
    let answer = infer(&mut other, "m", 2);
    let text = "Request for unknown model: 'm' has no available versions";
    assert_eq!((answer.status, answer.error().as_str()), (404, text));
    ask("load", "m");
    must_infer(&mut other, "m", 3);
    // Nor does an ensemble bring a model back.
    ask("unload", "first");
    assert_eq!(infer(&mut other, "pipeline", 4).status, 503);
    ask("load", "pipeline");
    must_infer(&mut other, "pipeline", 5);
    server.stop();
}

#[test]
fn the_mode_none_loads_only_what_is_pinned() {
    let repository = Repository::new();
    ["by_flag", "other"].into_iter().for_each(|name| add_identity(&repository, name));
    let more = "parameters { key: \"nereid.pinned\" value { string_value: \"true\" } }";
    repository.identity_of("identity", "by_config", 0, &[Pair::new("INT32", "-1")], more);
    let server = Server::start(usual(), repository.path(), &[ON_DEMAND, PATIENT, "--model-pin=by_flag"]);
    let mut peer = Peer::connect(server.http);
    let ready = |peer: &mut Peer| {
        let rows = index(peer).into_iter().filter(|(_, state, _)| state == "READY");
        rows.map(|(name, ..)| name).collect::<Vec<_>>()
    };
    assert_eq!(ready(&mut peer), ["by_config", "by_flag"]);
    must_infer(&mut peer, "other", 1);
    assert_eq!(ready(&mut peer), ["by_config", "by_flag", "other"]);
    server.stop();
}

/// Over OpenAI's interface a short request is prepared on the I/O thread, a long one on another; both wait.
#[test]
fn requests_of_openais_clients_load_their_model() {
    let repository = Repository::new();
    models::add(&repository, "openai_mock", "openai_mock");
    let flags = ["--openai-on-http=true", "--model-load-wait-secs=600"];
    for prompt in ["<<reply yes>>".to_owned(), format!("<<reply yes>>{}", " word".repeat(4_000))] {
        let Some(server) = start_python(&repository, &flags) else { return };
        let mut peer = Peer::connect(server.http);
        let mut complete = |model: &str| {
            let body = json!({"model": model, "prompt": prompt}).to_string();
            peer.post("/v1/completions", &[("Content-Type", "application/json")], body.as_bytes())
        };
        let answer = complete("openai_mock");
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["choices"][0]["text"], "yes");
        let unknown = complete("nowhere").status;
        assert!(matches!(unknown, 400 | 404), "as without loads on demand: {unknown}");
        let mut other = Peer::connect(server.http);
        assert_eq!(other.post("/v2/repository/models/openai_mock/unload", &[], b"").status, 200);
        server.wait_until("it is gone", || state(&mut other, "openai_mock").1 == "unloaded");
        assert_eq!(complete("openai_mock").status, unknown, "a client has unloaded it");
        server.stop();
    }
}

/// What a Python model calls is loaded for the call.
#[test]
fn a_model_that_calls_another_one_has_it_loaded() {
    let repository = Repository::new();
    add_identity(&repository, "callee");
    add_python(&repository, "caller", "");
    let program = "import triton_python_backend_utils as pb_utils\n\n\nclass TritonPythonModel:\n    \
         def execute(self, requests):\n        responses = []\n        for request in requests:\n            \
         data = pb_utils.get_input_tensor_by_name(request, 'INPUT0')\n            \
         call = pb_utils.InferenceRequest(model_name='callee', requested_output_names=['OUTPUT0'], inputs=[data])\n\
         \u{20}           answer = call.exec()\n            if answer.has_error():\n                \
         raise pb_utils.TritonModelException(answer.error().message())\n            \
         output = pb_utils.get_output_tensor_by_name(answer, 'OUTPUT0')\n            \
         responses.append(pb_utils.InferenceResponse([output]))\n        return responses\n";
    repository.file("caller/1/model.py", program);
    let Some(server) = start_python(&repository, &["--model-load-wait-secs=600"]) else { return };
    let mut peer = Peer::connect(server.http);
    must_infer(&mut peer, "caller", 7);
    assert_eq!(state(&mut peer, "callee").0, "READY");
    server.stop();
}
