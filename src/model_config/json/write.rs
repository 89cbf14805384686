//! A message as JSON: every field without presence is printed, an absent sub-message or oneof member is not.

use std::fmt::Write;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage as _, Value};

use super::super::text::push_f32;

/// Where 64-bit integers are numbers; maps and lists leave no trace in these paths.
const NUMBERS: [&str; 16] = [
    "input.dims",
    "input.reshape.shape",
    "output.dims",
    "output.reshape.shape",
    "version_policy.specific.versions",
    "dynamic_batching.max_queue_delay_microseconds",
    "dynamic_batching.priority_levels",
    "dynamic_batching.default_priority_level",
    "dynamic_batching.default_queue_policy.default_timeout_microseconds",
    "dynamic_batching.priority_queue_policy.default_timeout_microseconds",
    "sequence_batching.max_sequence_idle_microseconds",
    "sequence_batching.oldest.max_queue_delay_microseconds",
    "sequence_batching.direct.max_queue_delay_microseconds",
    "sequence_batching.state.dims",
    "ensemble_scheduling.step.model_version",
    "model_warmup.inputs.dims",
];

pub(super) fn write(message: &DynamicMessage) -> String {
    let mut writer = Writer { out: String::new(), path: String::new() };
    writer.message(message);
    writer.out
}

struct Writer {
    out: String,
    /// Names of the fields that lead here, joined by dots.
    path: String,
}

impl Writer {
    fn message(&mut self, message: &DynamicMessage) {
        self.out.push('{');
        let mut first = true;
        for field in declared_fields(&message.descriptor()) {
            let has_default_form = field.is_list() || field.is_map() || !field.supports_presence();
            if !message.has_field(&field) && !has_default_form {
                continue;
            }
            if !std::mem::take(&mut first) {
                self.out.push(',');
            }
            push_string(field.name(), &mut self.out);
            self.out.push(':');
            let outer = self.path.len();
            if outer > 0 {
                self.path.push('.');
            }
            self.path.push_str(field.name());
            self.field(&field, message.get_field(&field).as_ref());
            self.path.truncate(outer);
        }
        self.out.push('}');
    }

    fn field(&mut self, field: &FieldDescriptor, value: &Value) {
        match value {
            Value::List(values) => {
                self.out.push('[');
                for (index, value) in values.iter().enumerate() {
                    if index > 0 {
                        self.out.push(',');
                    }
                    self.value(&field.kind(), value);
                }
                self.out.push(']');
            }
            Value::Map(entries) => {
                let Kind::Message(entry) = field.kind() else { return };
                let kind = entry.map_entry_value_field().kind();
                // Sorted, so that the same configuration is always the same text.
                let mut entries: Vec<(&MapKey, &Value)> = entries.iter().collect();
                entries.sort_unstable_by_key(|(key, _)| *key);
                self.out.push('{');
                for (index, (key, value)) in entries.into_iter().enumerate() {
                    if index > 0 {
                        self.out.push(',');
                    }
                    push_string(&key_text(key), &mut self.out);
                    self.out.push(':');
                    self.value(&kind, value);
                }
                self.out.push('}');
            }
            value => self.value(&field.kind(), value),
        }
    }

    fn value(&mut self, kind: &Kind, value: &Value) {
        // Writing to a String cannot fail.
        let _ = match value {
            Value::Bool(value) => write!(self.out, "{value}"),
            Value::I32(value) => write!(self.out, "{value}"),
            Value::U32(value) => write!(self.out, "{value}"),
            Value::I64(value) if self.is_number() => write!(self.out, "{value}"),
            Value::I64(value) => write!(self.out, "\"{value}\""),
            Value::U64(value) if self.is_number() => write!(self.out, "{value}"),
            Value::U64(value) => write!(self.out, "\"{value}\""),
            Value::F32(value) => {
                let mut digits = String::new();
                push_f32(*value, &mut digits);
                // The shortest digits of the float, taken as a double: 0.1 stays 0.1.
                push_number(digits.parse().unwrap_or(f64::from(*value)), 6, 9, &mut self.out);
                Ok(())
            }
            Value::F64(value) => {
                push_number(*value, 15, 17, &mut self.out);
                Ok(())
            }
            Value::String(value) => {
                push_string(value, &mut self.out);
                Ok(())
            }
            Value::EnumNumber(number) => match enum_name(kind, *number) {
                Some(name) => write!(self.out, "\"{name}\""),
                None => write!(self.out, "{number}"),
            },
            Value::Message(message) => {
                self.message(message);
                Ok(())
            }
            // A configuration has no bytes fields, and no list of lists exists.
            Value::Bytes(_) | Value::List(_) | Value::Map(_) => write!(self.out, "null"),
        };
    }

    fn is_number(&self) -> bool {
        NUMBERS.contains(&self.path.as_str())
    }
}

/// The fields in the order of the .proto file; reflection itself sorts them by number.
fn declared_fields(descriptor: &MessageDescriptor) -> impl Iterator<Item = FieldDescriptor> {
    descriptor.descriptor_proto().field.iter().filter_map(|field| descriptor.get_field_by_name(field.name()))
}

fn enum_name(kind: &Kind, number: i32) -> Option<String> {
    match kind {
        Kind::Enum(descriptor) => descriptor.get_value(number).map(|value| value.name().to_owned()),
        _ => None,
    }
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}

/// Escapes the quote, the backslash and control characters, nothing else (contract/http.md section 2).
fn push_string(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if u32::from(control) < 0x20 => {
                let _ = write!(out, "\\u{:04X}", u32::from(control));
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

/// A float as the two printers of Triton write it: protobuf's, which writes `%.<digits>g` where that reads back and
/// `%.<more>g` elsewhere, so that small whole numbers have no fraction; then the JSON writer of contract/http.md
/// section 2 for what the first wrote with a fraction or an exponent.
fn push_number(value: f64, digits: i32, more: i32, out: &mut String) {
    // JSON has no such numbers; protobuf writes these words.
    if value.is_nan() {
        out.push_str("\"NaN\"");
        return;
    }
    if value.is_infinite() {
        out.push_str(if value < 0.0 { "\"-Infinity\"" } else { "\"Infinity\"" });
        return;
    }
    if value == 0.0 {
        out.push('0');
        return;
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let significant = i32::try_from(mantissa.bytes().filter(u8::is_ascii_digit).count()).unwrap_or(i32::MAX);
    let precision = if significant <= digits { digits } else { more };
    // Writing to a String cannot fail.
    let _ = if value.fract() == 0.0 && exponent < precision {
        write!(out, "{value}")
    } else if (-6..21).contains(&exponent) {
        write!(out, "{value}{}", if value.fract() == 0.0 { ".0" } else { "" })
    } else {
        write!(out, "{scientific}")
    };
}
