//! From a connection's requests to the service that answers them: head and body go from the codec to the service, and
//! the transport only opens a call for each.
//!
//! What becomes of a body follows from the head by rules that the service gives when a connection comes. It is called
//! itself only about requests that it may refuse before their bodies.

use super::head::leading_number;
use super::{BodyLength, BodyPlan, ExchangeId, Handler, Head};
use crate::service::{CallKey, HttpService, Port, Replies, Token};
use nereid_memory::Slice;

/// The rules of a service for the requests through one port.
#[derive(Debug, Clone, Copy)]
pub struct IntakeRules {
    pub json_length: JsonLength,
    /// Longer bodies may be refused, unless the head states how much of them is JSON.
    pub unasked_bytes_max: u64,
    /// Any request may be refused before its body.
    pub asks_always: bool,
    /// A request with this header field may need the time when it began to arrive.
    pub timing_field: &'static str,
}

/// Where a head states how many leading bytes of the body are JSON. The byte behind them is aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonLength {
    /// Bodies of this port are not aligned.
    Nowhere,
    /// In a field of its own.
    Field,
    /// In the content type, behind this text.
    ContentType(&'static str),
}

impl JsonLength {
    #[inline]
    fn of(self, head: &Head) -> Option<usize> {
        match self {
            JsonLength::Nowhere => None,
            JsonLength::Field => head.json_length(),
            JsonLength::ContentType(before) => {
                let value = head.header("content-type")?;
                let at = memchr::memmem::find(value, before.as_bytes())?;
                // Elsewhere than in front it is an error, which the service finds.
                Some(if at == 0 { leading_number(value.get(before.len()..)?) } else { 0 })
            }
        }
    }
}

/// What a connection keeps between the head of a request and its body.
#[derive(Debug)]
pub struct IntakeState {
    port: Port,
    rules: IntakeRules,
    /// When the request that is being received began to arrive, where that is needed.
    since_ns: Option<u64>,
}

impl IntakeState {
    pub fn new(port: Port, rules: IntakeRules) -> IntakeState {
        IntakeState { port, rules, since_ns: None }
    }
}

/// The transport's table of exchanges that wait for their answers.
pub trait Exchanges {
    fn now_ns(&self) -> u64;

    /// A request is complete. `None`: there is no room for it, and the transport answers that.
    fn open(&mut self, exchange: ExchangeId) -> Option<CallKey>;

    /// The token that the service gave out for it.
    fn began(&mut self, call: CallKey, token: Token);
}

/// Hands requests of a connection to the service.
pub struct Intake<'a, S, E> {
    pub state: &'a mut IntakeState,
    pub service: &'a mut S,
    pub replies: &'a mut Replies,
    pub exchanges: &'a mut E,
}

impl<S: HttpService, E: Exchanges> Handler for Intake<'_, S, E> {
    #[inline]
    fn head(&mut self, _exchange: ExchangeId, head: &Head) -> BodyPlan {
        let IntakeState { port, rules, since_ns } = &mut *self.state;
        let is_timed = self.service.times_http() || head.header(rules.timing_field).is_some();
        *since_ns = is_timed.then(|| self.exchanges.now_ns());
        let json_len = rules.json_length.of(head);
        let is_long = matches!(head.body_length(), BodyLength::Known(len) if len > rules.unasked_bytes_max);
        if (rules.asks_always || (is_long && json_len.is_none()))
            && let Some(refusal) = self.service.refuse_http(*port, head)
        {
            return BodyPlan::Reject(refusal);
        }
        BodyPlan::Store { align_at: json_len.unwrap_or(0) }
    }

    #[inline]
    fn request(&mut self, exchange: ExchangeId, head: &Head, body: Slice) {
        let Some(call) = self.exchanges.open(exchange) else { return };
        let IntakeState { port, since_ns, .. } = &mut *self.state;
        if let Some(token) = self.service.http(call, *port, head, body, since_ns.take(), self.replies) {
            self.exchanges.began(call, token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Connection, Limits, Response, ResponseHead};
    use super::*;
    use nereid_memory::{ALIGNMENT, Pool};

    const RULES: IntakeRules = IntakeRules {
        json_length: JsonLength::Field,
        unasked_bytes_max: 20,
        asks_always: false,
        timing_field: "x-when",
    };

    /// Refuses what it is asked about, if its path says so.
    #[derive(Default)]
    struct Service {
        times_all: bool,
        asked: usize,
        /// Body, and when it began to arrive.
        taken: Vec<(Slice, Option<u64>)>,
    }

    impl HttpService for Service {
        fn http_rules(&self, _port: Port) -> IntakeRules {
            RULES
        }

        fn refuse_http(&mut self, _port: Port, head: &Head) -> Option<Response> {
            self.asked += 1;
            let head = (head.path() == "/refused").then(|| ResponseHead::new(403))?;
            Some(Response::error(&Pool::new(1 << 20), head, "no"))
        }

        fn times_http(&self) -> bool {
            self.times_all
        }

        fn http(
            &mut self,
            call: CallKey,
            _port: Port,
            _head: &Head,
            body: Slice,
            since_ns: Option<u64>,
            _replies: &mut Replies,
        ) -> Option<Token> {
            self.taken.push((body, since_ns));
            Some(Token(call.0 + 100))
        }
    }

    /// It is always the same time.
    #[derive(Default)]
    struct Table {
        is_full: bool,
        open: Vec<ExchangeId>,
        began: Vec<(CallKey, Token)>,
    }

    impl Exchanges for Table {
        fn now_ns(&self) -> u64 {
            7
        }

        fn open(&mut self, exchange: ExchangeId) -> Option<CallKey> {
            self.open.push(exchange);
            (!self.is_full).then_some(CallKey(exchange.0))
        }

        fn began(&mut self, call: CallKey, token: Token) {
            self.began.push((call, token));
        }
    }

    fn receive(rules: IntakeRules, service: &mut Service, table: &mut Table, text: &str) {
        let mut connection = Connection::new(Limits::default(), Pool::new(1 << 20));
        let mut state = IntakeState::new(Port::Http, rules);
        let mut replies = Replies::default();
        let mut intake = Intake { state: &mut state, service, replies: &mut replies, exchanges: table };
        // Any split of the bytes is the same.
        for part in text.as_bytes().chunks(3) {
            connection.receive(part, &mut intake);
        }
    }

    fn post(path: &str, fields: &str, body: &str) -> String {
        format!("POST {path} HTTP/1.1\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len())
    }

    #[test]
    fn a_body_is_aligned_where_its_head_says() {
        let typed = IntakeRules { json_length: JsonLength::ContentType("application/x;size="), ..RULES };
        let nowhere = IntakeRules { json_length: JsonLength::Nowhere, ..RULES };
        for (rules, fields, at) in [
            (RULES, "Inference-Header-Content-Length: 5\r\n", 5),
            (RULES, "inference-header-content-length: 13\r\nA: b\r\n", 13),
            // Given twice, the first counts; the head is not one that can be recognised.
            (RULES, "Inference-Header-Content-Length: 3\r\nInference-Header-Content-Length: 4\r\n", 3),
            (RULES, "Inference-Header-Content-Length: 6 of them\r\n", 6),
            (RULES, "Inference-Header-Content-Length: -6\r\n", 0),
            (RULES, "", 0),
            (typed, "Content-Type: application/x;size=9\r\n", 9),
            (typed, "Content-Type: text/plain, application/x;size=9\r\n", 0),
            (typed, "Inference-Header-Content-Length: 5\r\n", 0),
            (nowhere, "Inference-Header-Content-Length: 5\r\n", 0),
        ] {
            let (mut service, mut table) = (Service::default(), Table::default());
            let text = post("/", fields, "0123456789abcdef");
            receive(rules, &mut service, &mut table, &text.repeat(2));
            assert_eq!(service.taken.len(), 2, "{text}");
            for (body, _) in &service.taken {
                assert_eq!(&body[..], b"0123456789abcdef");
                assert_eq!(body[at..].as_ptr().addr() % ALIGNMENT, 0, "{text}");
            }
            assert_eq!(table.began, [0, 1].map(|n| (CallKey(n), Token(n + 100))));
        }
    }

    #[test]
    fn the_service_is_asked_only_where_it_may_refuse() {
        let always = IntakeRules { asks_always: true, ..RULES };
        let long = "0".repeat(21);
        for (rules, path, fields, body, asked, taken) in [
            (RULES, "/refused", "", &long[..20], 0, 1),
            (RULES, "/refused", "", &long, 1, 0),
            (RULES, "/", "", &long, 1, 1),
            (RULES, "/refused", "Inference-Header-Content-Length: 0\r\n", &long, 0, 1),
            (always, "/refused", "", "", 1, 0),
            (always, "/refused", "Inference-Header-Content-Length: 1\r\n", "ab", 1, 0),
            (always, "/", "", "ab", 1, 1),
        ] {
            let (mut service, mut table) = (Service::default(), Table::default());
            receive(rules, &mut service, &mut table, &post(path, fields, body));
            assert_eq!((service.asked, service.taken.len()), (asked, taken), "{path} {fields} {body}");
        }
    }

    #[test]
    fn the_time_of_arrival_is_noted_where_it_is_wanted() {
        for (times_all, fields, since_ns) in [
            (false, "", None),
            (true, "", Some(7)),
            (false, "X-When: now\r\n", Some(7)),
            (false, "X-Then: 1\r\n", None),
        ] {
            let (mut service, mut table) = (Service { times_all, ..Service::default() }, Table::default());
            let text = post("/", fields, "ab") + &post("/", "", "ab");
            receive(RULES, &mut service, &mut table, &text);
            let times: Vec<_> = service.taken.iter().map(|(_, since_ns)| *since_ns).collect();
            assert_eq!(times, [since_ns, times_all.then_some(7)], "{fields}");
        }
    }

    #[test]
    fn a_request_without_a_call_goes_nowhere() {
        let (mut service, mut table) = (Service::default(), Table { is_full: true, ..Table::default() });
        receive(RULES, &mut service, &mut table, &post("/", "", "ab"));
        assert_eq!((table.open, service.taken.len(), table.began), (vec![ExchangeId(0)], 0, vec![]));
    }
}
