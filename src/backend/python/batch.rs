//! Writes the requests of a payload into one message to a worker.

use std::collections::VecDeque;

use super::exported_tensors::ExportedTensor;
use super::link::Link;
use super::marshal::Writer;
use super::tensors::{self, TensorContent, TensorRange};
use nereid_memory::Segment;
use nereid_request::{CorrelationId, InputTensor, Request, Status, Value};

/// Addresses of ranges that one message gives back to the worker.
const FREED_MAX: usize = 16 * 1024;

/// The inputs of a request, in the model's shapes.
fn contents(request: &Request) -> impl Iterator<Item = TensorContent<'_>> {
    request.inputs.iter().map(content)
}

fn content(input: &InputTensor) -> TensorContent<'_> {
    // Set in every accepted request; empty for a scalar.
    let shape = &input.model_shape;
    TensorContent { name: input.name.as_bytes(), datatype: input.datatype, shape, pieces: &input.data, exported: None }
}

/// The tensors that one batch exports to a worker, in the order of the batch's inputs on devices.
#[derive(Default)]
pub struct BatchExports {
    exported: VecDeque<ExportedTensor>,
    keys: Vec<u64>,
}

impl BatchExports {
    /// Exports the inputs that lie on devices, and copies those to the host that cannot be exported. May block.
    pub fn begin(&mut self, requests: &mut [Box<Request>], link: &Link) -> Result<(), Status> {
        for request in requests {
            for at in 0..request.inputs.len() {
                let Some(input) = request.inputs.get(at) else { continue };
                let Some(slice) = input.on_device().cloned() else { continue };
                match link.exported.export(&slice, input.datatype) {
                    Some(exported) => {
                        self.keys.push(exported.key);
                        self.exported.push_back(exported);
                    }
                    None => {
                        let mut block = request.allocate(slice.len())?;
                        slice.gpu().fetch(&slice, &mut block)?;
                        if let Some(input) = request.inputs.get_mut(at) {
                            input.data = smallvec::smallvec![block.freeze()];
                            input.placement.iter_mut().for_each(|placement| placement.on_device = None);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Revokes the exports of a batch that is not sent.
    pub fn revoke(self, link: &Link) {
        link.release(&self.keys);
    }
}

/// Bytes of shared memory that the inputs of these requests need.
pub fn shared_len(requests: &[Box<Request>]) -> Result<usize, Status> {
    tensors::shared_len(requests.iter().flat_map(|request| contents(request)))
}

/// Writes the start of a message to the worker: the addresses of the ranges that it may use again. The caller puts them
/// back if it does not send the message.
pub fn write_freed(writer: &mut Writer, link: &Link) -> Vec<u64> {
    let freed = link.outbound.take_freed(FREED_MAX);
    writer.list(freed.len());
    freed.iter().for_each(|place| writer.int(*place));
    freed
}

/// Writes one request: (token, id, correlation, flags, timeout, parameters, outputs, trace, inputs). The trace is None
/// without a trace, else its context, which may be empty.
pub fn write_request(
    writer: &mut Writer,
    request: &Request,
    token: u64,
    room: &mut Option<TensorRange<'_>>,
    exports: &mut BatchExports,
) -> Result<(), Status> {
    writer.tuple(9);
    writer.int(token);
    writer.text(request.id.as_bytes());
    match &request.correlation_id {
        CorrelationId::None => writer.int(0),
        CorrelationId::Number(id) => writer.int(*id),
        CorrelationId::Text(id) => writer.text(id.as_bytes()),
    }
    writer.int(request.flags);
    writer.int(request.queueing.timeout_us);
    writer.text(parameters(request)?.as_bytes());
    writer.tuple(request.outputs.len());
    request.outputs.iter().for_each(|output| writer.text(output.name.as_bytes()));
    match request.observer.as_ref().and_then(|observer| observer.trace()) {
        Some(trace) => writer.text(trace.context().to_bytes()),
        None => writer.none(),
    }
    writer.tuple(request.inputs.len());
    request.inputs.iter().try_for_each(|input| {
        let exported = input.on_device().and_then(|_| exports.exported.pop_front());
        tensors::write(writer, &TensorContent { exported: exported.as_ref(), ..content(input) }, room)
    })
}

/// The error of a request that cannot be sent to a worker.
pub fn refusal(request: &Request) -> Option<Status> {
    let bytes = request.parameters.iter().find(|parameter| matches!(parameter.value, Value::Bytes(_)))?;
    let name = bytes.name.to_str_lossy();
    Some(Status::internal(format!("Unsupported parameter type for parameter '{name}'.")))
}

/// The parameters as JSON text, as models get them.
fn parameters(request: &Request) -> Result<String, Status> {
    if request.parameters.is_empty() {
        return Ok("{}".to_owned());
    }
    let mut object = serde_json::Map::new();
    for parameter in request.parameters.iter() {
        let name = parameter.name.to_str_lossy().into_owned();
        let value = match &parameter.value {
            Value::String(text) => serde_json::Value::from(&*text.to_str_lossy()),
            Value::Int(number) => serde_json::Value::from(*number),
            Value::Bool(is_set) => serde_json::Value::from(*is_set),
            Value::Double(number) => serde_json::Value::from(*number),
            // See `refusal`.
            Value::Bytes(_) => continue,
        };
        object.insert(name, value);
    }
    serde_json::to_string(&object).map_err(|error| Status::internal(format!("parameters are no JSON: {error}")))
}

/// The shared memory for the larger inputs of a batch.
pub fn room<'a>(taken: &'a Option<(super::inbound::Range, std::sync::Arc<Segment>)>) -> Option<TensorRange<'a>> {
    taken.as_ref().map(|(range, segment)| TensorRange::new(*range, segment))
}
