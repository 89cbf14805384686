//! ModelStreamInfer: one call, many requests, and as many responses to each as its model likes.

use std::sync::Arc;

use super::{EXPIRED, Flight, NotBegun, Outcomes, RequestSet, end_of_call, http2_config};
use crate::answer::read_streamed;
use crate::request::read_id;
use nereid_memory::{Gather, Pool, Slab, Slice};
use nereid_protocol::grpc::PREFIX_BYTES;
use nereid_protocol::http2::{Connection, ErrorCode, Handler, Headers, ResetCause, StreamId};

/// Longer messages are not taken: gRPC's own limit.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

pub struct StreamExchange {
    connection: Connection,
    pool: Pool,
    call: Option<StreamId>,
    parted: bool,
    messages: Messages,
    scratch: Vec<u8>,
    message: Gather,
}

/// The messages of the call, and the requests that wait for them.
struct Messages {
    request_set: Arc<RequestSet>,
    flights: Slab<Flight>,
    /// The beginning of a message whose end has not come.
    partial: Vec<u8>,
    now_ns: u64,
    outcomes: Outcomes,
    /// The call is over, for this reason.
    end: Option<String>,
}

impl StreamExchange {
    pub fn new(request_set: Arc<RequestSet>, pool: Pool) -> StreamExchange {
        let messages = Messages {
            request_set,
            flights: Slab::new(usize::MAX),
            partial: Vec::new(),
            now_ns: 0,
            outcomes: Outcomes::default(),
            end: None,
        };
        StreamExchange {
            connection: Connection::client(http2_config(), pool.clone()),
            pool,
            call: None,
            parted: false,
            messages,
            scratch: Vec::new(),
            message: Gather::new(),
        }
    }

    pub fn begin(&mut self, flight: Flight) -> Result<(), NotBegun> {
        let request_set = Arc::clone(&self.messages.request_set);
        let Some(template) = request_set.templates.get(flight.template) else { return Err(NotBegun::Over(flight)) };
        let call = match self.call {
            Some(call) if !self.is_over() => call,
            Some(_) => return Err(NotBegun::Over(flight)),
            None => match self.connection.open(request_set.call(), false) {
                Ok(call) => *self.call.insert(call),
                Err(_) => {
                    self.messages.end = Some("no call could be opened".to_owned());
                    return Err(NotBegun::Over(flight));
                }
            },
        };
        let mut marks = flight.marks;
        let key = match self.messages.flights.insert(flight) {
            Ok(key) => key,
            Err(full) => return Err(NotBegun::Full(full.0)),
        };
        marks.id = Some(key);
        let tail = template.write(&marks, &mut self.scratch);
        let sent = match tail {
            None => self.connection.send_bytes(call, &self.scratch, false),
            Some(tail) => {
                self.message.put(&self.pool, &self.scratch);
                self.message.push(&self.pool, tail.clone());
                self.connection.send_data(call, &mut self.message, false)
            }
        };
        match (sent, self.messages.flights.get_mut(key)) {
            (Ok(()), Some(flight)) => flight.marks = marks,
            _ => {
                self.messages.end.get_or_insert_with(|| "the call takes no more requests".to_owned());
                if let Some(flight) = self.messages.flights.remove(key) {
                    return Err(NotBegun::Over(flight));
                }
            }
        }
        Ok(())
    }

    pub fn receive(&mut self, bytes: &[u8], now_ns: u64, outcomes: &mut Outcomes) -> Result<(), String> {
        self.messages.now_ns = now_ns;
        std::mem::swap(&mut self.messages.outcomes, outcomes);
        let outcome = self.connection.receive(bytes, &mut self.messages).map_err(|error| error.to_string());
        std::mem::swap(&mut self.messages.outcomes, outcomes);
        outcome?;
        match &self.messages.end {
            Some(reason) => Err(reason.clone()),
            None => Ok(()),
        }
    }

    pub fn take_output(&mut self, most: usize, into: &mut Vec<Slice>) {
        self.connection.output().take(most, into);
    }

    pub fn in_flight(&self) -> usize {
        self.messages.flights.len()
    }

    pub fn is_over(&self) -> bool {
        self.parted || self.messages.end.is_some()
    }

    pub fn expire(&self, before_ns: u64) -> Result<(), String> {
        let late = |flight: &Flight| flight.sent_ns.max(flight.last_response_ns) < before_ns;
        match self.messages.flights.iter().any(|(_, flight)| late(flight)) {
            true => Err(EXPIRED.to_owned()),
            false => Ok(()),
        }
    }

    pub fn fail(&mut self, reason: &str, now_ns: u64, outcomes: &mut Outcomes) {
        self.messages.end.get_or_insert_with(|| reason.to_owned());
        for key in self.messages.flights.keys() {
            if let Some(flight) = self.messages.flights.remove(key) {
                outcomes.finish(flight, now_ns, Err(reason.to_owned()));
            }
        }
    }

    /// Says that no more requests will come; the peer ends the call then.
    pub fn part(&mut self) -> bool {
        let Some(call) = self.call.filter(|_| !self.is_over()) else { return false };
        self.parted = true;
        self.connection.send_bytes(call, &[], true).is_ok()
    }
}

impl Messages {
    /// Takes the next bytes of the call; what is whole is read where it lies.
    fn take(&mut self, mut bytes: &[u8]) {
        while !self.partial.is_empty() && !bytes.is_empty() && self.end.is_none() {
            let missing = match frame_length(&self.partial) {
                None => PREFIX_BYTES - self.partial.len().min(PREFIX_BYTES),
                Some(length) => length.saturating_sub(self.partial.len()),
            };
            let (taken, rest) = bytes.split_at(missing.min(bytes.len()));
            self.partial.extend_from_slice(taken);
            bytes = rest;
            if frame_length(&self.partial) == Some(self.partial.len()) {
                let whole = std::mem::take(&mut self.partial);
                self.read(&whole);
                self.partial = whole;
                self.partial.clear();
            }
        }
        while let Some(length) = frame_length(bytes).filter(|_| self.end.is_none()) {
            let Some((whole, rest)) = bytes.split_at_checked(length) else { break };
            self.read(whole);
            bytes = rest;
        }
        self.partial.extend_from_slice(bytes);
    }

    /// A frame that is whole.
    fn read(&mut self, frame: &[u8]) {
        let plain = frame.first() == Some(&0) && frame.len() <= MESSAGE_BYTES_MAX;
        let message = frame.get(PREFIX_BYTES..).filter(|_| plain);
        let Some(streamed) = message.and_then(read_streamed) else {
            self.end = Some("a message on the stream is broken".to_owned());
            return;
        };
        // No request waits for the answer to one that was given up.
        let Some(key) = read_id(streamed.id) else {
            if !streamed.error.is_empty() {
                self.end = Some(String::from_utf8_lossy(streamed.error).into_owned());
            }
            return;
        };
        let Some(flight) = self.flights.get_mut(key) else { return };
        let failed = !streamed.error.is_empty();
        // What only marks the end is no response.
        let is_final = failed || streamed.is_final.unwrap_or(!self.request_set.decoupled);
        if failed || streamed.has_outputs || !self.request_set.decoupled {
            self.outcomes.response(flight, self.now_ns);
        }
        if !is_final {
            return;
        }
        let Some(flight) = self.flights.remove(key) else { return };
        let outcome = if failed {
            Err(String::from_utf8_lossy(streamed.error).into_owned())
        } else {
            let expectation = self.request_set.expectation(flight.template);
            expectation.map_or(Ok(()), |wanted| wanted.check_message(streamed.response))
        };
        self.outcomes.finish(flight, self.now_ns, outcome);
    }
}

/// Bytes of the frame that begins here, prefix included; None if the prefix is not complete.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let [_, a, b, c, d] = *bytes.first_chunk::<PREFIX_BYTES>()?;
    Some(PREFIX_BYTES + u32::from_be_bytes([a, b, c, d]) as usize)
}

impl Handler for Messages {
    fn headers(&mut self, _stream: StreamId, headers: &Headers, end_stream: bool) {
        if end_stream || headers.status() != Some(b"200") {
            let reason = end_of_call(headers).err().unwrap_or_else(|| "the server ended the stream".to_owned());
            self.end.get_or_insert(reason);
        }
    }

    fn data(&mut self, _stream: StreamId, bytes: &[u8], end_stream: bool) -> usize {
        self.take(bytes);
        if end_stream {
            self.end.get_or_insert_with(|| "the stream ended without a gRPC status".to_owned());
        }
        bytes.len()
    }

    fn trailers(&mut self, _stream: StreamId, headers: &Headers) {
        let reason = end_of_call(headers).err().unwrap_or_else(|| "the server ended the stream".to_owned());
        self.end.get_or_insert(reason);
    }

    fn reset(&mut self, _stream: StreamId, code: ErrorCode, _cause: ResetCause) {
        self.end.get_or_insert_with(|| format!("the stream was reset: {code}"));
    }

    fn goaway(&mut self, _last_stream: u32, _code: ErrorCode, _debug: &[u8]) {}
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost::Message;

    use super::*;
    use crate::plan::tests::plan;
    use crate::plan::{Endpoint, Protocol, Target};
    use crate::request::put_id;
    use nereid_memory::Key;
    use nereid_wire::inference::infer_parameter::ParameterChoice;
    use nereid_wire::inference::model_infer_response::InferOutputTensor;
    use nereid_wire::inference::{InferParameter, ModelInferResponse, ModelStreamInferResponse};

    /// One that waits for answers to `count` requests, and their keys.
    fn waiting(count: usize, decoupled: bool) -> (Messages, Vec<Key>) {
        let endpoint = Endpoint::Unix("/".into());
        let mut plan = plan(Target { endpoint, tls: None, protocol: Protocol::GrpcStream });
        plan.work.decoupled = decoupled;
        let request_set = Arc::new(RequestSet::new(&plan, Vec::new(), Vec::new()));
        let mut exchange = StreamExchange::new(request_set, Pool::new(1 << 20));
        let flight = |_| exchange.messages.flights.insert(Flight { sent_ns: 10, ..Flight::default() }).unwrap();
        let keys = (0..count).map(flight).collect();
        (exchange.messages, keys)
    }

    fn frame(key: Option<Key>, outputs: usize, is_final: Option<bool>, error: &str) -> Vec<u8> {
        let mut id = Vec::new();
        key.iter().for_each(|key| put_id(*key, &mut id));
        let flag = is_final.map(|value| {
            let parameter_choice = Some(ParameterChoice::BoolParam(value));
            ("triton_final_response".to_owned(), InferParameter { parameter_choice })
        });
        let response = ModelInferResponse {
            id: String::from_utf8(id).unwrap(),
            parameters: flag.into_iter().collect::<BTreeMap<_, _>>(),
            outputs: vec![InferOutputTensor::default(); outputs],
            ..ModelInferResponse::default()
        };
        let message = ModelStreamInferResponse { error_message: error.to_owned(), infer_response: Some(response) }
            .encode_to_vec();
        let mut frame = vec![0];
        frame.extend_from_slice(&(message.len() as u32).to_be_bytes());
        frame.extend_from_slice(&message);
        frame
    }

    #[test]
    fn responses_find_their_requests_however_they_are_cut() {
        let (_, keys) = waiting(3, true);
        let bytes = [
            frame(Some(keys[2]), 1, Some(false), ""),
            frame(Some(keys[0]), 1, Some(false), ""),
            frame(Some(keys[2]), 2, Some(true), ""),
            frame(Some(keys[1]), 0, Some(true), ""),
            frame(Some(keys[0]), 0, None, "broken"),
            // Nobody waits any more.
            frame(Some(keys[0]), 0, Some(true), ""),
        ]
        .concat();
        for cut in 0..=bytes.len() {
            for second in [cut, (cut + 3).min(bytes.len())] {
                let (mut messages, _) = waiting(3, true);
                for (now_ns, part) in [(30, &bytes[..cut]), (50, &bytes[cut..second]), (50, &bytes[second..])] {
                    messages.now_ns = now_ns;
                    messages.take(part);
                }
                assert_eq!((messages.end, messages.flights.len(), messages.partial.len()), (None, 0, 0));
                let outcomes = messages.outcomes;
                let responses: Vec<u64> = outcomes.finished.iter().map(|finished| finished.flight.responses).collect();
                assert_eq!(responses, [2, 0, 2], "cut at {cut} and {second}");
                let are_good: Vec<bool> = outcomes.finished.iter().map(|finished| finished.outcome.is_ok()).collect();
                assert_eq!(are_good, [true, true, false]);
                assert_eq!((outcomes.first_ns.len(), outcomes.between_ns.len()), (2, 2));
            }
        }
    }

    #[test]
    fn models_that_answer_once_need_no_mark_of_the_end() {
        let (mut messages, keys) = waiting(1, false);
        messages.take(&frame(Some(keys[0]), 0, None, ""));
        assert_eq!((messages.flights.len(), messages.outcomes.finished.len()), (0, 1));
        assert_eq!(messages.outcomes.finished[0].flight.responses, 1);
    }

    #[test]
    fn what_is_no_message_ends_the_stream() {
        for (bytes, reason) in [
            (&b"\0\0\0\0\x02\xff\xff"[..], "a message on the stream is broken"),
            (b"\x01\0\0\0\0", "a message on the stream is broken"),
        ] {
            let (mut messages, _) = waiting(1, true);
            messages.take(bytes);
            assert_eq!(messages.end.as_deref(), Some(reason));
        }
        let (mut messages, _) = waiting(1, true);
        messages.take(&frame(None, 0, None, "no such model"));
        assert_eq!(messages.end.as_deref(), Some("no such model"), "it is nobody's, so it is everybody's");
    }
}
