//! Compressed requests and responses on both ports (contract/http.md section 5, contract/grpc.md section 7).

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::{GzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{
    ModelConfigResponse, ModelInferRequest, ModelInferResponse, ModelMetadataRequest, ModelStreamInferResponse,
    RepositoryIndexRequest, RepositoryIndexResponse, ServerLiveRequest, ServerLiveResponse,
};
use prost::Message;
use serde_json::json;

use nereid_test_support::grpc::{Grpc, Reply, SERVICE, code, decode, frame, frame_bytes};
use nereid_test_support::http::{Answer, Peer, request};
use nereid_test_support::python::Python;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, each, usual};

const INFER: &str = "/v2/models/plain/infer";

fn start_with(variant: variant::Variant, flags: &[&str]) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository.identity("two", 0, &[Pair::new("INT32", "-1"), Pair::new("UINT8", "-1")]);
    let server = Server::start(variant, repository.path(), flags);
    (repository, server)
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(plain).expect("pack");
    encoder.finish().expect("pack")
}

fn zlib(plain: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(plain).expect("pack");
    encoder.finish().expect("pack")
}

fn unpack(encoding: &str, packed: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let outcome = match encoding {
        "gzip" => GzDecoder::new(packed).read_to_end(&mut plain),
        "deflate" => ZlibDecoder::new(packed).read_to_end(&mut plain),
        other => panic!("{other} is no encoding"),
    };
    outcome.unwrap_or_else(|error| panic!("{encoding} of {} bytes: {error}", packed.len()));
    plain
}

/// A request for `values` whose data stands in the JSON.
fn json_body(values: &[i32]) -> Vec<u8> {
    let inputs = json!([{"name": "INPUT0", "datatype": "INT32", "shape": [values.len()], "data": values}]);
    json!({ "inputs": inputs }).to_string().into_bytes()
}

/// A request for values behind the JSON, with the length of the JSON.
fn binary_body(values: &[i32]) -> (Vec<u8>, String) {
    let inputs = json!([{
        "name": "INPUT0", "datatype": "INT32", "shape": [values.len()],
        "parameters": {"binary_data_size": 4 * values.len()}
    }]);
    let mut body = json!({ "inputs": inputs, "parameters": {"binary_data_output": true} }).to_string().into_bytes();
    let length = body.len().to_string();
    body.extend(bytes_of(values));
    (body, length)
}

fn bytes_of(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn data_of(answer: &Answer) -> Vec<i32> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let data = answer.json()["outputs"][0]["data"].clone();
    serde_json::from_value(data).expect("numbers")
}

#[test]
fn bodies_are_unpacked_whatever_their_header_calls_them() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start_with(variant, &[]);
        let mut peer = Peer::connect(server.http);
        for count in [1, 1000, 60_000] {
            let values: Vec<i32> = (0..count).collect();
            let body = json_body(&values);
            let halves = body.split_at(body.len() / 2);
            let members = [gzip(halves.0), gzip(halves.1)].concat();
            for packed in [&gzip(&body), &zlib(&body), &members] {
                for encoding in ["gzip", "deflate"] {
                    let answer = peer.post(INFER, &[("Content-Encoding", encoding)], packed);
                    assert_eq!(data_of(&answer), values, "{encoding}");
                    assert_eq!(answer.header("content-encoding"), None);
                }
            }
            for encoding in ["identity", ""] {
                let answer = peer.post(INFER, &[("Content-Encoding", encoding)], &body);
                assert_eq!(data_of(&answer), values, "{encoding:?}");
            }
        }
        server.stop();
    });
}

#[test]
fn lengths_count_in_the_unpacked_body() {
    let (_repository, server) = start_with(usual(), &[]);
    let mut peer = Peer::connect(server.http);
    for count in [1, 70_000] {
        let values: Vec<i32> = (0..count).map(|at| at / 3).collect();
        let (body, length) = binary_body(&values);
        for packed in [gzip(&body), zlib(&body)] {
            let headers = [("Content-Encoding", "gzip"), ("Inference-Header-Content-Length", &*length)];
            let answer = peer.post(INFER, &headers, &packed);
            assert_eq!(answer.status, 200, "{}", answer.text());
            let (json, tail) = answer.split();
            assert_eq!(json["outputs"][0]["parameters"]["binary_data_size"], 4 * count, "{json}");
            assert!(tail == bytes_of(&values), "the numbers are others");
            // Chunks of the transfer are around the packing.
            let mut bytes = format!(
                "POST {INFER} HTTP/1.1\r\nHost: t\r\nContent-Encoding: deflate\r\n\
                 Inference-Header-Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            .into_bytes();
            for part in packed.chunks(1000) {
                bytes.extend(format!("{:x}\r\n", part.len()).bytes().chain(part.iter().copied()).chain(*b"\r\n"));
            }
            bytes.extend(b"0\r\n\r\n");
            assert_eq!(peer.send(&bytes).answer().split().1, tail);
        }
    }
    // A raw body: all of it is the tensor.
    let raw: Vec<u8> = (0..300i32).flat_map(i32::to_le_bytes).collect();
    let headers = [("Content-Encoding", "gzip"), ("Inference-Header-Content-Length", "0")];
    let answer = peer.post(INFER, &headers, &gzip(&raw));
    assert_eq!(answer.split().1, raw, "{}", answer.text());
    server.stop();
}

#[test]
fn what_cannot_be_unpacked_is_refused_in_its_words() {
    let (_repository, server) = start_with(usual(), &["--http-max-input-size=3000"]);
    let mut peer = Peer::connect(server.http);
    let body = json_body(&[1]);
    let packed = gzip(&body);
    let noise: Vec<u8> = (0..2000u32).flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let mut wrong_sum = packed.clone();
    let at = wrong_sum.len() - 6;
    wrong_sum[at] ^= 1;
    let too_large = "Decompressed data size exceeds the maximum allowed value of 3000 bytes. Use --http-max-input-size \
                     to increase the limit.";
    let failed = "failed to decompress the request body: ";
    let table: &[(&str, &[u8], String)] = &[
        ("gzip", b"", "nothing to be decompressed".into()),
        ("deflate", b"", "nothing to be decompressed".into()),
        ("gzip", b"not packed", format!("{failed}the data is not in the format deflate")),
        ("gzip", b"\x1f\x8b rest", format!("{failed}the data is not in the format gzip")),
        ("deflate", &packed[..packed.len() - 1], format!("{failed}the data ends before its end")),
        ("gzip", &packed[..1], format!("{failed}the data ends before its end")),
        ("gzip", &wrong_sum, format!("{failed}the data is not in the format gzip")),
        ("gzip", &[&packed[..], b"\n"].concat(), format!("{failed}there is something behind the end of the data")),
        ("gzip", &gzip(&[b' '; 3001]), too_large.into()),
        // Longer than the bound in its packed form, too: what counts is inside.
        ("gzip", &gzip(&noise), too_large.into()),
        ("deflate", &zlib(&vec![b'['; 60 << 20]), too_large.into()),
    ];
    for (encoding, bytes, text) in table {
        let answer = peer.post(INFER, &[("Content-Encoding", encoding)], bytes);
        assert_eq!((answer.status, answer.error()), (400, text.clone()));
        assert_eq!(answer.header("content-type"), Some("text/plain"), "{text}");
    }
    for encoding in ["br", "GZIP", "x-gzip", "gzip, deflate", "gzip;q=1", "zstd"] {
        let answer = peer.post(INFER, &[("Content-Encoding", encoding)], &packed);
        assert_eq!((answer.status, &*answer.error()), (501, "Unsupported compression type"), "{encoding}");
        assert_eq!(answer.header("accept-encoding"), Some("gzip, deflate"));
        assert_eq!(answer.header("content-type"), Some("text/plain"));
    }
    // The header's length is held against what came out; the model is looked up before anything is unpacked.
    let headers = [("Content-Encoding", "gzip"), ("Inference-Header-Content-Length", "4000")];
    let answer = peer.post(INFER, &headers, &packed);
    let text = format!("inference header size should be in range (0, {}), got: 4000", body.len());
    assert_eq!((answer.status, answer.error()), (400, text));
    let answer = peer.post("/v2/models/absent/infer", &[("Content-Encoding", "br")], b"");
    assert_eq!(answer.status, 404, "{}", answer.text());
    // What is inside is judged as ever.
    let answer = peer.post(INFER, &[("Content-Encoding", "gzip")], &gzip(b"{"));
    assert_eq!(answer.status, 500, "{}", answer.text());
    assert!(answer.error().starts_with("failed to parse the request JSON buffer: "), "{}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(data_of(&peer.post(INFER, &[("Content-Encoding", "gzip")], &packed)), [1], "the connection is fine");
    server.stop();
}

#[test]
fn answers_are_packed_as_their_client_chooses() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start_with(variant, &[]);
        let mut peer = Peer::connect(server.http);
        let values: Vec<i32> = (0..100_000).collect();
        let long = json_body(&values);
        let short = json_body(&[1]);
        for (accepted, chosen) in [
            ("gzip", Some("gzip")),
            ("deflate", Some("deflate")),
            ("gzip, deflate, br", Some("gzip")),
            ("deflate;q=0.5, gzip;q=0.7", Some("gzip")),
            ("identity;q=0, deflate", Some("deflate")),
            ("identity, gzip", None),
            ("gzip;q=0", None),
            ("*", None),
            ("br", None),
        ] {
            for (body, values) in [(&short, &[1][..]), (&long, &values)] {
                let mut answer = peer.post(INFER, &[("Accept-Encoding", accepted)], body);
                assert_eq!(answer.header("content-encoding"), chosen, "{accepted}: {}", answer.status);
                assert_eq!(answer.header("content-type"), Some("application/json"));
                if let Some(encoding) = chosen {
                    answer.body = unpack(encoding, &answer.body);
                }
                assert_eq!(data_of(&answer), values, "{accepted}");
            }
        }
        // The length of the JSON is that of the plain one.
        let (body, length) = binary_body(&values);
        let headers = [("Inference-Header-Content-Length", &*length), ("Accept-Encoding", "deflate")];
        let mut answer = peer.post(INFER, &headers, &body);
        assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
        answer.body = unpack("deflate", &answer.body);
        let (json, tail) = answer.split();
        assert_eq!(json["outputs"][0]["parameters"]["binary_data_size"], 400_000);
        assert!(tail == bytes_of(&values), "the numbers are others");
        server.stop();
    });
}

#[test]
fn only_successful_inference_is_packed() {
    let (_repository, server) = start_with(usual(), &[]);
    let mut peer = Peer::connect(server.http);
    let accepts = [("Accept-Encoding", "gzip")];
    for (method, path, body, status) in [
        ("POST", INFER, &b"{}"[..], 500),
        ("POST", "/v2/models/absent/infer", b"{}", 404),
        ("GET", INFER, b"", 405),
        ("GET", "/v2", b"", 200),
        ("GET", "/v2/models/plain", b"", 200),
        ("GET", "/v2/models/plain/config", b"", 200),
        ("GET", "/v2/models/stats", b"", 200),
        ("POST", "/v2/repository/index", b"", 200),
    ] {
        let answer = peer.send(&request(method, path, &accepts, body)).answer();
        assert_eq!((answer.status, answer.header("content-encoding")), (status, None), "{method} {path}");
        assert!(answer.json().is_object() || answer.json().is_array(), "{method} {path}");
    }
    // Other routes take bodies as they are.
    let answer = peer.post("/v2/repository/index", &[("Content-Encoding", "gzip")], &gzip(b"{}"));
    assert_eq!(answer.status, 500, "{}", answer.text());
    server.stop();
}

#[test]
fn unpacking_leaves_turns_to_others() {
    let (_repository, server) = start_with(usual(), &[]);
    let spaces = vec![b' '; 60 << 20];
    let packed = gzip(&spaces);
    // On a busy machine it may be the other client that gets no turn: then a round says nothing.
    let most = (0..40).map(|_| answered_beside(&server, &packed)).find(|between| *between > 20);
    assert!(most.is_some(), "in forty rounds no more than 20 requests were answered while one was unpacked");
    server.stop();
}

/// Requests that are answered while this body is unpacked.
fn answered_beside(server: &Server, packed: &[u8]) -> u32 {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let bomb = scope.spawn(|| {
            let answer = Peer::connect(server.http).post(INFER, &[("Content-Encoding", "gzip")], packed);
            is_over.store(true, Ordering::SeqCst);
            answer
        });
        let mut peer = Peer::connect(server.http);
        let mut between = 0;
        while !is_over.load(Ordering::SeqCst) {
            assert_eq!(data_of(&peer.post(INFER, &[], &json_body(&[7]))), [7]);
            between += 1;
        }
        let answer = bomb.join().expect("the client of the bomb");
        assert_eq!(answer.error(), "failed to parse the request JSON buffer: The document is empty. at 62914560");
        between
    })
}

fn raw_request(id: &str, values: &[i32]) -> ModelInferRequest {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let shape = vec![values.len() as i64];
    ModelInferRequest {
        model_name: "plain".into(),
        id: id.into(),
        inputs: vec![InferInputTensor { name: "INPUT0".into(), datatype: "INT32".into(), shape, ..Default::default() }],
        raw_input_contents: vec![bytes.into()],
        ..Default::default()
    }
}

fn packed_frame(encoding: &str, message: &impl Message) -> Bytes {
    let plain = message.encode_to_vec();
    frame_bytes(1, &if encoding == "gzip" { gzip(&plain) } else { zlib(&plain) })
}

fn check(answer: &ModelInferResponse, request: &ModelInferRequest) {
    assert_eq!(answer.id, request.id);
    assert!(answer.raw_output_contents == request.raw_input_contents, "{}: other bytes", request.id);
}

#[test]
fn messages_are_unpacked_in_every_method() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start_with(variant, &[]);
        let mut grpc = Grpc::connect(server.grpc);
        for encoding in ["gzip", "deflate"] {
            let headers = [("grpc-encoding", encoding)];
            for count in [0, 1, 1_000_000] {
                let request = raw_request("r", &(0..count).map(|at| at / 5).collect::<Vec<_>>());
                let path = format!("{SERVICE}ModelInfer");
                // Packed, and plain on a call that could be packed.
                for piece in [packed_frame(encoding, &request), frame(&request)] {
                    let reply = grpc.exchange(&path, &headers, &[piece]);
                    assert_eq!(reply.status.code, code::OK, "{encoding} {count}: {:?}", reply.status);
                    check(&decode(&reply.messages[0]), &request);
                    assert!(!reply.headers.contains_key("grpc-encoding"), "{:?}", reply.headers);
                }
            }
            let live = grpc.exchange(
                &format!("{SERVICE}ServerLive"),
                &headers,
                &[packed_frame(encoding, &ServerLiveRequest::default())],
            );
            assert!(decode::<ServerLiveResponse>(&live.messages[0]).live);
            let index = packed_frame(encoding, &RepositoryIndexRequest::default());
            let index = grpc.exchange(&format!("{SERVICE}RepositoryIndex"), &headers, &[index]);
            assert_eq!(decode::<RepositoryIndexResponse>(&index.messages[0]).models.len(), 2);
            let named = ModelMetadataRequest { name: "plain".into(), version: String::new() };
            let config = grpc.exchange(&format!("{SERVICE}ModelConfig"), &headers, &[packed_frame(encoding, &named)]);
            let config: ModelConfigResponse = decode(&config.messages[0]);
            assert_eq!(config.config.expect("a configuration").name, "plain");
        }
        server.stop();
    });
}

#[test]
fn a_stream_answers_in_order_while_messages_are_unpacked_and_packed() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start_with(variant, &["--grpc-infer-response-compression-level=low"]);
        let mut grpc = Grpc::connect(server.grpc);
        for (encoding, accepted, packs) in [("gzip", "gzip", true), ("deflate", "identity", false)] {
            let headers = [("grpc-encoding", encoding), ("grpc-accept-encoding", accepted)];
            let mut exchange = grpc.open(&format!("{SERVICE}ModelStreamInfer"), &headers);
            let mut requests = Vec::new();
            for at in 0..24 {
                // Long ones with short ones behind them, packed and plain.
                let count = if at % 3 == 0 { 300_000 } else { 2 };
                let request = raw_request(&at.to_string(), &(0..count).map(|i| i % (at + 5)).collect::<Vec<_>>());
                let piece = if at % 4 == 1 { frame(&request) } else { packed_frame(encoding, &request) };
                grpc.send_bytes(&mut exchange, piece);
                requests.push(request);
            }
            grpc.half_close(&mut exchange);
            let reply = grpc.finish(exchange);
            assert_eq!((reply.status.code, reply.messages.len()), (code::OK, requests.len()), "{:?}", reply.status);
            for ((message, flag), request) in reply.messages.iter().zip(&reply.flags).zip(&requests) {
                // What would not become shorter is left as it is.
                let is_long = request.raw_input_contents[0].len() > 8;
                assert!(*flag == u8::from(packs) || (packs && !is_long), "{flag} of {}", request.id);
                let plain = if *flag == 1 { unpack(accepted, message).into() } else { message.clone() };
                let answer: ModelStreamInferResponse = decode(&plain);
                assert_eq!(answer.error_message, "");
                check(&answer.infer_response.expect("a response"), request);
            }
        }
        server.stop();
    });
}

#[test]
fn messages_that_cannot_be_unpacked_end_the_call() {
    let (_repository, server) = start_with(usual(), &[]);
    let mut grpc = Grpc::connect(server.grpc);
    let request = raw_request("r", &[1, 2, 3]);
    let plain = request.encode_to_vec();
    let half = gzip(&plain);
    let half = &half[..half.len() - 3];
    let trailing = [&gzip(&plain)[..], b"x"].concat();
    let broken = |algorithm: &str| format!("Unexpected error decompressing data for algorithm {algorithm}");
    for method in ["ModelInfer", "ModelStreamInfer", "ServerLive"] {
        let path = format!("{SERVICE}{method}");
        let table: &[(&str, Bytes, u32, String)] = &[
            ("gzip", frame_bytes(1, &plain), code::INTERNAL, broken("gzip")),
            ("gzip", frame_bytes(1, b""), code::INTERNAL, broken("gzip")),
            ("gzip", frame_bytes(1, half), code::INTERNAL, broken("gzip")),
            ("gzip", frame_bytes(1, &trailing), code::INTERNAL, broken("gzip")),
            ("gzip", frame_bytes(1, &zlib(&plain)), code::INTERNAL, broken("gzip")),
            ("deflate", frame_bytes(1, &gzip(&plain)), code::INTERNAL, broken("deflate")),
            ("identity", frame_bytes(1, &gzip(&plain)), code::INTERNAL, broken("identity")),
            ("gzip", frame_bytes(1, &gzip(b"\x0a\x7f")), code::INTERNAL, "Unable to parse request".into()),
        ];
        for (encoding, piece, status, text) in table {
            let reply = grpc.exchange(&path, &[("grpc-encoding", encoding)], std::slice::from_ref(piece));
            assert_eq!((reply.status.code, &reply.status.message), (*status, text), "{method} {encoding}");
            assert!(reply.messages.is_empty());
        }
        for encoding in ["br", "GZIP", "snappy"] {
            let reply = grpc.exchange(&path, &[("grpc-encoding", encoding)], &[]);
            assert_eq!(reply.status.code, code::UNIMPLEMENTED, "{encoding}");
            assert_eq!(reply.status.message, format!("Compression algorithm '{encoding}' is disabled."));
            assert_eq!(reply.headers["grpc-accept-encoding"], "identity, deflate, gzip", "{:?}", reply.headers);
        }
    }
    // A stream is over at a message that cannot be read; what was asked before it may still be answered first.
    let headers = [("grpc-encoding", "gzip")];
    let pieces = [packed_frame("gzip", &request), frame_bytes(1, b"garbage")];
    let reply = grpc.exchange(&format!("{SERVICE}ModelStreamInfer"), &headers, &pieces);
    assert_eq!((reply.status.code, reply.status.message), (code::INTERNAL, broken("gzip")));
    assert!(reply.messages.len() <= 1);
    // None of it harms the connection.
    let reply = grpc.exchange(&format!("{SERVICE}ModelInfer"), &headers, &[packed_frame("gzip", &request)]);
    assert_eq!(reply.status.code, code::OK);
    server.stop();
}

#[test]
fn grpc_answers_are_packed_if_flag_and_client_want_it() {
    for level in ["none", "low", "medium", "high"] {
        let (_repository, server) = start_with(usual(), &[&format!("--grpc-infer-response-compression-level={level}")]);
        let mut grpc = Grpc::connect(server.grpc);
        let long = raw_request("long", &(0..200_000).map(|at| at / 9).collect::<Vec<_>>());
        let short = raw_request("short", &[1]);
        for (accepted, chosen) in [
            (Some("identity, deflate, gzip"), Some("gzip")),
            (Some("gzip"), Some("gzip")),
            (Some("deflate"), Some("deflate")),
            (Some("identity"), None),
            (Some("br"), None),
            (None, None),
        ] {
            let chosen = chosen.filter(|_| level != "none");
            let headers: Vec<_> = accepted.map(|accepted| ("grpc-accept-encoding", accepted)).into_iter().collect();
            let mut ask = |rpc: &str, piece: Bytes| grpc.exchange(&format!("{SERVICE}{rpc}"), &headers, &[piece]);
            let head = |reply: &Reply| reply.headers.get("grpc-encoding").map(|value| value.as_bytes().to_vec());
            for request in [&long, &short] {
                let reply = ask("ModelInfer", frame(request));
                assert_eq!(reply.status.code, code::OK, "{:?}", reply.status);
                assert_eq!(head(&reply).as_deref(), chosen.map(str::as_bytes), "{level} {accepted:?}");
                // What would not become shorter is left as it is.
                let is_packed = reply.flags == [1];
                assert!(reply.flags == [0] || chosen.is_some(), "{level} {accepted:?} {}", request.id);
                assert!(is_packed || chosen.is_none() || request.id == "short", "{level} {accepted:?}");
                let plain = match chosen.filter(|_| is_packed) {
                    Some(encoding) => unpack(encoding, &reply.messages[0]).into(),
                    None => reply.messages[0].clone(),
                };
                assert!(plain.len() >= reply.messages[0].len());
                check(&decode(&plain), request);
            }
            // Errors have no message; other methods are not packed.
            let absent = ModelInferRequest { model_name: "absent".into(), ..Default::default() };
            assert_eq!(ask("ModelInfer", frame(&absent)).status.code, code::NOT_FOUND);
            let named = ModelMetadataRequest { name: "plain".into(), version: String::new() };
            let reply = ask("ModelConfig", frame(&named));
            assert_eq!((reply.flags.as_slice(), head(&reply)), (&[0][..], None), "{level}");
        }
        server.stop();
    }
}

#[test]
fn the_official_clients_pack_and_unpack() {
    let Some(python) = Python::get() else { return };
    each(&variant::ALL, |variant| {
        let (_repository, server) = start_with(variant, &["--grpc-infer-response-compression-level=medium"]);
        for protocol in ["http", "grpc", "http-aio", "grpc-aio"] {
            let url = if protocol.starts_with("http") { server.http } else { server.grpc }.to_string();
            python.run("compression.py", &["--protocol", protocol, "--url", &url]);
        }
        server.stop();
    });
}
