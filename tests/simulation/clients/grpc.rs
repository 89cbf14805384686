//! Clients over gRPC: unary calls with deadlines and cancellations, and streams with decoupled models.

use std::collections::BTreeMap;

use bytes::Bytes;
use nereid_memory::Pool;
use nereid_protocol::http2::{
    Config, Connection, ErrorCode, Handler, Headers, PREFACE, ResetCause, SendError, StreamId,
};
use nereid_wire::inference::infer_parameter::ParameterChoice;
use nereid_wire::inference::model_infer_request::InferInputTensor;
use nereid_wire::inference::{InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use prost::Message;

use super::{Draft, Plan, Sequence};
use crate::ledger::{self, Answer, DECOUPLED, SEQUENCE};
use crate::models::KINDS;
use crate::random::Random;

const DATA: u8 = 0;
const END_STREAM: u8 = 1;
/// Bytes of a client's own memory.
const POOL_BYTES: usize = 64 << 20;

pub struct Grpc {
    connection: Connection,
    /// Most payload bytes of a DATA frame, whatever the server takes.
    frame_bytes_max: usize,
    calls: Calls,
    /// The stream that carries the requests of a streaming client.
    stream: Option<StreamId>,
    is_streaming: bool,
    sequence: Option<Sequence>,
    pub sent: u32,
}

#[derive(Default)]
struct Calls {
    open: BTreeMap<u32, Call>,
    lost_sequence: bool,
    /// The server wants no further calls.
    going_away: bool,
}

struct Call {
    stream: StreamId,
    /// Requests without a last answer, oldest first.
    waiting: Vec<u32>,
    is_stream: bool,
    in_sequence: bool,
    data: Vec<u8>,
    status: Option<(String, String)>,
}

impl Grpc {
    pub fn new(is_streaming: bool, random: &mut Random) -> Grpc {
        let (config, frame_bytes_max) = match random.below(3) {
            0 => {
                let stream_window = random.between(200, 3000) as u32;
                (Config { stream_window, connection_window: 70_000, ..Config::default() }, 4096)
            }
            1 => (Config::default(), 16_384),
            _ => (Config::default(), usize::MAX),
        };
        let connection = Connection::client(config, Pool::new(POOL_BYTES));
        let calls = Calls::default();
        Grpc { connection, frame_bytes_max, calls, stream: None, is_streaming, sequence: None, sent: 0 }
    }

    pub fn is_going_away(&self) -> bool {
        self.calls.going_away
    }

    pub fn waiting(&self) -> impl Iterator<Item = u32> {
        self.calls.open.values().flat_map(|call| call.waiting.iter().copied())
    }

    pub fn is_streaming(&self) -> bool {
        self.is_streaming
    }

    /// No call is open.
    pub fn is_over(&self) -> bool {
        self.calls.open.is_empty()
    }

    pub fn is_idle(&self) -> bool {
        self.waiting().next().is_none()
    }

    fn open(&mut self, method: &str, deadline_ms: Option<u64>) -> Result<StreamId, SendError> {
        let path = format!("/inference.GRPCInferenceService/{method}");
        let timeout = deadline_ms.map(|ms| format!("{ms}m"));
        let mut headers: Vec<(&[u8], &[u8])> = vec![
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path.as_bytes()),
            (b":authority", b"simulated"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ];
        if let Some(timeout) = &timeout {
            headers.push((b"grpc-timeout", timeout.as_bytes()));
        }
        self.connection.open(headers, false)
    }

    /// Sends another request, unless the connection takes none.
    pub fn send(&mut self, plan: &mut Plan<'_>) {
        if self.calls.going_away {
            return;
        }
        let in_sequence = self.calls.open.values().any(|call| call.in_sequence && !call.waiting.is_empty());
        if self.is_streaming && self.stream.is_none() {
            match self.open("ModelStreamInfer", None) {
                Ok(stream) => {
                    self.stream = Some(stream);
                    let call = Call {
                        stream,
                        waiting: Vec::new(),
                        is_stream: true,
                        in_sequence: false,
                        data: Vec::new(),
                        status: None,
                    };
                    self.calls.open.insert(stream.get(), call);
                }
                Err(_) => return self.calls.going_away = true,
            }
        }
        // Sequences of a stream are left to unary calls: an error does not name its request.
        let draft = plan.draft(&mut self.sequence, !in_sequence && !self.is_streaming);
        self.sent += 1;
        let message = framed(&request(&draft).encode_to_vec());
        let stream = match self.stream {
            Some(stream) => stream,
            None => match self.open("ModelInfer", draft.deadline_ms) {
                Ok(stream) => stream,
                Err(_) => {
                    // It never left.
                    ledger::with(|ledger| ledger.lose(draft.number));
                    return self.calls.going_away = true;
                }
            },
        };
        let is_unary = self.stream.is_none();
        if is_unary {
            let call = Call {
                stream,
                waiting: vec![draft.number],
                is_stream: false,
                in_sequence: draft.model == SEQUENCE,
                data: Vec::new(),
                status: None,
            };
            self.calls.open.insert(stream.get(), call);
        } else if let Some(call) = self.calls.open.get_mut(&stream.get()) {
            call.waiting.push(draft.number);
            // A stream has no deadline.
            ledger::with(|ledger| {
                if let Some(sent) = ledger.open.get_mut(&draft.number) {
                    sent.deadline_ns = None;
                }
            });
        }
        let _ = self.connection.send_bytes(stream, &message, is_unary);
    }

    /// Ends the stream, if there is one.
    pub fn finish(&mut self) {
        if let Some(stream) = self.stream.take() {
            let _ = self.connection.send_bytes(stream, &[], true);
        }
    }

    /// Gives up a call.
    pub fn cancel(&mut self, random: &mut Random) {
        let count = self.calls.open.len() as u64;
        if count == 0 {
            return;
        }
        let Some(&id) = self.calls.open.keys().nth(random.below(count) as usize) else { return };
        if let Some(call) = self.calls.open.remove(&id) {
            self.connection.reset(call.stream, ErrorCode::CANCEL);
            ledger::with(|ledger| {
                ledger.faults.count("call cancelled by its client");
                for number in &call.waiting {
                    ledger.lose(*number);
                    ledger.given_up.insert(*number, nereid_clock::now_ns());
                }
            });
            if call.in_sequence {
                self.sequence = None;
            }
            if self.stream == Some(call.stream) {
                self.stream = None;
            }
        }
    }

    pub fn receive(&mut self, bytes: &[u8]) {
        if let Err(error) = self.connection.receive(bytes, &mut self.calls) {
            ledger::with(|ledger| ledger.violate(format!("the server breaks HTTP/2: {error}")));
        }
        if std::mem::take(&mut self.calls.lost_sequence) {
            self.sequence = None;
        }
        if self.stream.is_some_and(|stream| !self.calls.open.contains_key(&stream.get())) {
            self.stream = None;
        }
    }

    pub fn take_output(&mut self, out: &mut Vec<u8>) {
        let bytes = self.connection.output().to_vec();
        self.connection.output().clear();
        cut_data(&bytes, self.frame_bytes_max, out);
    }
}

impl Calls {
    fn end(&mut self, id: u32) {
        let Some(call) = self.open.remove(&id) else { return };
        let (code, text) = call.status.clone().unwrap_or_default();
        if call.is_stream {
            let is_fine = code == "0" && call.waiting.is_empty();
            for number in &call.waiting {
                ledger::with(|ledger| {
                    let answer = Answer::Failure { code: &code, text: &text };
                    ledger.answered(*number, &answer);
                });
            }
            if !is_fine && code == "0" {
                ledger::with(|ledger| ledger.violate("a stream ends without the answers to its requests".to_owned()));
            }
            return;
        }
        let Some(number) = call.waiting.first().copied() else { return };
        if code != "0" {
            self.lost_sequence |= call.in_sequence;
            let name = if code == "4" { "DEADLINE_EXCEEDED" } else { &*code };
            return ledger::with(|ledger| ledger.answered(number, &Answer::Failure { code: name, text: &text }));
        }
        match unframed(&call.data).map(ModelInferResponse::decode) {
            Some(Ok(response)) => {
                ledger::with(|ledger| ledger.answered(number, &answer(&response, &values(&response))))
            }
            other => {
                let text = format!("request {number} gets {} bytes and no message: {other:?}", call.data.len());
                ledger::with(|ledger| ledger.violate(text));
            }
        }
    }

    fn stream_message(&mut self, id: u32, message: &ModelStreamInferResponse) {
        let Some(call) = self.open.get_mut(&id) else { return };
        let response = message.infer_response.clone().unwrap_or_default();
        let of_id = response.id.strip_prefix('r').and_then(|number| number.parse::<u32>().ok());
        let number = of_id.or_else(|| call.waiting.first().copied());
        let Some(at) = call.waiting.iter().position(|waiting| Some(*waiting) == number) else {
            let text = format!("a response came that belongs to no request: {message:?}");
            return ledger::with(|ledger| ledger.violate(text));
        };
        let number = call.waiting[at];
        if !message.error_message.is_empty() {
            let answer = Answer::Failure { code: "stream", text: &message.error_message };
            ledger::with(|ledger| ledger.answered(number, &answer));
            call.waiting.remove(at);
            return;
        }
        let values = values(&response);
        let is_decoupled = response.model_name == KINDS[DECOUPLED].name;
        if !is_decoupled {
            ledger::with(|ledger| ledger.answered(number, &answer(&response, &values)));
            call.waiting.remove(at);
            return;
        }
        let is_final = response
            .parameters
            .get("triton_final_response")
            .is_some_and(|parameter| parameter.parameter_choice == Some(ParameterChoice::BoolParam(true)));
        let is_over = ledger::with(|ledger| {
            let answer = answer(&response, &values);
            let Some(sent) = ledger.open.get(&number) else {
                ledger.violate(format!("request {number} is answered behind its end"));
                return true;
            };
            if !values.is_empty() {
                if let Err(text) = ledger.check_success(number, sent, &answer) {
                    ledger.violate(format!("response to request {number}: {text}: {sent:?}"));
                }
                if let Some(sent) = ledger.open.get_mut(&number) {
                    sent.arrived += 1;
                }
            }
            if is_final && let Some(sent) = ledger.open.remove(&number) {
                ledger.succeeded += 1;
                if sent.arrived != sent.responses {
                    ledger.violate(format!("request {number} gets {} of {} responses", sent.arrived, sent.responses));
                }
            }
            is_final
        });
        if is_over {
            call.waiting.remove(at);
        }
    }
}

impl Handler for Calls {
    fn headers(&mut self, stream: StreamId, headers: &Headers, end_stream: bool) {
        if end_stream {
            self.trailers(stream, headers);
        }
    }

    fn data(&mut self, stream: StreamId, bytes: &[u8], end_stream: bool) -> usize {
        let id = stream.get();
        let mut messages = Vec::new();
        if let Some(call) = self.open.get_mut(&id) {
            call.data.extend_from_slice(bytes);
            while call.is_stream
                && let Some(message) = unframed(&call.data)
            {
                let len = message.len() + 5;
                messages.push(ModelStreamInferResponse::decode(message));
                call.data.drain(..len);
            }
        }
        for message in messages {
            match message {
                Ok(message) => self.stream_message(id, &message),
                Err(error) => ledger::with(|ledger| ledger.violate(format!("a message cannot be read: {error}"))),
            }
        }
        if end_stream {
            ledger::with(|ledger| ledger.violate("a call ends without trailers".to_owned()));
        }
        bytes.len()
    }

    fn trailers(&mut self, stream: StreamId, headers: &Headers) {
        let text = |name: &[u8]| String::from_utf8_lossy(headers.get(name).unwrap_or_default()).into_owned();
        if let Some(call) = self.open.get_mut(&stream.get()) {
            call.status = Some((text(b"grpc-status"), text(b"grpc-message")));
        }
        self.end(stream.get());
    }

    fn reset(&mut self, stream: StreamId, code: ErrorCode, cause: ResetCause) {
        let Some(call) = self.open.remove(&stream.get()) else { return };
        self.lost_sequence |= call.in_sequence;
        ledger::with(|ledger| {
            if !ledger.is_draining && !call.waiting.is_empty() && !ledger.is_tight {
                ledger.violate(format!("the server resets a call: {code:?} {cause:?}"));
            }
            call.waiting.iter().for_each(|number| ledger.lose(*number));
        });
    }

    fn goaway(&mut self, _last_stream: u32, _code: ErrorCode, _debug: &[u8]) {
        self.going_away = true;
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let mut framed = vec![0];
    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    framed.extend_from_slice(message);
    framed
}

/// The first message, if it has come whole.
fn unframed(bytes: &[u8]) -> Option<&[u8]> {
    let head: [u8; 4] = bytes.get(1..5)?.try_into().ok()?;
    bytes.get(5..)?.get(..u32::from_be_bytes(head) as usize)
}

/// The same frames, but for DATA frames with more payload, which become several.
fn cut_data(bytes: &[u8], payload_max: usize, out: &mut Vec<u8>) {
    let mut rest = bytes;
    if let Some(behind) = rest.strip_prefix(PREFACE) {
        out.extend_from_slice(PREFACE);
        rest = behind;
    }
    while let Some(([a, b, c, kind, flags, stream @ ..], behind)) = rest.split_first_chunk::<9>() {
        let (payload, behind) = behind.split_at(u32::from_be_bytes([0, *a, *b, *c]) as usize);
        rest = behind;
        let most = if *kind == DATA { payload_max } else { usize::MAX };
        let mut pieces = payload.chunks(most).peekable();
        loop {
            let piece = pieces.next().unwrap_or_default();
            let is_last = pieces.peek().is_none();
            out.extend_from_slice(&(piece.len() as u32).to_be_bytes()[1..]);
            out.extend([*kind, if is_last { *flags } else { flags & !END_STREAM }]);
            out.extend_from_slice(stream);
            out.extend_from_slice(piece);
            if is_last {
                break;
            }
        }
    }
    assert!(rest.is_empty(), "half a frame");
}

fn values(response: &ModelInferResponse) -> Vec<i32> {
    let bytes: &[u8] = response.raw_output_contents.first().map_or(&[], |raw| &raw[..]);
    bytes.chunks_exact(4).map(|four| i32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}

fn answer<'a>(response: &'a ModelInferResponse, values: &'a [i32]) -> Answer<'a> {
    Answer::Success { model: &response.model_name, version: &response.model_version, id: &response.id, values }
}

fn request(draft: &Draft) -> ModelInferRequest {
    let values = draft.values();
    let elements = draft.elements as i64;
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    let mut message = ModelInferRequest {
        model_name: KINDS[draft.model].name.to_owned(),
        id: format!("r{}", draft.number),
        inputs: vec![InferInputTensor {
            name: "INPUT0".to_owned(),
            datatype: "INT32".to_owned(),
            shape: if draft.is_batching() { vec![1, elements] } else { vec![elements] },
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![Bytes::from(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())],
        ..ModelInferRequest::default()
    };
    let parameters = &mut message.parameters;
    if let Some(step) = draft.sequence {
        parameters.insert("sequence_id".to_owned(), parameter(ParameterChoice::Int64Param(step.id as i64)));
        parameters.insert("sequence_start".to_owned(), parameter(ParameterChoice::BoolParam(step.begins)));
        parameters.insert("sequence_end".to_owned(), parameter(ParameterChoice::BoolParam(step.ends)));
    }
    if draft.priority > 0 {
        parameters.insert("priority".to_owned(), parameter(ParameterChoice::Int64Param(draft.priority as i64)));
    }
    if draft.timeout_us > 0 {
        parameters.insert("timeout".to_owned(), parameter(ParameterChoice::Int64Param(draft.timeout_us as i64)));
    }
    if draft.model == DECOUPLED {
        parameters.insert("triton_enable_empty_final_response".to_owned(), parameter(ParameterChoice::BoolParam(true)));
    }
    message
}
