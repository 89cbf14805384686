//! Clients that read slowly or disconnect: one worker answers many requests, and none of them delays the others.

use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{ModelInferRequest, ModelStreamInferResponse};
use serde_json::json;

use super::models;
use nereid_test_support::grpc::{Exchange, Grpc, SERVICE, code, decode};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::repository::Repository;
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, Variant, each};

/// One instance that answers COUNT times from a thread of its own for each request.
fn serve(variant: Variant) -> Option<(Repository, Server)> {
    let repository = models::repository(&["several"]);
    let config = std::fs::read_to_string(repository.path().join("several/config.pbtxt")).expect("a configuration");
    repository.file("several/config.pbtxt", config.replace("count: 2", "count: 1"));
    let server = models::serve(variant, &repository, &[])?;
    Some((repository, server))
}

fn begin(server: &Server, count: i32, size: i32) -> Peer {
    let mut peer = Peer::connect(server.http);
    let body = json!({"COUNT": count, "SIZE": size}).to_string();
    peer.send(&request("POST", "/v2/models/several/generate_stream", &[], body.as_bytes()));
    assert_eq!(peer.head().status, 200);
    peer
}

/// The events of a stream to its end.
fn rest(peer: &mut Peer) -> Vec<String> {
    let mut text = Vec::new();
    while let Some(chunk) = peer.chunk() {
        text.extend(chunk);
    }
    let text = String::from_utf8(text).expect("UTF-8");
    text.split("\n\n").filter(|event| !event.is_empty()).map(str::to_owned).collect()
}

#[test]
fn who_reads_slowly_does_not_hold_up_the_others() {
    each(&variant::ALL, |variant| {
        let Some((_repository, server)) = serve(variant) else { return };
        // More than any buffer on the way takes, and nobody reads it.
        let mut slow: Vec<Peer> = (0..2).map(|_| begin(&server, 300, 3_000)).collect();
        for count in [0, 1, 40] {
            let events = rest(&mut begin(&server, count, 3));
            assert_eq!(events.len(), count as usize, "{events:?}");
        }
        // Nothing of it is lost, and its order is what it was.
        for peer in &mut slow {
            let events = rest(peer);
            assert_eq!(events.len(), 300);
            for (at, event) in events.iter().enumerate() {
                let data = event.strip_prefix("data: ").unwrap_or_else(|| panic!("{at}: {event}"));
                let answer: serde_json::Value = serde_json::from_str(data).expect("JSON");
                let out = answer["OUT"].as_array().unwrap_or_else(|| panic!("{at}: {data}"));
                assert!(out.len() == 3_000 && out.iter().all(|value| *value == json!(at)), "{at}");
            }
        }
    });
}

/// A shared word says so, which the model's thread looks at: an endless answer ends, or its instance never would.
#[test]
fn who_leaves_is_seen_to_have_left() {
    each(&variant::ALL, |variant| {
        let Some((_repository, server)) = serve(variant) else { return };
        let mut peers: Vec<Peer> = (0..3).map(|_| begin(&server, -1, 3)).collect();
        for peer in &mut peers {
            assert!(peer.chunk().is_some());
        }
        drop(peers);
        // Its end waits for the model's threads, each of which ends with its request.
        let log = server.stop();
        assert!(!log.contains("Exit timeout expired"), "{log}");
    });
}

/// A stream with one request to a model of COUNT and SIZE.
fn stream(grpc: &mut Grpc, model: &str, count: i32, size: i32) -> Exchange {
    let input = |name: &str| InferInputTensor {
        name: name.to_owned(),
        datatype: "INT32".to_owned(),
        shape: vec![1],
        ..Default::default()
    };
    let request = ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![input("COUNT"), input("SIZE")],
        raw_input_contents: [count, size].map(|value| value.to_le_bytes().to_vec().into()).to_vec(),
        ..Default::default()
    };
    let mut exchange = grpc.open(&format!("{SERVICE}ModelStreamInfer"), &[]);
    grpc.send(&mut exchange, &request);
    grpc.half_close(&mut exchange);
    grpc.flush();
    exchange
}

/// Demands the response with this number.
fn must_be(message: &[u8], number: i32, size: usize) {
    let message: ModelStreamInferResponse = decode(&message.to_vec().into());
    let response = message.infer_response.unwrap_or_else(|| panic!("{number}: {}", message.error_message));
    let expected = number.to_le_bytes().repeat(size);
    assert!(response.raw_output_contents[0] == expected, "{number}");
}

/// One thread of the model sends all responses. One client leaves more than 16 MiB of them unread, which are more than
/// may be in flight. If the thread waited for this client, the other one would get nothing more until the server
/// disconnects the first, and so this would miss responses.
#[test]
fn one_thread_of_a_model_does_not_wait_for_one_client() {
    const COUNT: i32 = 440;
    const SIZE: usize = 16 << 10;
    each(&variant::ALL, |variant| {
        let repository = models::repository(&["one_sender"]);
        let Some(server) = models::serve(variant, &repository, &[]) else { return };
        let (mut slow, mut other) = (Grpc::connect(server.grpc), Grpc::connect(server.grpc));
        let mut unread = stream(&mut slow, "one_sender", COUNT, SIZE as i32);
        let mut read = stream(&mut other, "one_sender", COUNT, 1);
        let mut seen = 0;
        for number in 0..COUNT {
            let message = other.next(&mut read).expect("a response");
            must_be(&message, number, 1);
            // Now and then, so that the server does not take the client for dead, however slow this host is.
            if number % 40 == 39 {
                must_be(&slow.next(&mut unread).expect("a response"), seen, SIZE);
                seen += 1;
            }
        }
        for number in seen..COUNT {
            must_be(&slow.next(&mut unread).unwrap_or_else(|| panic!("response {number}")), number, SIZE);
        }
        assert_eq!(slow.finish(unread).status.code, code::OK);
        assert_eq!(other.finish(read).status.code, code::OK);
        server.stop();
    });
}
