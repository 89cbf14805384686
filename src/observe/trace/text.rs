//! Entries of traces as JSON (contract/metrics.md section 4, "Triton-mode file").

use std::borrow::Cow;
use std::fmt::{Display, Write};

use super::number::general;
use super::record::{Identity, Tensor, TraceEntry};

/// Writes entries, joined by commas.
pub(super) fn put_entries(out: &mut String, entries: &[TraceEntry]) {
    for (at, entry) in entries.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        // Writing to a String cannot fail.
        let _ = match entry {
            TraceEntry::Identity(identity) => put_identity(out, identity),
            TraceEntry::Time { trace, name, ns, .. } => {
                let _ = write!(out, "{{\"id\":{trace},\"timestamps\":[{{\"name\":");
                put_string(out, name.as_bytes());
                write!(out, ",\"ns\":{ns}}}]}}")
            }
            TraceEntry::Tensor { trace, tensor } => put_tensor(out, *trace, tensor),
        };
    }
}

fn put_identity(out: &mut String, identity: &Identity) -> std::fmt::Result {
    write!(out, "{{\"id\":{},\"model_name\":", identity.trace)?;
    put_string(out, identity.model.as_bytes());
    write!(out, ",\"model_version\":{}", identity.version)?;
    if !identity.request_id.is_empty() {
        out.push_str(",\"request_id\":");
        put_string(out, &identity.request_id);
    }
    if identity.parent != 0 {
        write!(out, ",\"parent_id\":{}", identity.parent)?;
    }
    out.push('}');
    Ok(())
}

fn put_tensor(out: &mut String, trace: u64, tensor: &Tensor) -> std::fmt::Result {
    write!(out, "{{\"id\":{trace},\"activity\":\"{}\",\"tensor\":{{\"name\":", tensor.activity)?;
    put_string(out, &tensor.name);
    out.push_str(",\"data\":\"");
    put_data(out, tensor);
    out.push_str("\",\"shape\":\"");
    for (at, dim) in tensor.shape.iter().enumerate() {
        write!(out, "{}{dim}", if at > 0 { "," } else { "" })?;
    }
    write!(out, "\",\"dtype\":\"{}\"}}}}", tensor.datatype)
}

/// The elements, joined by commas, as the inside of a string.
fn put_data(out: &mut String, tensor: &Tensor) {
    let data: Cow<'_, [u8]> = match &tensor.pieces[..] {
        [piece] => Cow::Borrowed(piece),
        pieces => Cow::Owned(pieces.iter().flat_map(|piece| piece.iter().copied()).collect()),
    };
    macro_rules! numbers {
        ($of:ty, $show:expr) => {
            put_elements::<{ size_of::<$of>() }, _>(out, &data, |bytes| $show(<$of>::from_le_bytes(bytes)))
        };
    }
    match tensor.datatype {
        "BOOL" => numbers!(u8, |value: u8| u8::from(value != 0)),
        "UINT8" => numbers!(u8, |value| value),
        "INT8" => numbers!(i8, |value| value),
        "UINT16" => numbers!(u16, |value| value),
        "INT16" => numbers!(i16, |value| value),
        "UINT32" => numbers!(u32, |value| value),
        "INT32" => numbers!(i32, |value| value),
        "UINT64" => numbers!(u64, |value| value),
        "INT64" => numbers!(i64, |value| value),
        "FP32" => numbers!(f32, |value| general(f64::from(value))),
        "FP64" => numbers!(f64, general),
        "BYTES" => put_strings(out, &data),
        // FP16 and BF16 are left empty.
        _ => {}
    }
}

fn put_elements<const N: usize, S: Display>(out: &mut String, data: &[u8], show: impl Fn([u8; N]) -> S) {
    let (elements, _) = data.as_chunks::<N>();
    for (at, element) in elements.iter().enumerate() {
        let _ = write!(out, "{}{}", if at > 0 { "," } else { "" }, show(*element));
    }
}

/// Length-prefixed elements; a truncated one ends the list.
fn put_strings(out: &mut String, data: &[u8]) {
    let mut rest = data;
    let mut is_first = true;
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let Some((element, behind)) = behind.split_at_checked(u32::from_le_bytes(*length) as usize) else { return };
        out.push_str(if std::mem::take(&mut is_first) { "\\\"" } else { ",\\\"" });
        put_escaped(out, element);
        out.push_str("\\\"");
        rest = behind;
    }
}

/// A JSON string with its quotes; bytes that are not UTF-8 are shown as U+FFFD.
pub(super) fn put_string(out: &mut String, bytes: &[u8]) {
    out.push('"');
    put_escaped(out, bytes);
    out.push('"');
}

fn put_escaped(out: &mut String, bytes: &[u8]) {
    for sign in String::from_utf8_lossy(bytes).chars() {
        match sign {
            '"' | '\\' => out.extend(['\\', sign]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            sign if u32::from(sign) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(sign));
            }
            sign => out.push(sign),
        }
    }
}
