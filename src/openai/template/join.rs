//! The filter and the method `join`, with the text of items as Python has it, in bounds: lists that share their items,
//! or repeat them, are much longer as text than in memory, and minijinja charges for a text once it is whole.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind, State};

use super::environment::bytes_left;
use super::python_text;

/// `join(value, d='', attribute=None)` of Jinja2.
pub(super) fn filter(
    state: &State<'_, '_>,
    value: &Value,
    separator: Option<Value>,
    attribute: Option<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    let separator = match separator {
        Some(separator) => separator,
        None => named.get::<Option<Value>>("d")?.unwrap_or_else(|| Value::from("")),
    };
    let attribute = match attribute {
        Some(attribute) => Some(attribute),
        None => named.get("attribute")?,
    };
    named.assert_all_used()?;
    let separator = printed(state, &separator)?;
    let mut text = String::new();
    for (index, item) in items(value)?.enumerate() {
        let item = match &attribute {
            Some(attribute) if !attribute.is_none() => look_up(&item, attribute)?,
            _ => item,
        };
        if index > 0 {
            text.push_str(&separator);
        }
        text.push_str(&printed(state, &item)?);
        check(state, &text)?;
    }
    Ok(text)
}

/// `str.join` of Python, which takes strings alone.
pub(super) fn of_strings(state: &State<'_, '_>, separator: &str, values: &Value) -> Result<String, Error> {
    let mut text = String::new();
    for (index, item) in items(values)?.enumerate() {
        let Some(item) = item.as_str() else {
            let kind = item.kind();
            let message = format!("sequence item {index}: expected str instance, {kind} found");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        };
        if index > 0 {
            text.push_str(separator);
        }
        text.push_str(item);
        check(state, &text)?;
    }
    Ok(text)
}

/// The items of a list, or the characters of a string.
fn items(value: &Value) -> Result<Box<dyn Iterator<Item = Value> + '_>, Error> {
    match value.as_str() {
        Some(text) => Ok(Box::new(text.chars().map(|character| Value::from(character.to_string())))),
        None => Ok(Box::new(value.try_iter()?)),
    }
}

/// `str(value)`
fn printed(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None if value.is_undefined() => Ok(String::new()),
        None => python_text::text_of(value, bytes_left(state)),
    }
}

/// An item by a name, a position, or several of them with dots between them.
fn look_up(item: &Value, attribute: &Value) -> Result<Value, Error> {
    let Some(path) = attribute.as_str() else { return item.get_item(attribute) };
    let mut found = item.clone();
    for name in path.split('.') {
        found = match name.parse::<i64>() {
            Ok(position) => found.get_item(&Value::from(position))?,
            Err(_) => found.get_item(&Value::from(name))?,
        };
    }
    Ok(found)
}

/// An item may be without a byte, so that each is paid for.
fn check(state: &State<'_, '_>, text: &str) -> Result<(), Error> {
    state.consume_fuel(1)?;
    if text.len() > bytes_left(state) { Err(ErrorKind::OutOfFuel.into()) } else { Ok(()) }
}
