//! The answer of a server of OpenAI's interface: JSON as a whole, or events as they come.

mod chunk;
mod events;

use std::sync::Arc;

use super::http::Answer;
use super::{ERROR_BYTES, Flight, Outcomes, RequestSet};
use crate::generation::Generation;
use chunk::read_chunk;
use events::{Event, EventParser};
use nereid_protocol::http1::ResponseSink;

/// Of an answer that is not streamed.
const BODY_BYTES_MAX: usize = 64 << 20;
const TOO_LONG: &str = "an answer of more than 64 MiB";
const DONE: &[u8] = b"[DONE]";

pub struct GeneratedAnswer {
    is_streamed: bool,
    now_ns: u64,
    status: u16,
    /// The answer is made of events, as its head says.
    has_events: bool,
    content_type: String,
    body: Vec<u8>,
    parser: EventParser,
    stream: Stream,
    done: Option<bool>,
}

/// What the events of an answer brought.
#[derive(Default)]
struct Stream {
    generation: Generation,
    /// It said that it is over, or why it stopped.
    is_over: bool,
    error: Option<String>,
}

impl Stream {
    fn event(&mut self, event: &Event<'_>, now_ns: u64) {
        if event.data == DONE {
            self.is_over = true;
            return;
        }
        if self.error.is_some() {
            return;
        }
        match read_chunk(event) {
            Ok(chunk) => {
                if chunk.texts > 0 {
                    self.generation.times_ns.push(now_ns);
                    self.generation.chunks += chunk.texts;
                }
                self.is_over |= chunk.is_last;
                // The last one counts: some servers report it with each chunk.
                if let Some(usage) = chunk.usage {
                    self.generation.usage = usage;
                }
            }
            Err(error) => self.error = Some(error),
        }
    }
}

impl Answer for GeneratedAnswer {
    fn new(request_set: &Arc<RequestSet>) -> GeneratedAnswer {
        GeneratedAnswer {
            is_streamed: request_set.openai().is_some_and(|openai| openai.streaming),
            now_ns: 0,
            status: 0,
            has_events: false,
            content_type: String::new(),
            body: Vec::new(),
            parser: EventParser::default(),
            stream: Stream::default(),
            done: None,
        }
    }

    fn expect(&mut self, _request_set: &RequestSet, _flight: &Flight) {}

    fn arrives(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    fn take_done(&mut self) -> Option<bool> {
        self.done.take()
    }

    fn settle(&mut self, _request_set: &RequestSet, mut flight: Flight, now_ns: u64, outcomes: &mut Outcomes) {
        let body = std::mem::take(&mut self.body);
        let mut stream = std::mem::take(&mut self.stream);
        let outcome = match (self.status, self.is_streamed) {
            (200, true) => self.end_stream(&mut stream),
            (200, false) if body.len() > BODY_BYTES_MAX => Err(TOO_LONG.to_owned()),
            (200, false) => chunk::read_whole(&body).map(|usage| stream.generation.usage = usage),
            (status, _) => Err(chunk::refusal(status, &body)),
        };
        if outcome.is_ok() {
            let mut generation = stream.generation;
            generation.is_streamed = self.is_streamed;
            flight.responses = if self.is_streamed { generation.times_ns.len() as u64 } else { 1 };
            if let Some(times_ns) = &mut flight.times_ns {
                times_ns.extend_from_slice(&generation.times_ns);
                // The last response is the end of the answer, as it is for other services.
                times_ns.push(now_ns);
            }
            flight.generation = Some(Box::new(generation));
        }
        outcomes.finish(flight, now_ns, outcome);
    }
}

impl GeneratedAnswer {
    fn end_stream(&self, stream: &mut Stream) -> Result<(), String> {
        if !self.has_events {
            return Err(format!("an answer that is no stream of events: its content type is '{}'", self.content_type));
        }
        match stream.error.take() {
            Some(error) => Err(error),
            None if stream.is_over => Ok(()),
            None => Err("a stream that ended without [DONE] and without a finish_reason".to_owned()),
        }
    }
}

impl ResponseSink for GeneratedAnswer {
    fn head(&mut self, status: u16, headers: &[(&str, &[u8])]) {
        (self.status, self.parser, self.stream) = (status, EventParser::default(), Stream::default());
        self.body.clear();
        let field = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        let value = field.map(|(_, value)| value.trim_ascii()).unwrap_or_default();
        self.content_type = String::from_utf8_lossy(value).into_owned();
        let kind = value.split(|byte| *byte == b';').next().unwrap_or_default();
        self.has_events = kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream");
    }

    fn body(&mut self, bytes: &[u8]) {
        let room = match (self.status, self.is_streamed) {
            (200, true) => {
                if self.has_events && self.stream.error.is_none() {
                    let (stream, now_ns) = (&mut self.stream, self.now_ns);
                    if let Err(error) = self.parser.receive(bytes, |event| stream.event(&event, now_ns)) {
                        self.stream.error = Some(error.to_string());
                    }
                }
                return;
            }
            // One byte more shows that it was longer.
            (200, false) => BODY_BYTES_MAX + 1,
            _ => ERROR_BYTES,
        };
        let room = room.saturating_sub(self.body.len());
        self.body.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    fn done(&mut self, keep_alive: bool) {
        self.done = Some(keep_alive);
    }
}

#[cfg(test)]
mod tests;
