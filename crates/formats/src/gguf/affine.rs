//! Re-packs GGUF's quantized blocks as MLX affine groups, exactly, and undoes the row order of its
//! query and key projections.
//!
//! Both formats keep 32 weights per scale. MLX computes `scale * q + bias`; so Q4_1 (`d * q + m`)
//! becomes scale d, bias m; Q4_0 (`d * (q - 8)`) scale d, bias -8d; Q8_0 (`d * q`, q signed) is
//! stored as q + 128 with scale d, bias -128d. d is an f16 (11 significant bits) and q has at most
//! 8, so `d * q` and the bias are exact in f32 and the sum is the exact GGUF value: scales and
//! biases are written as f32. Only the sign of a zero may differ (d negative, q the centre).

use super::tensors::GgmlType;

/// Weights that share a scale, in both formats.
pub const GROUP_SIZE: usize = 32;

/// Rows of an MLX affine matrix, each part as little-endian bytes in row order.
#[derive(Debug, Default)]
pub struct Affine {
    /// u32 words; element i of a row takes bits `i * bits ..` of the row.
    pub words: Vec<u8>,
    /// f32, one per group.
    pub scales: Vec<u8>,
    /// f32, one per group.
    pub biases: Vec<u8>,
}

/// A scale, a minimum or a weight is infinite or not a number.
#[derive(Debug, PartialEq, Eq)]
pub struct NotFinite;

/// Bits per weight of the MLX form; `None` for what stays as it is.
pub fn affine_bits(ggml_type: GgmlType) -> Option<usize> {
    match ggml_type {
        GgmlType::Q4_0 | GgmlType::Q4_1 => Some(4),
        GgmlType::Q8_0 => Some(8),
        GgmlType::F32 | GgmlType::F16 | GgmlType::Other(_) => None,
    }
}

/// Converts whole blocks of a quantized format; gives empty parts for any other format.
pub fn to_affine(ggml_type: GgmlType, blocks: &[u8]) -> Result<Affine, NotFinite> {
    let mut affine = Affine::default();
    let (Some(bits), Some((_, block_bytes))) = (affine_bits(ggml_type), ggml_type.block()) else {
        return Ok(affine);
    };
    let count = blocks.len() / block_bytes;
    affine.words.reserve(count * GROUP_SIZE * bits / 8);
    affine.scales.reserve(count * 4);
    affine.biases.reserve(count * 4);
    for block in blocks.chunks_exact(block_bytes) {
        let scale = f16_to_f32([block[0], block[1]]);
        let bias = match ggml_type {
            GgmlType::Q4_1 => f16_to_f32([block[2], block[3]]),
            GgmlType::Q4_0 => -8.0 * scale,
            _ => -128.0 * scale,
        };
        if !scale.is_finite() || !bias.is_finite() {
            return Err(NotFinite);
        }
        affine.scales.extend(scale.to_le_bytes());
        affine.biases.extend(bias.to_le_bytes());
        match ggml_type {
            GgmlType::Q4_1 => pack_nibbles(&block[4..], &mut affine.words),
            GgmlType::Q4_0 => pack_nibbles(&block[2..], &mut affine.words),
            // Flipping the top bit adds 128 to a two's complement byte.
            _ => affine.words.extend(block[2..].iter().map(|byte| byte ^ 0x80)),
        }
    }
    Ok(affine)
}

/// GGUF keeps element j in the low half of byte j and element j + 16 in the high half; MLX keeps
/// neighbours in one byte.
fn pack_nibbles(halves: &[u8], words: &mut Vec<u8>) {
    words.extend(halves.chunks_exact(2).map(|pair| (pair[0] & 0x0f) | (pair[1] << 4)));
    words.extend(halves.chunks_exact(2).map(|pair| (pair[0] >> 4) | (pair[1] & 0xf0)));
}

/// Whether values stored as F32 or F16 are all finite; true for other formats.
pub fn all_finite(ggml_type: GgmlType, bytes: &[u8]) -> bool {
    match ggml_type {
        GgmlType::F32 => bytes
            .chunks_exact(4)
            .all(|value| f32::from_le_bytes([value[0], value[1], value[2], value[3]]).is_finite()),
        // The exponent's five bits, all set, mean infinite or not a number.
        GgmlType::F16 => bytes.chunks_exact(2).all(|value| value[1] & 0x7c != 0x7c),
        GgmlType::Q4_0 | GgmlType::Q4_1 | GgmlType::Q8_0 | GgmlType::Other(_) => true,
    }
}

/// Puts the rows of whole heads back into the order of the original checkpoint.
///
/// GGUF interleaves the two halves of each query and key head (row 2j + p of the file is row p *
/// D/2 + j of the checkpoint, D being the head's rows), because ggml rotates neighbouring pairs
/// where MLX rotates the two halves.
pub fn unpermute_heads(rows: &[u8], row_bytes: usize, head_dim: usize) -> Vec<u8> {
    let mut ordered = Vec::with_capacity(rows.len());
    for head in rows.chunks_exact(head_dim * row_bytes) {
        for half in 0..2 {
            for j in 0..head_dim / 2 {
                let start = (2 * j + half) * row_bytes;
                ordered.extend_from_slice(&head[start..start + row_bytes]);
            }
        }
    }
    ordered
}

/// The f32 with the value of a little-endian f16.
pub fn f16_to_f32(bytes: [u8; 2]) -> f32 {
    let half = u32::from(u16::from_le_bytes(bytes));
    let sign = (half & 0x8000) << 16;
    let exponent = (half >> 10) & 0x1f;
    let mantissa = half & 0x3ff;
    let magnitude = match exponent {
        // Subnormal: the mantissa counts steps of 2^-24.
        0 => (mantissa as f32 * (1.0 / 16_777_216.0)).to_bits(),
        0x1f => 0x7f80_0000 | (mantissa << 13),
        _ => ((exponent + 112) << 23) | (mantissa << 13),
    };
    f32::from_bits(sign | magnitude)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    fn f16s() -> impl Iterator<Item = [u8; 2]> {
        (0..=u16::MAX).map(u16::to_le_bytes).filter(|bytes| f16_to_f32(*bytes).is_finite())
    }

    #[test]
    fn an_f16_keeps_its_value() {
        for bits in 0..=u16::MAX {
            let found = f16_to_f32(bits.to_le_bytes());
            let (exponent, mantissa) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
            let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
            match exponent {
                0x1f => assert_eq!(
                    (found.is_nan(), found.is_infinite()),
                    (mantissa != 0.0, mantissa == 0.0),
                    "{bits:#x}"
                ),
                0 => assert_eq!(f64::from(found), sign * mantissa * 2f64.powi(-24), "{bits:#x}"),
                _ => assert_eq!(
                    f64::from(found),
                    sign * (1.0 + mantissa / 1024.0) * 2f64.powi(exponent - 15),
                    "{bits:#x}"
                ),
            }
        }
    }

    /// GGUF's arithmetic and MLX's, both in f32, for one scale and one stored number.
    fn check(gguf: f32, scale: f32, q: u8, bias: f32) {
        let mlx = scale * f32::from(q) + bias;
        // Adding zero maps -0 to +0: the sign of a zero is the one thing allowed to differ.
        assert_eq!(
            (mlx + 0.0).to_bits(),
            (gguf + 0.0).to_bits(),
            "scale {scale:e}, q {q}: {mlx:e} is not {gguf:e}"
        );
        let fused = scale.mul_add(f32::from(q), bias);
        assert_eq!(
            (fused + 0.0).to_bits(),
            (gguf + 0.0).to_bits(),
            "scale {scale:e}, q {q}, fused"
        );
    }

    #[test]
    fn the_affine_form_gives_the_same_f32_for_every_scale_and_number() {
        for d in f16s() {
            let d = f16_to_f32(d);
            for q in 0..16_u8 {
                check(d * (f32::from(q) - 8.0), d, q, -8.0 * d);
            }
        }
        for d in f16s().step_by(7) {
            let d = f16_to_f32(d);
            for q in i8::MIN..=i8::MAX {
                check(d * f32::from(q), d, (q as u8) ^ 0x80, -128.0 * d);
            }
        }
        for (d, m) in
            f16s().step_by(13).zip(f16s().step_by(11).collect::<Vec<_>>().into_iter().rev())
        {
            let (d, m) = (f16_to_f32(d), f16_to_f32(m));
            for q in 0..16_u8 {
                check(d * f32::from(q) + m, d, q, m);
            }
        }
    }

    /// MLX's reading of affine rows, written from its documentation: bit i * bits of the row's
    /// words.
    fn dequantize(affine: &Affine, bits: usize) -> Vec<f32> {
        let word =
            |i: usize| u32::from_le_bytes(affine.words[4 * i..4 * i + 4].try_into().unwrap());
        let float = |bytes: &[u8], i: usize| {
            f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap())
        };
        let count = affine.words.len() * 8 / bits;
        (0..count)
            .map(|i| {
                let q = word(i * bits / 32) >> (i * bits % 32) & ((1 << bits) - 1);
                float(&affine.scales, i / GROUP_SIZE) * q as f32
                    + float(&affine.biases, i / GROUP_SIZE)
            })
            .collect()
    }

    #[test]
    fn a_block_becomes_the_same_weights() {
        const ONE: [u8; 2] = [0x00, 0x3c];
        const HALF: [u8; 2] = [0x00, 0x38];
        const MINUS_TWO: [u8; 2] = [0x00, 0xc0];
        // Low halves hold 0, 1, …, 15 and high halves 15, 14, …, 0.
        let nibbles: Vec<u8> = (0..16).map(|j| j | (15 - j) << 4).collect();
        let numbers = || (0..16).chain((0..16).rev());
        let cases: [(GgmlType, Vec<u8>, Vec<f32>); 4] = [
            (
                GgmlType::Q4_0,
                [&HALF[..], &nibbles].concat(),
                numbers().map(|q| 0.5 * (q as f32 - 8.0)).collect(),
            ),
            (
                GgmlType::Q4_0,
                [&MINUS_TWO[..], &nibbles].concat(),
                numbers().map(|q| -2.0 * (q as f32 - 8.0)).collect(),
            ),
            (
                GgmlType::Q4_1,
                [&HALF[..], &MINUS_TWO, &nibbles].concat(),
                numbers().map(|q| 0.5 * q as f32 - 2.0).collect(),
            ),
            (
                GgmlType::Q8_0,
                [&ONE[..], &(0..32).map(|j| (j * 8 - 128) as i8 as u8).collect::<Vec<_>>()]
                    .concat(),
                (0..32).map(|j| j as f32 * 8.0 - 128.0).collect(),
            ),
        ];
        for (ggml_type, block, expected) in cases {
            let affine = to_affine(ggml_type, &[block.clone(), block].concat()).unwrap();
            let found = dequantize(&affine, affine_bits(ggml_type).unwrap());
            assert_eq!(found, [expected.clone(), expected].concat(), "{ggml_type:?}");
        }
    }

    #[test]
    fn a_scale_that_is_not_finite_is_refused() {
        for bad in [[0x00, 0x7c], [0x01, 0x7c], [0x00, 0xfc]] {
            for ggml_type in [GgmlType::Q4_0, GgmlType::Q4_1, GgmlType::Q8_0] {
                let (_, bytes) = ggml_type.block().unwrap();
                let mut block = vec![0; bytes];
                block[..2].copy_from_slice(&bad);
                assert_eq!(
                    to_affine(ggml_type, &block).err(),
                    Some(NotFinite),
                    "{ggml_type:?} {bad:?}"
                );
            }
            assert!(!all_finite(GgmlType::F16, &[[0, 0], bad].concat()));
        }
        assert!(!all_finite(GgmlType::F32, &f32::NAN.to_le_bytes()));
        assert!(
            all_finite(GgmlType::F32, &f32::MAX.to_le_bytes())
                && all_finite(GgmlType::F16, &[0xff, 0x7b])
        );
    }

    #[test]
    fn rows_of_a_head_return_to_their_order() {
        // Two heads of six rows, two bytes each: a checkpoint's rows 0 1 2 | 3 4 5 lie in the file
        // as 0 3 1 4 2 5.
        let file: Vec<u8> = [0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15]
            .iter()
            .flat_map(|row| [*row, *row])
            .collect();
        let expected: Vec<u8> = [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]
            .iter()
            .flat_map(|row| [*row, *row])
            .collect();
        assert_eq!(unpermute_heads(&file, 2, 6), expected);
    }
}
