//! The responses of one request, sent in order by a thread that must not wait.
//!
//! A backend that answers many requests from one thread must not wait there because one client reads slowly. A response
//! without room is queued here until there is some, and later ones of the same request behind it. The sender bounds the
//! queue: it learns when each response has been sent.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::credit::NeverWaits;
use super::{Delivery, RequestEvents, ResponseFactory};
use crate::Response;

/// Sends the responses of one request in order without waiting. Several threads may use it at once.
pub struct Outbox {
    factory: ResponseFactory,
    room: Arc<dyn RequestEvents>,
    key: u64,
    waiting: Mutex<VecDeque<(Delivery, u64)>>,
}

impl Outbox {
    /// `room` gets `key` when a call of [`flush`](Outbox::flush) may send something.
    pub fn new(factory: ResponseFactory, room: Arc<dyn RequestEvents>, key: u64) -> Outbox {
        Outbox { factory, room, key, waiting: Mutex::default() }
    }

    /// Sends a response, or only the end, behind what is queued. True: it is sent. False: it is queued, and a flush
    /// reports `tag` when it has sent it.
    pub fn send(&self, response: Option<Response>, last: bool, tag: u64) -> bool {
        let mut waiting = self.waiting();
        let delivery = Delivery { response, last };
        if !waiting.is_empty() {
            waiting.push_back((delivery, tag));
            return false;
        }
        // Under the lock, which keeps the order.
        match self.attempt(delivery) {
            None => true,
            Some(delivery) => {
                waiting.push_back((delivery, tag));
                false
            }
        }
    }

    /// Sends what there is room for, and calls `sent` with the tags.
    pub fn flush(&self, mut sent: impl FnMut(u64)) {
        let mut waiting = self.waiting();
        while let Some((delivery, tag)) = waiting.pop_front() {
            match self.attempt(delivery) {
                None => sent(tag),
                Some(delivery) => return waiting.push_front((delivery, tag)),
            }
        }
    }

    /// Sends all that is queued, with or without room: no thread will send it later.
    pub fn empty(&self) {
        let _never_waits = NeverWaits::here();
        let mut waiting = self.waiting();
        while let Some((Delivery { response, last }, _)) = waiting.pop_front() {
            self.factory.completion().deliver(response, last);
        }
    }

    /// Responses that are queued.
    pub fn waiting_count(&self) -> usize {
        self.waiting().len()
    }

    /// The factory, for what needs no order.
    pub fn factory(&self) -> &ResponseFactory {
        &self.factory
    }

    fn attempt(&self, delivery: Delivery) -> Option<Delivery> {
        self.factory.completion().try_deliver(delivery, (&self.room, self.key))
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<(Delivery, u64)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").field("key", &self.key).field("waiting", &self.waiting_count()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::{Completion, Request, Sink, Text};
    use nereid_memory::{BlockMut, Exhausted};

    /// Keeps what is delivered until the test takes it.
    #[derive(Default)]
    struct DeliveryQueue(Mutex<VecDeque<Delivery>>);

    impl Sink for DeliveryQueue {
        fn deliver(&self, _key: u64, delivery: Delivery) {
            self.0.lock().unwrap().push_back(delivery);
        }

        fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
            Ok(BlockMut::unpooled(byte_size))
        }
    }

    impl DeliveryQueue {
        fn len(&self) -> usize {
            self.0.lock().unwrap().len()
        }

        /// Takes the oldest: its id, and whether it was the last. Its credit comes back.
        fn take(&self) -> (String, bool) {
            let Delivery { response, last } = self.0.lock().unwrap().pop_front().unwrap();
            (response.map_or_else(String::new, |response| response.id.to_string()), last)
        }
    }

    struct RoomEvents(Mutex<Sender<u64>>);

    impl RequestEvents for RoomEvents {
        fn has_room(&self, key: u64) {
            let _ = self.0.lock().unwrap().send(key);
        }
    }

    struct Rig {
        kept: Arc<DeliveryQueue>,
        request: Request,
        outbox: Arc<Outbox>,
        events: Receiver<u64>,
    }

    fn rig(most: u32) -> Rig {
        let kept = Arc::new(DeliveryQueue::default());
        let request = Request::new(Completion::new(kept.clone(), 1));
        request.limit_responses(most);
        let (sender, events) = channel();
        let outbox = Arc::new(Outbox::new(request.responses(), Arc::new(RoomEvents(Mutex::new(sender))), 7));
        Rig { kept, request, outbox, events }
    }

    fn named(number: u64) -> Option<Response> {
        Some(Response::new(Text::from(&*number.to_string())))
    }

    fn flushed(outbox: &Outbox) -> Vec<u64> {
        let mut tags = Vec::new();
        outbox.flush(|tag| tags.push(tag));
        tags
    }

    #[test]
    fn no_thread_waits_and_the_order_stays() {
        let Rig { kept, request, outbox, events } = rig(2);
        let sent: Vec<bool> = (0..5).map(|number| outbox.send(named(number), false, number)).collect();
        assert_eq!(sent, [true, true, false, false, false]);
        assert!(!outbox.send(None, true, 5), "the end comes behind them");
        assert_eq!((kept.len(), outbox.waiting_count(), events.try_recv().is_err()), (2, 4, true));
        assert!(kept.0.lock().unwrap()[0].response.as_ref().unwrap().credit.as_ref().unwrap().is_wanted());
        assert_eq!(kept.take(), ("0".to_owned(), false));
        assert_eq!(events.try_recv(), Ok(7));
        assert_eq!(flushed(&outbox), [2]);
        assert!(flushed(&outbox).is_empty(), "without room it is in vain");
        assert_eq!((kept.take(), kept.take()), (("1".to_owned(), false), ("2".to_owned(), false)));
        assert_eq!(events.try_iter().collect::<Vec<_>>(), [7], "in vain or not, it is reported once");
        assert_eq!(flushed(&outbox), [3, 4, 5]);
        assert_eq!((kept.take(), kept.take()), (("3".to_owned(), false), ("4".to_owned(), false)));
        assert_eq!(kept.take(), (String::new(), true));
        drop((request, outbox));
        assert_eq!(kept.len(), 0);
    }

    #[test]
    fn cancellation_lets_all_of_it_go() {
        let Rig { kept, request, outbox, events } = rig(1);
        for number in 0..3 {
            outbox.send(named(number), number == 2, number);
        }
        request.admission().cancel();
        assert_eq!(events.try_recv(), Ok(7));
        assert_eq!(flushed(&outbox), [1, 2]);
        assert_eq!((kept.take(), kept.take(), kept.len()), (("0".to_owned(), false), (String::new(), true), 0));
    }

    #[test]
    fn what_waits_can_be_sent_without_room() {
        let Rig { kept, outbox, .. } = rig(1);
        for number in 0..3 {
            outbox.send(named(number), number == 2, number);
        }
        outbox.empty();
        let all: Vec<_> = (0..kept.len()).map(|_| kept.take()).collect();
        assert_eq!(all, [("0".to_owned(), false), ("1".to_owned(), false), ("2".to_owned(), true)]);
    }

    /// Different threads send answers and take them, and the last answer must not stay in the queue.
    #[test]
    fn a_slow_reader_gets_everything() {
        const COUNT: u64 = 20_000;
        let Rig { kept, request, outbox, events } = rig(3);
        let sender = {
            let outbox = Arc::clone(&outbox);
            std::thread::spawn(move || {
                for number in 0..COUNT {
                    outbox.send(named(number), number + 1 == COUNT, number);
                }
            })
        };
        let flushed = Arc::downgrade(&outbox);
        let flush = move |_| flushed.upgrade().into_iter().for_each(|outbox| outbox.flush(|_| ()));
        let flusher = std::thread::spawn(move || events.iter().for_each(flush));
        let mut got = 0;
        while got < COUNT {
            if kept.len() == 0 {
                std::thread::yield_now();
                continue;
            }
            assert_eq!(kept.take(), (got.to_string(), got + 1 == COUNT));
            got += 1;
        }
        sender.join().unwrap();
        // The sender of events is dropped with the last holder.
        drop((request, outbox));
        flusher.join().unwrap();
    }
}
