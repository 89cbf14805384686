//! Reads XGBoost's JSON as far as its validation needs: brackets, keys, and numbers in arrays.
//!
//! A text that is not JSON is left to treelite, which reports the offset. So nothing is refused here for its grammar,
//! and reading stops where no document can go on.

use super::Invalid;
use super::xgboost::Document;

pub fn validate(bytes: &[u8]) -> Result<(), Invalid> {
    let mut document = Document::default();
    let mut rest = bytes;
    let mut text: Option<&[u8]> = None;
    while let Some((&byte, behind)) = rest.split_first() {
        match byte {
            b'"' => {
                let Some(len) = text_len(behind) else { return Ok(()) };
                let (content, after) = behind.split_at(len);
                text = Some(content);
                rest = after.get(1..).unwrap_or_default();
                if rest.trim_ascii_start().first() != Some(&b':') {
                    document.text(content)?;
                }
                continue;
            }
            b':' => document.key(&unescaped(text.take().unwrap_or_default())),
            b'{' | b'[' => document.begin(byte == b'[')?,
            b'}' | b']' => document.end()?,
            b'-' | b'0'..=b'9' => {
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
                let len = rest.iter().take_while(|byte| is_part(byte)).count();
                let (number, after) = rest.split_at(len);
                document.number(std::str::from_utf8(number).ok().and_then(|number| number.parse().ok()));
                rest = after;
                continue;
            }
            // Blanks, commas, and words, which are not numbers.
            b'a'..=b'z' | b'A'..=b'Z' => {
                let len = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
                document.number(None);
                rest = rest.get(len..).unwrap_or_default();
                continue;
            }
            _ => {}
        }
        rest = behind;
    }
    document.finish()
}

/// Bytes before the closing quotation mark.
fn text_len(bytes: &[u8]) -> Option<usize> {
    let mut is_escaped = false;
    bytes.iter().position(|byte| {
        let is_end = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    })
}

/// A key may be written with escapes.
fn unescaped(key: &[u8]) -> Vec<u8> {
    if !key.contains(&b'\\') {
        return key.to_vec();
    }
    let quoted = [b"\"", key, b"\""].concat();
    serde_json::from_slice::<String>(&quoted).map_or_else(|_| key.to_vec(), String::into_bytes)
}
