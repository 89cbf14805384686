//! Whether two tensors of numbers with a fraction are near each other.

use super::DataType;

/// Whether elements of that type are numbers with a fraction.
fn is_real(datatype: DataType) -> bool {
    matches!(datatype, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64)
}

/// Whether the elements are near each other: how far two numbers may be apart is absolute below 1, and a part of the
/// number above. False for other types.
pub fn are_near(datatype: DataType, one: &[u8], other: &[u8], tolerance: f64) -> bool {
    let size = datatype.byte_size();
    if !is_real(datatype) || one.len() != other.len() || size == 0 {
        return false;
    }
    let pairs = one.chunks_exact(size).zip(other.chunks_exact(size));
    pairs.map(|(one, other)| (real(datatype, one), real(datatype, other))).all(|(one, other)| {
        one == other
            || (one.is_nan() && other.is_nan())
            || (one.is_finite()
                && other.is_finite()
                && (one - other).abs() <= tolerance * one.abs().max(other.abs()).max(1.0))
    })
}

/// One number, whatever its width.
fn real(datatype: DataType, bytes: &[u8]) -> f64 {
    match (datatype, bytes) {
        (DataType::Fp64, &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
        (DataType::Fp32, &[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
        (DataType::Bf16, &[a, b]) => f64::from(f32::from_le_bytes([0, 0, a, b])),
        (DataType::Fp16, &[a, b]) => half(u16::from_le_bytes([a, b])),
        _ => f64::NAN,
    }
}

/// A number of IEEE 754 binary16.
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from((bits >> 10) & 0x1f), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        exponent => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_read() {
        for (bits, value) in [(0, 0.0), (0x3c00, 1.0), (0xc000, -2.0), (0x7bff, 65504.0), (1, 2f64.powi(-24))] {
            assert_eq!(half(bits), value, "{bits:#x}");
        }
        assert!(half(0x7e00).is_nan() && half(0xfc00) == f64::NEG_INFINITY);
    }
}
