//! Inputs and outputs in system shared memory.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;

use super::bench::{Bench, assert_rows, repository_of, rows_of};
use super::reference::{assert_close, quarters};
use super::table::{Framework, ModelKind};
use super::tensors::{Kind, Refusal, Tensor, message, number_parameter, of_answer, string_parameter};
use nereid_test_support::http::Peer;
use nereid_test_support::variant::is_second_run;
use nereid_wire::inference::ModelInferResponse;

/// A region that the test has created, as clients do: a file of the memory's file system.
pub struct Region {
    path: PathBuf,
    file: File,
}

impl Region {
    pub fn new(bytes: &[u8]) -> Region {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(format!("/dev/shm/nereid-frameworks-{}-{count}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let region = Region { file: file.unwrap_or_else(|error| panic!("{path:?}: {error}")), path };
        region.write(bytes);
        region
    }

    /// Registers its first `byte_size` bytes as the region `name`.
    pub fn register(&self, http: &mut Peer, name: &str, byte_size: usize) {
        let key = format!("/{}", self.path.file_name().expect("a name").to_string_lossy());
        let body = json!({ "key": key, "offset": 0, "byte_size": byte_size }).to_string();
        let answer = http.post(&format!("/v2/systemsharedmemory/region/{name}/register"), &[], body.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// Replaces its first bytes.
    pub fn write(&self, bytes: &[u8]) {
        self.file.write_all_at(bytes, 0).expect("write to shared memory");
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, at).expect("read from shared memory");
        bytes
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

const ROWS: usize = 3;
/// The places of the input: a multiple of no element, so that it is copied, and one where a library can read it.
const INPUTS_AT: [usize; 2] = [3, 64];
const REGION_BYTES: usize = 4096;
const OUTPUT_AT: usize = 2048;

pub fn tensors_in_system_shared_memory_are_read_and_written_there(framework: &Framework) {
    if is_second_run() {
        return;
    }
    let Some(repository) = repository_of(framework, &[ModelKind::Network], "") else { return };
    let Some(mut bench) = Bench::start(&[framework], &repository, &["--allow-client-shm=true"]) else { return };
    for (round, over_grpc) in [(0, false), (1, true), (2, false), (3, true)] {
        let input_at = INPUTS_AT[round / 2];
        let input = rows_of(framework, ROWS, round);
        let mut bytes = vec![0xee; REGION_BYTES];
        bytes[input_at..input_at + input.bytes.len()].copy_from_slice(&input.bytes);
        let region = Region::new(&bytes);
        region.register(&mut bench.client.http, "r", REGION_BYTES);
        check_round(&mut bench, framework, &region, &input, input_at, round, over_grpc);
        let answer = bench.client.http.post("/v2/systemsharedmemory/region/r/unregister", &[], b"");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    bench.stop();
}

/// The memory of a request belongs to others as well: to its client, to other steps of an ensemble. Here nothing else
/// copies it, because it begins at a multiple of 64 and one request is the whole batch.
pub fn a_model_that_computes_in_place_does_not_write_to_its_input(framework: &Framework) {
    if is_second_run() || !framework.has(ModelKind::InPlace) {
        return;
    }
    let Some(repository) = repository_of(framework, &[ModelKind::InPlace], "") else { return };
    let Some(mut bench) = Bench::start(&[framework], &repository, &["--allow-client-shm=true"]) else { return };
    let (rows, columns) = (8, 64);
    let values = quarters(rows * columns, 5);
    let input = Tensor::floats(&framework.input(0), &[rows as i64, columns as i64], &values);
    let expected: Vec<f32> = values.iter().map(|value| value.min(0.)).collect();
    assert_ne!(expected, values, "a write would be noticed");
    let region = Region::new(&input.bytes);
    region.register(&mut bench.client.http, "r", input.bytes.len());
    let place = json!({
        "shared_memory_region": "r", "shared_memory_offset": 0, "shared_memory_byte_size": input.bytes.len()
    });
    let model = framework.model(ModelKind::InPlace);
    let body = json!({ "inputs": [input.with("parameters", place)] }).to_string();
    for _ in 0..2 {
        let answer = of_answer(&bench.client.http.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes()));
        let answer = answer.unwrap_or_else(|refusal| panic!("{model}: {refusal:?}"));
        assert_close(&answer[0].as_floats(), &expected, &model);
        assert_eq!(region.read(0, input.bytes.len()), input.bytes, "{model}: the input has changed");
    }
    bench.stop();
}

fn check_round(
    bench: &mut Bench,
    framework: &Framework,
    region: &Region,
    input: &Tensor,
    input_at: usize,
    round: usize,
    over_grpc: bool,
) {
    let model = framework.model(ModelKind::Network);
    let size = 4 * ROWS * framework.function.outputs();
    let what = format!("{model}, gRPC: {over_grpc}");
    let answered = infer(bench, framework, input, input_at, size, over_grpc);
    let answered = answered.unwrap_or_else(|refusal| panic!("{what}: {refusal:?}"));
    assert_eq!(answered.len(), 1, "{what}");
    assert!(answered[0].bytes.is_empty(), "{what}: the output is in the region alone");
    let output = Tensor { bytes: region.read(OUTPUT_AT as u64, size), ..answered[0].clone() };
    assert_rows(framework, &[output], ROWS, round, &what);
    assert_eq!(region.read(input_at as u64, input.bytes.len()), input.bytes, "{what}: the input is only read");
    for (from, to) in [(input_at + input.bytes.len(), OUTPUT_AT), (OUTPUT_AT + size, REGION_BYTES)] {
        let rest = region.read(from as u64, to - from);
        assert!(rest.iter().all(|byte| *byte == 0xee), "{what}: bytes outside of the output have changed");
    }
    let refusal = infer(bench, framework, input, input_at, size - 1, over_grpc).expect_err(&what);
    let text = format!(
        "shared memory size specified with the request for output '{}' ({} bytes) should be at least {size} bytes to \
         hold the results",
        framework.output(0),
        size - 1
    );
    assert_eq!(refusal, Refusal { kind: Kind::Internal, text }, "{what}");
    bench.check_rows(framework, super::tensors::Form::Binary, &model, 2, 7);
}

/// Sends a request whose input is in the region `r`, and whose output is to be there.
fn infer(
    bench: &mut Bench,
    framework: &Framework,
    input: &Tensor,
    input_at: usize,
    size: usize,
    over_grpc: bool,
) -> Result<Vec<Tensor>, Refusal> {
    let model = framework.model(ModelKind::Network);
    let output = framework.output(0);
    let places = [(input_at, input.bytes.len()), (OUTPUT_AT, size)];
    if over_grpc {
        let mut request = message(&model, std::slice::from_ref(input), &[&output]);
        request.raw_input_contents.clear();
        let [of_input, of_output] = places.map(|(offset, byte_size)| {
            [
                ("shared_memory_region".to_owned(), string_parameter("r")),
                ("shared_memory_offset".to_owned(), number_parameter(offset as i64)),
                ("shared_memory_byte_size".to_owned(), number_parameter(byte_size as i64)),
            ]
            .into()
        });
        request.inputs[0].parameters = of_input;
        request.outputs[0].parameters = of_output;
        let answer: Result<ModelInferResponse, _> = bench.client.grpc.call("ModelInfer", &request);
        return answer.map(|answer| super::tensors::of_message(&answer)).map_err(Refusal::from);
    }
    let [of_input, of_output] = places.map(|(offset, byte_size)| {
        json!({
            "shared_memory_region": "r", "shared_memory_offset": offset, "shared_memory_byte_size": byte_size
        })
    });
    let inputs = [input.with("parameters", of_input)];
    let body = json!({ "inputs": inputs, "outputs": [{ "name": output, "parameters": of_output }] }).to_string();
    of_answer(&bench.client.http.post(&format!("/v2/models/{model}/infer"), &[], body.as_bytes()))
}
