//! The responses of one request, sent in order by those who must not wait.
//!
//! The backend that answers many requests from one thread must not wait there because one client reads slowly. What
//! finds no room lies here until there is some; what comes later for the same request lies down behind it. How much
//! that can be is for the sender to bound: whoever hands a response in learns when it is out.

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
    /// `room` is told under `key` when [`flush`](Outbox::flush) is worth a call.
    pub fn new(factory: ResponseFactory, room: Arc<dyn RequestEvents>, key: u64) -> Outbox {
        Outbox { factory, room, key, waiting: Mutex::default() }
    }

    /// Sends a response, or the bare end, behind what waits already. True: it is out. False: it waits, and a flush will
    /// tell of `tag` when it is out.
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

    /// Sends what there is room for, and tells `sent` the tags.
    pub fn flush(&self, mut sent: impl FnMut(u64)) {
        let mut waiting = self.waiting();
        while let Some((delivery, tag)) = waiting.pop_front() {
            match self.attempt(delivery) {
                None => sent(tag),
                Some(delivery) => return waiting.push_front((delivery, tag)),
            }
        }
    }

    /// Sends all that waits, room or not: nobody will be there to send it later.
    pub fn empty(&self) {
        let _never_waits = NeverWaits::here();
        let mut waiting = self.waiting();
        while let Some((Delivery { response, last }, _)) = waiting.pop_front() {
            self.factory.completion().deliver(response, last);
        }
    }

    /// Responses that found no room so far.
    pub fn waiting_count(&self) -> usize {
        self.waiting().len()
    }

    /// Who sends, for what needs no order.
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
    struct Kept(Mutex<VecDeque<Delivery>>);

    impl Sink for Kept {
        fn deliver(&self, _key: u64, delivery: Delivery) {
            self.0.lock().unwrap().push_back(delivery);
        }

        fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
            Ok(BlockMut::unpooled(byte_size))
        }
    }

    impl Kept {
        fn len(&self) -> usize {
            self.0.lock().unwrap().len()
        }

        /// Takes the oldest: its id, and whether it was the last. Its credit comes back.
        fn take(&self) -> (String, bool) {
            let Delivery { response, last } = self.0.lock().unwrap().pop_front().unwrap();
            (response.map_or_else(String::new, |response| response.id.to_string()), last)
        }
    }

    struct Tells(Mutex<Sender<u64>>);

    impl RequestEvents for Tells {
        fn has_room(&self, key: u64) {
            let _ = self.0.lock().unwrap().send(key);
        }
    }

    struct Rig {
        kept: Arc<Kept>,
        request: Request,
        outbox: Arc<Outbox>,
        told: Receiver<u64>,
    }

    fn rig(most: u32) -> Rig {
        let kept = Arc::new(Kept::default());
        let request = Request::new(Completion::new(kept.clone(), 1));
        request.limit_responses(most);
        let (tell, told) = channel();
        let outbox = Arc::new(Outbox::new(request.responses(), Arc::new(Tells(Mutex::new(tell))), 7));
        Rig { kept, request, outbox, told }
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
    fn nobody_waits_and_the_order_stays() {
        let Rig { kept, request, outbox, told } = rig(2);
        let sent: Vec<bool> = (0..5).map(|number| outbox.send(named(number), false, number)).collect();
        assert_eq!(sent, [true, true, false, false, false]);
        assert!(!outbox.send(None, true, 5), "the end comes behind them");
        assert_eq!((kept.len(), outbox.waiting_count(), told.try_recv().is_err()), (2, 4, true));
        assert!(kept.0.lock().unwrap()[0].response.as_ref().unwrap().credit.as_ref().unwrap().is_wanted());
        assert_eq!(kept.take(), ("0".to_owned(), false));
        assert_eq!(told.try_recv(), Ok(7));
        assert_eq!(flushed(&outbox), [2]);
        assert!(flushed(&outbox).is_empty(), "without room it is in vain");
        assert_eq!((kept.take(), kept.take()), (("1".to_owned(), false), ("2".to_owned(), false)));
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [7], "in vain or not, it is told once");
        assert_eq!(flushed(&outbox), [3, 4, 5]);
        assert_eq!((kept.take(), kept.take()), (("3".to_owned(), false), ("4".to_owned(), false)));
        assert_eq!(kept.take(), (String::new(), true));
        drop((request, outbox));
        assert_eq!(kept.len(), 0);
    }

    #[test]
    fn cancellation_lets_all_of_it_go() {
        let Rig { kept, request, outbox, told } = rig(1);
        for number in 0..3 {
            outbox.send(named(number), number == 2, number);
        }
        request.admission().cancel();
        assert_eq!(told.try_recv(), Ok(7));
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

    /// Who takes answers and who sends them are different threads, and the last one out must not be forgotten.
    #[test]
    fn a_slow_reader_gets_everything() {
        const COUNT: u64 = 20_000;
        let Rig { kept, request, outbox, told } = rig(3);
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
        let flusher = std::thread::spawn(move || told.iter().for_each(flush));
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
        // Who tells goes with the last holder.
        drop((request, outbox));
        flusher.join().unwrap();
    }
}
