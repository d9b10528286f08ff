//! Draws a checkpoint from a seed; `tests/goldens/draw.py` says how, and draws the same bits.

use std::collections::BTreeMap;

use safetensors::Dtype;
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// `weights.json` of a golden.
#[derive(Deserialize)]
pub(crate) struct Weights {
    seed: u64,
    /// Of the drawn checkpoint, by the Python script: see [`digest`].
    pub(crate) sha256: String,
    #[serde(default = "one")]
    pub(crate) num_shards: usize,
    tensors: BTreeMap<String, Entry>,
}

/// One tensor before it is quantized: integers from `low` to `high`, times two to the `exponent`.
#[derive(Deserialize)]
struct Entry {
    dtype: Float,
    shape: Vec<usize>,
    low: i64,
    high: i64,
    exponent: i32,
    bits: Option<usize>,
    group_size: Option<usize>,
    mode: Option<Mode>,
    #[serde(default)]
    patches: Vec<Patch>,
}

/// Bounds of its own for a rectangle: first row, end row, first column, end column, low, high.
#[derive(Deserialize)]
struct Patch(usize, usize, usize, usize, i64, i64);

#[derive(Clone, Copy, Deserialize)]
enum Float {
    F32,
    F16,
    #[serde(rename = "BF16")]
    Bf16,
}

/// A quantization to small floating-point numbers.
#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Mxfp4,
    Mxfp8,
    Nvfp4,
}

/// One tensor as the checkpoint stores it.
pub(crate) struct Stored {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<u8>,
}

fn one() -> usize {
    1
}

/// The tensors of the checkpoint, by name.
pub(crate) fn draw(weights: &Weights) -> BTreeMap<String, Stored> {
    let mut stored = BTreeMap::new();
    for (name, entry) in &weights.tensors {
        let values = integers(weights.seed, name, entry);
        let (Some(bits), Some(group_size)) = (entry.bits, entry.group_size) else {
            let data = to_bytes(&values, entry);
            let dtype = entry.dtype.stored();
            stored.insert(name.clone(), Stored { dtype, shape: entry.shape.clone(), data });
            continue;
        };
        let layer = name.strip_suffix(".weight").unwrap_or(name);
        let with_last = |length| [&entry.shape[..entry.shape.len() - 1], &[length]].concat();
        let columns = entry.columns();
        let words = |quants: &[i64]| Stored {
            dtype: Dtype::U32,
            shape: with_last(columns * bits / 32),
            data: packed(quants, bits),
        };
        if let Some(mode) = entry.mode {
            let (codes, data) = quantize_to_floats(&values, entry.exponent, mode, group_size);
            let shape = with_last(columns / group_size);
            let (of_groups, codes) = match name.strip_suffix("_blocks") {
                Some(path) => {
                    let shape = [&shape[..], &[group_size * bits / 8]].concat();
                    let data = packed(&codes, bits);
                    (format!("{path}_scales"), Stored { dtype: Dtype::U8, shape, data })
                }
                None => (format!("{layer}.scales"), words(&codes)),
            };
            stored.insert(of_groups, Stored { dtype: Dtype::U8, shape, data });
            stored.insert(name.clone(), codes);
            continue;
        }
        let quantized = quantize(&values, bits, group_size);
        let of_groups = |values: &[i64]| Stored {
            dtype: entry.dtype.stored(),
            shape: with_last(columns / group_size),
            data: to_bytes(values, entry),
        };
        stored.insert(format!("{layer}.scales"), of_groups(&quantized.steps));
        stored.insert(format!("{layer}.biases"), of_groups(&quantized.lowest));
        stored.insert(name.clone(), words(&quantized.quants));
    }
    stored
}

/// SHA-256 over each tensor's line `<name> <dtype> <dimensions joined by x>` and its bytes, by name.
pub(crate) fn digest(stored: &BTreeMap<String, Stored>) -> String {
    let mut hasher = Sha256::new();
    for (name, tensor) in stored {
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        hasher.update(format!("{name} {} {}\n", tensor.dtype, shape.join("x")));
        hasher.update(&tensor.data);
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Float {
    fn stored(self) -> Dtype {
        match self {
            Float::F32 => Dtype::F32,
            Float::F16 => Dtype::F16,
            Float::Bf16 => Dtype::BF16,
        }
    }
}

impl Entry {
    /// The length of the last dimension: a tensor is seen as rows of it.
    fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    fn bounds(&self, row: usize, column: usize) -> (i64, i64) {
        let covers = |patch: &&Patch| {
            (patch.0..patch.1).contains(&row) && (patch.2..patch.3).contains(&column)
        };
        let patch = self.patches.iter().rev().find(covers);
        patch.map_or((self.low, self.high), |patch| (patch.4, patch.5))
    }
}

fn integers(seed: u64, name: &str, entry: &Entry) -> Vec<i64> {
    let start = fnv1a(&format!("{seed}/{name}"));
    let columns = entry.columns();
    let draw_one = |index: usize| {
        let (low, high) = entry.bounds(index / columns, index % columns);
        low + (splitmix64(start, index as u64) % (high - low + 1) as u64) as i64
    };
    (0..entry.shape.iter().product()).map(draw_one).collect()
}

fn fnv1a(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf29ce484222325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100000001b3))
}

fn splitmix64(start: u64, index: u64) -> u64 {
    let z = start.wrapping_add((index + 1).wrapping_mul(0x9e3779b97f4a7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
    z ^ (z >> 31)
}

/// Little-endian floating-point numbers; the script has checked that the dtype rounds none.
fn to_bytes(values: &[i64], entry: &Entry) -> Vec<u8> {
    let floats = values.iter().map(|&value| value as f32 * 2f32.powi(entry.exponent));
    match entry.dtype {
        Float::F32 => floats.flat_map(f32::to_le_bytes).collect(),
        Float::F16 => floats.flat_map(|float| half(float).to_le_bytes()).collect(),
        Float::Bf16 => {
            floats.flat_map(|float| ((float.to_bits() >> 16) as u16).to_le_bytes()).collect()
        }
    }
}

/// The bits in f16 of a number that it holds exactly.
fn half(float: f32) -> u16 {
    let sign = (float.to_bits() >> 16) as u16 & 0x8000;
    let size = float.abs();
    if size < 2f32.powi(-14) {
        // Without an exponent: counted in the smallest number.
        return sign | (size * 2f32.powi(24)) as u16;
    }
    sign | ((size.to_bits() - (112 << 23)) >> 13) as u16
}

struct Quantized {
    /// One for each value.
    quants: Vec<i64>,
    /// The scale of each group: the smallest whole number of which so many steps as there are
    /// quants reach from its lowest value to its highest.
    steps: Vec<i64>,
    /// The bias of each group.
    lowest: Vec<i64>,
}

fn quantize(values: &[i64], bits: usize, group_size: usize) -> Quantized {
    let mut quantized =
        Quantized { quants: Vec::with_capacity(values.len()), steps: vec![], lowest: vec![] };
    for group in values.chunks(group_size) {
        let bounds = group.iter().fold((i64::MAX, i64::MIN), |(lowest, highest), &value| {
            (lowest.min(value), highest.max(value))
        });
        let (lowest, highest) = bounds;
        let most = (1i64 << bits) - 1;
        let step = ((highest - lowest + most - 1) / most).max(1);
        quantized.quants.extend(group.iter().map(|value| (value - lowest + step / 2) / step));
        quantized.steps.push(step);
        quantized.lowest.push(lowest);
    }
    quantized
}

/// Powers of two by which scales are finer than the integers of a tensor.
const FINER: i32 = 20;

/// The positive numbers of a floating-point format by their code, as integers, and the power of two
/// that one of these integers is.
fn floats(exponent_bits: u32, mantissa_bits: u32) -> (Vec<i64>, i32) {
    let number = |code: i64| {
        let (exponent, mantissa) = (code >> mantissa_bits, code & ((1 << mantissa_bits) - 1));
        match exponent {
            0 => mantissa,
            _ => (mantissa + (1 << mantissa_bits)) << (exponent - 1),
        }
    };
    let numbers = (0..1 << (exponent_bits + mantissa_bits)).map(number).collect();
    (numbers, 2 - (1 << (exponent_bits - 1)) - mantissa_bits as i32)
}

/// A code for each value and a byte for each group: its scale is the smallest with which its largest
/// number fits, and each number becomes the nearest, of two the smaller.
fn quantize_to_floats(
    values: &[i64],
    exponent: i32,
    mode: Mode,
    group_size: usize,
) -> (Vec<i64>, Vec<u8>) {
    let e4m3 = || {
        let (mut numbers, unit) = floats(4, 3);
        numbers.pop(); // it is no number
        (numbers, unit)
    };
    let (numbers, unit) = if mode == Mode::Mxfp8 { e4m3() } else { floats(2, 1) };
    let sign = if mode == Mode::Mxfp8 { 0x80 } else { 0x8 };
    let (scales, first): (Vec<i64>, i32) = if mode == Mode::Nvfp4 {
        let (scales, unit) = e4m3();
        (scales[1..].iter().map(|scale| scale << (unit - exponent + FINER)).collect(), 1)
    } else {
        ((0..40).map(|power| 1 << power).collect(), 127 + exponent - FINER)
    };
    let (mut codes, mut bytes) = (Vec::with_capacity(values.len()), Vec::new());
    for group in values.chunks(group_size) {
        let size = |value: i64| value.abs() << (FINER - unit);
        let largest = group.iter().map(|&value| size(value)).max().unwrap_or(0);
        let chosen = scales.partition_point(|scale| scale * numbers[numbers.len() - 1] < largest);
        bytes.push((chosen as i32 + first) as u8);
        for &value in group {
            let distance = |code: &usize| (size(value) - scales[chosen] * numbers[*code]).abs();
            let code = (0..numbers.len()).min_by_key(distance).unwrap_or(0) as i64;
            codes.push(if value < 0 { code + sign } else { code });
        }
    }
    (codes, bytes)
}

/// A stream of bits, the lowest first; rows fill whole words, so that it needs not know of them.
fn packed(quants: &[i64], bits: usize) -> Vec<u8> {
    let mut data = vec![0u8; (quants.len() * bits).div_ceil(8)];
    for (index, quant) in quants.iter().enumerate() {
        for bit in 0..bits {
            let position = index * bits + bit;
            data[position / 8] |= ((quant >> bit & 1) as u8) << (position % 8);
        }
    }
    data
}
