//! Short byte strings of a request: ids, names, string parameters.
//!
//! Clients may send any bytes and get the same bytes back (contract/http.md section 2), and plug-ins want C strings
//! without a copy; so a text is bytes with a NUL behind them, kept in place up to 30 bytes.

use std::ffi::CStr;
use std::fmt;
use std::sync::Arc;

/// Bytes of a text in place, with its NUL or the number of unused bytes.
const PLACE: usize = 31;

/// Bytes, mostly UTF-8, always followed by a NUL in memory.
#[derive(Clone)]
pub struct Text(TextStorage);

#[derive(Clone)]
enum TextStorage {
    /// The last byte is the number of unused bytes before it, and so the NUL of a text that uses all. Unused bytes are
    /// zero.
    Here([u8; PLACE]),
    /// With the NUL. A clone shares it. Not a slice, into which a text would be copied a second time.
    Apart(Arc<Vec<u8>>),
}

impl Text {
    pub fn new(bytes: &[u8]) -> Text {
        let mut place = [0; PLACE];
        match place.get_mut(..bytes.len()) {
            Some(used) if bytes.len() < PLACE => {
                used.copy_from_slice(bytes);
                place[PLACE - 1] = (PLACE - 1 - bytes.len()) as u8;
                Text(TextStorage::Here(place))
            }
            _ => {
                let mut terminated = Vec::with_capacity(bytes.len() + 1);
                terminated.extend_from_slice(bytes);
                terminated.push(0);
                Text(TextStorage::Apart(Arc::new(terminated)))
            }
        }
    }

    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            TextStorage::Here(place) => place.get(..PLACE - 1 - usize::from(place[PLACE - 1])).unwrap_or_default(),
            TextStorage::Apart(bytes) => bytes.split_last().map_or(&[], |(_, text)| text),
        }
    }

    /// The text up to its first NUL, as C sees it.
    pub fn as_c_str(&self) -> &CStr {
        let with_nul = match &self.0 {
            TextStorage::Here(place) => &place[..],
            TextStorage::Apart(bytes) => &bytes[..],
        };
        CStr::from_bytes_until_nul(with_nul).unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
    }

    /// The text for a message: what is not UTF-8 shows as U+FFFD.
    pub fn to_str_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.as_bytes())
    }
}

impl Default for Text {
    fn default() -> Text {
        Text::new(b"")
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Text {
        Text::new(text.as_bytes())
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Text {}

impl std::hash::Hash for Text {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_str_lossy())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.to_str_lossy(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_any_length_come_back_and_end_in_nul() {
        assert_eq!(std::mem::size_of::<Text>(), 32);
        for len in (0..70).chain([1000]) {
            let bytes: Vec<u8> = (0..len).map(|at| (at % 250 + 1) as u8).collect();
            let text = Text::new(&bytes);
            let copy = text.clone();
            for text in [&text, &copy] {
                assert_eq!(text.as_bytes(), bytes, "{len}");
                assert_eq!(text.as_c_str().to_bytes(), bytes, "{len}");
                assert_eq!(text.is_empty(), len == 0);
            }
            assert!(text == copy && text != Text::new(&[&bytes[..], b"x"].concat()));
        }
    }

    #[test]
    fn a_nul_inside_ends_what_c_sees_and_nothing_else() {
        let text = Text::new(b"a\0b");
        assert_eq!((text.as_bytes(), text.as_c_str().to_bytes()), (&b"a\0b"[..], &b"a"[..]));
        assert_ne!(text, Text::from("a"));
        assert_eq!(Text::new(&[0; 40]).as_bytes(), [0; 40]);
    }
}
