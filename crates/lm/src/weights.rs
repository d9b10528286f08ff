//! The tensors of a model folder, addressed by prefix. Each is validated, read once, and checked
//! against the shape that the architecture asks for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cairn_formats::safetensors::{SafetensorsFile, TensorEntry};
use mlx_rs::{Array, Dtype};

use crate::LmError;
use crate::config::{Quantization, QuantizationConfig};
use crate::device::ComputeDevice;
use crate::device_kernels::{Kernels, QuantizedRows};
use crate::dtype::{is_float, item_size, mlx_dtype};
use crate::ffi;
use crate::load_progress::{LoadProgress, OnPart, PART_BYTES};
use crate::published::{Converted, ModelTensors};
use crate::published_numbers::MatrixFactor;
use crate::tensor_list::check_groups;

/// How weights are loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Keeps quantized weights quantized on a CPU device too. By default they are dequantized
    /// there, which computes many times faster but needs more memory.
    pub keep_quantized: bool,
    /// Holds the recurrent state of gated delta layers in bf16 instead of f32: half the memory of each
    /// conversation's state and half of what is saved of it, for answers that are nearly the same.
    /// Models without such layers ignore it.
    pub bf16_state: bool,
    /// Traces decode steps with MLX's `compile`, one trace for every 256 tokens of context, and replays
    /// them. For single sequences whose layers all attend, on devices without kernels of our own;
    /// others ignore it. A model that cannot be traced goes on without, and says why
    /// ([`Model::take_tracing_problem`](crate::models::Model::take_tracing_problem)).
    pub traces_steps: bool,
}

impl LoadOptions {
    /// Weights as they are fastest to compute with; what [`Default`] gives, also in constants.
    pub const fn new() -> Self {
        LoadOptions { keep_quantized: false, bf16_state: false, traces_steps: false }
    }

    /// The same with [`LoadOptions::keep_quantized`] set.
    pub const fn keep_quantized(self, keep_quantized: bool) -> Self {
        LoadOptions { keep_quantized, ..self }
    }

    /// The same with [`LoadOptions::bf16_state`] set.
    pub const fn bf16_state(self, bf16_state: bool) -> Self {
        LoadOptions { bf16_state, ..self }
    }

    /// The same with [`LoadOptions::traces_steps`] set.
    pub const fn traces_steps(self, traces_steps: bool) -> Self {
        LoadOptions { traces_steps, ..self }
    }
}

/// The weight files of a loaded model. They are still open, so that what identifies the model is
/// computed from the files that were read.
#[derive(Debug, Default)]
pub struct LoadedWeights {
    /// Bytes of the tensors that were read.
    pub num_bytes: u64,
    /// The files.
    pub files: Vec<SafetensorsFile>,
}

/// Where a tensor comes from.
#[derive(Debug)]
enum TensorSource {
    /// In the file with this index.
    Stored(usize),
    /// Made of others.
    Converted(Box<Converted>),
}

impl TensorSource {
    fn entry<'a>(&'a self, name: &str, files: &'a [SafetensorsFile]) -> Option<&'a TensorEntry> {
        match self {
            TensorSource::Stored(index) => files[*index].tensor(name),
            TensorSource::Converted(converted) => Some(&converted.tensor),
        }
    }
}

/// The tensors of a model folder that have not been taken yet.
#[derive(Debug)]
pub struct Weights {
    folder: PathBuf,
    /// The model's own files, and behind them those that were added.
    files: Vec<SafetensorsFile>,
    num_own_files: usize,
    remaining: BTreeMap<String, TensorSource>,
    quantization: QuantizationConfig,
    compute_dtype: Option<Dtype>,
    keep_quantized: bool,
    /// See [`LoadOptions::bf16_state`].
    pub(crate) bf16_state: bool,
    progress: LoadProgress,
    on_part: OnPart,
    part_bytes: usize,
    /// What matrices are multiplied by as they are read.
    pub(crate) factors: Vec<MatrixFactor>,
    /// The kernels that the layers are loaded with.
    pub(crate) kernels: Kernels,
    /// Whether the model was saved without its output layer, as embedding models are.
    pub(crate) lacks_output_layer: bool,
}

impl Weights {
    /// Validates the headers of the weight files in `folder`; no tensor is read yet. Layers are
    /// loaded without kernels unless `kernels` is set.
    pub fn open(
        folder: &Path,
        config: &serde_json::Value,
        options: LoadOptions,
        on_part: OnPart,
    ) -> Result<Self, LmError> {
        let tensors = ModelTensors::open(folder, config)?;
        let total_bytes = tensors.entries().map(|entry| entry.bytes.end - entry.bytes.start).sum();
        let lacks_output_layer = tensors.lacks_output_layer();
        let (files, stored, converted) = tensors.into_parts();
        let stored = stored.into_iter().map(|(name, index)| (name, TensorSource::Stored(index)));
        let made = converted.into_iter();
        let made =
            made.map(|made| (made.tensor.name.clone(), TensorSource::Converted(Box::new(made))));
        let remaining = stored.chain(made).collect();
        let device = ComputeDevice::current();
        Ok(Weights {
            folder: folder.to_owned(),
            num_own_files: files.len(),
            files,
            remaining,
            quantization: QuantizationConfig::parse(config)?,
            compute_dtype: device.compute_dtype(),
            keep_quantized: options.keep_quantized || device == ComputeDevice::Gpu,
            bf16_state: options.bf16_state,
            progress: LoadProgress { bytes_read: 0, total_bytes },
            on_part,
            part_bytes: PART_BYTES,
            factors: Vec::new(),
            kernels: None,
            lacks_output_layer,
        })
    }

    /// The tensors whose names begin with `path` and a dot.
    pub fn layer(&mut self, path: impl Into<String>) -> Layer<'_> {
        Layer { weights: self, path: path.into() }
    }

    /// Adds the tensors of another file. The model is what it was without them: they do not count where
    /// it is identified.
    pub fn add_file(&mut self, file: SafetensorsFile) {
        let index = self.files.len();
        for tensor in file.tensors() {
            self.progress.total_bytes += tensor.bytes.end - tensor.bytes.start;
            self.remaining.insert(tensor.name.clone(), TensorSource::Stored(index));
        }
        self.files.push(file);
    }

    /// The folder of the model.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The mean of a small tensor of floating-point numbers, which is not taken; `None` where there is
    /// none as it is stored.
    pub fn mean(&self, name: &str) -> Result<Option<f32>, LmError> {
        let Some(TensorSource::Stored(index)) = self.remaining.get(name) else { return Ok(None) };
        let file = &self.files[*index];
        let Some(tensor) = file.tensor(name).filter(|tensor| is_float(mlx_dtype(tensor.dtype)))
        else {
            return Ok(None);
        };
        let count = tensor.shape.iter().product::<usize>() as i32;
        let bytes = file.read_tensor(name)?;
        let numbers = ffi::array_from_bytes(&bytes, &[count], mlx_dtype(tensor.dtype))?;
        let mean = numbers.as_dtype(Dtype::Float32)?.mean(None)?;
        Ok(mean.try_as_slice::<f32>()?.first().copied())
    }

    /// Whether the tensor `name` is there and has not been taken.
    pub fn contains(&self, name: &str) -> bool {
        self.remaining.contains_key(name)
    }

    /// The shape of the tensor `name`, if it is there and has not been taken.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(self.remaining.get(name)?.entry(name, &self.files)?.shape.as_slice())
    }

    /// Drops tensors that the architecture knows but does not need.
    pub fn ignore(&mut self, is_known: impl Fn(&str) -> bool) {
        let ignored = self.remaining.extract_if(.., |name, _| is_known(name));
        let bytes = |(name, place): (String, TensorSource)| {
            let entry = place.entry(&name, &self.files);
            entry.map_or(0, |entry| entry.bytes.end - entry.bytes.start)
        };
        let bytes: u64 = ignored.map(bytes).sum();
        self.progress.total_bytes -= bytes;
    }

    /// Returns what was read. Fails if a tensor has not been taken, which means that the files belong
    /// to another architecture.
    pub fn finish(mut self, model_type: &str) -> Result<LoadedWeights, LmError> {
        self.files.truncate(self.num_own_files);
        match self.remaining.keys().next() {
            None => Ok(LoadedWeights { num_bytes: self.progress.bytes_read, files: self.files }),
            Some(first) => Err(LmError::UnusedWeights {
                model_type: model_type.to_owned(),
                count: self.remaining.len(),
                first: first.clone(),
            }),
        }
    }

    /// Lets others go on. Fails if the load is to end here.
    fn pause(&self) -> Result<(), LmError> {
        self.on_part.pause(self.progress)
    }

    /// Takes a tensor of exactly `shape`; floating-point numbers become `float_dtype`s, if one is
    /// given.
    fn read(
        &mut self,
        name: &str,
        shape: &[i32],
        float_dtype: Option<Dtype>,
    ) -> Result<Array, LmError> {
        let Some(factor) = MatrixFactor::of(&self.factors, name).cloned() else {
            return self.read_stored(name, shape, float_dtype);
        };
        let stored = self.read_stored(name, shape, None)?;
        // The packed numbers of a quantized matrix stay as they are.
        if !is_float(stored.dtype()) {
            return Ok(stored);
        }
        let dtype = float_dtype.unwrap_or(stored.dtype());
        let multiplied = factor.times(&stored)?.as_dtype(dtype)?;
        multiplied.eval()?;
        Ok(multiplied)
    }

    /// As [`Weights::read`], without factors.
    fn read_stored(
        &mut self,
        name: &str,
        shape: &[i32],
        float_dtype: Option<Dtype>,
    ) -> Result<Array, LmError> {
        self.pause()?;
        let place = self.remaining.remove(name);
        let found = place.and_then(|place| {
            place.entry(name, &self.files).cloned().map(|tensor| (place, tensor))
        });
        let (place, tensor) = found.ok_or_else(|| LmError::MissingWeight {
            folder: self.folder.clone(),
            name: name.to_owned(),
        })?;
        // No overflow: the header check limits every length to less than 2^31.
        let found: Vec<i32> = tensor.shape.iter().map(|&length| length as i32).collect();
        if found != shape {
            let (name, expected) = (name.to_owned(), shape.to_vec());
            return Err(LmError::WrongShape { name, found, expected });
        }
        let stored = mlx_dtype(tensor.dtype);
        let dtype = float_dtype.filter(|_| is_float(stored)).unwrap_or(stored);
        let array = match place {
            TensorSource::Stored(index)
                if tensor.bytes.end - tensor.bytes.start > self.part_bytes as u64 =>
            {
                return self.read_in_parts(index, &tensor, shape, dtype);
            }
            TensorSource::Stored(index) => {
                ffi::array_from_bytes(&self.files[index].read_tensor(name)?, shape, stored)?
            }
            TensorSource::Converted(converted) => converted.read(&self.files)?,
        };
        self.progress.bytes_read += array.nbytes() as u64;
        if dtype == stored {
            return Ok(array);
        }
        // Evaluated at once, so that the unconverted copy is freed before the next tensor is read.
        let array = array.as_dtype(dtype)?;
        array.eval()?;
        Ok(array)
    }

    /// Reads a tensor with a pause before each part but the first, and converts it to `dtype`.
    fn read_in_parts(
        &mut self,
        index: usize,
        tensor: &TensorEntry,
        shape: &[i32],
        dtype: Dtype,
    ) -> Result<Array, LmError> {
        let stored = mlx_dtype(tensor.dtype);
        let (stored_size, size) = (item_size(stored), item_size(dtype));
        let mut array = ffi::ArrayBuffer::zeros(shape, dtype)?;
        let num_numbers = (tensor.bytes.end - tensor.bytes.start) as usize / stored_size;
        let part = (self.part_bytes / stored_size).max(1);
        for first in (0..num_numbers).step_by(part) {
            if first > 0 {
                self.pause()?;
            }
            let stop = num_numbers.min(first + part);
            let from = tensor.bytes.start + (first * stored_size) as u64;
            let target = &mut array.bytes_mut()[first * size..stop * size];
            if dtype == stored {
                self.files[index].read_at(target, from)?;
            } else {
                let mut bytes = vec![0; (stop - first) * stored_size];
                self.files[index].read_at(&mut bytes, from)?;
                let numbers = ffi::array_from_bytes(&bytes, &[(stop - first) as i32], stored)?;
                target.copy_from_slice(ffi::array_bytes(&numbers.as_dtype(dtype)?)?);
            }
            self.progress.bytes_read += ((stop - first) * stored_size) as u64;
        }
        Ok(array.into_array()?)
    }
}

/// The part of [`Weights`] below one path, for example "model.layers.0.self_attn.q_proj".
#[derive(Debug)]
pub struct Layer<'a> {
    weights: &'a mut Weights,
    path: String,
}

impl Layer<'_> {
    /// The part below `name`.
    pub fn layer(&mut self, name: &str) -> Layer<'_> {
        Layer { path: format!("{}.{name}", self.path), weights: self.weights }
    }

    /// The device's kernels, if the model is loaded with some.
    pub fn kernels(&self) -> Kernels {
        self.weights.kernels.clone()
    }

    /// Takes a floating-point tensor of exactly `shape`, converted to the device's compute type.
    pub fn take(&mut self, name: &str, shape: &[i32]) -> Result<Array, LmError> {
        let dtype = self.weights.compute_dtype;
        self.weights.read(&format!("{}.{name}", self.path), shape, dtype)
    }

    /// As [`Layer::take`], of a tensor that files have in one of several shapes with the same
    /// numbers; returns it in the first.
    pub fn take_as(&mut self, name: &str, shapes: &[Vec<i32>]) -> Result<Array, LmError> {
        let found = self.weights.shape(&format!("{}.{name}", self.path));
        let is_found = |shape: &&Vec<i32>| {
            found.is_some_and(|found| {
                found.iter().map(|&length| length as i32).eq(shape.iter().copied())
            })
        };
        let stored = shapes.iter().find(is_found).or(shapes.first()).cloned().unwrap_or_default();
        let array = self.take(name, &stored)?;
        Ok(array.reshape(shapes.first().unwrap_or(&stored))?)
    }

    /// How this layer is quantized; `None` if its weight is dense. The tensors in the file decide,
    /// because config.json may have settings for layers that were not quantized.
    pub fn quantization(&self) -> Result<Option<Quantization>, LmError> {
        let scales = format!("{}.scales", self.path);
        if !self.weights.remaining.contains_key(&scales) {
            return Ok(None);
        }
        self.weights.quantization.of_packed(&self.path).map(Some)
    }

    /// Whether quantized weights stay quantized in memory.
    pub fn keeps_quantized(&self) -> bool {
        self.weights.keep_quantized
    }

    /// Takes `weight` `[outputs, inputs * bits / 32]` (u32), `scales` and, in affine mode, `biases`
    /// `[outputs, inputs / group_size]`.
    pub fn take_quantized(
        &mut self,
        inputs: i32,
        outputs: i32,
        settings: Quantization,
    ) -> Result<(Array, Array, Option<Array>), LmError> {
        self.take_packed(&[outputs], inputs, settings)
    }

    /// As [`Layer::take_quantized`], for matrices of `num_experts` stacked along a new first axis.
    pub fn take_quantized_experts(
        &mut self,
        num_experts: i32,
        inputs: i32,
        outputs: i32,
        settings: Quantization,
    ) -> Result<(Array, Array, Option<Array>), LmError> {
        self.take_packed(&[num_experts, outputs], inputs, settings)
    }

    fn take_packed(
        &mut self,
        rows: &[i32],
        inputs: i32,
        settings: Quantization,
    ) -> Result<(Array, Array, Option<Array>), LmError> {
        let shape = |columns: i32| [rows, &[columns]].concat();
        // A group of 32 or more fills whole u32 for any bits.
        check_groups(&self.path, inputs, settings.group_size)?;
        let groups = shape(inputs / settings.group_size);
        let weight = format!("{}.weight", self.path);
        let weight = self.weights.read(&weight, &shape(inputs * settings.bits / 32), None)?;
        let scales = self.take("scales", &groups)?;
        let has_biases = settings.mode.has_biases();
        Ok((weight, scales, has_biases.then(|| self.take("biases", &groups)).transpose()?))
    }

    /// Whether the files hold the tensor `name` of this layer.
    pub fn holds(&self, name: &str) -> bool {
        self.weights.remaining.contains_key(&format!("{}.{name}", self.path))
    }

    /// Dequantizes a matrix to `[outputs, inputs]` (experts: `[num_experts, outputs, inputs]`), with
    /// pauses if it is large.
    pub fn dequantize(
        &self,
        weight: &Array,
        scales: &Array,
        biases: Option<&Array>,
        settings: Quantization,
    ) -> Result<Array, LmError> {
        let all = QuantizedRows { packed: weight, scales, biases, settings };
        let mut shape = weight.shape().to_vec();
        let Some(columns) = shape.last_mut() else { return Ok(weight.clone()) };
        *columns = all.num_inputs();
        let columns = *columns;
        let row_bytes = columns as usize * item_size(all.dtype());
        let num_rows = shape.iter().product::<i32>() / columns.max(1);
        let num_bytes = num_rows as usize * row_bytes;
        if num_bytes <= self.weights.part_bytes {
            let dense = ffi::dequantize(all)?;
            dense.eval()?;
            return Ok(dense);
        }
        let mut dense = ffi::ArrayBuffer::zeros(&shape, all.dtype())?;
        let part = (self.weights.part_bytes / row_bytes).max(1);
        for first in (0..num_rows).step_by(part) {
            self.weights.pause()?;
            let stop = num_rows.min(first + part as i32);
            let rows = |array: &Array| -> Result<Array, LmError> {
                let all = array.reshape(&[num_rows, -1])?;
                Ok(ffi::slice(&all, &[first, 0], &[stop, all.dim(1)])?)
            };
            let (packed, scales) = (&rows(weight)?, &rows(scales)?);
            let biases = biases.map(rows).transpose()?;
            let part = QuantizedRows { packed, scales, biases: biases.as_ref(), settings };
            let rows = ffi::dequantize(part)?;
            let target = &mut dense.bytes_mut()[first as usize * row_bytes..][..rows.nbytes()];
            target.copy_from_slice(ffi::array_bytes(&rows)?);
        }
        Ok(dense.into_array()?)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use std::cell::RefCell;
    use std::ops::ControlFlow;
    use std::rc::Rc;

    use serde_json::json;

    use super::*;

    /// A folder whose weight file has zeros for tensors of these names, types and shapes.
    fn folder(tensors: &[(&str, &str, [usize; 2])]) -> tempfile::TempDir {
        let mut entries = serde_json::Map::new();
        let mut end = 0;
        for (name, dtype, [rows, columns]) in tensors {
            let start = end;
            end += rows * columns * if *dtype == "U32" { 4 } else { 2 };
            entries.insert(
                (*name).to_owned(),
                json!({ "dtype": dtype, "shape": [rows, columns], "data_offsets": [start, end] }),
            );
        }
        let header = json!(entries).to_string();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + end, 0);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        folder
    }

    #[test]
    fn groups_must_divide_the_inputs_of_a_quantized_matrix() {
        let check = |inputs: usize, expected: Result<(), &str>| {
            let folder = folder(&[
                ("fc.weight", "U32", [8, inputs / 8]),
                ("fc.scales", "F16", [8, inputs / 32]),
                ("fc.biases", "F16", [8, inputs / 32]),
            ]);
            let config = json!({ "quantization": { "group_size": 32, "bits": 4 } });
            let options = LoadOptions::new().keep_quantized(true);
            let mut weights =
                Weights::open(folder.path(), &config, options, OnPart::none()).unwrap();
            let mut layer = weights.layer("fc");
            let settings = layer.quantization().unwrap().unwrap();
            let taken = layer.take_quantized(inputs as i32, 8, settings).map(drop);
            match (taken, expected) {
                (Ok(()), Ok(())) => {}
                (Err(error), Err(named)) => {
                    assert!(error.to_string().contains(named), "{inputs}: {error}")
                }
                (found, expected) => panic!("{inputs}: {found:?} instead of {expected:?}"),
            }
        };
        check(64, Ok(()));
        // 40 inputs are one group and a quarter: the shapes agree, the last eight have no scale.
        check(40, Err("must divide the 40 inputs of 'fc'"));
    }

    /// The arrays of a quantized and a dense matrix, the second converted to 32 bits, and the progress
    /// at each pause; parts have at most so many bytes.
    fn read_in_parts(folder: &Path, part_bytes: usize) -> (Vec<Array>, Vec<LoadProgress>) {
        let pauses = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&pauses);
        let on_part = OnPart::new(move |progress| {
            seen.borrow_mut().push(progress);
            ControlFlow::Continue(())
        });
        let config = json!({ "quantization": { "group_size": 32, "bits": 4 } });
        let options = LoadOptions::new();
        let mut weights = Weights::open(folder, &config, options, on_part).unwrap();
        weights.part_bytes = part_bytes;
        weights.compute_dtype = Some(Dtype::Float32);
        weights.ignore(|name| name == "unused");
        let mut layer = weights.layer("fc");
        let settings = layer.quantization().unwrap().unwrap();
        let (weight, scales, biases) = layer.take_quantized(64, 24, settings).unwrap();
        let dequantized = layer.dequantize(&weight, &scales, biases.as_ref(), settings).unwrap();
        let dense = weights.layer("dense").take("weight", &[30, 7]).unwrap();
        assert_eq!((dequantized.dtype(), dense.dtype()), (Dtype::Float32, Dtype::Float32));
        weights.finish("a test").unwrap();
        let packed = [weight, scales].into_iter().chain(biases);
        (packed.chain([dequantized, dense]).collect(), pauses.take())
    }

    #[test]
    fn a_large_tensor_is_read_in_parts_and_is_the_same() {
        let folder = folder(&[
            ("dense.weight", "BF16", [30, 7]),
            ("fc.biases", "F16", [24, 2]),
            ("fc.scales", "F16", [24, 2]),
            ("fc.weight", "U32", [24, 8]),
            ("unused", "F16", [9, 9]),
        ]);
        fill(&folder.path().join("model.safetensors"));
        let (whole, pauses) = read_in_parts(folder.path(), 1 << 20);
        assert_eq!(pauses.len(), 4, "one before each tensor");
        let total_bytes = 30 * 7 * 2 + 2 * 24 * 2 * 2 + 24 * 8 * 4;
        for part_bytes in [1, 50, 256] {
            let (parts, pauses) = read_in_parts(folder.path(), part_bytes);
            for (part, whole) in parts.iter().zip(&whole) {
                assert_eq!(part.shape(), whole.shape());
                let bytes = ffi::array_bytes(part).unwrap();
                assert_eq!(bytes, ffi::array_bytes(whole).unwrap(), "{part_bytes}");
            }
            // A number is the least that is read at once.
            let most = part_bytes.max(4) as u64;
            let ends = pauses.iter().skip(1).map(|pause| pause.bytes_read).chain([total_bytes]);
            for (pause, end) in pauses.iter().zip(ends) {
                assert_eq!(pause.total_bytes, total_bytes);
                assert!(end - pause.bytes_read <= most, "{part_bytes}: {pause:?} to {end}");
            }
        }
    }

    /// Replaces the zeros of a weight file by other finite numbers.
    fn fill(path: &Path) {
        let mut bytes = std::fs::read(path).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        for (index, byte) in bytes[8 + header..].iter_mut().enumerate() {
            // No exponent has all bits set.
            *byte = (index * 37 % 256) as u8 & 0xbb;
        }
        std::fs::write(path, bytes).unwrap();
    }
}
