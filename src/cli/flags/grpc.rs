//! Flags of the gRPC port.

use super::http::SHARDS;
use super::{Flag, Group};
use crate::cli::given::{GRPC_PROTOCOL, restrict};
use crate::cli::values::{Value, ValueError};
use crate::server::options::Level;

const GRPC: Group = Group("gRPC");

pub static FLAGS: &[Flag] = &[
    GRPC.set("allow-grpc", "boolean", "Whether to serve gRPC. Default: true.", |g, v| {
        v.boolean().map(|given| g.options.grpc.allowed = given)
    }),
    GRPC.set("grpc-address", "string", "Address to listen on. Default: 0.0.0.0.", |g, v| {
        g.options.grpc.address = v.text();
        Ok(())
    }),
    GRPC.set("grpc-port", "integer", "Port to listen on. Default: 8001.", |g, v| {
        v.int().map(|given| g.options.grpc.port = given)
    }),
    GRPC.set(
        "reuse-grpc-port",
        "boolean",
        "Whether other servers may listen on the same port. Default: false.",
        |g, v| v.boolean().map(|given| g.options.grpc.reuse_port = given),
    ),
    GRPC.set(
        "grpc-header-forward-pattern",
        "regex",
        "Metadata that becomes parameters of the request. Default: none.",
        |g, v| v.header_pattern().map(|given| g.options.grpc_header_forward_pattern = given),
    ),
    GRPC.idle(
        "grpc-infer-thread-count",
        "integer",
        "Threads that take inference requests, 2 to 128. Default: 2.",
        SHARDS,
        |_, v| infer_threads(v),
    ),
    GRPC.idle(
        "grpc-infer-cq-count",
        "integer",
        "Completion queues of inference requests, 0 to 128; 0 is one for each thread. Default: 0.",
        SHARDS,
        |_, v| infer_queues(v),
    ),
    GRPC.idle(
        "grpc-infer-allocation-pool-size",
        "integer",
        "Request states that are kept for reuse. Default: 8.",
        "memory is pooled by the shards as it is needed",
        |_, v| v.int().map(|_| ()),
    ),
    GRPC.set(
        "grpc-max-response-pool-size",
        "integer",
        "Responses of one decoupled request that may wait to be sent. Default: 2147483647.",
        |g, v| v.positive().map(|given| g.options.grpc_max_response_pool_size = given.unsigned_abs()),
    ),
    GRPC.set("grpc-use-ssl", "boolean", "Whether the port uses TLS. Default: false.", |g, v| {
        v.boolean().map(|given| g.options.grpc_tls.allowed = given)
    }),
    GRPC.set(
        "grpc-use-ssl-mutual",
        "boolean",
        "Whether clients must present a certificate; implies --grpc-use-ssl. Default: false.",
        |g, v| v.boolean().map(|given| g.options.grpc_tls.credentials.mutual = given),
    ),
    GRPC.set("grpc-server-cert", "path", "The server's certificate, PEM.", |g, v| {
        g.options.grpc_tls.credentials.certificate = v.path();
        Ok(())
    }),
    GRPC.set("grpc-server-key", "path", "The key of the server's certificate, PEM.", |g, v| {
        g.options.grpc_tls.credentials.key = v.path();
        Ok(())
    }),
    GRPC.set("grpc-root-cert", "path", "Certificates that those of clients are checked against, PEM.", |g, v| {
        g.options.grpc_tls.credentials.roots = v.path();
        Ok(())
    }),
    GRPC.set(
        "grpc-infer-response-compression-level",
        "none|low|medium|high",
        "Level at which responses are compressed. Default: none.",
        |g, v| compression(v).map(|given| g.options.grpc_response_compression = given),
    ),
    GRPC.set("grpc-keepalive-time", "integer", "Milliseconds between keepalive pings. Default: 7200000.", |g, v| {
        v.int().map(|given| g.options.grpc_keepalive.time_ms = given)
    }),
    GRPC.set(
        "grpc-keepalive-timeout",
        "integer",
        "Milliseconds that the answer to a keepalive ping may take. Default: 20000.",
        |g, v| v.int().map(|given| g.options.grpc_keepalive.timeout_ms = given),
    ),
    GRPC.set(
        "grpc-keepalive-permit-without-calls",
        "boolean",
        "Whether connections without calls are pinged, too. Default: false.",
        |g, v| v.boolean().map(|given| g.options.grpc_keepalive.without_calls = given),
    ),
    GRPC.set(
        "grpc-http2-max-pings-without-data",
        "integer",
        "Pings that the server sends without data between them; 0 is any number. Default: 2.",
        |g, v| v.int().map(|given| g.options.grpc_keepalive.pings_without_data_max = given),
    ),
    GRPC.set(
        "grpc-http2-min-recv-ping-interval-without-data",
        "integer",
        "Milliseconds that a client's pings must lie apart. Default: 300000.",
        |g, v| v.int().map(|given| g.options.grpc_keepalive.ping_interval_min_ms = given),
    ),
    GRPC.set(
        "grpc-http2-max-ping-strikes",
        "integer",
        "Pings too early that a client may send before its connection is closed; 0 is any number. Default: 2.",
        |g, v| v.int().map(|given| g.options.grpc_keepalive.ping_strikes_max = given),
    ),
    GRPC.set(
        "grpc-max-connection-age",
        "integer",
        "Milliseconds after which a connection is closed; 0 is never. Default: 0.",
        |g, v| v.int().map(|given| g.options.grpc_keepalive.age_max_ms = given),
    ),
    GRPC.set(
        "grpc-max-connection-age-grace",
        "integer",
        "Milliseconds that calls may go on after that; 0 is for ever. Default: 0.",
        |g, v| v.int().map(|given| g.options.grpc_keepalive.age_grace_ms = given),
    ),
    GRPC.set(
        "grpc-restricted-protocol",
        "<protocol>[,<protocol>]:<key>=<value>",
        "Groups of RPCs that are answered only with a metadata key. May be given several times.",
        |g, v| restrict(&mut g.options.grpc_restricted, v, GRPC_PROTOCOL),
    ),
];

fn infer_threads(value: Value<'_>) -> Result<(), ValueError> {
    match value.int()? {
        2..=128 => Ok(()),
        _ => Err(ValueError::InferThreads),
    }
}

fn infer_queues(value: Value<'_>) -> Result<(), ValueError> {
    match value.int()? {
        0..=128 => Ok(()),
        _ => Err(ValueError::InferQueues),
    }
}

fn compression(value: Value<'_>) -> Result<Option<Level>, ValueError> {
    match value.lower_case().as_str() {
        "none" => Ok(None),
        "low" => Ok(Some(Level::Low)),
        "medium" => Ok(Some(Level::Medium)),
        "high" => Ok(Some(Level::High)),
        // Spelt so (contract/cli.md section 1).
        _ => Err(ValueError::Word("grpc_infer_response_compression_level")),
    }
}
