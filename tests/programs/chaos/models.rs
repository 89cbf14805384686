//! The models of a run. Each answer says which request, which model and which generation it is of.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nereid_test_support::repository::{Pair, Repository, identity_config};

/// Never reloaded, so their statistics cover the whole run.
pub const STEADY: [&str; 9] = ["plain", "batched", "slow", "echo", "chain", "sums", "burst", "repeat", "victim"];
pub const VOLATILE: [&str; 2] = ["generation", "flipping"];

const COPY: &str = r#"
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        numbers = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each)]) for each in numbers]
"#;

const SUMS: &str = r#"
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            name, flags = request.correlation_id(), request.flags()
            numbers = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.sums[name] = np.zeros_like(numbers)
            # Without its START this raises: no state is made up.
            self.sums[name] = total = self.sums[name] + numbers
            if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
                del self.sums[name]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", total)]))
        return responses
"#;

const BURST: &str = r#"
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy():
                number = np.array([number], dtype=np.int32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", number)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"#;

const GENERATION: &str = r#"
import numpy as np
import triton_python_backend_utils as pb_utils

GENERATION = @


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            numbers = pb_utils.get_input_tensor_by_name(request, "INPUT0")
            generation = pb_utils.Tensor("GENERATION", np.array([GENERATION], dtype=np.int32))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", numbers.as_numpy()), generation]))
        return responses
"#;

const VECTOR: &str = r#"input { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] }
"#;

fn python(count: u32, more: &str) -> String {
    format!("backend: \"python\"\n{VECTOR}instance_group [ {{ kind: KIND_CPU count: {count} }} ]\n{more}")
}

fn delayed(ms: u32) -> String {
    format!("parameters {{ key: \"execute_delay_ms\" value {{ string_value: \"{ms}\" }} }}\n")
}

pub fn repository() -> Repository {
    let repository = Repository::new();
    let pair = [Pair::new("INT32", "-1")];
    repository.identity("plain", 0, &pair);
    repository.identity_of("identity", "batched", 8, &pair, "dynamic_batching { max_queue_delay_microseconds: 200 }");
    let short = "dynamic_batching { default_queue_policy { max_queue_size: 3 } }\n";
    repository.identity_of("identity", "slow", 8, &pair, &format!("{short}{}", delayed(5)));
    repository.identity_of("identity", "victim", 0, &pair, &delayed(2));
    flipping(repository.path());
    let add = |name: &str, config: &str, program: &str| {
        repository.file(&format!("{name}/config.pbtxt"), config);
        repository.file(&format!("{name}/1/model.py"), program);
    };
    add("echo", &python(2, ""), COPY);
    let sequences = "max_batch_size: 0\nsequence_batching { max_sequence_idle_microseconds: 20000000 direct { } }\n";
    add("sums", &python(4, sequences), SUMS);
    let decoupled = "model_transaction_policy { decoupled: true }\n";
    add("burst", &python(1, decoupled), BURST);
    let step = |model: &str, from: &str, to: &str| {
        format!(
            "step {{ model_name: \"{model}\" model_version: -1 input_map {{ key: \"INPUT0\" value: \"{from}\" }} \
             output_map {{ key: \"OUTPUT0\" value: \"{to}\" }} }}\n"
        )
    };
    let steps = [step("plain", "INPUT0", "between"), step("echo", "between", "OUTPUT0")].concat();
    repository.model("chain", &format!("platform: \"ensemble\"\n{VECTOR}ensemble_scheduling {{ {steps} }}\n"));
    let repeat = format!(
        "backend: \"repeat\"\ninput [ {{ name: \"IN\" data_type: TYPE_INT32 dims: [ -1 ] }}, \
         {{ name: \"DELAY\" data_type: TYPE_UINT32 dims: [ -1 ] }}, {{ name: \"WAIT\" data_type: TYPE_UINT32 dims: [ 1 ] }} ]\n\
         output [ {{ name: \"OUT\" data_type: TYPE_INT32 dims: [ 1 ] }}, \
         {{ name: \"IDX\" data_type: TYPE_UINT32 dims: [ 1 ] }} ]\n\
         instance_group [ {{ kind: KIND_CPU count: 2 }} ]\n{decoupled}"
    );
    repository.model("repeat", &repeat);
    generation(repository.path(), 0);
    repository
}

/// Writes the model `generation`, whole, as it is in this generation.
pub fn generation(repository: &Path, number: u64) {
    let config = format!("{}output {{ name: \"GENERATION\" data_type: TYPE_INT32 dims: [ 1 ] }}\n", python(1, ""));
    write(repository, "generation/config.pbtxt", &config);
    write(repository, "generation/1/model.py", &program_of(number));
}

pub fn program_of(number: u64) -> String {
    GENERATION.replace('@', &number.to_string())
}

/// Writes the model `flipping`, whole.
pub fn flipping(repository: &Path) {
    let config = identity_config("identity", "flipping", 0, &[Pair::new("INT32", "-1")], "");
    write(repository, "flipping/config.pbtxt", &config);
    fs::create_dir_all(repository.join("flipping/1")).expect("a version of a model");
}

/// Writes a file of a model, with the directories above it.
pub fn write(repository: &Path, path: &str, contents: &str) {
    let path = repository.join(path);
    fs::create_dir_all(path.parent().expect("a directory of a model")).expect("a directory of a model");
    fs::write(&path, contents).expect("a file of a model");
}

/// The generations that an answer of the model `generation` may be of, in a file that all processes read: the last one
/// whose load was confirmed, and the last one whose load was begun.
pub struct Generations(File);

impl Generations {
    pub fn create(path: &Path) -> Generations {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path);
        let generations = Generations(file.expect("the file of generations"));
        generations.put(0, 0);
        generations.put(8, 0);
        generations
    }

    pub fn open(path: &Path) -> Generations {
        Generations(File::open(path).expect("the file of generations"))
    }

    fn put(&self, at: u64, number: u64) {
        self.0.write_all_at(&number.to_le_bytes(), at).expect("write a generation");
    }

    fn at(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, at).expect("read a generation");
        u64::from_le_bytes(bytes)
    }

    pub fn confirm(&self, number: u64) {
        self.put(0, number);
    }

    pub fn begin(&self, number: u64) {
        self.put(8, number);
    }

    pub fn confirmed(&self) -> u64 {
        self.at(0)
    }

    pub fn begun(&self) -> u64 {
        self.at(8)
    }
}
