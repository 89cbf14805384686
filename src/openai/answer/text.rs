//! Texts, numbers and values as JSON has them, among bytes.

use crate::json::{Json, escape_into};

/// Writes a text with its quotes.
pub(super) fn put_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    escape_into(text, out);
    out.push(b'"');
}

/// Writes a value.
pub(super) fn put_json(out: &mut Vec<u8>, value: &Json) {
    let mut text = String::new();
    value.compact(&mut text);
    out.extend_from_slice(text.as_bytes());
}

/// Writes an integer.
pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut from = digits.len();
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
        from -= 1;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(from..).unwrap_or_default());
}
