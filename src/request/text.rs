//! Short byte strings of a request: ids, names, string parameters.
//!
//! Clients may send any bytes and get the same bytes back (http.md section 2), and plug-ins want C strings without a
//! copy; so a text is bytes with a NUL behind them, kept in place up to 30 bytes.

use std::ffi::CStr;
use std::fmt;

use smallvec::SmallVec;

/// Bytes, mostly UTF-8, always followed by a NUL in memory.
pub struct Text(SmallVec<[u8; PLACE]>);

/// Bytes that are kept in place, NUL included.
const PLACE: usize = 31;

impl Text {
    pub fn new(bytes: &[u8]) -> Text {
        if bytes.len() < PLACE {
            let mut place = [0; PLACE];
            place[..bytes.len()].copy_from_slice(bytes);
            return Text(SmallVec::from_buf_and_len(place, bytes.len() + 1));
        }
        let mut text = SmallVec::with_capacity(bytes.len() + 1);
        text.extend_from_slice(bytes);
        text.push(0);
        Text(text)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0[..self.0.len() - 1]
    }

    /// The text up to its first NUL, as C sees it.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
    }

    /// The text for a message: what is not UTF-8 shows as U+FFFD.
    pub fn to_str_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.as_bytes())
    }
}

impl Clone for Text {
    fn clone(&self) -> Text {
        // One copy, where the vector's own clone goes byte by byte.
        Text(SmallVec::from_slice(&self.0))
    }
}

impl Default for Text {
    fn default() -> Text {
        Text(SmallVec::from_buf_and_len([0; PLACE], 1))
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
