//! `repeat`: one request yields as many responses as its input IN has elements.
//!
//! What it shows: a decoupled model whose responses come from threads of the backend, after DELAY[i] ms each, while the
//! request itself is given back after WAIT ms, so that responses come before and after. Statistics of each execution;
//! cancellation; a configuration that is completed; threads that end before their instance does.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use triton_backend::{Backend, Code, DataType, Error, Instance, Request, Responder, Threads, Times, export, now_ns};

export!(Repeat);

/// The tensors of every model of this backend, in this order: name, type, dimensions.
const INPUTS: [(&str, DataType, i64); 3] =
    [("IN", DataType::Int32, -1), ("DELAY", DataType::Uint32, -1), ("WAIT", DataType::Uint32, 1)];
const OUTPUTS: [(&str, DataType, i64); 2] = [("OUT", DataType::Int32, 1), ("IDX", DataType::Uint32, 1)];

struct Repeat {
    /// Declared first and dropped first: what still answers ends before the instance does.
    threads: Threads,
    instance: Instance,
}

impl Backend for Repeat {
    type Model = ();

    fn complete(config: &mut Value) -> Result<bool, Error> {
        let is_open = |config: &Value, side: &str| config[side].as_array().is_none_or(Vec::is_empty);
        let mut is_changed = false;
        for (side, tensors) in [("input", &INPUTS[..]), ("output", &OUTPUTS[..])] {
            if is_open(config, side) {
                config[side] = tensors
                    .iter()
                    .map(|(name, datatype, dim)| {
                        json!({ "name": name, "data_type": datatype.config_name(), "dims": [dim] })
                    })
                    .collect();
                is_changed = true;
            }
        }
        // Whoever states no policy cannot want what this backend does to be refused.
        if is_changed {
            config["model_transaction_policy"] = json!({ "decoupled": true });
        }
        Ok(is_changed)
    }

    fn open(config: &Value) -> Result<(), Error> {
        if config["max_batch_size"].as_i64().unwrap_or(0) != 0 {
            return Err(Error::invalid("repeat backend only supports models with max_batch_size == 0"));
        }
        check(config, "input", &INPUTS)?;
        check(config, "output", &OUTPUTS)?;
        match config["model_transaction_policy"]["decoupled"] {
            Value::Bool(true) => Ok(()),
            _ => Err(Error::invalid("repeat backend needs model_transaction_policy { decoupled: true }")),
        }
    }

    fn create(_model: Arc<()>, instance: Instance) -> Result<Repeat, Error> {
        Ok(Repeat { threads: Threads::default(), instance })
    }

    fn execute(&mut self, requests: Vec<Request>) {
        for request in requests {
            self.answer(request);
        }
    }
}

fn check(config: &Value, side: &str, expected: &[(&str, DataType, i64)]) -> Result<(), Error> {
    let given = config[side].as_array().map_or(&[][..], Vec::as_slice);
    if given.len() != expected.len() {
        return Err(Error::invalid(format!("expected {} {side}s, got {}", expected.len(), given.len())));
    }
    for (tensor, (name, datatype, dim)) in given.iter().zip(expected) {
        let (type_name, dims) = (datatype.config_name(), json!([dim]));
        // Numbers beyond 32 bits are texts in the JSON of some servers.
        let has_dims = tensor["dims"] == dims || tensor["dims"] == json!([dim.to_string()]);
        if tensor["name"] != *name || tensor["data_type"] != type_name || !has_dims {
            return Err(Error::invalid(format!("expected {side} {name} of {type_name} and dims {dims}, got {tensor}")));
        }
    }
    Ok(())
}

/// What a thread answers: values with the delay in ms before each.
struct Task {
    responder: Responder,
    steps: Vec<([u8; 4], u32)>,
}

impl Repeat {
    fn answer(&mut self, mut request: Request) {
        let exec_start_ns = now_ns();
        let (steps, wait_ms) = match self.threads.check_room().and_then(|()| read(&request)) {
            Ok(task) => task,
            Err(error) => return request.fail(&self.instance, exec_start_ns, error),
        };
        let compute_start_ns = now_ns();
        let started = request.responder().and_then(|responder| {
            let task = Task { responder, steps };
            self.threads.start(move || task.run())
        });
        if let Err(error) = &started {
            // The responder went with the task, and has ended the request.
            eprintln!("repeat: {error}");
        }
        std::thread::sleep(Duration::from_millis(u64::from(wait_ms)));
        let end_ns = now_ns();
        let times = Times { exec_start_ns, compute_start_ns, compute_end_ns: end_ns, exec_end_ns: end_ns };
        request.report(&self.instance, started.is_ok(), &times);
        self.instance.report_batch(1, &times);
        // The request is given back here; its responder goes on.
    }
}

type Steps = Vec<([u8; 4], u32)>;

/// The steps of a request, and how long it is kept.
fn read(request: &Request) -> Result<(Steps, u32), Error> {
    if request.is_cancelled()? {
        return Err(Error::new(Code::Cancelled, "the request was cancelled"));
    }
    let (values, delays) = (request.input("IN")?, request.input("DELAY")?);
    if values.shape() != delays.shape() {
        let (values, delays) = (values.shape(), delays.shape());
        return Err(Error::invalid(format!("expected IN and DELAY shape to match, got {values:?} and {delays:?}")));
    }
    let delays = delays.words(DataType::Uint32)?.into_iter().map(u32::from_le_bytes);
    let wait = request.input("WAIT")?.words(DataType::Uint32)?;
    let wait_ms = wait.first().copied().map_or(0, u32::from_le_bytes);
    Ok((values.words(DataType::Int32)?.into_iter().zip(delays).collect(), wait_ms))
}

impl Task {
    fn run(self) {
        for (index, (value, delay_ms)) in self.steps.iter().enumerate() {
            std::thread::sleep(Duration::from_millis(u64::from(*delay_ms)));
            if self.responder.is_cancelled().unwrap_or(false) {
                break;
            }
            if let Err(error) = self.respond(index as u32, value) {
                return self.responder.fail(error);
            }
        }
        self.responder.end();
    }

    fn respond(&self, index: u32, value: &[u8; 4]) -> Result<(), Error> {
        let mut response = self.responder.response()?;
        response.output("OUT", DataType::Int32, &[1], value)?;
        response.output("IDX", DataType::Uint32, &[1], &index.to_le_bytes())?;
        // Where clients read slowly, this call may wait for them: that is why it is not on the instance's thread.
        response.send();
        Ok(())
    }
}
