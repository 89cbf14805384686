//! Puts what was read where it belongs in the request, within the bounds.

use smallvec::SmallVec;

use super::super::arena::TensorArena;
use super::super::request::{InferRequest, Input, List, Output, Param, Str};
use super::super::{Bound, Malformed, ReadError};
use super::fields::{Field, Kind, Numbers, Text, WireType};
use super::{Limits, NUMBERS_AT_ONCE};
use nereid_memory::{BlockMut, Charge, Pool, Slice, TRUSTED_BYTES};

/// Parameters of one message or tensor: they are sorted in one go.
const ENTRIES_MAX: usize = 4096;
/// Bytes of all keys of one message, which sorting compares.
const KEY_BYTES_MAX: usize = 1 << 20;

pub(super) struct Builder {
    request: Box<InferRequest>,
    arena: TensorArena,
    limits: Limits,
    /// Inputs, outputs and raw contents of this message, of each so many, that are kept.
    tensors_max: usize,
    /// The string that is being read, as far as its bytes are here and whole characters.
    begun: Option<Str>,
    /// The front of a character whose rest is still to come.
    partial: SmallVec<[u8; 4]>,
    /// Entries of the map of parameters that is being read, and bytes of all keys of the message.
    entries: usize,
    key_bytes: usize,
    /// The map entry that is being read.
    entry: (Option<Str>, Param),
    /// The list of the current input that keeps its elements.
    kept: Option<List>,
    /// What the request takes beside its tensors, if that is more than a little.
    held: Option<Charge>,
}

/// Bytes of strings, shapes and lists that are not worth charging.
const FREE_BYTES: usize = 32 * 1024;
/// Bytes that the list entry of an input, output, parameter or tensor takes, roughly.
const ITEM_BYTES: usize = 160;
/// Items after which the charge is checked again.
const ITEMS_AT_ONCE: usize = 256;

impl Builder {
    pub(super) fn new(pool: Pool, limits: Limits) -> Builder {
        let arena = TensorArena::new(pool);
        Builder {
            request: Box::default(),
            arena,
            limits,
            tensors_max: usize::MAX,
            begun: None,
            partial: SmallVec::new(),
            entries: 0,
            key_bytes: 0,
            entry: (None, Param::Unset),
            kept: None,
            held: None,
        }
    }

    /// Drops what there is of a request.
    pub(super) fn reset(&mut self) {
        self.tensors_max = (self.limits.tensors_max)();
        self.request.clear();
        self.arena.clear();
        self.partial.clear();
        (self.begun, self.entries, self.key_bytes) = (None, 0, 0);
        (self.entry, self.kept, self.held) = ((None, Param::Unset), None, None);
    }

    /// Charges what the request takes beside its tensors, ahead of what it will take soon.
    fn charge(&mut self) -> Result<(), ReadError> {
        let used = self.request.text_bytes() + self.request.items() * ITEM_BYTES;
        if used > FREE_BYTES && used > self.held.as_ref().map_or(0, Charge::bytes) / 2 {
            // Lists grow to twice what they hold, and are copied as they grow.
            self.held = Some(self.arena.pool().hold(used.saturating_mul(4))?);
        }
        Ok(())
    }

    /// Ends the request and hands it out, with `spare` in its place.
    pub(super) fn take(&mut self, spare: Option<Box<InferRequest>>) -> Box<InferRequest> {
        self.arena.clear();
        self.request.settle_parameters();
        self.request.held = self.held.take();
        std::mem::replace(&mut self.request, spare.unwrap_or_default())
    }

    /// Counts an input or output that is one too many to be kept; false for every other message.
    pub(super) fn passes_over(&mut self, kind: Kind) -> Result<bool, ReadError> {
        let kept = match kind {
            Kind::Input => self.request.inputs.len(),
            Kind::Output => self.request.outputs.len(),
            _ => return Ok(false),
        };
        if kept < self.tensors_max {
            return Ok(false);
        }
        self.check_items()?;
        match kind {
            Kind::Input => self.request.inputs_passed_over += 1,
            _ => self.request.outputs_passed_over += 1,
        }
        Ok(true)
    }

    /// The same of raw contents, whose tensors are further inputs.
    pub(super) fn passes_over_raw(&mut self) -> Result<bool, ReadError> {
        if self.request.raw.len() < self.tensors_max {
            return Ok(false);
        }
        self.check_items()?;
        self.request.raw_passed_over += 1;
        Ok(true)
    }

    /// Begins a message within the request.
    pub(super) fn open(&mut self, kind: Kind) -> Result<(), ReadError> {
        let (dims, parameters) = (self.request.dims.len(), self.request.tensor_parameters.len());
        match kind {
            Kind::Input => {
                self.check_items()?;
                let (dims, parameters) = (dims..dims, parameters..parameters);
                self.request.inputs.push(Input { dims, parameters, ..Input::default() });
                (self.kept, self.entries) = (None, 0);
            }
            Kind::Output => {
                self.check_items()?;
                self.entries = 0;
                self.request.outputs.push(Output { parameters: parameters..parameters, ..Output::default() });
            }
            Kind::Entry => {
                self.check_items()?;
                self.entries += 1;
                if self.entries > ENTRIES_MAX || self.request.parameters.len() >= ENTRIES_MAX {
                    return Err(ReadError::Bound { bound: Bound::Items, max: ENTRIES_MAX });
                }
                self.entry = (None, Param::Unset);
            }
            Kind::Contents => {
                self.request.expect_contents();
            }
            Kind::Request | Kind::Parameter | Kind::Packed(_) => {}
        }
        Ok(())
    }

    /// Ends the message `inside`, which lies in `outer`.
    pub(super) fn close(&mut self, inside: Kind, outer: Kind) {
        let request = &mut *self.request;
        match inside {
            Kind::Input => {
                let start = request.inputs.last().map_or(0, |input| input.parameters.start);
                request.settle_tensor_parameters(start);
                if let Some(input) = request.inputs.last_mut() {
                    input.dims.end = request.dims.len();
                    input.parameters.end = request.tensor_parameters.len();
                    if let Some(contents) = &mut input.contents {
                        contents.set_data(self.arena.finish());
                    }
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
    pub(super) fn text(&mut self, text: Text, chunk: &[u8], over: bool) -> Result<(), ReadError> {
        let mut str = self.begun.take().unwrap_or_else(|| self.request.begin_str());
        self.add_characters(&mut str, chunk)?;
        if !over {
            self.charge()?;
            self.begun = Some(str);
            return Ok(());
        }
        if !self.partial.is_empty() {
            return Err(Malformed::Utf8.into());
        }
        self.request.end_str();
        if let Text::Key = text {
            self.key_bytes += str.len();
            if self.key_bytes > KEY_BYTES_MAX {
                return Err(ReadError::Bound { bound: Bound::TextBytes, max: KEY_BYTES_MAX });
            }
        }
        let request = &mut *self.request;
        match (text, request.inputs.last_mut(), request.outputs.last_mut()) {
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

    /// Adds whole characters to a string; what there is of the last one waits for its rest.
    fn add_characters(&mut self, str: &mut Str, mut chunk: &[u8]) -> Result<(), ReadError> {
        while let Some((&byte, rest)) = chunk.split_first().filter(|_| !self.partial.is_empty()) {
            self.partial.push(byte);
            chunk = rest;
            match std::str::from_utf8(&self.partial) {
                Ok(character) => {
                    self.request.extend_str(str, character);
                    self.partial.clear();
                }
                Err(error) if error.error_len().is_none() => {}
                Err(_) => return Err(Malformed::Utf8.into()),
            }
        }
        let whole = match std::str::from_utf8(chunk) {
            Ok(whole) => whole,
            Err(error) if error.error_len().is_none() => {
                let (whole, rest) = chunk.split_at_checked(error.valid_up_to()).unwrap_or((chunk, &[]));
                self.partial.extend_from_slice(rest);
                std::str::from_utf8(whole).map_err(|_| Malformed::Utf8)?
            }
            Err(_) => return Err(Malformed::Utf8.into()),
        };
        self.request.extend_str(str, whole);
        Ok(())
    }

    /// A single varint.
    pub(super) fn varint(&mut self, field: Field, value: u64, ahead: usize) -> Result<(), ReadError> {
        match field {
            Field::Numbers(numbers) => return self.numbers(numbers, &[value], ahead),
            Field::Bool => self.entry.1 = Param::Bool(value != 0),
            Field::Int64 => self.entry.1 = Param::Int64(value as i64),
            Field::Uint64 => self.entry.1 = Param::Uint64(value),
            _ => {}
        }
        Ok(())
    }

    /// A single value of `width` bytes.
    pub(super) fn fixed(&mut self, field: Field, width: usize, bits: u64, ahead: usize) -> Result<(), ReadError> {
        match field {
            Field::Double => self.entry.1 = Param::Double(f64::from_bits(bits)),
            Field::Numbers(numbers) => {
                if let Some((list, _)) = numbers.list_of_fixed()
                    && self.fill(list, 1)
                {
                    self.arena.append(&bits.to_le_bytes()[..width], ahead)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Numbers of a list that came as varints, a few at a time. Values beyond the type lose their high bits, as
    /// everywhere in protobuf.
    pub(super) fn numbers(&mut self, numbers: Numbers, values: &[u64], ahead: usize) -> Result<(), ReadError> {
        let (list, width) = match numbers {
            Numbers::Shape => {
                self.check_text(size_of_val(values))?;
                if self.request.dims.len().is_multiple_of(4096) {
                    self.charge()?;
                }
                self.request.dims.extend(values.iter().map(|&value| value as i64));
                return Ok(());
            }
            Numbers::Bool => (List::Bool, 1),
            Numbers::Int => (List::Int, self.request.int_bytes()),
            Numbers::Uint => (List::Uint, self.request.int_bytes()),
            Numbers::Int64 => (List::Int64, 8),
            Numbers::Uint64 => (List::Uint64, 8),
            Numbers::Fp32 | Numbers::Fp64 => return Err(Malformed::WireType(WireType::Varint as u8).into()),
        };
        if values.is_empty() || !self.fill(list, values.len()) {
            return Ok(());
        }
        let mut bytes = [0; 8 * NUMBERS_AT_ONCE];
        for (place, &value) in bytes.chunks_exact_mut(width).zip(values) {
            let value = if list == List::Bool { u64::from(value != 0) } else { value };
            place.copy_from_slice(&value.to_le_bytes()[..width]);
        }
        Ok(self.arena.append(&bytes[..width * values.len()], ahead)?)
    }

    /// Begins an element of bytes_contents; false if it is not kept.
    pub(super) fn open_element(&mut self, len: usize, ahead: usize) -> Result<bool, ReadError> {
        let kept = self.fill(List::Bytes, 1);
        if kept {
            self.arena.append(&(len as u32).to_le_bytes(), ahead)?;
        }
        Ok(kept)
    }

    /// Begins a packed list whose bytes are the tensor's; false if it is not kept.
    pub(super) fn open_run(&mut self, list: List, width: usize, len: usize, ahead: usize) -> Result<bool, ReadError> {
        if !len.is_multiple_of(width) {
            return Err(Malformed::Overrun.into());
        }
        let kept = len > 0 && self.fill(list, len / width);
        if kept {
            self.arena.reserve(len.min(TRUSTED_BYTES), ahead)?;
        }
        Ok(kept)
    }

    /// Bytes of typed contents.
    pub(super) fn append(&mut self, bytes: &[u8], ahead: usize) -> Result<(), ReadError> {
        Ok(self.arena.append(bytes, ahead)?)
    }

    /// Begins raw contents that go into the arena.
    pub(super) fn open_raw(&mut self, len: usize, ahead: usize) -> Result<(), ReadError> {
        self.check_items()?;
        Ok(self.arena.reserve(len, ahead)?)
    }

    /// More of raw contents in the arena; `over` with their last bytes.
    pub(super) fn raw(&mut self, bytes: &[u8], over: bool, ahead: usize) -> Result<(), ReadError> {
        self.arena.append(bytes, ahead)?;
        if over {
            self.request.raw.push(self.arena.finish());
        }
        Ok(())
    }

    /// A block for raw contents of their own: for their beginning, where they are long.
    pub(super) fn open_direct(&mut self, len: usize) -> Result<BlockMut, ReadError> {
        self.check_items()?;
        Ok(self.arena.pool().begin(len)?)
    }

    /// Makes room for the first `needed` of `len` bytes in the block of raw contents.
    pub(super) fn grow_direct(&self, block: &mut BlockMut, needed: usize, len: usize) -> Result<(), ReadError> {
        match block.len() >= needed {
            true => Ok(()),
            false => Ok(self.arena.pool().grow(block, needed, len)?),
        }
    }

    pub(super) fn set_pool(&mut self, pool: &Pool) {
        self.arena.set_pool(pool);
    }

    pub(super) fn push_raw(&mut self, tensor: Slice) {
        self.request.raw.push(tensor);
    }

    /// Notes that `list` has `n` more elements; true if it is the one that keeps them.
    fn fill(&mut self, list: List, n: usize) -> bool {
        let kept = *self.kept.get_or_insert(list) == list;
        if let Some(contents) = self.request.inputs.last_mut().and_then(|input| input.contents.as_mut()) {
            contents.fill(list);
            contents.add_elements(if kept { n } else { 0 });
        }
        kept
    }

    /// Refuses `more` bytes of strings and shapes beyond the bound, before they are here.
    pub(super) fn check_text(&self, more: usize) -> Result<(), ReadError> {
        let max = self.limits.text_bytes_max.min(u32::MAX as usize / 2);
        // Each string takes a NUL more.
        if self.request.text_bytes().saturating_add(more).saturating_add(1) > max {
            return Err(ReadError::Bound { bound: Bound::TextBytes, max });
        }
        Ok(())
    }

    fn check_items(&mut self) -> Result<(), ReadError> {
        let (items, max) = (self.request.items(), self.limits.items_max);
        if items >= max {
            return Err(ReadError::Bound { bound: Bound::Items, max });
        }
        if items >= ITEMS_AT_ONCE && items.is_multiple_of(ITEMS_AT_ONCE) {
            self.charge()?;
        }
        Ok(())
    }
}
