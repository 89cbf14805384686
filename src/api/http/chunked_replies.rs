//! HTTP answers that leave response by response: events, and the one object of `generate`.
//!
//! The responses of a request wait here for their turn to be written, in bounded steps, and each leaves as one part of
//! the answer. What its client does not take holds a decoupled model back by credits, as on streams of gRPC. The status
//! is that of the first response, so the head leaves with it; a later error stands in the body (contract/http.md
//! section 7, docs/streaming.md).

pub mod chunked_reply;

use std::rc::Rc;
use std::sync::Arc;

use super::events;
use super::generate::load;
use crate::api::calls::Calls;
use crate::api::calls::work::Work;
use crate::api::load_reports::FIELD;
use crate::api::steps::{LONG_STEPS_AT_ONCE, STEPS_AT_ONCE};
use chunked_reply::Written;
use nereid_memory::{Gather, Pool};
use nereid_observe::metrics::Registry;
use nereid_protocol::http1::ResponseHead;
use nereid_protocol::service::{HttpReply, Replies, Token};
use nereid_request::{Credit, Delivery};

/// The part of one shard's service that writes such answers.
pub struct ChunkedReplies {
    pub pool: Pool,
    /// Metrics of backends, some of which answers report.
    pub metrics: Arc<Registry>,
}

impl ChunkedReplies {
    /// A second has passed in which the peer had not taken everything.
    pub fn waits(calls: &mut Calls, token: Token, replies: &mut Replies) {
        let Some(chunked) = calls.chunked(token) else { return };
        let call = chunked.call;
        if chunked.send_window.is_stuck() {
            tracing::info!("a connection is closed: its client does not read the responses");
            calls.cancel(token.0);
            replies.push(call, HttpReply::Abort);
        }
    }

    /// A response to a request whose answer leaves response by response, or its end.
    pub fn delivered(&self, calls: &mut Calls, key: u64, delivery: Delivery, replies: &mut Replies) {
        let last = delivery.last;
        let Some(Work::Waiting(waiting)) = calls.work_mut(key) else { return };
        let id = waiting.id();
        let Some(chunked) = &mut waiting.chunked else { return };
        chunked.take_in(delivery, id);
        if last {
            ChunkedReplies::end(calls, key);
        }
        self.write(calls, key, replies);
    }

    /// The last response is there: what remains is to be written, under the same token.
    fn end(calls: &mut Calls, key: u64) {
        let Some(place @ Work::Waiting(_)) = calls.work_mut(key) else { return };
        let Work::Waiting(mut waiting) = std::mem::replace(place, Work::Reserved) else { return };
        if let (Some(chunked), Some(place)) = (waiting.chunked.take(), calls.work_mut(key)) {
            *place = Work::ChunkedReply(chunked);
        }
        calls.count_out(key, &waiting);
    }

    /// Writes on; what does not fit into this turn is put off.
    fn write(&self, calls: &mut Calls, key: u64, replies: &mut Replies) {
        let mut long_steps = 0;
        for _ in 0..STEPS_AT_ONCE {
            let Some(chunked) = calls.chunked(Token(key)) else { return };
            match chunked.step(&self.pool) {
                Written::Nothing => break,
                Written::Partly => {
                    long_steps += 1;
                    if long_steps == LONG_STEPS_AT_ONCE {
                        break;
                    }
                }
                Written::Response(status, json, credit) => self.send(calls, key, status, json, credit, replies),
            }
        }
        let Some(chunked) = calls.chunked(Token(key)) else { return };
        if !chunked.is_idle() {
            if !std::mem::replace(&mut chunked.is_deferred, true) {
                calls.revisit(key);
            }
            return;
        }
        if chunked.over {
            self.finish(calls, key, replies);
        }
    }

    /// Goes on with an answer that was put off.
    pub fn go_on(&self, calls: &mut Calls, key: u64, replies: &mut Replies) {
        if let Some(chunked) = calls.chunked(Token(key)) {
            chunked.is_deferred = false;
            self.write(calls, key, replies);
        }
    }

    /// One response is written.
    fn send(
        &self,
        calls: &mut Calls,
        key: u64,
        status: u16,
        json: Gather,
        credit: Option<Credit>,
        replies: &mut Replies,
    ) {
        let Some(chunked) = calls.chunked(Token(key)) else { return };
        if !chunked.sends_each() {
            chunked.first.get_or_insert((status, json));
            return;
        }
        self.send_head(calls, key, status, replies);
        let Some(chunked) = calls.chunked(Token(key)) else { return };
        let event = events::framed(json, &self.pool);
        chunked.send_window.record(event.len(), credit);
        replies.push(chunked.call, HttpReply::Chunk(event));
    }

    /// Everything is written.
    fn finish(&self, calls: &mut Calls, key: u64, replies: &mut Replies) {
        let Some(chunked) = calls.chunked(Token(key)) else { return };
        let (call, watch) = (chunked.call, Rc::make_mut(&mut chunked.form).watch.take());
        let part = (!chunked.sends_each()).then(|| {
            let (status, json) = chunked.only_part(&self.pool);
            (status, if chunked.is_events() { events::framed(json, &self.pool) } else { json })
        });
        self.send_head(calls, key, part.as_ref().map_or(200, |(status, _)| *status), replies);
        if let Some((_, part)) = part {
            replies.push(call, HttpReply::Chunk(part));
        }
        if let Some(watch) = watch {
            watch.leaves(call, replies);
        }
        replies.push(call, HttpReply::End);
        calls.end_work(key);
    }

    /// The head of the answer, if it is not out.
    fn send_head(&self, calls: &mut Calls, key: u64, status: u16, replies: &mut Replies) {
        let Some(chunked) = calls.chunked(Token(key)) else { return };
        if std::mem::replace(&mut chunked.head_sent, true) {
            return;
        }
        let (call, format) = (chunked.call, chunked.form.load_report);
        let content_type = if chunked.is_events() { events::CONTENT_TYPE } else { "application/json" };
        let mut head = ResponseHead::new(status).content_type(content_type);
        if let Some(report) = format.and_then(|format| load::report(&self.metrics, format)) {
            head = head.header(FIELD, report);
        }
        replies.push(call, HttpReply::Head(head));
    }
}
