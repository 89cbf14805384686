//! `square`: one request with the number n in its input IN yields n responses, each with OUT = n.
//!
//! What it shows: the shortest decoupled backend. A request is given back at once, and a thread of the backend answers;
//! each response is counted by itself; who leaves is noticed between two responses.

use std::sync::Arc;

use serde_json::{Value, json};
use triton_backend::{
    Backend, Code, DataType, Error, Instance, Request, Responder, ResponseTimes, Threads, export, now_ns,
};

export!(Square);

struct Square {
    /// Declared first and dropped first: what still answers ends before the instance does.
    threads: Threads,
    instance: Instance,
}

impl Backend for Square {
    type Model = ();

    fn open(config: &Value) -> Result<(), Error> {
        if config["max_batch_size"].as_i64().unwrap_or(0) != 0 {
            return Err(Error::invalid("square backend only supports models with max_batch_size == 0"));
        }
        check(config, "input", "IN")?;
        check(config, "output", "OUT")?;
        match config["model_transaction_policy"]["decoupled"] {
            Value::Bool(true) => Ok(()),
            _ => Err(Error::invalid("square backend needs model_transaction_policy { decoupled: true }")),
        }
    }

    fn create(_model: Arc<()>, instance: Instance) -> Result<Square, Error> {
        Ok(Square { threads: Threads::default(), instance })
    }

    fn execute(&mut self, requests: Vec<Request>) {
        for mut request in requests {
            let start_ns = now_ns();
            let read = self.threads.check_room().and_then(|()| read(&request));
            let task =
                read.and_then(|value| Ok(Task { value, responder: request.responder()?, instance: self.instance }));
            match task {
                Err(error) => request.fail(&self.instance, start_ns, error),
                Ok(task) => {
                    if let Err(error) = self.threads.start(move || task.run()) {
                        // The responder went with the task, and has ended the request.
                        eprintln!("square: {error}");
                    }
                }
            }
        }
    }
}

fn check(config: &Value, side: &str, name: &str) -> Result<(), Error> {
    let given = config[side].as_array().map_or(&[][..], Vec::as_slice);
    let [tensor] = given else {
        return Err(Error::invalid(format!("expected 1 {side}, got {}", given.len())));
    };
    // Numbers of 64 bits are texts in the JSON of some servers.
    let has_dims = tensor["dims"] == json!([1]) || tensor["dims"] == json!(["1"]);
    if tensor["name"] != name || tensor["data_type"] != DataType::Int32.config_name() || !has_dims {
        return Err(Error::invalid(format!("expected {side} {name} of TYPE_INT32 and dims [1], got {tensor}")));
    }
    Ok(())
}

fn read(request: &Request) -> Result<i32, Error> {
    if request.is_cancelled()? {
        return Err(Error::new(Code::Cancelled, "the request was cancelled"));
    }
    let words = request.input("IN")?.words(DataType::Int32)?;
    let [value] = words[..] else {
        return Err(Error::invalid(format!("expected one element of IN, got {}", words.len())));
    };
    Ok(i32::from_le_bytes(value))
}

/// What a thread answers.
struct Task {
    value: i32,
    responder: Responder,
    instance: Instance,
}

impl Task {
    fn run(self) {
        for _ in 0..self.value {
            let start_ns = now_ns();
            if self.responder.is_cancelled().unwrap_or(false) {
                let times = ResponseTimes { start_ns, output_start_ns: None, end_ns: now_ns() };
                let error = Error::new(Code::Cancelled, "the request was cancelled");
                self.responder.report(&self.instance, &times, Some(&error));
                break;
            }
            let output_start_ns = Some(now_ns());
            let sent = self.respond();
            let times = ResponseTimes { start_ns, output_start_ns, end_ns: now_ns() };
            self.responder.report(&self.instance, &times, sent.as_ref().err());
            if let Err(error) = sent {
                return self.responder.fail(error);
            }
        }
        self.responder.end();
    }

    fn respond(&self) -> Result<(), Error> {
        let mut response = self.responder.response()?;
        response.output("OUT", DataType::Int32, &[1], &self.value.to_le_bytes())?;
        response.send();
        Ok(())
    }
}
