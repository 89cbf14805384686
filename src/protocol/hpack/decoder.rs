//! Header blocks → fields (RFC 7541 section 3).

use super::table::Table;
use super::{DEFAULT_TABLE_SIZE, Error, huffman, integer, static_table};

/// One decoded field; it borrows from the table, the block or the decoder's scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
    /// Every octet is allowed in HTTP/2 (RFC 9113 section 8.2.1). It is found out when the field is inserted into the
    /// table, and costs nothing when it is named again.
    pub legal: bool,
    /// The peer marked the value as one that must never be put into a table (section 6.2.3).
    pub never_indexed: bool,
}

/// Takes the fields of one block, in order.
pub trait Sink {
    fn field(&mut self, field: Field<'_>);
}

impl<F: FnMut(Field<'_>)> Sink for F {
    fn field(&mut self, field: Field<'_>) {
        self(field)
    }
}

/// The state that a peer's header blocks share.
pub struct Decoder {
    table: Table,
    /// The largest table that the peer may choose.
    limit: usize,
    /// The limit fell below the table's size: the next block must begin with a size update (section 4.2).
    shrink_due: bool,
    generation: u64,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new()
    }
}

impl Decoder {
    pub fn new() -> Decoder {
        Decoder {
            table: Table::new(DEFAULT_TABLE_SIZE),
            limit: DEFAULT_TABLE_SIZE,
            shrink_due: false,
            generation: 0,
            name: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Sets the largest table that the peer may choose: SETTINGS_HEADER_TABLE_SIZE, once it is in force.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.shrink_due = self.table.max_size() > limit;
    }

    /// Changes whenever the table does. Two equal blocks under one generation mean the same fields.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Decodes one whole block. After an error the table is out of step and the decoder must not be used again.
    pub fn decode(&mut self, block: &[u8], sink: &mut impl Sink) -> Result<(), Error> {
        let mut at = 0;
        let mut updates_allowed = true;
        while let Some(first) = block.get(at).copied() {
            let update = first & 0xe0 == 0x20;
            if (update && !updates_allowed) || (!update && self.shrink_due) {
                return Err(Error::TableSizePlace);
            }
            updates_allowed = update;
            match first {
                0x80.. => self.indexed(integer::read(block, &mut at, 7)?, sink)?,
                0x40.. => self.literal(block, &mut at, 6, sink)?,
                0x20.. => self.resize(integer::read(block, &mut at, 5)?)?,
                _ => self.literal(block, &mut at, 4, sink)?,
            }
        }
        if self.shrink_due && !block.is_empty() { Err(Error::TableSizePlace) } else { Ok(()) }
    }

    fn indexed(&self, index: usize, sink: &mut impl Sink) -> Result<(), Error> {
        let (name, value, legal) = self.lookup(index)?;
        sink.field(Field { name, value, legal, never_indexed: false });
        Ok(())
    }

    fn lookup(&self, index: usize) -> Result<(&[u8], &[u8], bool), Error> {
        let at = index.checked_sub(1).ok_or(Error::UnknownIndex)?;
        match static_table::ENTRIES.get(at) {
            Some((name, value)) => Ok((name, value, true)),
            None => self.table.get(at - static_table::ENTRIES.len()).ok_or(Error::UnknownIndex),
        }
    }

    /// A field whose value, and perhaps name, is written out. A prefix of six bits means that it goes into the table.
    fn literal(&mut self, block: &[u8], at: &mut usize, prefix: u32, sink: &mut impl Sink) -> Result<(), Error> {
        let never_indexed = prefix == 4 && block.get(*at).is_some_and(|first| first & 0x10 != 0);
        let index = integer::read(block, at, prefix)?;
        let mut name = std::mem::take(&mut self.name);
        let mut value = std::mem::take(&mut self.value);
        name.clear();
        value.clear();
        let read = match index {
            0 => string(block, at, &mut name),
            // Copied, because inserting may evict the entry that lends its name (section 4.4).
            _ => self.lookup(index).map(|entry| name.extend_from_slice(entry.0)),
        }
        .and_then(|()| string(block, at, &mut value));
        if read.is_ok() {
            let legal = name_is_legal(&name) && value_is_legal(&value);
            sink.field(Field { name: &name, value: &value, legal, never_indexed });
            if prefix == 6 {
                self.table.insert(&name, &value, legal);
                self.generation += 1;
            }
        }
        (self.name, self.value) = (name, value);
        read
    }

    fn resize(&mut self, size: usize) -> Result<(), Error> {
        if size > self.limit {
            return Err(Error::TableSize);
        }
        self.table.resize(size);
        self.shrink_due = false;
        self.generation += 1;
        Ok(())
    }

    /// Gives back scratch memory that an unusually large field has claimed.
    pub fn shrink(&mut self) {
        self.name.clear();
        self.name.shrink_to(1024);
        self.value.clear();
        self.value.shrink_to(4096);
    }
}

/// Reads a string literal (section 5.2) into `out`.
fn string(block: &[u8], at: &mut usize, out: &mut Vec<u8>) -> Result<(), Error> {
    let coded = block.get(*at).is_some_and(|first| first & 0x80 != 0);
    let len = integer::read(block, at, 7)?;
    let end = at.checked_add(len).ok_or(Error::IntegerOverflow)?;
    let bytes = block.get(*at..end).ok_or(Error::Truncated)?;
    *at = end;
    match coded {
        true => huffman::decode(bytes, out),
        false => {
            out.extend_from_slice(bytes);
            Ok(())
        }
    }
}

/// Octets of a field name: those of a token (RFC 9110 section 5.6.2) without upper case, behind the colon that marks a
/// pseudo-header.
fn name_is_legal(name: &[u8]) -> bool {
    let token = name.strip_prefix(b":").unwrap_or(name);
    !token.is_empty() && token.iter().all(|byte| TOKEN[usize::from(*byte)])
}

static TOKEN: [bool; 256] = {
    let mut token = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        token[byte] = matches!(byte as u8, b'a'..=b'z' | b'0'..=b'9' | b'!' | b'#' | b'$' | b'%' | b'&' | b'\''
            | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~');
        byte += 1;
    }
    token
};

/// RFC 9113 section 8.2.1: no NUL, CR or LF anywhere. Spaces and tabs at the ends, which it forbids too, are part of
/// the value, as they are in gRPC's own library: clients that send them work with Triton.
fn value_is_legal(value: &[u8]) -> bool {
    !value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'))
}

#[cfg(test)]
#[path = "decoder_tests.rs"]
mod tests;
