//! The environment of templates: what transformers' environment has and minijinja's has not, or has differently
//! (contract/openai.md section 6).

use std::fmt::Write;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State};
use thiserror::Error as ErrorType;

use super::{join, methods, python_json, python_text};

/// What `raise_exception` was called with: the source of the error, since an error of minijinja has a text of its own.
#[derive(Debug, ErrorType)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

pub(super) fn make() -> Environment<'static> {
    let mut environment = Environment::new();
    // Only a delimiter that is empty or used twice is refused, and none is set.
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    // It would keep the variables of a failed rendering, as text.
    environment.set_debug(false);
    environment.set_formatter(print);
    environment.set_unknown_method_callback(methods::call);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_filter("tojson", python_json::filter);
    environment.add_filter("string", text_of);
    environment.add_filter("join", join::filter);
    environment.add_function("raise_exception", raise);
    environment.add_function("strftime_now", time_now);
    environment.remove_global("debug");
    environment
}

/// Writes a value as `str()` has it.
fn print(output: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => Ok(output.write_str(text)?),
        None if value.is_undefined() => Ok(()),
        None => Ok(output.write_str(&python_text::text_of(value, bytes_left(state))?)?),
    }
}

/// The filter `string`.
fn text_of(state: &State<'_, '_>, value: Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(_) => Ok(value),
        None if value.is_undefined() => Ok(Value::from("")),
        None => python_text::text_of(&value, bytes_left(state)).map(Value::from),
    }
}

/// What the fuel still pays for. Lists that share their items are much longer as text than in memory.
pub(super) fn bytes_left(state: &State<'_, '_>) -> usize {
    /// Bytes that minijinja charges as one unit of fuel.
    const BYTES_PER_FUEL: u64 = 64;
    let fuel = state.fuel_levels().map_or(u64::MAX, |(_, remaining)| remaining);
    usize::try_from(fuel.saturating_mul(BYTES_PER_FUEL)).unwrap_or(usize::MAX)
}

/// Not None: minijinja iterates over it as over nothing, Python does not.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// What has a length and can be indexed: in Python strings and dictionaries too.
fn is_sequence(value: &Value) -> bool {
    let sequences = [ValueKind::Undefined, ValueKind::String, ValueKind::Seq, ValueKind::Iterable, ValueKind::Map];
    sequences.contains(&value.kind())
}

fn raise(state: &State<'_, '_>, message: Value) -> Result<Value, Error> {
    let text = text_of(state, message)?.to_string();
    Err(Error::new(ErrorKind::InvalidOperation, text.clone()).with_source(Raised(text)))
}

fn time_now(format: &str) -> Result<String, Error> {
    let mut text = String::new();
    let is_written = write!(text, "{}", chrono::Local::now().format(format));
    is_written.map_err(|_| {
        Error::new(ErrorKind::InvalidOperation, format!("strftime_now does not know the format '{format}'"))
    })?;
    Ok(text)
}
