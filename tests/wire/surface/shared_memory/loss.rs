//! Regions that are unregistered, removed or truncated while they are used.

use std::time::{Duration, Instant};

use super::*;
use nereid_test_support::grpc::code;
use nereid_test_support::http::request;
use nereid_test_support::variant::{self, each, usual};

const LOST: &str = "shared memory region 'r' has lost its memory: the object was truncated, or its file system is full";

/// Times that an execution takes of which a test says that it is not over yet: longer and longer, as a busy machine may
/// have to have them.
const DELAYS_MS: [u32; 3] = [1_500, 10_000, 60_000];

/// `plain`, and `slow`, which takes `delay_ms`.
fn start_delayed(variant: Variant, delay_ms: u32) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let delay = format!("parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{delay_ms}\" }} }}");
    repository.identity_of("identity", "slow", 0, &[Pair::new("INT32", "-1")], &delay);
    let server = Server::start(variant, repository.path(), &[ALLOWED, "--log-verbose=1"]);
    (repository, server)
}

#[test]
fn an_unregistered_region_serves_its_last_request() {
    each(&variant::ALL, |variant| {
        let in_time = DELAYS_MS.into_iter().any(|delay_ms| unregistered_in_time(variant, delay_ms));
        assert!(in_time, "a region that is unregistered while it is in use has no use");
    });
}

/// False: the last request was over before the test had seen what it keeps.
fn unregistered_in_time(variant: Variant, delay_ms: u32) -> bool {
    let (_repository, server) = start_delayed(variant, delay_ms);
    let (mut peer, mut slow) = (Peer::connect(server.http), Peer::connect(server.http));
    let object = Object::new(&[&int32s(1..=4)[..], &[0; 16]].concat());
    registered(&mut peer, "r", &object, 32);
    let (values, window) = (input("INPUT0", "INT32", &[4], ("r", 0, 16)), output("OUTPUT0", ("r", 16, 16)));
    let body = json!({ "inputs": [values], "outputs": [window] }).to_string();
    let slow_request = request("POST", "/v2/models/slow/infer", &[], body.as_bytes());
    let mut sent = Instant::now();
    slow.send(&slow_request);
    // The region is in use once the model has the request.
    let counted = |peer: &mut Peer| {
        let stats = peer.get("/v2/models/slow/stats").json();
        stats["model_stats"][0]["inference_stats"]["success"]["count"].as_u64().expect("a count")
    };
    let started = Instant::now();
    loop {
        unregister(&mut peer, Some("r"));
        if listed(&mut peer) == ["r"] {
            break;
        }
        // Gone before the request came: once more.
        registered(&mut peer, "r", &object, 32);
        let answer = slow.answer();
        assert!(matches!(answer.status, 200 | 404), "{}", answer.text());
        sent = Instant::now();
        slow.send(&slow_request);
        assert!(started.elapsed() < nereid_test_support::server::PATIENCE, "the region is never in use");
    }
    let before = counted(&mut peer);
    let taken = register(&mut peer, "r", &object, 0, 32);
    let again = infer(&mut peer, "plain", std::slice::from_ref(&values), &[]);
    if sent.elapsed() >= Duration::from_millis(delay_ms.into()) {
        return false;
    }
    assert_eq!(taken.error(), "shared memory region 'r' already in manager");
    assert_eq!(again.json()["outputs"][0]["data"], json!([1, 2, 3, 4]), "it can be used");
    let answer = slow.answer();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(object.read(16, 16), int32s(1..=4));
    assert_eq!(listed(&mut peer), [""; 0], "gone with the answer");
    assert_eq!(counted(&mut peer), before + 1);
    let log = server.stop();
    let line = "Shared memory region 'r' will be unregistered after in-flight requests complete.";
    assert!(log.contains(line), "{log}");
    true
}

#[test]
fn a_removed_object_lives_on_in_its_region() {
    let (_repository, server) = start(usual(), &[ALLOWED]);
    let mut peer = Peer::connect(server.http);
    let object = Object::new(&[&int32s([5, 6])[..], &[0; 8]].concat());
    registered(&mut peer, "r", &object, 16);
    object.unlink();
    let values = input("INPUT0", "INT32", &[2], ("r", 0, 8));
    let answer = infer(&mut peer, "plain", &[values], &[output("OUTPUT0", ("r", 8, 8))]);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(object.read(8, 8), int32s([5, 6]));
    let again = register(&mut peer, "other", &object, 0, 16);
    assert_eq!(
        (again.status, again.error()),
        (500, format!("Unable to open shared memory region: '{}'", object.key()))
    );
    unregister(&mut peer, None);
    server.stop();
}

#[test]
fn a_truncated_region_fails_its_requests_and_nothing_else() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[ALLOWED]);
        let mut peer = Peer::connect(server.http);
        let intact = Object::new(&int32s([1, 2]));
        registered(&mut peer, "intact", &intact, 8);
        let text = strings(&[b"abc"]);
        for (model, datatype, bytes) in [("plain", "INT32", int32s([3, 4])), ("bytes", "BYTES", text.repeat(2))] {
            let object = Object::new(&bytes);
            object.truncate(3 * 4096);
            object.write(4096, &bytes);
            registered(&mut peer, "r", &object, 3 * 4096);
            let size = bytes.len() as u64;
            let near = input("INPUT0", datatype, &[2], ("r", 0, size));
            let far = input("INPUT0", datatype, &[2], ("r", 4096, size));
            let binary = json!({ "name": "OUTPUT0", "parameters": { "binary_data": true } });
            assert_eq!(infer(&mut peer, model, std::slice::from_ref(&far), &[]).status, 200);
            object.truncate(4096);
            // What is still there is still good.
            let answer = infer(&mut peer, model, std::slice::from_ref(&near), std::slice::from_ref(&binary));
            assert_eq!(answer.split().1, bytes);
            let answer = infer(&mut peer, model, std::slice::from_ref(&far), std::slice::from_ref(&binary));
            assert_eq!((answer.status, answer.error().as_str()), (500, LOST), "{model}");
            // The region stays lost until it is registered anew.
            object.truncate(3 * 4096);
            object.write(4096, &bytes);
            let answer = infer(&mut peer, model, std::slice::from_ref(&near), &[]);
            assert_eq!((answer.status, answer.error().as_str()), (500, LOST));
            unregister(&mut peer, Some("r"));
            registered(&mut peer, "r", &object, 3 * 4096);
            let answer = infer(&mut peer, model, &[far], &[binary]);
            assert_eq!(answer.split().1, bytes);
            unregister(&mut peer, Some("r"));
        }
        let values = input("INPUT0", "INT32", &[2], ("intact", 0, 8));
        assert_eq!(infer(&mut peer, "plain", &[values], &[]).json()["outputs"][0]["data"], json!([1, 2]));
        server.stop();
    });
}

/// Pages go while a model has the request, and while its answer is written.
#[test]
fn a_region_that_is_truncated_meanwhile() {
    // On a busy machine the execution may be over before the region is truncated: then it takes longer.
    let in_time = DELAYS_MS.into_iter().any(truncated_in_time);
    assert!(in_time, "a region that is truncated meanwhile is not missed");
}

/// False: the request was answered before the region was truncated.
fn truncated_in_time(delay_ms: u32) -> bool {
    let (_repository, server) = start_delayed(usual(), delay_ms);
    let mut peer = Peer::connect(server.http);
    let object = Object::new(&vec![1; 1 << 20]);
    registered(&mut peer, "r", &object, 1 << 20);
    let mut grpc = Grpc::connect(server.grpc);
    let ask = |outputs| ModelInferRequest {
        model_name: "slow".into(),
        inputs: vec![grpc_input("INPUT0", "INT32", &[1 << 16], grpc_place(("r", 0, 1 << 18)))],
        outputs,
        ..Default::default()
    };
    let window = vec![grpc_output("OUTPUT0", grpc_place(("r", 1 << 19, 1 << 18)))];
    let mut call = grpc.open("/inference.GRPCInferenceService/ModelInfer", &[]);
    let began = Instant::now();
    grpc.send(&mut call, &ask(window));
    grpc.half_close(&mut call);
    grpc.flush();
    // The request is being executed, or has not even come: the answer is the same.
    object.truncate(1 << 19);
    let in_time = began.elapsed() < Duration::from_millis(delay_ms.into());
    let status = grpc.finish(call).status;
    if !in_time && status.code == code::OK {
        return false;
    }
    assert_eq!((status.code, status.message.as_str()), (13, LOST));
    // Others are served as before.
    let answer =
        infer(&mut peer, "plain", &[json!({ "name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1] })], &[]);
    assert_eq!(answer.status, 200);
    server.stop();
    true
}

/// A client that leaves, and one that is refused, give their regions back.
#[test]
fn clients_that_leave_hold_nothing() {
    let (_repository, server) = start(usual(), &[ALLOWED]);
    let mut peer = Peer::connect(server.http);
    let object = Object::new(&int32s([3, 4]));
    registered(&mut peer, "r", &object, 8);
    let body = json!({ "inputs": [input("INPUT0", "INT32", &[2], ("r", 0, 8))] }).to_string();
    for _ in 0..3 {
        let mut leaving = Peer::connect(server.http);
        leaving.send(&request("POST", "/v2/models/slow/infer", &[], body.as_bytes()));
    }
    unregister(&mut peer, Some("r"));
    let started = std::time::Instant::now();
    while !listed(&mut peer).is_empty() {
        assert!(started.elapsed() < nereid_test_support::server::PATIENCE, "the region is never given back");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    server.stop();
}

/// SIGBUS means the end where it has nothing to do with a region, also when the server deals with those that have.
#[test]
fn other_bus_errors_end_the_process() {
    use std::os::unix::process::ExitStatusExt;
    let (_repository, server) = start(usual(), &[ALLOWED]);
    let mut peer = Peer::connect(server.http);
    let object = Object::new(&[0; 8192]);
    registered(&mut peer, "r", &object, 8192);
    object.truncate(0);
    let answer = infer(&mut peer, "plain", &[input("INPUT0", "INT32", &[2], ("r", 4096, 8))], &[]);
    assert_eq!((answer.status, answer.error().as_str()), (500, LOST));
    nereid_test_support::server::signal(server.pid(), "BUS");
    let (status, _) = server.wait();
    assert_eq!(status.signal(), Some(7), "{status}");
}

/// A request finds its region or it does not; in between there is nothing.
#[test]
fn regions_come_and_go_under_load() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &[ALLOWED]);
        let mut peer = Peer::connect(server.http);
        let (clients, rounds, size) = (4u64, 150, 4096u64);
        let object = Object::new(&vec![0; (2 * clients * size) as usize]);
        registered(&mut peer, "r", &object, 2 * clients * size);
        std::thread::scope(|scope| {
            let serve = |client: u64| {
                let (object, address) = (&object, server.http);
                move || {
                    let mut peer = Peer::connect(address);
                    let (from, to) = (2 * client * size, (2 * client + 1) * size);
                    let mut served = 0;
                    // Until the region was there often enough.
                    while served < rounds {
                        let numbers = int32s((0..1024).map(|number| number * (served + 1) + client as i32));
                        object.write(from, &numbers);
                        let values = input("INPUT0", "INT32", &[1024], ("r", from, size));
                        let answer = infer(&mut peer, "plain", &[values], &[output("OUTPUT0", ("r", to, size))]);
                        match answer.status {
                            200 => assert!(object.read(to, size as usize) == numbers, "client {client}"),
                            404 => assert_eq!(answer.error(), "Unable to find shared memory region: 'r'"),
                            other => panic!("{other}: {}", answer.text()),
                        }
                        served += i32::from(answer.status == 200);
                    }
                }
            };
            let running: Vec<_> = (0..clients).map(|client| scope.spawn(serve(client))).collect();
            while !running.iter().all(|client| client.is_finished()) {
                unregister(&mut peer, Some("r"));
                let answer = register(&mut peer, "r", &object, 0, 2 * clients * size);
                // The one that is still in use keeps its name.
                assert!(matches!(answer.status, 200 | 400), "{}", answer.text());
                if answer.status == 200 {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            }
        });
        server.stop();
    });
}
