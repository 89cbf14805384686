//! Flags of the HTTP port.

use super::{Flag, Group};
use crate::cli::given::{HTTP_API, restrict};
use crate::cli::values::{Value, ValueError};

const HTTP: Group = Group("HTTP");

/// Why counts of threads have no effect.
pub const SHARDS: &str = "the shards of --io-cores take all connections";

pub static FLAGS: &[Flag] = &[
    HTTP.set("allow-http", "boolean", "Whether to serve HTTP. Default: true.", |g, v| {
        v.boolean().map(|given| g.options.http.allowed = given)
    }),
    HTTP.set("http-address", "string", "Address to listen on. Default: 0.0.0.0.", |g, v| {
        g.options.http.address = v.text();
        Ok(())
    }),
    HTTP.set("http-port", "integer", "Port to listen on. Default: 8000.", |g, v| {
        v.int().map(|given| g.options.http.port = given)
    }),
    HTTP.set(
        "reuse-http-port",
        "boolean",
        "Whether other servers may listen on the same port. Default: false.",
        |g, v| v.boolean().map(|given| g.options.http.reuse_port = given),
    ),
    HTTP.set(
        "http-header-forward-pattern",
        "regex",
        "Headers that become parameters of the request. Default: none.",
        |g, v| v.header_pattern().map(|given| g.options.http_header_forward_pattern = given),
    ),
    HTTP.idle("http-thread-count", "integer", "Threads of the HTTP port. Default: 8.", SHARDS, |_, v| {
        v.int().map(|_| ())
    }),
    HTTP.set("http-max-input-size", "integer", "Largest request body in bytes. Default: 67108864.", |g, v| {
        input_size(v).map(|given| g.options.http_max_input_size = given)
    }),
    HTTP.set(
        "http-restricted-api",
        "<api>[,<api>]:<header>=<value>",
        "Groups of routes that are answered only with a header. May be given several times.",
        |g, v| restrict(&mut g.options.http_restricted, v, HTTP_API),
    ),
];

fn input_size(value: Value<'_>) -> Result<u64, ValueError> {
    match u64::try_from(value.int64()?) {
        Ok(0) | Err(_) => Err(ValueError::NotPositive(value.flag)),
        Ok(bytes) => Ok(bytes),
    }
}
