//! Strings, numbers and booleans as pydantic reads them in its lax mode (contract/openai.md section 1.2): numbers also
//! from strings and booleans, integers also from floats without a fraction, booleans also from words and 0 and 1.

use super::errors::Errors;
use crate::json::Json;

const INT_PARSING: &str = "Input should be a valid integer, unable to parse string as an integer";
/// Digits of integers in strings beyond which they are not looked at.
const DIGITS_MAX: usize = 4300;

/// What integers must not leave.
#[derive(Clone, Copy)]
pub struct Limits {
    pub min: Option<i64>,
    pub max: Option<i64>,
}

pub const ANY: Limits = Limits { min: None, max: None };
/// Counts: from 0 on.
pub const COUNT: Limits = Limits { min: Some(0), max: None };

pub const fn between(min: i64, max: i64) -> Limits {
    Limits { min: Some(min), max: Some(max) }
}

pub fn text(value: &Json, errors: &mut Errors) -> Option<String> {
    if let Json::Text(text) = value {
        return Some(text.clone());
    }
    errors.add("string_type", "Input should be a valid string", value);
    None
}

/// An integer. What does not fit 64 bits is the largest or the smallest that does: no limit is that far out, and what
/// has no limit is a count that nobody reaches.
pub fn integer(value: &Json, limits: Limits, errors: &mut Errors) -> Option<i64> {
    let exact = match exact_integer(value) {
        Ok(exact) => exact,
        Err((kind, msg)) => {
            errors.add(kind, msg, value);
            return None;
        }
    };
    if let Some(max) = limits.max.filter(|max| exact > i128::from(*max)) {
        let msg = format!("Input should be less than or equal to {max}");
        errors.add_with("less_than_equal", msg, value, Some(limit("le", Json::from(max))));
        return None;
    }
    if let Some(min) = limits.min.filter(|min| exact < i128::from(*min)) {
        let msg = format!("Input should be greater than or equal to {min}");
        errors.add_with("greater_than_equal", msg, value, Some(limit("ge", Json::from(min))));
        return None;
    }
    Some(exact.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
}

fn limit(name: &str, value: Json) -> Json {
    Json::Object(vec![(name.to_owned(), value)])
}

type Wrong = (&'static str, &'static str);

const INT_SIZE: Wrong = ("int_parsing_size", "Unable to parse input string as an integer, exceeded maximum size");

fn exact_integer(value: &Json) -> Result<i128, Wrong> {
    match value {
        Json::Int(value) => Ok(*value),
        Json::Bool(value) => Ok(i128::from(*value)),
        Json::Float(value) if !value.is_finite() => Err(("finite_number", "Input should be a finite number")),
        Json::Float(value) if value.fract() != 0.0 => {
            Err(("int_from_float", "Input should be a valid integer, got a number with a fractional part"))
        }
        Json::Float(value) if is_in_64_bits(*value) => Ok(i128::from(*value as i64)),
        Json::Float(_) => Err(INT_SIZE),
        Json::Text(text) => integer_of_text(text),
        _ => Err(("int_type", "Input should be a valid integer")),
    }
}

fn is_in_64_bits(value: f64) -> bool {
    (i64::MIN as f64) < value && value < (i64::MAX as f64)
}

fn integer_of_text(text: &str) -> Result<i128, Wrong> {
    let wrong = ("int_parsing", INT_PARSING);
    if text.len() > DIGITS_MAX {
        return Err(INT_SIZE);
    }
    let text = text.trim();
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    // A fraction of zeros is none.
    let digits = match digits.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0') => whole,
        Some(_) => return Err(wrong),
        None => digits,
    };
    let is_spelled =
        digits.split('_').all(|group| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit()));
    if !is_spelled {
        return Err(wrong);
    }
    let mut magnitude: i128 = 0;
    for digit in digits.bytes().filter(u8::is_ascii_digit) {
        magnitude = magnitude.saturating_mul(10).saturating_add(i128::from(digit - b'0'));
    }
    Ok(if is_negative { -magnitude } else { magnitude })
}

pub fn float(value: &Json, min: f64, max: f64, errors: &mut Errors) -> Option<f64> {
    let number = number(value, errors)?;
    if number.is_nan() || number > max {
        let msg = format!("Input should be less than or equal to {max}");
        errors.add_with("less_than_equal", msg, value, Some(limit("le", Json::Float(max))));
        return None;
    }
    if number < min {
        let msg = format!("Input should be greater than or equal to {min}");
        errors.add_with("greater_than_equal", msg, value, Some(limit("ge", Json::Float(min))));
        return None;
    }
    Some(number)
}

/// A number without limits: also NaN and infinities.
pub fn number(value: &Json, errors: &mut Errors) -> Option<f64> {
    match value {
        Json::Int(value) => return Some(*value as f64),
        Json::Float(value) => return Some(*value),
        Json::Bool(value) => return Some(f64::from(u8::from(*value))),
        Json::Text(text) => {
            if let Some(number) = number_of_text(text.trim()) {
                return Some(number);
            }
            errors.add("float_parsing", "Input should be a valid number, unable to parse string as a number", value);
        }
        _ => errors.add("float_type", "Input should be a valid number", value),
    }
    None
}

fn number_of_text(text: &str) -> Option<f64> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let is_grouped = !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    if is_grouped && text.contains('_') { text.replace('_', "").parse().ok() } else { None }
}

pub fn boolean(value: &Json, errors: &mut Errors) -> Option<bool> {
    const TRUE: [&str; 6] = ["true", "t", "yes", "y", "on", "1"];
    const FALSE: [&str; 6] = ["false", "f", "no", "n", "off", "0"];
    let whole = match value {
        Json::Bool(value) => return Some(*value),
        Json::Text(text) if TRUE.iter().any(|word| word.eq_ignore_ascii_case(text)) => Some(1),
        Json::Text(text) if FALSE.iter().any(|word| word.eq_ignore_ascii_case(text)) => Some(0),
        Json::Text(_) => Some(-1),
        Json::Int(value) => i64::try_from(*value).ok(),
        Json::Float(value) if value.fract() == 0.0 && is_in_64_bits(*value) => Some(*value as i64),
        _ => None,
    };
    match whole {
        Some(0) => return Some(false),
        Some(1) => return Some(true),
        Some(_) => {
            errors.add("bool_parsing", "Input should be a valid boolean, unable to interpret input", value);
        }
        None => errors.add("bool_type", "Input should be a valid boolean", value),
    }
    None
}
