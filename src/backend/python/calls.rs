//! Requests that a model makes to other models while it answers its own (contract/python_backend.md section 4).
//!
//! They are ordinary requests. The thread that handles the worker's message submits one, and the thread that delivers
//! its response answers it; no thread waits in between. Responses are written to the slot on which the caller waits, a
//! bounded number ahead of those that it has taken; the callee's own bounds hold back the rest.
//!
//! Every failure is a response with an error: the calling model decides how to handle it.

mod call_request;
mod preference;
mod reply;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::link::Link;
use super::marshal::{Malformed, Value};
use super::message::SLOTS_MAX;
use crate::Host;
use call_request::CallRequest;
use nereid_gpu::Gpus;
use nereid_memory::{BlockMut, Exhausted, Pool};
use nereid_request::shared::OutputDestination;
use nereid_request::{
    Callee, Credit, Delivery, Grant, Observer, OutputQuery, Request, Response, Sink, Status, Text, never_waits,
};
use preference::Preference;

/// Responses of a decoupled call that may wait in its slot; `kinds.py` has the same number.
const WINDOW: usize = 16;

/// The worker that calls, as its calls use it.
pub trait Caller: Send + Sync {
    fn link(&self) -> &Link;

    /// Kills the worker, after a message that a correct worker does not send.
    fn kill(&self, reason: &str);

    /// The observer of a request that the worker has, by the request's token.
    fn observer(&self, token: u64) -> Option<Arc<dyn Observer>>;
}

/// The calls of one worker that have not ended. See the [module](self).
pub struct Calls {
    host: Host,
    pool: Pool,
    gpus: Arc<Gpus>,
    table: Mutex<Table>,
    /// The resource grant of the execution under way, which its calls may use.
    grant: Mutex<Option<Grant>>,
}

#[derive(Default)]
struct Table {
    calls: HashMap<u64, Arc<Call>>,
    /// Whether the worker has ended; its earlier messages are then ignored.
    has_ended: bool,
}

impl Calls {
    pub fn new(host: Host, pool: Pool, gpus: Arc<Gpus>) -> Calls {
        Calls { host, pool, gpus, table: Mutex::default(), grant: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the execution on behalf of which further calls are made; `None`: none.
    pub fn set_grant(&self, grant: Option<Grant>) {
        *self.grant.lock().unwrap_or_else(PoisonError::into_inner) = grant;
    }

    fn grant(&self) -> Option<Grant> {
        self.grant.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a call. Its responses and errors are written to its slot.
    pub fn begin(self: &Arc<Self>, caller: &Arc<dyn Caller>, values: &[Value<'_>]) -> Result<(), Malformed> {
        let call_request = CallRequest::read(values)?;
        let call = Arc::new_cyclic(|this| Call {
            number: call_request.number,
            slot: call_request.slot,
            is_decoupled: call_request.is_decoupled,
            preference: Preference::new(call_request.preferred, &self.gpus),
            caller: Arc::clone(caller),
            calls: Arc::clone(self),
            state: Mutex::default(),
            put_off: AtomicUsize::new(0),
            this: Weak::clone(this),
        });
        {
            let mut table = self.table();
            // Each call has a slot of its own, and numbers increase.
            if table.calls.len() >= SLOTS_MAX || table.calls.contains_key(&call.number) {
                return Err(Malformed::Form);
            }
            if table.has_ended {
                return Ok(());
            }
            table.calls.insert(call.number, Arc::clone(&call));
        }
        if let Err(status) = self.submit_call(&call, call_request) {
            call.deliver(0, Delivery { response: Some(Response::failed(Text::default(), status)), last: true });
        }
        Ok(())
    }

    fn submit_call(&self, call: &Arc<Call>, call_request: CallRequest<'_>) -> Result<(), Status> {
        let model = call_request.model.clone();
        let failed = |status: Status| call_request::failed(&model, status);
        // First, because dropping the inputs releases their memory.
        let inputs = call_request.inputs(call.caller.link(), &self.pool);
        let unavailable = || {
            let text = format!("Failed for execute the inference request. Model '{model}' is not ready.");
            failed(Status::internal(text))
        };
        let submit = self
            .host
            .submit()
            .ok_or_else(|| failed(Status::internal("An error occurred while performing BLS request.")))?;
        let callee = submit.find(call_request.model.as_bytes(), call_request.version).map_err(|_| unavailable())?;
        if callee.spec().decoupled && !call_request.is_decoupled {
            return Err(failed(call_request::callee_is_decoupled(&model)));
        }
        let (mut request, under_way) = callee.request(Arc::clone(call) as Arc<dyn Sink>);
        let filled = call_request
            .fill(&mut request, inputs)
            .and_then(|()| self.complete(call, &call_request, &*callee, &mut request));
        if let Err(status) = filled {
            request.withdraw();
            return Err(failed(status));
        }
        {
            // Before the submission: the call may end soon.
            let mut state = call.state();
            if state.is_over {
                // The worker has ended.
                drop(state);
                request.withdraw();
                return Ok(());
            }
            state.under_way = Some(Arc::clone(&under_way));
        }
        under_way.submit(request).map_err(|(status, request)| {
            request.withdraw();
            failed(status)
        })
    }

    fn complete(
        &self,
        call: &Call,
        call_request: &CallRequest<'_>,
        callee: &dyn Callee,
        request: &mut Request,
    ) -> Result<(), Status> {
        if call_request.is_decoupled {
            request.limit_responses(WINDOW as u32);
        }
        request.links.grant = self.grant();
        callee.check(request)?;
        let parent = call_request.trace.and_then(|token| call.caller.observer(token));
        request.observer = parent.and_then(|parent| parent.child()).map(nereid_request::Observation::new);
        Ok(())
    }

    fn find(&self, number: u64) -> Option<Arc<Call>> {
        self.table().calls.get(&number).cloned()
    }

    /// (call): cancels it. Responses continue until the last one.
    pub fn cancel(&self, values: &[Value<'_>]) -> Result<(), Malformed> {
        let [number] = values else { return Err(Malformed::Form) };
        if let Some(call) = self.find(number.as_int()?) {
            call.cancel();
        }
        Ok(())
    }

    /// (call, count): the worker has taken that many more responses out of its slot.
    pub fn took(&self, values: &[Value<'_>]) -> Result<(), Malformed> {
        let [number, count] = values else { return Err(Malformed::Form) };
        let count: usize = count.as_int()?;
        if let Some(call) = self.find(number.as_int()?) {
            call.took(count);
        }
        Ok(())
    }

    /// (call): the worker takes no more responses of it.
    pub fn drop_answers(&self, values: &[Value<'_>]) -> Result<(), Malformed> {
        let [number] = values else { return Err(Malformed::Form) };
        if let Some(call) = self.find(number.as_int()?) {
            call.drop_answers();
        }
        Ok(())
    }

    /// The worker has ended: cancels its calls and drops their responses.
    pub fn end(&self) {
        let calls = {
            let mut table = self.table();
            table.has_ended = true;
            std::mem::take(&mut table.calls)
        };
        calls.into_values().for_each(|call| call.abandon());
    }

    /// The number of calls that have not ended.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.table().calls.len()
    }
}

/// One call, the receiver of its callee's responses.
struct Call {
    number: u64,
    slot: u32,
    is_decoupled: bool,
    /// The preferred place of outputs.
    preference: Preference,
    caller: Arc<dyn Caller>,
    calls: Arc<Calls>,
    state: Mutex<State>,
    /// Responses that are deferred to another thread, which may wait for a device.
    put_off: AtomicUsize,
    this: Weak<Call>,
}

#[derive(Default)]
struct State {
    /// Set until the last response is written. The request in turn holds this value, the receiver of its responses.
    under_way: Option<Arc<dyn nereid_request::Call>>,
    /// Responses that do not fit into the slot yet.
    waiting: VecDeque<Delivery>,
    /// The credits of the responses in the slot that were not taken.
    ahead: VecDeque<Option<Credit>>,
    /// Whether responses are dropped.
    is_dropped: bool,
    /// Whether the last response was written, or never will be.
    is_over: bool,
}

/// Values that a state no longer needs; dropped outside its lock, because the drops may call other code.
#[derive(Default)]
struct Discarded {
    under_way: Option<Arc<dyn nereid_request::Call>>,
    credits: Vec<Option<Credit>>,
    deliveries: VecDeque<Delivery>,
}

impl Call {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancel(&self) {
        let under_way = self.state().under_way.clone();
        if let Some(under_way) = under_way {
            under_way.cancel();
        }
    }

    fn took(&self, count: usize) {
        let mut discarded = Discarded::default();
        let mut state = self.state();
        let count = count.min(state.ahead.len());
        discarded.credits.extend(state.ahead.drain(..count));
        self.flush(&mut state, &mut discarded);
        drop(state);
        drop(discarded);
    }

    fn drop_answers(&self) {
        let mut discarded = Discarded::default();
        let mut state = self.state();
        state.is_dropped = true;
        discarded.credits.extend(state.ahead.drain(..));
        discarded.deliveries = std::mem::take(&mut state.waiting);
        if discarded.deliveries.iter().any(|delivery| delivery.last) {
            self.write(&mut state, &mut discarded, None, true);
        }
        drop(state);
        drop(discarded);
    }

    fn abandon(&self) {
        let mut discarded = Discarded::default();
        let mut state = self.state();
        (state.is_dropped, state.is_over) = (true, true);
        discarded.credits.extend(state.ahead.drain(..));
        discarded.deliveries = std::mem::take(&mut state.waiting);
        discarded.under_way = state.under_way.take();
        drop(state);
        if let Some(under_way) = &discarded.under_way {
            under_way.cancel();
        }
        drop(discarded);
    }

    /// Writes the responses that the window has room for.
    fn flush(&self, state: &mut State, discarded: &mut Discarded) {
        while !state.is_over
            && state.ahead.len() < WINDOW
            && let Some(Delivery { mut response, last }) = state.waiting.pop_front()
        {
            let credit = response.as_mut().and_then(|response| response.credit.take());
            state.ahead.push_back(credit);
            self.write(state, discarded, response, last);
        }
    }

    /// Called under the lock, which keeps the order.
    fn write(&self, state: &mut State, discarded: &mut Discarded, response: Option<Response>, last: bool) {
        if last {
            state.is_over = true;
            discarded.under_way = state.under_way.take();
            self.calls.table().calls.remove(&self.number);
        }
        let to = reply::Slot { caller: &*self.caller, number: self.slot, is_windowed: self.is_decoupled };
        reply::write(&to, response, last, &self.preference);
    }

    /// A caller that reads one answer gets exactly one.
    fn deliver_only(&self, response: Option<Response>) {
        let response = response
            .unwrap_or_else(|| Response::failed(Text::default(), Status::internal("Unexpected empty response.")));
        let mut discarded = Discarded::default();
        let mut state = self.state();
        if !state.is_over {
            self.write(&mut state, &mut discarded, Some(response), true);
        }
        drop(state);
        drop(discarded);
    }
}

impl Call {
    fn deliver_here(&self, delivery: Delivery) {
        if !self.is_decoupled {
            return self.deliver_only(delivery.response);
        }
        let mut discarded = Discarded::default();
        let mut state = self.state();
        match (state.is_over, state.is_dropped) {
            (true, _) => discarded.deliveries.push_back(delivery),
            (false, true) => {
                if delivery.last {
                    self.write(&mut state, &mut discarded, None, true);
                }
                discarded.deliveries.push_back(delivery);
            }
            (false, false) => {
                state.waiting.push_back(delivery);
                self.flush(&mut state, &mut discarded);
            }
        }
        drop(state);
        drop(discarded);
    }
}

impl Sink for Call {
    /// On a thread that must not wait, a response that needs a device is deferred to another thread, and the responses
    /// after it too.
    fn deliver(&self, _key: u64, delivery: Delivery) {
        let response = delivery.response.as_ref();
        // For a decoupled call other threads write as well, under a lock.
        let waits = (self.is_decoupled && self.preference.is_of_devices())
            || response.is_some_and(|response| self.preference.waits_for_device(response));
        if !(waits && never_waits()) && self.put_off.load(Ordering::Acquire) == 0 {
            return self.deliver_here(delivery);
        }
        let Some(this) = self.this.upgrade() else { return };
        self.put_off.fetch_add(1, Ordering::AcqRel);
        nereid_gpu::run_in_background(move || {
            this.deliver_here(delivery);
            this.put_off.fetch_sub(1, Ordering::AcqRel);
        });
    }

    fn destination(&self, _key: u64, _query: &OutputQuery<'_>) -> Result<OutputDestination, Status> {
        Ok(self.preference.destination())
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.calls.pool.get(byte_size)
    }
}

#[cfg(test)]
mod tests;
