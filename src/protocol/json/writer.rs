//! Appends values; commas come by themselves.
//!
//! Strings are escaped as Triton escapes them: quotes, backslashes and control characters, nothing else
//! (contract/http.md section 2). The writer checks no nesting: what it writes is fixed by the code that calls it.

use nereid_memory::{Gather, Pool};

use super::double::DoubleText;
use super::text;

/// Where written bytes go.
pub trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A gather list and the pool that its copies come from.
pub struct GatherSink<'a> {
    pub gather: &'a mut Gather,
    pub pool: &'a Pool,
}

impl Sink for GatherSink<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.gather.put(self.pool, bytes);
    }
}

impl<S: Sink + ?Sized> Sink for &mut S {
    fn put(&mut self, bytes: &[u8]) {
        (**self).put(bytes);
    }
}

#[derive(Debug)]
pub struct Writer<S> {
    sink: S,
    /// The next value or key stands behind another one.
    needs_comma: bool,
}

impl<S: Sink> Writer<S> {
    pub fn new(sink: S) -> Writer<S> {
        Writer { sink, needs_comma: false }
    }

    pub fn begin_object(&mut self) {
        self.separate(false);
        self.sink.put(b"{");
    }

    pub fn end_object(&mut self) {
        self.needs_comma = true;
        self.sink.put(b"}");
    }

    pub fn begin_array(&mut self) {
        self.separate(false);
        self.sink.put(b"[");
    }

    pub fn end_array(&mut self) {
        self.needs_comma = true;
        self.sink.put(b"]");
    }

    pub fn key(&mut self, name: impl AsRef<[u8]>) {
        self.separate(false);
        write_string(&mut self.sink, name.as_ref());
        self.sink.put(b":");
    }

    pub fn string(&mut self, value: impl AsRef<[u8]>) {
        self.separate(true);
        write_string(&mut self.sink, value.as_ref());
    }

    pub fn uint(&mut self, value: u64) {
        self.separate(true);
        self.sink.put(itoa::Buffer::new().format(value).as_bytes());
    }

    pub fn int(&mut self, value: i64) {
        self.separate(true);
        self.sink.put(itoa::Buffer::new().format(value).as_bytes());
    }

    pub fn double(&mut self, value: f64) {
        self.separate(true);
        self.sink.put(DoubleText::new().of(value));
    }

    pub fn bool(&mut self, value: bool) {
        self.separate(true);
        self.sink.put(if value { b"true" } else { b"false" });
    }

    pub fn null(&mut self) {
        self.separate(true);
        self.sink.put(b"null");
    }

    /// The sink, for one value that the caller writes itself, such as an array by
    /// [`ArrayWriter`](super::ArrayWriter) or text that is JSON already.
    pub fn raw_value(&mut self) -> &mut S {
        self.separate(true);
        &mut self.sink
    }

    pub fn into_inner(self) -> S {
        self.sink
    }

    fn separate(&mut self, needs_comma_after: bool) {
        if std::mem::replace(&mut self.needs_comma, needs_comma_after) {
            self.sink.put(b",");
        }
    }
}

/// Writes `bytes` as a string, quotes included.
pub(super) fn write_string(sink: &mut (impl Sink + ?Sized), bytes: &[u8]) {
    sink.put(b"\"");
    write_characters(sink, bytes);
    sink.put(b"\"");
}

/// Writes `bytes` as they stand in a string. Where a text is cut, its parts make the same.
pub(super) fn write_characters(sink: &mut (impl Sink + ?Sized), bytes: &[u8]) {
    let mut rest = bytes;
    while let Some((plain, from)) = rest.split_at_checked(text::plain_end(rest, 0))
        && let Some((&byte, behind)) = from.split_first()
    {
        sink.put(plain);
        match byte {
            b'"' => sink.put(b"\\\""),
            b'\\' => sink.put(b"\\\\"),
            8 => sink.put(b"\\b"),
            12 => sink.put(b"\\f"),
            b'\n' => sink.put(b"\\n"),
            b'\r' => sink.put(b"\\r"),
            b'\t' => sink.put(b"\\t"),
            _ => {
                let hex = |nibble: u8| b"0123456789ABCDEF"[usize::from(nibble & 15)];
                sink.put(&[b'\\', b'u', b'0', b'0', hex(byte >> 4), hex(byte)]);
            }
        }
        rest = behind;
    }
    sink.put(rest);
}
