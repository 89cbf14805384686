//! Tests of features beyond plain inference: shared memory, streams over HTTP, traces, TLS, restricted groups, and the
//! ports of the clouds (contract/http.md, contract/grpc.md, contract/metrics.md, contract/cli.md).

mod audit;
mod compression;
mod custom_metrics;
mod devices;
mod engine_metrics;
mod exposure;
mod forwarding;
mod generate;
mod gpus;
mod http_metrics;
pub mod http_streaming;
mod inspect_page;
mod keepalive;
mod key_files;
mod load_streams;
pub mod metrics;
mod opentelemetry;
mod orca;
mod parameters;
mod plan_cache;
mod reflection;
mod restricted;
mod sagemaker;
mod secrets;
mod shared_memory;
mod statistics;
mod stuck_shard;
mod timing;
mod tls;
mod trace;
mod unix_sockets;
mod vertex;
