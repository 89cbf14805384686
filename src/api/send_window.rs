//! What was written on a stream, and how much of it its peer has made room for: a model may wait for that.
//!
//! A response's credit (see `request`) is kept until its bytes are out. Streams of gRPC and answers of HTTP that are
//! sent in parts follow the same rules.

use std::collections::VecDeque;

use nereid_request::Credit;

/// Seconds for which a peer may block a model that has used up its credits.
const BLOCKED_S_MAX: u32 = 10;

#[derive(Debug, Default)]
pub struct SendWindow {
    /// Bytes of everything so far.
    sent_bytes: u64,
    /// Of those, how many the transport has sent.
    taken_bytes: u64,
    /// What is given back once so many bytes were taken.
    owed: VecDeque<(u64, Credit)>,
    /// Something was taken since the last second.
    has_moved: bool,
    /// Seconds for which some model has waited and nothing was taken.
    blocked_s: u32,
}

impl SendWindow {
    /// Records `bytes` more bytes on their way, and the credit that they return.
    pub fn record(&mut self, bytes: usize, credit: Option<Credit>) {
        self.sent_bytes = self.sent_bytes.saturating_add(bytes as u64);
        self.owed.extend(credit.map(|credit| (self.sent_bytes, credit)));
    }

    /// The peer has made room for everything but the last `unsent` bytes.
    pub fn acknowledge(&mut self, unsent: usize) {
        let taken = self.sent_bytes.saturating_sub(unsent as u64);
        if taken > self.taken_bytes {
            self.taken_bytes = taken;
            self.has_moved = true;
        }
        while self.owed.front().is_some_and(|(at, _)| *at <= taken) {
            self.owed.pop_front();
        }
    }

    /// A second has passed. True: the peer has left a model waiting for too long.
    pub fn is_stuck(&mut self) -> bool {
        let is_blocked = !std::mem::take(&mut self.has_moved) && self.owed.iter().any(|(_, credit)| credit.is_wanted());
        self.blocked_s = if is_blocked { self.blocked_s.saturating_add(1) } else { 0 };
        self.blocked_s > BLOCKED_S_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use nereid_memory::{BlockMut, Exhausted};
    use nereid_request::{Completion, Delivery, Request, Response, ResponseFactory, Sink, Text};

    /// Keeps the credits of what is delivered.
    #[derive(Default)]
    struct Kept(std::sync::Mutex<VecDeque<Credit>>);

    impl Sink for Kept {
        fn deliver(&self, _key: u64, delivery: Delivery) {
            self.0.lock().unwrap().extend(delivery.response.and_then(|mut response| response.credit.take()));
        }

        fn allocate(&self, _key: u64, byte_size: usize) -> Result<BlockMut, Exhausted> {
            Ok(BlockMut::unpooled(byte_size))
        }
    }

    fn limited(most: u32) -> (Arc<Kept>, Request, ResponseFactory) {
        let kept = Arc::new(Kept::default());
        let request = Request::new(Completion::new(kept.clone(), 1));
        request.limit_responses(most);
        let responses = request.responses();
        (kept, request, responses)
    }

    #[test]
    fn a_credit_goes_back_with_the_last_byte_it_was_recorded_with() {
        let (kept, _request, responses) = limited(2);
        let mut send_window = SendWindow::default();
        send_window.record(5, None);
        for bytes in [10, 20] {
            responses.send(Response::new(Text::default()), false);
            send_window.record(bytes, kept.0.lock().unwrap().pop_front());
        }
        for (unsent, owed) in [(35, 2), (21, 2), (20, 1), (25, 1), (1, 1), (0, 0)] {
            send_window.acknowledge(unsent);
            assert_eq!(send_window.owed.len(), owed, "{unsent} unsent");
        }
    }

    #[test]
    fn a_peer_is_stuck_when_a_model_has_waited_for_it_and_nothing_moved() {
        let (kept, request, responses) = limited(1);
        let mut send_window = SendWindow::default();
        responses.send(Response::new(Text::default()), false);
        send_window.record(100, kept.0.lock().unwrap().pop_front());
        for _ in 0..30 {
            assert!(!send_window.is_stuck(), "nobody waits for it");
        }
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| responses.send(Response::new(Text::default()), true));
            while !send_window.owed[0].1.is_wanted() {
                std::thread::yield_now();
            }
            for unsent in (50..100).rev() {
                send_window.acknowledge(unsent);
                assert!(!send_window.is_stuck(), "it reads, however slowly");
            }
            let seconds = (1..60).find(|_| send_window.is_stuck());
            assert_eq!(seconds, Some(BLOCKED_S_MAX + 1));
            request.admission().cancel();
            waits.join().unwrap();
        });
    }
}
