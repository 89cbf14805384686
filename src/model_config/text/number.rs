//! The value of a number token for a field of a given kind: range, base, sign.

use super::lexer::Kind;

/// An integer token's value without its sign; the error is a sentence.
///
/// A leading `0x` is hexadecimal and a leading zero octal, as in C.
pub(super) fn magnitude(text: &[u8]) -> Result<u64, String> {
    let shown = || String::from_utf8_lossy(text).into_owned();
    let (digits, radix) = match text {
        [b'0', b'x' | b'X', digits @ ..] => (digits, 16),
        [b'0', digits @ ..] if !digits.is_empty() => (digits, 8),
        digits => (digits, 10),
    };
    let mut value: u64 = 0;
    for byte in digits {
        let digit =
            char::from(*byte).to_digit(radix).ok_or_else(|| format!("{} has digits that are not octal", shown()))?;
        value = value
            .checked_mul(u64::from(radix))
            .and_then(|value| value.checked_add(u64::from(digit)))
            .ok_or_else(|| format!("Integer out of range ({})", shown()))?;
    }
    Ok(value)
}

/// A signed integer of at most `bits` bits.
pub(super) fn signed(text: &[u8], negative: bool, bits: u32) -> Result<i64, String> {
    let magnitude = magnitude(text)?;
    let value = if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() };
    let limit = if bits >= 64 { i64::MAX } else { (1i64 << bits.saturating_sub(1)) - 1 };
    value.filter(|value| (-limit - 1..=limit).contains(value)).ok_or_else(|| {
        let sign = if negative { "-" } else { "" };
        let shown = String::from_utf8_lossy(text);
        format!("Integer out of range ({sign}{shown}), must be in [{}, {limit}]", -limit - 1)
    })
}

/// An unsigned integer of at most `limit`.
pub(super) fn unsigned(text: &[u8], negative: bool, limit: u64) -> Result<u64, String> {
    let sign = if negative { "-" } else { "" };
    let shown = String::from_utf8_lossy(text);
    let out_of_range = || format!("Integer out of range ({sign}{shown}), must be in [0, {limit}]");
    // Protobuf takes no sign here at all, not even for a zero.
    if negative {
        return Err(out_of_range());
    }
    Some(magnitude(text)?).filter(|value| *value <= limit).ok_or_else(out_of_range)
}

/// A float token or a decimal integer token, without its sign.
pub(super) fn float(kind: Kind, text: &[u8]) -> Result<f64, String> {
    let shown = String::from_utf8_lossy(text);
    if kind == Kind::Integer && text.len() > 1 && text.starts_with(b"0") && !text.iter().all(|byte| *byte == b'0') {
        return Err(format!("{shown} is not a decimal number"));
    }
    shown.trim_end_matches(['f', 'F']).parse::<f64>().map_err(|_| format!("{shown} is not a decimal number"))
}

/// The same as [`float`], rounded once: through a double, some texts round to the neighbour.
pub(super) fn float32(kind: Kind, text: &[u8]) -> Result<f32, String> {
    float(kind, text)?;
    let shown = String::from_utf8_lossy(text);
    shown.trim_end_matches(['f', 'F']).parse::<f32>().map_err(|_| format!("{shown} is not a decimal number"))
}

/// The words that stand for numbers, in any case.
pub(super) fn float_word(text: &[u8]) -> Option<f64> {
    if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
        Some(f64::INFINITY)
    } else if text.eq_ignore_ascii_case(b"nan") {
        Some(f64::NAN)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_in_three_bases() {
        assert_eq!(magnitude(b"0"), Ok(0));
        assert_eq!(magnitude(b"00"), Ok(0));
        assert_eq!(magnitude(b"017"), Ok(15));
        assert_eq!(magnitude(b"0xfF"), Ok(255));
        assert_eq!(magnitude(b"18446744073709551615"), Ok(u64::MAX));
        assert_eq!(magnitude(b"18446744073709551616"), Err("Integer out of range (18446744073709551616)".into()));
        assert_eq!(magnitude(b"0xFFFFFFFFFFFFFFFF"), Ok(u64::MAX));
        assert!(magnitude(b"0x10000000000000000").is_err());
        assert_eq!(magnitude(b"018"), Err("018 has digits that are not octal".into()));
    }

    #[test]
    fn ranges() {
        assert_eq!(signed(b"2147483647", false, 32), Ok(2147483647));
        assert_eq!(signed(b"2147483648", true, 32), Ok(-2147483648));
        assert_eq!(
            signed(b"2147483648", false, 32),
            Err("Integer out of range (2147483648), must be in [-2147483648, 2147483647]".into())
        );
        assert!(signed(b"2147483649", true, 32).is_err());
        assert_eq!(signed(b"9223372036854775808", true, 64), Ok(i64::MIN));
        assert!(signed(b"9223372036854775808", false, 64).is_err());
        assert!(signed(b"9223372036854775809", true, 64).is_err());
        assert_eq!(unsigned(b"4294967295", false, u32::MAX.into()), Ok(4294967295));
        assert_eq!(
            unsigned(b"1", true, u32::MAX.into()),
            Err("Integer out of range (-1), must be in [0, 4294967295]".into())
        );
        assert!(unsigned(b"4294967296", false, u32::MAX.into()).is_err());
    }

    #[test]
    fn floats() {
        assert_eq!(float(Kind::Float, b"1.5f"), Ok(1.5));
        assert_eq!(float(Kind::Float, b".5"), Ok(0.5));
        assert_eq!(float(Kind::Float, b"1."), Ok(1.0));
        assert_eq!(float(Kind::Float, b"1e3"), Ok(1000.0));
        assert_eq!(float(Kind::Float, b"1F"), Ok(1.0));
        assert_eq!(float(Kind::Integer, b"17"), Ok(17.0));
        assert_eq!(float(Kind::Integer, b"0"), Ok(0.0));
        assert!(float(Kind::Integer, b"017").is_err());
        assert!(float(Kind::Integer, b"0x1f").is_err());
        assert_eq!(float(Kind::Float, b"1e999"), Ok(f64::INFINITY));
        assert_eq!(float32(Kind::Float, b"0.1"), Ok(0.1f32));
        assert_eq!(float_word(b"INF"), Some(f64::INFINITY));
        assert!(float_word(b"NaN").is_some_and(f64::is_nan));
        assert_eq!(float_word(b"infinit"), None);
    }
}
