//! The shared-memory ring (docs/ipc.md): answers, tensors in the arena, and clients that break its rules.

mod calls;
mod clients;
mod hostile;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use nereid_ipc::{Client, ClientEvent, ClientStatus, Route};
use nereid_wire::inference::*;
use prost::Message;

use nereid_test_support::grpc::SERVICE;
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::{PATIENCE, Server};
use nereid_test_support::variant::Variant;

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// The path of a ring's socket, short enough wherever the build lies.
struct SocketPath(PathBuf);

impl SocketPath {
    fn new() -> SocketPath {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("nereid-ipc-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        SocketPath(std::env::temp_dir().join(name))
    }

    fn flag(&self) -> String {
        format!("--ipc-path={}", self.0.display())
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A server with a ring, and the path of its socket.
fn start(variant: Variant, repository: &Repository, more: &[&str]) -> (Server, SocketPath) {
    let path = SocketPath::new();
    let flag = path.flag();
    let flags: Vec<&str> = [&*flag].into_iter().chain(more.iter().copied()).collect();
    let server = Server::start(variant, repository.path(), &flags);
    server.wait_for_log(&format!("Started shared-memory rings at unix:{}", path.0.display()));
    (server, path)
}

fn connect(path: &SocketPath) -> Client {
    Client::connect(&path.0).unwrap_or_else(|error| panic!("{}: {error}", path.0.display()))
}

/// A client, and the route of ModelInfer.
fn client(path: &SocketPath) -> (Client, Route) {
    let mut client = connect(path);
    let route = client.route(INFER, &[]).expect("a route");
    (client, route)
}

fn plain() -> Repository {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository
}

/// A model that executes for an hour.
const SLOW: &str = "parameters { key: \"execute_delay_ms\" value { string_value: \"3600000\" } }";

fn next(client: &mut Client) -> ClientEvent {
    client.next(Some(PATIENCE)).expect("a connection").expect("an event in time")
}

/// The responses of a call that is the only one, and its end.
fn finish(client: &mut Client, this: u32) -> (Vec<Vec<u8>>, ClientStatus) {
    let mut messages = Vec::new();
    loop {
        match next(client) {
            ClientEvent::Message { call, message } if call == this => messages.push(message),
            ClientEvent::End { call, status } if call == this => return (messages, status),
            other => panic!("of another call: {other:?}"),
        }
    }
}

fn infer(client: &mut Client, route: Route, request: &ModelInferRequest) -> Result<ModelInferResponse, ClientStatus> {
    let this = client.begin(route, &request.encode_to_vec(), true, None).expect("a call");
    let (messages, status) = finish(client, this);
    match status.code {
        0 => Ok(ModelInferResponse::decode(&*messages[0]).expect("a response")),
        _ => Err(status),
    }
}

fn method(rpc: &str) -> String {
    format!("{SERVICE}{rpc}")
}
