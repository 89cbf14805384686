//! Makes text of the bytes that a model's responses hold (contract/openai.md section 3.4).
//!
//! A response may end within a character, which then waits for the next response. Bytes that are no UTF-8 become
//! U+FFFD, one for each of the longest beginnings of a character, as with Python's `errors="replace"`. NUL stays.
//!
//! Of models whose responses have the whole text so far, only what is new is given out. The text of the last response
//! is kept for that, not its length and a hash: where a model changes what it has written, only the text itself shows
//! from where on. It costs no more memory than one response, which the model made the server hold already, and no more
//! time to compare than to receive.

/// The text of one answer.
#[derive(Debug, Default)]
pub struct TextAssembly {
    is_cumulative: bool,
    /// The last text if it is cumulative, else the beginning of a character.
    bytes: Vec<u8>,
    /// As many of these bytes have been given out.
    given: usize,
}

impl TextAssembly {
    pub fn new(is_cumulative: bool) -> TextAssembly {
        TextAssembly { is_cumulative, bytes: Vec::new(), given: 0 }
    }

    /// Takes the text of a response in, and appends what is new and certain to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.is_cumulative {
            self.push_cumulative(bytes, out);
        } else {
            self.push_more(bytes, out);
        }
    }

    /// No response follows: appends what was held.
    pub fn finish(&mut self, out: &mut String) {
        push_lossy(self.bytes.get(self.given..).unwrap_or_default(), out);
        self.bytes = Vec::new();
        self.given = 0;
    }

    fn push_more(&mut self, bytes: &[u8], out: &mut String) {
        let mut rest = bytes;
        while let (false, Some((byte, left))) = (self.bytes.is_empty(), rest.split_first()) {
            self.bytes.push(*byte);
            match std::str::from_utf8(&self.bytes) {
                Ok(character) => {
                    out.push_str(character);
                    self.bytes.clear();
                }
                Err(error) if error.error_len().is_none() => {}
                // The byte is not the next one of the character; it may begin another.
                Err(_) => {
                    out.push(char::REPLACEMENT_CHARACTER);
                    self.bytes.clear();
                    break;
                }
            }
            rest = left;
        }
        let (whole, begun) = rest.split_at(rest.len() - unfinished(rest));
        push_lossy(whole, out);
        self.bytes.extend_from_slice(begun);
    }

    fn push_cumulative(&mut self, bytes: &[u8], out: &mut String) {
        let given = self.bytes.get(..self.given).unwrap_or_default();
        let mut start = given.iter().zip(bytes).take_while(|(old, new)| old == new).count();
        // An empty response at the end, or one that is late.
        if start == bytes.len() {
            return;
        }
        if start < given.len() {
            let is_within = |place: usize| bytes.get(place).is_some_and(|byte| byte & 0xc0 == 0x80);
            let floor = start.saturating_sub(3);
            while start > floor && is_within(start) {
                start -= 1;
            }
        }
        // A character that a token has only begun is U+FFFD at the end of the text, and itself in the next text.
        let (mut certain, _) = bytes.split_at(bytes.len() - unfinished(bytes));
        while let Some(before) = certain.strip_suffix("\u{fffd}".as_bytes()) {
            certain = before;
        }
        let end = certain.len().max(start);
        push_lossy(bytes.get(start..end).unwrap_or_default(), out);
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.given = end;
    }
}

/// How many bytes at the end are the beginning of a character.
fn unfinished(bytes: &[u8]) -> usize {
    let length = bytes.iter().rev().take(3).position(|byte| byte & 0xc0 != 0x80).map_or(0, |place| place + 1);
    let end = bytes.get(bytes.len() - length..).unwrap_or_default();
    match std::str::from_utf8(end) {
        Err(error) if error.valid_up_to() == 0 && error.error_len().is_none() => length,
        _ => 0,
    }
}

fn push_lossy(bytes: &[u8], out: &mut String) {
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assembled<'a>(is_cumulative: bool, responses: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let mut assembly = TextAssembly::new(is_cumulative);
        let mut texts = Vec::new();
        for response in responses {
            let mut out = String::new();
            assembly.push(response, &mut out);
            texts.push(out);
        }
        let mut out = String::new();
        assembly.finish(&mut out);
        texts.push(out);
        texts
    }

    const CORPUS: &[&[u8]] = &[
        b"",
        "a\0b é € 😀 \u{fffd}".as_bytes(),
        b"\xff\xfe",
        b"\x80a\xc3",
        b"\xc3(",
        b"\xe2\x82",
        b"\xe2\x82\xe2\x82\xac",
        b"\xf0\x9f\x98",
        b"\xf0\x9f\x98\xf0\x9f\x98\x80",
        b"\xed\xa0\x80",
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
        b"\xf8\x88\x80\x80\x80",
        b"a\xf0\x80\x80b",
    ];

    #[test]
    fn it_does_not_matter_where_the_bytes_are_cut() {
        for bytes in CORPUS {
            let expected = String::from_utf8_lossy(bytes);
            assert_eq!(assembled(false, bytes.chunks(1)).concat(), expected, "{bytes:?}");
            for place in 0..=bytes.len() {
                let (first, second) = bytes.split_at(place);
                assert_eq!(assembled(false, [first, b"", second]).concat(), expected, "{first:?} | {second:?}");
            }
        }
    }

    #[test]
    fn characters_wait_until_they_are_whole_and_bad_bytes_do_not() {
        assert_eq!(assembled(false, [&b"a\xf0\x9f"[..], b"\x98", b"\x80b"]), ["a", "", "😀b", ""]);
        assert_eq!(assembled(false, [&b"a\xf0\x9f"[..], b"b", b"\xff"]), ["a", "\u{fffd}b", "\u{fffd}", ""]);
        assert_eq!(assembled(false, [&b"a\xf0\x9f"[..]]), ["a", "\u{fffd}"]);
    }

    #[test]
    fn of_whole_texts_only_what_is_new_is_given() {
        let of = |texts: &[&str]| assembled(true, texts.iter().map(|text| text.as_bytes()));
        assert_eq!(of(&["a", "ab", "ab", "abcé", ""]), ["a", "b", "", "cé", "", ""]);
        assert_eq!(of(&["ab", "a", "abc"]), ["ab", "", "c", ""]);
        assert_eq!(of(&["abc", "abX", "abXY"]), ["abc", "X", "Y", ""]);
        assert_eq!(of(&["aé", "aè"]), ["aé", "è", ""]);
    }

    #[test]
    fn a_replaced_end_of_a_whole_text_waits_for_the_next_text() {
        let of = |texts: &[&str]| assembled(true, texts.iter().map(|text| text.as_bytes()));
        assert_eq!(of(&["a\u{fffd}", "a\u{fffd}\u{fffd}", "a😀", "a😀b"]), ["a", "", "😀", "b", ""]);
        assert_eq!(of(&["a\u{fffd}", ""]), ["a", "", "\u{fffd}"]);
        assert_eq!(assembled(true, [&b"a\xf0\x9f"[..], b"a\xf0\x9f\x98\x80"]), ["a", "😀", ""]);
    }

    #[test]
    fn prefixes_of_any_text_come_to_the_text() {
        for bytes in CORPUS {
            let prefixes = (0..=bytes.len()).map(|end| &bytes[..end]);
            assert_eq!(assembled(true, prefixes).concat(), String::from_utf8_lossy(bytes), "{bytes:?}");
        }
    }
}
