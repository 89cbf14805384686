//! Numbers in headers, read as Triton reads them.

use nereid_request::Status;

/// Why a header is no number.
pub enum NumberError {
    None,
    OutOfRange,
}

/// Reads a number of 32 bits as C++'s `stoi` does: blanks, a sign, digits, and whatever follows them.
pub fn read_int32(value: &[u8]) -> Result<i64, NumberError> {
    let trimmed = value.trim_ascii_start();
    let (sign, digits) = match trimmed.split_first() {
        Some((b'-', rest)) => (-1, rest),
        Some((b'+', rest)) => (1, rest),
        _ => (1, trimmed),
    };
    let digits = &digits[..digits.iter().take_while(|byte| byte.is_ascii_digit()).count()];
    if digits.is_empty() {
        return Err(NumberError::None);
    }
    let number = digits.iter().try_fold(0i64, |number, digit| {
        number.checked_mul(10)?.checked_add(i64::from(digit - b'0')).filter(|number| *number <= 1 << 31)
    });
    let number = number.map(|number| sign * number).filter(|number| i32::try_from(*number).is_ok());
    number.ok_or(NumberError::OutOfRange)
}

/// The number in a header.
pub fn parse_int32(name: &str, value: &[u8]) -> Result<i64, Status> {
    let shown = || String::from_utf8_lossy(value);
    read_int32(value).map_err(|error| match error {
        NumberError::None => Status::invalid(format!("Unable to parse {name}, got: {}", shown())),
        NumberError::OutOfRange => Status::invalid(format!(
            "Unable to parse {name}, value is out of range [ {}, {} ], got: {}",
            i32::MIN,
            i32::MAX,
            shown()
        )),
    })
}
