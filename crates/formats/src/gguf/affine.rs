//! What a tensor of a GGUF file becomes: MLX's affine groups, or numbers that are not quantized. Also
//! undoes the row order of queries and keys.
//!
//! MLX computes `scale * q + bias` for groups of 32, and so does GGUF, in most of its types for as
//! many: those are packed anew, with scales and biases in f32, and every weight stays the same. Types
//! whose groups have 16 weights have no such form: they are rounded, and [`Rounding`] says by how much.

use serde_json::{Value, json};

use super::blocks::{Block, MAX_WEIGHTS, grouping, numbers};
use super::rounded_weights::RoundedWeights;
use super::tensors::GgmlType;
use crate::bfloat16::bfloat16;

/// Weights that share a scale in the affine form.
pub const GROUP_SIZE: usize = 32;

/// What weights become that have no exact form in MLX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RoundTo {
    /// Numbers of 4 bits in groups of 32.
    Bits4,
    /// Numbers of 8 bits in groups of 32.
    #[default]
    Bits8,
    /// bfloat16.
    Bfloat16,
    /// f32, which keeps them as they are.
    Float32,
}

impl RoundTo {
    /// Each, the one that takes the least room first.
    pub const ALL: [RoundTo; 4] =
        [RoundTo::Bits4, RoundTo::Bits8, RoundTo::Bfloat16, RoundTo::Float32];
}

/// How a tensor is stored in the new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Numbers of a type that safetensors has, by its name there.
    Dense(&'static str),
    /// bfloat16 that were rounded from a quantized type.
    Rounded,
    /// f32 that stand for a quantized type.
    Unpacked,
    /// Affine groups: the same weights, or rounded ones.
    Affine { bits: usize, is_exact: bool },
    /// MLX's `mxfp4`, the same blocks with scales apart.
    Mxfp4,
}

impl Form {
    /// The form of a type; `None` for what is not imported.
    pub fn of(ggml_type: GgmlType, round_to: RoundTo) -> Option<Form> {
        Some(match (ggml_type, grouping(ggml_type)) {
            (GgmlType::F32, _) => Form::Dense("F32"),
            (GgmlType::F16, _) => Form::Dense("F16"),
            (GgmlType::Bf16, _) => Form::Dense("BF16"),
            (GgmlType::Mxfp4, _) => Form::Mxfp4,
            (_, None) => return None,
            (_, Some(found)) if found.group_size == GROUP_SIZE => {
                Form::Affine { bits: found.bits, is_exact: true }
            }
            (_, Some(_)) => match round_to {
                RoundTo::Bits4 => Form::Affine { bits: 4, is_exact: false },
                RoundTo::Bits8 => Form::Affine { bits: 8, is_exact: false },
                RoundTo::Bfloat16 => Form::Rounded,
                RoundTo::Float32 => Form::Unpacked,
            },
        })
    }

    /// Bits per weight of the affine form.
    pub fn bits(self) -> Option<usize> {
        match self {
            Form::Affine { bits, .. } => Some(bits),
            Form::Dense(_) | Form::Rounded | Form::Unpacked | Form::Mxfp4 => None,
        }
    }

    /// A module's settings in config.json; `None` if it is not quantized.
    pub fn settings(self) -> Option<Value> {
        match self {
            Form::Affine { bits, .. } => Some(json!({"group_size": GROUP_SIZE, "bits": bits})),
            Form::Mxfp4 => Some(json!({"group_size": GROUP_SIZE, "bits": 4, "mode": "mxfp4"})),
            Form::Dense(_) | Form::Rounded | Form::Unpacked => None,
        }
    }

    /// Whether every weight stays the same.
    pub fn is_exact(self) -> bool {
        !matches!(self, Form::Rounded | Form::Affine { is_exact: false, .. })
    }

    /// The type of numbers that are not quantized, and the bytes of one.
    pub fn dense(self) -> (&'static str, usize) {
        match self {
            Form::Dense("F32") | Form::Unpacked => ("F32", 4),
            Form::Dense(name) => (name, 2),
            Form::Rounded | Form::Affine { .. } | Form::Mxfp4 => ("BF16", 2),
        }
    }
}

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

impl Affine {
    fn push(&mut self, numbers: &[u8], bits: usize, scale: f32, bias: f32) {
        pack(numbers, bits, &mut self.words);
        self.scales.extend(scale.to_le_bytes());
        self.biases.extend(bias.to_le_bytes());
    }
}

/// A scale, a minimum or a weight is infinite or not a number.
#[derive(Debug, PartialEq, Eq)]
pub struct NotFinite;

/// By how much the weights of a model were changed, over all that were.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rounding {
    /// How many tensors were rounded.
    pub num_tensors: usize,
    squares: f64,
    squared_errors: f64,
}

impl Rounding {
    /// What to keep of it; none if no tensor was rounded.
    pub fn recorded(&self) -> Option<RoundedWeights> {
        let (num_tensors, relative_error) = (self.num_tensors, self.relative_error());
        (num_tensors > 0).then_some(RoundedWeights {
            num_tensors,
            relative_error,
            perplexity: None,
        })
    }

    /// The root mean square of the changes, as a share of that of the weights.
    pub fn relative_error(&self) -> f64 {
        if self.squares > 0.0 { (self.squared_errors / self.squares).sqrt() } else { 0.0 }
    }

    /// Adds that of a part which stands for so many of its size.
    pub(super) fn add_times(&mut self, of_part: &Rounding, times: f64) {
        self.squares += of_part.squares * times;
        self.squared_errors += of_part.squared_errors * times;
    }

    fn add(&mut self, exact: f32, rounded: f32) {
        self.squares += f64::from(exact).powi(2);
        self.squared_errors += (f64::from(rounded) - f64::from(exact)).powi(2);
    }
}

/// Packs whole blocks of a type whose groups have 32 weights, with the numbers as they are.
pub fn to_affine(ggml_type: GgmlType, bits: usize, blocks: &[u8]) -> Result<Affine, NotFinite> {
    let mut affine = Affine::default();
    for_each_block(ggml_type, blocks, |block, num_weights| {
        for (group, numbers) in block.numbers[..num_weights].chunks_exact(GROUP_SIZE).enumerate() {
            affine.push(numbers, bits, block.scales[group], block.biases[group]);
        }
    })?;
    Ok(affine)
}

/// Takes whole blocks of MXFP4 apart: u32 words with the codes, and the exponents of the scales.
pub fn to_mxfp4(blocks: &[u8]) -> Result<[Vec<u8>; 2], NotFinite> {
    let (mut words, mut exponents) = (Vec::new(), Vec::new());
    let block_bytes = GgmlType::Mxfp4.block().map_or(17, |(_, bytes)| bytes);
    for block in blocks.chunks_exact(block_bytes) {
        if block[0] == u8::MAX {
            return Err(NotFinite);
        }
        exponents.push(block[0]);
        let (low, high) = (block[1..].iter().map(|byte| byte & 15), block[1..].iter());
        let codes: Vec<u8> = low.chain(high.map(|byte| byte >> 4)).collect();
        pack(&codes, 4, &mut words);
    }
    Ok([words, exponents])
}

/// Rounds whole blocks to so many bits: the least weight of a group becomes 0, the greatest the
/// greatest number.
pub fn round_to_affine(
    ggml_type: GgmlType,
    bits: usize,
    blocks: &[u8],
    rounding: &mut Rounding,
) -> Result<Affine, NotFinite> {
    let mut affine = Affine::default();
    let greatest = ((1_u32 << bits) - 1) as f32;
    for_each_weight_group(ggml_type, blocks, |weights| {
        let bias = weights.iter().copied().fold(f32::INFINITY, f32::min);
        let scale = (weights.iter().copied().fold(f32::NEG_INFINITY, f32::max) - bias) / greatest;
        let numbers = weights.map(|weight| {
            let number = if scale > 0.0 { ((weight - bias) / scale).round() } else { 0.0 };
            number.clamp(0.0, greatest) as u8
        });
        for (weight, number) in weights.iter().zip(numbers) {
            rounding.add(*weight, scale * f32::from(number) + bias);
        }
        affine.push(&numbers, bits, scale, bias);
    })?;
    Ok(affine)
}

/// Rounds whole blocks to bfloat16.
pub fn round_to_bfloat16(
    ggml_type: GgmlType,
    blocks: &[u8],
    rounding: &mut Rounding,
) -> Result<Vec<u8>, NotFinite> {
    let mut bytes = Vec::new();
    for_each_weight_group(ggml_type, blocks, |weights| {
        for weight in weights {
            let nearest = bfloat16(*weight);
            rounding.add(*weight, nearest);
            bytes.extend(((nearest.to_bits() >> 16) as u16).to_le_bytes());
        }
    })?;
    Ok(bytes)
}

/// Any type's weights as f32.
pub fn to_f32(ggml_type: GgmlType, bytes: &[u8]) -> Result<Vec<u8>, NotFinite> {
    if grouping(ggml_type).is_none() {
        return Ok(numbers(ggml_type, bytes).into_iter().flat_map(f32::to_le_bytes).collect());
    }
    let mut weights = Vec::new();
    for_each_weight_group(ggml_type, bytes, |group| {
        weights.extend(group.iter().flat_map(|weight| weight.to_le_bytes()));
    })?;
    Ok(weights)
}

fn for_each_weight_group(
    ggml_type: GgmlType,
    blocks: &[u8],
    mut visit: impl FnMut(&[f32; GROUP_SIZE]),
) -> Result<(), NotFinite> {
    let group_size = grouping(ggml_type).map_or(GROUP_SIZE, |found| found.group_size);
    for_each_block(ggml_type, blocks, |block, num_weights| {
        for first in (0..num_weights).step_by(GROUP_SIZE) {
            let weight = |index: usize| block.weight(first + index, group_size);
            visit(&std::array::from_fn(weight));
        }
    })
}

/// Reads one block after another; none of a type without blocks.
fn for_each_block(
    ggml_type: GgmlType,
    blocks: &[u8],
    mut visit: impl FnMut(&Block, usize),
) -> Result<(), NotFinite> {
    let (Some((num_weights, block_bytes)), Some(found)) = (ggml_type.block(), grouping(ggml_type))
    else {
        return Ok(());
    };
    let num_groups = num_weights.min(MAX_WEIGHTS) / found.group_size;
    let mut block = Block::default();
    for bytes in blocks.chunks_exact(block_bytes) {
        block.read(ggml_type, bytes);
        let (scales, biases) = (&block.scales[..num_groups], &block.biases[..num_groups]);
        if !scales.iter().chain(biases).all(|factor| factor.is_finite()) {
            return Err(NotFinite);
        }
        visit(&block, num_weights);
    }
    Ok(())
}

/// Appends numbers of so many bits, each after the last, the lowest bit first.
fn pack(numbers: &[u8], bits: usize, words: &mut Vec<u8>) {
    let (mut pending, mut num_pending) = (0_u32, 0);
    for number in numbers {
        pending |= u32::from(*number) << num_pending;
        num_pending += bits;
        while num_pending >= 8 {
            words.push(pending as u8);
            pending >>= 8;
            num_pending -= 8;
        }
    }
}

/// Whether values that are not quantized are all finite; true for other types.
pub fn all_finite(ggml_type: GgmlType, bytes: &[u8]) -> bool {
    match ggml_type {
        GgmlType::F32 => bytes
            .chunks_exact(4)
            .all(|value| f32::from_le_bytes([value[0], value[1], value[2], value[3]]).is_finite()),
        // The exponent's five bits, all set, mean infinite or not a number.
        GgmlType::F16 => bytes.chunks_exact(2).all(|value| value[1] & 0x7c != 0x7c),
        // Eight bits here.
        GgmlType::Bf16 => {
            bytes.chunks_exact(2).all(|value| value[1] & 0x7f != 0x7f || value[0] & 0x80 != 0x80)
        }
        _ => true,
    }
}

/// Numbers that are not quantized, each less one, as f32.
pub fn less_one(ggml_type: GgmlType, bytes: &[u8]) -> Vec<u8> {
    let numbers = numbers(ggml_type, bytes).into_iter();
    numbers.flat_map(|number| (number - 1.0).to_le_bytes()).collect()
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

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
pub mod tests {
    use super::*;
    use crate::gguf::blocks::f16_to_f32;

    fn f16s() -> impl Iterator<Item = [u8; 2]> {
        (0..=u16::MAX).map(u16::to_le_bytes).filter(|bytes| f16_to_f32(*bytes).is_finite())
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
    pub fn affine_weights(affine: &Affine, bits: usize) -> Vec<f32> {
        let bit = |at: usize| affine.words[at / 8] >> (at % 8) & 1;
        let float = |bytes: &[u8], i: usize| {
            f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap())
        };
        let count = affine.words.len() * 8 / bits;
        (0..count)
            .map(|i| {
                let q = (0..bits).map(|k| u32::from(bit(i * bits + k)) << k).sum::<u32>();
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
            let bits = Form::of(ggml_type, RoundTo::Bits8).unwrap().bits().unwrap();
            let affine = to_affine(ggml_type, bits, &[block.clone(), block].concat()).unwrap();
            let found = affine_weights(&affine, bits);
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
                    to_affine(ggml_type, 8, &block).err(),
                    Some(NotFinite),
                    "{ggml_type:?} {bad:?}"
                );
            }
            assert!(!all_finite(GgmlType::F16, &[[0, 0], bad].concat()));
            let mut block = [0; 210];
            block[208..].copy_from_slice(&bad);
            let mut rounding = Rounding::default();
            let rounded = round_to_affine(GgmlType::Q6K, 8, &block, &mut rounding);
            assert_eq!(rounded.err(), Some(NotFinite));
        }
        assert!(!all_finite(GgmlType::F32, &f32::NAN.to_le_bytes()));
        for (bfloat16, expected) in
            [([0x80, 0x7f], false), ([0x81, 0xff], false), ([0x7f, 0x7f], true)]
        {
            assert_eq!(all_finite(GgmlType::Bf16, &bfloat16), expected, "{bfloat16:?}");
        }
        assert!(
            all_finite(GgmlType::F32, &f32::MAX.to_le_bytes())
                && all_finite(GgmlType::F16, &[0xff, 0x7b])
        );
    }

    #[test]
    fn rounding_stays_within_half_a_step_and_is_counted() {
        // Numbers 0 to 63 with scales of one and two: weights from -64 to 62.
        let mut block: Vec<u8> = (0..192).map(|at| (at * 37 % 256) as u8).collect();
        block.extend((0..16).map(|group| 1 + group % 2));
        block.extend([0x00, 0x3c]);
        let mut exact = Vec::new();
        for_each_weight_group(GgmlType::Q6K, &block, |weights| exact.extend(*weights)).unwrap();
        for (bits, most) in [(8, 0.26), (4, 4.3)] {
            let mut rounding = Rounding::default();
            let affine = round_to_affine(GgmlType::Q6K, bits, &block, &mut rounding).unwrap();
            let found = affine_weights(&affine, bits);
            let errors = exact.iter().zip(&found).map(|(exact, found)| (exact - found).abs());
            let worst = errors.fold(0.0, f32::max);
            assert!(worst > 0.0 && worst <= most, "{bits} bits: {worst}");
            let relative = rounding.relative_error();
            assert!(relative > 0.0 && relative < f64::from(worst) / 20.0, "{relative}");
        }
        // Weights of so few digits are the same in bfloat16.
        let mut rounding = Rounding::default();
        let bytes = round_to_bfloat16(GgmlType::Q6K, &block, &mut rounding).unwrap();
        let number = |bytes: &[u8]| {
            f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
        };
        assert!(bytes.chunks(2).map(number).eq(exact.iter().copied()));
        assert_eq!(rounding.relative_error(), 0.0);
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
