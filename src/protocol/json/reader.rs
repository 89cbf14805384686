//! The pull parser: one token a call, from a complete text, with a place that can be kept between calls.
//!
//! The text is passed anew with every call, so that a reader can be stored beside the buffer it reads. Its state is a
//! position, what is expected next, and one bit a nesting level.

use std::ops::Range;

use super::number::{self, Number, Scanned};
use super::numbers;
use super::syntax::{Reason, SyntaxError};
use super::text::{self, Scan, TextSpan};
use super::walk::TensorError;
use super::{Element, STEP_BYTES};

/// One step through a document. Texts are decoded, and borrowed from the input where they have no escape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Token<'a> {
    ObjectStart,
    ObjectEnd,
    ArrayStart,
    ArrayEnd,
    Key(&'a [u8]),
    String(&'a [u8]),
    /// An integer written with a minus.
    Int(i64),
    Uint(u64),
    Double(f64),
    Bool(bool),
    Null,
}

/// A token that names places in the text and has converted nothing yet.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    Open(Container),
    Close(Container),
    Key(TextSpan),
    String(TextSpan),
    Number(Scanned),
    Bool(bool),
    Null,
    /// No token: the step has read its bytes.
    Pause,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    Object,
    Array,
}

/// What stands before the position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonReaderState {
    Start,
    ObjectOpened,
    Key,
    Colon,
    Member,
    CommaInObject,
    ArrayOpened,
    Element,
    CommaInArray,
    Finished,
}

#[derive(Debug)]
pub struct Reader {
    at: usize,
    /// First byte of the last token.
    token_start: usize,
    state: JsonReaderState,
    nesting: Nesting,
    /// What was scanned of the string at the position, where a step ended within it.
    partial: Option<TextSpan>,
    /// Where a step ends.
    pause_at: usize,
    scratch: Vec<u8>,
    failed: Option<SyntaxError>,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader::new()
    }
}

impl Reader {
    pub fn new() -> Reader {
        Reader {
            at: 0,
            token_start: 0,
            state: JsonReaderState::Start,
            nesting: Nesting::default(),
            partial: None,
            pause_at: usize::MAX,
            scratch: Vec::new(),
            failed: None,
        }
    }

    /// The next token, or `None` behind the document. `input` is the same text in every call. After an error every
    /// call gives the same error.
    pub fn next<'a>(&'a mut self, input: &'a [u8]) -> Result<Option<Token<'a>>, SyntaxError> {
        let Some(event) = self.advance_apart(input)? else { return Ok(None) };
        Ok(Some(match event {
            // Only documents are read in steps of so many bytes.
            Event::Pause => return Ok(None),
            Event::Open(Container::Object) => Token::ObjectStart,
            Event::Open(Container::Array) => Token::ArrayStart,
            Event::Close(Container::Object) => Token::ObjectEnd,
            Event::Close(Container::Array) => Token::ArrayEnd,
            Event::Key(span) => Token::Key(self.text(input, span)),
            Event::String(span) => Token::String(self.text(input, span)),
            Event::Number(scanned) => match scanned.value(input) {
                Number::Uint(value) => Token::Uint(value),
                Number::Int(value) => Token::Int(value),
                Number::Double(value) => Token::Double(value),
            },
            Event::Bool(value) => Token::Bool(value),
            Event::Null => Token::Null,
        }))
    }

    /// Reads over the next value, whatever it holds, and returns where it lies. Takes as long as the value is.
    pub fn skip_value(&mut self, input: &[u8]) -> Result<Range<usize>, SyntaxError> {
        let depth = self.depth();
        let opened = matches!(self.advance_apart(input)?, Some(Event::Open(_)));
        let start = self.token_start;
        if opened {
            self.leave(input, depth, usize::MAX)?;
        }
        Ok(start..self.at)
    }

    /// Reads on until at most `depth` containers are open, but at most `max_tokens` tokens; true when it got there.
    pub fn leave(&mut self, input: &[u8], depth: usize, max_tokens: usize) -> Result<bool, SyntaxError> {
        for _ in 0..max_tokens {
            if self.depth() <= depth {
                return Ok(true);
            }
            self.advance_apart(input)?;
        }
        Ok(self.depth() <= depth)
    }

    /// Reads over numbers that follow each other in an array, at most `max` of them, and returns how many they were.
    /// What else comes, [`advance`](Reader::advance) finds: this is its short way through tensor data.
    pub(super) fn skip_numbers(&mut self, input: &[u8], max: usize) -> Result<usize, SyntaxError> {
        let mut count = 0;
        while count < max && self.failed.is_none() && self.at < self.pause_at {
            let byte = input.get(self.at).copied().unwrap_or(0);
            match (self.state, byte) {
                (_, b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                (JsonReaderState::Element, b',') => {
                    self.at += 1;
                    self.state = JsonReaderState::CommaInArray;
                }
                (JsonReaderState::ArrayOpened | JsonReaderState::CommaInArray, b'0'..=b'9' | b'-') => {
                    self.at = match number::scan_short(input, self.at) {
                        Some(scanned) => scanned.end,
                        None => number::scan(input, self.at).inspect_err(|error| self.failed = Some(*error))?.end,
                    };
                    self.state = JsonReaderState::Element;
                    count += 1;
                }
                _ => break,
            }
        }
        Ok(count)
    }

    /// Does what [`skip_numbers`](Reader::skip_numbers) does, and puts the numbers into `out` behind the first `filled`
    /// bytes. Says also whether all is fine: else the next one is none of that kind, or has no room.
    pub(super) fn read_numbers(
        &mut self,
        input: &[u8],
        max: usize,
        element: Element,
        out: &mut [u8],
        filled: &mut usize,
    ) -> (usize, bool) {
        numbers::with_reader!(element, |read| self.read_each(input, max, out, filled, read))
    }

    #[inline(always)]
    fn read_each<const N: usize>(
        &mut self,
        input: &[u8],
        max: usize,
        out: &mut [u8],
        filled: &mut usize,
        read: impl Fn(&[u8], &mut usize) -> Result<[u8; N], TensorError>,
    ) -> (usize, bool) {
        let mut room = out.get_mut(*filled..).unwrap_or_default().chunks_exact_mut(N);
        let (mut count, mut at, mut state) = (0, self.at, self.state);
        let (mut is_fine, pause_at) = (self.failed.is_none(), self.pause_at);
        while count < max && is_fine && at < pause_at {
            match (state, input.get(at).copied().unwrap_or(0)) {
                (_, b' ' | b'\n' | b'\r' | b'\t') => at += 1,
                (JsonReaderState::Element, b',') => {
                    at += 1;
                    state = JsonReaderState::CommaInArray;
                }
                (JsonReaderState::ArrayOpened | JsonReaderState::CommaInArray, b'0'..=b'9' | b'-') => {
                    let mut end = at;
                    match (read(input, &mut end), room.next()) {
                        (Ok(bytes), Some(place)) => {
                            place.copy_from_slice(&bytes);
                            at = end;
                            state = JsonReaderState::Element;
                            count += 1;
                        }
                        _ => is_fine = false,
                    }
                }
                _ => break,
            }
        }
        (self.at, self.state) = (at, state);
        *filled += count * N;
        (count, is_fine)
    }

    /// Begins a step, which ends behind a bounded number of bytes if it does not end before.
    pub(super) fn begin_step(&mut self) {
        let at = self.partial.map_or(self.at, |scanned| scanned.end);
        self.pause_at = at.saturating_add(STEP_BYTES);
    }

    /// Whether the step has read its bytes.
    pub(super) fn is_step_over(&self) -> bool {
        self.partial.map_or(self.at, |scanned| scanned.end) >= self.pause_at
    }

    /// Begins anew, for another text, with the memory of this one.
    pub fn restart(&mut self) {
        self.nesting.depth = 0;
        (self.at, self.token_start, self.state, self.failed) = (0, 0, JsonReaderState::Start, None);
        (self.partial, self.pause_at) = (None, usize::MAX);
    }

    /// Where the search for the next token begins, in bytes from the start of the text.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Where the last token begins.
    pub fn token_start(&self) -> usize {
        self.token_start
    }

    /// How many containers are open.
    pub fn depth(&self) -> usize {
        self.nesting.depth
    }

    fn text<'a>(&'a mut self, input: &'a [u8], span: TextSpan) -> &'a [u8] {
        let raw = input.get(span.start..span.end).unwrap_or_default();
        if !span.escaped {
            return raw;
        }
        self.scratch.clear();
        text::decode(raw, &mut self.scratch);
        &self.scratch
    }

    /// The next token. Part of its caller, because documents are built of nothing else: apart, each token costs a call
    /// that returns through memory.
    #[inline(always)]
    pub(super) fn advance(&mut self, input: &[u8]) -> Result<Option<Event>, SyntaxError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.step(input).inspect_err(|error| self.failed = Some(*error))
    }

    /// The same for callers that need it seldom.
    #[inline(never)]
    fn advance_apart(&mut self, input: &[u8]) -> Result<Option<Event>, SyntaxError> {
        self.advance(input)
    }

    #[inline(always)]
    fn step(&mut self, input: &[u8]) -> Result<Option<Event>, SyntaxError> {
        if self.at == 0 {
            self.skip_byte_order_mark(input);
        }
        loop {
            while matches!(input.get(self.at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
                self.at += 1;
                if self.at >= self.pause_at {
                    return Ok(Some(Event::Pause));
                }
            }
            self.token_start = self.at;
            // Triton's parser takes a NUL byte for the end of the text.
            let byte = input.get(self.at).copied().unwrap_or(0);
            if byte == 0 && self.state == JsonReaderState::Finished {
                return Ok(None);
            }
            self.state = match (self.state, byte) {
                (_, 0) => return Err(self.unexpected()),
                (JsonReaderState::Key, b':') => JsonReaderState::Colon,
                (JsonReaderState::Member, b',') => JsonReaderState::CommaInObject,
                (JsonReaderState::Element, b',') => JsonReaderState::CommaInArray,
                (JsonReaderState::Member | JsonReaderState::ObjectOpened, b'}') => {
                    return Ok(Some(self.close(Container::Object)));
                }
                (JsonReaderState::Element | JsonReaderState::ArrayOpened, b']') => {
                    return Ok(Some(self.close(Container::Array)));
                }
                (JsonReaderState::ObjectOpened | JsonReaderState::CommaInObject, b'"') => {
                    let Some(span) = self.string(input)? else { return Ok(Some(Event::Pause)) };
                    self.state = JsonReaderState::Key;
                    return Ok(Some(Event::Key(span)));
                }
                (
                    JsonReaderState::Start
                    | JsonReaderState::Colon
                    | JsonReaderState::ArrayOpened
                    | JsonReaderState::CommaInArray,
                    _,
                ) => {
                    return self.value(input, byte).map(Some);
                }
                _ => return Err(self.unexpected()),
            };
            self.at += 1;
        }
    }

    /// The value that begins with `byte` at the position.
    fn value(&mut self, input: &[u8], byte: u8) -> Result<Event, SyntaxError> {
        let event = match byte {
            b'{' => return Ok(self.open(Container::Object, JsonReaderState::ObjectOpened)),
            b'[' => return Ok(self.open(Container::Array, JsonReaderState::ArrayOpened)),
            b']' | b'}' | b',' | b':' => return Err(self.unexpected()),
            b'"' => {
                let Some(span) = self.string(input)? else { return Ok(Event::Pause) };
                Event::String(span)
            }
            b't' => self.literal(input, b"true", Event::Bool(true))?,
            b'f' => self.literal(input, b"false", Event::Bool(false))?,
            b'n' => self.literal(input, b"null", Event::Null)?,
            _ => {
                let scanned = number::scan(input, self.at)?;
                self.at = scanned.end;
                Event::Number(scanned)
            }
        };
        self.state = self.after_value();
        Ok(event)
    }

    /// The string that begins at the position; none if the step ends within it.
    #[inline]
    fn string(&mut self, input: &[u8]) -> Result<Option<TextSpan>, SyntaxError> {
        let start = self.at + 1;
        let begun = self.partial.take().unwrap_or(TextSpan { start, end: start, escaped: false });
        // Where the step has hardly begun, a string is read to the end of the step; else as far as a whole step goes.
        match text::scan_on(input, begun, begun.end.saturating_add(STEP_BYTES).max(self.pause_at))? {
            Scan::Done(span) => {
                self.at = span.end + 1;
                Ok(Some(span))
            }
            Scan::Paused(span) => {
                self.partial = Some(span);
                Ok(None)
            }
        }
    }

    fn literal(&mut self, input: &[u8], word: &[u8], event: Event) -> Result<Event, SyntaxError> {
        let text = input.get(self.at..).unwrap_or_default();
        let same = text.iter().zip(word).take_while(|(a, b)| a == b).count();
        if same < word.len() {
            return Err(SyntaxError::new(Reason::ValueInvalid, self.at + same));
        }
        self.at += same;
        Ok(event)
    }

    fn open(&mut self, container: Container, state: JsonReaderState) -> Event {
        self.nesting.push(container);
        self.state = state;
        self.at += 1;
        Event::Open(container)
    }

    fn close(&mut self, container: Container) -> Event {
        self.nesting.pop();
        self.state = self.after_value();
        self.at += 1;
        Event::Close(container)
    }

    fn after_value(&self) -> JsonReaderState {
        match self.nesting.innermost() {
            None => JsonReaderState::Finished,
            Some(Container::Object) => JsonReaderState::Member,
            Some(Container::Array) => JsonReaderState::Element,
        }
    }

    /// What is missing at the position.
    fn unexpected(&self) -> SyntaxError {
        let reason = match self.state {
            JsonReaderState::Start => Reason::DocumentEmpty,
            JsonReaderState::Finished => Reason::RootNotSingular,
            JsonReaderState::ObjectOpened | JsonReaderState::CommaInObject => Reason::MissingName,
            JsonReaderState::Key => Reason::MissingColon,
            JsonReaderState::Member => Reason::MissingCommaOrBrace,
            JsonReaderState::Element => Reason::MissingCommaOrBracket,
            JsonReaderState::Colon | JsonReaderState::ArrayOpened | JsonReaderState::CommaInArray => {
                Reason::ValueInvalid
            }
        };
        SyntaxError::new(reason, self.at)
    }

    /// Triton's input stream drops each byte of a UTF-8 byte order mark that stands in its place.
    fn skip_byte_order_mark(&mut self, input: &[u8]) {
        for byte in [0xEF, 0xBB, 0xBF] {
            self.at += usize::from(input.get(self.at) == Some(&byte));
        }
    }
}

/// The open containers, innermost last: a set bit is an object.
#[derive(Debug, Default)]
struct Nesting {
    bits: Vec<u64>,
    depth: usize,
}

impl Nesting {
    fn push(&mut self, container: Container) {
        let (word, bit) = (self.depth / 64, 1 << (self.depth % 64));
        if word == self.bits.len() {
            self.bits.push(0);
        }
        if let Some(word) = self.bits.get_mut(word) {
            *word = if container == Container::Object { *word | bit } else { *word & !bit };
        }
        self.depth += 1;
    }

    fn pop(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    fn innermost(&self) -> Option<Container> {
        let last = self.depth.checked_sub(1)?;
        let word = self.bits.get(last / 64)?;
        Some(if word >> (last % 64) & 1 == 1 { Container::Object } else { Container::Array })
    }
}
