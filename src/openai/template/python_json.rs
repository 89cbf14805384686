//! The filter `tojson` of transformers: `json.dumps` of Python with its options.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, State};

use super::environment::bytes_left;
use super::python_text::{DEPTH_MAX, float_text, pairs, too_deep};

pub(super) fn filter(state: &State<'_, '_>, value: &Value, arguments: Rest<ValueOrKwargs>) -> Result<String, Error> {
    type Arguments = (Option<Value>, Option<Value>, Option<Value>, Option<Value>, Kwargs);
    let given = arguments.into_values();
    let (ensure_ascii, indent, separators, sort_keys, named): Arguments = from_args(&given)?;
    let of = |given: Option<Value>, name| match given {
        Some(value) => Ok::<_, Error>(value),
        None => Ok(named.get::<Option<Value>>(name)?.unwrap_or(Value::from(()))),
    };
    let ensure_ascii = of(ensure_ascii, "ensure_ascii")?.is_true();
    let indent = of(indent, "indent")?;
    let separators = of(separators, "separators")?;
    let sort_keys = of(sort_keys, "sort_keys")?.is_true();
    named.assert_all_used()?;
    let bytes_max = bytes_left(state);
    let indent = indent_of(&indent, bytes_max)?;
    let (between_items, after_key) = match separators.is_none() {
        true => ((if indent.is_some() { "," } else { ", " }).to_owned(), ": ".to_owned()),
        false => separators_of(&separators)?,
    };
    let mut writer =
        JsonText { text: String::new(), bytes_max, ensure_ascii, sort_keys, indent, between_items, after_key };
    writer.write_value(value, 0)?;
    Ok(writer.text)
}

/// A number of blanks, or the text itself.
fn indent_of(value: &Value, bytes_max: usize) -> Result<Option<String>, Error> {
    if value.is_none() {
        return Ok(None);
    }
    if let Some(text) = value.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let blanks = i64::try_from(value.clone())?;
    match usize::try_from(blanks).unwrap_or_default() {
        blanks if blanks > bytes_max => Err(ErrorKind::OutOfFuel.into()),
        blanks => Ok(Some(" ".repeat(blanks))),
    }
}

fn separators_of(value: &Value) -> Result<(String, String), Error> {
    let mut items = value.try_iter()?;
    let (first, second, third) = (items.next(), items.next(), items.next());
    match (first.as_ref().and_then(Value::as_str), second.as_ref().and_then(Value::as_str), third) {
        (Some(first), Some(second), None) => Ok((first.to_owned(), second.to_owned())),
        _ => Err(Error::new(ErrorKind::InvalidOperation, "separators of tojson must be two strings")),
    }
}

struct JsonText {
    text: String,
    bytes_max: usize,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    between_items: String,
    after_key: String,
}

impl JsonText {
    fn write_value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(too_deep());
        }
        self.check_size()?;
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self.text.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => write!(self.text, "{value}")?,
            ValueKind::Number => self.write_float(value)?,
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default()),
            ValueKind::Map => self.write_object(value, depth.saturating_add(1))?,
            ValueKind::Seq | ValueKind::Iterable => self.write_list(value, depth.saturating_add(1))?,
            kind => return Err(not_serializable(kind)),
        }
        Ok(())
    }

    fn write_list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut is_empty = true;
        self.text.push('[');
        for item in value.try_iter()? {
            self.begin_item(is_empty, depth)?;
            is_empty = false;
            self.write_value(&item, depth)?;
        }
        self.end_items(is_empty, depth, ']')
    }

    fn write_object(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut members: Vec<_> = pairs(value).collect();
        if self.sort_keys {
            members.sort_by(|(left, _), (right, _)| left.cmp(right));
        }
        self.text.push('{');
        for (index, (key, item)) in members.iter().enumerate() {
            self.begin_item(index == 0, depth)?;
            self.write_key(key)?;
            self.text.push_str(&self.after_key);
            self.write_value(item, depth)?;
        }
        self.end_items(members.is_empty(), depth, '}')
    }

    /// Keys of other types become strings.
    fn write_key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.write_string(key.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.text.push('"');
                self.write_value(key, 0)?;
                self.text.push('"');
            }
            kind => return Err(not_serializable(kind)),
        }
        Ok(())
    }

    fn begin_item(&mut self, is_first: bool, depth: usize) -> Result<(), Error> {
        if !is_first {
            self.text.push_str(&self.between_items);
        }
        self.write_indent(depth)
    }

    fn end_items(&mut self, is_empty: bool, depth: usize, close: char) -> Result<(), Error> {
        if !is_empty {
            self.write_indent(depth.saturating_sub(1))?;
        }
        self.text.push(close);
        Ok(())
    }

    fn write_indent(&mut self, depth: usize) -> Result<(), Error> {
        let Some(indent) = &self.indent else { return Ok(()) };
        self.text.push('\n');
        for _ in 0..depth {
            self.text.push_str(indent);
            self.check_size()?;
        }
        Ok(())
    }

    /// JSON has no such numbers; Python writes them by default.
    fn write_float(&mut self, value: &Value) -> Result<(), Error> {
        let value = f64::try_from(value.clone())?;
        match value {
            _ if value.is_nan() => self.text.push_str("NaN"),
            _ if value.is_infinite() => self.text.push_str(if value > 0.0 { "Infinity" } else { "-Infinity" }),
            _ => self.text.push_str(&float_text(value)),
        }
        Ok(())
    }

    fn write_string(&mut self, value: &str) {
        self.text.push('"');
        for character in value.chars() {
            match character {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                _ if character < ' ' || (self.ensure_ascii && !(' '..='~').contains(&character)) => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        // Writing to a string does not fail.
                        let _ = write!(self.text, "\\u{unit:04x}");
                    }
                }
                _ => self.text.push(character),
            }
        }
        self.text.push('"');
    }

    fn check_size(&self) -> Result<(), Error> {
        if self.text.len() > self.bytes_max { Err(ErrorKind::OutOfFuel.into()) } else { Ok(()) }
    }
}

fn not_serializable(kind: ValueKind) -> Error {
    let kind = if kind == ValueKind::Undefined { "Undefined".to_owned() } else { kind.to_string() };
    Error::new(ErrorKind::BadSerialization, format!("Object of type {kind} is not JSON serializable"))
}
