//! CUDA shared memory with the simulated driver: the test provides files, which simulated devices map.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use nereid_test_support::grpc::code;
use nereid_test_support::http::request;
use nereid_test_support::python::Python;
use nereid_test_support::variant::{self, each, usual};

/// Two devices, whose work is late and in any order that nothing forbids.
const DEVICES: &[(&str, &str)] = &[("NEREID_SIMULATED_GPUS", "2;memory=268435456;seed=11;delay-us=100")];

/// How a simulated device finds the bytes of an object (its form is told in src/gpu/simulated).
fn handle(object: &Object, offset: u64, byte_size: u64) -> [u8; 64] {
    let mut handle = [0; 64];
    handle[..8].copy_from_slice(b"nereid-1");
    handle[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    handle[12..16].copy_from_slice(&(object.file.as_raw_fd() as u32).to_le_bytes());
    handle[16..24].copy_from_slice(&offset.to_le_bytes());
    handle[24..32].copy_from_slice(&byte_size.to_le_bytes());
    handle
}

fn register_cuda(peer: &mut Peer, region: &str, handle: &[u8], device: u64, byte_size: u64) -> Answer {
    let handle = json!({ "b64": STANDARD.encode(handle) });
    let body = json!({ "raw_handle": handle, "device_id": device, "byte_size": byte_size }).to_string();
    peer.post(&format!("/v2/cudasharedmemory/region/{region}/register"), &[], body.as_bytes())
}

/// Lends the whole of an object, or fails.
fn lent(peer: &mut Peer, region: &str, object: &Object, device: u64, byte_size: u64) {
    let answer = register_cuda(peer, region, &handle(object, 0, byte_size), device, byte_size);
    assert_eq!((answer.status, answer.text().as_str()), (200, ""));
}

fn cuda_listed(peer: &mut Peer) -> Value {
    peer.get("/v2/cudasharedmemory/status").json()
}

fn unregister_cuda(peer: &mut Peer, region: Option<&str>) {
    let region = region.map(|region| format!("/region/{region}")).unwrap_or_default();
    let answer = peer.post(&format!("/v2/cudasharedmemory{region}/unregister"), &[], b"");
    assert_eq!((answer.status, answer.text().as_str()), (200, ""));
}

fn floats(numbers: impl IntoIterator<Item = f32>) -> Vec<u8> {
    numbers.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// `OUTPUT0 = scale * INPUT0 + 1`, on one device.
fn affine(repository: &Repository, name: &str, scale: u32, device: u32) {
    repository.model(
        name,
        &format!(
            "name: \"{name}\" backend: \"affine\" input {{ name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }} \
             output {{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }} instance_group {{ kind: KIND_GPU gpus: [ \
             {device} ] count: 1 }} parameters {{ key: \"scale\" value {{ string_value: \"{scale}\" }} }} parameters \
             {{ key: \"bias\" value {{ string_value: \"1\" }} }}"
        ),
    );
    repository.version(name, "1");
}

/// An ensemble of two models of one input and one output each.
fn chain(repository: &Repository, name: &str, steps: [&str; 2]) {
    let step = |model: &str, from: &str, to: &str| {
        format!(
            "step {{ model_name: \"{model}\" model_version: -1 input_map {{ key: \"INPUT0\" value: \"{from}\" }} \
             output_map {{ key: \"OUTPUT0\" value: \"{to}\" }} }}"
        )
    };
    let [first, second] = steps;
    let steps = [step(first, "INPUT0", "between"), step(second, "between", "OUTPUT0")].concat();
    repository.model(
        name,
        &format!(
            "name: \"{name}\" platform: \"ensemble\" input {{ name: \"INPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }} \
             output {{ name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ -1 ] }} ensemble_scheduling {{ {steps} }}"
        ),
    );
    repository.version(name, "1");
}

/// Models on the host (`same`, `words`, `slow`), on devices (`twice` on 0, `thrice` on 1), and of both.
fn start_with_devices(variant: Variant, more: &[&str]) -> (Repository, Server) {
    start_delayed(variant, more, 1_500)
}

/// The same with a `slow` that takes `delay_ms`.
fn start_delayed(variant: Variant, more: &[&str], delay_ms: u32) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("same", 0, &[Pair::new("FP32", "-1")]);
    repository.identity("words", 0, &[Pair::new("BYTES", "-1")]);
    let delay = format!("parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{delay_ms}\" }} }}");
    repository.identity_of("identity", "slow", 0, &[Pair::new("FP32", "-1")], &delay);
    affine(&repository, "twice", 2, 0);
    affine(&repository, "thrice", 3, 1);
    chain(&repository, "on_devices", ["twice", "thrice"]);
    chain(&repository, "there_and_back", ["twice", "same"]);
    chain(&repository, "back_and_there", ["same", "thrice"]);
    let flags = [&[ALLOWED], more].concat();
    let server = Server::start_in(variant, repository.path(), &flags, "/v2/health/ready", DEVICES);
    (repository, server)
}

/// Ends the server, which must not have asked its driver for anything wrong.
fn stop(server: Server) {
    let log = server.stop();
    let is_violation = |line: &str| line.starts_with('E') && line.contains("simulated GPU");
    assert!(!log.lines().any(is_violation), "{log}");
}

fn refusal(code: u32, message: &str) -> Status {
    Status { code, message: message.to_owned() }
}

#[test]
fn regions_of_devices_are_registered_told_and_forgotten_over_http() {
    let (_repository, server) = start_with_devices(usual(), &[]);
    let mut peer = Peer::connect(server.http);
    let object = Object::new(&[0; 64]);
    let whole = handle(&object, 0, 64);
    let invalid = "failed to register shared memory region: invalid args";
    for (handle, device, size, text) in [
        (&whole[..63], 0, 64, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"),
        (&[9; 64][..], 0, 64, invalid),
        (&whole[..], 2, 64, invalid),
        (&whole[..], 1 << 40, 64, invalid),
        (&whole[..], 0, 65, "failed to register shared memory region 'g': invalid args"),
    ] {
        let answer = register_cuda(&mut peer, "g", handle, device, size);
        assert_eq!((answer.status, answer.error().as_str()), (400, text), "{device} {size}");
    }
    assert_eq!(cuda_listed(&mut peer), json!([]));
    lent(&mut peer, "g", &object, 1, 64);
    registered(&mut peer, "s", &object, 64);
    let rows = json!([{ "name": "g", "device_id": 1, "byte_size": 64 }]);
    assert_eq!(cuda_listed(&mut peer), rows);
    assert_eq!(peer.get("/v2/cudasharedmemory/region/g/status").json(), rows);
    for (path, text) in [
        ("cuda/region/x", "Unable to find cuda shared memory region: 'x'"),
        ("cuda/region/s", "The region named 's' is registered as system shared memory, not CUDA shared memory"),
        ("system/region/g", "The region named 'g' is registered as CUDA shared memory, not system shared memory"),
    ] {
        let (kind, rest) = path.split_once('/').expect("two parts");
        let answer = peer.get(&format!("/v2/{kind}sharedmemory/{rest}/status"));
        assert_eq!((answer.status, answer.error().as_str()), (404, text));
    }
    for region in ["g", "s"] {
        let text = format!("shared memory region '{region}' already in manager");
        assert_eq!(register_cuda(&mut peer, region, &whole, 0, 64).error(), text);
        assert_eq!(register(&mut peer, region, &object, 0, 64).error(), text);
    }
    // What is of the other kind, or is not there, stays without a word.
    unregister(&mut peer, None);
    unregister_cuda(&mut peer, Some("s"));
    unregister_cuda(&mut peer, Some("x"));
    assert_eq!(cuda_listed(&mut peer), rows);
    unregister_cuda(&mut peer, None);
    assert_eq!(cuda_listed(&mut peer), json!([]));
    stop(server);
}

#[test]
fn regions_of_devices_are_registered_told_and_forgotten_over_grpc() {
    let (_repository, server) = start_with_devices(usual(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let object = Object::new(&[0; 64]);
    let registration = |device_id, raw_handle: &[u8]| CudaSharedMemoryRegisterRequest {
        name: "g".into(),
        raw_handle: raw_handle.to_vec().into(),
        device_id,
        byte_size: 64,
    };
    let whole = handle(&object, 0, 64);
    let status = |grpc: &mut Grpc, name: &str| {
        let asked = CudaSharedMemoryStatusRequest { name: name.into() };
        grpc.call::<CudaSharedMemoryStatusResponse>("CudaSharedMemoryStatus", &asked)
    };
    for (device, handle) in [(-1, &whole[..]), (2, &whole[..]), (0, &whole[..10]), (0, &[1; 64][..])] {
        let refused =
            grpc.call::<CudaSharedMemoryRegisterResponse>("CudaSharedMemoryRegister", &registration(device, handle));
        let text = "failed to register shared memory region: invalid args";
        assert_eq!(refused.unwrap_err(), refusal(code::INVALID_ARGUMENT, text), "{device}");
    }
    let register = |grpc: &mut Grpc| {
        let done: Result<CudaSharedMemoryRegisterResponse, _> =
            grpc.call("CudaSharedMemoryRegister", &registration(1, &whole));
        done
    };
    register(&mut grpc).expect("registered");
    let taken = refusal(code::ALREADY_EXISTS, "shared memory region 'g' already in manager");
    assert_eq!(register(&mut grpc).unwrap_err(), taken);
    let row = cuda_shared_memory_status_response::RegionStatus { name: "g".into(), device_id: 1, byte_size: 64 };
    for name in ["", "g"] {
        assert_eq!(status(&mut grpc, name).expect("a list").regions, [("g".to_owned(), row.clone())].into());
    }
    let asked = SystemSharedMemoryStatusRequest { name: "g".into() };
    let wrong: Result<SystemSharedMemoryStatusResponse, _> = grpc.call("SystemSharedMemoryStatus", &asked);
    let text = "The region named 'g' is registered as CUDA shared memory, not system shared memory";
    assert_eq!(wrong.unwrap_err(), refusal(code::NOT_FOUND, text));
    let unregister = CudaSharedMemoryUnregisterRequest { name: String::new() };
    let _: CudaSharedMemoryUnregisterResponse = grpc.call("CudaSharedMemoryUnregister", &unregister).expect("done");
    assert!(status(&mut grpc, "").expect("a list").regions.is_empty());
    stop(server);
}

#[test]
fn without_the_flag_nothing_is_registered_and_without_a_device_neither() {
    let repository = Repository::new();
    repository.identity("same", 0, &[Pair::new("FP32", "-1")]);
    let object = Object::new(&[0; 64]);
    let disabled = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.";
    let none = "failed to register CUDA shared memory region: 'g', GPUs not supported";
    for (environment, flags, http, grpc_text) in [
        (DEVICES, &[][..], disabled, disabled),
        (&[][..], &[][..], disabled, none),
        (&[][..], &[ALLOWED][..], none, none),
    ] {
        let server = Server::start_in(usual(), repository.path(), flags, "/v2/health/ready", environment);
        let mut peer = Peer::connect(server.http);
        let answer = register_cuda(&mut peer, "g", &handle(&object, 0, 64), 0, 64);
        assert_eq!(answer.error(), http);
        assert_eq!(cuda_listed(&mut peer), json!([]));
        let asked = CudaSharedMemoryRegisterRequest { name: "g".into(), ..Default::default() };
        let refused: Result<CudaSharedMemoryRegisterResponse, _> =
            Grpc::connect(server.grpc).call("CudaSharedMemoryRegister", &asked);
        assert_eq!(refused.unwrap_err().message, grpc_text);
        server.stop();
    }
}

#[test]
fn tensors_come_from_devices_and_go_to_them_over_http() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start_with_devices(variant, &[]);
        let mut peer = Peer::connect(server.http);
        let sent = floats([1.0, 2.0, 3.0, 4.0]);
        let (zero, one) = (Object::new(&[&sent[..], &[0xee; 112]].concat()), Object::new(&[0xee; 128]));
        lent(&mut peer, "zero", &zero, 0, 128);
        lent(&mut peer, "one", &one, 1, 128);
        let values = [input("INPUT0", "FP32", &[4], ("zero", 0, 16))];
        let described = json!([{ "name": "OUTPUT0", "datatype": "FP32", "shape": [4] }]);
        // In and out, on one device and across, through models on devices, on the host, and of both kinds.
        for (model, expected) in [
            ("same", [1.0, 2.0, 3.0, 4.0]),
            ("twice", [3.0, 5.0, 7.0, 9.0]),
            ("thrice", [4.0, 7.0, 10.0, 13.0]),
            ("on_devices", [10.0, 16.0, 22.0, 28.0]),
            ("there_and_back", [3.0, 5.0, 7.0, 9.0]),
            ("back_and_there", [4.0, 7.0, 10.0, 13.0]),
        ] {
            let expected = floats(expected);
            for (region, object) in [("zero", &zero), ("one", &one)] {
                // Also where numbers do not like to begin.
                for at in [32, 65] {
                    object.write(at, &[0xee; 17]);
                    let answer = infer(&mut peer, model, &values, &[output("OUTPUT0", (region, at, 17))]);
                    assert_eq!(answer.status, 200, "{model} {region}: {}", answer.text());
                    assert_eq!(answer.json()["outputs"], described);
                    assert_eq!(object.read(at, 17), [&expected[..], &[0xee]].concat(), "{model} {region} {at}");
                }
            }
            // Over the network.
            let answer = infer(&mut peer, model, &values, &[json!({ "name": "OUTPUT0" })]);
            let numbers = answer.json()["outputs"][0]["data"].clone();
            let numbers = numbers.as_array().expect("numbers").iter().map(|value| value.as_f64().expect("one") as f32);
            assert_eq!(floats(numbers), expected, "{model}");
            let binary = json!({ "name": "OUTPUT0", "parameters": { "binary_data": true } });
            assert_eq!(infer(&mut peer, model, &values, &[binary]).split().1, expected, "{model}");
        }
        // From where no number begins, and from the network.
        zero.write(97, &sent);
        let odd = [input("INPUT0", "FP32", &[4], ("zero", 97, 16))];
        let given = [json!({ "name": "INPUT0", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4] })];
        for (number, inputs) in [odd, given].iter().enumerate() {
            one.write(0, &[0xee; 16]);
            let answer = infer(&mut peer, "twice", inputs, &[output("OUTPUT0", ("one", 0, 16))]);
            assert_eq!(answer.status, 200, "{number}: {}", answer.text());
            assert_eq!(one.read(0, 16), floats([3.0, 5.0, 7.0, 9.0]), "{number}");
        }
        // Memory of the host and of a device in one request.
        let host = Object::new(&[&sent[..], &[0; 16]].concat());
        registered(&mut peer, "host", &host, 32);
        let from_host = [input("INPUT0", "FP32", &[4], ("host", 0, 16))];
        assert_eq!(infer(&mut peer, "twice", &from_host, &[output("OUTPUT0", ("one", 64, 16))]).status, 200);
        assert_eq!(one.read(64, 16), floats([3.0, 5.0, 7.0, 9.0]));
        assert_eq!(infer(&mut peer, "thrice", &values, &[output("OUTPUT0", ("host", 16, 16))]).status, 200);
        assert_eq!(host.read(16, 16), floats([4.0, 7.0, 10.0, 13.0]));
        stop(server);
    });
}

#[test]
fn tensors_come_from_devices_and_go_to_them_over_grpc() {
    let (_repository, server) = start_with_devices(usual(), &[]);
    let mut peer = Peer::connect(server.http);
    let object = Object::new(&[&floats([1.0, -2.0])[..], &[0xee; 56]].concat());
    lent(&mut peer, "g", &object, 1, 64);
    let mut grpc = Grpc::connect(server.grpc);
    for (model, expected) in [("twice", [3.0, -3.0]), ("same", [1.0, -2.0]), ("on_devices", [10.0, -8.0])] {
        let mut request = ModelInferRequest {
            model_name: model.into(),
            inputs: vec![grpc_input("INPUT0", "FP32", &[2], grpc_place(("g", 0, 8)))],
            outputs: vec![grpc_output("OUTPUT0", grpc_place(("g", 16, 9)))],
            ..Default::default()
        };
        object.write(16, &[0xee; 9]);
        let answer = grpc_infer(&mut grpc, &request).expect("an answer");
        assert_eq!(answer.raw_output_contents, [&b""[..]], "its client finds it in its memory");
        assert_eq!(object.read(16, 9), [&floats(expected)[..], &[0xee]].concat(), "{model}");
        request.outputs.clear();
        let answer = grpc_infer(&mut grpc, &request).expect("an answer");
        assert_eq!(answer.raw_output_contents, [floats(expected)], "{model}");
    }
    stop(server);
}

#[test]
fn what_does_not_fit_a_region_of_a_device_is_named() {
    let (_repository, server) = start_with_devices(usual(), &[]);
    let mut peer = Peer::connect(server.http);
    let object = Object::new(&[&floats([1.0, 2.0])[..], &[0xee; 56]].concat());
    lent(&mut peer, "g", &object, 0, 64);
    let values = |place| [input("INPUT0", "FP32", &[2], place)];
    let small = "shared memory size specified with the request for output 'OUTPUT0' (7 bytes) should be at least 8 \
                 bytes to hold the results";
    for model in ["same", "twice", "on_devices", "there_and_back"] {
        let answer = infer(&mut peer, model, &values(("g", 0, 8)), &[output("OUTPUT0", ("g", 32, 7))]);
        assert_eq!((answer.status, answer.error().as_str()), (500, small), "{model}");
    }
    assert_eq!(object.read(32, 8), [0xee; 8]);
    let mismatch = "input byte size mismatch for input 'INPUT0' for model 'twice'. Expected 8, got 4";
    for (place, status, text) in [
        (("x", 0, 8), 404, "Unable to find shared memory region: 'x'"),
        (("g", 64, 1), 400, "Invalid offset for shared memory region: 'g'"),
        (("g", 60, 8), 400, "Invalid offset + byte size for shared memory region: 'g'"),
        (("g", 0, 4), 400, mismatch),
    ] {
        let answer = infer(&mut peer, "twice", &values(place), &[]);
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(answer.error().ends_with(text), "{} instead of {text}", answer.error());
    }
    // Strings are looked at once they are on the host.
    let words = Object::new(&strings(&[b"ab", b"", b"xyz"]));
    lent(&mut peer, "w", &words, 1, 17);
    let of = |count: i64| [input("INPUT0", "BYTES", &[count], ("w", 0, 17))];
    let answer = infer(&mut peer, "words", &of(3), &[]);
    assert_eq!(answer.json()["outputs"][0]["data"], json!(["ab", "", "xyz"]));
    let answer = infer(&mut peer, "words", &of(4), &[]);
    let text = "expected 4 string elements for inference input 'INPUT0' for model 'words', got 3";
    assert_eq!((answer.status, answer.error().contains(text)), (400, true), "{}", answer.text());
    stop(server);
}

#[test]
fn an_unregistered_region_of_a_device_serves_its_last_request() {
    // On a busy machine the last request may be over before the test has seen what it keeps: then it takes longer.
    let in_time = [1_500, 10_000, 60_000].into_iter().any(unregistered_in_time);
    assert!(in_time, "a region that is unregistered while it is in use has no use");
}

fn unregistered_in_time(delay_ms: u32) -> bool {
    let (_repository, server) = start_delayed(usual(), &[], delay_ms);
    let (mut peer, mut slow) = (Peer::connect(server.http), Peer::connect(server.http));
    let object = Object::new(&[&floats([1.0, 2.0])[..], &[0; 56]].concat());
    lent(&mut peer, "g", &object, 0, 64);
    let values = [input("INPUT0", "FP32", &[2], ("g", 0, 8))];
    let body = json!({ "inputs": values, "outputs": [output("OUTPUT0", ("g", 32, 8))] }).to_string();
    let mut sent = Instant::now();
    slow.send(&request("POST", "/v2/models/slow/infer", &[], body.as_bytes()));
    let started = std::time::Instant::now();
    loop {
        unregister_cuda(&mut peer, Some("g"));
        if cuda_listed(&mut peer) != json!([]) {
            break;
        }
        // Gone before the request came: once more.
        assert!(started.elapsed() < nereid_test_support::server::PATIENCE, "the request never uses the region");
        lent(&mut peer, "g", &object, 0, 64);
        let answer = slow.answer();
        assert!(matches!(answer.status, 200 | 404), "{}", answer.text());
        sent = Instant::now();
        slow.send(&request("POST", "/v2/models/slow/infer", &[], body.as_bytes()));
    }
    let taken = register_cuda(&mut peer, "g", &handle(&object, 0, 64), 0, 64);
    let again = infer(&mut peer, "same", &values, &[]);
    if sent.elapsed() >= Duration::from_millis(delay_ms.into()) {
        return false;
    }
    assert_eq!(taken.error(), "shared memory region 'g' already in manager");
    assert_eq!(again.json()["outputs"][0]["data"], json!([1.0, 2.0]));
    let answer = slow.answer();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(object.read(32, 8), floats([1.0, 2.0]));
    assert_eq!(cuda_listed(&mut peer), json!([]), "gone with the answer");
    stop(server);
    true
}

#[test]
fn an_input_on_a_device_passes_by_the_cache() {
    let repository = Repository::new();
    let cached = "response_cache { enable: true }";
    repository.identity_of("identity", "cached", 0, &[Pair::new("FP32", "-1")], cached);
    let flags = [ALLOWED, "--cache-config=local,size=1048576"];
    let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", DEVICES);
    let mut peer = Peer::connect(server.http);
    let object = Object::new(&[&floats([5.0, 6.0])[..], &[0; 24]].concat());
    lent(&mut peer, "g", &object, 0, 32);
    let values = [input("INPUT0", "FP32", &[2], ("g", 0, 8))];
    for numbers in [[5.0, 6.0], [7.0, 8.0]] {
        object.write(0, &floats(numbers));
        let answer = infer(&mut peer, "cached", &values, &[]);
        assert_eq!(answer.json()["outputs"][0]["data"], json!(numbers));
    }
    // An answer that comes from the cache goes to a device like any other.
    let given = [json!({ "name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2] })];
    for at in [8, 16] {
        assert_eq!(infer(&mut peer, "cached", &given, &[output("OUTPUT0", ("g", at, 8))]).status, 200);
        assert_eq!(object.read(at, 8), floats([1.0, 2.0]), "{at}");
    }
    let statistics = &peer.get("/v2/models/cached/stats").json()["model_stats"][0];
    let count = |of: &str| statistics["inference_stats"][of]["count"].as_u64();
    assert_eq!((count("cache_hit"), count("cache_miss"), count("success")), (Some(1), Some(1), Some(4)));
    let log = server.stop();
    assert_eq!(log.matches("Only input buffers in CPU memory are allowed in cache currently").count(), 2, "{log}");
}

#[test]
fn the_official_client_lends_memory_of_a_device() {
    let Some(python) = Python::get() else { return };
    let (_repository, server) = start_with_devices(usual(), &[]);
    for protocol in ["http", "grpc", "http-aio", "grpc-aio"] {
        let url = if protocol.starts_with("http") { server.http } else { server.grpc }.to_string();
        print!("{}", python.run("cuda_memory.py", &["--protocol", protocol, "--url", &url]));
    }
    stop(server);
}

/// Sum and difference of two tensors: ONNX Runtime with its tensors on a device, between regions of both devices, the
/// host and the steps of an ensemble.
#[test]
fn onnx_models_work_on_devices() {
    let Some(python) = Python::get() else { return };
    let repository = Repository::new();
    repository.file("sums/1/model.onnx", include_bytes!("../../../fixtures/onnx/dynamic.onnx"));
    let tensors = |side: &str, kind: &str| {
        (0..2).map(|at| format!("{side} {{ name: \"{kind}{at}\" data_type: TYPE_FP32 dims: [ -1, -1 ] }} ")).collect()
    };
    let (inputs, outputs): (String, String) = (tensors("input", "INPUT"), tensors("output", "OUTPUT"));
    let on_gpu = "instance_group { kind: KIND_GPU gpus: [ 0 ] }";
    repository.model("sums", &format!("name: \"sums\" backend: \"onnxruntime\" {inputs} {outputs} {on_gpu}"));
    let flat = |name: &str| format!("{{ name: \"{name}\" data_type: TYPE_FP32 dims: [ -1, -1 ] }}");
    let wide = |name: &str, scale: u32, device: u32| {
        let (input, output) = (flat("INPUT0"), flat("OUTPUT0"));
        let group = format!("instance_group {{ kind: KIND_GPU gpus: [ {device} ] }}");
        let scale = format!("parameters {{ key: \"scale\" value {{ string_value: \"{scale}\" }} }}");
        let config = format!("name: \"{name}\" backend: \"affine\" input {input} output {output} {group} {scale}");
        repository.model(name, &config);
        repository.version(name, "1");
    };
    wide("double", 2, 0);
    wide("triple", 3, 1);
    let step = |model: &str, maps: &[(&str, &str, &str)]| {
        let maps = maps.iter().map(|(side, key, value)| format!("{side}_map {{ key: \"{key}\" value: \"{value}\" }} "));
        format!("step {{ model_name: \"{model}\" model_version: -1 {}}} ", maps.collect::<String>())
    };
    let steps = [
        step("double", &[("input", "INPUT0", "INPUT0"), ("output", "OUTPUT0", "twofold")]),
        step("triple", &[("input", "INPUT0", "INPUT0"), ("output", "OUTPUT0", "threefold")]),
        step(
            "sums",
            &[
                ("input", "INPUT0", "twofold"),
                ("input", "INPUT1", "threefold"),
                ("output", "OUTPUT0", "fivefold"),
                ("output", "OUTPUT1", "negative"),
            ],
        ),
        step("triple", &[("input", "INPUT0", "fivefold"), ("output", "OUTPUT0", "OUTPUT0")]),
    ];
    let (input_of, output_of) = (flat("INPUT0"), [flat("OUTPUT0"), flat("negative")].join(", "));
    let config = format!(
        "name: \"all\" platform: \"ensemble\" input [ {input_of} ] output [ {output_of} ] ensemble_scheduling {{ {} }}",
        steps.concat()
    );
    repository.model("all", &config);
    repository.version("all", "1");
    each(&variant::ALL, |variant| {
        let flags = [ALLOWED, &python.onnxruntime_flag()];
        let server = Server::start_in(variant, repository.path(), &flags, "/v2/health/ready", DEVICES);
        let mut peer = Peer::connect(server.http);
        let numbers = |scale: f32| floats((1..65).map(|at| at as f32 * scale));
        let [near, far, host] = [(); 3].map(|()| Object::new(&[&numbers(1.0)[..], &numbers(10.0), &[0; 512]].concat()));
        lent(&mut peer, "near", &near, 0, 1024);
        lent(&mut peer, "far", &far, 1, 1024);
        registered(&mut peer, "host", &host, 1024);
        let objects = [("near", &near), ("far", &far), ("host", &host)];
        for (first, _) in &objects {
            for (second, to) in &objects {
                to.write(512, &[0xee; 512]);
                let inputs = [
                    input("INPUT0", "FP32", &[8, 8], (first, 0, 256)),
                    input("INPUT1", "FP32", &[8, 8], (second, 256, 256)),
                ];
                // One output where the client wants it, one in the answer.
                let outputs = [output("OUTPUT0", (second, 512, 256)), json!({ "name": "OUTPUT1" })];
                let answer = infer(&mut peer, "sums", &inputs, &outputs);
                assert_eq!(answer.status, 200, "{first} {second}: {}", answer.text());
                assert!(to.read(512, 256) == numbers(11.0), "{first} {second}");
                assert_eq!(to.read(768, 4), [0xee; 4], "{first} {second}: behind the window");
                let difference = answer.json()["outputs"][1]["data"].clone();
                assert_eq!(difference, json!((1..65).map(|at| at as f32 * -9.0).collect::<Vec<f32>>()));
            }
        }
        for (name, object) in objects {
            let asked = [input("INPUT0", "FP32", &[4, 16], (name, 0, 256))];
            let outputs = [output("OUTPUT0", (name, 512, 256)), output("negative", (name, 768, 256))];
            let answer = infer(&mut peer, "all", &asked, &outputs);
            assert_eq!(answer.status, 200, "{name}: {}", answer.text());
            assert!(object.read(512, 256) == numbers(15.0) && object.read(768, 256) == numbers(-1.0), "{name}");
        }
        unregister(&mut peer, None);
        unregister_cuda(&mut peer, None);
        stop(server);
    });
}

/// The cache reads no memory of a device: such a request is executed each time, and the log says why.
#[test]
fn requests_with_memory_of_devices_are_not_looked_up_in_the_cache() {
    let repository = Repository::new();
    affine(&repository, "twice", 2, 0);
    let file = repository.path().join("twice/config.pbtxt");
    let config = std::fs::read_to_string(&file).expect("the configuration");
    std::fs::write(file, config + " response_cache { enable: true }").expect("the configuration");
    let flags = [ALLOWED, "--cache-config=local,size=1048576"];
    let server = Server::start_in(usual(), repository.path(), &flags, "/v2/health/ready", DEVICES);
    let mut peer = Peer::connect(server.http);
    lent(&mut peer, "g", &Object::new(&floats([1.0, 2.0])), 0, 8);
    let region = json!({ "shared_memory_region": "g", "shared_memory_byte_size": 8 });
    let input = json!({ "name": "INPUT0", "datatype": "FP32", "shape": [2], "parameters": region });
    let body = json!({ "id": "device", "inputs": [input] }).to_string();
    for _ in 0..2 {
        let answer = peer.post("/v2/models/twice/infer", &[], body.as_bytes());
        assert_eq!((answer.status, &answer.json()["outputs"][0]["data"]), (200, &json!([3.0, 5.0])));
    }
    let executions = peer.get("/v2/models/twice/stats").json()["model_stats"][0]["execution_count"].clone();
    assert_eq!(executions, 2);
    let text = "Failed to hash request: [request id: device] Only input buffers in CPU memory are allowed in cache";
    // The log comes behind the answers.
    server.wait_until("both requests are logged", || server.log().matches(text).count() == 2);
    stop(server);
}
