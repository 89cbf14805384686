//! Numbers: one scan that checks the grammar and gathers the digits, and a conversion that only runs where a caller
//! needs it.
//!
//! Kept apart because a large array is first checked as text and later converted into its tensor. The scan decides
//! what Triton's parser decides (contract/http.md section 2): a literal without fraction and exponent that fits 64 bits
//! is an integer, everything else is a double, and a literal beyond the largest double is an error at its first byte.

use std::ops::Range;

use super::syntax::{Reason, SyntaxError};

/// A number as the dialect distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    Uint(u64),
    /// Written with a minus; `-0` is the integer 0.
    Int(i64),
    Double(f64),
}

impl Number {
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Uint(value) => value as f64,
            Number::Int(value) => value as f64,
            Number::Double(value) => value,
        }
    }

    pub fn as_i64(self) -> Option<i64> {
        match self {
            Number::Uint(value) => i64::try_from(value).ok(),
            Number::Int(value) => Some(value),
            Number::Double(_) => None,
        }
    }

    pub fn as_u64(self) -> Option<u64> {
        match self {
            Number::Uint(value) => Some(value),
            Number::Int(0) => Some(0),
            Number::Int(_) | Number::Double(_) => None,
        }
    }
}

/// A number whose grammar is checked and whose value is still to be worked out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scanned {
    pub start: usize,
    pub end: usize,
    /// All digits as one integer; exact if there are at most 19 of them.
    mantissa: u64,
    form: NumberForm,
}

#[derive(Debug, Clone, Copy)]
enum NumberForm {
    /// At most 18 digits: the mantissa is the value.
    Short {
        negative: bool,
    },
    /// 19 digits and more, without fraction and exponent.
    Long,
    Decimal {
        negative: bool,
        digits: usize,
        exponent: i64,
    },
    Literal(f64),
}

/// Powers of ten that a double holds exactly.
const EXACT_POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

impl Scanned {
    /// `input` is the text that was scanned.
    pub fn value(&self, input: &[u8]) -> Number {
        match self.form {
            NumberForm::Short { negative: false } => Number::Uint(self.mantissa),
            NumberForm::Short { negative: true } if self.mantissa <= 1 << 63 => {
                Number::Int((self.mantissa as i64).wrapping_neg())
            }
            NumberForm::Short { negative: true } => Number::Double(-(self.mantissa as f64)),
            NumberForm::Long => self.long_integer(input),
            NumberForm::Decimal { .. } => Number::Double(self.to_f64(input)),
            NumberForm::Literal(value) => Number::Double(value),
        }
    }

    /// The same as `value(input).as_f64()`, on the shortest way.
    pub fn to_f64(self, input: &[u8]) -> f64 {
        let NumberForm::Decimal { negative, digits, exponent } = self.form else { return self.value(input).as_f64() };
        // W. D. Clinger, "How to read floating point numbers accurately", 1990: if mantissa and power of ten are both
        // exact doubles, one correctly rounded operation gives the correctly rounded result.
        if digits <= 19
            && self.mantissa <= 1 << 53
            && let Some(&power) = EXACT_POWERS.get(exponent.unsigned_abs() as usize)
        {
            let mantissa = self.mantissa as f64;
            let value = if exponent < 0 { mantissa / power } else { mantissa * power };
            return if negative { -value } else { value };
        }
        if digits <= 19
            && let Some(value) = scaled(self.mantissa, exponent)
        {
            return if negative { -value } else { value };
        }
        self.parse_span::<f64>(input).unwrap_or(f64::NAN)
    }

    fn long_integer(&self, input: &[u8]) -> Number {
        let negative = input.get(self.start) == Some(&b'-');
        let integer =
            if negative { self.parse_span(input).map(Number::Int) } else { self.parse_span(input).map(Number::Uint) };
        integer.unwrap_or_else(|| Number::Double(self.parse_span(input).unwrap_or(f64::NAN)))
    }

    fn parse_span<T: std::str::FromStr>(&self, input: &[u8]) -> Option<T> {
        parse(input, self.start..self.end)
    }
}

/// What the standard library makes of a part of the text.
#[cold]
fn parse<T: std::str::FromStr>(input: &[u8], span: Range<usize>) -> Option<T> {
    std::str::from_utf8(input.get(span)?).ok()?.parse().ok()
}

/// Powers of ten from `10^FIRST_POWER` on: the highest 64 bits of each, and the power of two that they count.
static POWERS: [(u64, i32); 141] = powers();
const FIRST_POWER: i64 = -80;

const fn powers() -> [(u64, i32); 141] {
    let mut powers = [(0, 0); 141];
    // From 10^0 both ways in 128 bits, whose last ones are wrong by then, but not those that are kept.
    let (mut bits, mut exponent): (u128, i32) = (1 << 127, -127);
    let one = (-FIRST_POWER) as usize;
    let mut at = one;
    while at < powers.len() {
        powers[at] = ((bits >> 64) as u64, exponent + 64);
        // Ten is five, which takes three bits more, times two.
        bits = (bits >> 3) * 5;
        exponent += 4;
        let up = bits.leading_zeros();
        bits <<= up;
        exponent -= up as i32;
        at += 1;
    }
    (bits, exponent) = (1 << 127, -127);
    at = one;
    while at > 0 {
        bits /= 10;
        let up = bits.leading_zeros();
        bits <<= up;
        exponent -= up as i32;
        at -= 1;
        powers[at] = ((bits >> 64) as u64, exponent + 64);
    }
    powers
}

/// `mantissa` times a power of ten, correctly rounded; `None` where 64 bits of the power do not decide it.
///
/// The product of the highest 64 bits of both is at most 4 too small in its own highest 64: where that cannot change
/// how they round to the 53 bits of a double, they are rounded; else, once in 400 numbers, it is done in full
/// (D. Lemire, "Number parsing at a gigabyte per second", 2021, has the idea).
fn scaled(mantissa: u64, exponent: i64) -> Option<f64> {
    const TOO_SMALL_BY: u64 = 4;
    const HALF: u64 = 1 << 10;
    let &(power, power_exponent) = POWERS.get(usize::try_from(exponent - FIRST_POWER).ok()?)?;
    if mantissa == 0 {
        return Some(0.0);
    }
    let up = mantissa.leading_zeros();
    let product = u128::from(mantissa << up) * u128::from(power);
    let product_up = product.leading_zeros();
    let high = ((product << product_up) >> 64) as u64;
    let rest = high & (2 * HALF - 1);
    if (HALF - TOO_SMALL_BY..=HALF).contains(&rest) {
        return if exponent < 0 { quotient(mantissa, exponent.unsigned_abs()) } else { None };
    }
    let rounded = (high >> 11) + u64::from(rest > HALF);
    let two = power_exponent - up as i32 + 64 - product_up as i32 + 11;
    // Between 2^-400 and 2^400: a normal double, so the product is exact.
    let scale = f64::from_bits(((1023 + two) as u64) << 52);
    Some(rounded as f64 * scale)
}

/// `mantissa` divided by a power of ten, correctly rounded; `None` if the power does not fit 64 bits.
///
/// Both are shifted until their highest bit is set, so that one division gives a quotient of 64 bits. That is more than
/// the 53 of a double, so a remainder only matters as a mark in the lowest bit: the conversion rounds once, and right.
#[cold]
fn quotient(mantissa: u64, power: u64) -> Option<f64> {
    let divisor = 10u64.checked_pow(u32::try_from(power).ok()?)?;
    if mantissa == 0 {
        return Some(0.0);
    }
    let (up, divisor_up) = (mantissa.leading_zeros(), divisor.leading_zeros());
    let (mantissa, divisor) = (mantissa << up, divisor << divisor_up);
    let shift = if mantissa < divisor { 64 } else { 63 };
    let dividend = u128::from(mantissa) << shift;
    let (quotient, remainder) = (dividend / u128::from(divisor), dividend % u128::from(divisor));
    let marked = quotient as u64 | u64::from(remainder != 0);
    let exponent = i64::from(divisor_up) - i64::from(up) - shift;
    // Between 2^-128 and 1: a normal double, so the product is exact.
    let scale = f64::from_bits(((1023 + exponent) as u64) << 52);
    Some(marked as f64 * scale)
}

/// Bytes that a number of the short way may have, and those behind it that end it.
const WINDOW: usize = 32;

/// A number of the short way. Small, so that it stays in registers: what goes through memory in pieces costs more than
/// the digits do.
#[derive(Debug, Clone, Copy)]
pub(super) struct Short {
    negative: bool,
    mantissa: u64,
    /// 0 for an integer.
    fraction_digits: usize,
    pub end: usize,
}

impl Short {
    /// The same as [`Scanned::to_f64`].
    #[inline(always)]
    pub fn to_f64(self, input: &[u8], start: usize) -> f64 {
        let Short { negative, mantissa, fraction_digits, end } = self;
        let value = if fraction_digits == 0 {
            // An integer has no negative zero.
            return if negative && mantissa > 0 { -(mantissa as f64) } else { mantissa as f64 };
        } else if mantissa <= 1 << 53 {
            // As in `Scanned::to_f64`.
            mantissa as f64 / EXACT_POWERS[fraction_digits]
        } else {
            match scaled(mantissa, -(fraction_digits as i64)) {
                Some(value) => value,
                None => return parse(input, start..end).unwrap_or(f64::NAN),
            }
        };
        if negative { -value } else { value }
    }

    /// The magnitude and whether there is a minus; `None` for one with a fraction.
    #[inline(always)]
    pub fn to_integer(self) -> Option<(u64, bool)> {
        (self.fraction_digits == 0).then_some((self.mantissa, self.negative))
    }
}

/// Scans a number of at most 19 digits without exponent, the commonest form, on a short way: eight digits at a time, in
/// a window without a check at each byte. `None` for any other, and near the end of the text.
#[inline(always)]
pub(super) fn scan_short(input: &[u8], start: usize) -> Option<Short> {
    let window: &[u8; WINDOW] = input.get(start..)?.first_chunk()?;
    let negative = window[0] == b'-';
    let first = usize::from(negative);
    // Digit by digit: there are few before the point, and branches that are foreseen cost less than a chain of counts.
    let mut mantissa = 0;
    let mut point = first;
    while point < first + 16
        && let digit @ b'0'..=b'9' = window[point]
    {
        mantissa = mantissa * 10 + u64::from(digit - b'0');
        point += 1;
    }
    let int_digits = point - first;
    if int_digits == 0 || int_digits == 16 || (window[first] == b'0' && int_digits > 1) {
        return None;
    }
    match window[point] {
        b'.' => {
            let mut end = point + 1;
            for _ in 0..2 {
                let Some(eight) = eight_digits(word_at(window, end)) else { break };
                mantissa = mantissa.wrapping_mul(SMALL_POWERS[8]).wrapping_add(eight);
                end += 8;
                // Too long for the window, and for a mantissa.
                if end > WINDOW - 8 {
                    return None;
                }
            }
            let (more, value) = leading_digits(word_at(window, end));
            mantissa = mantissa.wrapping_mul(SMALL_POWERS[more]).wrapping_add(value);
            end += more;
            let fraction_digits = end - point - 1;
            if fraction_digits == 0 || int_digits + fraction_digits > 19 || matches!(window[end], b'e' | b'E') {
                return None;
            }
            Some(Short { negative, mantissa, fraction_digits, end: start + end })
        }
        b'e' | b'E' => None,
        _ => Some(Short { negative, mantissa, fraction_digits: 0, end: start + point }),
    }
}

const SMALL_POWERS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

#[inline(always)]
fn word_at(window: &[u8; WINDOW], at: usize) -> u64 {
    let bytes = window.get(at..).and_then(<[u8]>::first_chunk);
    u64::from_le_bytes(bytes.copied().unwrap_or_default())
}

/// How many of eight bytes, first byte in the lowest, are digits before the first that is none, and their value.
#[inline(always)]
fn leading_digits(word: u64) -> (usize, u64) {
    // A digit differs from '0' in its low nibble only, and still does after 6 was added.
    let low = word ^ 0x3030_3030_3030_3030;
    let other = (low | low.wrapping_add(0x0606_0606_0606_0606)) & 0xF0F0_F0F0_F0F0_F0F0;
    let count = (other.trailing_zeros() / 8) as usize;
    // What is shifted in at the low end are zeros in front.
    let digits = if count == 0 { 0 } else { (low & 0x0F0F_0F0F_0F0F_0F0F) << (64 - 8 * count) };
    (count, value_of_digits(digits))
}

/// Longest number that is read; Triton takes any. The shortest text of a double that has no other has some 770 digits.
const NUMBER_BYTES_MAX: usize = 64 << 10;

/// Scans the number that begins at `start`; any byte that begins no number is an invalid value.
pub(super) fn scan(input: &[u8], start: usize) -> Result<Scanned, SyntaxError> {
    let end_max = start.saturating_add(NUMBER_BYTES_MAX);
    let scanned = scan_within(input.get(..end_max).unwrap_or(input), start)?;
    if scanned.end >= end_max {
        return Err(SyntaxError::new(Reason::NumberTooBig, start));
    }
    Ok(scanned)
}

fn scan_within(input: &[u8], start: usize) -> Result<Scanned, SyntaxError> {
    let negative = input.get(start) == Some(&b'-');
    let first = start + usize::from(negative);
    let mut mantissa = 0;
    let int_end = match input.get(first) {
        Some(b'0') => first + 1,
        Some(b'1'..=b'9') => digits_end(input, first, &mut mantissa),
        Some(b'N' | b'I') => return literal(input, start, first, negative),
        _ => return Err(SyntaxError::new(Reason::ValueInvalid, first)),
    };
    let int_digits = int_end - first;
    if !matches!(input.get(int_end), Some(b'.' | b'e' | b'E')) {
        let form = if int_digits <= 19 { NumberForm::Short { negative } } else { NumberForm::Long };
        let scanned = Scanned { start, end: int_end, mantissa, form };
        return match int_digits > 308 && scanned.to_f64(input).is_infinite() {
            true => Err(SyntaxError::new(Reason::NumberTooBig, start)),
            false => Ok(scanned),
        };
    }
    let mut at = int_end;
    if input.get(at) == Some(&b'.') {
        at = digits_end(input, int_end + 1, &mut mantissa);
        if at == int_end + 1 {
            return Err(SyntaxError::new(Reason::MissingFraction, at));
        }
    }
    let fraction_digits = at.saturating_sub(int_end + 1);
    let mut exponent: i64 = 0;
    if matches!(input.get(at), Some(b'e' | b'E')) {
        (exponent, at) = exponent_at(input, at + 1)?;
        if exponent > 308 {
            // Triton's parser gives up on a large exponent without looking at the digits: `0e309` is too big.
            let fraction = &input[int_end..int_end + fraction_digits + usize::from(fraction_digits > 0)];
            if exponent > 308 + counted_fraction(&input[first..int_end], fraction.get(1..).unwrap_or_default()) {
                return Err(SyntaxError::new(Reason::NumberTooBig, start));
            }
        }
    }
    let exponent_of_mantissa = exponent.saturating_sub(fraction_digits as i64);
    let form = NumberForm::Decimal { negative, digits: int_digits + fraction_digits, exponent: exponent_of_mantissa };
    let scanned = Scanned { start, end: at, mantissa, form };
    // Only a number whose first digit is that far left of the point can be beyond the largest double.
    if exponent.saturating_add(int_digits as i64) > 308 && scanned.to_f64(input).is_infinite() {
        return Err(SyntaxError::new(Reason::NumberTooBig, start));
    }
    Ok(scanned)
}

/// Takes digits from `at` on into `mantissa` (which wraps: callers count) and returns where they end.
fn digits_end(input: &[u8], mut at: usize, mantissa: &mut u64) -> usize {
    while let Some(Ok(eight)) = input.get(at..at + 8).map(<[u8; 8]>::try_from)
        && let Some(value) = eight_digits(u64::from_le_bytes(eight))
    {
        *mantissa = mantissa.wrapping_mul(100_000_000).wrapping_add(value);
        at += 8;
    }
    while let Some(digit @ b'0'..=b'9') = input.get(at) {
        *mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
        at += 1;
    }
    at
}

/// The value of eight ASCII digits, first digit in the lowest byte; `None` if one of them is no digit.
#[inline(always)]
fn eight_digits(word: u64) -> Option<u64> {
    const HIGH_NIBBLES: u64 = 0xF0F0_F0F0_F0F0_F0F0;
    const THREES: u64 = 0x3030_3030_3030_3030;
    // A digit has the high nibble 3, and still has it after 6 was added.
    let plus_six = word.wrapping_add(0x0606_0606_0606_0606);
    if word & HIGH_NIBBLES != THREES || plus_six & HIGH_NIBBLES != THREES {
        return None;
    }
    Some(value_of_digits(word & 0x0F0F_0F0F_0F0F_0F0F))
}

/// The value of eight decimal digits, one in each byte, first digit in the lowest.
#[inline(always)]
fn value_of_digits(ones: u64) -> u64 {
    let pairs = (ones.wrapping_mul(10).wrapping_add(ones >> 8)) & 0x00FF_00FF_00FF_00FF;
    let fours = (pairs.wrapping_mul(100).wrapping_add(pairs >> 16)) & 0x0000_FFFF_0000_FFFF;
    (fours.wrapping_mul(10_000).wrapping_add(fours >> 32)) & 0xFFFF_FFFF
}

/// Reads sign and digits of an exponent; a value beyond any use saturates.
fn exponent_at(input: &[u8], mut at: usize) -> Result<(i64, usize), SyntaxError> {
    let negative = input.get(at) == Some(&b'-');
    at += usize::from(matches!(input.get(at), Some(b'+' | b'-')));
    let first = at;
    let mut value: i64 = 0;
    while let Some(digit @ b'0'..=b'9') = input.get(at) {
        value = value.saturating_mul(10).saturating_add(i64::from(digit - b'0'));
        at += 1;
    }
    if at == first {
        return Err(SyntaxError::new(Reason::MissingExponent, at));
    }
    Ok((if negative { -value } else { value }, at))
}

/// How many digits of a fraction Triton's parser counts before it compares the exponent with 308 plus their number:
/// those that still change its significand, at most 17 significant ones in all.
fn counted_fraction(integer: &[u8], fraction: &[u8]) -> i64 {
    let mut significant = if integer == b"0" { 0 } else { integer.len() - 1 };
    let mut value: u128 = integer.iter().take(20).fold(0, |value, digit| value * 10 + u128::from(digit & 15));
    let mut counted = 0;
    for digit in fraction {
        if value > (1 << 53) - 1 && significant >= 17 {
            break;
        }
        value = value.saturating_mul(10).saturating_add(u128::from(digit & 15));
        counted += 1;
        significant += usize::from(value != 0);
    }
    counted
}

/// `NaN`, `Inf` and `Infinity`; the sign of a NaN is dropped.
fn literal(input: &[u8], start: usize, first: usize, negative: bool) -> Result<Scanned, SyntaxError> {
    let word = |text: &[u8], at: usize| {
        let same = input.get(at..).unwrap_or_default().iter().zip(text).take_while(|(a, b)| a == b).count();
        if same == text.len() { Ok(at + same) } else { Err(SyntaxError::new(Reason::ValueInvalid, at + same)) }
    };
    let (value, end) = if input.get(first) == Some(&b'N') {
        (f64::NAN, word(b"NaN", first)?)
    } else {
        let inf = word(b"Inf", first)?;
        let end = if input.get(inf) == Some(&b'i') { word(b"inity", inf)? } else { inf };
        (if negative { f64::NEG_INFINITY } else { f64::INFINITY }, end)
    };
    Ok(Scanned { start, end, mantissa: 0, form: NumberForm::Literal(value) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Number, SyntaxError> {
        let scanned = scan(text.as_bytes(), 0)?;
        assert_eq!(scanned.end, text.len(), "{text}");
        let value = scanned.value(text.as_bytes());
        let f64 = scanned.to_f64(text.as_bytes());
        assert!(f64 == value.as_f64() || f64.is_nan() && value.as_f64().is_nan());
        Ok(value)
    }

    #[test]
    fn integers_end_where_sixty_four_bits_end() {
        let cases = [
            ("0", Number::Uint(0)),
            ("-0", Number::Int(0)),
            ("7", Number::Uint(7)),
            ("123456789012345678", Number::Uint(123_456_789_012_345_678)),
            ("9223372036854775807", Number::Uint(i64::MAX as u64)),
            ("9223372036854775808", Number::Uint(1 << 63)),
            ("18446744073709551615", Number::Uint(u64::MAX)),
            ("18446744073709551616", Number::Double(18_446_744_073_709_551_616.0)),
            ("-9223372036854775808", Number::Int(i64::MIN)),
            ("-9223372036854775809", Number::Double(-9_223_372_036_854_775_808.0)),
            ("-9999999999999999999", Number::Double(-1e19)),
            ("9999999999999999999", Number::Uint(9_999_999_999_999_999_999)),
            ("99999999999999999999999", Number::Double(1e23)),
            ("1.0", Number::Double(1.0)),
            ("1e2", Number::Double(100.0)),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
        assert_eq!(Number::Uint(1 << 63).as_i64(), None);
        assert_eq!(Number::Uint(5).as_i64(), Some(5));
        assert_eq!(Number::Int(-5).as_u64(), None);
        assert_eq!(Number::Double(1.0).as_u64(), None);
    }

    #[test]
    fn doubles_are_those_of_the_standard_library() {
        let mut state: u64 = 88_172_645_463_325_252;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..200_000 {
            let bits = f64::from_bits(random());
            let small = (random() % 2_000_000) as f64 / 1000.0 - 1000.0;
            let narrow = f32::from_bits(random() as u32);
            for text in [format!("{bits:e}"), format!("{small:.4}"), format!("{}", f64::from(narrow))] {
                if text.contains(['N', 'i']) {
                    continue;
                }
                let expected: f64 = text.parse().unwrap();
                let got = read(&text).unwrap().as_f64();
                // `-0` is an integer, and integers have no negative zero.
                assert!(got.to_bits() == expected.to_bits() || text == "-0", "{text} became {got}");
            }
        }
    }

    #[test]
    fn the_short_way_ends_where_the_long_one_does() {
        let alphabet = b"0123456789.-eE,0000";
        let mut state: u64 = 42;
        for _ in 0..200_000 {
            let mut text = [0; 24];
            for byte in &mut text {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = alphabet[(state >> 33) as usize % alphabet.len()];
            }
            let text = [&text[..], &[b' '; WINDOW]].concat();
            if let Some(short) = scan_short(&text, 0) {
                let long = scan(&text, 0).unwrap();
                let double = (short.to_f64(&text, 0).to_bits(), long.to_f64(&text).to_bits());
                assert_eq!((short.end, double.0), (long.end, double.1), "{}", text.escape_ascii());
                match (short.to_integer(), long.value(&text)) {
                    (Some((value, false)), Number::Uint(long)) => assert_eq!(value, long),
                    (Some((value, true)), Number::Int(long)) => assert_eq!((value as i64).wrapping_neg(), long),
                    (None, Number::Double(_)) => {}
                    (short, long) => panic!("{}: {short:?} and {long:?}", text.escape_ascii()),
                }
            }
        }
        for (text, is_short) in [
            ("123456789012345", true),
            ("1234567890123456", false),
            ("0.123456789012345678", true),
            ("0.1234567890123456789", false),
            ("-12345678.12345678901", true),
            ("123456789012345.6789", true),
            ("01", false),
            ("1.", false),
            ("1e5", false),
            ("-", false),
            ("", false),
            ("x", false),
            ("NaN", false),
        ] {
            let window = format!("{text:32}");
            assert_eq!(scan_short(window.as_bytes(), 0).is_some(), is_short, "{text}");
            assert!(scan_short(text.as_bytes(), 0).is_none(), "{text}: what lies behind it is not known");
        }
    }

    #[test]
    fn quotients_are_rounded_once() {
        let mut state: u64 = 7;
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (mantissa, power) = (state >> (state % 60), state % 20);
            let expected: f64 = format!("{mantissa}e-{power}").parse().unwrap();
            assert_eq!(quotient(mantissa, power), Some(expected), "{mantissa}e-{power}");
        }
        for _ in 0..400_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (mantissa, power) = ((state >> (state % 60)) % 10u64.pow(19), (state >> 7) as i64 % 85 - 82);
            let expected: f64 = format!("{mantissa}e{power}").parse().unwrap();
            if let Some(value) = scaled(mantissa, power) {
                assert_eq!(value.to_bits(), expected.to_bits(), "{mantissa}e{power}");
            }
        }
        // Halfway between two doubles, and next to it.
        for (mantissa, power) in [(9_007_199_254_740_993, 0), (9_007_199_254_740_993, 20), (1 << 63 | 1 << 10, -3)] {
            for mantissa in [mantissa - 1, mantissa, mantissa + 1] {
                let expected: f64 = format!("{mantissa}e{power}").parse().unwrap();
                assert!(scaled(mantissa, power).is_none_or(|value| value == expected), "{mantissa}e{power}");
            }
        }
        // Halfway cases: 2^53 + 1 lies between two doubles.
        assert_eq!(quotient((1 << 53) + 1, 0), Some(9_007_199_254_740_992.0));
        assert_eq!(quotient(90_071_992_547_409_935, 1), Some(9_007_199_254_740_994.0));
        assert_eq!((quotient(0, 5), quotient(1, 20)), (Some(0.0), None));
    }

    #[test]
    fn the_edges_of_a_double() {
        let largest = "179769313486231570000".to_owned() + &"0".repeat(288);
        assert_eq!(read(&largest), Ok(Number::Double(f64::MAX)));
        let cases = [
            ("1.7976931348623157e308", Some(f64::MAX)),
            ("1.7976931348623159e308", None),
            ("1e309", None),
            ("-1e309", None),
            ("0e309", None),
            ("0e308", Some(0.0)),
            ("0.0e309", Some(0.0)),
            ("0.0e310", None),
            ("0.001e310", Some(1e307)),
            ("0.0000000000000000000000000001e330", Some(1e302)),
            ("1e999999999999999999999", None),
            ("1e-999999999999999999999", Some(0.0)),
            ("5e-324", Some(5e-324)),
            ("2e-324", Some(0.0)),
            ("-0.0", Some(-0.0)),
        ];
        for (text, expected) in cases {
            let expected = expected.map(Number::Double).ok_or(SyntaxError::new(Reason::NumberTooBig, 0));
            assert_eq!(read(text), expected, "{text}");
        }
        assert!(read("-0.0").unwrap().as_f64().is_sign_negative());
        let too_long = "9".repeat(310);
        assert_eq!(read(&too_long), Err(SyntaxError::new(Reason::NumberTooBig, 0)));
    }

    #[test]
    fn literals_are_those_of_the_dialect() {
        for (text, expected) in [
            ("Inf", f64::INFINITY),
            ("Infinity", f64::INFINITY),
            ("-Inf", f64::NEG_INFINITY),
            ("-Infinity", f64::NEG_INFINITY),
        ] {
            assert_eq!(read(text), Ok(Number::Double(expected)));
        }
        for text in ["NaN", "-NaN"] {
            let value = read(text).unwrap().as_f64();
            assert!(value.is_nan() && value.is_sign_positive());
        }
        for (text, offset) in [("Nan", 2), ("N", 1), ("In", 2), ("-I", 2), ("Infinite", 7), ("Infini", 6), ("-", 1)] {
            let error = scan(text.as_bytes(), 0).unwrap_err();
            assert_eq!(error, SyntaxError::new(Reason::ValueInvalid, offset), "{text}");
        }
    }

    #[test]
    fn broken_numbers_say_where() {
        let cases = [
            ("+1", Reason::ValueInvalid, 0),
            ("x", Reason::ValueInvalid, 0),
            ("", Reason::ValueInvalid, 0),
            (".5", Reason::ValueInvalid, 0),
            ("-x", Reason::ValueInvalid, 1),
            ("1.", Reason::MissingFraction, 2),
            ("1.e5", Reason::MissingFraction, 2),
            ("1e", Reason::MissingExponent, 2),
            ("1e+", Reason::MissingExponent, 3),
            ("1.5e-x", Reason::MissingExponent, 5),
        ];
        for (text, reason, offset) in cases {
            assert_eq!(scan(text.as_bytes(), 0).unwrap_err(), SyntaxError::new(reason, offset), "{text}");
        }
        assert_eq!(scan(b"01", 0).unwrap().end, 1, "a leading zero ends the number");
    }

    #[test]
    fn eight_digits_are_recognised_exactly() {
        for place in 0..8 {
            for byte in 0..=255u8 {
                let mut text = *b"90817263";
                text[place] = byte;
                let expected = std::str::from_utf8(&text).ok().filter(|text| !text.contains('+'));
                let expected = expected.and_then(|text| text.parse().ok());
                assert_eq!(eight_digits(u64::from_le_bytes(text)), expected);
            }
        }
    }
}
