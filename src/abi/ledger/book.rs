//! The records of the registry: live and dead objects by address, and the memory of the dead.

use std::alloc::Layout;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use super::kinds::Kind;

/// How many objects that were given back keep their records, and how much of their memory is kept.
const DEAD_MAX: usize = 65_536;
const DEAD_BYTES_MAX: usize = 64 << 20;
/// How many different faults are logged.
const NEWS_MAX: usize = 4096;

/// Memory of a dead object.
#[derive(Debug)]
pub struct Memory {
    at: *mut u8,
    layout: Layout,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Memory {}

impl Memory {
    /// `at` came from the allocator with this layout, and only this value frees it.
    pub fn new(at: *mut u8, layout: Layout) -> Memory {
        Memory { at, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: by the promise of `new`.
        unsafe { std::alloc::dealloc(self.at, self.layout) }
    }
}

/// The record of an object that C holds or held.
#[derive(Debug)]
pub struct Entry {
    kind: Kind,
    /// C has to give it back.
    is_given: bool,
    /// The backend that got it; empty: unknown.
    by: String,
    /// The function that handed it out.
    came_from: &'static str,
    /// The function that ended it.
    ended_in: Option<&'static str>,
    /// The parts of it, which end with it.
    parts: Vec<(usize, Kind)>,
    /// How many objects it is a part of: it ends with the last of them.
    owners: usize,
}

impl Entry {
    pub fn given(kind: Kind, came_from: &'static str, by: String) -> Entry {
        Entry { kind, is_given: true, by, came_from, ended_in: None, parts: Vec::new(), owners: 0 }
    }

    pub fn lent(kind: Kind, came_from: &'static str) -> Entry {
        Entry { kind, is_given: false, by: String::new(), came_from, ended_in: None, parts: Vec::new(), owners: 0 }
    }

    fn is_live(&self) -> bool {
        self.ended_in.is_none()
    }
}

/// What is wrong with a handle.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Fault {
    Ended(&'static str),
    OtherKind(Kind),
    Unknown,
    /// It is live, but the caller does not own it.
    Lent(&'static str),
}

impl Fault {
    /// Describes the fault of a handle that should be a `kind`.
    pub fn describe(&self, kind: Kind) -> String {
        let wanted = kind.name();
        match self {
            Fault::Ended(call) => format!("a {wanted} that was given up in {call}"),
            Fault::OtherKind(found) => format!("a {}, not a {wanted}", found.name()),
            Fault::Unknown => format!("no {wanted} of this server"),
            Fault::Lent(call) => format!("a {wanted} that was lent by {call} and is not the caller's to give up"),
        }
    }
}

#[derive(Debug, Default)]
pub struct Book {
    /// Several objects may begin at one address: a value and its first part.
    entries: HashMap<usize, Vec<Entry>>,
    /// The dead objects, in the order of their ends.
    dead: VecDeque<(usize, Kind, Option<Memory>)>,
    dead_bytes: usize,
    news: HashSet<(&'static str, Kind, Fault)>,
}

impl Book {
    pub fn write(&mut self, at: usize, entry: Entry) {
        let here = self.entries.entry(at).or_default();
        match here.iter_mut().find(|known| known.kind == entry.kind) {
            // Recorded again, for example for another getter: owner and parts stay as they are.
            Some(known) if known.is_live() && !entry.is_given => {}
            Some(known) => *known = entry,
            None => here.push(entry),
        }
    }

    pub fn write_part(&mut self, at: usize, entry: Entry, owner: (usize, Kind)) {
        let kind = entry.kind;
        if !self.find(at, kind).is_some_and(Entry::is_live) {
            self.write(at, entry);
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

    fn find(&self, at: usize, kind: Kind) -> Option<&Entry> {
        self.entries.get(&at)?.iter().find(|entry| entry.kind == kind)
    }

    fn find_mut(&mut self, at: usize, kind: Kind) -> Option<&mut Entry> {
        self.entries.get_mut(&at)?.iter_mut().find(|entry| entry.kind == kind)
    }

    pub fn check(&self, at: usize, kind: Kind) -> Result<(), Fault> {
        if let Some(entry) = self.find(at, kind) {
            return entry.ended_in.map_or(Ok(()), |call| Err(Fault::Ended(call)));
        }
        if !kind.is_complete() {
            return Ok(());
        }
        let others = self.entries.get(&at).into_iter().flatten();
        let other = others.filter(|entry| entry.is_live()).map(|entry| entry.kind).next();
        Err(other.map_or(Fault::Unknown, Fault::OtherKind))
    }

    /// Checks that C owns the live object there.
    pub fn may_be_given_up(&self, at: usize, kind: Kind) -> Result<(), Fault> {
        match self.find(at, kind) {
            Some(entry) if !entry.is_given => Err(Fault::Lent(entry.came_from)),
            _ => Ok(()),
        }
    }

    /// Ends the object and its parts.
    pub fn end(&mut self, at: usize, kind: Kind, call: &'static str, memory: Option<Memory>) {
        let mut parts = vec![];
        if let Some(entry) = self.find_mut(at, kind).filter(|entry| entry.is_live()) {
            entry.ended_in = Some(call);
            parts = std::mem::take(&mut entry.parts);
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
    fn forget(&mut self, at: usize, kind: Kind) {
        let Some(here) = self.entries.get_mut(&at) else { return };
        here.retain(|entry| entry.kind != kind || entry.is_live());
        if here.is_empty() {
            self.entries.remove(&at);
        }
    }

    /// Whether this fault was not logged yet; remembers it.
    pub fn is_news(&mut self, call: &'static str, kind: Kind, fault: &Fault) -> bool {
        self.news.len() < NEWS_MAX && self.news.insert((call, kind, fault.clone()))
    }

    /// The objects that C has to give back, as `<count> <kind> from <function>`.
    pub fn held(&self, by: Option<&str>) -> Vec<String> {
        let mut counts = BTreeMap::<(&str, &str), usize>::new();
        for entry in self.entries.values().flatten().filter(|entry| entry.is_live() && entry.is_given) {
            if by.is_none_or(|by| entry.by == by) {
                *counts.entry((entry.kind.name(), entry.came_from)).or_default() += 1;
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

    fn response() -> Entry {
        Entry::given(kind_of::<ResponseHandle>(), "New", "b".to_owned())
    }

    #[test]
    fn handles_are_live_until_they_are_given_up() {
        let (response_kind, output_kind) = (kind_of::<ResponseHandle>(), kind_of::<OutputHandle>());
        let mut book = Book::default();
        assert_eq!(book.check(8, response_kind), Err(Fault::Unknown));
        book.write(8, response());
        book.write_part(8, Entry::lent(output_kind, "Output"), (8, response_kind));
        book.write_part(16, Entry::lent(output_kind, "Output"), (8, response_kind));
        assert_eq!(book.check(8, response_kind), Ok(()));
        assert_eq!(book.check(8, output_kind), Ok(()));
        assert_eq!(book.check(16, response_kind), Err(Fault::OtherKind(output_kind)));
        assert_eq!(book.may_be_given_up(16, output_kind), Err(Fault::Lent("Output")));
        assert_eq!(book.held(None), ["1 TRITONBACKEND_Response from New"]);
        assert_eq!(book.held(Some("b")).len(), 1);
        assert!(book.held(Some("c")).is_empty());
        book.end(8, response_kind, "Send", None);
        for (at, kind) in [(8, response_kind), (8, output_kind), (16, output_kind)] {
            assert_eq!(book.check(at, kind), Err(Fault::Ended("Send")));
        }
        assert!(book.held(None).is_empty());
        let text = Fault::Ended("Send").describe(output_kind);
        assert_eq!(text, "a TRITONBACKEND_Output that was given up in Send");
        // The address is used again.
        book.write(8, response());
        assert_eq!(book.check(8, response_kind), Ok(()));
        assert_eq!(book.check(8, kind_of::<Vec<u8>>()), Ok(()), "not all of this kind are known");
    }

    #[test]
    fn a_part_of_several_ends_with_the_last() {
        let (owner, part) = (kind_of::<ResponseHandle>(), kind_of::<OutputHandle>());
        let mut book = Book::default();
        for at in [8, 16] {
            book.write(at, response());
            for _ in 0..2 {
                book.write_part(64, Entry::lent(part, "Output"), (at, owner));
            }
        }
        book.end(8, owner, "Send", None);
        assert_eq!(book.check(64, part), Ok(()));
        book.end(16, owner, "Send", None);
        assert_eq!(book.check(64, part), Err(Fault::Ended("Send")));
    }

    #[test]
    fn faults_are_news_once() {
        let mut book = Book::default();
        let kind = kind_of::<Message>();
        assert!(book.is_news("Delete", kind, &Fault::Unknown));
        assert!(!book.is_news("Delete", kind, &Fault::Unknown));
        assert!(book.is_news("Delete", kind, &Fault::Ended("Delete")));
        assert!(book.is_news("Serialize", kind, &Fault::Unknown));
    }

    #[test]
    fn the_dead_are_bounded_and_their_memory_is_freed() {
        let kind = kind_of::<Error>();
        let mut book = Book::default();
        let layout = Layout::from_size_align(DEAD_BYTES_MAX / 4, 8).unwrap();
        for at in 1..=6 {
            book.write(at, Entry::given(kind, "New", String::new()));
            // SAFETY: the layout has a size.
            let memory = Memory::new(unsafe { std::alloc::alloc(layout) }, layout);
            book.end(at, kind, "Delete", Some(memory));
        }
        assert_eq!((book.dead.len(), book.dead_bytes), (4, DEAD_BYTES_MAX));
        assert_eq!(book.check(2, kind), Err(Fault::Unknown), "forgotten");
        assert_eq!(book.check(3, kind), Err(Fault::Ended("Delete")));
        for at in 100..100 + DEAD_MAX * 2 {
            book.write(at, Entry::given(kind, "New", String::new()));
            book.end(at, kind, "Delete", None);
        }
        assert!(book.dead.len() <= DEAD_MAX && book.entries.len() <= DEAD_MAX);
    }
}
