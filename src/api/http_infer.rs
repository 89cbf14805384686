//! `POST …/infer`: what its head says, up to where its body is decoded (contract/http.md section 5), and the short way
//! of a request whose head has a plan.

use std::sync::Arc;

use super::calls::{Peer, Work};
use super::dialect::Dialect;
use super::forwarding::Forwarded;
use super::http_log::log_request;
use super::infer::Manner;
use super::infer::http_request::Decoder;
use super::int32::parse_int32;
use super::packing::Packing;
use super::plan_cache::http_plans::HttpPlan;
use super::plan_cache::json_request::Bounds;
use super::routes::{Target, route};
use super::unpacking::PackedBody;
use super::watch::{Arrival, Watch};
use super::{Api, error, events, timing};
use nereid_memory::Slice;
use nereid_protocol::http1::{self, JsonLength};
use nereid_protocol::service::{CallKey, HttpReply, Port, Replies, Token};
use nereid_request::Status;
use nereid_scheduler::ServedModel;

/// An inference request as it came.
pub(super) struct InferCall<'a> {
    pub call: CallKey,
    pub target: Target<'a>,
    pub head: &'a http1::Head,
    pub body: Slice,
    /// Where the time is wanted.
    pub arrival: Option<Arrival>,
    pub dialect: Dialect,
}

/// What a request's head says that counts when its body is there, plain.
pub struct Opening {
    model: Arc<ServedModel>,
    /// Of its JSON, if it says so: the number, or why it is none.
    header_len: Option<Result<i64, Status>>,
    /// The same as the request puts it, where it is repeated so.
    given_len: Option<String>,
    /// Only the HTTP port itself packs and unpacks and forwards headers (contract/http.md sections 8 and 9).
    packing: Option<Packing>,
    forwarded: Forwarded,
    dialect: Dialect,
    manner: Manner,
    watch: Option<Arc<Watch>>,
}

impl Opening {
    /// Where the binary tail begins, as far as the head says so.
    pub fn align_at(&self) -> usize {
        self.header_len.as_ref().and_then(|length| usize::try_from(*length.as_ref().ok()?).ok()).unwrap_or(0)
    }

    /// The head says that `length` bytes of `body_len` are JSON.
    fn bad_length(&self, length: i64, body_len: usize) -> Status {
        let mut number = itoa::Buffer::new();
        let got = self.given_len.as_deref().unwrap_or_else(|| number.format(length));
        Status::invalid(format!("inference header size should be in range (0, {body_len}), got: {got}"))
    }
}

/// Why a request is not taken, and the label of the answer that says so (contract/http.md section 1).
struct Refusal {
    /// In a box, because requests are hardly ever refused.
    reply: Box<http1::Response>,
}

impl Api {
    /// What the codec needs to know of requests through that port to store their bodies without a question.
    pub(super) fn rules_of(&self, port: Port) -> http1::IntakeRules {
        let settings = &self.facts.settings;
        http1::IntakeRules {
            json_length: if port == Port::Metrics { JsonLength::Nowhere } else { Dialect::of(port).json_length_in() },
            unasked_bytes_max: settings.http_input_bytes_max as u64,
            asks_always: port == Port::Http && !settings.http_restrictions.is_empty(),
            timing_field: timing::ASK,
        }
    }

    /// Refuses a request before its body is received: nobody's body is stored who may not send it, nor one that is JSON
    /// throughout and too long.
    pub(super) fn refuse_body(&self, port: Port, head: &http1::Head) -> Option<http1::Response> {
        let settings = &self.facts.settings;
        // A head that has a plan was let in before.
        if port == Port::Http
            && !settings.http_restrictions.is_empty()
            && self.plan_cache.http_plan(head).is_none()
            && let Some(found) = route(head.path().as_bytes())
            && let Err(refusal) = settings.http_restrictions.allow_http(found.category(), head, &self.pool)
        {
            log_request(head);
            return Some(*refusal);
        }
        let most = settings.http_input_bytes_max;
        let http1::BodyLength::Known(length) = head.body_length() else { return None };
        if length <= most as u64 || length > i32::MAX as u64 {
            return None;
        }
        let dialect = Dialect::of(port);
        // The bound is for what is inside a packed body.
        let is_packed = || dialect.compresses() && matches!(coding_of(head), Coding::Packed);
        let is_json = dialect.json_length(head).is_none() && !is_packed();
        is_json.then(|| error::http_error(&self.pool, &error::json_too_long(length, most), error::JSON))
    }

    /// Takes an inference request in, or answers why not.
    pub(super) fn infer_http(&mut self, call: InferCall<'_>, replies: &mut Replies) -> Option<Token> {
        let (key, dialect) = (call.call, call.dialect);
        match self.begin_infer(call, replies) {
            Ok(token) => Some(token),
            Err(Refusal { reply }) => {
                replies.push(key, HttpReply::Answer(dialect.told(*reply)));
                None
            }
        }
    }

    /// The head of a request that was let in: those that follow may take the short way.
    fn plan_infer(&mut self, head: &http1::Head, model: &Arc<ServedModel>, packing: Option<Packing>) {
        if self.http_forwarded.is_none() && !self.watches.times_http(head) {
            self.plan_cache.plan_http(head, model, packing);
        }
    }

    /// Takes an inference request in by the plan of its head; gives the body back if that is not possible.
    pub(super) fn infer_planned(
        &mut self,
        call: CallKey,
        head: &http1::Head,
        body: Slice,
        replies: &mut Replies,
    ) -> Result<Token, Slice> {
        let Some(mut plan) = self.plan_cache.take_http_plan(head) else { return Err(body) };
        let outcome = self.infer_by(&mut plan, call, head, &body, replies);
        self.plan_cache.put_back_http_plan(head, plan);
        outcome.ok_or(body)
    }

    fn infer_by(
        &mut self,
        plan: &mut HttpPlan,
        call: CallKey,
        head: &http1::Head,
        body: &Slice,
        replies: &mut Replies,
    ) -> Option<Token> {
        let model = plan.model.upgrade()?;
        let json_len = plan.json_len(head, body.len())?;
        let input_bytes_max = self.facts.settings.http_input_bytes_max;
        if json_len > input_bytes_max {
            return None;
        }
        let bounds = Bounds { pool: &self.pool, input_bytes_max };
        let json = self.plan_cache.match_json(plan, body.get(..json_len)?, bounds)?;
        let token = self.calls.reserve()?;
        let mut request = self.calls.request_of(token);
        let tail = body.window(json_len..body.len());
        let regions = &self.facts.regions;
        let Some(form) = self.plan_cache.fill_http(plan, json, &mut request, &tail, &self.pool, regions) else {
            self.calls.give_up(token, request);
            return None;
        };
        log_request(head);
        if let Err(status) = self.submit(token, Peer::Http(call), model, request, form) {
            self.refuse_http(token.0, call, Dialect::Kserve, &status, replies);
        }
        Some(token)
    }

    /// A refusal without a label.
    fn plain(&self, status: &Status) -> Refusal {
        Refusal { reply: Box::new(error::http_error(&self.pool, status, None)) }
    }

    /// A refusal that is labelled as JSON: from the parsing of the body on.
    fn labelled(&self, status: &Status) -> Refusal {
        Refusal { reply: Box::new(error::http_error(&self.pool, status, error::JSON)) }
    }

    /// The checks in their order, then the first steps of unpacking or decoding.
    fn begin_infer(&mut self, call: InferCall<'_>, replies: &mut Replies) -> Result<Token, Refusal> {
        let InferCall { call, target, head, body, arrival, dialect } = call;
        let model =
            self.find(target.model, target.version.unwrap_or_default()).map_err(|status| self.plain(&status))?;
        let manner = if dialect == Dialect::Kserve && events::wanted(head) { Manner::Events } else { Manner::Whole };
        if manner == Manner::Whole {
            self.check_policy(&model)?;
        }
        let watch = self.watches.of_http(&model.name, head, arrival);
        let is_packed = dialect.compresses() && self.check_encoding(head)?;
        let mut opening = Opening {
            model,
            header_len: dialect.json_length(head),
            given_len: dialect.given_length(head),
            packing: None,
            forwarded: Forwarded::default(),
            dialect,
            manner,
            watch,
        };
        if dialect == Dialect::Kserve {
            if manner == Manner::Whole {
                opening.packing = head.header("Accept-Encoding").and_then(Packing::of_http);
            }
            if let Some(pattern) = &self.http_forwarded {
                opening.forwarded = pattern.of_http(head);
            }
        }
        if !is_packed {
            self.check_content_length(head)?;
            if dialect == Dialect::Kserve && manner == Manner::Whole && opening.watch.is_none() {
                self.plan_infer(head, &opening.model, opening.packing);
            }
            return self.read_body(None, call, opening, body, replies);
        }
        if body.is_empty() {
            return Err(self.plain(&Status::invalid("nothing to be decompressed")));
        }
        let token = self.calls.new_work(Work::Reserved).map_err(|status| self.labelled(&status))?;
        let most = self.facts.settings.http_input_bytes_max;
        self.unpack_body(token.0, Box::new(PackedBody::new(call, opening, body, most)), replies);
        Ok(token)
    }

    /// Goes on with a request whose body was packed and is not any more.
    pub(super) fn read_unpacked(
        &mut self,
        token: Token,
        call: CallKey,
        opening: Opening,
        body: Slice,
        replies: &mut Replies,
    ) {
        if let Err(Refusal { reply }) = self.read_body(Some(token), call, opening, body, replies) {
            self.calls.end_work(token.0);
            replies.push(call, HttpReply::Answer(*reply));
        }
    }

    /// Takes the plain body in. `token`: what was given out for the request before.
    fn read_body(
        &mut self,
        token: Option<Token>,
        call: CallKey,
        opening: Opening,
        body: Slice,
        replies: &mut Replies,
    ) -> Result<Token, Refusal> {
        let header_len = self.json_length(&opening, body.len())?;
        let Opening { model, packing, forwarded, dialect, manner, watch, .. } = opening;
        let most = self.facts.settings.http_input_bytes_max;
        let (token, mut request) = match token {
            Some(token) => (token, self.calls.request_of(token)),
            None => self.calls.new_request().map_err(|status| self.labelled(&status))?,
        };
        if let Some(watch) = &watch {
            watch.attach(&mut request);
        }
        // Of an empty body too: without a length of its own the JSON is as long as the body.
        let decoder = match header_len {
            0 => Decoder::raw_binary(model, request, body, most),
            _ => Decoder::new(model, request, body, header_len, most),
        };
        match decoder {
            Ok(mut decoder) => {
                decoder.form.watch = watch;
                decoder.form.manner = manner;
                // A raw request asks for binary answers only where there are any.
                decoder.form.binary_by_default &= manner == Manner::Whole;
                decoder.form.dialect = dialect;
                decoder.form.packing = packing;
                decoder.forwarded = forwarded;
                self.decode(token.0, call, Box::new(decoder), replies);
                Ok(token)
            }
            Err((status, request)) => {
                self.calls.give_up(token, request);
                Err(self.labelled(&status))
            }
        }
    }

    fn check_policy(&self, model: &Arc<ServedModel>) -> Result<(), Refusal> {
        if !model.spec.decoupled {
            return Ok(());
        }
        let text = "HTTP end point doesn't support models with decoupled transaction policy";
        Err(self.plain(&Status::unsupported(text)))
    }

    /// Is the body packed?
    fn check_encoding(&self, head: &http1::Head) -> Result<bool, Refusal> {
        match coding_of(head) {
            Coding::Plain => Ok(false),
            Coding::Packed => Ok(true),
            Coding::Unknown => {
                let mut reply = error::error_body(&self.pool, 501, "Unsupported compression type", None);
                reply.head = reply.head.header("Accept-Encoding", "gzip, deflate");
                Err(Refusal { reply: Box::new(reply) })
            }
        }
    }

    fn check_content_length(&self, head: &http1::Head) -> Result<(), Refusal> {
        match head.header("Content-Length") {
            None => Ok(()),
            // The chunks say how long the body is.
            Some(_) if head.body_length() == http1::BodyLength::Chunked => Ok(()),
            Some(length) => parse_int32("Content-Length", length).map(|_| ()).map_err(|status| self.plain(&status)),
        }
    }

    /// Of the JSON in front of a body of `body_len` bytes.
    fn json_length(&self, opening: &Opening, body_len: usize) -> Result<usize, Refusal> {
        let header_len = match &opening.header_len {
            None => body_len,
            Some(Err(status)) => return Err(self.plain(status)),
            Some(Ok(length)) => {
                let within = usize::try_from(*length).ok().filter(|length| *length <= body_len);
                within.ok_or_else(|| self.plain(&opening.bad_length(*length, body_len)))?
            }
        };
        let most = self.facts.settings.http_input_bytes_max;
        if header_len > most {
            return Err(self.labelled(&error::json_too_long(header_len as u64, most)));
        }
        Ok(header_len)
    }
}

/// What `Content-Encoding` says of a body.
enum Coding {
    Plain,
    Packed,
    Unknown,
}

fn coding_of(head: &http1::Head) -> Coding {
    match head.header("Content-Encoding") {
        None | Some(b"" | b"identity") => Coding::Plain,
        Some(b"gzip" | b"deflate") => Coding::Packed,
        Some(_) => Coding::Unknown,
    }
}
