//! Reads a ModelInferRequest as its bytes arrive, whatever the order of fields and wherever the bytes are cut.
//!
//! Every length is checked against what the message around it can still hold before anything is allocated. Raw contents
//! of [`DIRECT_BYTES`] and more get a block of their own, by their length alone, and the transport may receive straight
//! into it; smaller ones and typed contents are copied to aligned places of a shared block.
//!
//! Accepted is what prost accepts, and with the same meaning (`scan/tests.rs` holds the two against each other).
//! Different on purpose: the bounds of [`Limits`]; of several filled lists of one InferTensorContents only the first
//! keeps its elements; a map's entry with a wrong wire type, which prost lets pass, is an error. Known to differ from
//! protobuf's C++ library, as prost does: it treats a known field with a wrong wire type as an unknown one.

mod build;
mod fields;
#[cfg(test)]
mod tests;
mod tokens;

use smallvec::SmallVec;

use self::build::Builder;
use self::fields::{Field, Kind, Numbers, Text, WireType};
use self::tokens::Tokens;
use super::{InferRequest, MESSAGE_BYTES_MAX, Malformed, ReadError, TEXT_BYTES_MAX};
use nereid_memory::{BlockMut, Pool};

/// From this length on, raw contents get a block of their own.
pub const DIRECT_BYTES: usize = 16 * 1024;
/// Messages and groups within each other; the limit of protobuf's own libraries.
const DEPTH_MAX: usize = 100;
/// Numbers of a packed list that are filed together.
const NUMBERS_AT_ONCE: usize = 16;

/// What one message may hold.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of the whole message, at most [`MESSAGE_BYTES_MAX`].
    pub message_bytes_max: usize,
    /// Bytes of names, parameters and shapes together.
    pub text_bytes_max: usize,
    /// Inputs, outputs, parameters and raw contents together.
    pub items_max: usize,
    /// Inputs, outputs and raw contents, of each so many, that are kept; more of them are only counted. Asked when a
    /// message begins.
    pub tensors_max: fn() -> usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            message_bytes_max: MESSAGE_BYTES_MAX,
            text_bytes_max: TEXT_BYTES_MAX,
            items_max: 65_536,
            tensors_max: || usize::MAX,
        }
    }
}

/// A window of a tensor that the transport fills itself. It owns the block, so that it can stay with an operation of
/// the kernel for as long as that lasts; dropping it means that the message will never be complete.
#[derive(Debug)]
pub struct Direct {
    block: BlockMut,
    at: usize,
    len: usize,
    ticket: u64,
}

/// What remains of a [`Direct`] while its block is with the transport.
#[derive(Debug)]
pub struct DirectTicket {
    at: usize,
    len: usize,
    ticket: u64,
}

impl Direct {
    /// The block, where in it the bytes belong and how many, and what is needed to put it back together.
    pub fn into_parts(self) -> (BlockMut, usize, usize, DirectTicket) {
        let Direct { block, at, len, ticket } = self;
        (block, at, len, DirectTicket { at, len, ticket })
    }

    pub fn from_parts(block: BlockMut, ticket: DirectTicket) -> Direct {
        Direct { block, at: ticket.at, len: ticket.len, ticket: ticket.ticket }
    }

    /// The next bytes of the message belong here. Never empty.
    pub fn window(&mut self) -> &mut [u8] {
        self.block.get_mut(self.at..self.at + self.len).unwrap_or_default()
    }

    /// Bytes of the window.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// What the next byte belongs to. Small and free to copy: it changes twice for every field.
#[derive(Clone, Copy)]
enum ScanState {
    /// A field's key, or the end of the message around it.
    Key,
    /// A varint that is the field's value.
    Varint(Field),
    /// A value of 4 or 8 bytes.
    Fixed(Field, usize),
    /// The length of what the field holds.
    Length(Field),
    /// So many bytes of something.
    Bytes(Bytes, usize),
    /// So many bytes of a tensor with a block of its own, which grows as they arrive.
    Direct(usize),
}

/// What a run of bytes is.
#[derive(Clone, Copy)]
enum Bytes {
    Text(Text),
    /// Raw contents that go into the arena.
    Raw,
    /// Typed contents: an element of bytes_contents, or a packed list of fixed-size numbers.
    Contents,
    Unknown,
}

/// The scanner of one message at a time; [`InferScanner::begin`] makes it ready for the next.
pub struct InferScanner {
    builder: Builder,
    tokens: Tokens,
    bytes_max: usize,
    state: ScanState,
    /// The block of the tensor that has its own, away while the transport has it.
    direct: Option<BlockMut>,
    /// Bytes of that tensor in all.
    direct_len: usize,
    /// The innermost message that is being read.
    inside: Kind,
    /// The messages around it, each with what is left of it behind the inner one.
    outer: SmallVec<[(Kind, usize); 6]>,
    /// Numbers of the unknown groups that are open within the innermost message.
    groups: Vec<u32>,
    /// Tells windows of this message from those of earlier ones.
    ticket: u64,
}

impl InferScanner {
    pub fn new(pool: Pool, limits: Limits) -> InferScanner {
        InferScanner {
            builder: Builder::new(pool, limits),
            tokens: Tokens::new(0),
            bytes_max: limits.message_bytes_max.min(MESSAGE_BYTES_MAX),
            state: ScanState::Key,
            direct: None,
            direct_len: 0,
            inside: Kind::Request,
            outer: SmallVec::new(),
            groups: Vec::new(),
            ticket: 0,
        }
    }

    /// Takes memory from this pool from now on. To be called between messages.
    pub fn set_pool(&mut self, pool: &Pool) {
        self.builder.set_pool(pool);
    }

    /// Begins a message of `len` bytes; whatever was read of another one is dropped.
    pub fn begin(&mut self, len: usize) -> Result<(), ReadError> {
        self.builder.reset();
        self.tokens = Tokens::new(len);
        (self.state, self.direct, self.inside) = (ScanState::Key, None, Kind::Request);
        self.outer.clear();
        self.groups.clear();
        self.ticket = self.ticket.wrapping_add(1);
        let bytes_max = self.bytes_max;
        if len > bytes_max { Err(ReadError::TooLarge { bytes: len, bytes_max }) } else { Ok(()) }
    }

    /// Reads on. Says how many bytes were taken: all of them, unless the message ends before or the transport has the
    /// window that they belong to. After an error only [`InferScanner::begin`] makes sense.
    pub fn feed(&mut self, input: &[u8]) -> Result<usize, ReadError> {
        let mut rest = input;
        while self.step(&mut rest)? {}
        Ok(input.len() - rest.len())
    }

    /// True when every byte of the message was read.
    pub fn is_complete(&self) -> bool {
        matches!(self.state, ScanState::Key) && self.tokens.is_over() && self.outer.is_empty() && self.groups.is_empty()
    }

    /// Hands out the request, if it is complete. `spare` is storage for the next one.
    pub fn take(&mut self, spare: Option<Box<InferRequest>>) -> Option<Box<InferRequest>> {
        self.is_complete().then(|| self.builder.take(spare))
    }

    /// The window that the next bytes belong to, if it has a block of its own. Nothing can be fed while it is out. None
    /// where there is no memory for them either: the call that feeds them returns why.
    pub fn take_direct(&mut self) -> Option<Direct> {
        let ScanState::Direct(left) = self.state else { return None };
        let at = self.direct_len - left;
        self.builder.grow_direct(self.direct.as_mut()?, at + 1, self.direct_len).ok()?;
        let block = self.direct.take()?;
        Some(Direct { at, len: block.len() - at, block, ticket: self.ticket })
    }

    /// Takes a window back whose first `n` bytes were received. A window of a message that was given up is dropped, and
    /// the answer is false.
    pub fn direct_received(&mut self, direct: Direct, n: usize) -> bool {
        let ScanState::Direct(left) = self.state else { return false };
        if direct.ticket != self.ticket || self.direct.is_some() || direct.at != self.direct_len - left {
            return false;
        }
        let n = n.min(direct.len);
        self.direct = Some(direct.block);
        self.passed_direct(left, n);
        true
    }

    /// One state's worth of input; false when more is needed, or nothing more is wanted.
    fn step(&mut self, rest: &mut &[u8]) -> Result<bool, ReadError> {
        match self.state {
            ScanState::Key => return self.next_field(rest),
            ScanState::Varint(field) => {
                let Some(value) = self.tokens.varint(rest)? else { return Ok(false) };
                self.state = ScanState::Key;
                self.builder.varint(field, value, self.tokens.ahead)?;
            }
            ScanState::Fixed(field, width) => {
                let Some(bits) = self.tokens.fixed(rest, width)? else { return Ok(false) };
                self.state = ScanState::Key;
                self.builder.fixed(field, width, bits, self.tokens.ahead)?;
            }
            ScanState::Length(field) => return self.open(field, rest),
            ScanState::Bytes(bytes, left) => {
                if rest.is_empty() && left > 0 {
                    return Ok(false);
                }
                let chunk = self.chunk(rest, left);
                let left = left - chunk.len();
                self.state = if left == 0 { ScanState::Key } else { ScanState::Bytes(bytes, left) };
                match bytes {
                    Bytes::Text(text) => self.builder.text(text, chunk, left == 0)?,
                    Bytes::Raw => self.builder.raw(chunk, left == 0, self.tokens.ahead)?,
                    Bytes::Contents => self.builder.append(chunk, self.tokens.ahead)?,
                    Bytes::Unknown => {}
                }
            }
            ScanState::Direct(left) => return self.receive(rest, left),
        }
        Ok(true)
    }

    /// The next bytes of a run of which `left` are missing.
    fn chunk<'a>(&mut self, rest: &mut &'a [u8], left: usize) -> &'a [u8] {
        let (chunk, behind) = rest.split_at(left.min(rest.len()));
        *rest = behind;
        self.tokens.passed(chunk.len());
        chunk
    }

    /// Copies into a tensor with a block of its own what came by another way than its window. False if nothing did.
    fn receive(&mut self, rest: &mut &[u8], left: usize) -> Result<bool, ReadError> {
        let Some(block) = &mut self.direct else { return Ok(false) };
        let at = self.direct_len - left;
        let (chunk, behind) = rest.split_at(left.min(rest.len()));
        self.builder.grow_direct(block, at + chunk.len(), self.direct_len)?;
        block[at..at + chunk.len()].copy_from_slice(chunk);
        *rest = behind;
        self.passed_direct(left, chunk.len());
        Ok(!chunk.is_empty())
    }

    /// Notes that `n` of the `left` bytes of a tensor with a block of its own are here; files it after the last.
    fn passed_direct(&mut self, left: usize, n: usize) {
        self.tokens.passed(n);
        self.state = ScanState::Direct(left - n);
        if n == left
            && let Some(block) = self.direct.take()
        {
            self.builder.push_raw(block.freeze());
            self.state = ScanState::Key;
        }
    }

    /// Closes what ends here and reads the next key, or the next number of a packed list.
    fn next_field(&mut self, rest: &mut &[u8]) -> Result<bool, ReadError> {
        while self.tokens.is_over() {
            if !self.groups.is_empty() {
                return Err(Malformed::Overrun.into());
            }
            let Some((outer, left)) = self.outer.pop() else { return Ok(false) };
            self.builder.close(self.inside, outer);
            (self.inside, self.tokens.left) = (outer, left);
        }
        if let Kind::Packed(numbers) = self.inside {
            return self.packed(numbers, rest);
        }
        let Some(key) = self.tokens.varint(rest)? else { return Ok(false) };
        let key = u32::try_from(key).map_err(|_| Malformed::Key)?;
        let (number, wire) = (key >> 3, WireType::of(key)?);
        if number == 0 {
            return Err(Malformed::Key.into());
        }
        let field = if self.groups.is_empty() { fields::field(self.inside, number) } else { Field::Unknown };
        fields::check(field, wire)?;
        self.state = match wire {
            WireType::GroupEnd => {
                if self.groups.pop() != Some(number) {
                    return Err(Malformed::GroupEnd.into());
                }
                ScanState::Key
            }
            _ if field == Field::Unknown && self.outer.len() + self.groups.len() >= DEPTH_MAX => {
                return Err(Malformed::Depth(DEPTH_MAX).into());
            }
            WireType::GroupStart => {
                self.groups.push(number);
                ScanState::Key
            }
            WireType::Varint => ScanState::Varint(field),
            WireType::Fixed32 => ScanState::Fixed(field, 4),
            WireType::Fixed64 => ScanState::Fixed(field, 8),
            WireType::Length => {
                self.state = ScanState::Length(field);
                return self.open(field, rest);
            }
        };
        Ok(true)
    }

    /// Reads a few numbers of a packed list.
    fn packed(&mut self, numbers: Numbers, rest: &mut &[u8]) -> Result<bool, ReadError> {
        let mut values = [0; NUMBERS_AT_ONCE];
        let mut n = 0;
        while n < values.len() && !self.tokens.is_over() {
            let Some(value) = self.tokens.varint(rest)? else { break };
            values[n] = value;
            n += 1;
        }
        self.builder.numbers(numbers, &values[..n], self.tokens.ahead)?;
        Ok(n > 0)
    }

    /// Reads the length of what `field` holds and begins it.
    fn open(&mut self, field: Field, rest: &mut &[u8]) -> Result<bool, ReadError> {
        let Some(len) = self.tokens.varint(rest)? else { return Ok(false) };
        let len = usize::try_from(len).map_err(|_| Malformed::Overrun)?;
        self.tokens.reserve(len)?;
        let ahead = self.tokens.ahead;
        self.state = match field {
            Field::Unknown => ScanState::Bytes(Bytes::Unknown, len),
            Field::Text(text) => {
                self.builder.check_text(len)?;
                ScanState::Bytes(Bytes::Text(text), len)
            }
            Field::Message(kind) if self.builder.passes_over(kind)? => ScanState::Bytes(Bytes::Unknown, len),
            Field::Message(kind) => {
                self.builder.open(kind)?;
                self.enter(kind, len)
            }
            Field::Raw if self.builder.passes_over_raw()? => ScanState::Bytes(Bytes::Unknown, len),
            Field::Raw if len >= DIRECT_BYTES => {
                (self.direct, self.direct_len) = (Some(self.builder.open_direct(len)?), len);
                ScanState::Direct(len)
            }
            Field::Raw => {
                self.builder.open_raw(len, ahead)?;
                ScanState::Bytes(Bytes::Raw, len)
            }
            Field::BytesContents => {
                let kept = self.builder.open_element(len, ahead)?;
                ScanState::Bytes(if kept { Bytes::Contents } else { Bytes::Unknown }, len)
            }
            Field::Numbers(numbers) => match numbers.list_of_fixed() {
                Some((list, width)) => {
                    let kept = self.builder.open_run(list, width, len, ahead)?;
                    ScanState::Bytes(if kept { Bytes::Contents } else { Bytes::Unknown }, len)
                }
                None => self.enter(Kind::Packed(numbers), len),
            },
            // `fields::check` lets none of these come with a length.
            Field::Bool | Field::Int64 | Field::Uint64 | Field::Double => {
                return Err(Malformed::WireType(WireType::Length as u8).into());
            }
        };
        Ok(true)
    }

    fn enter(&mut self, kind: Kind, len: usize) -> ScanState {
        self.outer.push((self.inside, self.tokens.left));
        (self.inside, self.tokens.left) = (kind, len);
        ScanState::Key
    }
}
