//! The tokens of the text format, each with the position where it starts.
//!
//! The lexer works on bytes, because a file may not be UTF-8, which is an error with a line and a column, and it counts
//! lines and columns as it goes, so that a file of one long line costs no more than any other.

use super::Position;

/// The kind of a token. Numbers keep their text: whether `1` is an integer, a float, a bool or an enum depends on the
/// field that it stands behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Identifier,
    /// `12`, `0x1F`, `017`; never with a sign, which is a symbol of its own.
    Integer,
    /// `1.5`, `1e3`, `.5`, `1f`.
    Float,
    /// With its quotes, escapes not yet resolved.
    String,
    /// One of the punctuation bytes.
    Symbol(u8),
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub kind: Kind,
    pub text: &'a [u8],
    pub at: Position,
}

/// A byte sequence that is no token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stray {
    pub at: Position,
    pub message: String,
}

#[derive(Clone, Copy)]
pub(super) struct Lexer<'a> {
    input: &'a [u8],
    next: usize,
    here: Position,
}

impl<'a> Lexer<'a> {
    pub fn new(input: &'a [u8]) -> Lexer<'a> {
        // Editors on some hosts write a byte order mark; it has no width.
        let input = input.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(input);
        Lexer { input, next: 0, here: Position { line: 1, column: 1 } }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.next.checked_add(ahead).and_then(|at| self.input.get(at)).copied()
    }

    fn advance(&mut self) {
        let Some(byte) = self.peek(0) else { return };
        self.next += 1;
        match byte {
            b'\n' => self.here = Position { line: self.here.line.saturating_add(1), column: 1 },
            // A continuation byte of UTF-8 is no column of its own.
            0x80..=0xBF => {}
            _ => self.here.column = self.here.column.saturating_add(1),
        }
    }

    fn advance_while(&mut self, accept: impl Fn(u8) -> bool) {
        while self.peek(0).is_some_and(&accept) {
            self.advance();
        }
    }

    fn skip_blanks_and_comments(&mut self) {
        loop {
            match self.peek(0) {
                Some(b' ' | b'\t' | b'\r' | b'\n' | 0x0B | 0x0C) => self.advance(),
                Some(b'#') => self.advance_while(|byte| byte != b'\n'),
                _ => return,
            }
        }
    }

    /// Passes over a byte that begins no token.
    pub fn pass(&mut self) {
        self.advance();
    }

    pub fn token(&mut self) -> Result<Token<'a>, Stray> {
        self.skip_blanks_and_comments();
        let (start, at) = (self.next, self.here);
        let kind = match self.peek(0) {
            None => Kind::End,
            Some(b'A'..=b'Z' | b'a'..=b'z' | b'_') => {
                self.advance_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
                Kind::Identifier
            }
            Some(b'0'..=b'9') => self.number(at)?,
            Some(b'.') if self.peek(1).is_some_and(|byte| byte.is_ascii_digit()) => self.number(at)?,
            Some(quote @ (b'"' | b'\'')) => {
                self.string(quote, at)?;
                Kind::String
            }
            Some(byte @ (b'{' | b'}' | b'<' | b'>' | b'[' | b']' | b':' | b',' | b';' | b'-' | b'.' | b'/' | b'+')) => {
                self.advance();
                Kind::Symbol(byte)
            }
            Some(byte) => {
                let shown =
                    if byte.is_ascii_graphic() { format!("'{}'", char::from(byte)) } else { format!("0x{byte:02x}") };
                return Err(Stray { at, message: format!("unexpected byte {shown}") });
            }
        };
        Ok(Token { kind, text: self.input.get(start..self.next).unwrap_or_default(), at })
    }

    fn number(&mut self, at: Position) -> Result<Kind, Stray> {
        let mut kind = Kind::Integer;
        if self.peek(0) == Some(b'0') && matches!(self.peek(1), Some(b'x' | b'X')) {
            self.advance();
            self.advance();
            if !self.peek(0).is_some_and(|byte| byte.is_ascii_hexdigit()) {
                return Err(Stray { at, message: "\"0x\" must be followed by hexadecimal digits".into() });
            }
            self.advance_while(|byte| byte.is_ascii_hexdigit());
        } else {
            self.advance_while(|byte| byte.is_ascii_digit());
            if self.peek(0) == Some(b'.') {
                kind = Kind::Float;
                self.advance();
                self.advance_while(|byte| byte.is_ascii_digit());
            }
            if matches!(self.peek(0), Some(b'e' | b'E')) {
                kind = Kind::Float;
                self.advance();
                if matches!(self.peek(0), Some(b'+' | b'-')) {
                    self.advance();
                }
                if !self.peek(0).is_some_and(|byte| byte.is_ascii_digit()) {
                    return Err(Stray { at, message: "the exponent of a number must have digits".into() });
                }
                self.advance_while(|byte| byte.is_ascii_digit());
            }
            if matches!(self.peek(0), Some(b'f' | b'F')) {
                kind = Kind::Float;
                self.advance();
            }
        }
        match self.peek(0) {
            Some(byte) if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.') => {
                Err(Stray { at, message: "a number must be followed by a blank or punctuation".into() })
            }
            _ => Ok(kind),
        }
    }

    fn string(&mut self, quote: u8, at: Position) -> Result<(), Stray> {
        self.advance();
        loop {
            match self.peek(0) {
                None => return Err(Stray { at, message: "string is not closed before the end of the file".into() }),
                Some(b'\n') => {
                    return Err(Stray { at, message: "string is not closed before the end of its line".into() });
                }
                // The escape itself is resolved by the parser; here only its quote must not end the string.
                Some(b'\\') => {
                    self.advance();
                    if self.peek(0).is_some_and(|byte| byte != b'\n') {
                        self.advance();
                    }
                }
                Some(byte) => {
                    self.advance();
                    if byte == quote {
                        return Ok(());
                    }
                }
            }
        }
    }
}
