//! Rounding to bfloat16.

/// The bfloat16 nearest to a finite number, of two the one with an even mantissa.
pub fn bfloat16(number: f32) -> f32 {
    let bits = number.to_bits();
    f32::from_bits(bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_in_the_middle_becomes_the_even_one() {
        for (number, expected) in [
            (1.0, 1.0),
            (1.0 + 1.0 / 256.0, 1.0),
            (1.0 + 3.0 / 256.0, 1.015_625),
            (-0.1, -0.100_097_656),
        ] {
            assert_eq!(bfloat16(number), expected, "{number}");
        }
    }
}
