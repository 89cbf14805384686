//! The address of a request's answers, and the sinks behind it.

use std::ffi::CStr;
use std::sync::{Arc, OnceLock};

use super::credit::Attempt;
use super::mutants::{self, Mutant};
use super::shared::OutputDestination;
use super::{Admission, Home, Job, RequestEvents, WakeUp, credit, local_delivery};
use crate::{Place, Response, Status, Text};
use nereid_memory::{BlockMut, Exhausted, Target};

/// One step towards the end of a request: a response, or only the end.
#[derive(Debug)]
pub struct Delivery {
    pub response: Option<Response>,
    /// Nothing follows.
    pub last: bool,
}

/// An output that a backend is about to write.
#[derive(Debug, Clone, Copy)]
pub struct OutputQuery<'a> {
    pub name: &'a [u8],
    pub byte_size: usize,
    /// Where its writer prefers it.
    pub place: Place,
    /// The sink was called when its response was begun.
    pub is_begun: bool,
    /// The memory must be aligned for numbers of any size. Without that the output is written elsewhere and copied.
    pub is_aligned: bool,
}

/// Where answers go: the mailbox of a shard, a callback of an in-process caller, the next step of an ensemble.
pub trait Sink: Send + Sync {
    /// Takes an answer of the request that was submitted under `key`. Cannot fail and does not block.
    fn deliver(&self, key: u64, delivery: Delivery);

    /// Memory for `byte_size` bytes of an output of that request: where they end up if that is possible.
    fn allocate(&self, key: u64, byte_size: usize) -> Result<BlockMut, Exhausted>;

    /// The memory where an output of that request ends up, if the receiver provides it; `None`: any memory will do.
    fn allocate_output(&self, _key: u64, _query: &OutputQuery<'_>) -> Result<Option<Target>, Status> {
        Ok(None)
    }

    /// Where an output of that request is wanted that is computed on a device. Only a sink that returns another place
    /// than the host gets answers that lie on a device.
    fn destination(&self, _key: u64, _query: &OutputQuery<'_>) -> Result<OutputDestination, Status> {
        Ok(OutputDestination::OnHost)
    }

    /// A response of that request is begun. True: the request's sender was notified, and needs no notification when the
    /// response is delivered.
    fn begin(&self, _key: u64) -> bool {
        false
    }

    /// Where an output of that request is best written. `_query` is its name and its size, where they are known.
    fn preferred_place(
        &self,
        _key: u64,
        _query: (Option<&CStr>, Option<usize>),
        _place: Place,
    ) -> Result<Place, Status> {
        Ok(Place::default())
    }

    /// Whether this is the sink of a shard, which takes the answers that were put aside (see [`local_delivery`]).
    fn takes_what_was_put_aside(&self) -> bool {
        false
    }

    /// Runs `job` where the request is at home; without a home, on this thread before it returns.
    fn at_home(&self, job: Box<dyn Job>) {
        job.run(&mut Homeless);
    }
}

/// The home of a request without a shard: the thread that has the job.
struct Homeless;

impl Home for Homeless {
    fn wake(&mut self, wake_up: WakeUp) {
        wake_up.now();
    }

    /// No timers are kept here.
    fn run_at(&mut self, _at_ns: u64, _job: Box<dyn Job>) {}
}

/// The address of one request's answers.
#[derive(Clone)]
pub struct Completion {
    sink: Arc<dyn Sink>,
    key: u64,
    pub(crate) admission: Arc<Admission>,
}

impl Completion {
    pub fn new(sink: Arc<dyn Sink>, key: u64) -> Completion {
        Completion { sink, key, admission: Arc::new(Admission::default()) }
    }

    /// Another address for the answers of the same request.
    pub(crate) fn sharing(sink: Arc<dyn Sink>, key: u64, admission: Arc<Admission>) -> Completion {
        Completion { sink, key, admission }
    }

    pub(crate) fn executes_at_home(&self) -> Option<local_delivery::Execution> {
        self.sink.takes_what_was_put_aside().then(|| local_delivery::Execution::of(&self.sink, self.key))
    }

    /// Passes an answer on that came to a sink put in between (see [`Request::reroute`](crate::Request::reroute)).
    pub fn forward(&self, delivery: Delivery) {
        self.hand_over(delivery);
    }

    #[inline]
    fn hand_over(&self, delivery: Delivery) {
        if let Some(delivery) = local_delivery::put_aside(&self.sink, self.key, delivery) {
            self.sink.deliver(self.key, delivery);
        }
    }

    pub(super) fn into_admission(self) -> Arc<Admission> {
        self.admission
    }

    /// Memory for `byte_size` bytes of an output.
    pub fn allocate(&self, byte_size: usize) -> Result<BlockMut, Exhausted> {
        self.sink.allocate(self.key, byte_size)
    }

    /// The memory where an output ends up, as [`Sink::allocate_output`].
    pub fn allocate_in_place(&self, query: &OutputQuery<'_>) -> Result<Option<Target>, Status> {
        self.sink.allocate_output(self.key, query)
    }

    /// Where the receiver wants an output, as [`Sink::destination`].
    pub fn receiver_destination(&self, query: &OutputQuery<'_>) -> Result<OutputDestination, Status> {
        self.sink.destination(self.key, query)
    }

    /// See [`Sink::begin`].
    pub fn begin(&self) -> bool {
        self.sink.begin(self.key)
    }

    /// See [`Sink::preferred_place`].
    pub fn preferred_place(&self, query: (Option<&CStr>, Option<usize>), place: Place) -> Result<Place, Status> {
        self.sink.preferred_place(self.key, query, place)
    }

    /// Runs `job` where the request is at home.
    pub fn at_home(&self, job: Box<dyn Job>) {
        self.sink.at_home(job);
    }

    pub(crate) fn deliver(&self, response: Option<Response>, last: bool) {
        // A response is large: it is built in place and not moved.
        let mut delivery = Delivery { response, last };
        if let Some(response) = &mut delivery.response {
            // Waits for the credit that the response needs.
            match credit::take(&self.admission, response, last) {
                Ok(None) => {}
                Ok(credit) => response.credit = credit,
                Err(credit::Unwanted) if !last => return,
                Err(credit::Unwanted) => delivery.response = None,
            }
        }
        self.dispatch(delivery);
    }

    /// As `deliver`, but does not wait: where there is no room, the delivery is returned.
    pub(super) fn try_deliver(&self, mut delivery: Delivery, room: (&Arc<dyn RequestEvents>, u64)) -> Option<Delivery> {
        if let Some(response) = &mut delivery.response {
            match credit::attempt(&self.admission, response, delivery.last, room) {
                Attempt::Free => {}
                Attempt::Paid(credit) => response.credit = Some(credit),
                Attempt::Full => return Some(delivery),
                Attempt::Unwanted if !delivery.last => return None,
                Attempt::Unwanted => delivery.response = None,
            }
        }
        self.dispatch(delivery);
        None
    }

    /// Sends a delivery that needs no credit, or has one.
    #[inline]
    fn dispatch(&self, mut delivery: Delivery) {
        let last = delivery.last;
        let open = if last { self.admission.end() } else { !self.admission.has_ended() };
        if open {
            if delivery.response.is_some() {
                self.admission.responded();
            }
            delivery.last = last && !mutants::is(Mutant::FinalLost);
            match self.admission.shared.get() {
                None => self.hand_over(delivery),
                Some(shared) => self.settle(shared, delivery),
            }
        }
    }

    /// A holder is dropped: the last one answers with an error if nothing else ended the request.
    fn let_go(&self) {
        if self.admission.let_go() {
            self.admission.responded();
            let status = Status::internal("the model ended the request without a final response");
            let response = Some(Response::failed(Text::default(), status));
            self.sink.deliver(self.key, Delivery { response, last: true });
        }
    }
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Completion({:#x})", self.key)
    }
}

/// Owned by a request or a response factory: counts it as one that can still answer.
///
/// The default belongs to no request: to a `Request` that is over or has not begun.
#[derive(Debug, Default)]
pub(crate) struct Holder(Option<Completion>);

/// Drops answers: the sink of a holder without a request.
struct DiscardingSink;

impl Sink for DiscardingSink {
    fn deliver(&self, _key: u64, _delivery: Delivery) {}

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        BlockMut::try_unpooled(byte_size)
    }
}

#[cold]
fn discarding_completion() -> &'static Completion {
    static DISCARDING: OnceLock<Completion> = OnceLock::new();
    DISCARDING.get_or_init(|| Completion::new(Arc::new(DiscardingSink), 0))
}

impl Holder {
    pub(crate) fn new(completion: Completion) -> Holder {
        completion.admission.hold();
        Holder(Some(completion))
    }
}

impl std::ops::Deref for Holder {
    type Target = Completion;

    #[inline]
    fn deref(&self) -> &Completion {
        self.0.as_ref().unwrap_or_else(|| discarding_completion())
    }
}

impl Drop for Holder {
    #[inline]
    fn drop(&mut self) {
        if let Some(completion) = &self.0 {
            completion.let_go();
        }
    }
}

/// Sends the responses of one request, from any thread, also after the request was released.
#[derive(Debug)]
pub struct ResponseFactory(Holder);

impl Clone for ResponseFactory {
    fn clone(&self) -> ResponseFactory {
        ResponseFactory::new(Completion::clone(&self.0))
    }
}

impl ResponseFactory {
    pub(crate) fn new(completion: Completion) -> ResponseFactory {
        ResponseFactory(Holder::new(completion))
    }

    /// A factory whose responses are dropped.
    pub fn discarding() -> ResponseFactory {
        ResponseFactory(Holder::default())
    }

    /// Sends `response`; with `last` nothing may follow, and what follows is dropped.
    pub fn send(&self, response: Response, last: bool) {
        self.0.deliver(Some(response), last);
    }

    /// Ends the request without another response.
    pub fn send_end(&self) {
        self.0.deliver(None, true);
    }

    /// Begins a response, for which memory will be requested next.
    pub fn begin(&self, id: Text) -> Response {
        let mut response = Response::new(id);
        response.is_begun = self.0.begin();
        response
    }

    pub(super) fn completion(&self) -> &Completion {
        &self.0
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.admission.is_cancelled()
    }

    /// The index of the next response of which statistics are reported, from 0.
    pub fn next_report(&self) -> u64 {
        self.0.admission.next_report()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::Request;

    #[derive(Default)]
    struct Collected(Mutex<Vec<(u64, Delivery)>>);

    impl Sink for Collected {
        fn deliver(&self, key: u64, delivery: Delivery) {
            self.0.lock().unwrap().push((key, delivery));
        }

        fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
            BlockMut::try_unpooled(byte_size)
        }
    }

    #[test]
    fn what_follows_the_last_response_is_dropped() {
        let sink = Arc::new(Collected::default());
        let request = Request::new(Completion::new(sink.clone(), 7));
        request.finish(Response::new(Text::from("a")));
        request.finish(Response::new(Text::from("b")));
        drop(request);
        let got = sink.0.lock().unwrap();
        assert_eq!(got.len(), 1);
        assert!(got[0].0 == 7 && got[0].1.last);
    }

    #[test]
    fn a_dropped_request_is_answered_unless_a_factory_lives() {
        let sink = Arc::new(Collected::default());
        let request = Request::new(Completion::new(sink.clone(), 1));
        let factory = request.responses();
        drop(request);
        assert!(sink.0.lock().unwrap().is_empty());
        drop(factory);
        let got = sink.0.lock().unwrap();
        assert!(got.len() == 1 && got[0].1.last);
        assert!(got[0].1.response.as_ref().unwrap().error.is_some());
    }

    /// A worker may drop the tombstone before the thread that took the request back has answered.
    #[test]
    fn a_dropped_tombstone_leaves_the_answer_to_the_thread_that_took_it_back() {
        let sink = Arc::new(Collected::default());
        let request = Request::new(Completion::new(sink.clone(), 1));
        let ticket = request.ticket();
        assert!(ticket.admission().cancel());
        drop(request);
        assert!(sink.0.lock().unwrap().is_empty());
        ticket.fail(Status::cancelled("gone"));
        let got = sink.0.lock().unwrap();
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].1.response.as_ref().unwrap().error.as_ref().unwrap().message, "gone");
    }

    #[test]
    fn a_lost_final_flag_would_be_noticed() {
        let ends = |mutant| {
            mutants::with(mutant, || {
                let sink = Arc::new(Collected::default());
                let factory = Request::new(Completion::new(sink.clone(), 1)).responses();
                factory.send(Response::new(Text::from("a")), false);
                factory.send_end();
                let got = sink.0.lock().unwrap();
                got.iter().map(|(_, delivery)| delivery.last).collect::<Vec<_>>()
            })
        };
        assert_eq!(ends(None), [false, true]);
        assert_ne!(ends(Some(Mutant::FinalLost)), [false, true], "the mutant survives");
    }

    #[test]
    fn a_withdrawn_request_is_silent() {
        let sink = Arc::new(Collected::default());
        let request = Box::new(Request::new(Completion::new(sink.clone(), 1)));
        request.withdraw();
        assert!(sink.0.lock().unwrap().is_empty());
    }
}
