//! Tensors in shared memory (contract/http.md section 4, contract/grpc.md sections 4 and 6).

mod clients;
mod cuda;
mod loss;
mod management;
mod models;
mod tensors;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nereid_wire::inference::*;
use serde_json::{Value, json};

use nereid_test_support::grpc::{Grpc, Status};
use nereid_test_support::http::{Answer, Peer};
use nereid_test_support::repository::{Pair, Repository};
use nereid_test_support::server::Server;
use nereid_test_support::variant::Variant;

const ALLOWED: &str = "--allow-client-shm=true";

/// An object of shared memory of the test's own, as clients make them: a file of the memory's file system.
struct Object {
    path: PathBuf,
    file: File,
}

impl Object {
    fn new(bytes: &[u8]) -> Object {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("nereid-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = PathBuf::from("/dev/shm").join(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let file = file.unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let object = Object { path, file };
        object.write(0, bytes);
        object
    }

    fn key(&self) -> String {
        format!("/{}", self.path.file_name().expect("a name").to_string_lossy())
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).expect("write to shared memory");
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, at).expect("read from shared memory");
        bytes
    }

    fn truncate(&self, len: u64) {
        self.file.set_len(len).expect("truncate shared memory");
    }

    fn unlink(&self) {
        std::fs::remove_file(&self.path).expect("remove shared memory");
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn register(peer: &mut Peer, region: &str, object: &Object, offset: u64, byte_size: u64) -> Answer {
    let body = json!({ "key": object.key(), "offset": offset, "byte_size": byte_size }).to_string();
    peer.post(&format!("/v2/systemsharedmemory/region/{region}/register"), &[], body.as_bytes())
}

/// Registers, or fails.
fn registered(peer: &mut Peer, region: &str, object: &Object, byte_size: u64) {
    let answer = register(peer, region, object, 0, byte_size);
    assert_eq!((answer.status, answer.text().as_str()), (200, ""));
    assert_eq!(answer.header("content-type"), Some("application/json"));
}

fn listed(peer: &mut Peer) -> Vec<String> {
    let answer = peer.get("/v2/systemsharedmemory/status");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let rows = answer.json();
    let names = rows.as_array().expect("a list").iter().map(|row| row["name"].as_str().expect("a name").to_owned());
    names.collect()
}

fn unregister(peer: &mut Peer, region: Option<&str>) {
    let region = region.map(|region| format!("/region/{region}")).unwrap_or_default();
    let answer = peer.post(&format!("/v2/systemsharedmemory{region}/unregister"), &[], b"");
    assert_eq!((answer.status, answer.text().as_str()), (200, ""));
}

/// Parameters of a tensor over HTTP.
fn place(region: &str, offset: u64, byte_size: u64) -> Value {
    json!({ "shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": byte_size })
}

/// A tensor of a request over HTTP that is in shared memory.
fn input(name: &str, datatype: &str, shape: &[i64], (region, offset, byte_size): (&str, u64, u64)) -> Value {
    json!({ "name": name, "datatype": datatype, "shape": shape, "parameters": place(region, offset, byte_size) })
}

fn output(name: &str, (region, offset, byte_size): (&str, u64, u64)) -> Value {
    json!({ "name": name, "parameters": place(region, offset, byte_size) })
}

fn infer(peer: &mut Peer, model: &str, inputs: &[Value], outputs: &[Value]) -> Answer {
    let body = json!({ "inputs": inputs, "outputs": outputs }).to_string();
    peer.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes())
}

fn number(value: i64) -> InferParameter {
    InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(value)) }
}

fn text(value: &str) -> InferParameter {
    InferParameter { parameter_choice: Some(ParameterChoice::StringParam(value.to_owned())) }
}

type Parameters = std::collections::BTreeMap<String, InferParameter>;

/// Parameters of a tensor over gRPC.
fn grpc_place((region, offset, byte_size): (&str, i64, i64)) -> Parameters {
    [
        ("shared_memory_region".to_owned(), text(region)),
        ("shared_memory_offset".to_owned(), number(offset)),
        ("shared_memory_byte_size".to_owned(), number(byte_size)),
    ]
    .into()
}

fn grpc_input(name: &str, datatype: &str, shape: &[i64], parameters: Parameters) -> InferInputTensor {
    InferInputTensor { name: name.into(), datatype: datatype.into(), shape: shape.into(), parameters, contents: None }
}

fn grpc_output(name: &str, parameters: Parameters) -> InferRequestedOutputTensor {
    InferRequestedOutputTensor { name: name.into(), parameters }
}

fn grpc_infer(grpc: &mut Grpc, request: &ModelInferRequest) -> Result<ModelInferResponse, Status> {
    grpc.call("ModelInfer", request)
}

/// `plain` (INT32), `bytes` (BYTES), `slow` (INT32, a second and a half), of any length each.
fn start(variant: Variant, flags: &[&str]) -> (Repository, Server) {
    let repository = Repository::new();
    repository.identity("plain", 0, &[Pair::new("INT32", "-1")]);
    repository.identity("bytes", 0, &[Pair::new("BYTES", "-1")]);
    repository.identity("half", 0, &[Pair::new("FP16", "-1")]);
    let delay = "parameters { key: \"execute_delay_ms\" value { string_value: \"1500\" } }";
    repository.identity_of("identity", "slow", 0, &[Pair::new("INT32", "-1")], delay);
    let server = Server::start(variant, repository.path(), flags);
    (repository, server)
}

fn int32s(numbers: impl IntoIterator<Item = i32>) -> Vec<u8> {
    numbers.into_iter().flat_map(i32::to_le_bytes).collect()
}

fn strings(strings: &[&[u8]]) -> Vec<u8> {
    strings.iter().flat_map(|string| [&(string.len() as u32).to_le_bytes()[..], string].concat()).collect()
}
