//! The dynamic table (RFC 7541 section 2.3.2), used by both directions.
//!
//! Entries lie one behind the other in one buffer of twice the table's size; when its end is reached, the live part
//! moves to the front. So inserting copies bytes but allocates nothing once the buffer has grown.

use std::collections::VecDeque;

/// What an entry counts beyond its octets (section 4.1).
const ENTRY_OVERHEAD: usize = 32;

#[derive(Clone, Copy)]
struct Entry {
    start: usize,
    name_len: usize,
    value_len: usize,
    legal: bool,
}

pub(super) struct Table {
    bytes: Vec<u8>,
    /// Newest first.
    entries: VecDeque<Entry>,
    size: usize,
    max_size: usize,
}

impl Table {
    pub(super) fn new(max_size: usize) -> Table {
        Table { bytes: Vec::new(), entries: VecDeque::new(), size: 0, max_size }
    }

    pub(super) fn max_size(&self) -> usize {
        self.max_size
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Name, value and legality of the entry that was inserted `age` insertions before the newest.
    pub(super) fn get(&self, age: usize) -> Option<(&[u8], &[u8], bool)> {
        let entry = self.entries.get(age)?;
        let name = entry.start..entry.start + entry.name_len;
        let value = name.end..name.end + entry.value_len;
        Some((&self.bytes[name], &self.bytes[value], entry.legal))
    }

    /// Age of the entry with this name and value, or of one with this name only.
    pub(super) fn find(&self, name: &[u8], value: &[u8]) -> Found {
        let mut found = Found::Nothing;
        for (age, entry) in self.entries.iter().enumerate() {
            if entry.name_len != name.len() {
                continue;
            }
            let value_at = entry.start + entry.name_len;
            if &self.bytes[entry.start..value_at] != name {
                continue;
            }
            if &self.bytes[value_at..value_at + entry.value_len] == value {
                return Found::Field(age);
            }
            if matches!(found, Found::Nothing) {
                found = Found::Name(age);
            }
        }
        found
    }

    /// Evicts what has to go and inserts; an entry larger than the table empties it (section 4.4).
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8], legal: bool) {
        let size = name.len() + value.len() + ENTRY_OVERHEAD;
        if size > self.max_size {
            return self.clear();
        }
        self.evict_to(self.max_size - size);
        let len = name.len() + value.len();
        if self.bytes.len() + len > self.max_size * 2 {
            self.compact();
        }
        let entry = Entry { start: self.bytes.len(), name_len: name.len(), value_len: value.len(), legal };
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.entries.push_front(entry);
        self.size += size;
    }

    pub(super) fn resize(&mut self, max_size: usize) {
        self.max_size = max_size;
        self.evict_to(max_size);
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
        self.size = 0;
    }

    fn evict_to(&mut self, size: usize) {
        while self.size > size {
            let Some(entry) = self.entries.pop_back() else { break };
            self.size -= entry.name_len + entry.value_len + ENTRY_OVERHEAD;
        }
        if self.entries.is_empty() {
            self.clear();
        }
    }

    fn compact(&mut self) {
        let Some(oldest) = self.entries.back() else { return self.bytes.clear() };
        let dead = oldest.start;
        self.bytes.drain(..dead);
        for entry in &mut self.entries {
            entry.start -= dead;
        }
    }
}

pub(super) enum Found {
    Nothing,
    Name(usize),
    Field(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_stays_bounded_and_entries_stay_right() {
        let mut table = Table::new(256);
        for i in 0..10_000u32 {
            let value = format!("{i}");
            table.insert(b"name", value.as_bytes(), true);
            assert_eq!(table.get(0), Some((&b"name"[..], value.as_bytes(), true)));
            if i > 0 {
                assert_eq!(table.get(1).unwrap().1, format!("{}", i - 1).as_bytes());
            }
            assert!(table.size <= 256 && table.bytes.len() <= 512);
        }
        assert!(matches!(table.find(b"name", b"9999"), Found::Field(0)));
        assert!(matches!(table.find(b"name", b"0"), Found::Name(0)));
        table.insert(b"x", &[b'v'; 300], true);
        assert_eq!((table.get(0), table.size), (None, 0));
    }

    #[test]
    fn a_smaller_table_keeps_the_newest() {
        let mut table = Table::new(4096);
        table.insert(b"a", b"1", true);
        table.insert(b"b", b"2", false);
        table.resize(34);
        assert_eq!(table.get(0), Some((&b"b"[..], &b"2"[..], false)));
        assert_eq!(table.get(1), None);
        table.resize(0);
        table.insert(b"", b"", true);
        assert_eq!(table.get(0), None);
    }

    /// Eviction ends, and an entry is too large, beyond the size of the table and not at it (sections 4.2 to 4.4).
    #[test]
    fn entries_fill_the_table_to_its_last_byte() {
        let value = [b'v'; 64 - ENTRY_OVERHEAD - 1];
        let mut table = Table::new(64);
        table.insert(b"n", &value, true);
        assert_eq!((table.size(), table.get(0)), (64, Some((&b"n"[..], &value[..], true))), "as large as the table");
        table.insert(b"o", &value, false);
        assert_eq!(table.get(0), Some((&b"o"[..], &value[..], false)));
        assert_eq!((table.size(), table.get(1)), (64, None), "in the place of the one before");
        let larger = [b'v'; 64 - ENTRY_OVERHEAD];
        table.insert(b"n", &larger, true);
        assert_eq!((table.size(), table.get(0)), (0, None), "one byte more, and the table is empty");
        // Two halves fit; an entry of a byte more leaves room for neither.
        table.insert(b"", b"", true);
        table.insert(b"", b"", true);
        assert_eq!(table.size(), 64);
        assert!(table.get(1).is_some());
        table.insert(b"x", b"", true);
        assert_eq!((table.size(), table.get(1)), (33, None), "33 and 32 are more than 64");
        table.resize(33);
        assert!(table.get(0).is_some(), "as large as the new size");
        table.resize(32);
        assert_eq!((table.size(), table.get(0)), (0, None));
    }
}
