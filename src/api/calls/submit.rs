//! Submits requests to their models, at once or in steps.
//!
//! Before a model gets a request, its inputs in shared memory may have to be copied and its strings to be checked. What
//! takes longer than a turn has time for is put off. Requests of a stream keep their order: those behind one that is
//! being prepared wait in the stream's inbox.

use std::rc::Rc;
use std::sync::Arc;

use super::Calls;
use super::checking::{Checking, has_many_strings};
use super::copying::Copying;
use super::delays::DelayedStep;
use super::pending_submit::{PendingSubmit, Prepared};
use super::reply_to::ReplyTo;
use super::work::{Places, Timed, Waiting, Work};
use crate::api::http::chunked_replies::chunked_reply::ChunkedReply;
use crate::api::infer::AnswerForm;
use crate::api::watch::watch_by_parameter;
use nereid_observe::panics;
use nereid_protocol::service::Token;
use nereid_request::shared::COPIED_AT_ONCE;
use nereid_request::{Home, RefusalReason, Request, Status};
use nereid_scheduler::{Accepted, Refused, ServedModel, input_bytes};

impl Calls {
    /// Checks a request and submits it to its model. After a refusal the token is still valid.
    pub fn submit(
        &mut self,
        token: Token,
        reply_to: ReplyTo,
        model: Arc<ServedModel>,
        mut request: Box<Request>,
        mut form: Rc<AnswerForm>,
    ) -> Result<(), Status> {
        panics::fault_point("submit", || request.id.as_bytes());
        if form.wants_timing {
            let watch = &mut Rc::make_mut(&mut form).watch;
            watch_by_parameter(watch, matches!(reply_to, ReplyTo::Http(_) | ReplyTo::OpenAi(..)), &mut request);
        }
        if let Err(exhausted) = request.hold_texts(&self.pool) {
            request.withdraw();
            return Err(exhausted.into());
        }
        if request.shared.is_some() {
            return self.submit_shared(token, PendingSubmit { reply_to, model, request, form });
        }
        if !request.ingress.is_checked && has_many_strings(&request) {
            return self.submit_strings(token, PendingSubmit { reply_to, model, request, form });
        }
        let by_ns = self.delays.request_ns;
        if by_ns > 0 && !matches!(reply_to, ReplyTo::Http(_) | ReplyTo::OpenAi(..)) {
            let pending = PendingSubmit { reply_to, model, request, form };
            if let Some(place) = self.work_mut(token.0) {
                *place = Work::Delayed(Box::new(pending));
            }
            self.delay(by_ns, DelayedStep::Submit { key: token.0 });
            return Ok(());
        }
        self.submit_now(token, reply_to, model, request, form)
    }

    fn submit_now(
        &mut self,
        token: Token,
        reply_to: ReplyTo,
        model: Arc<ServedModel>,
        request: Box<Request>,
        form: Rc<AnswerForm>,
    ) -> Result<(), Status> {
        let chunked = match reply_to {
            ReplyTo::Http(call) => ChunkedReply::of(call, &model, &form),
            ReplyTo::Grpc(_) | ReplyTo::Stream(_) | ReplyTo::OpenAi(..) => None,
        };
        let comes_in_parts = matches!(reply_to, ReplyTo::Stream(_) | ReplyTo::OpenAi(..)) && model.spec.decoupled;
        if chunked.is_some() || comes_in_parts {
            request.limit_responses(self.responses_max);
        }
        let places = match self.enter(reply_to, &model, &request) {
            Ok(places) => places,
            Err(status) => {
                request.withdraw();
                return Err(status);
            }
        };
        let waiting = Waiting::new(reply_to, model, form, chunked, places);
        let Some(place) = self.work_mut(token.0) else {
            request.withdraw();
            return Err(Status::internal("the request has no place to wait for its answer"));
        };
        // Before the scheduler has it: the answer may be in the mailbox when it returns.
        *place = Work::Waiting(waiting);
        let Work::Waiting(waiting) = place else { return Ok(()) };
        match waiting.model.submit(request) {
            Ok(Accepted { wake_up, ticket, expires_at_ns }) => {
                (waiting.ticket, waiting.expires_at_ns) = (Some(ticket), expires_at_ns);
                self.wake(wake_up);
                self.count_in();
                if let Some(at_ns) = expires_at_ns {
                    self.time(at_ns, Timed::Expiry(token.0));
                }
                Ok(())
            }
            Err(Refused { status, request }) => {
                request.withdraw();
                *place = Work::Reserved;
                Err(status)
            }
        }
    }

    /// Takes what the request needs of the parts that its model, its connection and its client may have.
    #[inline]
    fn enter(&mut self, reply_to: ReplyTo, model: &Arc<ServedModel>, request: &Request) -> Result<Places, Status> {
        let call = match reply_to {
            ReplyTo::Stream(token) => self.stream(token).map(|stream| stream.enter_call()).transpose(),
            ReplyTo::Http(_) | ReplyTo::Grpc(_) | ReplyTo::OpenAi(..) => Ok(None),
        };
        let call = call.map_err(|reason| full(reason, model))?;
        match model.load.enter(input_bytes(request), &self.model_bounds) {
            Ok(model) => Ok(Places { model, call }),
            Err(reason) => {
                model.statistics.refused(reason);
                Err(full(reason, model))
            }
        }
    }

    /// Submits a request whose delay is over. If it is refused: what its answer needs, and why.
    pub fn submit_delayed(&mut self, key: u64) -> Option<(Prepared, Status)> {
        let place @ Work::Delayed(_) = self.work_mut(key)? else { return None };
        let Work::Delayed(pending) = std::mem::replace(place, Work::Reserved) else { return None };
        let prepared = Prepared::of(&pending);
        let PendingSubmit { reply_to, model, request, form } = *pending;
        let refused = self.submit_now(Token(key), reply_to, model, request, form).err();
        refused.map(|status| (prepared, status))
    }

    /// Submits a request that has inputs in shared memory. After a refusal the token is still valid.
    fn submit_shared(&mut self, token: Token, pending: PendingSubmit) -> Result<(), Status> {
        let mut copying = Copying::new(pending);
        let due = copying.bytes_to_copy();
        let at_once = due <= COPIED_AT_ONCE;
        if due > 0
            && at_once
            && let Err(status) = copying.step(&self.pool, usize::MAX)
        {
            copying.withdraw();
            return Err(status);
        }
        if at_once {
            return self.submit_copied(token, copying.finish());
        }
        let reply_to = copying.reply_to();
        self.prepare(token, reply_to, Work::Copying(Box::new(copying)));
        Ok(())
    }

    fn submit_copied(&mut self, token: Token, pending: PendingSubmit) -> Result<(), Status> {
        let PendingSubmit { reply_to, model, mut request, form } = pending;
        // What was copied from a region that had lost something is not what its client sent.
        if let Some(Err(status)) = request.shared.as_ref().map(|shared| shared.check()) {
            request.withdraw();
            return Err(status);
        }
        request.share();
        self.submit(token, reply_to, model, request, form)
    }

    /// Copies the next portion, and submits the request after the last one: what its answer needs, and the outcome.
    pub fn copy_on(&mut self, key: u64, mut copying: Box<Copying>) -> Option<(Prepared, Result<(), Status>)> {
        let prepared = copying.prepared();
        let outcome = match copying.step(&self.pool, COPIED_AT_ONCE) {
            Ok(false) => {
                self.defer(key, Work::Copying(copying));
                return None;
            }
            Ok(true) => {
                self.hold_stream(prepared.reply_to, false);
                self.submit_copied(Token(key), copying.finish())
            }
            Err(status) => {
                self.hold_stream(prepared.reply_to, false);
                copying.withdraw();
                Err(status)
            }
        };
        Some((prepared, outcome))
    }

    /// Submits a request that has [many strings](has_many_strings). After a refusal the token is still valid.
    fn submit_strings(&mut self, token: Token, mut pending: PendingSubmit) -> Result<(), Status> {
        if let Err(status) = pending.model.check_but_strings(&mut pending.request) {
            pending.request.withdraw();
            return Err(status);
        }
        let reply_to = pending.reply_to;
        self.prepare(token, reply_to, Work::Checking(Box::new(Checking::new(pending))));
        Ok(())
    }

    /// Checks the next portion of strings, and submits the request after the last one: as [Calls::copy_on].
    pub fn check_on(&mut self, key: u64, mut checking: Box<Checking>) -> Option<(Prepared, Result<(), Status>)> {
        let prepared = checking.prepared();
        let outcome = match checking.step() {
            Ok(false) => {
                self.defer(key, Work::Checking(checking));
                return None;
            }
            Ok(true) => {
                self.hold_stream(prepared.reply_to, false);
                let PendingSubmit { reply_to, model, mut request, form } = checking.finish();
                request.ingress.is_checked = true;
                self.submit(Token(key), reply_to, model, request, form)
            }
            Err(status) => {
                self.hold_stream(prepared.reply_to, false);
                checking.withdraw();
                Err(status)
            }
        };
        Some((prepared, outcome))
    }
}

/// The refusal of a request beyond the part that its model, its connection or its client may have.
#[cold]
fn full(reason: RefusalReason, model: &ServedModel) -> Status {
    let text = match reason {
        RefusalReason::ModelMemory => {
            format!("the requests to model '{}' hold all the memory that they may", model.name)
        }
        RefusalReason::ModelCalls => format!("as many requests to model '{}' wait as one model may have", model.name),
        RefusalReason::ClientCalls => "as many requests of this client wait as one client may have".to_owned(),
        _ => "as many requests of this connection wait as one connection may have".to_owned(),
    };
    Status::refused(reason, text)
}
