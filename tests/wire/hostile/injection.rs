//! Peers that want a part of their request to be read as something else: as a second request, as a header of an answer,
//! as a path outside a model's directory.

use nereid_test_support::grpc::{Grpc, SERVICE, code, frame};
use nereid_test_support::http::{Peer, request};
use nereid_test_support::http2::{self, END_HEADERS, RawPeer, kind};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::{self, Variant, each, usual};
use nereid_wire::inference as wire;

fn start(variant: Variant, flags: &[&str]) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    let server = Server::start(variant, repository.path(), flags);
    (repository, server)
}

/// Behind every head stands a request that the server must not serve: a proxy in front may have taken it for a body.
#[test]
fn no_second_request_hides_in_the_first() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &["--log-verbose=1"]);
        let hidden = "GET /v2/models/hidden HTTP/1.1\r\nHost: t\r\n\r\n";
        for fields in [
            "Content-Length: 0\r\nContent-Length: 45\r\n",
            "Content-Length: 0, 45\r\n",
            "Content-Length: 0\r\n Content-Length: 45\r\n",
            "Content-Length: +0\r\n",
            "Content-Length: 0 0\r\n",
            "Content-Length:\t0\x0b\r\n",
            "Content-Length : 0\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Transfer-Encoding: chunked, identity\r\n",
            "Transfer-Encoding: identity\r\n",
            "Transfer-Encoding: identity, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Transfer-Encoding:\x0bchunked\r\n",
            "Transfer-Encoding\r\n: chunked\r\n",
            "X: y\rTransfer-Encoding: chunked\r\n",
            "X: y\0\r\n",
        ] {
            let mut peer = Peer::connect(server.http);
            peer.try_send(format!("POST /v2/logging HTTP/1.1\r\nHost: t\r\n{fields}\r\n{hidden}").as_bytes());
            let answer = peer.try_answer().unwrap_or_else(|problem| panic!("{fields:?}: {problem}"));
            assert!([400, 413, 501].contains(&answer.status), "{fields:?}: {}", answer.status);
            peer.expect_close();
        }
        // Chunks that end elsewhere for a lenient reader.
        for chunks in [
            "0 \r\nX: y\r\n",
            "0\n\n",
            "0\r\r\n",
            "+0\r\n\r\n",
            "0x0\r\n\r\n",
            "2\r\n{}GET",
            "2;a=\"\n\r\n{}\r\n0\r\n\r\n",
            "00000000000000000000\r\n\r\n",
        ] {
            let head = "POST /v2/logging HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
            let mut peer = Peer::connect(server.http);
            peer.try_send(format!("{head}{chunks}").as_bytes());
            peer.finish();
            // Refused, or not ended: never more than one answer.
            if let Ok(answer) = peer.try_answer() {
                assert!(answer.status >= 400, "{chunks:?}: {}", answer.text());
                peer.expect_close();
            }
        }
        let log = server.stop();
        assert!(!log.contains("/v2/models/hidden"), "a hidden request is served:\n{log}");
    });
}

/// RFC 9113 sections 8.1.1, 8.2 and 8.3: malformed requests are stream errors, and no call of them is served.
#[test]
fn calls_that_a_proxy_could_read_otherwise_are_reset() {
    each(&variant::ALL, |variant| {
        let (_repository, server) = start(variant, &["--model-control-mode=explicit", "--load-model=plain"]);
        let path = format!("{SERVICE}RepositoryModelUnload");
        let unload =
            frame(&wire::RepositoryModelUnloadRequest { model_name: "plain".to_owned(), ..Default::default() });
        let pseudo = [(":method", "POST"), (":scheme", "http"), (":path", &*path), (":authority", "t")];
        let plain = [("content-type", "application/grpc"), ("te", "trailers")];
        let longer = (unload.len() + 1).to_string();
        let with = |more: &[(&'static str, &str)]| -> Vec<(String, String)> {
            let all = pseudo.iter().chain(&plain).chain(more);
            all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let mut blocks = vec![
            with(&[("connection", "close")]),
            with(&[("transfer-encoding", "chunked")]),
            with(&[("keep-alive", "1")]),
            with(&[("upgrade", "h2c")]),
            with(&[("proxy-connection", "close")]),
            with(&[("te", "gzip")]),
            with(&[("X-Upper", "a")]),
            with(&[("x-line", "a\r\nb: c")]),
            with(&[("x-nul", "a\0b")]),
            with(&[("x\r\ny", "a")]),
            with(&[("x y", "a")]),
            with(&[("", "a")]),
            with(&[(":path", "/other")]),
            with(&[(":unknown", "a")]),
            with(&[("content-length", "1")]),
            with(&[("content-length", &longer)]),
            with(&[("content-length", "5"), ("content-length", "6")]),
        ];
        // Without what every request has.
        blocks.extend((0..3).map(|missing| {
            let mut block = with(&[]);
            block.remove(missing);
            block
        }));
        for block in &blocks {
            let borrowed: Vec<(&str, &str)> = block.iter().map(|(name, value)| (&**name, &**value)).collect();
            let mut peer = RawPeer::greet(server.grpc, &[]);
            let headers = http2::frame(kind::HEADERS, END_HEADERS, 1, &http2::fields(&borrowed));
            peer.send(&headers).try_send(&http2::frame(kind::DATA, http2::END_STREAM, 1, &unload));
            // The stream alone, or with it the connection.
            while let Some(frame) = peer.next() {
                assert_ne!((frame.kind, frame.stream), (kind::DATA, 1), "{block:?} is answered");
                if frame.kind == kind::GOAWAY || (frame.kind == kind::RST_STREAM && frame.stream == 1) {
                    break;
                }
                // A refusal without a call: plain HTTP, or a status that is no success.
                if frame.kind == kind::HEADERS && frame.has(http2::END_STREAM) {
                    break;
                }
            }
            assert_eq!(Peer::connect(server.http).get("/v2/models/plain/ready").status, 200, "{block:?} was served");
        }
        server.stop();
    });
}

/// What an answer repeats of a request stays what it was: a text in JSON, or one metadata value.
#[test]
fn what_is_repeated_begins_no_header() {
    let flags = ["--http-header-forward-pattern=^x-", "--log-verbose=2"];
    let (_repository, server) = start(usual(), &flags);
    let injected = "a\r\nInjected: yes\r\n\r\n{}";
    let mut peer = Peer::connect(server.http);
    let id = serde_json::to_string(injected).expect("JSON");
    let body = |name: &str, value: &str| {
        format!(r#"{{{name}:{value},"inputs":[{{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}}]}}"#)
    };
    let answer = peer.post("/v2/models/plain/infer", &[("x-tenant", "a")], body("\"id\"", &id).as_bytes());
    assert_eq!((answer.status, answer.json()["id"].as_str()), (200, Some(injected)), "{}", answer.text());
    assert_eq!(answer.header("injected"), None);
    let wrong = format!(r#"{{"inputs":[{{"name":{id},"datatype":"INT32","shape":[1],"data":[1]}}]}}"#);
    let answer = peer.post("/v2/models/plain/infer", &[], wrong.as_bytes());
    assert_eq!((answer.status, answer.header("injected")), (400, None));
    assert!(answer.error().contains(injected), "{}", answer.text());
    // Nothing in a path is decoded.
    let answer = peer.get("/v2/models/a%0d%0aInjected:%20yes");
    assert!((400..500).contains(&answer.status) && answer.header("injected").is_none(), "{:?}", answer.headers);
    assert!(answer.error().contains("a%0d%0aInjected:%20yes"), "{}", answer.text());
    // A status message is percent-encoded, so that it is one value again at the client.
    let mut grpc = Grpc::connect(server.grpc);
    let asked = wire::ModelMetadataRequest { name: injected.to_owned(), version: String::new() };
    let status = grpc.call::<wire::ModelMetadataResponse>("ModelMetadata", &asked).expect_err("no such model");
    assert!(status.message.contains(injected) && status.code != code::OK, "{status:?}");
    let log = server.stop();
    assert!(!log.lines().any(|line| line.starts_with("Injected")), "a client writes lines of the log:\n{log}");
}

/// Names of models and versions, and files of a load request, lead nowhere outside the model's own directory.
#[test]
fn no_name_leads_out_of_the_repository() {
    let outside = Repository::new();
    outside.identity("secret", 0, &[Pair::new("INT32", "-1")]).file("secret/1/kept", "before");
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    // A repository inside the directory that paths with `..` would reach.
    let inner = outside.path().join("inner");
    std::fs::create_dir_all(&inner).expect("a directory");
    std::os::unix::fs::symlink(repository.path().join("plain"), inner.join("plain")).expect("a link");
    let flags = ["--model-control-mode=explicit", "--load-model=plain", "--log-verbose=1"];
    let server = Server::start(usual(), &inner, &flags);
    let mut grpc = Grpc::connect(server.grpc);
    let absolute = outside.path().join("secret").display().to_string();
    for name in ["../secret", "plain/../../secret", "./../secret", "..", ".", "/", "", "../secret\0", &absolute] {
        let load = wire::RepositoryModelLoadRequest { model_name: name.to_owned(), ..Default::default() };
        let refused = grpc.call::<wire::RepositoryModelLoadResponse>("RepositoryModelLoad", &load);
        assert!(refused.is_err(), "{name:?} is loaded");
    }
    let index = grpc.call::<wire::RepositoryIndexResponse>("RepositoryIndex", &wire::RepositoryIndexRequest::default());
    let names: Vec<String> = index.expect("an index").models.into_iter().map(|model| model.name).collect();
    assert!(!names.iter().any(|name| name.contains("secret")), "{names:?}");
    let mut peer = Peer::connect(server.http);
    for path in
        ["/v2/models/../../secret", "/v2/models/%2e%2e%2fsecret/config", "/v2/models/plain/versions/../1/config"]
    {
        let answer = peer.send(&request("GET", path, &[], b"")).answer();
        assert!((400..500).contains(&answer.status), "{path}: {}", answer.text());
    }
    let config = r#"{"backend":"identity","input":[{"name":"INPUT0","data_type":"TYPE_INT32","dims":[-1]}],
        "output":[{"name":"OUTPUT0","data_type":"TYPE_INT32","dims":[-1]LABELS}]}"#;
    let kept = outside.path().join("secret/1/kept").display().to_string();
    let labels = |file: &str| config.replace("LABELS", &format!(r#","label_filename":"{file}""#));
    let plain = config.replace("LABELS", "");
    let mut loads: Vec<(String, String)> = ["../secret/1/kept", "1/../../secret/1/kept", "/../secret/1/kept", &kept]
        .map(|file| (plain.clone(), format!("file:{file}")))
        .to_vec();
    loads.extend(["../secret/1/kept", &kept].map(|file| (labels(file), "file:1/x".to_owned())));
    for (config, file) in loads {
        let body = serde_json::json!({ "parameters": { "config": config, (&*file): "AAAA" } }).to_string();
        let answer = peer.post("/v2/repository/models/plain/load", &[], body.as_bytes());
        assert!(answer.status >= 400, "{file} {config}: {}", answer.text());
        assert_eq!(std::fs::read_to_string(&kept).expect("the file"), "before", "{file}");
    }
    server.stop();
}
