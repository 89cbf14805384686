//! ORCA load reports: in band in the heads of HTTP answers and at the ends of gRPC calls, and out of band as a stream
//! (contract/scale_out.md section 6, docs/load-reports.md).
//!
//! The values come from the server's [`Monitor`]; a shard writes each of its reports down once. Requests that ask for
//! none pass a comparison. `generate` answers those that ask for `json` or `text` as Triton does, see `generate::load`.

mod format;
pub mod streams;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use nereid_memory::Pool;
use nereid_observe::load::{Monitor, Report};
use nereid_protocol::http1::{self, FieldValue};
use nereid_protocol::http2::Headers;
use nereid_protocol::service::{CallKey, GrpcPlan, HttpReply, MetadataEntry, Panicked, Replies, Reply, Token};

pub use format::{ASKS, FIELD, LoadFormat, message};

/// The metadata at the end of a gRPC call.
const TRAILER: &[u8] = b"endpoint-load-metrics-bin";

/// `--orca`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Orca {
    Off,
    /// Requests that ask for a report get one.
    #[default]
    OnRequest,
    /// Every answer to an inference request has one.
    Always,
}

/// The reports of one shard.
pub struct LoadReports {
    orca: Orca,
    monitor: Arc<Monitor>,
    /// The report that was copied last, its number, and what was written of it.
    report: Arc<Report>,
    number: u64,
    written: [Option<Rc<str>>; LoadFormat::ALL.len()],
    trailer: Option<Box<[u8]>>,
    /// HTTP calls whose answers get a report, with the tokens of their work.
    open: HashMap<CallKey, (LoadFormat, Option<Token>)>,
    tokens: HashMap<Token, CallKey>,
}

impl LoadReports {
    /// Without a monitor there are no reports.
    pub fn new(orca: Orca, monitor: Option<Arc<Monitor>>) -> LoadReports {
        let orca = if monitor.is_some() { orca } else { Orca::Off };
        LoadReports {
            orca,
            monitor: monitor.unwrap_or_else(|| Arc::new(Monitor::new(Box::new(Default::default)))),
            report: Arc::default(),
            number: 0,
            written: Default::default(),
            trailer: None,
            open: HashMap::new(),
            tokens: HashMap::new(),
        }
    }

    /// The report that `generate` gives as Triton does.
    pub fn of_generate(&self, head: &http1::Head) -> Option<LoadFormat> {
        if self.orca != Orca::OnRequest {
            return None;
        }
        LoadFormat::wanted_of_generate(head).filter(|format| *format != LoadFormat::Bin)
    }

    /// Whether the head has the field that asks for a report.
    pub fn is_asked_for(&self, head: &http1::Head) -> bool {
        self.orca != Orca::Off && head.header(ASKS).is_some()
    }

    /// The answer to an inference request gets a report, if its head or the server's flag wants one.
    pub fn expect(&mut self, call: CallKey, head: &http1::Head) {
        if self.orca == Orca::Off {
            return;
        }
        if let Some(format) = LoadFormat::wanted(head).or(self.of_every_answer()) {
            self.open(call, format);
        }
    }

    /// The same for `generate`, which gives some reports in a way of its own.
    pub fn expect_of_generate(&mut self, call: CallKey, head: &http1::Head) {
        match self.orca {
            Orca::Off => {}
            Orca::OnRequest if head.header(ASKS) != Some(LoadFormat::Bin.name().as_bytes()) => {}
            Orca::OnRequest | Orca::Always => self.expect(call, head),
        }
    }

    /// The same for a request whose head does not ask.
    #[inline]
    pub fn expect_unasked(&mut self, call: CallKey) {
        if let Some(format) = self.of_every_answer() {
            self.open(call, format);
        }
    }

    fn of_every_answer(&self) -> Option<LoadFormat> {
        (self.orca == Orca::Always).then_some(LoadFormat::Json)
    }

    fn open(&mut self, call: CallKey, format: LoadFormat) {
        self.monitor.ask();
        self.open.insert(call, (format, None));
    }

    /// No HTTP call waits for a report.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// The work of a call goes on under this token.
    pub fn began(&mut self, call: CallKey, token: Token) {
        if let Some((_, place)) = self.open.get_mut(&call) {
            *place = Some(token);
            self.tokens.insert(token, call);
        }
    }

    /// No client waits for the work.
    pub fn cancelled(&mut self, token: Token) {
        if let Some(call) = self.tokens.remove(&token) {
            self.open.remove(&call);
        }
    }

    fn close(&mut self, call: CallKey) -> Option<LoadFormat> {
        let (format, token) = self.open.remove(&call)?;
        token.and_then(|token| self.tokens.remove(&token));
        Some(format)
    }

    /// Adds reports to the heads of the answers that came after the mark.
    pub fn settle(&mut self, replies: &mut Replies, mark: (usize, usize), pool: &Pool) {
        let (replies, panicked) = replies.since_mut(mark);
        for one in panicked {
            match one {
                Panicked::Call(call) => drop(self.close(*call)),
                Panicked::Work(token) => self.cancelled(*token),
            }
        }
        for (call, reply) in replies {
            let Reply::Http(reply @ (HttpReply::Answer(_) | HttpReply::Plain(_) | HttpReply::Head(_))) = reply else {
                continue;
            };
            let Some(format) = self.close(*call) else { continue };
            let Some(text) = self.text(format) else { continue };
            let field = (FIELD.into(), FieldValue::from(text.to_string()));
            *reply = match std::mem::replace(reply, HttpReply::End) {
                HttpReply::Plain(plain) => {
                    let mut response = plain.into_response(pool);
                    response.head.headers.push(field);
                    HttpReply::Answer(response)
                }
                HttpReply::Answer(mut response) => {
                    response.head.headers.push(field);
                    HttpReply::Answer(response)
                }
                HttpReply::Head(mut head) => {
                    head.headers.push(field);
                    HttpReply::Head(head)
                }
                other => other,
            };
        }
    }

    /// Whether the end of a gRPC call with these headers gets a report.
    pub fn is_wanted(&self, headers: &Headers) -> bool {
        match self.orca {
            Orca::Off => false,
            Orca::OnRequest => headers.get(ASKS.as_bytes()).is_some_and(|value| LoadFormat::parse(value).is_some()),
            Orca::Always => true,
        }
    }

    /// The metadata at the end of such a call.
    pub fn trailer(&mut self) -> Option<MetadataEntry> {
        self.monitor.ask();
        if !self.renew() {
            return None;
        }
        let report = &self.report;
        let value = self.trailer.get_or_insert_with(|| format::base64(report).into_bytes().into());
        Some((TRAILER.into(), value.clone()))
    }

    /// What goes into the head of an HTTP answer.
    fn text(&mut self, format: LoadFormat) -> Option<Rc<str>> {
        if !self.renew() {
            return None;
        }
        let place = self.written.get_mut(format as usize)?;
        Some(Rc::clone(place.get_or_insert_with(|| format.write(&self.report).into())))
    }

    /// Copies the newest report, if there is one.
    fn renew(&mut self) -> bool {
        let number = self.monitor.number();
        if number != self.number {
            (self.report, self.number) = (self.monitor.report(), number);
            (self.written, self.trailer) = Default::default();
        }
        number > 0
    }

    /// The newest report, for a stream of them.
    fn newest(&mut self) -> Option<Arc<Report>> {
        self.monitor.ask();
        self.renew().then(|| Arc::clone(&self.report))
    }

    /// The plan of a call for reports out of band.
    pub fn plan_stream(&self, path: &[u8]) -> Option<GrpcPlan> {
        if self.orca == Orca::Off { None } else { streams::plan(path) }
    }
}

#[cfg(test)]
mod tests;
