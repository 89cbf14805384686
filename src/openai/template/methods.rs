//! Methods of Python's types: those of minijinja's collection, and those that it lacks and templates call.

use minijinja::value::{Value, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::environment::bytes_left;
use super::{join, python_text};

pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    if let ("join", Some(separator)) = (method, value.as_str()) {
        let (items,): (&Value,) = from_args(arguments)?;
        return join::of_strings(state, separator, items).map(Value::from);
    }
    if let ("format", Some(text)) = (method, value.as_str()) {
        check_format(state, text, arguments)?;
    }
    match unknown_method_callback(state, value, method, arguments) {
        Err(error) if error.kind() == ErrorKind::UnknownMethod => match value.as_str() {
            Some(text) => call_of_text(text, method, arguments),
            None => Err(error),
        },
        result => result,
    }
}

/// minijinja charges for a text once it is whole; a width, and an argument that is named many times, make it much
/// longer than the text that says so.
fn check_format(state: &State<'_, '_>, text: &str, arguments: &[Value]) -> Result<(), Error> {
    let numbers = text.split(|character: char| !character.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let widths = numbers.map(|digits| digits.parse().unwrap_or(usize::MAX)).fold(0, usize::saturating_add);
    let fields = text.bytes().filter(|byte| *byte == b'{').count();
    let mut longest = 0;
    for argument in arguments {
        // Members of an argument may be named, too.
        let length = match argument.as_str() {
            Some(text) => text.len(),
            None => python_text::text_of(argument, bytes_left(state))?.len(),
        };
        longest = longest.max(length);
    }
    if fields.saturating_mul(longest).saturating_add(widths) > bytes_left(state) {
        return Err(ErrorKind::OutOfFuel.into());
    }
    Ok(())
}

fn call_of_text(text: &str, method: &str, arguments: &[Value]) -> Result<Value, Error> {
    match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            if separator.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let is_first = method == "partition";
            let pieces = if is_first { text.split_once(separator) } else { text.rsplit_once(separator) };
            let parts = match pieces {
                Some((before, after)) => [before, separator, after],
                None if is_first => [text, "", ""],
                None => ["", "", text],
            };
            Ok(Value::from_iter(parts))
        }
        "rsplit" => {
            let (separator, splits_max): (&str, Option<usize>) = from_args(arguments)?;
            if separator.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let pieces_max = splits_max.unwrap_or(usize::MAX).saturating_add(1);
            let mut pieces: Vec<_> = text.rsplitn(pieces_max, separator).map(Value::from).collect();
            pieces.reverse();
            Ok(Value::from(pieces))
        }
        "isdecimal" => {
            let () = from_args(arguments)?;
            Ok(Value::from(!text.is_empty() && text.chars().all(|character| character.is_ascii_digit())))
        }
        _ => Err(ErrorKind::UnknownMethod.into()),
    }
}
