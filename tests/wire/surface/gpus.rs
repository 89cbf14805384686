//! Models on GPUs as clients and scrapers see them, on simulated devices (contract/model_config.md section 5,
//! contract/metrics.md section 1, contract/schedulers.md section 10).

use nereid_wire::inference::{
    ModelReadyRequest, ModelReadyResponse, ServerLiveRequest, ServerLiveResponse, ServerReadyRequest,
    ServerReadyResponse,
};
use serde_json::{Value, json};

use super::metrics::{Page, ask, body, one, wait_for};
use nereid_test_support::grpc::Grpc;
use nereid_test_support::http::Peer;
use nereid_test_support::repository::Repository;
use nereid_test_support::server::{Server, binary, run_to_end_under};
use nereid_test_support::variant::usual;

const READY: &str = "/v2/health/ready";
const LIVE: &str = "/v2/health/live";

/// Pairs of tensors on a backend, in these groups.
fn model(repository: &Repository, backend: &str, name: &str, groups: &str) {
    let datatype = if backend == "affine" { "TYPE_FP32" } else { "TYPE_INT32" };
    let side =
        |side: &str, tensor: &str| format!("{side} {{ name: \"{tensor}\" data_type: {datatype} dims: [ -1 ] }}\n");
    let tensors = side("input", "INPUT0") + &side("output", "OUTPUT0");
    repository.model(name, &format!("name: \"{name}\"\nbackend: \"{backend}\"\nmax_batch_size: 8\n{tensors}{groups}"));
}

fn on(gpus: &str) -> String {
    format!("instance_group {{ kind: KIND_GPU gpus: [ {gpus} ] }}")
}

fn started(repository: &Repository, devices: &str, flags: &[&str], probe: &str) -> Server {
    let environment = [("NEREID_SIMULATED_GPUS", devices)];
    Server::start_in(usual(), repository.path(), flags, probe, &environment)
}

fn groups(server: &Server, model: &str) -> Value {
    let config = Peer::connect(server.http).get(&format!("/v2/models/{model}/config")).json();
    let groups = config["instance_group"].as_array().expect("groups").iter();
    groups.map(|group| json!([group["name"], group["kind"], group["count"], group["gpus"]])).collect()
}

/// State and reason of the one version of each model.
fn index(server: &Server) -> Vec<(String, String, String)> {
    let rows = Peer::connect(server.http).post("/v2/repository/index", &[], b"{}").json();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let rows = rows.as_array().expect("rows").iter();
    rows.map(|row| (text(row, "name"), text(row, "state"), text(row, "reason"))).collect()
}

/// The status and what is wrong.
fn infer(server: &Server, model: &str, numbers: &[f32]) -> (u16, String) {
    let input = json!({"name": "INPUT0", "datatype": "FP32", "shape": [1, numbers.len()], "data": numbers});
    let body = json!({ "inputs": [input] }).to_string();
    let answer = Peer::connect(server.http).post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes());
    (answer.status, if answer.status == 200 { String::new() } else { answer.error() })
}

fn status(server: &Server, path: &str) -> u16 {
    Peer::connect(server.http).get(path).status
}

#[test]
fn models_go_to_the_devices_and_count_there() {
    let repository = Repository::new();
    model(&repository, "identity", "anywhere", "");
    model(&repository, "identity", "second", "instance_group { name: \"g\" kind: KIND_GPU count: 2 gpus: [ 1 ] }");
    model(&repository, "identity", "mixed", "instance_group [ { gpus: [ 0 ] }, { kind: KIND_CPU } ]");
    repository.identity("host", 8, &one());
    let flags = ["--min-supported-compute-capability=7.5", "--cuda-memory-pool-byte-size=1:1048576"];
    let server = started(&repository, "2;memory=1073741824", &flags, READY);
    for (name, expected) in [
        ("anywhere", json!([["anywhere", "KIND_GPU", 1, [0, 1]]])),
        ("second", json!([["g", "KIND_GPU", 2, [1]]])),
        ("mixed", json!([["mixed_0", "KIND_GPU", 1, [0]], ["mixed_1", "KIND_CPU", 1, []]])),
        ("host", json!([["host_0", "KIND_CPU", 1, []]])),
    ] {
        assert_eq!(groups(&server, name), expected);
    }
    for model in ["anywhere", "second", "mixed", "host"] {
        for _ in 0..5 {
            assert_eq!(ask(&server, model, &body("[1,2]", &[1, 2], "")), 200, "{model}");
        }
    }
    // A failure of the backend belongs to where it happened; what never ran belongs to the model.
    let page = Page::of(server.metrics);
    let uuids = page.labels("nv_inference_request_success", "gpu_uuid", &[("model", "anywhere")]);
    assert_eq!(uuids.len(), 2, "{uuids:?}");
    let counts = |model: &str| {
        let mut counts = Vec::new();
        for name in ["nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count"] {
            let without = page.without(name, "gpu_uuid", &[("model", model)]);
            let on = |uuid: &String| page.all(name, &[("model", model), ("gpu_uuid", uuid)]).concat();
            counts.push((without.concat(), uuids.iter().map(on).collect::<Vec<_>>()));
        }
        counts
    };
    let alone = |without: &str, first: &str, second: &str| {
        vec![(without.to_owned(), vec![first.to_owned(), second.to_owned()]); 3]
    };
    assert_eq!(counts("second"), alone("0", "", "5"));
    assert_eq!(counts("host"), alone("5", "", ""));
    for model in ["anywhere", "mixed"] {
        let sum = |(without, on): &(String, Vec<String>)| {
            without.parse::<u64>().unwrap() + on.iter().filter_map(|count| count.parse::<u64>().ok()).sum::<u64>()
        };
        assert!(counts(model).iter().all(|counts| sum(counts) == 5), "{model}: {:?}", counts(model));
    }
    assert!(counts("anywhere").iter().all(|(without, _)| without == "0"));
    for name in ["nv_inference_pending_request_count", "nv_inference_request_failure"] {
        let on_device = page.labels(name, "gpu_uuid", &[("model", "second")]);
        assert!(!on_device.is_empty() && on_device.iter().all(|uuid| *uuid == uuids[1]), "{name}");
    }
    let stats = Peer::connect(server.http).get("/v2/models/second/stats").json();
    assert_eq!(stats["model_stats"][0]["inference_count"], 5, "the sum");
    assert_eq!(stats["model_stats"][0]["batch_stats"][0]["compute_infer"]["count"], 5);
    // The devices themselves, and the pool of pinned memory.
    let page = wait_for(&server, "the devices are read", |page| {
        page.all("nv_gpu_memory_total_bytes", &[]) == ["1073741824", "1073741824"]
            && page.all("nv_pinned_memory_pool_total_bytes", &[]) == ["268435456"]
    });
    assert_eq!(page.labels("nv_gpu_memory_used_bytes", "gpu_uuid", &[]), uuids);
    assert_eq!(page.all("nv_gpu_utilization", &[]), ["0", "0"]);
    let log = server.stop();
    for line in ["cuda_memory_pool_byte_size{0}    | 67108864", "cuda_memory_pool_byte_size{1}    | 1048576"] {
        let bare = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(log.lines().any(|found| bare(found).contains(&bare(line))), "{line} in\n{log}");
    }
    let pinned = log.lines().find(|line| line.contains("Pinned memory pool is created at '0x")).unwrap_or_default();
    assert!(pinned.ends_with("' with size 268435456\""), "{pinned:?} in\n{log}");
    assert!(log.contains("GPU 1: ") && !log.contains("has no effect"), "{log}");
}

#[test]
fn what_no_device_can_have_is_refused() {
    let repository = Repository::new();
    model(&repository, "affine", "missing", &on("0, 7"));
    model(&repository, "affine", "any", "instance_group { kind: KIND_GPU }");
    model(&repository, "affine", "free", "instance_group { kind: KIND_AUTO }");
    let asks = "rate_limiter { resources { name: \"R\" count: 2 } }";
    model(&repository, "affine", "greedy", &format!("instance_group {{ kind: KIND_GPU {asks} }}"));
    let unsupported = |name: &str, why: &str| format!("instance group {name}_0 of model {name} {why}");
    let missing = unsupported(
        "missing",
        "specifies invalid or unsupported gpu id 7. GPUs with at least the minimum required CUDA compute compatibility \
         of 7.000000 are: 0, 1",
    );
    let greedy = "Resource count for \"R\" is limited to 1 which will prevent scheduling of one or more model \
                  instances, the minimum required count is 2";
    let ready = || (String::new(), "KIND_GPU");
    let none = |name: &str| (unsupported(name, "has kind KIND_GPU but no GPUs are available"), "");
    let no_driver = |name: &str| (unsupported(name, "has kind KIND_GPU but server does not support GPUs"), "");
    let flags = ["--exit-on-error=false", "--strict-readiness=false", "--rate-limit=execution_count"];
    let limits = ["--rate-limit-resource=R:2:0", "--rate-limit-resource=R:1:1"];
    let on_cpu = || (String::new(), "KIND_CPU");
    for (capability, variable, expected) in [
        ("7", ("NEREID_SIMULATED_GPUS", "2"), [(missing, ""), ready(), ready(), (greedy.to_owned(), "")]),
        ("9.5", ("NEREID_SIMULATED_GPUS", "2"), [none("missing"), none("any"), on_cpu(), none("greedy")]),
        ("7", ("TRITON_SERVER_CPU_ONLY", "1"), [no_driver("missing"), no_driver("any"), on_cpu(), no_driver("greedy")]),
    ] {
        let capability = format!("--min-supported-compute-capability={capability}");
        let flags = [&flags[..], &limits, &[&capability]].concat();
        let server = Server::start_in(usual(), repository.path(), &flags, LIVE, &[variable]);
        let rows = index(&server);
        let groups_are_on_the_host = groups(&server, "free")[0][1] == "KIND_CPU";
        for (name, (reason, kind)) in ["missing", "any", "free", "greedy"].into_iter().zip(expected) {
            let (_, state, found) = rows.iter().find(|(found, ..)| found == name).expect("a row");
            match reason.is_empty() {
                true => assert_eq!(groups(&server, name)[0][1], kind, "{name}: {state}: {found}"),
                // With no device that is good enough a group that lists some names them.
                false if name == "missing" && reason.contains("no GPUs are available") => {
                    assert!(found.ends_with("compute compatibility of 9.500000 are: "), "{found}");
                }
                false => {
                    assert_eq!((state.as_str(), &**found), ("UNAVAILABLE", &*format!("Invalid argument: {reason}")))
                }
            }
        }
        let is_idle = server.stop().contains("--min-supported-compute-capability has no effect");
        assert_eq!(is_idle, groups_are_on_the_host, "told where there is none");
    }
}

/// What a check says depends on the host, as loading does.
#[test]
fn a_check_looks_for_devices_too() {
    let repository = Repository::new();
    model(&repository, "affine", "a", "");
    model(&repository, "affine", "b", &on("1"));
    let path = repository.path().to_str().expect("UTF-8");
    let program = binary().into_string().expect("UTF-8");
    let check = |variable: &str| {
        let words = ["env", variable, &program].map(str::to_owned);
        let (status, text, _) = run_to_end_under(&words, &["check", path]);
        (status.success(), text)
    };
    let (would_load, text) = check("NEREID_SIMULATED_GPUS=2");
    assert!(would_load, "{text}");
    for line in ["a_0, KIND_GPU, GPU 0, ", "a_0, KIND_GPU, GPU 1, ", "b_0_0, KIND_GPU, GPU 1, "] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    let (would_load, text) = check("NEREID_SIMULATED_GPUS=1");
    assert!(!would_load && text.contains("specifies invalid or unsupported gpu id 1."), "{text}");
    let (would_load, text) = check("TRITON_SERVER_CPU_ONLY=1");
    assert!(!would_load && text.contains("a_0, KIND_CPU, ") && text.contains("does not support GPUs"), "{text}");
}

/// contract/schedulers.md section 10, "GPU limit".
#[test]
fn a_full_device_takes_no_more_models() {
    let repository = Repository::new();
    model(&repository, "affine", "first", &on("0"));
    model(&repository, "affine", "more", &on("0"));
    model(&repository, "affine", "elsewhere", &on("1"));
    let flags = ["--model-control-mode=explicit", "--load-model=first", "--model-load-gpu-limit=0:0.0"];
    let server = started(&repository, "2", &flags, READY);
    // Its first batch takes memory of the device.
    assert_eq!(infer(&server, "first", &[1.0, 2.0]), (200, String::new()));
    let load = |name: &str| Peer::connect(server.http).post(&format!("/v2/repository/models/{name}/load"), &[], b"");
    let refused = load("more");
    assert_eq!(refused.status, 400);
    let text = "can not create model 'more_0_0': memory limit set for GPU 0 has exceeded, model loading is rejected.";
    assert!(
        refused.error().contains(&format!("version 1 is at UNAVAILABLE state: Unavailable: {text};")),
        "{}",
        refused.error()
    );
    assert_eq!(load("elsewhere").status, 200);
    assert_eq!(infer(&server, "first", &[1.0]).0, 200, "what is there stays");
}

#[test]
fn a_lost_device_makes_its_models_not_ready() {
    let repository = Repository::new();
    model(&repository, "affine", "lost", &on("0"));
    model(&repository, "identity", "beside", &on("0"));
    model(&repository, "affine", "elsewhere", &on("1"));
    repository.identity("host", 8, &one());
    for strict in [false, true] {
        let flag = format!("--strict-device-liveness={strict}");
        let server = started(&repository, "2;fail=700@1", &[&flag], READY);
        assert_eq!((status(&server, "/v2/models/lost/ready"), status(&server, LIVE)), (200, 200));
        // The first launch breaks the device, and whoever waits for it is told.
        let (code, text) = infer(&server, "lost", &[1.0]);
        assert!(code >= 400 && text.contains("700"), "{code}: {text}");
        let (code, text) = infer(&server, "lost", &[1.0]);
        assert_eq!(code, 503, "{text}");
        assert!(text.contains("instance 'lost_0_0' is on GPU 0, which is lost to the server: "), "{text}");
        assert_eq!(ask(&server, "beside", &body("[1,1]", &[1], "")), 503, "all models of the device");
        let ready = |model: &str| status(&server, &format!("/v2/models/{model}/ready"));
        assert_eq!(["lost", "beside", "elsewhere", "host"].map(ready), [400, 400, 200, 200]);
        let mut grpc = Grpc::connect(server.grpc);
        let of = |name: &str| ModelReadyRequest { name: name.to_owned(), version: String::new() };
        for (name, expected) in [("lost", false), ("elsewhere", true)] {
            let answer: ModelReadyResponse = grpc.call("ModelReady", &of(name)).expect("an answer");
            assert_eq!(answer.ready, expected, "{name}");
        }
        assert_eq!(status(&server, READY), 400);
        let answer: ServerReadyResponse = grpc.call("ServerReady", &ServerReadyRequest {}).expect("an answer");
        assert!(!answer.ready);
        let live: ServerLiveResponse = grpc.call("ServerLive", &ServerLiveRequest {}).expect("an answer");
        assert_eq!((live.live, status(&server, LIVE)), if strict { (false, 400) } else { (true, 200) });
        for (name, state, reason) in index(&server) {
            let is_lost = ["lost", "beside"].contains(&name.as_str());
            assert_eq!(state, if is_lost { "UNAVAILABLE" } else { "READY" }, "{name}");
            assert_eq!(reason.starts_with("GPU 0 is lost to the server: "), is_lost, "{name}: {reason}");
        }
        assert_eq!(infer(&server, "elsewhere", &[1.0]), (200, String::new()));
        assert_eq!(ask(&server, "host", &body("[1,1]", &[1], "")), 200);
        let page = Page::of(server.metrics);
        let failed = page.all("nv_inference_request_failure", &[("model", "lost"), ("reason", "BACKEND")]);
        assert_eq!(failed, ["0", "2"], "on the device");
        let log = server.stop();
        assert_eq!(log.matches("GPU 0 is lost to this process").count(), 1, "{log}");
    }
}

#[test]
fn instances_elsewhere_take_the_work_of_a_lost_device() {
    for groups in [on("0, 1"), on("0") + "instance_group { kind: KIND_CPU }"] {
        let repository = Repository::new();
        model(&repository, "affine", "spread", &groups);
        model(&repository, "affine", "alone", &on("0"));
        let server = started(&repository, "2;fail=700@1", &[], READY);
        // Whichever model launches first breaks its device.
        let (code, text) = infer(&server, "alone", &[1.0]);
        assert!(code >= 400 && text.contains("700"), "{code}: {text}");
        for _ in 0..20 {
            assert_eq!(infer(&server, "spread", &[1.0]), (200, String::new()));
        }
        assert_eq!(infer(&server, "alone", &[1.0]).0, 503, "where nobody else can, the reason is told");
        assert_eq!(status(&server, "/v2/models/spread/ready"), 400, "half of it is gone");
        server.stop();
    }
}
