//! An open stream of server reflection.

use std::collections::VecDeque;

use nereid_memory::Slice;
use nereid_protocol::service::CallKey;

/// Bytes of answers that the client has not taken, beyond which the next ones wait.
const UNSENT_MAX: u64 = 1 << 20;

/// One open stream.
pub struct ReflectionStream {
    pub(super) call: CallKey,
    pub(super) waiting: VecDeque<Slice>,
    pub(super) waiting_bytes: usize,
    pub(super) half_closed: bool,
    /// It is on the list of work that was put off.
    pub(super) is_listed: bool,
    /// Bytes of all answers so far, and how many of them the transport has.
    pub(super) answered_bytes: u64,
    pub(super) taken_bytes: u64,
}

impl ReflectionStream {
    pub fn new(call: CallKey) -> ReflectionStream {
        ReflectionStream {
            call,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            half_closed: false,
            is_listed: false,
            answered_bytes: 0,
            taken_bytes: 0,
        }
    }

    pub(super) fn is_held_back(&self) -> bool {
        self.answered_bytes.saturating_sub(self.taken_bytes) >= UNSENT_MAX
    }
}
