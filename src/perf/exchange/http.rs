//! HTTP/1.1: one request, its answer, the next request.

use std::sync::Arc;

use serde_json::Value;

use super::{ERROR_BYTES, EXPIRED, Flight, NotBegun, Outcomes, RequestSet};
use crate::request::JSON_LENGTH;
use nereid_memory::{Gather, Pool, Slice};
use nereid_protocol::http1::{ResponseParser, ResponseSink};

/// Reads the answers of one connection, and says what became of their requests.
pub trait Answer: ResponseSink {
    fn new(request_set: &Arc<RequestSet>) -> Self;

    /// A request was sent.
    fn expect(&mut self, request_set: &RequestSet, flight: &Flight);

    /// What is handed on next came at this time.
    fn arrives(&mut self, now_ns: u64);

    /// If the answer is complete: whether another request may follow.
    fn take_done(&mut self) -> Option<bool>;

    fn settle(&mut self, request_set: &RequestSet, flight: Flight, now_ns: u64, outcomes: &mut Outcomes);
}

pub struct HttpExchange<A = InferAnswer> {
    request_set: Arc<RequestSet>,
    pool: Pool,
    parser: ResponseParser,
    flight: Option<Flight>,
    answer: A,
    output: Gather,
    scratch: Vec<u8>,
    over: bool,
}

/// The answer of an inference as it comes.
#[derive(Default)]
pub struct InferAnswer {
    status: u16,
    /// The body is compared with something, and therefore kept.
    wanted: bool,
    json_length: Option<usize>,
    body: Vec<u8>,
    /// The answer is complete; whether another request may follow.
    done: Option<bool>,
}

impl<A: Answer> HttpExchange<A> {
    pub fn new(request_set: Arc<RequestSet>, pool: Pool) -> HttpExchange<A> {
        HttpExchange {
            answer: A::new(&request_set),
            request_set,
            pool,
            parser: ResponseParser::default(),
            flight: None,
            output: Gather::new(),
            scratch: Vec::new(),
            over: false,
        }
    }

    pub fn begin(&mut self, flight: Flight) -> Result<(), NotBegun> {
        if self.over {
            return Err(NotBegun::Over(flight));
        }
        if self.flight.is_some() {
            return Err(NotBegun::Full(flight));
        }
        let Some(template) = self.request_set.templates.get(flight.template) else {
            return Err(NotBegun::Over(flight));
        };
        let tail = template.write(&flight.marks, &mut self.scratch);
        self.output.put(&self.pool, &self.scratch);
        if let Some(tail) = tail {
            self.output.push(&self.pool, tail.clone());
        }
        self.parser.sent(false);
        self.answer.expect(&self.request_set, &flight);
        self.flight = Some(flight);
        Ok(())
    }

    pub fn receive(&mut self, bytes: &[u8], now_ns: u64, outcomes: &mut Outcomes) -> Result<(), String> {
        self.answer.arrives(now_ns);
        self.parser.receive(bytes, &mut self.answer).map_err(|error| error.to_string())?;
        self.settle(now_ns, outcomes);
        Ok(())
    }

    fn settle(&mut self, now_ns: u64, outcomes: &mut Outcomes) {
        let Some(keep_alive) = self.answer.take_done() else { return };
        self.over |= !keep_alive;
        if let Some(flight) = self.flight.take() {
            self.answer.settle(&self.request_set, flight, now_ns, outcomes);
        }
    }

    pub fn take_output(&mut self, most: usize, into: &mut Vec<Slice>) {
        self.output.take(most, into);
    }

    pub fn in_flight(&self) -> usize {
        usize::from(self.flight.is_some())
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    pub fn expire(&self, before_ns: u64) -> Result<(), String> {
        match self.flight.as_ref().is_some_and(|flight| flight.sent_ns < before_ns) {
            true => Err(EXPIRED.to_owned()),
            false => Ok(()),
        }
    }

    pub fn fail(&mut self, reason: &str, now_ns: u64, outcomes: &mut Outcomes) {
        self.over = true;
        // An answer without a length lasts as long as its connection.
        if self.parser.end(&mut self.answer).is_ok() {
            self.settle(now_ns, outcomes);
        }
        if let Some(flight) = self.flight.take() {
            outcomes.finish(flight, now_ns, Err(reason.to_owned()));
        }
    }
}

impl Answer for InferAnswer {
    fn new(_request_set: &Arc<RequestSet>) -> InferAnswer {
        InferAnswer::default()
    }

    fn expect(&mut self, request_set: &RequestSet, flight: &Flight) {
        self.wanted = request_set.expectation(flight.template).is_some();
    }

    fn arrives(&mut self, _now_ns: u64) {}

    fn take_done(&mut self) -> Option<bool> {
        self.done.take()
    }

    fn settle(&mut self, request_set: &RequestSet, mut flight: Flight, now_ns: u64, outcomes: &mut Outcomes) {
        let outcome = if self.status == 200 {
            let expectation = request_set.expectation(flight.template);
            expectation.map_or(Ok(()), |wanted| wanted.check_http(&self.body, self.json_length))
        } else {
            Err(refusal(self.status, &self.body))
        };
        self.body.clear();
        if outcome.is_ok() {
            outcomes.response(&mut flight, now_ns);
        }
        outcomes.finish(flight, now_ns, outcome);
    }
}

/// The text of an answer that is no success.
fn refusal(status: u16, body: &[u8]) -> String {
    let error = serde_json::from_slice::<Value>(body).ok();
    let error = error.as_ref().and_then(|error| error["error"].as_str());
    match error {
        Some(error) => format!("HTTP status {status}: {error}"),
        None => format!("HTTP status {status}: {}", String::from_utf8_lossy(body).trim()),
    }
}

impl ResponseSink for InferAnswer {
    fn head(&mut self, status: u16, headers: &[(&str, &[u8])]) {
        self.status = status;
        self.body.clear();
        self.json_length = None;
        if self.wanted {
            let field = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(JSON_LENGTH));
            self.json_length = field.and_then(|(_, value)| str::from_utf8(value).ok()?.trim().parse().ok());
        }
    }

    fn body(&mut self, bytes: &[u8]) {
        if self.status != 200 {
            let room = ERROR_BYTES.saturating_sub(self.body.len());
            self.body.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        } else if self.wanted {
            self.body.extend_from_slice(bytes);
        }
    }

    fn done(&mut self, keep_alive: bool) {
        self.done = Some(keep_alive);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::Expectation;
    use crate::plan::tests::plan;
    use crate::plan::{Endpoint, Expected, Protocol, Target, Template};
    use crate::request::Prepared;
    use nereid_memory::Slice;

    fn exchange(expected: Option<&'static [u8]>) -> HttpExchange {
        let plan = plan(Target { endpoint: Endpoint::Unix("/".into()), tls: None, protocol: Protocol::Http });
        let template = Prepared::new(&plan, &Template::default(), None).unwrap();
        let expected = expected.map(|data| {
            let outputs = vec![Expected { name: "O".to_owned(), data: Slice::from_static(data) }];
            Arc::new(Expectation::new(outputs, None))
        });
        HttpExchange::new(Arc::new(RequestSet::new(&plan, vec![template], vec![expected])), Pool::new(1 << 20))
    }

    fn answer(status: &str, body: &str, more: &str) -> Vec<u8> {
        format!("HTTP/1.1 {status}\r\n{more}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }

    #[test]
    fn answers_are_read_however_they_are_cut() {
        let good = r#"{"outputs":[{"name":"O","datatype":"INT8","data":[7]}]}"#;
        let cases = [
            (answer("200 OK", good, ""), Ok(()), false),
            (answer("200 OK", good, "Connection: close\r\n"), Ok(()), true),
            (answer("200 OK", "{}", ""), Err("output 'O' is not in the answer".to_owned()), false),
            (answer("400 Bad Request", r#"{"error":"no"}"#, ""), Err("HTTP status 400: no".to_owned()), false),
            (answer("503 Busy", " later ", ""), Err("HTTP status 503: later".to_owned()), false),
        ];
        for (bytes, outcome, over) in cases {
            for cut in 0..bytes.len() {
                let (mut exchange, mut outcomes) = (exchange(Some(&[7])), Outcomes::default());
                exchange.begin(Flight::default()).unwrap();
                assert!(matches!(exchange.begin(Flight::default()), Err(NotBegun::Full(_))));
                exchange.receive(&bytes[..cut], 5, &mut outcomes).unwrap();
                assert!(outcomes.finished.is_empty());
                exchange.receive(&bytes[cut..], 9, &mut outcomes).unwrap();
                assert_eq!((outcomes.finished.len(), outcomes.finished[0].at_ns), (1, 9));
                assert_eq!(outcomes.finished[0].outcome, outcome);
                assert_eq!((exchange.is_over(), exchange.in_flight()), (over, 0));
            }
        }
    }

    #[test]
    fn a_connection_that_breaks_takes_its_request_with_it() {
        let (mut exchange, mut outcomes) = (exchange(None), Outcomes::default());
        exchange.begin(Flight { sent_ns: 3, ..Flight::default() }).unwrap();
        assert!(exchange.expire(3).is_ok() && exchange.expire(4).is_err());
        exchange.receive(b"HTTP/1.1 200 OK\r\nContent-Le", 5, &mut outcomes).unwrap();
        exchange.fail("gone", 6, &mut outcomes);
        assert_eq!(outcomes.finished[0].outcome, Err("gone".to_owned()));
        assert!(matches!(exchange.begin(Flight::default()), Err(NotBegun::Over(_))));
        // An answer that lasts as long as its connection is complete with it.
        let (mut exchange, mut outcomes) = (super::tests::exchange(None), Outcomes::default());
        exchange.begin(Flight::default()).unwrap();
        exchange.receive(b"HTTP/1.1 200 OK\r\n\r\n{}", 5, &mut outcomes).unwrap();
        assert!(outcomes.finished.is_empty());
        exchange.fail("gone", 6, &mut outcomes);
        assert_eq!(outcomes.finished[0].outcome, Ok(()));
        let (mut exchange, mut outcomes) = (super::tests::exchange(None), Outcomes::default());
        exchange.begin(Flight::default()).unwrap();
        assert!(exchange.receive(b"nonsense\r\n\r\n", 5, &mut outcomes).is_err());
    }
}
