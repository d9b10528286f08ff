//! Reads GGUF's quantized blocks as numbers with a scale and a bias per group: every weight is
//! `scale * number + bias`, to the bit what ggml computes.
//!
//! A scale is the product of an f16 (11 significant bits) and at most 7 bits, and a number times it
//! fits the 24 bits of an f32, so that only the sum of product and bias is rounded, as in ggml. Only
//! the sign of a zero may differ. The layouts are those of ggml-quants.c.

use super::tensors::GgmlType;

/// Weights of the longest blocks.
pub const MAX_WEIGHTS: usize = 256;
const MAX_GROUPS: usize = 16;

/// The values behind the sixteen codes of IQ4, less -128.
const IQ4_NUMBERS: [u8; 16] =
    [1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241];
/// The values behind the sixteen codes of MXFP4, twice as large and less -12.
const MXFP4_NUMBERS: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// One block. Reading another into it replaces all.
pub struct Block {
    /// One for each weight.
    pub numbers: [u8; MAX_WEIGHTS],
    /// One for each group.
    pub scales: [f32; MAX_GROUPS],
    /// One for each group.
    pub biases: [f32; MAX_GROUPS],
}

impl Default for Block {
    fn default() -> Self {
        Block { numbers: [0; MAX_WEIGHTS], scales: [0.0; MAX_GROUPS], biases: [0.0; MAX_GROUPS] }
    }
}

/// How the weights of a quantized type are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouping {
    /// Weights that share a scale.
    pub group_size: usize,
    /// Bits of the numbers.
    pub bits: usize,
}

/// The grouping of a type that [`Block::read`] reads; `None` for others.
pub fn grouping(ggml_type: GgmlType) -> Option<Grouping> {
    let (group_size, bits) = match ggml_type {
        GgmlType::Q4_0 | GgmlType::Q4_1 | GgmlType::Q4K => (32, 4),
        GgmlType::Q5_0 | GgmlType::Q5_1 | GgmlType::Q5K | GgmlType::Mxfp4 => (32, 5),
        GgmlType::Q8_0 | GgmlType::Iq4Nl | GgmlType::Iq4Xs => (32, 8),
        GgmlType::Q2K => (16, 2),
        GgmlType::Q3K => (16, 3),
        GgmlType::Q6K => (16, 6),
        GgmlType::F32 | GgmlType::F16 | GgmlType::Bf16 | GgmlType::Other(_) => return None,
    };
    Some(Grouping { group_size, bits })
}

impl Block {
    /// Reads one block of a type with a [`grouping`]; others leave it as it is.
    pub fn read(&mut self, ggml_type: GgmlType, bytes: &[u8]) {
        match ggml_type {
            GgmlType::Q4_0 => self.read_nibbles(&bytes[2..], half(bytes, 0), |scale| -8.0 * scale),
            GgmlType::Q4_1 => {
                let minimum = half(bytes, 2);
                self.read_nibbles(&bytes[4..], half(bytes, 0), |_| minimum);
            }
            GgmlType::Q5_0 => {
                self.read_nibbles(&bytes[6..], half(bytes, 0), |scale| -16.0 * scale);
                self.add_fifth_bits(&bytes[2..6]);
            }
            GgmlType::Q5_1 => {
                let minimum = half(bytes, 2);
                self.read_nibbles(&bytes[8..], half(bytes, 0), |_| minimum);
                self.add_fifth_bits(&bytes[4..8]);
            }
            GgmlType::Q8_0 => self.read_q8_0(bytes),
            GgmlType::Q2K => self.read_q2_k(bytes),
            GgmlType::Q3K => self.read_q3_k(bytes),
            GgmlType::Q4K | GgmlType::Q5K => self.read_q4_k(ggml_type, bytes),
            GgmlType::Q6K => self.read_q6_k(bytes),
            GgmlType::Iq4Nl => {
                self.read_nibbles(&bytes[2..], half(bytes, 0), |scale| -128.0 * scale);
                self.look_up(&IQ4_NUMBERS, 32);
            }
            GgmlType::Iq4Xs => self.read_iq4_xs(bytes),
            GgmlType::Mxfp4 => {
                self.read_nibbles(&bytes[1..], power_of_two(bytes[0]), |scale| -12.0 * scale);
                self.look_up(&MXFP4_NUMBERS, 32);
            }
            GgmlType::F32 | GgmlType::F16 | GgmlType::Bf16 | GgmlType::Other(_) => {}
        }
    }

    /// The weight at `index` in groups of so many.
    pub fn weight(&self, index: usize, group_size: usize) -> f32 {
        let group = index / group_size;
        self.scales[group] * f32::from(self.numbers[index]) + self.biases[group]
    }

    /// 16 bytes whose low halves are the first 16 numbers.
    fn read_nibbles(&mut self, halves: &[u8], scale: f32, bias: impl Fn(f32) -> f32) {
        for (index, byte) in halves[..16].iter().enumerate() {
            self.numbers[index] = byte & 15;
            self.numbers[16 + index] = byte >> 4;
        }
        (self.scales[0], self.biases[0]) = (scale, bias(scale));
    }

    fn add_fifth_bits(&mut self, bytes: &[u8]) {
        for (index, number) in self.numbers[..32].iter_mut().enumerate() {
            *number |= (bytes[index / 8] >> (index % 8) & 1) << 4;
        }
    }

    /// Flipping the top bit adds 128 to a two's complement byte.
    fn read_q8_0(&mut self, bytes: &[u8]) {
        for (number, byte) in self.numbers.iter_mut().zip(&bytes[2..34]) {
            *number = byte ^ 0x80;
        }
        let scale = half(bytes, 0);
        (self.scales[0], self.biases[0]) = (scale, -128.0 * scale);
    }

    /// 16 bytes of scales and minimums, 64 of numbers, and the factors of both.
    fn read_q2_k(&mut self, bytes: &[u8]) {
        self.read_two_bits(&bytes[16..80]);
        let (factor, minimum_factor) = (half(bytes, 80), half(bytes, 82));
        for (group, byte) in bytes[..16].iter().enumerate() {
            self.scales[group] = factor * f32::from(byte & 15);
            self.biases[group] = -(minimum_factor * f32::from(byte >> 4));
        }
    }

    /// 32 bytes of third bits, 64 of the other two, 12 of scales of six bits, and their factor.
    fn read_q3_k(&mut self, bytes: &[u8]) {
        self.read_two_bits(&bytes[32..96]);
        for (index, number) in self.numbers.iter_mut().enumerate() {
            *number |= (bytes[index % 32] >> (index / 32) & 1) << 2;
        }
        let (scales, factor) = (&bytes[96..108], half(bytes, 108));
        for group in 0..16 {
            let low = scales[group % 8] >> (group / 8 * 4) & 15;
            let high = scales[8 + group % 4] >> (group / 4 * 2) & 3;
            let scale = factor * (f32::from(low | high << 4) - 32.0);
            (self.scales[group], self.biases[group]) = (scale, -4.0 * scale);
        }
    }

    /// 64 bytes: each half of them has the numbers of four times 32 weights.
    fn read_two_bits(&mut self, bytes: &[u8]) {
        for (index, number) in self.numbers.iter_mut().enumerate() {
            let (part, shift) = (index / 128, index % 128 / 32 * 2);
            *number = bytes[part * 32 + index % 32] >> shift & 3;
        }
    }

    /// The factors of scales and minimums, 12 bytes with both in six bits each, in `Q5_K` 32 bytes
    /// of fifth bits, and 128 bytes of numbers.
    fn read_q4_k(&mut self, ggml_type: GgmlType, bytes: &[u8]) {
        let (factor, minimum_factor) = (half(bytes, 0), half(bytes, 2));
        let (sixes, rest) = bytes[4..].split_at(12);
        for group in 0..8 {
            let (scale, minimum) = if group < 4 {
                (sixes[group] & 63, sixes[group + 4] & 63)
            } else {
                let high = |byte: u8| byte >> 6 << 4;
                let (scale, minimum) = (sixes[group + 4] & 15, sixes[group + 4] >> 4);
                (scale | high(sixes[group - 4]), minimum | high(sixes[group]))
            };
            self.scales[group] = factor * f32::from(scale);
            self.biases[group] = -(minimum_factor * f32::from(minimum));
        }
        let (fifths, halves) = match ggml_type {
            GgmlType::Q5K => (Some(&rest[..32]), &rest[32..]),
            _ => (None, rest),
        };
        for (index, number) in self.numbers.iter_mut().enumerate() {
            let (group, column) = (index / 32, index % 32);
            *number = halves[group / 2 * 32 + column] >> (group % 2 * 4) & 15;
            *number |= fifths.map_or(0, |bits| (bits[column] >> group & 1) << 4);
        }
    }

    /// 128 bytes of low halves, 64 of two more bits, 16 scales, and their factor.
    fn read_q6_k(&mut self, bytes: &[u8]) {
        for (index, number) in self.numbers.iter_mut().enumerate() {
            let (part, within) = (index / 128, index % 128);
            let low = bytes[part * 64 + within % 64] >> (within / 64 * 4) & 15;
            let high = bytes[128 + part * 32 + within % 32] >> (within / 32 * 2) & 3;
            *number = low | high << 4;
        }
        let factor = half(bytes, 208);
        for (group, byte) in bytes[192..208].iter().enumerate() {
            let scale = factor * f32::from(*byte as i8);
            (self.scales[group], self.biases[group]) = (scale, -32.0 * scale);
        }
    }

    /// A factor, the high bits of eight scales, their low bits, and 128 bytes of codes.
    fn read_iq4_xs(&mut self, bytes: &[u8]) {
        let (factor, high) = (half(bytes, 0), u16::from_le_bytes([bytes[2], bytes[3]]));
        let (low, codes) = (&bytes[4..8], &bytes[8..136]);
        for group in 0..8 {
            let low = low[group / 2] >> (group % 2 * 4) & 15;
            let high = (high >> (2 * group) & 3) as u8;
            let scale = factor * (f32::from(low | high << 4) - 32.0);
            (self.scales[group], self.biases[group]) = (scale, -128.0 * scale);
        }
        for (index, number) in self.numbers.iter_mut().enumerate() {
            let (group, column) = (index / 32, index % 32);
            *number = codes[group * 16 + column % 16] >> (column / 16 * 4) & 15;
        }
        self.look_up(&IQ4_NUMBERS, MAX_WEIGHTS);
    }

    fn look_up(&mut self, values: &[u8; 16], count: usize) {
        for number in &mut self.numbers[..count] {
            *number = values[usize::from(*number)];
        }
    }
}

/// The weights of whole blocks, or of numbers of f32 and of halves, for tests.
#[cfg(any(test, feature = "test-files"))]
pub(crate) fn weights(ggml_type: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let (Some((num_weights, block_bytes)), Some(Grouping { group_size, .. })) =
        (ggml_type.block(), grouping(ggml_type))
    else {
        return numbers(ggml_type, bytes);
    };
    let mut block = Block::default();
    let mut weights = Vec::new();
    for bytes in bytes.chunks_exact(block_bytes) {
        block.read(ggml_type, bytes);
        weights.extend((0..num_weights).map(|index| block.weight(index, group_size)));
    }
    weights
}

/// Numbers that are not quantized: f16, bfloat16 or f32.
pub fn numbers(ggml_type: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let halves = bytes.chunks_exact(2);
    match ggml_type {
        GgmlType::F16 => halves.map(|half| f16_to_f32([half[0], half[1]])).collect(),
        GgmlType::Bf16 => halves.map(|half| f32::from_le_bytes([0, 0, half[0], half[1]])).collect(),
        _ => bytes
            .chunks_exact(4)
            .map(|number| f32::from_le_bytes([number[0], number[1], number[2], number[3]]))
            .collect(),
    }
}

/// Half of what an exponent of MXFP4 stands for, which is counted from 2^-127; the last is no number.
fn power_of_two(exponent: u8) -> f32 {
    match exponent {
        u8::MAX => f32::NAN,
        0 | 1 => f32::from_bits(1 << (21 + u32::from(exponent))),
        _ => f32::from_bits((u32::from(exponent) - 1) << 23),
    }
}

/// The f16 at a byte position.
fn half(bytes: &[u8], at: usize) -> f32 {
    f16_to_f32([bytes[at], bytes[at + 1]])
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
#[path = "blocks_tests.rs"]
mod tests;
