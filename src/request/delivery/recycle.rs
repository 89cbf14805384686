//! The recycle pool: memory of requests and responses that are over, for those that come next.
//!
//! A shard makes a request for each that arrives. Where one also ends on that thread, as it does when the shard
//! executed it, the next one takes over its memory, the lists of its inputs and outputs included. Other threads keep
//! nothing. The same goes for responses that a shard made; those that came from other threads go back to them, through
//! one list that all share.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, OnceLock};

use crossbeam_queue::ArrayQueue;

use super::{Admission, Completion, Sink};
use crate::{Parameters, Request, Response, ResponseParts, Text};

/// Of each kind, on each thread.
const MOST: usize = 256;
/// Responses that a shard keeps for itself, and that all threads share.
const OWN_RESPONSES: usize = 64;
const SHARED_RESPONSES: usize = 1024;
/// Inputs or outputs of a list that is worth keeping.
const LONGEST: usize = 64;

thread_local! {
    /// Requests are made here.
    static KEEPS: Cell<bool> = const { Cell::new(false) };
    #[expect(clippy::vec_box, reason = "requests travel in boxes, and the boxes are to be used again")]
    static REQUESTS: RefCell<Vec<Box<Request>>> = const { RefCell::new(Vec::new()) };
    #[expect(clippy::vec_box, reason = "responses lie in boxes, and the boxes are to be used again")]
    static RESPONSES: RefCell<Vec<Box<ResponseParts>>> = const { RefCell::new(Vec::new()) };
    static ADMISSIONS: RefCell<Vec<Arc<Admission>>> = const { RefCell::new(Vec::new()) };
}

impl Request {
    /// A request whose answers go to `sink` under `key`, in memory of one that ended on this thread if there is any.
    pub fn recycled(sink: Arc<dyn Sink>, key: u64) -> Box<Request> {
        KEEPS.set(true);
        let admission = ADMISSIONS.with_borrow_mut(Vec::pop).unwrap_or_default();
        let completion = Completion::sharing(sink, key, admission);
        match REQUESTS.with_borrow_mut(Vec::pop) {
            Some(mut request) => {
                request.begin(completion);
                request
            }
            None => Box::new(Request::new(completion)),
        }
    }

    /// Ends it, as dropping does.
    pub fn retire(mut self: Box<Request>) {
        if !KEEPS.get() || self.inputs.capacity() > LONGEST || self.outputs.capacity() > LONGEST {
            return;
        }
        self.clear();
        REQUESTS.with_borrow_mut(|requests| {
            if requests.len() < MOST {
                requests.push(self);
            }
        });
    }
}

impl Response {
    pub fn new(id: Text) -> Response {
        let mut response = unused_response().map_or_else(Response::default, Response);
        response.id = id;
        response
    }

    /// Ends it, as dropping does.
    pub fn retire(mut self) {
        if self.0.outputs.capacity() <= LONGEST {
            self.0.clear();
            keep_response(self.0);
        }
    }
}

impl ResponseParts {
    /// As new; a field at a time, because nearly all of them are empty.
    fn clear(&mut self) {
        let ResponseParts { id, outputs, parameters, error, credit, is_begun } = self;
        outputs.clear();
        (*id, *parameters) = (Text::default(), Parameters::default());
        (*error, *credit, *is_begun) = (None, None, false);
    }
}

fn shared_responses() -> &'static ArrayQueue<Box<ResponseParts>> {
    static SHARED: OnceLock<ArrayQueue<Box<ResponseParts>>> = OnceLock::new();
    SHARED.get_or_init(|| ArrayQueue::new(SHARED_RESPONSES))
}

/// The box of an earlier response, if one is left. A thread that ends has no list of its own any more.
fn unused_response() -> Option<Box<ResponseParts>> {
    let own = if KEEPS.get() { RESPONSES.try_with(|own| own.borrow_mut().pop()).ok().flatten() } else { None };
    own.or_else(|| shared_responses().pop())
}

/// Keeps a response that is as new, if there is room for it.
fn keep_response(response: Box<ResponseParts>) {
    if !KEEPS.get() {
        return;
    }
    let mut response = Some(response);
    let _ = RESPONSES.try_with(|own| {
        let mut own = own.borrow_mut();
        if own.len() < OWN_RESPONSES {
            own.extend(response.take());
        }
    });
    if let Some(response) = response {
        // Beyond its bound it is freed.
        let _ = shared_responses().push(response);
    }
}

/// Keeps the state word of a request that is over, if nothing else holds it.
pub(super) fn keep_admission(mut admission: Arc<Admission>) {
    if !KEEPS.get() {
        return;
    }
    let Some(only) = Arc::get_mut(&mut admission) else { return };
    *only = Admission::default();
    ADMISSIONS.with_borrow_mut(|admissions| {
        if admissions.len() < MOST {
            admissions.push(admission);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{DataType, Delivery, InputTensor, OutputTensor, Shape, Status, Value};
    use nereid_memory::{BlockMut, Exhausted};

    #[derive(Default)]
    struct Keys(Mutex<Vec<(u64, bool)>>);

    impl Sink for Keys {
        fn deliver(&self, key: u64, delivery: Delivery) {
            let is_error = delivery.response.is_some_and(|response| response.error.is_some());
            self.0.lock().unwrap().push((key, is_error));
        }

        fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
            Ok(BlockMut::unpooled(byte_size))
        }
    }

    #[test]
    fn a_request_takes_over_the_memory_of_the_last_one_and_nothing_else() {
        let sink = Arc::new(Keys::default());
        let mut first = Request::recycled(sink.clone(), 1);
        first.inputs.push(InputTensor::new(Text::from("a"), DataType::Fp32, Shape::new()));
        (first.id, first.flags, first.batch_size) = (Text::from("id"), 3, 7);
        let ticket = first.ticket();
        first.finish(Response::default());
        let (at, admission) = (&raw const *first, Arc::as_ptr(first.admission()));
        first.retire();
        ticket.retire();
        let second = Request::recycled(sink.clone(), 2);
        assert!(at == &raw const *second && admission == Arc::as_ptr(second.admission()));
        assert!(second.inputs.is_empty() && second.inputs.capacity() > 0);
        assert!(second.id.is_empty() && second.flags == 0 && second.batch_size == 1);
        assert!(second.admission().is_queued() && !second.admission().has_ended());
        second.retire();
        assert_eq!(*sink.0.lock().unwrap(), [(1, false), (2, true)], "an unanswered one is answered for");
    }

    #[test]
    fn a_state_word_that_is_still_held_is_not_used_again() {
        let sink = Arc::new(Keys::default());
        let first = Request::recycled(sink.clone(), 1);
        let (token, ticket) = (first.cancel_token(), first.ticket());
        first.retire();
        ticket.retire();
        assert!(ADMISSIONS.with_borrow(Vec::is_empty));
        let second = Request::recycled(sink, 2);
        second.admission().cancel();
        assert!(!token.is_cancelled());
    }

    #[test]
    fn a_response_lies_where_an_earlier_one_lay_and_has_nothing_of_it() {
        KEEPS.set(true);
        let mut first = Response::failed(Text::from("a"), Status::internal("no"));
        first.outputs.push(OutputTensor {
            name: Text::from("o"),
            datatype: DataType::Fp32,
            shape: Shape::new(),
            data: Default::default(),
            index: 0,
            on_device: None,
        });
        first.parameters.push(Text::from("p"), Value::Bool(true));
        first.is_begun = true;
        let at = &raw const *first;
        first.retire();
        let second = Response::new(Text::from("b"));
        assert_eq!((at, second.id.as_bytes()), (&raw const *second, &b"b"[..]));
        assert!(second.outputs.is_empty() && second.parameters.is_empty());
        assert!(second.error.is_none() && second.credit.is_none() && !second.is_begun);
    }

    #[test]
    fn a_thread_that_makes_none_keeps_none() {
        let sink = Arc::new(Keys::default());
        let request = Box::new(Request::new(Completion::new(sink, 1)));
        request.retire();
        Response::default().retire();
        assert!(REQUESTS.with_borrow(Vec::is_empty) && RESPONSES.with_borrow(Vec::is_empty));
    }
}
