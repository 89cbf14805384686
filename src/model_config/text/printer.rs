//! Messages as text format, for verbose logs and for `explain`.

use std::fmt::Write;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage as _, Value};

use super::escape::quote;

pub(super) fn print(message: &DynamicMessage) -> String {
    let mut out = String::new();
    push_message(message, 0, &mut out);
    out
}

fn push_message(message: &DynamicMessage, level: usize, out: &mut String) {
    // The descriptor's order, not that of `fields()`: it does not promise one.
    for field in message.descriptor().fields() {
        if !message.has_field(&field) {
            continue;
        }
        match message.get_field(&field).as_ref() {
            Value::List(values) => {
                for value in values {
                    push_field(field.name(), &field.kind(), value, level, out);
                }
            }
            Value::Map(entries) => push_map(&field, entries.iter().collect(), level, out),
            value => push_field(field.name(), &field.kind(), value, level, out),
        }
    }
}

fn push_map(field: &FieldDescriptor, mut entries: Vec<(&MapKey, &Value)>, level: usize, out: &mut String) {
    let Kind::Message(entry) = field.kind() else { return };
    entries.sort_unstable_by_key(|(key, _)| *key);
    for (key, value) in entries {
        indent(level, out);
        let _ = writeln!(out, "{} {{", field.name());
        indent(level + 1, out);
        out.push_str("key: ");
        push_key(key, out);
        out.push('\n');
        push_field("value", &entry.map_entry_value_field().kind(), value, level + 1, out);
        indent(level, out);
        out.push_str("}\n");
    }
}

pub(super) fn push_key(key: &MapKey, out: &mut String) {
    // Writing to a String cannot fail, here and below.
    let _ = match key {
        MapKey::Bool(key) => write!(out, "{key}"),
        MapKey::I32(key) => write!(out, "{key}"),
        MapKey::I64(key) => write!(out, "{key}"),
        MapKey::U32(key) => write!(out, "{key}"),
        MapKey::U64(key) => write!(out, "{key}"),
        MapKey::String(key) => {
            quote(key.as_bytes(), out);
            Ok(())
        }
    };
}

fn push_field(name: &str, kind: &Kind, value: &Value, level: usize, out: &mut String) {
    indent(level, out);
    out.push_str(name);
    if let Value::Message(message) = value {
        out.push_str(" {\n");
        push_message(message, level + 1, out);
        indent(level, out);
        out.push_str("}\n");
        return;
    }
    out.push_str(": ");
    push_scalar(kind, value, out);
    out.push('\n');
}

pub(in super::super) fn push_scalar(kind: &Kind, value: &Value, out: &mut String) {
    let _ = match value {
        Value::Bool(value) => write!(out, "{value}"),
        Value::I32(value) => write!(out, "{value}"),
        Value::I64(value) => write!(out, "{value}"),
        Value::U32(value) => write!(out, "{value}"),
        Value::U64(value) => write!(out, "{value}"),
        Value::F32(value) => {
            push_f32(*value, out);
            Ok(())
        }
        Value::F64(value) => {
            push_f64(*value, out);
            Ok(())
        }
        Value::String(value) => {
            quote(value.as_bytes(), out);
            Ok(())
        }
        Value::Bytes(value) => {
            quote(value, out);
            Ok(())
        }
        Value::EnumNumber(number) => match kind {
            Kind::Enum(descriptor) => match descriptor.get_value(*number) {
                Some(value) => write!(out, "{}", value.name()),
                None => write!(out, "{number}"),
            },
            _ => write!(out, "{number}"),
        },
        // Handled by the callers; a list of lists does not exist.
        Value::Message(_) | Value::List(_) | Value::Map(_) => Ok(()),
    };
}

pub(in super::super) fn push_f32(value: f32, out: &mut String) {
    // `{:e}` has the shortest digits of this width; through a double, 0.1 would print as 0.10000000149011612.
    push_float(value.into(), format!("{value:e}"), format!("{value}"), out);
}

fn push_f64(value: f64, out: &mut String) {
    push_float(value, format!("{value:e}"), format!("{value}"), out);
}

fn push_float(value: f64, exponential: String, plain: String, out: &mut String) {
    if value.is_nan() {
        out.push_str("nan");
    } else if value.is_infinite() {
        out.push_str(if value < 0.0 { "-inf" } else { "inf" });
    } else if value != 0.0 && !(1e-5..1e15).contains(&value.abs()) {
        out.push_str(&exponential);
    } else {
        out.push_str(&plain);
    }
}

fn indent(level: usize, out: &mut String) {
    for _ in 0..level {
        out.push_str("  ");
    }
}
