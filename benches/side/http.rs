//! An HTTP/1.1 client: one request, its answer, the next request.

use std::collections::VecDeque;

use nereid_memory::Slice;
use nereid_protocol::http1::{ResponseParser, ResponseSink};

use super::answer::{Answer, Check};
use super::line::Peer;
use super::load::Tally;
use super::request::Request;

/// The field with the length of the JSON in a body (contract/http.md section 5).
pub const JSON_LENGTH: &str = "Inference-Header-Content-Length";

pub struct HttpPeer {
    request: Request,
    parser: ResponseParser,
    reading: Reading,
    sent_ns: Option<u64>,
    unsent: Option<Slice>,
}

/// The answer as it comes: the value of its length field, a line break, and the body.
struct Reading {
    answer: Answer,
    status: u16,
    outcome: Option<Result<(), String>>,
}

impl HttpPeer {
    /// `check` is given the value of [`JSON_LENGTH`], a line break, and the body.
    pub fn new(request: impl Into<Request>, check: Check) -> HttpPeer {
        let request = request.into();
        let reading = Reading { answer: Answer::to(&request, check), status: 0, outcome: None };
        HttpPeer { request, parser: ResponseParser::default(), reading, sent_ns: None, unsent: None }
    }
}

impl Peer for HttpPeer {
    fn begin(&mut self, now_ns: u64, tally: &mut Tally) -> Result<(), String> {
        if self.sent_ns.is_none() && tally.open {
            self.sent_ns = Some(now_ns);
            self.unsent = Some(self.request.next());
            self.parser.sent(false);
        }
        Ok(())
    }

    fn receive(&mut self, bytes: &[u8], now_ns: u64, tally: &mut Tally) -> Result<(), String> {
        self.parser.receive(bytes, &mut self.reading).map_err(|error| error.to_string())?;
        if let Some(outcome) = self.reading.outcome.take() {
            let sent_ns = self.sent_ns.take().ok_or("an answer to no request")?;
            tally.answered(sent_ns, now_ns, outcome);
        }
        Ok(())
    }

    fn take_output(&mut self, into: &mut VecDeque<Slice>) {
        into.extend(self.unsent.take());
    }

    fn is_idle(&self) -> bool {
        self.sent_ns.is_none()
    }
}

impl ResponseSink for Reading {
    fn head(&mut self, status: u16, headers: &[(&str, &[u8])]) {
        self.status = status;
        let field = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(JSON_LENGTH));
        self.answer.piece(field.map_or(b"", |(_, value)| value));
        self.answer.piece(b"\n");
    }

    fn body(&mut self, bytes: &[u8]) {
        self.answer.piece(bytes);
    }

    fn done(&mut self, keep_alive: bool) {
        let refusal = match self.status {
            200 if keep_alive => None,
            200 => Some("the server ends the connection".to_owned()),
            status => Some(format!("status {status}: {}", self.answer.text())),
        };
        self.outcome = Some(match refusal {
            None => self.answer.end(),
            Some(refusal) => {
                self.answer.give_up();
                Err(refusal)
            }
        });
    }
}
