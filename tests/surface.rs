//! What the wire offers beyond plain inference: shared memory, streams over HTTP, traces, TLS, restricted groups, and
//! the ports of the clouds (contract/http.md, contract/grpc.md, contract/metrics.md, contract/cli.md).

mod support {
    pub mod backend;
    pub mod certificates;
    pub mod grpc;
    pub mod http;
    pub mod http2;
    pub mod original;
    pub mod ports;
    pub mod python;
    pub mod random;
    pub mod repository;
    pub mod server;
    pub mod skip;
    pub mod variant;
}

mod wire_features {
    mod compression;
    mod custom_metrics;
    mod devices;
    mod forwarding;
    mod generate;
    mod gpus;
    mod http_streaming;
    mod keepalive;
    mod metrics;
    mod opentelemetry;
    mod orca;
    mod parameters;
    mod plan_cache;
    mod reflection;
    mod restricted;
    mod sagemaker;
    mod shared_memory;
    mod statistics;
    mod timing;
    mod tls;
    mod trace;
    mod unix_sockets;
    mod vertex;
}
