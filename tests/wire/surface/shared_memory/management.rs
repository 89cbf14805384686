//! Status, register and unregister over both protocols.

use super::*;
use nereid_test_support::grpc::code;
use nereid_test_support::variant::{self, each, usual};

const DISABLED: &str = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.";
const JSON: Option<&str> = Some("application/json");

#[test]
fn regions_come_and_go_over_http() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[ALLOWED]);
        let mut peer = Peer::connect(server.http);
        let object = Object::new(&[0; 3 * 4096]);
        let key = object.key();
        assert_eq!(peer.get("/v2/systemsharedmemory/status").json(), json!([]));
        registered(&mut peer, "b", &object, 100);
        assert_eq!(register(&mut peer, "a", &object, 4096, 8192).status, 200);
        let a = json!({ "name": "a", "key": key, "offset": 4096, "byte_size": 8192 });
        let b = json!({ "name": "b", "key": key, "offset": 0, "byte_size": 100 });
        let status = peer.get("/v2/systemsharedmemory/status");
        assert_eq!((status.json(), status.header("content-type")), (json!([a, b]), JSON));
        assert_eq!(peer.get("/v2/systemsharedmemory/region/a/status").json(), json!([a]));
        // Another connection, and perhaps another shard.
        for _ in 0..4 {
            assert_eq!(listed(&mut Peer::connect(server.http)), ["a", "b"]);
        }
        let unknown = peer.get("/v2/systemsharedmemory/region/c/status");
        assert_eq!((unknown.status, unknown.header("content-type")), (404, JSON));
        assert_eq!(unknown.error(), "Unable to find system shared memory region: 'c'");
        unregister(&mut peer, Some("c"));
        let cuda = peer.post("/v2/cudasharedmemory/region/a/unregister", &[], b"");
        assert_eq!(cuda.status, 200, "the wrong kind is nobody's error");
        assert_eq!(listed(&mut peer), ["a", "b"]);
        unregister(&mut peer, Some("a"));
        assert_eq!(listed(&mut peer), ["b"]);
        registered(&mut peer, "a", &object, 1);
        unregister(&mut peer, None);
        assert_eq!(listed(&mut peer), [""; 0]);
        server.stop();
    });
}

#[test]
fn what_cannot_be_registered_over_http() {
    let (_repository, server) = start(usual(), &[ALLOWED]);
    let mut peer = Peer::connect(server.http);
    let object = Object::new(&[0; 5000]);
    registered(&mut peer, "taken", &object, 5000);
    let key = object.key();
    let failed = |reason: &str| format!("failed to register shared memory region 'r': {reason}");
    for (region, body, status, expected) in [
        ("r", json!({}), 400, "Shared memory register request has no 'key' field".to_owned()),
        ("r", json!({ "key": key }), 400, "Shared memory register request has no 'byte_size' field".to_owned()),
        ("r", json!({ "key": 1 }), 500, "attempt to access JSON non-string as string".to_owned()),
        (
            "taken",
            json!({ "key": "//", "byte_size": 1 }),
            400,
            "cannot register shared memory region 'taken' - invalid shm key '//'".to_owned(),
        ),
        (
            "taken",
            json!({ "key": "//triton_python_backend_shm_region_7", "byte_size": 1 }),
            400,
            "cannot register shared memory region 'taken' with key '//triton_python_backend_shm_region_7' as the key \
             contains the reserved prefix 'triton_python_backend_shm_region_'"
                .to_owned(),
        ),
        (
            "taken",
            json!({ "key": "/nereid-nowhere", "byte_size": 1 }),
            400,
            "shared memory region 'taken' already in manager".to_owned(),
        ),
        (
            "r",
            json!({ "key": "/nereid-nowhere", "byte_size": 1 }),
            500,
            "Unable to open shared memory region: '/nereid-nowhere'".to_owned(),
        ),
        ("r", json!({ "key": key, "byte_size": 5001 }), 400, failed("invalid args")),
        ("r", json!({ "key": key, "offset": 4096, "byte_size": 905 }), 400, failed("invalid args")),
        ("r", json!({ "key": key, "offset": u64::MAX, "byte_size": 2 }), 400, failed("invalid args")),
        ("r", json!({ "key": key, "byte_size": 0 }), 400, failed("unable to process address spaceInvalid argument")),
        (
            "r",
            json!({ "key": key, "offset": 8, "byte_size": 8 }),
            400,
            failed("unable to process address spaceInvalid argument"),
        ),
    ] {
        let path = format!("/v2/systemsharedmemory/region/{region}/register");
        let answer = peer.post(&path, &[], body.to_string().as_bytes());
        assert_eq!((answer.status, answer.error()), (status, expected), "{body}");
        assert_eq!(answer.header("content-type"), JSON);
    }
    let empty = peer.post("/v2/systemsharedmemory/region/r/register", &[], b"");
    assert_eq!(empty.status, 500);
    assert_eq!(empty.error(), "failed to parse the request JSON buffer: The document is empty. at 0");
    let nameless = peer.post("/v2/systemsharedmemory/register", &[], b"{}");
    assert_eq!(nameless.status, 400);
    assert_eq!(nameless.error(), "'region name' is necessary to register system shared memory region");
    for (method, path, status) in [
        ("GET", "/v2/systemsharedmemory/unregister", 405),
        ("GET", "/v2/systemsharedmemory/region/r/register", 405),
        ("POST", "/v2/systemsharedmemory/status", 405),
        ("POST", "/v2/systemsharedmemory/region//register", 404),
    ] {
        let answer = peer.send(&nereid_test_support::http::request(method, path, &[], b"")).answer();
        assert_eq!(answer.status, status, "{method} {path}");
    }
    assert_eq!(listed(&mut peer), ["taken"]);
    server.stop();
}

#[test]
fn regions_come_and_go_over_grpc() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[ALLOWED]);
        let mut grpc = Grpc::connect(server.grpc);
        let object = Object::new(&[0; 3 * 4096]);
        let request = |name: &str, offset, byte_size| SystemSharedMemoryRegisterRequest {
            name: name.to_owned(),
            key: object.key(),
            offset,
            byte_size,
        };
        let row = |name: &str, offset, byte_size| {
            let row = system_shared_memory_status_response::RegionStatus {
                name: name.to_owned(),
                key: object.key(),
                offset,
                byte_size,
            };
            (name.to_owned(), row)
        };
        let status = |grpc: &mut Grpc, name: &str| -> Result<SystemSharedMemoryStatusResponse, Status> {
            grpc.call("SystemSharedMemoryStatus", &SystemSharedMemoryStatusRequest { name: name.to_owned() })
        };
        let register = |grpc: &mut Grpc, request| -> Result<SystemSharedMemoryRegisterResponse, Status> {
            grpc.call("SystemSharedMemoryRegister", &request)
        };
        register(&mut grpc, request("a", 0, 100)).unwrap();
        register(&mut grpc, request("", 4096, 1)).unwrap();
        let all = status(&mut grpc, "").unwrap();
        assert_eq!(all.regions, [row("", 4096, 1), row("a", 0, 100)].into());
        assert_eq!(status(&mut grpc, "a").unwrap().regions, [row("a", 0, 100)].into());
        let refused = |found: Result<SystemSharedMemoryRegisterResponse, Status>| {
            let status = found.unwrap_err();
            (status.code, status.message)
        };
        for (request, code, text) in [
            (request("a", 0, 1), 6, "shared memory region 'a' already in manager"),
            (
                SystemSharedMemoryRegisterRequest::default(),
                code::INVALID_ARGUMENT,
                "cannot register shared memory region '' - invalid shm key ''",
            ),
            (
                SystemSharedMemoryRegisterRequest { key: "/nereid-nowhere".into(), ..request("b", 0, 1) },
                13,
                "Unable to open shared memory region: '/nereid-nowhere'",
            ),
            (
                request("b", 0, u64::MAX),
                code::INVALID_ARGUMENT,
                "failed to register shared memory region 'b': invalid args",
            ),
        ] {
            assert_eq!(refused(register(&mut grpc, request)), (code, text.to_owned()));
        }
        let unknown = status(&mut grpc, "x").unwrap_err();
        let text = "Unable to find system shared memory region: 'x'";
        assert_eq!((unknown.code, unknown.message.as_str()), (code::NOT_FOUND, text));
        let unregister = |grpc: &mut Grpc, name: &str| {
            let request = SystemSharedMemoryUnregisterRequest { name: name.to_owned() };
            let _: SystemSharedMemoryUnregisterResponse = grpc.call("SystemSharedMemoryUnregister", &request).unwrap();
        };
        unregister(&mut grpc, "x");
        unregister(&mut grpc, "a");
        assert_eq!(status(&mut grpc, "").unwrap().regions.len(), 1);
        unregister(&mut grpc, "");
        assert_eq!(status(&mut grpc, "").unwrap().regions.len(), 0);
        server.stop();
    });
}

#[test]
fn without_the_flag_nobody_registers() {
    let (_repository, server) = start(usual(), &[]);
    let mut peer = Peer::connect(server.http);
    for (path, body) in [
        ("/v2/systemsharedmemory/region/r/register", "not even JSON"),
        ("/v2/systemsharedmemory/register", ""),
        ("/v2/systemsharedmemory/unregister", ""),
        ("/v2/cudasharedmemory/region/r/register", "{}"),
        ("/v2/cudasharedmemory/region/r/unregister", ""),
    ] {
        let answer = peer.post(path, &[], body.as_bytes());
        assert_eq!((answer.status, answer.error().as_str()), (501, DISABLED), "{path}");
    }
    for path in ["/v2/systemsharedmemory/status", "/v2/cudasharedmemory/status"] {
        assert_eq!(peer.get(path).json(), json!([]), "{path}");
    }
    let mut grpc = Grpc::connect(server.grpc);
    let register: Result<SystemSharedMemoryRegisterResponse, _> =
        grpc.call("SystemSharedMemoryRegister", &SystemSharedMemoryRegisterRequest::default());
    let disabled = Status { code: code::UNIMPLEMENTED, message: DISABLED.to_owned() };
    assert_eq!(register.unwrap_err(), disabled);
    let unregister: Result<CudaSharedMemoryUnregisterResponse, _> =
        grpc.call("CudaSharedMemoryUnregister", &CudaSharedMemoryUnregisterRequest::default());
    assert_eq!(unregister.unwrap_err(), disabled);
    let status: SystemSharedMemoryStatusResponse =
        grpc.call("SystemSharedMemoryStatus", &SystemSharedMemoryStatusRequest::default()).unwrap();
    assert_eq!(status.regions.len(), 0);
    let cuda: Result<CudaSharedMemoryRegisterResponse, _> = grpc
        .call("CudaSharedMemoryRegister", &CudaSharedMemoryRegisterRequest { name: "r".into(), ..Default::default() });
    let message = "failed to register CUDA shared memory region: 'r', GPUs not supported".to_owned();
    assert_eq!(cuda.unwrap_err(), Status { code: code::INVALID_ARGUMENT, message });
    server.stop();
}

#[test]
fn cuda_memory_is_refused_and_never_listed() {
    let (_repository, server) = start(usual(), &[ALLOWED]);
    let mut peer = Peer::connect(server.http);
    let object = Object::new(b"abcd");
    registered(&mut peer, "system", &object, 4);
    let body = json!({ "raw_handle": { "b64": "AAAA" }, "device_id": 0, "byte_size": 4 }).to_string();
    let answer = peer.post("/v2/cudasharedmemory/region/r/register", &[], body.as_bytes());
    let text = "failed to register CUDA shared memory region: 'r', GPUs not supported";
    assert_eq!((answer.status, answer.error().as_str()), (400, text));
    assert_eq!(peer.get("/v2/cudasharedmemory/status").json(), json!([]));
    for (name, text) in [
        ("r", "Unable to find cuda shared memory region: 'r'"),
        ("system", "The region named 'system' is registered as system shared memory, not CUDA shared memory"),
    ] {
        let answer = peer.get(&format!("/v2/cudasharedmemory/region/{name}/status"));
        assert_eq!((answer.status, answer.error().as_str()), (404, text));
    }
    let mut grpc = Grpc::connect(server.grpc);
    let status: CudaSharedMemoryStatusResponse =
        grpc.call("CudaSharedMemoryStatus", &CudaSharedMemoryStatusRequest::default()).unwrap();
    assert_eq!(status.regions.len(), 0);
    let unregister: Result<CudaSharedMemoryUnregisterResponse, _> =
        grpc.call("CudaSharedMemoryUnregister", &CudaSharedMemoryUnregisterRequest { name: "system".into() });
    assert!(unregister.is_ok());
    assert_eq!(listed(&mut peer), ["system"]);
    server.stop();
}

/// More than a shard writes itself.
#[test]
fn long_lists_are_whole() {
    let (_repository, server) = start(usual(), &[ALLOWED]);
    let mut peer = Peer::connect(server.http);
    let object = Object::new(b"abcd");
    let names: Vec<String> = (0..400).map(|number| format!("r{number:03}")).collect();
    names.iter().for_each(|name| registered(&mut peer, name, &object, 4));
    assert_eq!(listed(&mut peer), names);
    let mut grpc = Grpc::connect(server.grpc);
    let status: SystemSharedMemoryStatusResponse =
        grpc.call("SystemSharedMemoryStatus", &SystemSharedMemoryStatusRequest::default()).unwrap();
    assert_eq!(status.regions.into_keys().collect::<Vec<_>>(), names);
    unregister(&mut peer, None);
    assert_eq!(listed(&mut peer), [""; 0]);
    server.stop();
}

/// Lines of the server's memory map that belong to the object.
fn mapped(server: &Server, object: &Object) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).expect("the server's memory map");
    maps.lines().filter(|line| line.contains(&object.key())).count()
}

#[test]
fn a_thousand_registrations_leave_nothing_behind() {
    let (_repository, server) = start(usual(), &[ALLOWED]);
    let mut peer = Peer::connect(server.http);
    let object = Object::new(&[1; 8192]);
    let values = input("INPUT0", "INT32", &[4], ("r", 0, 16));
    let window = output("OUTPUT0", ("r", 4096, 16));
    let mut descriptors = 0;
    for round in 0..1000 {
        registered(&mut peer, "r", &object, 8192);
        let answer = infer(&mut peer, "plain", std::slice::from_ref(&values), std::slice::from_ref(&window));
        assert_eq!(answer.status, 200, "{}", answer.text());
        unregister(&mut peer, Some("r"));
        assert_eq!(listed(&mut peer), [""; 0], "round {round}");
        if round == 0 {
            descriptors = server.descriptors();
        }
    }
    // The last pages go when whoever answered lets go of them.
    let started = std::time::Instant::now();
    while mapped(&server, &object) > 0 {
        assert!(
            started.elapsed() < nereid_test_support::server::PATIENCE,
            "{} mappings stay",
            mapped(&server, &object)
        );
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(server.descriptors() <= descriptors, "{} descriptors after {descriptors}", server.descriptors());
    server.stop();
}
