//! Requests from inside the process on their way to a model and back.
//!
//! A request is handed to the model's scheduler on its sender's thread, as a shard does it for a client. Its expiry,
//! its cancellation and the steps of ensembles run on the server's [`InprocExecutor`], its home. Answers are passed on
//! by the thread that delivers them, because they end in user code; only answers from a shard go to the executor first,
//! and all later ones then go the same way, which keeps their order.

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::access::Access;
use super::inproc_executor::{InprocExecutor, TimerKey};
use crate::repository::next_steps;
use nereid_clock::now_ns;
use nereid_gpu::Gpus;
use nereid_memory::{BlockMut, Exhausted, Pool, Target};
use nereid_model_config::ModelSpec;
use nereid_request::shared::OutputDestination;
use nereid_request::{
    Call, Callee, Completion, Delivery, Job, OutputQuery, Place, Request, ResponseFactory, Sink, Status, Submit,
    Ticket, never_waits,
};
use nereid_scheduler::{Accepted, Refused, ServedModel, next_step};

impl Submit for Access {
    fn find(&self, model: &[u8], version: i64) -> Result<Arc<dyn Callee>, Status> {
        let lifecycle = self.lifecycle()?;
        let mut map = lifecycle.map();
        // Only -1 means any version, and no model has a version below 0.
        let version = (version != -1).then_some(version);
        let mut found = map.lookup(model, version);
        if let (Err(_), Some(demand)) = (&found, lifecycle.demand()) {
            demand.wait_here(model, &mut || lifecycle.map().is_absent(model))?;
            map = lifecycle.map();
            found = map.lookup(model, version);
        }
        let found = found.inspect_err(|_| next_step::log(|| next_steps::of_request(&map, model, version)));
        let model = Arc::clone(found?);
        let name = CString::new(model.name.as_bytes()).unwrap_or_default();
        let (executor, pool, gpus) = (Arc::clone(self.executor()), self.pool()?.clone(), self.gpus());
        Ok(Arc::new(InprocCallee(Arc::new(ChosenModel { name, pin: ModelPin::of(model), executor, pool, gpus }))))
    }
}

/// A model version that a caller has looked up.
struct InprocCallee(Arc<ChosenModel>);

struct ChosenModel {
    name: CString,
    pin: ModelPin,
    executor: Arc<InprocExecutor>,
    pool: Pool,
    gpus: Arc<Gpus>,
}

/// Keeps a model without a request to it: the server's end does not wait for a pin.
struct ModelPin(Arc<ServedModel>);

impl ModelPin {
    fn of(model: Arc<ServedModel>) -> ModelPin {
        model.pins.fetch_add(1, Ordering::SeqCst);
        ModelPin(model)
    }
}

impl Drop for ModelPin {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Callee for InprocCallee {
    fn name(&self) -> &CStr {
        &self.0.name
    }

    fn version(&self) -> i64 {
        self.0.pin.0.version
    }

    fn spec(&self) -> &ModelSpec {
        &self.0.pin.0.spec
    }

    fn label(&self, output: &[u8], class: usize) -> Option<&[u8]> {
        self.0.pin.0.labels.get(std::str::from_utf8(output).ok()?)?.get(class)
    }

    fn gpus(&self) -> Option<&Gpus> {
        Some(&*self.0.gpus).filter(|gpus| gpus.is_supported())
    }

    fn request(&self, answers: Arc<dyn Sink>) -> (Box<Request>, Arc<dyn Call>) {
        let submission = Arc::new_cyclic(|me| Submission {
            me: Weak::clone(me),
            chosen: Arc::clone(&self.0),
            answers,
            state: Mutex::default(),
            is_cancelled: AtomicBool::new(false),
            posted_answers: AtomicUsize::new(0),
        });
        let mut request = Request::new(Completion::new(Arc::clone(&submission) as Arc<dyn Sink>, 0));
        request.stamps.received_ns = now_ns();
        (Box::new(request), submission)
    }

    fn check(&self, request: &mut Request) -> Result<(), Status> {
        self.0.pin.0.check(request)
    }
}

/// One in-process request: the receiver of its answers, and what its cancellation needs.
struct Submission {
    me: Weak<Submission>,
    chosen: Arc<ChosenModel>,
    answers: Arc<dyn Sink>,
    state: Mutex<SubmissionState>,
    is_cancelled: AtomicBool,
    /// Answers that are posted to the executor.
    posted_answers: AtomicUsize,
}

#[derive(Default)]
struct SubmissionState {
    /// From its acceptance to its end.
    ticket: Option<Arc<Ticket>>,
    expiry: Option<TimerKey>,
    /// While it is under way: the server's end waits for it.
    under_way: Option<Arc<ServedModel>>,
    has_ended: bool,
}

impl Submission {
    fn state(&self) -> MutexGuard<'_, SubmissionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn model(&self) -> &Arc<ServedModel> {
        &self.chosen.pin.0
    }

    fn executor(&self) -> &InprocExecutor {
        &self.chosen.executor
    }

    fn ticket(&self) -> Option<Arc<Ticket>> {
        self.state().ticket.clone()
    }

    /// Records that the scheduler has taken the request, which may be answered already.
    fn accepted(&self, ticket: Ticket, expires_at_ns: Option<u64>) {
        let mut state = self.state();
        if state.has_ended {
            return drop(state);
        }
        state.ticket = Some(Arc::new(ticket));
        if let Some(at_ns) = expires_at_ns {
            let me = Weak::clone(&self.me);
            let expire = move |home: &mut dyn nereid_request::Home| {
                if let Some(me) = me.upgrade()
                    && let Some(ticket) = me.ticket()
                {
                    home.wake(me.model().scheduler.expire(&ticket));
                }
            };
            state.expiry = Some(self.executor().time(at_ns, Box::new(expire)));
        }
        drop(state);
        if self.is_cancelled() {
            self.call_off();
        }
    }

    /// Records that the last answer has come.
    fn ended(&self) {
        let (ticket, expiry, under_way) = {
            let mut state = self.state();
            state.has_ended = true;
            (state.ticket.take(), state.expiry.take(), state.under_way.take())
        };
        if let Some(key) = expiry {
            self.executor().forget(key);
        }
        drop((ticket, under_way));
    }

    /// A worker that takes the request from now on sees that nobody waits for it, however late the executor comes to
    /// cancel it in its queue.
    fn call_off(&self) {
        if let Some(ticket) = self.ticket() {
            ticket.admission().call_off();
        }
        self.post_cancellation();
    }

    /// On the executor, because the thread that wins answers at once, in user code that may need a lock that the caller
    /// holds now.
    fn post_cancellation(&self) {
        let me = Weak::clone(&self.me);
        self.executor().post(Box::new(move |home: &mut dyn nereid_request::Home| {
            if let Some(me) = me.upgrade()
                && let Some(ticket) = me.ticket()
            {
                home.wake(me.model().scheduler.cancel(&ticket));
            }
        }));
    }

    /// True on a shard's thread, which must not run user code.
    fn is_on_shard(&self) -> bool {
        never_waits() && !self.executor().is_here()
    }
}

impl Call for Submission {
    fn responses(&self) -> ResponseFactory {
        self.ticket().map_or_else(ResponseFactory::discarding, |ticket| ticket.responses())
    }

    fn submit(&self, request: Box<Request>) -> Result<(), (Status, Box<Request>)> {
        self.state().under_way = Some(Arc::clone(self.model()));
        // Set before the scheduler gets the request, however soon it is executed.
        if self.is_cancelled() {
            request.admission().call_off();
        }
        match self.model().accept(request) {
            Ok(Accepted { wake_up, ticket, expires_at_ns }) => {
                wake_up.now();
                self.accepted(ticket, expires_at_ns);
                Ok(())
            }
            Err(Refused { status, request }) => {
                self.state().under_way = None;
                Err((status, request))
            }
        }
    }

    fn cancel(&self) {
        if !self.is_cancelled.swap(true, Ordering::SeqCst) {
            self.call_off();
        }
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::SeqCst)
    }

    fn run_foreign(&self, job: Box<dyn FnOnce() + Send>, is_fine_here: bool) {
        match self.executor().is_here() || (is_fine_here && !never_waits()) {
            true => job(),
            false => self.executor().post(Box::new(move |_: &mut dyn nereid_request::Home| job())),
        }
    }
}

impl Sink for Submission {
    fn deliver(&self, _key: u64, delivery: Delivery) {
        if delivery.last {
            self.ended();
        }
        if self.posted_answers.load(Ordering::Acquire) == 0 && !self.is_on_shard() {
            return self.answers.deliver(0, delivery);
        }
        let Some(me) = self.me.upgrade() else { return };
        self.posted_answers.fetch_add(1, Ordering::AcqRel);
        self.executor().post(Box::new(move |_: &mut dyn nereid_request::Home| {
            me.answers.deliver(0, delivery);
            me.posted_answers.fetch_sub(1, Ordering::AcqRel);
        }));
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.chosen.pool.get(byte_size)
    }

    fn allocate_output(&self, _key: u64, query: &OutputQuery<'_>) -> Result<Option<Target>, Status> {
        match self.is_on_shard() {
            true => Ok(None),
            false => self.answers.allocate_output(0, query),
        }
    }

    fn destination(&self, _key: u64, query: &OutputQuery<'_>) -> Result<OutputDestination, Status> {
        match self.is_on_shard() {
            true => Ok(OutputDestination::OnHost),
            false => self.answers.destination(0, query),
        }
    }

    fn begin(&self, _key: u64) -> bool {
        !self.is_on_shard() && self.answers.begin(0)
    }

    fn preferred_place(&self, _key: u64, query: (Option<&CStr>, Option<usize>), place: Place) -> Result<Place, Status> {
        self.answers.preferred_place(0, query, place)
    }

    fn at_home(&self, job: Box<dyn Job>) {
        self.executor().post(job);
    }
}

#[cfg(test)]
mod tests;
