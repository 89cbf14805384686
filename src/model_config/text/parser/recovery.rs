//! Going on after an error, so that all errors of a file are found at once.

use super::super::MAX_VALUES;
use super::super::lexer::{Kind, Lexer, Stray};
use super::{MAX_ERRORS, Parser, Result};

impl<'a> Parser<'a> {
    /// Records an error and goes to the next field: behind the value of the field whose name `behind_name` follows,
    /// else to the next line that begins with a field. Returns the error where no field follows.
    pub(super) fn recover(&mut self, stray: Stray, behind_name: Option<Lexer<'a>>) -> Result<()> {
        let is_over = self.token.kind == Kind::End || self.places.len() >= MAX_VALUES;
        if is_over || self.errors.len() + 1 >= MAX_ERRORS {
            return Err(stray);
        }
        let line = stray.at.line;
        self.errors.push(stray);
        match behind_name {
            Some(behind_name) => {
                self.lexer = behind_name;
                if self.pass_value().is_err() {
                    self.pass_lines(line);
                }
            }
            None => {
                self.next();
                self.pass_lines(line);
            }
        }
        Ok(())
    }

    /// The next token, whatever lies before it.
    fn next(&mut self) {
        loop {
            match self.lexer.token() {
                Ok(token) => {
                    self.token = token;
                    return;
                }
                Err(_) => self.lexer.pass(),
            }
        }
    }

    /// Skips the value behind a field's name, if there is one, whatever its kind.
    fn pass_value(&mut self) -> Result<()> {
        // If the lexer fails at once, no bracket is left to count.
        self.token.kind = Kind::Symbol(b';');
        self.token = self.lexer.token()?;
        self.accept(b':')?;
        match self.token.kind {
            Kind::Symbol(b'{' | b'<' | b'[') => {
                let mut nesting = 0usize;
                loop {
                    match self.take()?.kind {
                        Kind::Symbol(b'{' | b'<' | b'[') => nesting += 1,
                        Kind::Symbol(b'}' | b'>' | b']') => nesting = nesting.saturating_sub(1),
                        Kind::End => return self.expected("the end of a value"),
                        _ => {}
                    }
                    if nesting == 0 {
                        break;
                    }
                }
            }
            Kind::String => {
                while self.token.kind == Kind::String {
                    self.take()?;
                }
            }
            Kind::Identifier | Kind::Integer | Kind::Float | Kind::Symbol(b'-') => {
                let is_signed = self.accept(b'-')?;
                if is_signed || self.token.kind != Kind::Symbol(b'-') {
                    self.take()?;
                }
            }
            _ => return self.expected("a value"),
        }
        if !self.accept(b';')? {
            self.accept(b',')?;
        }
        Ok(())
    }

    /// Skips to the next line after `line` that begins with a field, or to the end of the message.
    fn pass_lines(&mut self, line: u32) {
        let mut nesting = 0usize;
        loop {
            match self.token.kind {
                Kind::End => return,
                Kind::Symbol(b'{' | b'<' | b'[') => nesting += 1,
                Kind::Symbol(b'}' | b'>' | b']') if nesting == 0 => return,
                Kind::Symbol(b'}' | b'>' | b']') => nesting -= 1,
                Kind::Identifier if nesting == 0 && self.token.at.line > line && self.begins_a_field() => return,
                _ => {}
            }
            self.next();
        }
    }

    fn begins_a_field(&self) -> bool {
        let mut ahead = self.lexer;
        ahead.token().is_ok_and(|token| matches!(token.kind, Kind::Symbol(b':' | b'{' | b'<' | b'[')))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{MAX_DEPTH, parse_all};
    use super::MAX_ERRORS;
    use crate::descriptor;

    /// The places of all errors of a text, as `line:column`.
    fn errors(text: &str) -> String {
        let errors = parse_all("c", text.as_bytes(), descriptor()).err().unwrap_or_default();
        errors.iter().map(|error| format!("{}:{}", error.line, error.column)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn all_errors_of_a_text_are_found() {
        for (text, expected) in [
            ("name: \"m\"", ""),
            // Unknown names, values of other kinds, values out of range.
            (
                "nmae: 'm'\nmax_batch_size: 'x'\nbackend: 5 platform: - 7\nmax_batch_size: 99999999999",
                "1:1 2:17 3:10 3:22 4:1",
            ),
            ("input { nmae: 'I' dims: [ 'x' ] data_type: T }\nbackend: 1", "1:9 1:27 1:44 2:10"),
            ("input [ { a: 1 }, { b: { c: [ 1, 2 ] } } ]\noutput { d < > }", "1:11 1:21 2:10"),
            // Twice, in a oneof too.
            ("name: 'a' name: 'b'\ndynamic_batching { } sequence_batching { }\nx: 1", "1:11 2:22 3:1"),
            // Text that is no field or no token: parsing goes on with the next line that begins with a field.
            ("5 max_batch_size: 'x'\nplatform: 1", "1:1 2:11"),
            ("name 'x'\nplatform: 1", "1:6 2:11"),
            ("name: @ }\nplatform: 1", "1:7 1:9 2:11"),
            ("name: 'open\nplatform: 1\nbackend: 2", "1:7 2:11 3:10"),
            ("}\n]\nplatform: 1", "1:1 2:1 3:11"),
            ("input { name: ?\n dims: 'x' }\nplatform: 1", "1:15 2:8 3:11"),
            // A missing end is one error, and no error behind it is guessed.
            ("input { name: 'I'\nplatform: 1", "2:1 2:12"),
            ("x: { y: [", "1:1"),
        ] {
            assert_eq!(errors(text), expected, "{text}");
        }
    }

    #[test]
    fn a_text_of_errors_ends() {
        let many = "x: 1\n".repeat(10_000);
        assert_eq!(errors(&many).split(' ').count(), MAX_ERRORS);
        for text in ["{", "[", "x {", "input {", "input { x: ", "'", "}", "- ", "x: [ ", "@", "input [ "] {
            let errors = errors(&text.repeat(3 * MAX_DEPTH));
            assert!((1..=MAX_ERRORS).contains(&errors.split(' ').count()), "{text}: {errors}");
        }
    }
}
