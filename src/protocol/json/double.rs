//! Doubles as Triton prints them (contract/http.md section 2).
//!
//! Digits are the shortest that read back as the same double, found by the crate zmij. What differs is the dress:
//! always a fraction or an exponent, plain notation from 1e-6 up to below 1e21.

use std::ops::Range;

/// Longest text of a double in bytes: `-` and 17 digits behind `0.00000`, rounded up.
const DOUBLE_LEN: usize = 32;

/// Largest position of the point, counted from the first digit, that is still written in plain notation.
const PLAIN_UP_TO: i32 = 21;
const PLAIN_FROM: i32 = -5;
/// Magnitudes that the crate writes in plain notation, too.
const AS_WE_DO: Range<f64> = 1e-4..1e15;

/// Memory for the text of one double.
#[derive(Default)]
pub struct DoubleText {
    digits: zmij::Buffer,
    out: [u8; DOUBLE_LEN],
}

impl DoubleText {
    pub fn new() -> DoubleText {
        DoubleText { digits: zmij::Buffer::new(), out: [0; DOUBLE_LEN] }
    }

    /// The text of `value`.
    #[inline]
    pub fn of(&mut self, value: f64) -> &[u8] {
        if AS_WE_DO.contains(&value.abs()) {
            return self.digits.format_finite(value).as_bytes();
        }
        self.dress(value)
    }

    fn dress(&mut self, value: f64) -> &[u8] {
        if value.is_nan() {
            return b"NaN";
        }
        if value.is_infinite() {
            return if value < 0.0 { b"-Infinity" } else { b"Infinity" };
        }
        let mut text = Text { out: &mut self.out, len: 0 };
        if value.is_sign_negative() {
            text.put(b"-");
        }
        if value == 0.0 {
            text.put(b"0.0");
            return text.finish();
        }
        let mut digits = [0; 24];
        let (digits, point) = digits_and_point(self.digits.format_finite(value.abs()), &mut digits);
        let count = digits.len() as i32;
        if (PLAIN_FROM..=0).contains(&point) {
            text.put(b"0.");
            text.zeros(-point);
            text.put(digits);
        } else if (1..=PLAIN_UP_TO).contains(&point) {
            let (integer, fraction) = digits.split_at(point.min(count) as usize);
            text.put(integer);
            text.zeros(point - count);
            text.put(b".");
            text.put(if fraction.is_empty() { b"0" } else { fraction });
        } else {
            let (first, rest) = digits.split_at(1);
            text.put(first);
            if !rest.is_empty() {
                text.put(b".");
                text.put(rest);
            }
            text.put(b"e");
            text.put(itoa::Buffer::new().format(point - 1).as_bytes());
        }
        text.finish()
    }
}

/// The significant digits of a positive number and the place of its point, counted from the first of them: `1.23e2` is
/// `123` and 3, `1e-2` is `1` and -1.
fn digits_and_point<'a>(text: &str, digits: &'a mut [u8; 24]) -> (&'a [u8], i32) {
    let mut text = text.bytes();
    let (mut len, mut point, mut seen_point, mut exponent) = (0, 0, false, 0);
    while let Some(byte) = text.next() {
        match byte {
            b'.' => seen_point = true,
            b'e' => exponent = exponent_of(&mut text),
            // A zero before the first significant digit only moves the point.
            b'0' if len == 0 => point -= i32::from(seen_point),
            digit => {
                digits[len] = digit;
                len += 1;
                point += i32::from(!seen_point);
            }
        }
    }
    while len > 1 && digits[len - 1] == b'0' {
        len -= 1;
    }
    (&digits[..len], point + exponent)
}

fn exponent_of(text: &mut std::str::Bytes<'_>) -> i32 {
    let (mut value, mut negative) = (0, false);
    for byte in text {
        match byte {
            b'-' => negative = true,
            b'+' => {}
            digit => value = value * 10 + i32::from(digit - b'0'),
        }
    }
    if negative { -value } else { value }
}

struct Text<'a> {
    out: &'a mut [u8; DOUBLE_LEN],
    len: usize,
}

impl<'a> Text<'a> {
    fn put(&mut self, bytes: &[u8]) {
        self.out[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn zeros(&mut self, count: i32) {
        for _ in 0..count {
            self.put(b"0");
        }
    }

    fn finish(self) -> &'a [u8] {
        &self.out[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: f64) -> String {
        String::from_utf8(DoubleText::new().of(value).to_vec()).unwrap()
    }

    #[test]
    fn doubles_look_like_those_of_triton() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (-1.5, "-1.5"),
            (123456.0, "123456.0"),
            (f64::from(1e20f32), "100000002004087730000.0"),
            (1e20, "100000000000000000000.0"),
            (1e21, "1e21"),
            (1.5e21, "1.5e21"),
            (3.5e30, "3.5e30"),
            (-2e300, "-2e300"),
            (1e-6, "0.000001"),
            (1.25e-6, "0.00000125"),
            (1e-7, "1e-7"),
            (1.5e-7, "1.5e-7"),
            (9.999999e-7, "9.999999e-7"),
            (0.1, "0.1"),
            (0.01, "0.01"),
            (f64::from(0.1f32), "0.10000000149011612"),
            (f64::from(f32::MAX), "3.4028234663852886e38"),
            (f64::MAX, "1.7976931348623157e308"),
            (5e-324, "5e-324"),
            (-1.2345678901234567e-6, "-0.0000012345678901234567"),
            (10.0, "10.0"),
            (1e16, "10000000000000000.0"),
            (12345678901234567890.0, "12345678901234567000.0"),
            (123.456, "123.456"),
            (f64::NAN, "NaN"),
            (-f64::NAN, "NaN"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
        ];
        for (value, expected) in cases {
            assert_eq!(text(value), expected);
        }
    }

    #[test]
    fn every_double_reads_back() {
        let mut state: u64 = 0x9E37_79B9_7F4A_7C15;
        for _ in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            for value in [f64::from_bits(state), (state >> 40) as f64 / 1024.0, (state >> 3) as f64] {
                if value.is_finite() {
                    let text = text(value);
                    assert_eq!(text.parse::<f64>().unwrap().to_bits(), value.to_bits(), "{text}");
                    assert!(text.contains(['.', 'e']), "{text}");
                }
            }
        }
    }
}
