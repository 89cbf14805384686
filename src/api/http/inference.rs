//! `POST …/infer`: its head, up to where its body is decoded (contract/http.md section 5), and the short path
//! of a request whose head has a plan.

use std::sync::Arc;

use super::decode;
use super::dialect::Dialect;
use super::events;
use super::inspect_page;
use super::int32::parse_int32;
use super::log::log_request;
use super::opening::Opening;
use super::routed::Routed;
use crate::api::awaiting::{HttpCall, OwnedTarget, ParkedCall};
use crate::api::calls::reply_to::ReplyTo;
use crate::api::calls::work::Work;
use crate::api::coding::packing::Packing;
use crate::api::coding::unpacking::PackedBody;
use crate::api::error;
use crate::api::forwarding::{Forwarded, HeaderPattern};
use crate::api::infer::Manner;
use crate::api::infer::http_request::Decoder;
use crate::api::infer_context::InferContext;
use crate::api::plan_cache::http_plans::HttpPlan;
use crate::api::plan_cache::json_request::Bounds;
use crate::api::routes::{Category, Target};
use crate::api::steps::LONG_STEPS_AT_ONCE;
use crate::api::timing;
use crate::api::watch::Arrival;
use crate::repository::Choice;
use nereid_memory::{Pool, Slice};
use nereid_protocol::compression::Step;
use nereid_protocol::http1::{self, JsonLength};
use nereid_protocol::service::{CallKey, HttpReply, Port, Replies, Token};
use nereid_request::Status;
use nereid_scheduler::ServedModel;

/// An inference request as it came.
pub struct InferCall<'a> {
    pub call: CallKey,
    pub target: Target<'a>,
    pub head: &'a http1::Head,
    pub body: Slice,
    /// Where the time is wanted.
    pub arrival: Option<Arrival>,
    pub dialect: Dialect,
}

/// The answer to a request that is refused, with its label (contract/http.md section 1).
struct Refusal {
    /// In a box, because requests are hardly ever refused.
    reply: Box<http1::Response>,
}

/// The part of one shard's service that takes inference requests over HTTP in.
pub struct HttpInfer {
    /// `--http-header-forward-pattern`, for this shard alone: what a pattern needs to search is not shared.
    forwarded: Option<HeaderPattern>,
}

impl HttpInfer {
    pub fn new(forwarded: Option<HeaderPattern>) -> HttpInfer {
        HttpInfer { forwarded }
    }

    /// The rules by which the codec stores the bodies of requests through that port without a call of the service.
    pub fn intake_rules(context: &InferContext, port: Port) -> http1::IntakeRules {
        let settings = &context.facts.settings;
        http1::IntakeRules {
            json_length: match port {
                Port::Metrics | Port::OpenAi => JsonLength::Nowhere,
                port => Dialect::of(port).json_length_in(),
            },
            unasked_bytes_max: settings.http_input_bytes_max as u64,
            asks_always: match port {
                Port::OpenAi => true,
                Port::Http => {
                    let is_beside = settings.openai.as_ref().is_some_and(|openai| openai.on_http_port);
                    is_beside || !context.access.http.is_empty() || context.access.changes
                }
                Port::Metrics => settings.ui,
                _ => false,
            },
            timing_field: timing::ASK,
        }
    }

    /// Refuses a request before its body is received: a body is not stored if its sender lacks the permission, nor if
    /// it is JSON throughout and too long.
    pub fn refuse_body(context: &InferContext, port: Port, head: &http1::Head) -> Option<http1::Response> {
        let settings = &context.facts.settings;
        if port == Port::Metrics
            && settings.ui
            && let Some(refusal) = inspect_page::refuse(&context.access, head, &context.pool)
        {
            return Some(refusal);
        }
        // A head that has a plan was let in before.
        if port == Port::Http
            && !context.access.http.is_empty()
            && context.plan_cache.http_plan(head).is_none()
            && let path = head.path().as_bytes()
            && let Some(found) = settings.route(path).or_else(|| context.labelled_route(path))
            && let Err(refusal) = context.access.http.allow_http(found.category(), head, &context.pool)
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
        is_json.then(|| error::http_error(&context.pool, &error::json_too_long(length, most), error::JSON))
    }

    /// Takes an inference request in, or answers why not.
    pub fn infer(&self, context: &mut InferContext, call: InferCall<'_>, replies: &mut Replies) -> Option<Token> {
        let (key, dialect, token) = (call.call, call.dialect, context.resumed_token());
        match self.begin_infer(context, token, call, replies) {
            Ok(token) => Some(token),
            Err(Refusal { reply }) => {
                token.and_then(|token| context.calls.end_work(token.0));
                replies.push(key, HttpReply::Answer(dialect.adapt_error(*reply)));
                None
            }
        }
    }

    /// The head of a request that was let in: those that follow may take the short way.
    fn plan_infer(
        &self,
        context: &mut InferContext,
        head: &http1::Head,
        model: &Arc<ServedModel>,
        packing: Option<Packing>,
    ) {
        // A head that asks for a load report is looked at each time.
        if context.load_reports.is_asked_for(head) {
            return;
        }
        // The keys may have changed since the head was let in.
        let is_let_in = context.access.http.lets_in(Category::Inference, head);
        if self.forwarded.is_none() && is_let_in && !context.watches.times_http(head) {
            context.plan_cache.plan_http(head, model, packing);
        }
    }

    /// Takes an inference request in by the plan of its head; gives the body back if that is not possible.
    #[inline]
    pub fn infer_planned(
        context: &mut InferContext,
        call: CallKey,
        head: &http1::Head,
        body: Slice,
        replies: &mut Replies,
    ) -> Result<Token, Slice> {
        let Some(mut plan) = context.plan_cache.take_http_plan(head) else { return Err(body) };
        let outcome = HttpInfer::infer_by(context, &mut plan, call, head, &body, replies);
        context.plan_cache.put_back_http_plan(head, plan);
        outcome.ok_or(body)
    }

    fn infer_by(
        context: &mut InferContext,
        plan: &mut HttpPlan,
        call: CallKey,
        head: &http1::Head,
        body: &Slice,
        replies: &mut Replies,
    ) -> Option<Token> {
        let model = plan.model.upgrade()?;
        let json_len = plan.json_len(head, body.len())?;
        let input_bytes_max = context.facts.settings.http_input_bytes_max;
        if json_len > input_bytes_max {
            return None;
        }
        let bounds = Bounds { pool: &context.pool, input_bytes_max };
        let json = context.plan_cache.match_json(plan, body.get(..json_len)?, bounds)?;
        let token = context.calls.reserve()?;
        let mut request = context.calls.request_of(token);
        let tail = body.window(json_len..body.len());
        let regions = &context.facts.regions;
        let Some(form) = context.plan_cache.fill_http(plan, json, &mut request, &tail, &context.pool, regions) else {
            context.calls.give_up(token, request);
            return None;
        };
        log_request(head);
        if let Err(status) = context.calls.submit(token, ReplyTo::Http(call), model, request, form) {
            decode::refuse(context, token.0, call, Dialect::Kserve, &status, replies);
        }
        Some(token)
    }

    /// The checks in their order, then the first steps of unpacking or decoding.
    fn begin_infer(
        &self,
        context: &mut InferContext,
        token: Option<Token>,
        call: InferCall<'_>,
        replies: &mut Replies,
    ) -> Result<Token, Refusal> {
        let InferCall { call, target, head, body, arrival, dialect } = call;
        let found = context.find(target.model, target.version.unwrap_or_default(), &|name| head.header(name));
        let Choice { model, route } = match found {
            Ok(choice) => choice,
            Err(status) => {
                let parked = context.await_model(token, target.model, status, || {
                    let target = OwnedTarget::of(&target);
                    let http = HttpCall { call, target, head: head.clone(), body, arrival };
                    ParkedCall::HttpInfer(Box::new(http), dialect)
                });
                return parked.map_err(|status| plain(&context.pool, &status));
            }
        };
        let manner = if dialect == Dialect::Kserve && events::wanted(head) { Manner::Events } else { Manner::Whole };
        if manner == Manner::Whole {
            check_policy(&context.pool, &model)?;
        }
        let watch = context.watches.of_http(&model.name, head, arrival);
        let is_packed = dialect.compresses() && check_encoding(&context.pool, head)?;
        let mut opening = Opening {
            model,
            route,
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
            if let Some(pattern) = &self.forwarded {
                opening.forwarded = pattern.of_http(head);
            }
        }
        if !is_packed {
            check_content_length(&context.pool, head)?;
            let is_plain = opening.watch.is_none() && opening.route.is_none();
            if dialect == Dialect::Kserve && manner == Manner::Whole && is_plain {
                self.plan_infer(context, head, &opening.model, opening.packing);
            }
            return HttpInfer::read_body(context, token, call, opening, body, replies);
        }
        if body.is_empty() {
            return Err(plain(&context.pool, &Status::invalid("nothing to be decompressed")));
        }
        let token = match token {
            Some(token) => token,
            None => context.calls.new_work(Work::Reserved).map_err(|status| labelled(&context.pool, &status))?,
        };
        let most = context.facts.settings.http_input_bytes_max;
        HttpInfer::unpack_body(context, token.0, Box::new(PackedBody::new(call, opening, body, most)), replies);
        Ok(token)
    }

    /// Goes on with a request whose body has been unpacked.
    fn read_unpacked(
        context: &mut InferContext,
        token: Token,
        call: CallKey,
        opening: Opening,
        body: Slice,
        replies: &mut Replies,
    ) {
        if let Err(Refusal { reply }) = HttpInfer::read_body(context, Some(token), call, opening, body, replies) {
            context.calls.end_work(token.0);
            replies.push(call, HttpReply::Answer(*reply));
        }
    }

    /// Takes the plain body in. `token`: issued for the request before.
    fn read_body(
        context: &mut InferContext,
        token: Option<Token>,
        call: CallKey,
        opening: Opening,
        body: Slice,
        replies: &mut Replies,
    ) -> Result<Token, Refusal> {
        let header_len = json_length(context, &opening, body.len())?;
        let Opening { model, route, packing, forwarded, dialect, manner, watch, .. } = opening;
        let most = context.facts.settings.http_input_bytes_max;
        let (token, mut request) = match token {
            Some(token) => (token, context.calls.request_of(token)),
            None => context.calls.new_request().map_err(|status| labelled(&context.pool, &status))?,
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
                // A raw request gets binary answers only where there are any.
                decoder.form.binary_by_default &= manner == Manner::Whole;
                decoder.form.dialect = dialect;
                decoder.form.packing = packing;
                decoder.forwarded = forwarded;
                decode::decode(context, token.0, call, Routed::around(Box::new(decoder), route), replies);
                Ok(token)
            }
            Err((status, request)) => {
                context.calls.give_up(token, request);
                Err(labelled(&context.pool, &status))
            }
        }
    }

    /// Unpacks on; what does not fit into this turn is put off.
    pub fn unpack_body(context: &mut InferContext, key: u64, mut packed: Box<PackedBody>, replies: &mut Replies) {
        let mut long_steps = 0;
        while long_steps < LONG_STEPS_AT_ONCE && context.packing_budget.take_step() {
            match packed.step(&context.pool) {
                Ok(Step::More { is_long }) => long_steps += usize::from(is_long),
                Ok(Step::Done) => {
                    let (call, opening, body) = packed.finish();
                    return HttpInfer::read_unpacked(context, Token(key), call, opening, body, replies);
                }
                Err(error) => {
                    context.calls.end_work(key);
                    // Not labelled, like all that is found before the body is parsed (contract/http.md section 1).
                    let reply = error::http_error(&context.pool, &packed.refused(error), None);
                    return replies.push(packed.call, HttpReply::Answer(reply));
                }
            }
        }
        context.calls.defer(key, Work::UnpackingBody(packed));
    }
}

/// A refusal without a label.
fn plain(pool: &Pool, status: &Status) -> Refusal {
    Refusal { reply: Box::new(error::http_error(pool, status, None)) }
}

/// A refusal that is labelled as JSON: from the parsing of the body on.
fn labelled(pool: &Pool, status: &Status) -> Refusal {
    Refusal { reply: Box::new(error::http_error(pool, status, error::JSON)) }
}

fn check_policy(pool: &Pool, model: &Arc<ServedModel>) -> Result<(), Refusal> {
    if !model.spec.decoupled {
        return Ok(());
    }
    let text = "HTTP end point doesn't support models with decoupled transaction policy";
    Err(plain(pool, &Status::unsupported(text)))
}

/// Is the body packed?
fn check_encoding(pool: &Pool, head: &http1::Head) -> Result<bool, Refusal> {
    match coding_of(head) {
        Coding::Plain => Ok(false),
        Coding::Packed => Ok(true),
        Coding::Unknown => {
            let mut reply = error::error_body(pool, 501, "Unsupported compression type", None);
            reply.head = reply.head.header("Accept-Encoding", "gzip, deflate");
            Err(Refusal { reply: Box::new(reply) })
        }
    }
}

fn check_content_length(pool: &Pool, head: &http1::Head) -> Result<(), Refusal> {
    match head.header("Content-Length") {
        None => Ok(()),
        // The chunks state the length of the body.
        Some(_) if head.body_length() == http1::BodyLength::Chunked => Ok(()),
        Some(length) => parse_int32("Content-Length", length).map(|_| ()).map_err(|status| plain(pool, &status)),
    }
}

/// Of the JSON in front of a body of `body_len` bytes.
fn json_length(context: &InferContext, opening: &Opening, body_len: usize) -> Result<usize, Refusal> {
    let header_len = match &opening.header_len {
        None => body_len,
        Some(Err(status)) => return Err(plain(&context.pool, status)),
        Some(Ok(length)) => {
            let within = usize::try_from(*length).ok().filter(|length| *length <= body_len);
            within.ok_or_else(|| plain(&context.pool, &opening.bad_length(*length, body_len)))?
        }
    };
    let most = context.facts.settings.http_input_bytes_max;
    if header_len > most {
        return Err(labelled(&context.pool, &error::json_too_long(header_len as u64, most)));
    }
    Ok(header_len)
}

/// The `Content-Encoding` of a body.
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
