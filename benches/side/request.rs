//! The requests of a slot: the same bytes each time, or different bytes each time.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use nereid_memory::Slice;

/// The placeholder of the number that makes each request different; a request without it repeats.
pub const UNREPEATED: &str = "unrepeated-000000000000";
const DIGITS: usize = 12;

/// Of all slots of this process, so that no server can have seen a number before.
static SENT: AtomicU64 = AtomicU64::new(1);

pub struct Request {
    variants: Vec<Variant>,
    turn: Rc<Cell<usize>>,
}

struct Variant {
    bytes: Slice,
    /// Where the digits of the number are.
    numbers_at: Vec<usize>,
}

impl Request {
    pub fn new(bytes: Slice) -> Request {
        Request::in_turn([bytes])
    }

    /// Sends one after the other, and the first after the last. There is at least one.
    pub fn in_turn(requests: impl IntoIterator<Item = Slice>) -> Request {
        let variants: Vec<Variant> = requests.into_iter().map(Variant::new).collect();
        assert!(!variants.is_empty(), "a slot has a request");
        Request { turn: Rc::new(Cell::new(variants.len() - 1)), variants }
    }

    /// Which of those in turn was sent last: what the check of an answer needs.
    pub fn turn(&self) -> Rc<Cell<usize>> {
        Rc::clone(&self.turn)
    }

    /// Whether the right answer is the same each time.
    pub fn has_one_answer(&self) -> bool {
        self.variants.len() == 1
    }

    /// The bytes of the next request.
    pub fn next(&self) -> Slice {
        let at = (self.turn.get() + 1) % self.variants.len();
        self.turn.set(at);
        self.variants[at].numbered()
    }
}

impl From<Slice> for Request {
    fn from(bytes: Slice) -> Request {
        Request::new(bytes)
    }
}

impl Variant {
    fn new(bytes: Slice) -> Variant {
        let mark = UNREPEATED.as_bytes();
        let found = bytes.windows(mark.len()).enumerate().filter(|(_, window)| *window == mark);
        let numbers_at = found.map(|(at, _)| at + mark.len() - DIGITS).collect();
        Variant { bytes, numbers_at }
    }

    fn numbered(&self) -> Slice {
        if self.numbers_at.is_empty() {
            return self.bytes.clone();
        }
        let mut bytes = self.bytes.to_vec();
        let number = SENT.fetch_add(1, Ordering::Relaxed);
        let digits = format!("{number:0DIGITS$}");
        for at in &self.numbers_at {
            bytes[*at..*at + DIGITS].copy_from_slice(digits.as_bytes());
        }
        Slice::copy_of(&bytes)
    }
}
