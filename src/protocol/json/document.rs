//! A light index of a document: a flat list of nodes that name byte ranges, built in steps.
//!
//! A node holds what a value is, where it lies and where its next sibling is; values are read from the text when a
//! caller needs them (see [`Value`]). Arrays that a caller names become one node whatever their length: a tensor's
//! `data` may hold millions of numbers, and they belong into the tensor's buffer, not here.

use super::Element;
use super::number::Number;
use super::reader::{Container, Event, Reader};
use super::syntax::SyntaxError;
use super::text;
use super::value::{ESCAPE_BYTES_MAX, Elements, Kind, Paused, Value};
use nereid_memory::{BlockMut, Charge, Exhausted, Slice};

/// Decides whether the array behind the member `key` is kept as a byte range. `depth` counts the containers around
/// the member: 1 for members of the root, 3 for `inputs[i].data`.
pub type RawMembers = fn(depth: usize, key: &[u8]) -> bool;

/// Nodes of one document: as many as a gRPC message may have inputs, outputs and parameters. Triton has no such bound;
/// beyond it, a document holds more values outside tensors than any request has a use for, and walks over its members
/// would take a shard's time.
const MAX_NODES: usize = 1 << 16;

/// Text of a key with escapes that is compared with the names of raw members.
const ESCAPED_NAME_BYTES_MAX: usize = 64 * ESCAPE_BYTES_MAX;

/// Nodes whose memory outlives their document when a builder is used again.
const NODES_KEPT: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    #[error("failed to parse the request JSON buffer: more than {limit} values outside of tensor data")]
    TooManyValues { limit: usize },
    #[error("failed to parse the request JSON buffer: {len} bytes exceed the maximum of 4294967295 bytes")]
    TooLong { len: usize },
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
}

/// A checked document and the text it indexes.
#[derive(Debug, Default)]
pub struct Document {
    input: Slice,
    nodes: Vec<Node>,
    /// Numbers that were read while their arrays passed: the array's node, by which they are sorted, and the elements
    /// until they are taken.
    read: Vec<(u32, Option<BlockMut>)>,
    text_bytes: usize,
    key_bytes: usize,
    /// What the nodes are charged with, where they are many.
    held: Option<Charge>,
}

/// Where the numbers of the array go that passes.
#[derive(Debug)]
struct Tap {
    element: Element,
    out: BlockMut,
    filled: usize,
}

/// Arrays in arrays whose numbers are read as they pass.
const TAP_DEPTH_MAX: usize = 64;

/// Where a value is, to be kept apart from its document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValueIndex(pub(super) u32);

#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    /// The value's bytes; strings and keys without their quotes.
    pub start: u32,
    pub end: u32,
    /// Index of the node behind this value and all it contains.
    pub next: u32,
    /// Elements or members of a container.
    pub len: u32,
    pub tag: Tag,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    /// A member's name; its value is the next node.
    Key {
        escaped: bool,
    },
    String {
        escaped: bool,
    },
    Object,
    Array,
    /// An array whose elements have no nodes.
    RawArray,
    Uint,
    Int,
    Double,
    Bool(bool),
    Null,
}

impl Document {
    /// Parses all of `input` at once, every array included.
    pub fn parse(input: Slice) -> Result<Document, DocumentError> {
        let mut builder = Builder::new(input, |_, _| false)?;
        while !builder.step(usize::MAX)? {}
        Ok(builder.finish())
    }

    pub fn root(&self) -> Value<'_> {
        Value::new(self, 0)
    }

    /// Makes room for twice as many nodes, charged to what the text is charged to.
    fn grow(&mut self) -> Result<(), Exhausted> {
        let more = self.nodes.len();
        if let Some(pool) = self.input.pool() {
            self.held = Some(pool.hold(2 * more * size_of::<Node>())?);
        }
        let asked = more * size_of::<Node>();
        self.nodes.try_reserve_exact(more).map_err(|_| Exhausted::of_system(asked))
    }

    /// The value at an index that one of this document's values named.
    pub fn at(&self, index: ValueIndex) -> Value<'_> {
        Value::new(self, index.0)
    }

    /// Goes on with a walk over elements of this document.
    pub fn resume(&self, paused: Paused) -> Elements<'_> {
        Elements::resumed(self, paused)
    }

    /// Bytes of all names and strings that are not in arrays kept as byte ranges.
    pub fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    /// Those of them that are names.
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// The elements of the array at that index, if they were [read as they passed](Builder::read_into).
    pub fn take_read(&mut self, index: ValueIndex) -> Option<BlockMut> {
        let at = self.read.binary_search_by_key(&index.0, |(at, _)| *at).ok()?;
        self.read.get_mut(at)?.1.take()
    }

    /// The text that the document indexes.
    pub fn input(&self) -> &Slice {
        &self.input
    }

    pub(super) fn node(&self, index: u32) -> Option<&Node> {
        self.nodes.get(index as usize)
    }

    pub(super) fn bytes(&self, node: &Node) -> &[u8] {
        self.input.get(node.start as usize..node.end as usize).unwrap_or_default()
    }

    /// The number that a node stands for; 0 for any other node.
    pub(super) fn number(&self, node: &Node) -> Number {
        match super::number::scan(&self.input, node.start as usize) {
            Ok(scanned) => scanned.value(&self.input),
            Err(_) => Number::Uint(0),
        }
    }
}

/// Builds a [`Document`] a bounded number of tokens at a time.
#[derive(Debug)]
pub struct Builder {
    reader: Reader,
    document: Document,
    /// Indices of the open containers, outermost first.
    open: Vec<u32>,
    /// The last key's member is to be kept as a byte range if it is an array.
    next_is_raw: bool,
    /// Depth at which the raw array being read began.
    raw_from: Option<usize>,
    raw_members: RawMembers,
    scratch: Vec<u8>,
    /// A raw array was opened by the last thing that was read.
    opened: bool,
    tap: Option<Tap>,
}

impl Builder {
    pub fn new(input: Slice, raw_members: RawMembers) -> Result<Builder, DocumentError> {
        let mut builder = Builder {
            reader: Reader::new(),
            document: Document::default(),
            open: Vec::with_capacity(8),
            next_is_raw: false,
            raw_from: None,
            raw_members,
            scratch: Vec::new(),
            opened: false,
            tap: None,
        };
        builder.document.nodes.reserve(32);
        builder.restart(input, raw_members)?;
        Ok(builder)
    }

    /// Reads up to `max_tokens` tokens; true when the document is complete.
    pub fn step(&mut self, max_tokens: usize) -> Result<bool, DocumentError> {
        self.read(max_tokens, false)
    }

    /// The same, but stops where an array is [opened](Builder::opened) that is kept as a byte range.
    pub fn step_to_array(&mut self, max_tokens: usize) -> Result<bool, DocumentError> {
        self.read(max_tokens, true)
    }

    fn read(&mut self, max_tokens: usize, stops: bool) -> Result<bool, DocumentError> {
        let mut left = max_tokens;
        self.opened = false;
        self.reader.begin_step();
        while left > 0 && !(stops && self.opened) && !self.reader.is_step_over() {
            if let Some(depth) = self.raw_from {
                left -= self.skip_numbers(depth, left)?;
                if left == 0 {
                    break;
                }
            }
            let Some(event) = self.reader.advance(&self.document.input)? else { return Ok(true) };
            if matches!(event, Event::Pause) {
                break;
            }
            match self.raw_from {
                Some(depth) => {
                    self.check_tap(event, depth);
                    self.count_raw(event, depth);
                }
                None => {
                    self.record(event)?;
                    self.opened &= stops;
                }
            }
            left -= 1;
        }
        Ok(false)
    }

    /// If an array that is kept as a byte range was opened just now: the first member of that name in the object around
    /// it, of those that stand before it. So who knows what the numbers are can have them
    /// [read](Builder::read_into) as they pass.
    pub fn opened(&self, name: &str) -> Option<Value<'_>> {
        let object = self.open.last().filter(|_| self.opened)?;
        Value::new(&self.document, *object).find_before(name, self.document.nodes.len() as u32)
    }

    /// Bytes of the text behind the last token.
    pub fn unread(&self) -> usize {
        self.document.input.len().saturating_sub(self.reader.position())
    }

    /// Has the numbers of the array that was [opened](Builder::opened) put into `out`. They are kept if they are as
    /// many as it has room for, and are what `element` says; else nothing is said here, and a
    /// [`NumbersReader`](super::NumbersReader) finds out what is wrong.
    pub fn read_into(&mut self, element: Element, out: BlockMut) {
        if self.opened && element != Element::Bool {
            self.tap = Some(Tap { element, out, filled: 0 });
        }
    }

    /// The document, once [`step`](Builder::step) has returned that it is complete.
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// The document to keep; see [`document`](Builder::document).
    pub fn finish(self) -> Document {
        self.document
    }

    /// Begins anew with another text and the memory of this one, of which only a moderate part is kept.
    pub fn restart(&mut self, input: Slice, raw_members: RawMembers) -> Result<(), DocumentError> {
        if u32::try_from(input.len()).is_err() {
            return Err(DocumentError::TooLong { len: input.len() });
        }
        self.reader.restart();
        self.document.input = input;
        self.document.nodes.clear();
        self.document.nodes.shrink_to(NODES_KEPT);
        self.document.held = None;
        self.open.clear();
        self.open.shrink_to(NODES_KEPT);
        self.next_is_raw = false;
        self.raw_from = None;
        self.raw_members = raw_members;
        self.document.read.clear();
        (self.document.text_bytes, self.document.key_bytes) = (0, 0);
        (self.opened, self.tap) = (false, None);
        Ok(())
    }

    /// The short way through numbers of a raw array that begins at `depth`.
    fn skip_numbers(&mut self, depth: usize, max: usize) -> Result<usize, SyntaxError> {
        let mut count = 0;
        if let Some(Tap { element, out, filled }) = &mut self.tap {
            let input = &self.document.input;
            let (read, is_fine) = self.reader.read_numbers(input, max, *element, out, filled);
            count = read;
            if !is_fine {
                // Something is wrong, or only seems so: the numbers are read again when all is known.
                self.tap = None;
            }
        }
        if self.tap.is_none() {
            count += self.reader.skip_numbers(&self.document.input, max - count)?;
        }
        if self.reader.depth() == depth + 1
            && let Some(array) = self.document.nodes.last_mut()
        {
            array.len += count as u32;
        }
        Ok(count)
    }

    /// Only numbers in arrays are read as they pass, and only as many as there is room for.
    fn check_tap(&mut self, event: Event, depth: usize) {
        let now = self.reader.depth();
        match event {
            Event::Close(Container::Array) if now == depth => {
                if let Some(Tap { out, filled, .. }) = self.tap.take()
                    && filled == out.len()
                {
                    let array = self.document.nodes.len().saturating_sub(1) as u32;
                    self.document.read.push((array, Some(out)));
                }
            }
            Event::Open(Container::Array) if now < depth + TAP_DEPTH_MAX => {}
            Event::Close(Container::Array) => {}
            _ => self.tap = None,
        }
    }

    fn count_raw(&mut self, event: Event, depth: usize) {
        let now = self.reader.depth();
        let Some(array) = self.document.nodes.last_mut() else { return };
        if now == depth {
            array.end = self.reader.position() as u32;
            self.raw_from = None;
            return;
        }
        let direct = match event {
            Event::Open(_) => now == depth + 2,
            Event::Close(_) | Event::Key(_) => false,
            _ => now == depth + 1,
        };
        array.len += u32::from(direct);
    }

    fn record(&mut self, event: Event) -> Result<(), DocumentError> {
        let raw = std::mem::take(&mut self.next_is_raw);
        let (start, end) = (self.reader.token_start(), self.reader.position());
        let (start, end, tag) = match event {
            // No token.
            Event::Pause => return Ok(()),
            Event::Close(_) => {
                self.close(end);
                return Ok(());
            }
            Event::Key(span) => {
                let depth = self.reader.depth();
                let bytes = self.document.input.get(span.start..span.end).unwrap_or_default();
                self.document.key_bytes += bytes.len();
                self.next_is_raw = match span.escaped {
                    false => (self.raw_members)(depth, bytes),
                    true => {
                        self.scratch.clear();
                        // No name that a caller compares is longer.
                        text::decode(bytes.get(..ESCAPED_NAME_BYTES_MAX).unwrap_or(bytes), &mut self.scratch);
                        (self.raw_members)(depth, &self.scratch)
                    }
                };
                (span.start, span.end, Tag::Key { escaped: span.escaped })
            }
            Event::String(span) => (span.start, span.end, Tag::String { escaped: span.escaped }),
            Event::Number(scanned) => {
                let tag = match scanned.value(&self.document.input) {
                    Number::Uint(_) => Tag::Uint,
                    Number::Int(_) => Tag::Int,
                    Number::Double(_) => Tag::Double,
                };
                (start, end, tag)
            }
            Event::Bool(value) => (start, end, Tag::Bool(value)),
            Event::Null => (start, end, Tag::Null),
            Event::Open(Container::Object) => (start, end, Tag::Object),
            Event::Open(Container::Array) if raw => {
                self.raw_from = Some(self.reader.depth() - 1);
                self.opened = true;
                (start, end, Tag::RawArray)
            }
            Event::Open(Container::Array) => (start, end, Tag::Array),
        };
        self.push(start, end, tag)
    }

    fn push(&mut self, start: usize, end: usize, tag: Tag) -> Result<(), DocumentError> {
        if let Tag::Key { .. } | Tag::String { .. } = tag {
            self.document.text_bytes += end - start;
        }
        let nodes = &mut self.document.nodes;
        if nodes.len() >= MAX_NODES {
            return Err(DocumentError::TooManyValues { limit: MAX_NODES });
        }
        if nodes.len() == nodes.capacity() && nodes.len() >= NODES_KEPT {
            self.document.grow()?;
        }
        let nodes = &mut self.document.nodes;
        let index = nodes.len() as u32;
        if let Some(parent) = self.open.last().and_then(|&parent| nodes.get_mut(parent as usize)) {
            // A member is counted by its key.
            let counts = parent.tag == Tag::Array || matches!(tag, Tag::Key { .. });
            parent.len += u32::from(counts);
        }
        nodes.push(Node { start: start as u32, end: end as u32, next: index + 1, len: 0, tag });
        if matches!(tag, Tag::Object | Tag::Array) {
            self.open.push(index);
        }
        Ok(())
    }

    fn close(&mut self, end: usize) {
        let next = self.document.nodes.len() as u32;
        if let Some(container) = self.open.pop().and_then(|index| self.document.nodes.get_mut(index as usize)) {
            container.end = end as u32;
            container.next = next;
        }
    }
}

impl Tag {
    pub(super) fn kind(self) -> Kind {
        match self {
            Tag::Key { .. } | Tag::String { .. } => Kind::String,
            Tag::Object => Kind::Object,
            Tag::Array | Tag::RawArray => Kind::Array,
            Tag::Uint => Kind::Uint,
            Tag::Int => Kind::Int,
            Tag::Double => Kind::Double,
            Tag::Bool(_) => Kind::Bool,
            Tag::Null => Kind::Null,
        }
    }
}
