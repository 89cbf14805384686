//! Checks answers byte for byte at the price of a comparison.
//!
//! The first answer of a slot is taken apart and held against the request. The same request has the same answer ever
//! after, so later ones only have to be equal to it; each slot sends a tensor of its own, so an answer that went to
//! the wrong place shows. Where the requests of a slot differ, each answer goes to its check.

use super::request::Request;

pub type Check = Box<dyn Fn(&[u8]) -> Result<(), String>>;

/// The expected answer of one slot, each time.
pub struct Answer {
    check: Check,
    known: Option<Vec<u8>>,
    /// Whether the first answer is that of all requests.
    is_one: bool,
    /// Bytes of the current answer that have come.
    seen: usize,
    differs: bool,
    collected: Vec<u8>,
}

impl Answer {
    pub fn new(check: Check) -> Answer {
        Answer { check, known: None, is_one: true, seen: 0, differs: false, collected: Vec::new() }
    }

    /// The answer to these requests.
    pub fn to(request: &Request, check: Check) -> Answer {
        Answer { is_one: request.has_one_answer(), ..Answer::new(check) }
    }

    pub fn piece(&mut self, bytes: &[u8]) {
        match &self.known {
            Some(known) => self.differs |= known.get(self.seen..self.seen + bytes.len()) != Some(bytes),
            None => self.collected.extend_from_slice(bytes),
        }
        self.seen += bytes.len();
    }

    /// The answer is complete; the next one may begin.
    pub fn end(&mut self) -> Result<(), String> {
        let seen = std::mem::take(&mut self.seen);
        let differs = std::mem::take(&mut self.differs);
        match &self.known {
            Some(known) if differs || known.len() != seen => {
                Err(format!("an answer of {seen} bytes differs from the first one of {} bytes", known.len()))
            }
            Some(_) => Ok(()),
            None => {
                let outcome = (self.check)(&self.collected);
                let first = std::mem::take(&mut self.collected);
                if outcome.is_ok() && self.is_one {
                    self.known = Some(first);
                }
                outcome
            }
        }
    }

    /// Drops the received part of an answer that will not be complete.
    pub fn give_up(&mut self) {
        (self.seen, self.differs) = (0, false);
        self.collected.clear();
    }

    /// The received part of an unexpected answer, as far as it was kept.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.collected).trim().to_owned()
    }

    /// Compares an answer that comes whole and might belong to another slot.
    pub fn is(&self, whole: &[u8]) -> bool {
        self.known.as_deref() == Some(whole)
    }
}
