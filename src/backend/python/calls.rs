//! Requests that a model makes to other models while it answers its own (contract/python_backend.md section 4).
//!
//! They are ordinary requests, handed in by whoever has the worker's message and answered by whoever brings the answer:
//! no thread waits for one. What goes back to the worker is written to the slot where the caller waits, a bounded
//! number of answers ahead of what it has taken; the callee's own bounds hold back the rest.
//!
//! Everything that goes wrong is an answer with an error: the model decides what becomes of it.

mod preference;
mod question;
mod reply;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::link::Link;
use super::marshal::{Malformed, Value};
use super::message::SLOTS_MAX;
use crate::backend::Host;
use nereid_gpu::Gpus;
use nereid_memory::{BlockMut, Exhausted, Pool};
use nereid_request::shared::Wish;
use nereid_request::{
    Asked, Callee, Credit, Delivery, Grant, Observer, Request, Response, Sink, Status, Text, never_waits,
};
use preference::Preference;
use question::Question;

/// Answers of a decoupled call that may wait in its slot; `kinds.py` has the same number.
const WINDOW: usize = 16;

/// The worker that calls, as its calls see it.
pub trait Caller: Send + Sync {
    fn link(&self) -> &Link;

    /// It has done what no worker does.
    fn kill(&self, reason: &str);

    /// Who watches a request that it has, by the request's token.
    fn observer(&self, token: u64) -> Option<Arc<dyn Observer>>;
}

/// The calls of one worker that are not over. See the [module](self).
pub struct Calls {
    host: Host,
    pool: Pool,
    gpus: Arc<Gpus>,
    table: Mutex<Table>,
    /// Of the execution under way: what its model calls may use what it holds.
    grant: Mutex<Option<Grant>>,
}

#[derive(Default)]
struct Table {
    calls: HashMap<u64, Arc<Call>>,
    /// The worker is gone, and what it said before is all the same.
    has_ended: bool,
}

impl Calls {
    pub fn new(host: Host, pool: Pool, gpus: Arc<Gpus>) -> Calls {
        Calls { host, pool, gpus, table: Mutex::default(), grant: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls from now on are made on behalf of this execution; `None`: of none.
    pub fn set_grant(&self, grant: Option<Grant>) {
        *self.grant.lock().unwrap_or_else(PoisonError::into_inner) = grant;
    }

    fn grant(&self) -> Option<Grant> {
        self.grant.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a call. Its answers go to its slot, which is told of everything that fails.
    pub fn begin(self: &Arc<Self>, caller: &Arc<dyn Caller>, values: &[Value<'_>]) -> Result<(), Malformed> {
        let question = Question::read(values)?;
        let call = Arc::new_cyclic(|this| Call {
            number: question.number,
            slot: question.slot,
            is_decoupled: question.is_decoupled,
            preference: Preference::new(question.preferred, &self.gpus),
            caller: Arc::clone(caller),
            calls: Arc::clone(self),
            state: Mutex::default(),
            put_off: AtomicUsize::new(0),
            this: Weak::clone(this),
        });
        {
            let mut table = self.table();
            // Each has a slot of its own, and numbers count up.
            if table.calls.len() >= SLOTS_MAX || table.calls.contains_key(&call.number) {
                return Err(Malformed::Form);
            }
            if table.has_ended {
                return Ok(());
            }
            table.calls.insert(call.number, Arc::clone(&call));
        }
        if let Err(status) = self.hand_in(&call, question) {
            call.deliver(0, Delivery { response: Some(Response::failed(Text::default(), status)), last: true });
        }
        Ok(())
    }

    fn hand_in(&self, call: &Arc<Call>, question: Question<'_>) -> Result<(), Status> {
        let model = question.model.clone();
        let failed = |status: Status| question::failed(&model, status);
        // First of all, because the memory of the inputs goes back with them.
        let inputs = question.inputs(call.caller.link(), &self.pool);
        let unavailable = || {
            let text = format!("Failed for execute the inference request. Model '{model}' is not ready.");
            failed(Status::internal(text))
        };
        let submit = self
            .host
            .submit()
            .ok_or_else(|| failed(Status::internal("An error occurred while performing BLS request.")))?;
        let callee = submit.find(question.model.as_bytes(), question.version).map_err(|_| unavailable())?;
        if callee.spec().decoupled && !question.is_decoupled {
            return Err(failed(question::callee_is_decoupled(&model)));
        }
        let (mut request, under_way) = callee.request(Arc::clone(call) as Arc<dyn Sink>);
        let filled =
            question.fill(&mut request, inputs).and_then(|()| self.complete(call, &question, &*callee, &mut request));
        if let Err(status) = filled {
            request.withdraw();
            return Err(failed(status));
        }
        {
            // Before it is out: it may be over soon.
            let mut state = call.state();
            if state.is_over {
                // The worker is gone.
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
        question: &Question<'_>,
        callee: &dyn Callee,
        request: &mut Request,
    ) -> Result<(), Status> {
        if question.is_decoupled {
            request.limit_responses(WINDOW as u32);
        }
        request.grant = self.grant();
        callee.check(request)?;
        let parent = question.trace.and_then(|token| call.caller.observer(token));
        request.observer = parent.and_then(|parent| parent.child()).map(nereid_request::Observation::new);
        Ok(())
    }

    fn find(&self, number: u64) -> Option<Arc<Call>> {
        self.table().calls.get(&number).cloned()
    }

    /// (call): its answers are not waited for. They go on until the last one.
    pub fn cancel(&self, values: &[Value<'_>]) -> Result<(), Malformed> {
        let [number] = values else { return Err(Malformed::Form) };
        if let Some(call) = self.find(number.as_int()?) {
            call.cancel();
        }
        Ok(())
    }

    /// (call, count): so many more answers were taken out of its slot.
    pub fn took(&self, values: &[Value<'_>]) -> Result<(), Malformed> {
        let [number, count] = values else { return Err(Malformed::Form) };
        let count: usize = count.as_int()?;
        if let Some(call) = self.find(number.as_int()?) {
            call.took(count);
        }
        Ok(())
    }

    /// (call): nobody takes its answers any more.
    pub fn drop_answers(&self, values: &[Value<'_>]) -> Result<(), Malformed> {
        let [number] = values else { return Err(Malformed::Form) };
        if let Some(call) = self.find(number.as_int()?) {
            call.drop_answers();
        }
        Ok(())
    }

    /// The worker is gone: its calls are called back, and what comes of them is thrown away.
    pub fn end(&self) {
        let calls = {
            let mut table = self.table();
            table.has_ended = true;
            std::mem::take(&mut table.calls)
        };
        calls.into_values().for_each(|call| call.abandon());
    }

    /// Calls that are not over.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.table().calls.len()
    }
}

/// One call, to which its callee's answers come.
struct Call {
    number: u64,
    slot: u32,
    is_decoupled: bool,
    /// Where outputs are wanted.
    preference: Preference,
    caller: Arc<dyn Caller>,
    calls: Arc<Calls>,
    state: Mutex<State>,
    /// Answers that another thread has, which may wait for a device.
    put_off: AtomicUsize,
    this: Weak<Call>,
}

#[derive(Default)]
struct State {
    /// Until the last answer is written: the request holds the call, to which its answers come.
    under_way: Option<Arc<dyn nereid_request::Call>>,
    /// What came and does not fit into the slot yet.
    waiting: VecDeque<Delivery>,
    /// Of what is in the slot and was not taken.
    ahead: VecDeque<Option<Credit>>,
    /// Answers are thrown away.
    is_dropped: bool,
    /// The last answer is written, or never will be.
    is_over: bool,
}

/// What a state no longer needs; dropped outside its lock, because others may be told.
#[derive(Default)]
struct Spent {
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
        let mut spent = Spent::default();
        let mut state = self.state();
        let count = count.min(state.ahead.len());
        spent.credits.extend(state.ahead.drain(..count));
        self.flush(&mut state, &mut spent);
        drop(state);
        drop(spent);
    }

    fn drop_answers(&self) {
        let mut spent = Spent::default();
        let mut state = self.state();
        state.is_dropped = true;
        spent.credits.extend(state.ahead.drain(..));
        spent.deliveries = std::mem::take(&mut state.waiting);
        if spent.deliveries.iter().any(|delivery| delivery.last) {
            self.write(&mut state, &mut spent, None, true);
        }
        drop(state);
        drop(spent);
    }

    fn abandon(&self) {
        let mut spent = Spent::default();
        let mut state = self.state();
        (state.is_dropped, state.is_over) = (true, true);
        spent.credits.extend(state.ahead.drain(..));
        spent.deliveries = std::mem::take(&mut state.waiting);
        spent.under_way = state.under_way.take();
        drop(state);
        if let Some(under_way) = &spent.under_way {
            under_way.cancel();
        }
        drop(spent);
    }

    /// Writes what there is room for.
    fn flush(&self, state: &mut State, spent: &mut Spent) {
        while !state.is_over
            && state.ahead.len() < WINDOW
            && let Some(Delivery { mut response, last }) = state.waiting.pop_front()
        {
            let credit = response.as_mut().and_then(|response| response.credit.take());
            state.ahead.push_back(credit);
            self.write(state, spent, response, last);
        }
    }

    /// Under the lock, which keeps the order.
    fn write(&self, state: &mut State, spent: &mut Spent, response: Option<Response>, last: bool) {
        if last {
            state.is_over = true;
            spent.under_way = state.under_way.take();
            self.calls.table().calls.remove(&self.number);
        }
        let to = reply::Slot { caller: &*self.caller, number: self.slot, is_windowed: self.is_decoupled };
        reply::write(&to, response, last, &self.preference);
    }

    /// A caller that reads one answer gets exactly one.
    fn deliver_only(&self, response: Option<Response>) {
        let response = response
            .unwrap_or_else(|| Response::failed(Text::default(), Status::internal("Unexpected empty response.")));
        let mut spent = Spent::default();
        let mut state = self.state();
        if !state.is_over {
            self.write(&mut state, &mut spent, Some(response), true);
        }
        drop(state);
        drop(spent);
    }
}

impl Call {
    fn deliver_here(&self, delivery: Delivery) {
        if !self.is_decoupled {
            return self.deliver_only(delivery.response);
        }
        let mut spent = Spent::default();
        let mut state = self.state();
        match (state.is_over, state.is_dropped) {
            (true, _) => spent.deliveries.push_back(delivery),
            (false, true) => {
                if delivery.last {
                    self.write(&mut state, &mut spent, None, true);
                }
                spent.deliveries.push_back(delivery);
            }
            (false, false) => {
                state.waiting.push_back(delivery);
                self.flush(&mut state, &mut spent);
            }
        }
        drop(state);
        drop(spent);
    }
}

impl Sink for Call {
    /// On a thread that must not wait, what has to do with a device is left to another one, and what comes then goes
    /// the same way.
    fn deliver(&self, _key: u64, delivery: Delivery) {
        let response = delivery.response.as_ref();
        // Of a decoupled call other threads write as well, under a lock.
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

    fn wish(&self, _key: u64, _asked: &Asked<'_>) -> Result<Wish, Status> {
        Ok(self.preference.wish())
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.calls.pool.get(byte_size)
    }
}

#[cfg(test)]
mod tests;
