//! Who waits for credit, who does not, and that nothing is lost over it.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use smallvec::smallvec;

use super::*;
use crate::{Completion, DataType, Delivery, OutputTensor, Request, Shape, Sink, Status, Text};
use nereid_memory::{BlockMut, Exhausted, Slice};

/// Keeps what is delivered until the test takes it.
#[derive(Default)]
struct Kept(Mutex<Vec<Delivery>>);

impl Sink for Kept {
    fn deliver(&self, _key: u64, delivery: Delivery) {
        self.0.lock().unwrap().push(delivery);
    }

    fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
        Ok(BlockMut::unpooled(byte_size))
    }
}

impl Kept {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// Takes the oldest, as a transport would whose peer has read it.
    fn take(&self) -> Delivery {
        self.0.lock().unwrap().remove(0)
    }

    fn wait_for(&self, len: usize) {
        while self.len() < len {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn response(len: usize) -> Response {
    let mut response = Response::new(Text::from("r"));
    let data = Slice::copy_of(&vec![0; len]);
    let shape = Shape::from_slice(&[len as i64]);
    let name = Text::from("OUT");
    response.outputs.push(OutputTensor {
        name,
        datatype: DataType::Uint8,
        shape,
        data: smallvec![data],
        index: 0,
        on_device: None,
    });
    response
}

fn limited(most: u32) -> (Arc<Kept>, Request) {
    let kept = Arc::new(Kept::default());
    let request = Request::new(Completion::new(kept.clone(), 1));
    request.limit_responses(most);
    (kept, request)
}

/// A thread that sends `count` responses of `len` bytes and an end, and says when it has sent each.
fn sender(request: &Request, count: usize, len: usize) -> (std::thread::JoinHandle<()>, Receiver<usize>) {
    let (tell, told) = channel();
    let factory = request.responses();
    let thread = std::thread::spawn(move || {
        for at in 0..count {
            factory.send(response(len), false);
            let _ = tell.send(at);
        }
        factory.send_end();
    });
    (thread, told)
}

fn waits(request: &Request) -> bool {
    request.admission().credits.lock().waiters > 0
}

fn wait_until(mut fact: impl FnMut() -> bool) {
    while !fact() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn who_sends_too_much_waits_until_something_was_taken() {
    let (kept, request) = limited(2);
    let (thread, told) = sender(&request, 5, 8);
    assert_eq!((told.recv(), told.recv()), (Ok(0), Ok(1)));
    wait_until(|| waits(&request));
    assert_eq!(kept.len(), 2);
    for sent in 2..5 {
        wait_until(|| waits(&request));
        assert!(kept.0.lock().unwrap()[0].response.as_ref().unwrap().credit.as_ref().unwrap().is_wanted());
        drop(kept.take());
        assert_eq!(told.recv(), Ok(sent));
    }
    thread.join().unwrap();
    assert_eq!(kept.len(), 3, "two responses and the end, which needs no credit");
}

#[test]
fn a_kept_credit_would_be_noticed() {
    let outcome = |mutant| {
        mutants::with(mutant, || {
            let (kept, request) = limited(1);
            request.responses().send(response(1), false);
            drop(kept.take());
            request.admission().credits.lock().has_room(1)
        })
    };
    assert!(outcome(None));
    assert!(!outcome(Some(Mutant::CreditKept)), "the mutant survives");
}

#[test]
fn bytes_are_bounded_whatever_the_number() {
    let (kept, request) = limited(u32::MAX);
    let third = BYTES_MAX / 3;
    let (thread, _told) = sender(&request, 4, third);
    kept.wait_for(2);
    wait_until(|| waits(&request));
    assert_eq!(kept.len(), 2, "the third does not fit with its overhead");
    drop(kept.take());
    kept.wait_for(2);
    request.admission().cancel();
    thread.join().unwrap();
    assert!(kept.len() <= 3, "what nobody waits for is dropped");
    assert!(kept.0.lock().unwrap().last().unwrap().last);
    // One alone may have any size.
    let (kept, request) = limited(1);
    request.responses().send(response(BYTES_MAX + 1), false);
    assert_eq!(kept.len(), 1);
}

#[test]
fn cancellation_lets_a_waiter_go() {
    let (kept, request) = limited(1);
    let (thread, _told) = sender(&request, 1000, 1);
    wait_until(|| waits(&request));
    request.admission().cancel();
    thread.join().unwrap();
    let got = kept.0.lock().unwrap();
    assert_eq!((got.len(), got[1].last), (2, true), "the first response and the end");
}

#[test]
fn some_threads_and_some_requests_never_wait() {
    let (kept, request) = limited(1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            never_wait_here();
            (0..10).for_each(|_| request.responses().send(response(1), false));
        });
    });
    assert_eq!(kept.len(), 10);
    let kept = Arc::new(Kept::default());
    let request = Request::new(Completion::new(kept.clone(), 1));
    (0..10).for_each(|_| request.responses().send(response(BYTES_MAX), false));
    assert_eq!(kept.len(), 10, "nobody limited it");
    assert!(kept.take().response.unwrap().credit.is_none());
}

#[test]
fn the_only_response_needs_no_credit_and_the_last_of_many_does() {
    let (kept, request) = limited(1);
    request.finish(response(1));
    assert!(kept.take().response.unwrap().credit.is_none());
    let (kept, request) = limited(1);
    let factory = request.responses();
    factory.send(response(1), false);
    let thread = std::thread::spawn(move || factory.send(response(1), true));
    wait_until(|| waits(&request));
    drop(kept.take());
    thread.join().unwrap();
    let last = kept.take();
    assert!(last.last && last.response.unwrap().credit.is_some());
}

#[test]
fn a_response_that_was_paid_for_is_not_paid_for_again() {
    let (kept, request) = limited(1);
    let factory = request.responses();
    factory.send(response(1), false);
    let paid = kept.take().response.unwrap();
    factory.send(paid, false);
    assert_eq!(kept.len(), 1);
    // An error in the middle is a response like others.
    let failed = Response::failed(Text::from("r"), Status::unknown("simulated failure"));
    let other = request.responses();
    let thread = std::thread::spawn(move || other.send(failed, false));
    wait_until(|| waits(&request));
    drop(kept.take());
    thread.join().unwrap();
}

#[test]
fn what_is_made_from_a_response_keeps_its_credit_and_pays_for_its_growth() {
    let (kept, request) = limited(2);
    request.responses().send(response(1), false);
    let credit = Arc::new(kept.take().response.unwrap().into_parts().credit.unwrap());
    assert!(Credit::passed_on(&[], 7).is_none());
    let passed_on = Credit::passed_on(&[credit], BYTES_MAX).unwrap();
    let (thread, told) = sender(&request, 1, 8);
    wait_until(|| waits(&request));
    assert!(passed_on.is_wanted());
    drop(passed_on);
    assert_eq!(told.recv(), Ok(0));
    thread.join().unwrap();
    drop(kept.take());
    let ledger = request.admission().credits.lock();
    assert_eq!((ledger.responses, ledger.bytes), (0, 0));
}

#[test]
fn a_thread_waits_again_after_it_must_not() {
    {
        let _outer = NeverWaits::here();
        drop(NeverWaits::here());
        assert!(NEVER_WAITS.get());
    }
    assert!(!NEVER_WAITS.get());
}
