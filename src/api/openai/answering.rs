//! Hands the requests of a call to its model, and writes the answer from the responses, in bounded steps.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::awaiting::{self, Rest};
use super::call::{Arrived, Execution, JSON, OpenAiCall, REQUESTS_AT_ONCE, refusal_body};
use super::metrics::CallTimes;
use super::settings::OpenAi;
use crate::api::calls::reply_to::ReplyTo;
use crate::api::infer::AnswerForm;
use crate::api::infer_context::{InferContext, kept_field};
use crate::api::steps::{LONG_STEPS_AT_ONCE, STEPS_AT_ONCE};
use crate::api::watch::Watch;
use crate::repository::Choice;
use nereid_clock::now_ns;
use nereid_memory::{Gather, Pool};
use nereid_openai::answer::{Answer, Progress};
use nereid_openai::error::Refusal;
use nereid_openai::plan::{Input, Prepared};
use nereid_openai::prepare::Outcome;
use nereid_protocol::service::{HttpReply, Replies, Token};
use nereid_request::{Credit, Delivery, InputTensor, RefusalReason, Request, Status, Text};
use nereid_scheduler::validate::add_input;

/// A comment, which clients pass over.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// Goes on with a call whose request was prepared.
pub fn prepared(
    context: &mut InferContext,
    openai: &OpenAi,
    token: Token,
    prepared: Result<Outcome, Refusal>,
    replies: &mut Replies,
) {
    let Some(call) = context.calls.openai(token) else { return };
    match prepared {
        Err(refusal) => refuse(context, token, &refusal, None, replies),
        Ok(Outcome::Answered(text)) => {
            let mut body = Gather::new();
            body.put(&context.pool, text.as_bytes());
            call.http.whole(call.http.head(200, JSON), body, replies);
            context.calls.end_openai(token);
        }
        Ok(Outcome::Request(prepared)) => execute(context, openai, token, *prepared, replies),
        Ok(Outcome::Deferred(_)) => {
            refuse_status(context, token, &Status::internal("the request was not prepared"), replies);
        }
    }
}

/// Answers a call that no model has, or whose answer has not begun. `lacks`: what the server lacked.
pub fn refuse(
    context: &mut InferContext,
    token: Token,
    refusal: &Refusal,
    lacks: Option<RefusalReason>,
    replies: &mut Replies,
) {
    refuse_watched(context, token, refusal, (lacks, None), replies);
}

/// The same of a call that may be recorded.
fn refuse_watched(
    context: &mut InferContext,
    token: Token,
    refusal: &Refusal,
    (lacks, watch): (Option<RefusalReason>, Option<&Arc<Watch>>),
    replies: &mut Replies,
) {
    let Some(call) = context.calls.openai(token) else { return };
    let (text, content_type) = refusal_body(refusal, call.http.compat);
    let mut body = Gather::new();
    body.put(&context.pool, text.as_bytes());
    let mut head = call.http.head(refusal.status, content_type);
    head.refusal = lacks;
    call.http.whole_of(watch, head, body, replies);
    context.calls.end_openai(token);
}

/// Hands the requests to the model.
pub fn execute(context: &mut InferContext, openai: &OpenAi, token: Token, prepared: Prepared, replies: &mut Replies) {
    let Some(call) = context.calls.openai(token) else { return };
    let routing = std::mem::take(&mut call.routing);
    let found = context.find(prepared.model.as_bytes(), b"", &|name| kept_field(&routing, name));
    let (served, chosen) = match found {
        Ok(Choice { model, route: None }) => (model, None),
        Ok(Choice { model, route: Some(route) }) => {
            let chosen = route.choose(None, &model);
            (Arc::clone(&chosen.model), Some(chosen))
        }
        Err(status) => {
            let Some(call) = context.calls.openai(token) else { return };
            call.routing = routing;
            let refused = (Refusal::of_status(&status, call.http.compat), status.refusal);
            let model = prepared.model.clone();
            return awaiting::park(context, token, &model, Rest::Prepared(Box::new(prepared)), refused, replies);
        }
    };
    let Prepared { model, requests, lora_sent, priority, plan } = prepared;
    let Some(call) = context.calls.openai(token) else { return };
    let known = lora_sent.and_then(|lora| Some((openai.models.known(&served)?.facts, lora)));
    let plan = Arc::new(plan);
    let watch = call.arrived.take().and_then(|head| context.watches.of_kept(&served.name, &head));
    let times = openai.metrics.of(&model).map(|of| CallTimes::begin(of, call.began_ns));
    let mut answer = Answer::new(Arc::clone(&plan));
    let mut opening = Gather::new();
    if plan.stream && answer.opens_early() {
        answer.open(&context.pool, &mut opening);
    }
    call.execution = Some(Box::new(Execution {
        model: served,
        chosen,
        form: Rc::new(AnswerForm::default()),
        priority: priority.and_then(|priority| u64::try_from(priority).ok()),
        pending: (0..).zip(requests).collect::<VecDeque<_>>(),
        requests: SmallVec::new(),
        answer,
        arrived: VecDeque::new(),
        writing: None,
        unsent: Gather::new(),
        times,
        watch,
        lora_sent: known,
        plan,
    }));
    if let Err(status) = submit_next(context, token) {
        return fail(context, token, &status, replies);
    }
    let Some(call) = context.calls.openai(token) else { return };
    if !opening.is_empty() {
        call.send_window.record(opening.len(), None);
        call.http.events(opening, replies);
    }
    if openai.keep_alive_ns > 0 && call.execution.as_ref().is_some_and(|execution| execution.plan.stream) {
        context.calls.time_openai(now_ns().saturating_add(openai.keep_alive_ns), token);
    }
}

/// Hands further requests of a call to its model, as many as it may have at a time.
fn submit_next(context: &mut InferContext, token: Token) -> Result<(), Status> {
    loop {
        let Some(call) = context.calls.openai(token) else { return Ok(()) };
        let Some(execution) = &mut call.execution else { return Ok(()) };
        if execution.requests.len() >= REQUESTS_AT_ONCE {
            return Ok(());
        }
        let Some((index, inputs)) = execution.pending.pop_front() else { return Ok(()) };
        let (model, form) = (Arc::clone(&execution.model), Rc::clone(&execution.form));
        let (id, priority) = (Text::new(execution.plan.id.as_bytes()), execution.priority);
        let watch = execution.watch.clone();
        // What it holds would keep the other versions of the model from ending.
        let chosen = if execution.pending.is_empty() { execution.chosen.take() } else { execution.chosen.clone() };
        let (child, mut request) = context.calls.new_request()?;
        request.id = id;
        request.queueing.priority = priority.unwrap_or_default();
        match &watch {
            Some(watch) if index == 0 => watch.attach(&mut request),
            Some(watch) => watch.attach_part(&mut request),
            None => {}
        }
        let filled = fill(&mut request, inputs, &context.pool);
        if let Err(status) = filled {
            context.calls.give_up(child, request);
            return Err(status);
        }
        if let Some(chosen) = chosen {
            chosen.attach(&mut request);
        }
        let reply_to = ReplyTo::OpenAi(token, index);
        // Before its model has it: the answer may come at once.
        if let Some(Some(execution)) = context.calls.openai(token).map(|call| &mut call.execution) {
            execution.requests.push(child.0);
        }
        if let Err(status) = context.calls.submit(child, reply_to, model, request, form) {
            context.calls.end_work(child.0);
            forget(context, token, child.0);
            return Err(status);
        }
    }
}

fn fill(request: &mut Request, inputs: Vec<Input>, pool: &Pool) -> Result<(), Status> {
    for Input { name, datatype, shape, data } in inputs {
        let tensor = add_input(request, InputTensor::new(name.as_str().into(), datatype, shape))?;
        if !data.is_empty() {
            let mut block = pool.get(data.len())?;
            block.copy_from_slice(&data);
            tensor.data = smallvec![block.freeze()];
        }
    }
    Ok(())
}

/// A request of the call is over.
fn forget(context: &mut InferContext, token: Token, key: u64) {
    if let Some(Some(execution)) = context.calls.openai(token).map(|call| &mut call.execution) {
        execution.requests.retain(|&mut other| other != key);
    }
}

/// A response to one of the requests of a call, or its end.
pub fn delivered(
    context: &mut InferContext,
    (token, index): (Token, u32),
    key: u64,
    delivery: Delivery,
    replies: &mut Replies,
) {
    let Delivery { response, last } = delivery;
    if last {
        context.calls.end_waiting(key);
        forget(context, token, key);
    }
    let Some(call) = context.calls.openai(token) else { return };
    let Some(execution) = &mut call.execution else { return };
    if let (Some(times), Some(response)) = (&mut execution.times, &response)
        && response.error.is_none()
    {
        times.response(now_ns());
    }
    if index == 0
        && let (Some(watch), Some(response)) = (&execution.watch, &response)
    {
        watch.answered(response);
    }
    execution.arrived.push_back(Arrived { index: index as usize, response, is_last: last });
    if last && let Err(status) = submit_next(context, token) {
        return fail(context, token, &status, replies);
    }
    write(context, token, replies);
}

/// A request of the call was checked for longer than a turn, and its model does not get it.
pub fn not_submitted(context: &mut InferContext, token: Token, key: u64, status: &Status, replies: &mut Replies) {
    forget(context, token, key);
    fail(context, token, status, replies);
}

/// A second has passed in which the client has not taken everything.
pub fn waits(context: &mut InferContext, token: Token, replies: &mut Replies) {
    let Some(call) = context.calls.openai(token) else { return };
    let http = call.http.call;
    if call.send_window.is_stuck() {
        tracing::info!("a connection is closed: its client does not read the responses");
        context.calls.cancel(token.0);
        replies.push(http, HttpReply::Abort);
    }
}

/// Goes on with a call that was put off, or whose client has heard nothing for long.
pub fn go_on(context: &mut InferContext, openai: &OpenAi, token: Token, replies: &mut Replies) {
    let Some(call) = context.calls.openai(token) else { return };
    if std::mem::take(&mut call.is_deferred) {
        return write(context, token, replies);
    }
    let Some(execution) = &call.execution else { return };
    if !execution.plan.stream || openai.keep_alive_ns == 0 {
        return;
    }
    let now_ns = now_ns();
    if now_ns >= call.sent_ns.saturating_add(openai.keep_alive_ns) {
        let mut comment = Gather::new();
        comment.put(&context.pool, KEEP_ALIVE);
        call.send_window.record(comment.len(), None);
        call.sent_ns = now_ns;
        call.http.events(comment, replies);
    }
    let at_ns = call.sent_ns.saturating_add(openai.keep_alive_ns);
    context.calls.time_openai(at_ns, token);
}

/// What writing for a while has come to.
enum Written {
    /// Nothing is left for now.
    Waits,
    More,
    /// The model need not go on.
    Enough,
    Failed(Refusal),
}

/// Writes on; what does not fit into this turn is put off.
fn write(context: &mut InferContext, token: Token, replies: &mut Replies) {
    let pool = context.pool.clone();
    let Some(call) = context.calls.openai(token) else { return };
    let Some(execution) = call.execution.as_deref_mut() else { return };
    let mut out = std::mem::take(&mut execution.unsent);
    let is_stream = execution.plan.stream;
    let mut credits = Credits::new();
    let mut written = write_some(execution, &pool, &mut out, &mut credits);
    if matches!(written, Written::Enough) {
        // Nothing that comes later belongs to the answer.
        let unwanted = execution.drop_rest();
        unwanted.into_iter().for_each(|key| context.calls.cancel(key));
    }
    let Some(call) = context.calls.openai(token) else { return };
    let Some(execution) = call.execution.as_deref_mut() else { return };
    if matches!(written, Written::Waits | Written::Enough) && execution.is_over() {
        written = match execution.answer.finish(&pool, &mut out) {
            Ok(true) => return end(context, token, out, replies),
            Ok(false) => Written::More,
            Err(refusal) => Written::Failed(refusal),
        };
    }
    if !is_stream {
        execution.unsent = out;
    } else if !out.is_empty() {
        send(call, out, credits, replies);
    }
    match written {
        Written::Failed(refusal) => fail_with(context, token, &refusal, None, replies),
        Written::More if !std::mem::replace(&mut call.is_deferred, true) => context.calls.revisit(token.0),
        _ => {}
    }
}

type Credits = SmallVec<[Credit; 4]>;

/// Writes what has arrived, for a bounded time.
fn write_some(execution: &mut Execution, pool: &Pool, out: &mut Gather, credits: &mut Credits) -> Written {
    let mut long_steps = 0;
    for _ in 0..STEPS_AT_ONCE {
        if execution.writing.is_none() {
            let Some(Arrived { index, response, is_last }) = execution.arrived.pop_front() else {
                return Written::Waits;
            };
            let begun = match response {
                Some(mut response) => {
                    execution.writing = Some(response.credit.take());
                    execution.answer.begin(index, response, is_last)
                }
                None => execution.answer.end_without_response(index),
            };
            if let Err(refusal) = begun {
                return Written::Failed(refusal);
            }
            if execution.writing.is_none() {
                continue;
            }
        }
        let progress = match execution.answer.step(pool, out) {
            Ok(progress) => progress,
            Err(refusal) => return Written::Failed(refusal),
        };
        match progress {
            Progress::More => {
                long_steps += 1;
                if long_steps == LONG_STEPS_AT_ONCE {
                    return Written::More;
                }
            }
            Progress::Done => credits.extend(execution.writing.take().flatten()),
            Progress::Enough => {
                credits.extend(execution.writing.take().flatten());
                return Written::Enough;
            }
        }
    }
    Written::More
}

/// Sends events; the credits go back when they are out.
fn send(call: &mut OpenAiCall, events: Gather, credits: Credits, replies: &mut Replies) {
    call.sent_ns = now_ns();
    let mut credits = credits.into_iter();
    call.send_window.record(events.len(), credits.next());
    credits.for_each(|credit| call.send_window.record(0, Some(credit)));
    call.http.events(events, replies);
}

/// The answer is complete: `rest` is what is not out, of an answer in one piece everything.
fn end(context: &mut InferContext, token: Token, rest: Gather, replies: &mut Replies) {
    let Some(call) = context.calls.openai(token) else { return };
    let Some(mut execution) = call.execution.take() else { return };
    if let Some(times) = &mut execution.times {
        times.end(now_ns(), execution.answer.tokens(), false);
    }
    if let Some((facts, lora)) = &execution.lora_sent {
        facts.confirm_lora(lora);
    }
    if execution.plan.stream {
        call.http.events(rest, replies);
        end_stream(call, execution.watch.as_ref(), replies);
    } else {
        call.http.whole_of(execution.watch.as_ref(), call.http.head(200, JSON), rest, replies);
    }
    cancel_requests(context, &execution);
    context.calls.end_openai(token);
}

/// Ends a stream whose last event is handed to the transport.
fn end_stream(call: &OpenAiCall, watch: Option<&Arc<Watch>>, replies: &mut Replies) {
    if let Some(watch) = watch {
        watch.leaves(call.http.call, replies);
    }
    replies.push(call.http.call, HttpReply::End);
}

/// What the model still does for a call is not wanted any more.
fn cancel_requests(context: &mut InferContext, execution: &Execution) {
    for &key in &execution.requests {
        context.calls.cancel(key);
    }
}

/// The same with an error of the server.
pub fn refuse_status(context: &mut InferContext, token: Token, status: &Status, replies: &mut Replies) {
    let Some(call) = context.calls.openai(token) else { return };
    let refusal = Refusal::of_status(status, call.http.compat);
    refuse(context, token, &refusal, status.refusal, replies);
}

/// Ends a call that the server or its model fails.
pub fn fail(context: &mut InferContext, token: Token, status: &Status, replies: &mut Replies) {
    let Some(call) = context.calls.openai(token) else { return };
    let refusal = Refusal::of_status(status, call.http.compat);
    fail_with(context, token, &refusal, status.refusal, replies);
}

/// Ends a call that cannot be answered as a whole.
fn fail_with(
    context: &mut InferContext,
    token: Token,
    refusal: &Refusal,
    lacks: Option<RefusalReason>,
    replies: &mut Replies,
) {
    let Some(call) = context.calls.openai(token) else { return };
    let Some(mut execution) = call.execution.take() else {
        return refuse(context, token, refusal, lacks, replies);
    };
    if let Some(times) = &mut execution.times {
        times.end(now_ns(), execution.answer.tokens(), true);
    }
    if call.http.has_begun() {
        let mut events = Gather::new();
        execution.answer.fail_with(refusal, &context.pool, &mut events);
        call.http.events(events, replies);
        end_stream(call, execution.watch.as_ref(), replies);
        context.calls.end_openai(token);
    } else {
        refuse_watched(context, token, refusal, (lacks, execution.watch.as_ref()), replies);
    }
    cancel_requests(context, &execution);
}
