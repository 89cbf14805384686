//! Calls over the ring are answered as those over gRPC: responses, errors, streams, deadlines, restricted groups.

use std::time::Duration;

use bytes::Bytes;
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};

use super::*;
use crate::grpc::message::{numbers, parameter};
use crate::surface::http_streaming::repeat_config;
use crate::surface::metrics::wait_for;
use nereid_test_support::grpc::{Grpc, code, frame_bytes};
use nereid_test_support::variant::{self, each, usual};

/// The same unary call over gRPC and over the ring.
fn both(grpc: &mut Grpc, client: &mut Client, rpc: &str, message: &[u8]) {
    let reply = grpc.exchange(&method(rpc), &[], &[frame_bytes(0, message)]);
    let route = client.route(&method(rpc), &[]).expect("a route");
    let this = client.begin(route, message, true, None).expect("a call");
    let (messages, status) = finish(client, this);
    assert_eq!((status.code, &*status.text), (reply.status.code, &*reply.status.message), "{rpc}");
    let expected: Vec<&[u8]> = reply.messages.iter().map(|message| &message[..]).collect();
    assert_eq!(messages, expected, "{rpc}");
}

#[test]
fn unary_calls_are_answered_as_over_grpc() {
    each(&variant::ALL, |variant| {
        let repository = plain();
        repository.every_datatype().model("repeat", &repeat_config());
        let (server, path) = start(variant, &repository, &[]);
        let (mut grpc, mut client) = (Grpc::connect(server.grpc), connect(&path));
        let plain = numbers("plain", "id", &[1, -2, 3]);
        let short = ModelInferRequest { raw_input_contents: vec![Bytes::from_static(b"abc")], ..plain.clone() };
        let none = ModelInferRequest { raw_input_contents: Vec::new(), ..plain.clone() };
        let large = numbers("plain", "", &(0..300_000).collect::<Vec<i32>>());
        let strings = ModelInferRequest {
            model_name: "identity_bytes".to_owned(),
            inputs: vec![InferInputTensor {
                name: "INPUT0".to_owned(),
                datatype: "BYTES".to_owned(),
                shape: vec![1, 2],
                ..Default::default()
            }],
            raw_input_contents: vec![Bytes::from_static(b"\x02\0\0\0ab\0\0\0\0")],
            ..Default::default()
        };
        // Each twice: the second time the plan cache may know it.
        for _ in 0..2 {
            for request in [&plain, &short, &none, &large, &strings, &numbers("absent", "x", &[1])] {
                both(&mut grpc, &mut client, "ModelInfer", &request.encode_to_vec());
            }
            both(&mut grpc, &mut client, "ModelInfer", &numbers("repeat", "", &[1]).encode_to_vec());
            both(&mut grpc, &mut client, "ModelInfer", b"no message");
        }
        for rpc in ["ServerLive", "ServerReady", "ServerMetadata", "NoSuchMethod"] {
            both(&mut grpc, &mut client, rpc, b"");
        }
        let metadata = ModelMetadataRequest { name: "plain".to_owned(), version: String::new() };
        both(&mut grpc, &mut client, "ModelMetadata", &metadata.encode_to_vec());
        let config = ModelConfigRequest { name: "absent".to_owned(), version: String::new() };
        both(&mut grpc, &mut client, "ModelConfig", &config.encode_to_vec());
        server.stop();
    });
}

#[test]
fn many_calls_are_open_at_a_time_and_each_gets_its_own_answer() {
    each(&variant::ALL, |variant| {
        let repository = plain();
        let (server, path) = start(variant, &repository, &[]);
        let (mut client, route) = client(&path);
        for spin in [Duration::ZERO, Duration::from_micros(20)] {
            client.spin_for(spin);
            let mut open = std::collections::HashMap::new();
            for number in 0..2_000 {
                let request = numbers("plain", &number.to_string(), &[number, -number]);
                let call = client.begin(route, &request.encode_to_vec(), true, None).expect("a call");
                open.insert(call, number);
                while open.len() >= 64 {
                    take_one(&mut client, &mut open);
                }
            }
            while !open.is_empty() {
                take_one(&mut client, &mut open);
            }
        }
        let requests = ModelStatisticsRequest { name: "plain".to_owned(), version: String::new() };
        let route = client.route(&method("ModelStatistics"), &[]).expect("a route");
        let counted = client.call(route, &requests.encode_to_vec()).expect("a connection").expect("statistics");
        let counted = ModelStatisticsResponse::decode(&*counted).expect("statistics");
        assert_eq!(counted.model_stats[0].inference_count, 4_000);
        server.stop();
    });
}

fn take_one(client: &mut Client, open: &mut std::collections::HashMap<u32, i32>) {
    match next(client) {
        ClientEvent::Message { call, message } => {
            let response = ModelInferResponse::decode(&*message).expect("a response");
            let number = open[&call];
            assert_eq!(response.id, number.to_string());
            let expected = [number.to_le_bytes(), (-number).to_le_bytes()].concat();
            assert_eq!(response.raw_output_contents[0], expected);
        }
        ClientEvent::End { call, status } => {
            assert_eq!(status.code, code::OK, "{status:?}");
            assert!(open.remove(&call).is_some());
        }
    }
}

#[test]
fn a_decoupled_model_sends_its_responses_on_a_stream() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        repository.model("repeat", &repeat_config());
        let (server, path) = start(variant, &repository, &[]);
        let mut client = connect(&path);
        let route = client.route(STREAM, &[]).expect("a route");
        let tensor = |name: &str, datatype: &str, len: i64| InferInputTensor {
            name: name.to_owned(),
            datatype: datatype.to_owned(),
            shape: vec![len],
            ..Default::default()
        };
        let of = |id: &str, values: &[i32]| {
            let len = values.len() as i64;
            let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let zeros = vec![0; values.len()];
            ModelInferRequest {
                model_name: "repeat".to_owned(),
                id: id.to_owned(),
                inputs: vec![tensor("IN", "INT32", len), tensor("DELAY", "UINT32", len), tensor("WAIT", "UINT32", 1)],
                raw_input_contents: vec![values.into(), zeros.into(), vec![0; 4].into()],
                ..Default::default()
            }
        };
        let this = client.begin(route, &of("a", &[7, -8, 9]).encode_to_vec(), false, None).expect("a call");
        for expected in [7i32, -8, 9] {
            let ClientEvent::Message { call, message } = next(&mut client) else { panic!("the stream ended") };
            let response = ModelStreamInferResponse::decode(&*message).expect("a response");
            assert_eq!((call, &*response.error_message), (this, ""));
            let response = response.infer_response.expect("a response");
            assert_eq!((&*response.id, &response.raw_output_contents[0][..]), ("a", &expected.to_le_bytes()[..]));
        }
        // More than the ring holds at a time.
        let many: Vec<i32> = (0..5_000).collect();
        client.send(this, &of("b", &many).encode_to_vec(), true).expect("a request");
        let (messages, status) = finish(&mut client, this);
        assert_eq!((messages.len(), status.code), (many.len(), code::OK));
        server.stop();
    });
}

#[test]
fn tensors_lie_in_the_arena() {
    each(&variant::ALL, |variant| {
        let repository = plain();
        repository.identity("strings", 0, &[Pair::new("BYTES", "-1")]);
        let (server, path) = start(variant, &repository, &["--ipc-arena-bytes=1048576"]);
        let (mut client, route) = client(&path);
        let name = String::from_utf8(client.arena().0.to_vec()).expect("a name");
        assert_eq!(client.arena().1, 1 << 20);
        let place = |name: &str, offset: i64, len: i64| {
            [
                ("shared_memory_region", ParameterChoice::StringParam(name.to_owned())),
                ("shared_memory_offset", ParameterChoice::Int64Param(offset)),
                ("shared_memory_byte_size", ParameterChoice::Int64Param(len)),
            ]
            .map(|(key, value)| (key.to_owned(), parameter(value)))
            .into()
        };
        let request = |model: &str, datatype: &str, count: i64, from: (i64, i64), to: (i64, i64)| ModelInferRequest {
            model_name: model.to_owned(),
            inputs: vec![InferInputTensor {
                name: "INPUT0".to_owned(),
                datatype: datatype.to_owned(),
                shape: vec![count],
                parameters: place(&name, from.0, from.1),
                ..Default::default()
            }],
            outputs: vec![InferRequestedOutputTensor {
                name: "OUTPUT0".to_owned(),
                parameters: place(&name, to.0, to.1),
            }],
            ..Default::default()
        };
        let numbers: Vec<u8> = (0..100_000i32).flat_map(i32::to_le_bytes).collect();
        let len = numbers.len() as i64;
        for from in [0, 64, 4096] {
            assert!(client.write_arena(from, &numbers));
            let there = (from as i64, len);
            let response = infer(&mut client, route, &request("plain", "INT32", 100_000, there, (500_032, len)));
            assert!(response.expect("a response").raw_output_contents.iter().all(Bytes::is_empty));
            assert_eq!(client.read_arena(500_032, numbers.len()).expect("in the arena"), numbers, "{from}");
        }
        let strings = b"\x02\0\0\0ab\x03\0\0\0cde";
        assert!(client.write_arena(3, strings));
        let there = (3, strings.len() as i64);
        infer(&mut client, route, &request("strings", "BYTES", 2, there, (1000, 100))).expect("a response");
        assert_eq!(client.read_arena(1000, strings.len()).expect("in the arena"), strings);
        for (from, to, text) in [
            ((1 << 20, 4), (0, 4), "Invalid offset for shared memory region"),
            (((1 << 20) - 2, 4), (0, 4), "Invalid offset + byte size for shared memory region"),
            ((-4, 4), (0, 4), "Invalid offset for shared memory region"),
            ((8, i64::MAX), (0, 4), "Invalid offset + byte size for shared memory region"),
            ((0, 4), (1 << 20, 4), "Invalid offset for shared memory region"),
        ] {
            let refused = infer(&mut client, route, &request("plain", "INT32", 1, from, to)).expect_err(text);
            assert!(refused.code == code::INVALID_ARGUMENT && refused.text.starts_with(text), "{refused:?}");
        }
        // No list shows it.
        let route = client.route(&method("SystemSharedMemoryStatus"), &[]).expect("a route");
        let list = client.call(route, b"").expect("a connection").expect("a list");
        let list = SystemSharedMemoryStatusResponse::decode(&*list).expect("a list");
        assert!(list.regions.is_empty(), "{list:?}");
        server.stop();
    });
}

/// The answer comes when nothing has moved in the ring for long, from a thread of the model.
#[test]
fn a_late_answer_that_is_larger_than_the_ring_comes_whole() {
    each(&variant::ALL, |variant| {
        let repository = Repository::new();
        let delay = "parameters { key: \"execute_delay_ms\" value { string_value: \"50\" } }";
        repository.identity_of("identity", "late", 0, &[Pair::new("INT32", "-1")], delay);
        let (server, path) = start(variant, &repository, &["--ipc-ring-bytes=65536"]);
        let (mut client, route) = client(&path);
        // At a ringful a second it would be far beyond the time that an answer has.
        let request = numbers("late", "", &(0..6_000_000).collect::<Vec<i32>>());
        let response = infer(&mut client, route, &request).expect("a response");
        assert_eq!(response.raw_output_contents, request.raw_input_contents);
        server.stop();
    });
}

/// A server without rings has none of these families: tests of the metrics page have all that it has.
#[test]
fn metrics_show_clients_and_what_their_memory_may_take() {
    each(&variant::ALL, |variant| {
        let repository = plain();
        let flags = ["--ipc-connections=2", "--ipc-ring-bytes=65536", "--ipc-arena-bytes=8192"];
        let (server, path) = start(variant, &repository, &flags);
        let of_each = (4096 + 2 * 65_536 + 8192) as f64;
        let page = wait_for(&server, "no client", |page| page.value("nereid_ipc_clients", &[]) == 0.0);
        assert_eq!(page.value("nereid_ipc_bytes_limit", &[]), 2.0 * of_each);
        let clients = [connect(&path), connect(&path)];
        let Err(nereid_ipc::ClientError::Refused { code: code::RESOURCE_EXHAUSTED, .. }) = Client::connect(&path.0)
        else {
            panic!("a third client")
        };
        let page = wait_for(&server, "two clients", |page| page.value("nereid_ipc_clients", &[]) == 2.0);
        assert_eq!(page.value("nereid_ipc_bytes", &[]), 2.0 * of_each);
        for (reason, count) in [("clients", 1.0), ("user", 0.0), ("failure", 0.0)] {
            assert_eq!(page.value("nereid_ipc_refused_clients_total", &[("reason", reason)]), count, "{reason}");
        }
        drop(clients);
        wait_for(&server, "no client again", |page| page.value("nereid_ipc_clients", &[]) == 0.0);
        server.stop();
    });
}

#[test]
fn calls_are_cancelled_and_expire() {
    each(&variant::ALL, |variant| {
        let repository = plain();
        repository.identity_of("identity", "slow", 0, &[Pair::new("INT32", "-1")], SLOW);
        let (server, path) = start(variant, &repository, &[]);
        let (mut client, route) = client(&path);
        // The first occupies the only instance, the second waits.
        let message = numbers("slow", "", &[1]).encode_to_vec();
        let first = client.begin(route, &message, true, None).expect("a call");
        let second = client.begin(route, &message, true, None).expect("a call");
        let expiring = client.begin(route, &message, true, Some(Duration::from_millis(1))).expect("a call");
        let (messages, status) = finish(&mut client, expiring);
        assert_eq!((messages.len(), status.code, &*status.text), (0, 4, "Deadline Exceeded"));
        client.cancel(second).expect("to cancel");
        client.cancel(first).expect("to cancel");
        client.cancel(first).expect("to cancel what is over");
        client.cancel(4711).expect("to cancel what was not");
        let answer = infer(&mut client, route, &numbers("plain", "later", &[5])).expect("an answer");
        assert_eq!(answer.id, "later");
        // It ends without a drain: a model is still executing.
        assert!(!server.log().contains("panicked at"), "{}", server.log());
    });
}

#[test]
fn restricted_groups_demand_their_keys_in_the_metadata() {
    let repository = plain();
    let flags = ["--grpc-restricted-protocol=inference:admin=secret"];
    let (server, path) = start(usual(), &repository, &flags);
    let mut client = connect(&path);
    let message = numbers("plain", "", &[1]).encode_to_vec();
    for (metadata, is_let_in) in [
        (&[][..], false),
        (&[(&b"triton-grpc-protocol-admin"[..], &b"wrong"[..])], false),
        (&[(&b"triton-grpc-protocol-admin"[..], &b"secret"[..])], true),
    ] {
        let route = client.route(INFER, metadata).expect("a route");
        let outcome = client.call(route, &message).expect("a connection");
        match outcome {
            Ok(_) => assert!(is_let_in),
            Err(status) => {
                let text = "This protocol is restricted, expecting header 'triton-grpc-protocol-admin'";
                assert_eq!((is_let_in, status.code, &*status.text), (false, code::UNAVAILABLE, text));
            }
        }
    }
    server.stop();
}

#[test]
fn a_client_reads_that_the_server_ends() {
    each(&variant::ALL, |variant| {
        let repository = plain();
        let (server, path) = start(variant, &repository, &[]);
        let (mut client, route) = client(&path);
        infer(&mut client, route, &numbers("plain", "", &[1])).expect("an answer");
        server.terminate();
        let end = loop {
            match client.next(Some(PATIENCE)) {
                Ok(event) => assert_eq!(event, None),
                Err(error) => break error,
            }
        };
        assert!(matches!(end, nereid_ipc::ClientError::Closed(_)), "{end}");
        let (status, log) = server.wait();
        assert!(status.success(), "{log}");
        assert!(!path.0.exists(), "the file goes with the server");
    });
}
