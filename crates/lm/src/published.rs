//! Checkpoints that other programs quantized, as MLX has them: AutoAWQ's and GPTQ's numbers of 4
//! bits, packed integers of compressed-tensors, and numbers of 8 bits (E4M3) with scales.
//!
//! ```text
//! files ──▶ ModelTensors ──▶ entries    names, types and shapes as MLX has them: headers alone
//!                       └──▶ Converted  the bytes of one of them, made of one, two or three tensors
//! ```
//! Integers become MLX's affine groups with the same weights; biases have the scales' type, as in the
//! reference implementation. Numbers of 8 bits become bfloat16, each rounded once. Reference: mlx-lm's
//! utils.py and deepseek_v3.py; for GPTQ, which it refuses, AutoGPTQ's `qlinear_cuda_old.py`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cairn_formats::bfloat16;
use cairn_formats::safetensors::{Dtype, SafetensorsFile, TensorEntry};
use mlx_rs::{Array, Dtype as MlxDtype};
use serde_json::Value;

use crate::config::{PublishedMethod, QuantizationConfig};
use crate::dtype::{item_size, mlx_dtype};
use crate::{LmError, embedding, ffi, text_part};

/// Numbers of four bits in a word.
const PER_WORD: usize = 8;
/// Where AutoAWQ keeps the numbers of a word, in steps of four bits.
const AWQ_ORDER: [usize; PER_WORD] = [0, 4, 1, 5, 2, 6, 3, 7];
/// Settings of activations and caches, which are not quantized here.
const UNUSED: [&str; 6] =
    [".input_scale", ".output_scale", ".activation_scale", ".k_scale", ".v_scale", ".weight_shape"];

/// The tensors of a model's files, as MLX has them.
#[derive(Debug)]
pub(crate) struct ModelTensors {
    pub(crate) files: Vec<SafetensorsFile>,
    converted: Vec<Converted>,
    /// The tensors in the files that are not there as they are stored.
    replaced: BTreeSet<String>,
    /// Whether the model was saved without its output layer, as embedding models are.
    lacks_output_layer: bool,
}

/// A tensor that is made of others.
#[derive(Debug)]
pub(crate) struct Converted {
    /// What it is.
    pub(crate) tensor: TensorEntry,
    sources: Vec<Stored>,
    conversion: Conversion,
}

/// A tensor in one of the files.
#[derive(Debug, Clone)]
struct Stored {
    file: usize,
    tensor: TensorEntry,
}

#[derive(Debug, Clone, Copy)]
enum Conversion {
    /// The words as they are.
    Words,
    /// `[inputs, outputs / 8]` in AutoAWQ's order.
    AwqWords,
    /// `[inputs / 8, outputs]`, and maybe the group of each input, which must be its neighbours'.
    GptqWords { group_size: usize },
    /// Rows and columns exchanged.
    Transposed,
    /// A scale for each group of one, which is repeated so many times.
    Scales { repeats: usize },
    /// Biases for these scales, where all numbers are less so much.
    Biases { repeats: usize, zero: u8 },
    /// Biases of turned scales, from zeros of four bits.
    ZeroBiases { is_awq: bool, offset: u8 },
    /// Numbers of eight bits times scales, each of so many rows and columns.
    Fp8 { block: [usize; 2] },
}

impl ModelTensors {
    /// Reads the headers of the model in `folder`. Fails on what is quantized in a way that is not
    /// supported; no tensor is read.
    pub(crate) fn open(folder: &Path, config: &Value) -> Result<Self, LmError> {
        let files = text_part::weight_files(folder, config)?;
        let quantization = QuantizationConfig::parse(config)?;
        let mut plan =
            Plan { stored: BTreeMap::new(), converted: Vec::new(), replaced: BTreeSet::new() };
        for (file, opened) in files.iter().enumerate() {
            for tensor in opened.tensors() {
                let stored = Stored { file, tensor: tensor.clone() };
                // Ordinary models have none of these, and need no copies of their headers.
                if quantization.published.is_some() || tensor.dtype == Dtype::F8E4m3 {
                    plan.stored.insert(tensor.name.clone(), stored);
                }
            }
        }
        plan.all(&quantization)?;
        let lacks_output_layer =
            embedding::is_embedding_model(folder, config) && !files.iter().any(holds_output_layer);
        let Plan { converted, replaced, .. } = plan;
        Ok(ModelTensors { files, converted, replaced, lacks_output_layer })
    }

    /// Whether the files hold a model for embeddings that has no output layer. Without one, other
    /// files are incomplete.
    pub(crate) fn lacks_output_layer(&self) -> bool {
        self.lacks_output_layer
    }

    /// All tensors.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &TensorEntry> {
        let stored = self.files.iter().flat_map(SafetensorsFile::tensors);
        let stored = stored.filter(|tensor| !self.replaced.contains(&tensor.name));
        stored.chain(self.converted.iter().map(|converted| &converted.tensor))
    }

    /// The files, the tensors in them that stay as they are, and those that are made.
    pub(crate) fn into_parts(
        self,
    ) -> (Vec<SafetensorsFile>, BTreeMap<String, usize>, Vec<Converted>) {
        let mut stored = BTreeMap::new();
        for (index, file) in self.files.iter().enumerate() {
            let names = file.tensors().iter().map(|tensor| &tensor.name);
            let names = names.filter(|name| !self.replaced.contains(*name));
            stored.extend(names.map(|name| (name.clone(), index)));
        }
        (self.files, stored, self.converted)
    }
}

fn holds_output_layer(file: &SafetensorsFile) -> bool {
    file.tensors().iter().any(|tensor| tensor.name.starts_with("lm_head."))
}

/// Plans what is made of the tensors of quantized matrices.
struct Plan {
    stored: BTreeMap<String, Stored>,
    converted: Vec<Converted>,
    replaced: BTreeSet<String>,
}

impl Plan {
    fn all(&mut self, quantization: &QuantizationConfig) -> Result<(), LmError> {
        let names: Vec<String> = self.stored.keys().cloned().collect();
        let group_size = quantization.common().map_or(0, |settings| settings.group_size as usize);
        let ends_of =
            |end: &'static str| names.iter().filter_map(move |name| name.strip_suffix(end));
        match quantization.published {
            None => {}
            Some(PublishedMethod::Awq) => {
                for path in ends_of(".qweight") {
                    self.awq(path, group_size)?;
                }
            }
            Some(PublishedMethod::Gptq { zero_offset }) => {
                for path in ends_of(".qweight") {
                    self.gptq(path, group_size, zero_offset)?;
                }
            }
            Some(PublishedMethod::Packed { bits }) => {
                for path in ends_of(".weight_packed") {
                    self.packed(path, group_size, bits)?;
                }
            }
            Some(PublishedMethod::Fp8 { block }) => {
                for path in ends_of(".weight") {
                    self.fp8(path, block)?;
                }
            }
        }
        let unused = |name: &&String| UNUSED.iter().any(|end| name.ends_with(end));
        self.replaced.extend(names.iter().filter(unused).cloned());
        let is_left = |(name, stored): &(&String, &Stored)| {
            stored.tensor.dtype == Dtype::F8E4m3 && !self.replaced.contains(*name)
        };
        match self.stored.iter().find(is_left) {
            None => Ok(()),
            Some((name, _)) => Err(refused(
                name,
                "config.json does not say how such numbers of eight bits are scaled",
            )),
        }
    }

    fn awq(&mut self, path: &str, group_size: usize) -> Result<(), LmError> {
        let words = self.take(path, "qweight", None)?;
        let [inputs, packed] = matrix_shape(&words)?;
        let outputs = packed * PER_WORD;
        self.of_groups(path, [outputs, inputs], group_size, true, 0)?;
        let shape = vec![outputs, inputs / PER_WORD];
        self.add(path, "weight", Dtype::U32, shape, vec![words], Conversion::AwqWords);
        Ok(())
    }

    fn gptq(&mut self, path: &str, group_size: usize, offset: u8) -> Result<(), LmError> {
        let words = self.take(path, "qweight", None)?;
        let [packed, outputs] = matrix_shape(&words)?;
        let inputs = packed * PER_WORD;
        self.of_groups(path, [outputs, inputs], group_size, false, offset)?;
        let mut sources = vec![words];
        if self.stored.contains_key(&format!("{path}.g_idx")) {
            sources.push(self.take(path, "g_idx", Some(vec![inputs]))?);
        }
        let conversion = Conversion::GptqWords { group_size };
        self.add(path, "weight", Dtype::U32, vec![outputs, packed], sources, conversion);
        Ok(())
    }

    /// Scales and biases of AutoAWQ's or GPTQ's turned matrices.
    fn of_groups(
        &mut self,
        path: &str,
        [outputs, inputs]: [usize; 2],
        group_size: usize,
        is_awq: bool,
        offset: u8,
    ) -> Result<(), LmError> {
        if !inputs.is_multiple_of(group_size.max(PER_WORD)) || !outputs.is_multiple_of(PER_WORD) {
            let allowed = format!("its inputs must be a multiple of the group size, {group_size}");
            return Err(refused(&format!("{path}.qweight"), &allowed));
        }
        let groups = inputs / group_size;
        let scales = self.take(path, "scales", Some(vec![groups, outputs]))?;
        check_float(&scales)?;
        let zeros = self.take(path, "qzeros", Some(vec![groups, outputs / PER_WORD]))?;
        let (dtype, shape) = (scales.tensor.dtype, vec![outputs, groups]);
        let sources = vec![scales.clone(), zeros];
        let biases = Conversion::ZeroBiases { is_awq, offset };
        self.add(path, "scales", dtype, shape.clone(), vec![scales], Conversion::Transposed);
        self.add(path, "biases", dtype, shape, sources, biases);
        Ok(())
    }

    fn packed(&mut self, path: &str, group_size: usize, bits: usize) -> Result<(), LmError> {
        for unsupported in ["weight_zero_point", "weight_g_idx"] {
            if self.stored.contains_key(&format!("{path}.{unsupported}")) {
                let name = format!("{path}.{unsupported}");
                return Err(refused(&name, "only symmetric groups of neighbours are supported"));
            }
        }
        let words = self.take(path, "weight_packed", None)?;
        let [outputs, columns] = matrix_shape(&words)?;
        let inputs = columns * 32 / bits;
        if !inputs.is_multiple_of(group_size) {
            let allowed = format!("its inputs must be a multiple of the group size, {group_size}");
            return Err(refused(&words.tensor.name, &allowed));
        }
        let groups = inputs / group_size;
        let scales = self.take(path, "weight_scale", None)?;
        check_float(&scales)?;
        // One scale for each row counts for all of its groups.
        let repeats = match matrix_shape(&scales)? {
            [rows, found] if rows == outputs && found == groups => 1,
            [rows, 1] if rows == outputs => groups,
            _ => return Err(wrong_shape(&scales, vec![outputs, groups])),
        };
        let (dtype, shape) = (scales.tensor.dtype, vec![outputs, groups]);
        let biases = Conversion::Biases { repeats, zero: 1 << (bits - 1) };
        let weight = vec![outputs, columns];
        self.add(path, "weight", Dtype::U32, weight, vec![words], Conversion::Words);
        let scale = Conversion::Scales { repeats };
        self.add(path, "scales", dtype, shape.clone(), vec![scales.clone()], scale);
        self.add(path, "biases", dtype, shape, vec![scales], biases);
        Ok(())
    }

    /// A matrix of numbers of eight bits, if this is one.
    fn fp8(&mut self, path: &str, block: Option<[usize; 2]>) -> Result<(), LmError> {
        let is_fp8 = |stored: &Stored| stored.tensor.dtype == Dtype::F8E4m3;
        if !self.stored.get(&format!("{path}.weight")).is_some_and(is_fp8) {
            return Ok(());
        }
        let weight = self.take(path, "weight", None)?;
        let [rows, columns] = matrix_shape(&weight)?;
        let names = ["weight_scale_inv", "weight_scale"];
        let held =
            names.into_iter().find(|name| self.stored.contains_key(&format!("{path}.{name}")));
        let scales = self.take(path, held.unwrap_or(names[0]), None)?;
        check_float(&scales)?;
        let found = scales.tensor.shape.as_slice();
        let block = match (found, block) {
            ([] | [1] | [1, 1], _) => [rows, columns],
            ([count] | [count, 1], None) if *count == rows => [1, columns],
            ([down, across], Some([height, width]))
                if *down == rows.div_ceil(height) && *across == columns.div_ceil(width) =>
            {
                [height, width]
            }
            (_, Some([height, width])) => {
                let expected = vec![rows.div_ceil(height), columns.div_ceil(width)];
                return Err(wrong_shape(&scales, expected));
            }
            _ => return Err(wrong_shape(&scales, vec![rows, 1])),
        };
        let (shape, conversion) = (vec![rows, columns], Conversion::Fp8 { block });
        self.add(path, "weight", Dtype::Bf16, shape, vec![weight, scales], conversion);
        Ok(())
    }

    /// The tensor `path.name`, which is not there any more as it is stored.
    fn take(
        &mut self,
        path: &str,
        name: &str,
        expected: Option<Vec<usize>>,
    ) -> Result<Stored, LmError> {
        let has_words = ["qweight", "qzeros", "weight_packed", "g_idx"].contains(&name);
        let name = format!("{path}.{name}");
        let stored = self.stored.get(&name).cloned();
        let stored = stored.ok_or_else(|| refused(&name, "the weight files must hold it"))?;
        if has_words && !matches!(stored.tensor.dtype, Dtype::I32 | Dtype::U32) {
            return Err(refused(&name, "it must be of I32"));
        }
        if let Some(expected) = expected.filter(|expected| *expected != stored.tensor.shape) {
            return Err(wrong_shape(&stored, expected));
        }
        self.replaced.insert(name);
        Ok(stored)
    }

    fn add(
        &mut self,
        path: &str,
        name: &str,
        dtype: Dtype,
        shape: Vec<usize>,
        sources: Vec<Stored>,
        conversion: Conversion,
    ) {
        let num_bytes = shape.iter().product::<usize>() as u64 * dtype.size_bytes();
        let name = format!("{path}.{name}");
        let tensor = TensorEntry { name, dtype, shape, bytes: 0..num_bytes };
        self.converted.push(Converted { tensor, sources, conversion });
    }
}

/// The rows and columns of a matrix.
fn matrix_shape(stored: &Stored) -> Result<[usize; 2], LmError> {
    let TensorEntry { name, dtype, shape, .. } = &stored.tensor;
    let is_known = !matches!(dtype, Dtype::U8 | Dtype::I8 | Dtype::Bool | Dtype::I64 | Dtype::U64);
    match shape.as_slice() {
        [rows, columns] if is_known => Ok([*rows, *columns]),
        _ => Err(refused(name, "it must be a matrix of words, of scales, or of F8_E4M3")),
    }
}

fn check_float(stored: &Stored) -> Result<(), LmError> {
    match stored.tensor.dtype {
        Dtype::F16 | Dtype::Bf16 | Dtype::F32 => Ok(()),
        _ => Err(refused(&stored.tensor.name, "it must be of F16, BF16 or F32")),
    }
}

fn wrong_shape(stored: &Stored, expected: Vec<usize>) -> LmError {
    // No overflow: the header check limits every length to less than 2^31.
    let lengths = |shape: &[usize]| shape.iter().map(|&length| length as i32).collect();
    LmError::WrongShape {
        name: stored.tensor.name.clone(),
        found: lengths(&stored.tensor.shape),
        expected: lengths(&expected),
    }
}

fn refused(tensor: &str, allowed: &str) -> LmError {
    LmError::Config {
        name: "quantization_config",
        value: tensor.chars().take(80).collect(),
        allowed: allowed.to_owned(),
    }
}

impl Converted {
    /// Reads what it is made of, and makes it.
    pub(crate) fn read(&self, files: &[SafetensorsFile]) -> Result<Array, LmError> {
        let bytes = |stored: &Stored| files[stored.file].read_tensor(&stored.tensor.name);
        let shape: Vec<i32> = self.tensor.shape.iter().map(|&length| length as i32).collect();
        let dtype = mlx_dtype(self.tensor.dtype);
        let [rows, columns] = [self.tensor.shape[0], self.tensor.shape[1]];
        let first = &self.sources[0];
        let made = match self.conversion {
            Conversion::Words => bytes(first)?,
            Conversion::AwqWords => awq_words(&bytes(first)?, rows),
            Conversion::GptqWords { group_size } => {
                if let Some(groups) = self.sources.get(1) {
                    check_neighbours(&bytes(groups)?, group_size, &groups.tensor.name)?;
                }
                turned(&bytes(first)?, 4, rows)
            }
            Conversion::Transposed => turned(&bytes(first)?, item_size(dtype), rows),
            Conversion::Scales { repeats } => {
                let size = item_size(dtype);
                bytes(first)?.chunks(size).flat_map(|scale| scale.repeat(repeats)).collect()
            }
            Conversion::Biases { repeats, zero } => {
                let scales = numbers(&bytes(first)?, first)?;
                let biases = scales.iter().map(|scale| -f32::from(zero) * scale);
                let biases = biases.flat_map(|bias| std::iter::repeat_n(bias, repeats));
                return as_type(biases.collect(), &shape, dtype);
            }
            Conversion::ZeroBiases { is_awq, offset } => {
                let scales = numbers(&bytes(first)?, first)?;
                let zeros = zeros(&bytes(&self.sources[1])?, is_awq);
                // Both are `[groups, outputs]`. A zero of four bits less one is 15 for 0.
                let bias = |at: usize| -f32::from((zeros[at] + offset) & 15) * scales[at];
                let biases = (0..rows * columns).map(|at| bias(at % columns * rows + at / columns));
                return as_type(biases.collect(), &shape, dtype);
            }
            Conversion::Fp8 { block } => {
                let scales = numbers(&bytes(&self.sources[1])?, &self.sources[1])?;
                fp8(&bytes(first)?, columns, &scales, block)
            }
        };
        Ok(ffi::array_from_bytes(&made, &shape, dtype)?)
    }
}

/// Floating-point numbers as f32.
fn numbers(bytes: &[u8], stored: &Stored) -> Result<Vec<f32>, LmError> {
    let count = stored.tensor.shape.iter().product::<usize>() as i32;
    let array = ffi::array_from_bytes(bytes, &[count], mlx_dtype(stored.tensor.dtype))?;
    let array = array.as_dtype(MlxDtype::Float32)?;
    let numbers = ffi::array_bytes(&array)?.chunks_exact(4);
    Ok(numbers.map(|n| f32::from_ne_bytes([n[0], n[1], n[2], n[3]])).collect())
}

/// The numbers in another type.
fn as_type(numbers: Vec<f32>, shape: &[i32], dtype: MlxDtype) -> Result<Array, LmError> {
    let array = Array::from_slice(&numbers, shape).as_dtype(dtype)?;
    array.eval()?;
    Ok(array)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// Fails unless input i is in the group `i / group_size`.
fn check_neighbours(bytes: &[u8], group_size: usize, name: &str) -> Result<(), LmError> {
    match words(bytes).enumerate().all(|(input, group)| input / group_size == group as usize) {
        true => Ok(()),
        false => Err(refused(
            name,
            "of GPTQ only models whose groups are neighbours can be loaded (desc_act)",
        )),
    }
}

/// `[inputs, outputs / 8]` in AutoAWQ's order as `[outputs, inputs / 8]` in MLX's.
fn awq_words(bytes: &[u8], outputs: usize) -> Vec<u8> {
    let packed = outputs / PER_WORD;
    let columns = bytes.len() / 4 / packed / PER_WORD;
    let mut turned = vec![0_u32; outputs * columns];
    for (at, word) in words(bytes).enumerate() {
        let (input, first) = (at / packed, at % packed * PER_WORD);
        for (number, place) in AWQ_ORDER.into_iter().enumerate() {
            let bits = word >> (4 * place) & 15;
            turned[(first + number) * columns + input / PER_WORD] |= bits << (input % PER_WORD * 4);
        }
    }
    turned.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// A matrix of items of so many bytes with rows and columns exchanged, of which it has then so many
/// rows.
fn turned(bytes: &[u8], size: usize, rows: usize) -> Vec<u8> {
    let columns = bytes.len() / size / rows;
    let item = |row: usize, column: usize| &bytes[(column * rows + row) * size..][..size];
    (0..rows)
        .flat_map(|row| (0..columns).flat_map(move |column| item(row, column)))
        .copied()
        .collect()
}

/// Numbers of four bits, eight in a word.
fn zeros(bytes: &[u8], is_awq: bool) -> Vec<u8> {
    let place = |number: usize| if is_awq { AWQ_ORDER[number] } else { number };
    let of_word =
        |word: u32| (0..PER_WORD).map(move |number| (word >> (4 * place(number)) & 15) as u8);
    words(bytes).flat_map(of_word).collect()
}

/// Numbers of eight bits times scales, as bfloat16.
fn fp8(bytes: &[u8], columns: usize, scales: &[f32], [height, width]: [usize; 2]) -> Vec<u8> {
    let values: [f32; 256] = std::array::from_fn(|byte| e4m3(byte as u8));
    let across = columns.div_ceil(width);
    let mut rounded = Vec::with_capacity(2 * bytes.len());
    for (at, byte) in bytes.iter().enumerate() {
        let scale = scales[at / columns / height * across + at % columns / width];
        let nearest = bfloat16(values[usize::from(*byte)] * scale);
        rounded.extend(((nearest.to_bits() >> 16) as u16).to_le_bytes());
    }
    rounded
}

/// Four bits of exponent, three of mantissa, no infinity.
fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if byte & 0x80 != 0 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_eight_bits_have_their_values() {
        for (byte, expected) in [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0x7e, 448.0),
            (0xb8, -1.0),
        ] {
            assert_eq!(e4m3(byte), expected, "{byte:#x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }
}
