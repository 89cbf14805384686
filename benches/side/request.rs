//! The request of a slot: the same bytes each time, or different bytes each time.

use std::sync::atomic::{AtomicU64, Ordering};

use nereid_memory::Slice;

/// The placeholder of the number that makes each request different; a request without it repeats.
pub const UNREPEATED: &str = "unrepeated-000000000000";
const DIGITS: usize = 12;

/// Of all slots of this process, so that no server can have seen a number before.
static SENT: AtomicU64 = AtomicU64::new(1);

pub struct Request {
    bytes: Slice,
    number_at: Option<usize>,
}

impl Request {
    pub fn new(bytes: Slice) -> Request {
        let mark = UNREPEATED.as_bytes();
        let at = bytes.windows(mark.len()).position(|window| window == mark);
        Request { number_at: at.map(|at| at + mark.len() - DIGITS), bytes }
    }

    /// The bytes of the next request.
    pub fn next(&self) -> Slice {
        let Some(at) = self.number_at else { return self.bytes.clone() };
        let mut bytes = self.bytes.to_vec();
        let number = SENT.fetch_add(1, Ordering::Relaxed);
        bytes[at..at + DIGITS].copy_from_slice(format!("{number:0DIGITS$}").as_bytes());
        Slice::copy_of(&bytes)
    }
}
