//! A ModelInferRequest as it was scanned: a few flat tables that are cleared and used again.
//!
//! All strings lie in one text, each followed by a NUL, so that the C interface can hand out pointers to them without
//! a copy. Parameters and dimensions of all tensors share one table each. Binding raw contents to inputs is not done
//! here, because it depends on where an input's data is.

use std::ffi::CStr;
use std::ops::Range;

use nereid_memory::{Charge, Slice};

/// Capacities above these are not kept for the next request.
const TEXT_KEPT_BYTES: usize = 64 * 1024;
const ITEMS_KEPT: usize = 1024;

/// A string of an [`InferRequest`]: where it lies in the text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Str {
    at: u32,
    len: u32,
}

impl Str {
    /// Its bytes.
    pub(super) fn len(self) -> usize {
        self.len as usize
    }
}

/// The choice that an InferParameter made.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Param {
    #[default]
    Unset,
    Bool(bool),
    Int64(i64),
    String(Str),
    Double(f64),
    Uint64(u64),
}

/// [`Param`] with its text at hand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    Unset,
    Bool(bool),
    Int64(i64),
    String(&'a str),
    Double(f64),
    Uint64(u64),
}

/// The typed lists of InferTensorContents, in the order of their field numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    Bool,
    Int,
    Int64,
    Uint,
    Uint64,
    Fp32,
    Fp64,
    Bytes,
}

impl List {
    pub const ALL: [List; 8] =
        [List::Bool, List::Int, List::Int64, List::Uint, List::Uint64, List::Fp32, List::Fp64, List::Bytes];

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Tensor data in typed lists.
///
/// An input may fill one list (contract/grpc.md section 4, rule 3). A request that fills two is refused whatever they
/// hold, so only the one that came first keeps its elements; that others were not empty remains visible.
#[derive(Debug)]
pub struct Contents {
    filled: u8,
    elements: usize,
    /// Bytes that are kept of each element of `Int` and `Uint`.
    int_bytes: usize,
    data: Slice,
}

/// Bytes of an element of `Int` or `Uint` of a type that is not narrower.
pub const INT_BYTES: usize = 4;

impl Default for Contents {
    fn default() -> Contents {
        Contents { filled: 0, elements: 0, int_bytes: INT_BYTES, data: Slice::empty() }
    }
}

impl Contents {
    /// The lists that hold something, by field number.
    pub fn lists(&self) -> impl Iterator<Item = List> + use<> {
        let filled = self.filled;
        List::ALL.into_iter().filter(move |list| filled & list.bit() != 0)
    }

    /// How many elements the kept list has.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// The elements of the kept list, little-endian and packed: 1 byte each for `Bool`, 4 for `Fp32`, 8 for `Int64`,
    /// `Uint64` and `Fp64`, [`Contents::int_bytes`] for `Int` and `Uint`; for `Bytes` each element behind its length in
    /// 4 bytes. That is the tensor itself, unless its data type came behind its elements.
    pub fn data(&self) -> &Slice {
        &self.data
    }

    /// Bytes that are kept of each element of `Int` and `Uint`: as many as the data type has that stood before them.
    pub fn int_bytes(&self) -> usize {
        self.int_bytes
    }

    /// Of elements that are still to come, the type is this one.
    pub(super) fn expect(&mut self, datatype: &str) {
        if self.elements == 0 {
            self.int_bytes = match datatype {
                "INT8" | "UINT8" => 1,
                "INT16" | "UINT16" => 2,
                _ => INT_BYTES,
            };
        }
    }

    /// Notes that `list` holds something.
    pub(super) fn fill(&mut self, list: List) {
        self.filled |= list.bit();
    }

    pub(super) fn add_elements(&mut self, n: usize) {
        self.elements += n;
    }

    pub(super) fn set_data(&mut self, data: Slice) {
        self.data = data;
    }
}

/// An input tensor as declared.
#[derive(Debug, Default)]
pub struct Input {
    pub name: Str,
    pub datatype: Str,
    /// Typed data, where the field was there at all, even empty.
    pub contents: Option<Contents>,
    pub(super) dims: Range<usize>,
    pub(super) parameters: Range<usize>,
}

/// A requested output.
#[derive(Debug, Default)]
pub struct Output {
    pub name: Str,
    pub(super) parameters: Range<usize>,
}

/// One message; see the fields' accessors.
#[derive(Debug, Default)]
pub struct InferRequest {
    text: String,
    pub(super) model_name: Str,
    pub(super) model_version: Str,
    pub(super) id: Str,
    pub(super) parameters: Vec<(Str, Param)>,
    pub(super) tensor_parameters: Vec<(Str, Param)>,
    pub(super) dims: Vec<i64>,
    pub(super) inputs: Vec<Input>,
    pub(super) outputs: Vec<Output>,
    /// Inputs, outputs and raw contents beyond those that are kept.
    pub(super) inputs_passed_over: usize,
    pub(super) outputs_passed_over: usize,
    pub(super) raw_passed_over: usize,
    /// raw_input_contents in order, each aligned to [`nereid_memory::ALIGNMENT`].
    pub raw: Vec<Slice>,
    /// What the rest of it is charged with.
    pub(super) held: Option<Charge>,
}

impl InferRequest {
    pub fn model_name(&self) -> &str {
        self.str(self.model_name)
    }

    pub fn model_version(&self) -> &str {
        self.str(self.model_version)
    }

    pub fn id(&self) -> &str {
        self.str(self.id)
    }

    /// [`InferRequest::id`] for the C interface.
    pub fn id_c(&self) -> &CStr {
        self.c_str(self.id)
    }

    pub fn parameters(&self) -> Parameters<'_> {
        Parameters { request: self, entries: &self.parameters }
    }

    pub fn inputs(&self) -> impl ExactSizeIterator<Item = InputRef<'_>> {
        self.inputs.iter().map(|input| InputRef { request: self, input })
    }

    /// Inputs that the message holds, those included that were only counted.
    pub fn input_count(&self) -> usize {
        self.inputs.len() + self.inputs_passed_over
    }

    /// The same of requested outputs.
    pub fn output_count(&self) -> usize {
        self.outputs.len() + self.outputs_passed_over
    }

    pub fn outputs(&self) -> impl ExactSizeIterator<Item = OutputRef<'_>> {
        self.outputs.iter().map(|output| OutputRef { request: self, output })
    }

    pub fn str(&self, str: Str) -> &str {
        let at = str.at as usize;
        self.text.get(at..at + str.len as usize).unwrap_or_default()
    }

    /// The string as C sees it: up to its first NUL.
    pub fn c_str(&self, str: Str) -> &CStr {
        let rest = self.text.as_bytes().get(str.at as usize..).filter(|_| str.len > 0);
        rest.and_then(|rest| CStr::from_bytes_until_nul(rest).ok()).unwrap_or_default()
    }

    /// Forgets the message and keeps the storage, within reason.
    pub fn clear(&mut self) {
        fn clear<T>(items: &mut Vec<T>) {
            items.clear();
            items.shrink_to(ITEMS_KEPT);
        }
        self.text.clear();
        self.text.shrink_to(TEXT_KEPT_BYTES);
        clear(&mut self.parameters);
        clear(&mut self.tensor_parameters);
        clear(&mut self.dims);
        clear(&mut self.inputs);
        clear(&mut self.outputs);
        clear(&mut self.raw);
        (self.model_name, self.model_version, self.id) = Default::default();
        (self.inputs_passed_over, self.outputs_passed_over, self.raw_passed_over) = (0, 0, 0);
        self.held = None;
    }

    /// Bytes that strings and shapes take so far.
    pub(super) fn text_bytes(&self) -> usize {
        self.text.len() + size_of_val(self.dims.as_slice())
    }

    /// Typed contents of the last input begin.
    pub(super) fn expect_contents(&mut self) {
        if let Some(input) = self.inputs.last_mut() {
            let at = input.datatype.at as usize;
            let datatype = self.text.get(at..at + input.datatype.len()).unwrap_or_default();
            input.contents.get_or_insert_default().expect(datatype);
        }
    }

    /// Bytes to keep of each element of the last input that travels as a number of 32 bits.
    pub(super) fn int_bytes(&self) -> usize {
        let contents = self.inputs.last().and_then(|input| input.contents.as_ref());
        contents.map_or(INT_BYTES, Contents::int_bytes)
    }

    /// Inputs, outputs, parameters and raw contents so far.
    pub(super) fn items(&self) -> usize {
        let parameters = self.parameters.len() + self.tensor_parameters.len();
        self.input_count() + self.output_count() + parameters + self.raw.len() + self.raw_passed_over
    }

    /// Begins a string whose characters follow. The caller bounds the text to what a [`Str`] can address.
    pub(super) fn begin_str(&self) -> Str {
        Str { at: self.text.len() as u32, len: 0 }
    }

    /// Adds to the string that was begun last.
    pub(super) fn extend_str(&mut self, str: &mut Str, more: &str) {
        self.text.push_str(more);
        str.len += more.len() as u32;
    }

    /// Ends the string that was begun last.
    pub(super) fn end_str(&mut self) {
        self.text.push('\0');
    }

    /// Stores a string. The caller bounds the text to what a [`Str`] can address.
    pub(super) fn push_str(&mut self, str: &str) -> Str {
        let stored = Str { at: self.text.len() as u32, len: str.len() as u32 };
        self.text.push_str(str);
        self.text.push('\0');
        stored
    }

    /// Ends the parameters of the message itself: as a map has it, the last of equal keys wins.
    pub(super) fn settle_parameters(&mut self) {
        settle(&self.text, &mut self.parameters, 0);
    }

    /// As [`InferRequest::settle_parameters`], for the tensor whose parameters begin at `start`.
    pub(super) fn settle_tensor_parameters(&mut self, start: usize) {
        settle(&self.text, &mut self.tensor_parameters, start);
    }
}

/// Sorts the entries from `start` on by key and keeps the last of each. Strings lie in the text in the order of their
/// arrival and none is without its NUL, so places give the order of equal keys.
fn settle(text: &str, entries: &mut Vec<(Str, Param)>, start: usize) {
    let Some(tail) = entries.get_mut(start..).filter(|tail| tail.len() > 1) else { return };
    let bytes = |key: Str| text.as_bytes().get(key.at as usize..(key.at + key.len) as usize).unwrap_or_default();
    tail.sort_unstable_by(|(a, _), (b, _)| bytes(*a).cmp(bytes(*b)).then(a.at.cmp(&b.at)));
    let mut kept = start;
    for next in start + 1..entries.len() {
        if bytes(entries[kept].0) != bytes(entries[next].0) {
            kept += 1;
        }
        entries[kept] = entries[next];
    }
    entries.truncate(kept + 1);
}

/// An [`Input`] with its strings at hand.
#[derive(Debug, Clone, Copy)]
pub struct InputRef<'a> {
    request: &'a InferRequest,
    input: &'a Input,
}

impl<'a> InputRef<'a> {
    pub fn name(&self) -> &'a str {
        self.request.str(self.input.name)
    }

    pub fn datatype(&self) -> &'a str {
        self.request.str(self.input.datatype)
    }

    pub fn shape(&self) -> &'a [i64] {
        self.request.dims.get(self.input.dims.clone()).unwrap_or_default()
    }

    pub fn parameters(&self) -> Parameters<'a> {
        Parameters::of_tensor(self.request, &self.input.parameters)
    }

    pub fn contents(&self) -> Option<&'a Contents> {
        self.input.contents.as_ref()
    }

    /// The places of the strings, to make C strings of them.
    pub fn raw(&self) -> &'a Input {
        self.input
    }
}

/// An [`Output`] with its strings at hand.
#[derive(Debug, Clone, Copy)]
pub struct OutputRef<'a> {
    request: &'a InferRequest,
    output: &'a Output,
}

impl<'a> OutputRef<'a> {
    pub fn name(&self) -> &'a str {
        self.request.str(self.output.name)
    }

    pub fn parameters(&self) -> Parameters<'a> {
        Parameters::of_tensor(self.request, &self.output.parameters)
    }
}

/// A map of parameters, sorted by key, each key once.
#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a> {
    request: &'a InferRequest,
    entries: &'a [(Str, Param)],
}

impl<'a> Parameters<'a> {
    fn of_tensor(request: &'a InferRequest, range: &Range<usize>) -> Parameters<'a> {
        Parameters { request, entries: request.tensor_parameters.get(range.clone()).unwrap_or_default() }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, Value<'a>)> + Clone + use<'a> {
        let request = self.request;
        self.entries.iter().map(move |&(key, value)| (request.str(key), request.value(value)))
    }

    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        let at = self.entries.binary_search_by(|entry| self.request.str(entry.0).cmp(key)).ok()?;
        self.entries.get(at).map(|entry| self.request.value(entry.1))
    }

    /// Keys and values by place, to make C strings of them.
    pub fn raw(&self) -> &'a [(Str, Param)] {
        self.entries
    }
}

impl InferRequest {
    pub fn value(&self, param: Param) -> Value<'_> {
        match param {
            Param::Unset => Value::Unset,
            Param::Bool(value) => Value::Bool(value),
            Param::Int64(value) => Value::Int64(value),
            Param::String(value) => Value::String(self.str(value)),
            Param::Double(value) => Value::Double(value),
            Param::Uint64(value) => Value::Uint64(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_equal_keys_wins() {
        let mut request = InferRequest::default();
        for (key, value) in [("b", 1), ("a", 2), ("", 3), ("b", 4), ("", 5), ("c", 6), ("b", 7)] {
            let key = request.push_str(key);
            request.parameters.push((key, Param::Int64(value)));
        }
        request.settle_parameters();
        let all: Vec<_> = request.parameters().iter().collect();
        assert_eq!(all, [("", 5), ("a", 2), ("b", 7), ("c", 6)].map(|(key, value)| (key, Value::Int64(value))));
        assert_eq!(request.parameters().get("b"), Some(Value::Int64(7)));
        assert_eq!(request.parameters().get("d"), None);
    }

    #[test]
    fn the_last_of_many_equal_keys_wins() {
        let mut request = InferRequest::default();
        for value in 0..1000 {
            let key = request.push_str(["same", ""][value as usize % 2]);
            request.tensor_parameters.push((key, Param::Int64(value)));
        }
        request.settle_tensor_parameters(500);
        assert_eq!(request.tensor_parameters.len(), 502);
        assert_eq!(request.tensor_parameters[499].1, Param::Int64(499), "those of other tensors stay");
        assert_eq!(
            request.tensor_parameters[500..].iter().map(|entry| entry.1).collect::<Vec<_>>(),
            [Param::Int64(999), Param::Int64(998)]
        );
    }

    #[test]
    fn strings_end_with_nul_for_c() {
        let mut request = InferRequest::default();
        let (first, empty, broken) = (request.push_str("first"), request.push_str(""), request.push_str("a\0b"));
        assert_eq!(request.c_str(first), c"first");
        assert_eq!(request.c_str(empty), c"");
        assert_eq!(request.c_str(Str::default()), c"");
        assert_eq!((request.str(broken), request.c_str(broken)), ("a\0b", c"a"));
    }

    #[test]
    fn clearing_forgets_everything_and_keeps_storage_within_reason() {
        let mut request = InferRequest::default();
        request.model_name = request.push_str(&"n".repeat(1 << 20));
        request.dims.resize(100_000, 1);
        request.raw.push(Slice::from_static(b"x"));
        request.clear();
        assert_eq!((request.model_name(), request.items(), request.text_bytes()), ("", 0, 0));
        assert!(request.text.capacity() <= TEXT_KEPT_BYTES);
        assert!(request.dims.capacity() <= ITEMS_KEPT);
    }
}
