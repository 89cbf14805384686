//! Reads a ModelInferRequest as its bytes arrive, whatever the order of fields and wherever the bytes are cut.
//!
//! Every length is checked against what the message around it can still hold before anything is allocated. Raw contents
//! of [`DIRECT_BYTES`] and more get a block of their own, by their length alone, and the transport may receive straight
//! into it; smaller ones and typed contents are copied to aligned places of a shared block.
//!
//! Accepted is what prost accepts, and with the same meaning (`scan/tests.rs` holds the two against each other). On
//! purpose different: the bounds of [`Limits`], and that of several filled lists of one InferTensorContents only the
//! first keeps its elements. Known to differ from protobuf's C++ library, as prost does: a known field with a wrong wire
//! type is an error here and an unknown field there.

mod fields;
#[cfg(test)]
mod tests;

use smallvec::SmallVec;

use self::fields::{Field, Kind, Numbers, Text, WireType};
use super::arena::{TensorArena, empty_tensor};
use super::request::{Contents, InferRequest, Input, List, Output, Param, Str};
use super::{Bound, MESSAGE_BYTES_MAX, Malformed, ReadError, varint};
use crate::memory::{BlockMut, Pool};

/// From this length on, raw contents get a block of their own.
pub const DIRECT_BYTES: usize = 16 * 1024;
/// Messages and groups within each other; the limit of protobuf's own libraries.
const DEPTH_MAX: usize = 100;
/// Typed contents get no more room than this before their bytes are here.
const TRUSTED_BYTES: usize = 64 * 1024;

/// What one message may hold.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of the whole message, at most [`MESSAGE_BYTES_MAX`].
    pub message_bytes_max: usize,
    /// Bytes of names, parameters and shapes together.
    pub text_bytes_max: usize,
    /// Inputs, outputs, parameters and raw contents together.
    pub items_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { message_bytes_max: MESSAGE_BYTES_MAX, text_bytes_max: 64 << 20, items_max: 65_536 }
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

impl Direct {
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

/// What the next byte belongs to.
enum State {
    /// A field's key, or the end of the message around it.
    Key,
    /// A varint that is `Field`'s value.
    Varint(Field),
    /// A value of 4 or 8 bytes.
    Fixed(Field, usize),
    /// The length of what `Field` holds.
    Length(Field),
    /// Bytes of a string.
    Text(Text, usize),
    /// Bytes of a tensor in the arena: raw contents.
    Raw(usize),
    /// Bytes of a tensor with a block of its own; `None` while the transport has it.
    Direct { block: Option<BlockMut>, at: usize, left: usize },
    /// Bytes of an element of bytes_contents.
    Element(usize),
    /// Bytes of a packed list of fixed-size numbers.
    Run(usize),
    /// Bytes of something unknown.
    Skip(usize),
}

/// The scanner of one message at a time; [`InferScanner::begin`] makes it ready for the next.
pub struct InferScanner {
    request: Box<InferRequest>,
    arena: TensorArena,
    limits: Limits,
    state: State,
    /// The innermost message that is being read, and how many bytes of it are still to come.
    inside: Kind,
    left: usize,
    /// The messages around it, each with what is left of it behind the inner one.
    outer: SmallVec<[(Kind, usize); 6]>,
    /// Numbers of the unknown groups that are open within the innermost message.
    groups: Vec<u32>,
    /// The front of a key, varint or fixed-size value whose rest is still to come.
    carry: [u8; varint::BYTES_MAX],
    carried: usize,
    /// The front of a string whose rest is still to come.
    partial: Vec<u8>,
    /// The map entry that is being read.
    entry: (Option<Str>, Param),
    /// The list of the current input that keeps its elements.
    kept: Option<List>,
    /// Bytes of the message still to come, as a guess for the arena.
    ahead: usize,
    ticket: u64,
}

impl InferScanner {
    pub fn new(pool: Pool, limits: Limits) -> InferScanner {
        InferScanner {
            request: Box::default(),
            arena: TensorArena::new(pool),
            limits,
            state: State::Key,
            inside: Kind::Request,
            left: 0,
            outer: SmallVec::new(),
            groups: Vec::new(),
            carry: [0; varint::BYTES_MAX],
            carried: 0,
            partial: Vec::new(),
            entry: (None, Param::Unset),
            kept: None,
            ahead: 0,
            ticket: 0,
        }
    }

    /// Begins a message of `len` bytes; whatever was read of another one is dropped.
    pub fn begin(&mut self, len: usize) -> Result<(), ReadError> {
        self.request.clear();
        self.arena.clear();
        self.outer.clear();
        self.groups.clear();
        self.partial.clear();
        self.partial.shrink_to(TRUSTED_BYTES);
        (self.state, self.inside, self.left, self.carried) = (State::Key, Kind::Request, len, 0);
        (self.entry, self.kept) = ((None, Param::Unset), None);
        (self.ahead, self.ticket) = (len, self.ticket.wrapping_add(1));
        let bytes_max = self.limits.message_bytes_max.min(MESSAGE_BYTES_MAX);
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
        matches!(self.state, State::Key)
            && self.left == 0
            && self.carried == 0
            && self.outer.is_empty()
            && self.groups.is_empty()
    }

    /// Hands out the request, if it is complete. `spare` is storage for the next one.
    pub fn take(&mut self, spare: Option<Box<InferRequest>>) -> Option<Box<InferRequest>> {
        if !self.is_complete() {
            return None;
        }
        self.arena.clear();
        self.request.settle_parameters();
        Some(std::mem::replace(&mut self.request, spare.unwrap_or_default()))
    }

    /// The window that the next bytes belong to, if it has a block of its own. Nothing can be fed while it is out.
    pub fn take_direct(&mut self) -> Option<Direct> {
        let State::Direct { block, at, left } = &mut self.state else { return None };
        let block = block.take()?;
        Some(Direct { block, at: *at, len: *left, ticket: self.ticket })
    }

    /// Takes a window back whose first `n` bytes were received. A window of a message that was given up is dropped, and
    /// the answer is false.
    pub fn direct_received(&mut self, direct: Direct, n: usize) -> bool {
        let State::Direct { block: slot @ None, at, left } = &mut self.state else { return false };
        if direct.ticket != self.ticket {
            return false;
        }
        let n = n.min(*left);
        (*at, *left) = (*at + n, *left - n);
        *slot = Some(direct.block);
        self.ahead = self.ahead.saturating_sub(n);
        self.end_direct();
        true
    }

    /// One state's worth of input; false when more is needed, or nothing more is wanted.
    fn step(&mut self, rest: &mut &[u8]) -> Result<bool, ReadError> {
        match self.state {
            State::Key => return self.next_field(rest),
            State::Varint(field) => {
                let Some(value) = self.varint(rest)? else { return Ok(false) };
                self.state = State::Key;
                self.set_varint(field, value)?;
            }
            State::Fixed(field, width) => {
                let Some(bits) = self.fixed(rest, width)? else { return Ok(false) };
                self.state = State::Key;
                self.set_fixed(field, width, bits)?;
            }
            State::Length(field) => {
                let Some(len) = self.varint(rest)? else { return Ok(false) };
                let len = usize::try_from(len).map_err(|_| Malformed::Overrun)?;
                self.open(field, len)?;
            }
            _ if rest.is_empty() && !self.is_run_over() => return Ok(false),
            _ => return self.bytes(rest),
        }
        Ok(true)
    }

    fn is_run_over(&self) -> bool {
        match self.state {
            State::Text(_, left) | State::Raw(left) | State::Element(left) | State::Run(left) | State::Skip(left) => {
                left == 0
            }
            _ => false,
        }
    }

    /// Takes the bytes of a string, a tensor or something unknown.
    fn bytes(&mut self, rest: &mut &[u8]) -> Result<bool, ReadError> {
        let left = match &mut self.state {
            State::Text(_, left)
            | State::Raw(left)
            | State::Element(left)
            | State::Run(left)
            | State::Skip(left)
            | State::Direct { block: Some(_), left, .. } => left,
            _ => return Ok(false),
        };
        let whole = *left;
        let (chunk, behind) = rest.split_at(whole.min(rest.len()));
        *left -= chunk.len();
        *rest = behind;
        self.ahead = self.ahead.saturating_sub(chunk.len());
        match &mut self.state {
            State::Text(text, left) => {
                let (text, over) = (*text, *left == 0);
                self.text(text, chunk, over)?;
            }
            State::Direct { block: Some(block), at, .. } => {
                if let Some(window) = block.get_mut(*at..*at + chunk.len()) {
                    window.copy_from_slice(chunk);
                }
                *at += chunk.len();
                self.end_direct();
            }
            State::Raw(left) => {
                let over = *left == 0;
                self.arena.append(chunk, self.ahead)?;
                if over {
                    let tensor = self.arena.finish();
                    self.request.raw.push(tensor);
                    self.state = State::Key;
                }
            }
            State::Element(left) | State::Run(left) => {
                let over = *left == 0;
                self.arena.append(chunk, self.ahead)?;
                if over {
                    self.state = State::Key;
                }
            }
            State::Skip(left) => {
                if *left == 0 {
                    self.state = State::Key;
                }
            }
            _ => {}
        }
        Ok(true)
    }

    /// Files the tensor with a block of its own, once all of it is here.
    fn end_direct(&mut self) {
        if let State::Direct { block, left: 0, .. } = &mut self.state
            && let Some(block) = block.take()
        {
            self.request.raw.push(block.freeze());
            self.state = State::Key;
        }
    }

    /// Closes what ends here and reads the next key, or the next number of a packed list.
    fn next_field(&mut self, rest: &mut &[u8]) -> Result<bool, ReadError> {
        while self.left == 0 && self.carried == 0 {
            if !self.groups.is_empty() {
                return Err(Malformed::Overrun.into());
            }
            let Some((kind, left)) = self.outer.pop() else { return Ok(false) };
            self.close(kind);
            (self.inside, self.left) = (kind, left);
        }
        if let Kind::Packed(numbers) = self.inside {
            let Some(value) = self.varint(rest)? else { return Ok(false) };
            self.push_number(numbers, value)?;
            return Ok(true);
        }
        let Some(key) = self.varint(rest)? else { return Ok(false) };
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
                return Ok(true);
            }
            _ if matches!(field, Field::Unknown) && self.depth() >= DEPTH_MAX => {
                return Err(Malformed::Depth(DEPTH_MAX).into());
            }
            WireType::GroupStart => {
                self.groups.push(number);
                return Ok(true);
            }
            WireType::Varint => State::Varint(field),
            WireType::Fixed32 => State::Fixed(field, 4),
            WireType::Fixed64 => State::Fixed(field, 8),
            WireType::Length => State::Length(field),
        };
        Ok(true)
    }

    fn depth(&self) -> usize {
        self.outer.len() + self.groups.len()
    }

    /// A varint within the innermost message; `None` while bytes of it are missing.
    #[inline]
    fn varint(&mut self, rest: &mut &[u8]) -> Result<Option<u64>, ReadError> {
        if self.carried > 0 {
            return self.carried_varint(rest);
        }
        let here = &rest[..rest.len().min(self.left)];
        match varint::decode(here) {
            varint::Decoded::Value(value, len) => {
                self.consume(rest, len);
                Ok(Some(value))
            }
            varint::Decoded::TooLong => Err(Malformed::Varint.into()),
            varint::Decoded::Partial if here.len() == self.left => Err(Malformed::Overrun.into()),
            varint::Decoded::Partial => {
                let len = here.len();
                self.carry[..len].copy_from_slice(here);
                self.carried = len;
                self.consume(rest, len);
                Ok(None)
            }
        }
    }

    /// Completes a varint that was cut, byte by byte.
    #[cold]
    fn carried_varint(&mut self, rest: &mut &[u8]) -> Result<Option<u64>, ReadError> {
        loop {
            if self.left == 0 {
                return Err(Malformed::Overrun.into());
            }
            let Some(&byte) = rest.first() else { return Ok(None) };
            let Some(slot) = self.carry.get_mut(self.carried) else { return Err(Malformed::Varint.into()) };
            *slot = byte;
            self.carried += 1;
            self.consume(rest, 1);
            match varint::decode(&self.carry[..self.carried]) {
                varint::Decoded::Value(value, _) => {
                    self.carried = 0;
                    return Ok(Some(value));
                }
                varint::Decoded::TooLong => return Err(Malformed::Varint.into()),
                varint::Decoded::Partial => {}
            }
        }
    }

    /// A little-endian value of `width` bytes within the innermost message; `None` while bytes of it are missing.
    fn fixed(&mut self, rest: &mut &[u8], width: usize) -> Result<Option<u64>, ReadError> {
        if width - self.carried > self.left {
            return Err(Malformed::Overrun.into());
        }
        let len = rest.len().min(width - self.carried);
        self.carry[self.carried..self.carried + len].copy_from_slice(&rest[..len]);
        self.carried += len;
        self.consume(rest, len);
        if self.carried < width {
            return Ok(None);
        }
        self.carried = 0;
        let mut bits = [0; 8];
        bits[..width].copy_from_slice(&self.carry[..width]);
        Ok(Some(u64::from_le_bytes(bits)))
    }

    #[inline]
    fn consume(&mut self, rest: &mut &[u8], len: usize) {
        *rest = &rest[len..];
        self.left -= len;
        self.ahead = self.ahead.saturating_sub(len);
    }

    /// Begins the `len` bytes that `field` holds.
    fn open(&mut self, field: Field, len: usize) -> Result<(), ReadError> {
        self.left = self.left.checked_sub(len).ok_or(Malformed::Overrun)?;
        self.state = match field {
            Field::Unknown => State::Skip(len),
            Field::Text(text) => {
                self.check_text(len)?;
                State::Text(text, len)
            }
            Field::Message(kind) => {
                self.open_message(kind)?;
                self.enter(kind, len)
            }
            Field::Raw => {
                self.check_items()?;
                if len >= DIRECT_BYTES {
                    State::Direct { block: Some(self.arena.pool().get(len)?), at: 0, left: len }
                } else if len == 0 {
                    self.request.raw.push(empty_tensor());
                    State::Key
                } else {
                    self.arena.reserve(len, self.ahead)?;
                    State::Raw(len)
                }
            }
            Field::BytesContents => {
                if self.fill(List::Bytes, 1) {
                    self.arena.append(&(len as u32).to_le_bytes(), self.ahead)?;
                    State::Element(len)
                } else {
                    State::Skip(len)
                }
            }
            Field::Numbers(numbers) => match numbers.list_of_fixed() {
                Some((list, width)) => self.open_run(list, width, len)?,
                None => self.enter(Kind::Packed(numbers), len),
            },
            // `fields::check` lets none of these come with a length.
            Field::Bool | Field::Int64 | Field::Uint64 | Field::Double => {
                return Err(Malformed::WireType(WireType::Length as u8).into());
            }
        };
        Ok(())
    }

    fn enter(&mut self, kind: Kind, len: usize) -> State {
        self.outer.push((self.inside, self.left));
        (self.inside, self.left) = (kind, len);
        State::Key
    }

    fn open_message(&mut self, kind: Kind) -> Result<(), ReadError> {
        let (dims, parameters) = (self.request.dims.len(), self.request.tensor_parameters.len());
        match kind {
            Kind::Input => {
                self.check_items()?;
                let (dims, parameters) = (dims..dims, parameters..parameters);
                self.request.inputs.push(Input { dims, parameters, ..Input::default() });
                self.kept = None;
            }
            Kind::Output => {
                self.check_items()?;
                self.request.outputs.push(Output { parameters: parameters..parameters, ..Output::default() });
            }
            Kind::Entry => {
                self.check_items()?;
                self.entry = (None, Param::Unset);
            }
            Kind::Contents => {
                if let Some(input) = self.request.inputs.last_mut() {
                    input.contents.get_or_insert_default();
                }
            }
            Kind::Request | Kind::Parameter | Kind::Packed(_) => {}
        }
        Ok(())
    }

    /// A packed list of fixed-size numbers: its bytes are the tensor's.
    fn open_run(&mut self, list: List, width: usize, len: usize) -> Result<State, ReadError> {
        if !len.is_multiple_of(width) {
            return Err(Malformed::Overrun.into());
        }
        if len == 0 || !self.fill(list, len / width) {
            return Ok(State::Skip(len));
        }
        self.arena.reserve(len.min(TRUSTED_BYTES), self.ahead)?;
        Ok(State::Run(len))
    }

    /// The innermost message, which lies in one of `outer`, is over.
    fn close(&mut self, outer: Kind) {
        let request = &mut *self.request;
        match self.inside {
            Kind::Input => {
                if let Some(input) = request.inputs.last_mut() {
                    if let Some(contents) = &mut input.contents {
                        contents.set_data(self.arena.finish());
                    }
                    let start = input.parameters.start;
                    input.dims.end = request.dims.len();
                    request.settle_tensor_parameters(start);
                }
                if let Some(input) = request.inputs.last_mut() {
                    input.parameters.end = request.tensor_parameters.len();
                }
            }
            Kind::Output => {
                let start = request.outputs.last().map_or(0, |output| output.parameters.start);
                request.settle_tensor_parameters(start);
                if let Some(output) = request.outputs.last_mut() {
                    output.parameters.end = request.tensor_parameters.len();
                }
            }
            Kind::Entry => {
                let (key, value) = std::mem::replace(&mut self.entry, (None, Param::Unset));
                let key = key.unwrap_or_else(|| request.push_str(""));
                match outer {
                    Kind::Request => request.parameters.push((key, value)),
                    _ => request.tensor_parameters.push((key, value)),
                }
            }
            Kind::Request | Kind::Contents | Kind::Parameter | Kind::Packed(_) => {}
        }
    }

    /// More of a string; `over` with its last bytes.
    fn text(&mut self, text: Text, chunk: &[u8], over: bool) -> Result<(), ReadError> {
        let str = if over && self.partial.is_empty() {
            let str = std::str::from_utf8(chunk).map_err(|_| Malformed::Utf8)?;
            self.request.push_str(str)
        } else {
            self.partial.extend_from_slice(chunk);
            if !over {
                return Ok(());
            }
            let str = std::str::from_utf8(&self.partial).map_err(|_| Malformed::Utf8)?;
            let str = self.request.push_str(str);
            self.partial.clear();
            str
        };
        self.state = State::Key;
        let request = &mut *self.request;
        let (input, output) = (request.inputs.last_mut(), request.outputs.last_mut());
        match (text, input, output) {
            (Text::ModelName, ..) => request.model_name = str,
            (Text::ModelVersion, ..) => request.model_version = str,
            (Text::Id, ..) => request.id = str,
            (Text::InputName, Some(input), _) => input.name = str,
            (Text::Datatype, Some(input), _) => input.datatype = str,
            (Text::OutputName, _, Some(output)) => output.name = str,
            (Text::Key, ..) => self.entry.0 = Some(str),
            (Text::Value, ..) => self.entry.1 = Param::String(str),
            (Text::InputName | Text::Datatype | Text::OutputName, ..) => {}
        }
        Ok(())
    }

    fn set_varint(&mut self, field: Field, value: u64) -> Result<(), ReadError> {
        match field {
            Field::Numbers(numbers) => return self.push_number(numbers, value),
            Field::Bool => self.entry.1 = Param::Bool(value != 0),
            Field::Int64 => self.entry.1 = Param::Int64(value as i64),
            Field::Uint64 => self.entry.1 = Param::Uint64(value),
            _ => {}
        }
        Ok(())
    }

    fn set_fixed(&mut self, field: Field, width: usize, bits: u64) -> Result<(), ReadError> {
        match field {
            Field::Double => self.entry.1 = Param::Double(f64::from_bits(bits)),
            Field::Numbers(numbers) => {
                if let Some((list, _)) = numbers.list_of_fixed()
                    && self.fill(list, 1)
                {
                    self.arena.append(&bits.to_le_bytes()[..width], self.ahead)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Appends a number that came as a varint to its list. Values beyond the type lose their high bits, as everywhere
    /// in protobuf.
    fn push_number(&mut self, numbers: Numbers, value: u64) -> Result<(), ReadError> {
        let (list, width) = match numbers {
            Numbers::Shape => {
                self.check_text(size_of::<i64>())?;
                self.request.dims.push(value as i64);
                return Ok(());
            }
            Numbers::Bool => (List::Bool, 1),
            Numbers::Int => (List::Int, 4),
            Numbers::Uint => (List::Uint, 4),
            Numbers::Int64 => (List::Int64, 8),
            Numbers::Uint64 => (List::Uint64, 8),
            Numbers::Fp32 | Numbers::Fp64 => return Err(Malformed::WireType(WireType::Varint as u8).into()),
        };
        if self.fill(list, 1) {
            let value = if matches!(numbers, Numbers::Bool) { u64::from(value != 0) } else { value };
            self.arena.append(&value.to_le_bytes()[..width], self.ahead)?;
        }
        Ok(())
    }

    /// Notes that `list` has `n` more elements; true if it is the one that keeps them.
    fn fill(&mut self, list: List, n: usize) -> bool {
        let kept = *self.kept.get_or_insert(list) == list;
        if let Some(Input { contents: Some(contents), .. }) = self.request.inputs.last_mut() {
            Contents::fill(contents, list);
            contents.add_elements(if kept { n } else { 0 });
        }
        kept
    }

    /// Refuses `more` bytes of strings and shapes beyond the bound, before they are here.
    fn check_text(&self, more: usize) -> Result<(), ReadError> {
        let max = self.limits.text_bytes_max.min(u32::MAX as usize / 2);
        // Each string takes a NUL more.
        if self.request.text_bytes().saturating_add(more).saturating_add(1) > max {
            return Err(ReadError::Bound { bound: Bound::TextBytes, max });
        }
        Ok(())
    }

    fn check_items(&self) -> Result<(), ReadError> {
        let max = self.limits.items_max;
        if self.request.items() >= max { Err(ReadError::Bound { bound: Bound::Items, max }) } else { Ok(()) }
    }
}
