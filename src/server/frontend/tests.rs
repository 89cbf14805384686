//! Options of front ends, without a server.

use super::*;
use crate::server::options::{IoEngine, Level, Options};

fn settings(kind: Kind) -> Settings {
    Settings::new(kind, Options::without_ports())
}

#[test]
fn each_kind_has_its_own_port_and_no_other() {
    for (kind, port, threads) in [(Kind::Http, 8000, 8), (Kind::Grpc, 8001, 2), (Kind::Metrics, 8002, 1)] {
        let Settings { options, threads: found, .. } = settings(kind);
        let open: Vec<_> = [&options.http, &options.grpc, &options.metrics, &options.sagemaker, &options.vertex]
            .into_iter()
            .filter(|listen| listen.allowed)
            .map(|listen| listen.port)
            .collect();
        assert_eq!((open, found), (vec![port], threads), "{kind:?}");
    }
}

#[test]
fn options_fill_in_what_the_flags_do() {
    let mut grpc = settings(Kind::Grpc);
    for (name, value) in [
        ("address", Value::Text("127.0.0.1")),
        ("port", Value::Int(0)),
        ("reuse_port", Value::Bool(true)),
        ("use_ssl", Value::Bool(true)),
        ("server_cert", Value::Text("/c")),
        ("keepalive_permit_without_calls", Value::Bool(true)),
        ("http2_max_ping_strikes", Value::Int(7)),
        ("infer_compression_level", Value::Int(2)),
        ("infer_thread_count", Value::Int(0)),
        ("max_response_pool_size", Value::Int(0)),
        ("infer_allocation_pool_size", Value::Int(8)),
        ("forward_header_pattern", Value::Text("x-.*")),
        ("io_engine", Value::Text("epoll")),
        ("drain_timeout_ms", Value::Int(5)),
        ("uds", Value::Text("/socket")),
    ] {
        grpc.set(name, value).unwrap_or_else(|status| panic!("{name}: {status}"));
    }
    let options = &grpc.options;
    assert_eq!((&*options.grpc.address, options.grpc.port, options.grpc.reuse_port), ("127.0.0.1", 0, true));
    assert!(options.grpc_tls.is_on() && options.grpc_tls.credentials.certificate.ends_with("c"));
    assert!(options.grpc_keepalive.without_calls && options.grpc_keepalive.ping_strikes_max == 7);
    assert_eq!((options.grpc_response_compression, options.grpc_max_response_pool_size), (Some(Level::Medium), 1));
    assert_eq!((grpc.threads, options.io_engine), (1, IoEngine::Epoll));
    assert_eq!(grpc.drain_timeout, Some(Duration::from_millis(5)));
    assert_eq!(options.grpc_header_forward_pattern, "x-.*");
    assert!(options.grpc_unix_socket.is_some() && options.http_unix_socket.is_none());
    assert_eq!(grpc.set("uds", Value::Text("")).map(|()| grpc.options.grpc_unix_socket), Ok(None));
}

#[test]
fn wrong_options_are_refused_with_tritons_texts() {
    let wrong = "found, but incorrect type. Expected";
    for (kind, name, value, expected) in [
        (Kind::Http, "port", Value::Bool(true), format!("Key: port {wrong} int Found: bool")),
        (Kind::Http, "address", Value::Int(1), format!("Key: address {wrong} string Found: int")),
        (Kind::Grpc, "use_ssl", Value::Text(""), format!("Key: use_ssl {wrong} bool Found: string")),
        (Kind::Http, "port", Value::Int(-1), "port must be a number from 0 on, got -1".to_owned()),
        (Kind::Http, "thread_count", Value::Int(0), "thread_count must be a number from 1 on, got 0".to_owned()),
        (Kind::Metrics, "reuse_port", Value::Bool(true), "the metrics has no option 'reuse_port'".to_owned()),
        (Kind::Http, "keepalive_time_ms", Value::Int(1), "HTTP has no option 'keepalive_time_ms'".to_owned()),
        (Kind::Grpc, "threads", Value::Int(1), "gRPC has no option 'threads'".to_owned()),
        (Kind::Grpc, "infer_compression_level", Value::Int(4), "infer_compression_level must be 0".to_owned()),
        (Kind::Http, "header_forward_pattern", Value::Text("("), "header_forward_pattern: ".to_owned()),
        (Kind::Http, "io_engine", Value::Text("tape"), "io_engine must be auto".to_owned()),
    ] {
        let status = settings(kind).set(name, value).expect_err(name);
        assert!(status.message.contains(&expected), "{status}");
    }
}

#[test]
fn a_group_has_one_key() {
    let restriction = |group: &str, value: &str| Restriction {
        group: group.to_owned(),
        key: "admin".to_owned(),
        value: value.to_owned(),
    };
    let mut http = settings(Kind::Http);
    assert_eq!(http.restrict(restriction("model-repository", "secret")), Ok(()));
    for (wrong, expected) in [
        (restriction("model-repository", "other"), "can not be in several groups"),
        (restriction("everything", "other"), "the groups are health, metadata"),
        (restriction("trace", ""), "needs a header and a value"),
    ] {
        assert!(http.restrict(wrong).expect_err(expected).message.contains(expected));
    }
    assert_eq!(http.options.http_restricted.len(), 1);
    assert!(settings(Kind::Metrics).restrict(restriction("trace", "secret")).is_err());
}
