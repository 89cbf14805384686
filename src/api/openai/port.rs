//! The requests of OpenAI's interface, from their heads to the calls that go on without them.

use std::sync::Arc;

use super::access::Closed;
use super::answering;
use super::awaiting::{self, missing};
use super::call::{HttpAnswer, JSON, OpenAiCall, now_s};
use super::cors::{self, Origin};
use super::job::{AtOnce, Job, Prepared};
use super::pages;
use super::repository::{self, Elsewhere, whole};
use super::routes::{Found, Route, find};
use super::settings::OpenAi;
use crate::api::calls::work::Work;
use crate::api::containment::contained;
use crate::api::http::log::log_request;
use crate::api::http::metrics_page::MetricsPage;
use crate::api::http::ports::HttpRequest;
use crate::api::infer_context::InferContext;
use crate::api::mail::Post;
use crate::api::management::health::check_instances;
use crate::api::management::outcome::{Probe, Protocol};
use crate::repository::Lifecycle;
use nereid_clock::now_ns;
use nereid_openai::error::{Compat, Refusal};
use nereid_openai::prepare::id_of;
use nereid_openai::request::Operation;
use nereid_protocol::http1::{BodyLength, Head, Response};
use nereid_protocol::service::{CallKey, HttpReply, Port, Replies, Token};
use nereid_request::{RefusalReason, Status};

/// The longest request id that is repeated.
const REQUEST_ID_BYTES_MAX: usize = 256;

/// The part of one shard's service that answers the interface.
pub struct OpenAiPort {
    pub(super) openai: Option<Arc<OpenAi>>,
    lifecycle: Arc<Lifecycle>,
    post: Post,
    ids: Ids,
}

impl OpenAiPort {
    pub fn new(openai: Option<Arc<OpenAi>>, lifecycle: Arc<Lifecycle>, post: Post) -> OpenAiPort {
        OpenAiPort { openai, lifecycle, post, ids: Ids::new() }
    }

    /// The HTTP port serves the routes too, and this is one of them.
    pub fn is_beside(&self, path: &str) -> bool {
        let on_http_port = |openai: &&Arc<OpenAi>| openai.on_http_port && !path.starts_with("/v2");
        self.openai.as_ref().filter(on_http_port).is_some_and(|openai| {
            !matches!(find(path, openai.prepare.compat), Found::Nothing | Found::Route(Route::Metrics))
        })
    }

    /// Refuses a request before its body: it is too long, or it may not use its path.
    pub fn refuse(&self, context: &InferContext, port: Port, head: &Head) -> Option<Response> {
        let openai = self.openai.as_ref()?;
        if port == Port::Http
            && let Found::Route(route) = find(head.path(), openai.prepare.compat)
            && let Err(refusal) = context.access.http.allow_http(route.category(), head, &context.pool)
        {
            return Some(*refusal);
        }
        let refusal = refused(openai, head)?;
        log_request(head);
        let http = HttpAnswer::new(CallKey(0), Origin::None, None, openai.prepare.compat);
        Some(whole(&http, &context.pool, Err(refusal)))
    }

    /// A request whose body is complete.
    pub fn request(
        &mut self,
        context: &mut InferContext,
        metrics_page: &MetricsPage,
        request: HttpRequest<'_>,
        replies: &mut Replies,
    ) -> Option<Token> {
        let HttpRequest { call, head, body, arrival } = request;
        let openai = Arc::clone(self.openai.as_ref()?);
        log_request(head);
        let compat = openai.prepare.compat;
        let request_id = (compat == Compat::OpenAi).then(|| request_id(head, &mut self.ids));
        let http = HttpAnswer::new(call, Origin::of(head), request_id, compat);
        let refuse = |refusal: Refusal, replies: &mut Replies| {
            replies.push(call, HttpReply::Answer(whole(&http, &context.pool, Err(refusal))));
        };
        // Its length was not known when it began.
        if body.len() as u64 > openai.input_bytes_max {
            refuse(Refusal::too_large(body.len() as u64, openai.input_bytes_max), replies);
            return None;
        }
        if let Some(reply) = cors::preflight(head, &context.pool) {
            replies.push(call, HttpReply::Answer(reply));
            return None;
        }
        let route = match find(head.path(), openai.prepare.compat) {
            Found::Route(route) => route,
            Found::Redirect => {
                replies.push(call, HttpReply::Answer(redirect(openai.scheme, &http, head)));
                return None;
            }
            Found::Nothing => {
                refuse(Refusal::path_not_found(), replies);
                return None;
            }
        };
        if head.method_name() != route.method() {
            let mut reply = whole(&http, &context.pool, Err(Refusal::method_not_allowed()));
            reply.head = reply.head.header("allow", route.method());
            replies.push(call, HttpReply::Answer(reply));
            return None;
        }
        match route {
            Route::Operation(operation) => {
                let request = HttpRequest { call, head, body, arrival };
                return self.operate(context, &openai, http, operation, request, replies);
            }
            Route::Metrics => metrics_page.render_for(call, head),
            Route::Ready => self.ready(context, &http, replies),
            Route::Live => {
                let is_live = context.facts.is_live().unwrap_or(false);
                replies.push(call, HttpReply::Answer(http.empty(if is_live { 200 } else { 503 })));
            }
            Route::Description => {
                replies.push(call, HttpReply::Answer(pages::description(http.head(200, JSON), &context.pool)));
            }
            Route::Docs => {
                let head = http.head(200, "text/html; charset=utf-8");
                replies.push(call, HttpReply::Answer(pages::docs(head, &context.pool)));
            }
            Route::Version => {
                let text = format!("{{\"version\":\"{}\"}}", env!("CARGO_PKG_VERSION"));
                replies.push(call, HttpReply::Answer(whole(&http, &context.pool, Ok(text))));
            }
            Route::Models | Route::Model(_) | Route::Load(_) | Route::Unload(_) => {
                self.manage(context, &openai, http, route, replies);
            }
        }
        None
    }

    fn ready(&self, context: &InferContext, http: &HttpAnswer, replies: &mut Replies) {
        let checks = context.facts.checks(&context.models);
        if !checks.is_empty() {
            return check_instances(&self.post, http.call, Protocol::Http, Probe::Server, &checks);
        }
        let reply = match context.facts.is_ready(&context.models) {
            Ok(true) => http.empty(200),
            Ok(false) | Err(_) => whole(http, &context.pool, Err(Refusal::not_ready())),
        };
        replies.push(http.call, HttpReply::Answer(reply));
    }

    /// What concerns the repository, away from the shard.
    fn manage(
        &self,
        context: &InferContext,
        openai: &Arc<OpenAi>,
        http: HttpAnswer,
        route: Route,
        replies: &mut Replies,
    ) {
        let (call, compat) = (http.call, http.compat);
        let elsewhere = Elsewhere { http, pool: context.pool.clone(), post: Arc::clone(&self.post) };
        let (openai, models, now_s) = (Arc::clone(openai), Arc::clone(&context.models), now_s());
        let begun = match route {
            Route::Load(name) => self.lifecycle.spawn(move |lifecycle| {
                elsewhere.answer(guarded(|| repository::load(&openai, lifecycle, &name, now_s)));
            }),
            Route::Unload(name) => self.lifecycle.spawn(move |lifecycle| {
                elsewhere.answer(guarded(|| repository::unload(&openai, lifecycle, &name)));
            }),
            route => {
                let threads = Arc::clone(&openai);
                let is_posted = threads.threads.post(move || {
                    elsewhere.answer(guarded(|| match &route {
                        Route::Model(id) => repository::one(&openai, &models, id, now_s),
                        _ => Ok(repository::list(&openai, &models, now_s)),
                    }));
                });
                if is_posted { Ok(()) } else { Err(too_busy()) }
            }
        };
        if let Err(status) = begun {
            let http = HttpAnswer::new(call, Origin::None, None, compat);
            let mut reply = whole(&http, &context.pool, Err(Refusal::of_status(&status, compat)));
            reply.head.refusal = status.refusal;
            replies.push(call, HttpReply::Answer(reply));
        }
    }

    /// Begins a call that models, or the threads of this interface, answer.
    fn operate(
        &mut self,
        context: &mut InferContext,
        openai: &Arc<OpenAi>,
        http: HttpAnswer,
        operation: Operation,
        request: HttpRequest<'_>,
        replies: &mut Replies,
    ) -> Option<Token> {
        let (now_ns, call, compat) = (now_ns(), http.call, http.compat);
        let HttpRequest { head, body, arrival, .. } = request;
        if let Err(seconds) = openai.gate.take(head, now_ns) {
            let mut reply = whole(&http, &context.pool, Err(Refusal::rate_limited(seconds)));
            reply.head = reply.head.header("retry-after", seconds);
            replies.push(call, HttpReply::Answer(reply));
            return None;
        }
        let routing = context.routing_of(|name| head.header(std::str::from_utf8(name).ok()?));
        let mut new = OpenAiCall::new(http, routing, now_ns);
        new.arrived = context.watches.keep_http(head, arrival);
        let work = Work::OpenAi(Box::new(new));
        let token = match context.calls.new_work(work) {
            Ok(token) => token,
            Err(status) => {
                let http = HttpAnswer::new(call, Origin::of(head), None, compat);
                let mut reply = whole(&http, &context.pool, Err(Refusal::of_status(&status, compat)));
                reply.head.refusal = status.refusal;
                replies.push(call, HttpReply::Answer(reply));
                return None;
            }
        };
        let job = Job {
            openai: Arc::clone(openai),
            models: Arc::clone(&context.models),
            operation,
            body,
            is_json: is_json(head),
            id: id_of(operation, compat, self.ids.next()),
            created: now_s(),
            on_demand: context.demand.is_some(),
            tried: Vec::new(),
        };
        self.begin(context, openai, token, job, replies);
        Some(token)
    }

    /// Prepares a request, here or elsewhere.
    pub(super) fn begin(
        &self,
        context: &mut InferContext,
        openai: &Arc<OpenAi>,
        token: Token,
        job: Job,
        replies: &mut Replies,
    ) {
        let post = Arc::clone(&self.post);
        let begun = contained(|| match job.try_at_once() {
            AtOnce::Done(prepared) => answering::prepared(context, openai, token, prepared, replies),
            AtOnce::Missing(model, refusal) => missing(context, token, model, Box::new(job), refusal, replies),
            AtOnce::Elsewhere => {
                if !openai.threads.post(move || job.run(token.0, post)) {
                    answering::refuse_status(context, token, &too_busy(), replies);
                }
            }
        });
        if begun.is_none() {
            // The call has its place already, which nothing else would end.
            let status = Status::internal("an internal error ended this request");
            answering::fail(context, token, &status, replies);
        }
    }

    /// A request was prepared elsewhere.
    pub fn prepared(&self, context: &mut InferContext, key: u64, prepared: Prepared, replies: &mut Replies) {
        let Some(openai) = &self.openai else { return };
        let token = Token(key);
        match prepared {
            Prepared::Done(prepared) => answering::prepared(context, openai, token, prepared, replies),
            Prepared::Missing(model, job, refusal) => missing(context, token, model, job, refusal, replies),
            Prepared::Panicked => {
                let status = Status::internal("an internal error ended this request");
                answering::refuse_status(context, token, &status, replies);
            }
        }
    }

    pub fn go_on(&self, context: &mut InferContext, key: u64, replies: &mut Replies) {
        if let Some(openai) = &self.openai
            && !awaiting::look(context, Token(key), replies)
        {
            answering::go_on(context, openai, Token(key), replies);
        }
    }
}

/// The checks that a head is enough for, outermost first.
fn refused(openai: &OpenAi, head: &Head) -> Option<Refusal> {
    let given = head.header("Content-Length").map(<[u8]>::trim_ascii);
    if let Some(given) = given
        && head.body_length() != BodyLength::Chunked
    {
        let number = std::str::from_utf8(given).ok().and_then(|text| text.parse::<i128>().ok());
        match number {
            None => return Some(Refusal::content_length_not_integer()),
            Some(..0) => return Some(Refusal::content_length_negative()),
            Some(length) if length > i128::from(openai.input_bytes_max) => {
                return Some(Refusal::too_large(u64::try_from(length).unwrap_or(u64::MAX), openai.input_bytes_max));
            }
            Some(_) => {}
        }
    }
    openai.gate.check(head).err().map(|closed| match closed {
        Closed::Restricted(header) => Refusal::restricted(&header),
        Closed::NoKey => Refusal::no_key(),
        Closed::WrongKey => Refusal::wrong_key(),
    })
}

fn redirect(scheme: &str, http: &HttpAnswer, head: &Head) -> Response {
    let host = String::from_utf8_lossy(head.header("Host").unwrap_or(b"localhost")).into_owned();
    let path = head.path().trim_end_matches('/');
    let location = format!("{scheme}://{host}{path}");
    let mut reply = http.empty(307);
    reply.head = reply.head.header("location", location);
    reply
}

/// The body is JSON, or says nothing of itself.
fn is_json(head: &Head) -> bool {
    let Some(content_type) = head.header("Content-Type") else { return true };
    let media_type = content_type.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    let media_type = media_type.to_ascii_lowercase();
    media_type.is_empty()
        || media_type == b"application/json"
        || (media_type.starts_with(b"application/") && media_type.ends_with(b"+json"))
}

/// The id that a client or a proxy has given the request, or a new one.
fn request_id(head: &Head, ids: &mut Ids) -> String {
    let is_fit = |id: &&[u8]| id.len() <= REQUEST_ID_BYTES_MAX && id.iter().all(|byte| (b'!'..=b'~').contains(byte));
    let given = head.header("X-Request-Id").filter(is_fit).filter(|id| !id.is_empty());
    match given {
        Some(given) => String::from_utf8_lossy(given).into_owned(),
        None => format!("{:032x}", ids.next()),
    }
}

fn too_busy() -> Status {
    Status::refused(RefusalReason::Operations, "too many requests wait to be prepared")
}

/// The call is answered even if the operation panics.
fn guarded(operation: impl FnOnce() -> Result<String, Refusal>) -> Result<String, Refusal> {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(operation));
    caught.unwrap_or_else(|_| Err(Refusal::server("the operation on the model repository panicked")))
}

/// Ids that no other shard gives: a random beginning, and a count.
struct Ids {
    beginning: u64,
    count: u64,
}

impl Ids {
    fn new() -> Ids {
        use std::hash::{BuildHasher, RandomState};
        Ids { beginning: RandomState::new().hash_one(now_ns()), count: 0 }
    }

    fn next(&mut self) -> u128 {
        self.count = self.count.wrapping_add(1);
        // A multiplication by an odd number takes each count to a place of its own.
        let low = self.count.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (u128::from(self.beginning) << 64) | u128::from(low)
    }
}
