//! The records of the handle registry: live and dead objects by address, and the memory of the dead.

use std::alloc::Layout;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::kinds::HandleKind;

/// How many objects that were given back keep their records, and how much of their memory is kept.
const DEAD_MAX: usize = 65_536;
const DEAD_BYTES_MAX: usize = 64 << 20;
/// How many different faults are logged.
const FAULTS_MAX: usize = 4096;

/// DeadMemory of a dead object.
#[derive(Debug)]
pub struct DeadMemory {
    at: *mut u8,
    layout: Layout,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for DeadMemory {}

impl DeadMemory {
    /// `at` came from the allocator with this layout, and only this value frees it.
    pub fn new(at: *mut u8, layout: Layout) -> DeadMemory {
        DeadMemory { at, layout }
    }
}

impl Drop for DeadMemory {
    fn drop(&mut self) {
        // SAFETY: by the promise of `new`.
        unsafe { std::alloc::dealloc(self.at, self.layout) }
    }
}

/// The record of an object that C holds or held.
#[derive(Debug)]
pub struct HandleRecord {
    kind: HandleKind,
    /// C has to give it back.
    is_given: bool,
    /// The backend that got it; empty: unknown.
    by: String,
    /// The function that handed it out.
    came_from: &'static str,
    /// The function that ended it.
    ended_in: Option<&'static str>,
    /// The parts of it, which end with it.
    parts: Vec<(usize, HandleKind)>,
    /// How many objects it is a part of: it ends with the last of them.
    owners: usize,
}

impl HandleRecord {
    pub fn given(kind: HandleKind, came_from: &'static str, by: String) -> HandleRecord {
        HandleRecord { kind, is_given: true, by, came_from, ended_in: None, parts: Vec::new(), owners: 0 }
    }

    pub fn lent(kind: HandleKind, came_from: &'static str) -> HandleRecord {
        HandleRecord {
            kind,
            is_given: false,
            by: String::new(),
            came_from,
            ended_in: None,
            parts: Vec::new(),
            owners: 0,
        }
    }

    fn is_live(&self) -> bool {
        self.ended_in.is_none()
    }
}

/// What is wrong with a handle.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HandleFault {
    Ended(&'static str),
    OtherKind(HandleKind),
    Unknown,
    /// It is live, but the caller does not own it.
    Lent(&'static str),
}

impl HandleFault {
    /// Describes the fault of a handle that should be a `kind`.
    pub fn describe(&self, kind: HandleKind) -> String {
        let wanted = kind.name();
        match self {
            HandleFault::Ended(call) => format!("a {wanted} that was given up in {call}"),
            HandleFault::OtherKind(found) => format!("a {}, not a {wanted}", found.name()),
            HandleFault::Unknown => format!("no {wanted} of this server"),
            HandleFault::Lent(call) => format!("a {wanted} that was lent by {call} and is not the caller's to give up"),
        }
    }
}

#[derive(Debug, Default)]
pub struct HandleRecords {
    /// Several objects may begin at one address: a value and its first part.
    records: HashMap<usize, Vec<HandleRecord>>,
    /// The dead objects, in the order of their ends.
    dead: VecDeque<(usize, HandleKind, Option<DeadMemory>)>,
    dead_bytes: usize,
    logged: HashSet<(&'static str, HandleKind, HandleFault)>,
}

impl HandleRecords {
    pub fn write(&mut self, at: usize, record: HandleRecord) {
        let here = self.records.entry(at).or_default();
        match here.iter_mut().find(|known| known.kind == record.kind) {
            // Recorded again, for example for another getter: owner and parts stay as they are.
            Some(known) if known.is_live() && !record.is_given => {}
            Some(known) => *known = record,
            None => here.push(record),
        }
    }

    pub fn write_part(&mut self, at: usize, record: HandleRecord, owner: (usize, HandleKind)) {
        let kind = record.kind;
        if !self.find(at, kind).is_some_and(HandleRecord::is_live) {
            self.write(at, record);
        }
        let Some(owner) = self.find_mut(owner.0, owner.1) else { return };
        if owner.parts.contains(&(at, kind)) {
            return;
        }
        owner.parts.push((at, kind));
        if let Some(part) = self.find_mut(at, kind) {
            part.owners += 1;
        }
    }

    fn find(&self, at: usize, kind: HandleKind) -> Option<&HandleRecord> {
        self.records.get(&at)?.iter().find(|record| record.kind == kind)
    }

    fn find_mut(&mut self, at: usize, kind: HandleKind) -> Option<&mut HandleRecord> {
        self.records.get_mut(&at)?.iter_mut().find(|record| record.kind == kind)
    }

    pub fn check(&self, at: usize, kind: HandleKind) -> Result<(), HandleFault> {
        if let Some(record) = self.find(at, kind) {
            return record.ended_in.map_or(Ok(()), |call| Err(HandleFault::Ended(call)));
        }
        if !kind.is_complete() {
            return Ok(());
        }
        let others = self.records.get(&at).into_iter().flatten();
        let other = others.filter(|record| record.is_live()).map(|record| record.kind).next();
        Err(other.map_or(HandleFault::Unknown, HandleFault::OtherKind))
    }

    /// Checks that C owns the live object there.
    pub fn may_be_given_up(&self, at: usize, kind: HandleKind) -> Result<(), HandleFault> {
        match self.find(at, kind) {
            Some(record) if !record.is_given => Err(HandleFault::Lent(record.came_from)),
            _ => Ok(()),
        }
    }

    /// Ends the object and its parts.
    pub fn end(&mut self, at: usize, kind: HandleKind, call: &'static str, memory: Option<DeadMemory>) {
        let mut parts = vec![];
        if let Some(record) = self.find_mut(at, kind).filter(|record| record.is_live()) {
            record.ended_in = Some(call);
            parts = std::mem::take(&mut record.parts);
        }
        self.dead_bytes += memory.as_ref().map_or(0, |memory| memory.layout.size());
        self.dead.push_back((at, kind, memory));
        for (at, kind) in parts {
            let Some(part) = self.find_mut(at, kind) else { continue };
            part.owners = part.owners.saturating_sub(1);
            // An object that C owns outlives the objects that also exposed it.
            if part.owners == 0 && !part.is_given {
                self.end(at, kind, call, None);
            }
        }
        while self.dead.len() > DEAD_MAX || self.dead_bytes > DEAD_BYTES_MAX {
            let Some((at, kind, memory)) = self.dead.pop_front() else { break };
            self.dead_bytes -= memory.as_ref().map_or(0, |memory| memory.layout.size());
            self.forget(at, kind);
        }
    }

    /// Removes the record of a dead object, unless another object of its kind lives there meanwhile.
    fn forget(&mut self, at: usize, kind: HandleKind) {
        let Some(here) = self.records.get_mut(&at) else { return };
        here.retain(|record| record.kind != kind || record.is_live());
        if here.is_empty() {
            self.records.remove(&at);
        }
    }

    /// Whether this fault was not logged yet; remembers it.
    pub fn is_new(&mut self, call: &'static str, kind: HandleKind, fault: &HandleFault) -> bool {
        self.logged.len() < FAULTS_MAX && self.logged.insert((call, kind, fault.clone()))
    }

    /// The objects that C has to give back, as `<count> <kind> from <function>`.
    pub fn held(&self, by: Option<&str>) -> Vec<String> {
        let mut counts = BTreeMap::<(&str, &str), usize>::new();
        for record in self.records.values().flatten().filter(|record| record.is_live() && record.is_given) {
            if by.is_none_or(|by| record.by == by) {
                *counts.entry((record.kind.name(), record.came_from)).or_default() += 1;
            }
        }
        let line = |((kind, call), count): ((&str, &str), usize)| match call {
            "" => format!("{count} {kind}"),
            call => format!("{count} {kind} from {call}"),
        };
        counts.into_iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::kind_of;
    use super::*;
    use crate::abi::handles::{OutputHandle, ResponseHandle};
    use crate::abi::server::{Error, Message};

    fn response() -> HandleRecord {
        HandleRecord::given(kind_of::<ResponseHandle>(), "New", "b".to_owned())
    }

    #[test]
    fn handles_are_live_until_they_are_given_up() {
        let (response_kind, output_kind) = (kind_of::<ResponseHandle>(), kind_of::<OutputHandle>());
        let mut records = HandleRecords::default();
        assert_eq!(records.check(8, response_kind), Err(HandleFault::Unknown));
        records.write(8, response());
        records.write_part(8, HandleRecord::lent(output_kind, "Output"), (8, response_kind));
        records.write_part(16, HandleRecord::lent(output_kind, "Output"), (8, response_kind));
        assert_eq!(records.check(8, response_kind), Ok(()));
        assert_eq!(records.check(8, output_kind), Ok(()));
        assert_eq!(records.check(16, response_kind), Err(HandleFault::OtherKind(output_kind)));
        assert_eq!(records.may_be_given_up(16, output_kind), Err(HandleFault::Lent("Output")));
        assert_eq!(records.held(None), ["1 TRITONBACKEND_Response from New"]);
        assert_eq!(records.held(Some("b")).len(), 1);
        assert!(records.held(Some("c")).is_empty());
        records.end(8, response_kind, "Send", None);
        for (at, kind) in [(8, response_kind), (8, output_kind), (16, output_kind)] {
            assert_eq!(records.check(at, kind), Err(HandleFault::Ended("Send")));
        }
        assert!(records.held(None).is_empty());
        let text = HandleFault::Ended("Send").describe(output_kind);
        assert_eq!(text, "a TRITONBACKEND_Output that was given up in Send");
        // The address is used again.
        records.write(8, response());
        assert_eq!(records.check(8, response_kind), Ok(()));
        assert_eq!(records.check(8, kind_of::<Vec<u8>>()), Ok(()), "not all of this kind are known");
    }

    #[test]
    fn a_part_of_several_ends_with_the_last() {
        let (owner, part) = (kind_of::<ResponseHandle>(), kind_of::<OutputHandle>());
        let mut records = HandleRecords::default();
        for at in [8, 16] {
            records.write(at, response());
            for _ in 0..2 {
                records.write_part(64, HandleRecord::lent(part, "Output"), (at, owner));
            }
        }
        records.end(8, owner, "Send", None);
        assert_eq!(records.check(64, part), Ok(()));
        records.end(16, owner, "Send", None);
        assert_eq!(records.check(64, part), Err(HandleFault::Ended("Send")));
    }

    #[test]
    fn faults_are_news_once() {
        let mut records = HandleRecords::default();
        let kind = kind_of::<Message>();
        assert!(records.is_new("Delete", kind, &HandleFault::Unknown));
        assert!(!records.is_new("Delete", kind, &HandleFault::Unknown));
        assert!(records.is_new("Delete", kind, &HandleFault::Ended("Delete")));
        assert!(records.is_new("Serialize", kind, &HandleFault::Unknown));
    }

    #[test]
    fn the_dead_are_bounded_and_their_memory_is_freed() {
        let kind = kind_of::<Error>();
        let mut records = HandleRecords::default();
        let layout = Layout::from_size_align(DEAD_BYTES_MAX / 4, 8).unwrap();
        for at in 1..=6 {
            records.write(at, HandleRecord::given(kind, "New", String::new()));
            // SAFETY: the layout has a size.
            let memory = DeadMemory::new(unsafe { std::alloc::alloc(layout) }, layout);
            records.end(at, kind, "Delete", Some(memory));
        }
        assert_eq!((records.dead.len(), records.dead_bytes), (4, DEAD_BYTES_MAX));
        assert_eq!(records.check(2, kind), Err(HandleFault::Unknown), "forgotten");
        assert_eq!(records.check(3, kind), Err(HandleFault::Ended("Delete")));
        for at in 100..100 + DEAD_MAX * 2 {
            records.write(at, HandleRecord::given(kind, "New", String::new()));
            records.end(at, kind, "Delete", None);
        }
        assert!(records.dead.len() <= DEAD_MAX && records.records.len() <= DEAD_MAX);
    }
}
