//! The tensors of a model folder, addressed by prefix. Each is validated, read once, and checked
//! against the shape that the architecture asks for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use cairn_formats::safetensors::{self, SafetensorsFile, check_weight_files};
use mlx_rs::{Array, Dtype, ops};

use crate::LmError;
use crate::config::{Quantization, QuantizationConfig};
use crate::device::ComputeDevice;
use crate::device_kernels::Kernels;
use crate::ffi;

/// How weights are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadOptions {
    /// Keeps quantized weights quantized on a CPU device too. By default they are dequantized
    /// there, which computes many times faster but needs more memory.
    pub keep_quantized: bool,
}

/// Asked before each tensor whether the load is to end there.
#[derive(Clone)]
pub(crate) struct CancelCheck(pub(crate) Rc<dyn Fn() -> bool>);

impl std::fmt::Debug for CancelCheck {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("CancelCheck")
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

/// The tensors of a model folder that have not been taken yet.
#[derive(Debug)]
pub struct Weights {
    folder: PathBuf,
    files: Vec<SafetensorsFile>,
    remaining: BTreeMap<String, usize>, // name → index into files
    quantization: QuantizationConfig,
    compute_dtype: Option<Dtype>,
    keep_quantized: bool,
    num_bytes: u64,
    is_cancelled: CancelCheck,
    /// The kernels that the layers are loaded with.
    pub(crate) kernels: Kernels,
}

impl Weights {
    /// Validates the headers of the weight files in `folder`; no tensor is read yet. Layers are
    /// loaded without kernels unless `kernels` is set.
    pub fn open(
        folder: &Path,
        config: &serde_json::Value,
        options: LoadOptions,
        is_cancelled: CancelCheck,
    ) -> Result<Self, LmError> {
        let files = check_weight_files(folder)?;
        let mut remaining = BTreeMap::new();
        for (index, file) in files.iter().enumerate() {
            remaining.extend(file.tensors().iter().map(|tensor| (tensor.name.clone(), index)));
        }
        let device = ComputeDevice::current();
        Ok(Weights {
            folder: folder.to_owned(),
            files,
            remaining,
            quantization: QuantizationConfig::parse(config)?,
            compute_dtype: device.compute_dtype(),
            keep_quantized: options.keep_quantized || device == ComputeDevice::Gpu,
            num_bytes: 0,
            is_cancelled,
            kernels: None,
        })
    }

    /// The tensors whose names begin with `path` and a dot.
    pub fn layer(&mut self, path: impl Into<String>) -> Layer<'_> {
        Layer { weights: self, path: path.into() }
    }

    /// Whether the tensor `name` is there and has not been taken.
    pub fn contains(&self, name: &str) -> bool {
        self.remaining.contains_key(name)
    }

    /// Drops tensors that the architecture knows but does not need.
    pub fn ignore(&mut self, is_known: impl Fn(&str) -> bool) {
        self.remaining.retain(|name, _| !is_known(name));
    }

    /// Returns what was read. Fails if a tensor has not been taken, which means that the files belong
    /// to another architecture.
    pub fn finish(self, model_type: &str) -> Result<LoadedWeights, LmError> {
        match self.remaining.keys().next() {
            None => Ok(LoadedWeights { num_bytes: self.num_bytes, files: self.files }),
            Some(first) => Err(LmError::UnusedWeights {
                model_type: model_type.to_owned(),
                count: self.remaining.len(),
                first: first.clone(),
            }),
        }
    }

    fn read(&mut self, name: &str) -> Result<Array, LmError> {
        if (self.is_cancelled.0)() {
            return Err(LmError::Cancelled);
        }
        let Some(index) = self.remaining.remove(name) else {
            return Err(LmError::MissingWeight {
                folder: self.folder.clone(),
                name: name.to_owned(),
            });
        };
        let file = &self.files[index];
        let Some(tensor) = file.tensor(name) else {
            return Err(LmError::MissingWeight {
                folder: self.folder.clone(),
                name: name.to_owned(),
            });
        };
        // No overflow: the header check limits every length to less than 2^31.
        let shape: Vec<i32> = tensor.shape.iter().map(|&length| length as i32).collect();
        let array =
            ffi::array_from_bytes(&file.read_tensor(name)?, &shape, mlx_dtype(tensor.dtype))?;
        self.num_bytes += array.nbytes() as u64;
        Ok(array)
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
        let array = self.take_exact(name, shape)?;
        match self.weights.compute_dtype {
            // Evaluated at once, so that the unconverted copy is freed before the next tensor is
            // read.
            Some(dtype) if is_float(array.dtype()) => {
                let array = array.as_dtype(dtype)?;
                array.eval()?;
                Ok(array)
            }
            _ => Ok(array),
        }
    }

    /// How this layer is quantized; `None` if its weight is dense. The tensors in the file decide,
    /// because config.json may have settings for layers that were not quantized.
    pub fn quantization(&self) -> Result<Option<Quantization>, LmError> {
        let scales = format!("{}.scales", self.path);
        if !self.weights.remaining.contains_key(&scales) {
            return Ok(None);
        }
        match self.weights.quantization.layer(&self.path) {
            Some(settings) => Ok(Some(settings)),
            None => Err(LmError::Config {
                name: "quantization",
                value: "none".to_owned(),
                allowed: format!(
                    "the weight files hold '{scales}', so it must give this layer's group_size and bits"
                ),
            }),
        }
    }

    /// Whether quantized weights stay quantized in memory.
    pub fn keeps_quantized(&self) -> bool {
        self.weights.keep_quantized
    }

    /// Takes `weight` `[outputs, inputs * bits / 32]` (u32), `scales` and `biases` `[outputs,
    /// inputs / group_size]`.
    pub fn take_quantized(
        &mut self,
        inputs: i32,
        outputs: i32,
        settings: Quantization,
    ) -> Result<(Array, Array, Array), LmError> {
        self.take_packed(&[outputs], inputs, settings)
    }

    /// As [`Layer::take_quantized`], for matrices of `num_experts` stacked along a new first axis.
    pub fn take_quantized_experts(
        &mut self,
        num_experts: i32,
        inputs: i32,
        outputs: i32,
        settings: Quantization,
    ) -> Result<(Array, Array, Array), LmError> {
        self.take_packed(&[num_experts, outputs], inputs, settings)
    }

    fn take_packed(
        &mut self,
        rows: &[i32],
        inputs: i32,
        settings: Quantization,
    ) -> Result<(Array, Array, Array), LmError> {
        let shape = |columns: i32| [rows, &[columns]].concat();
        // MLX packs whole groups only; a group of 32 or more fills whole u32 for any bits.
        if inputs % settings.group_size != 0 {
            return Err(LmError::Config {
                name: "quantization",
                value: format!("group_size {}", settings.group_size),
                allowed: format!("it must divide the {inputs} inputs of '{}'", self.path),
            });
        }
        let groups = shape(inputs / settings.group_size);
        let weight = self.take_exact("weight", &shape(inputs * settings.bits / 32))?;
        Ok((weight, self.take("scales", &groups)?, self.take("biases", &groups)?))
    }

    /// Whether the files hold the tensor `name` of this layer.
    pub fn holds(&self, name: &str) -> bool {
        self.weights.remaining.contains_key(&format!("{}.{name}", self.path))
    }

    /// Dequantizes a matrix to `[outputs, inputs]` (experts: `[num_experts, outputs, inputs]`).
    pub fn dequantize(
        &self,
        weight: &Array,
        scales: &Array,
        biases: &Array,
        settings: Quantization,
    ) -> Result<Array, LmError> {
        let dense = ops::dequantize(weight, scales, biases, settings.group_size, settings.bits)?;
        dense.eval()?;
        Ok(dense)
    }

    fn take_exact(&mut self, name: &str, shape: &[i32]) -> Result<Array, LmError> {
        let name = format!("{}.{name}", self.path);
        let array = self.weights.read(&name)?;
        if array.shape() != shape {
            return Err(LmError::WrongShape {
                name,
                found: array.shape().to_vec(),
                expected: shape.to_vec(),
            });
        }
        Ok(array)
    }
}

fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Float16 | Dtype::Bfloat16 | Dtype::Float32)
}

/// The MLX dtype of a file's dtype.
pub(crate) fn mlx_dtype(dtype: safetensors::Dtype) -> Dtype {
    use safetensors::Dtype as File;
    match dtype {
        File::Bool => Dtype::Bool,
        File::U8 => Dtype::Uint8,
        File::I8 => Dtype::Int8,
        File::U16 => Dtype::Uint16,
        File::I16 => Dtype::Int16,
        File::F16 => Dtype::Float16,
        File::Bf16 => Dtype::Bfloat16,
        File::U32 => Dtype::Uint32,
        File::I32 => Dtype::Int32,
        File::F32 => Dtype::Float32,
        File::U64 => Dtype::Uint64,
        File::I64 => Dtype::Int64,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
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
            let options = LoadOptions { keep_quantized: true };
            let mut weights =
                Weights::open(folder.path(), &config, options, CancelCheck(Rc::new(|| false)))
                    .unwrap();
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
}
