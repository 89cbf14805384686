//! Texts and numbers as JSON has them.

/// Writes a text with its quotes.
pub(super) fn put_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    put_escaped(out, text);
    out.push(b'"');
}

/// Writes a text as it stands between quotes. What is cut into parts makes the same.
pub(super) fn put_escaped(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let mut plain_from = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if byte >= b' ' && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(bytes.get(plain_from..at).unwrap_or_default());
        plain_from = at + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            8 => out.extend_from_slice(b"\\b"),
            12 => out.extend_from_slice(b"\\f"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
        }
    }
    out.extend_from_slice(bytes.get(plain_from..).unwrap_or_default());
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

/// Writes a value. Its nesting is bounded where it was parsed.
pub(super) fn put_json(out: &mut Vec<u8>, value: &crate::json::Json) {
    use crate::json::Json;
    match value {
        Json::Null => out.extend_from_slice(b"null"),
        Json::Bool(value) => out.extend_from_slice(if *value { b"true" } else { b"false" }),
        Json::Int(value) => out.extend_from_slice(value.to_string().as_bytes()),
        Json::Float(value) if value.is_finite() => {
            out.extend_from_slice(zmij::Buffer::new().format_finite(*value).as_bytes());
        }
        Json::Float(_) => out.extend_from_slice(b"null"),
        Json::Text(text) => put_string(out, text),
        Json::List(values) => {
            out.push(b'[');
            for (index, value) in values.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                put_json(out, value);
            }
            out.push(b']');
        }
        Json::Object(members) => {
            out.push(b'{');
            for (index, (name, value)) in members.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                put_string(out, name);
                out.push(b':');
                put_json(out, value);
            }
            out.push(b'}');
        }
    }
}
