//! What a model takes in memory, from the headers of its folder: no weight is read.
//!
//! Weights and keys and values are exact; what a forward pass needs besides is an upper bound,
//! which `tests/model_memory.rs` compares with MLX's counters.

use std::collections::HashMap;
use std::path::Path;

use cairn_formats::safetensors::{self, SafetensorsFile, TensorEntry, check_weight_files};
use serde_json::Value;

use crate::LmError;
use crate::cache::CacheSpec;
use crate::config::{ConfigFile, Quantization, QuantizationConfig};
use crate::device::ComputeDevice;
use crate::models::{self, Outline, Scratch};
use crate::weights::LoadOptions;

/// The memory of a model on this device.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelMemory {
    /// config.json's `model_type`.
    pub model_type: String,
    /// The numbers that were trained, however they are stored.
    pub num_parameters: u64,
    /// Bytes of the weights in memory.
    pub weight_bytes: u64,
    /// The most tokens of one conversation.
    pub context_length: usize,
    /// Bits and group size of most weights, where they are quantized.
    pub quantization: Option<(i32, i32)>,
    cache: CacheSpec,
    /// Bytes of a number that is computed.
    float_bytes: u64,
    scratch: Scratch,
}

/// What MLX and constants of a network need, however small a model is.
const FIXED_BYTES: u64 = 64 << 10;
/// How many rows over the vocabulary live at once for each sequence: logits, log-probabilities,
/// a sampler's sorted copies and indices.
const LIVE_LOGITS: u64 = 8;
/// Percent by which results are estimated above what was measured: how far MLX allocates ahead of
/// the operation that runs depends on the machine.
const MARGIN_PERCENT: u64 = 5;

impl ModelMemory {
    /// Reads config.json and the headers of the weight files in `folder`. Fails, as loading the
    /// model does, on an architecture or a setting that is not supported.
    pub fn read(folder: &Path, options: LoadOptions) -> Result<Self, LmError> {
        let config = ConfigFile::read(folder)?.value;
        let Outline { cache, context_length, is_tied, scratch } = models::outline(folder, &config)?;
        let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
        let mut memory = ModelMemory {
            model_type: model_type.to_owned(),
            num_parameters: 0,
            weight_bytes: config.get("declared_weight_bytes").and_then(Value::as_u64).unwrap_or(0),
            context_length,
            quantization: None,
            cache,
            float_bytes: 4,
            scratch,
        };
        // A scripted model has no weight files.
        if model_type == "scripted" {
            return Ok(memory);
        }
        let files = check_weight_files(folder)?;
        let quantization = QuantizationConfig::parse(&config)?;
        let stored = StoredWeights::new(&files, &quantization, is_tied);
        let device = ComputeDevice::current();
        let keep_quantized = options.keep_quantized || device == ComputeDevice::Gpu;
        memory.num_parameters = stored.num_parameters();
        memory.weight_bytes = stored.bytes_in_memory(device, keep_quantized);
        memory.quantization =
            quantization.common().map(|settings| (settings.bits, settings.group_size));
        if device.compute_dtype().is_none() {
            memory.float_bytes = stored.float_bytes();
        }
        Ok(memory)
    }

    /// How many layers the model has.
    pub fn num_layers(&self) -> usize {
        self.cache.layers().len()
    }

    /// Bytes that one more token of a conversation takes, as long as it is within every window.
    pub fn kv_bytes_per_token(&self) -> u64 {
        self.cache.num_bytes_per_token(self.float_bytes)
    }

    /// Bytes of the caches of a conversation of so many tokens, see [`CacheSpec::num_bytes`].
    pub fn kv_bytes(&self, num_tokens: usize) -> u64 {
        self.cache.num_bytes(num_tokens, self.float_bytes)
    }

    /// An upper bound of the bytes in use while `num_rows` conversations of at most `num_tokens`
    /// are read in steps of `step_size`, the weights included.
    pub fn peak_bytes(&self, num_tokens: usize, num_rows: usize, step_size: usize) -> u64 {
        let rows = num_rows as u64;
        let step = step_size.clamp(1, num_tokens.max(1));
        let last = num_tokens % step;
        let reading = self.cache.num_bytes_while_reading(num_tokens, step, self.float_bytes);
        // Buffers that grow are copied layer by layer; rows that join a batch are copied whole.
        let copied = match num_rows {
            0 | 1 => self.cache.num_bytes_of_largest(num_tokens, self.float_bytes),
            _ => rows * self.kv_bytes(num_tokens),
        };
        // The last step may be shorter, but attends to more tokens.
        let results = self.results(num_tokens - last, step).max(self.results(num_tokens, last));
        let logits = rows * self.scratch.vocab * LIVE_LOGITS * 4;
        let scratch = (copied + results * (100 + MARGIN_PERCENT) / 100).max(logits);
        self.weight_bytes + rows * reading + scratch + FIXED_BYTES
    }

    /// Bytes of intermediate results during a pass over the last `length` of `num_tokens`.
    fn results(&self, num_tokens: usize, length: usize) -> u64 {
        let keys = self.cache.num_keys_while_reading(num_tokens, length);
        let Scratch { numbers_per_token, recurrent_per_token, numbers, heads, .. } = self.scratch;
        let per_token = match ComputeDevice::current() {
            // A number for each head and key, and a byte for each key in the mask. Layers of one kind
            // have freed their results when one of the other kind needs most.
            ComputeDevice::Cpu => ((numbers_per_token + heads * keys) * self.float_bytes + keys)
                .max(recurrent_per_token * self.float_bytes),
            // Attention has a fused kernel there. The numbers were measured on a CPU: another device
            // may run further behind.
            ComputeDevice::Gpu => 2 * numbers_per_token.max(recurrent_per_token) * self.float_bytes,
        };
        length as u64 * per_token + numbers * self.float_bytes
    }
}

/// The tensors of a folder that its architecture takes.
struct StoredWeights<'a> {
    tensors: Vec<&'a TensorEntry>,
    /// The settings of packed weights, by the path of their layer.
    packed: HashMap<&'a str, Quantization>,
}

impl<'a> StoredWeights<'a> {
    fn new(
        files: &'a [SafetensorsFile],
        quantization: &'a QuantizationConfig,
        is_tied: bool,
    ) -> Self {
        let is_ignored = |name: &str| {
            name.contains("mtp.")
                || name.ends_with("rotary_emb.inv_freq")
                || (is_tied && name.starts_with("lm_head."))
        };
        let all = files.iter().flat_map(|file| file.tensors());
        let tensors: Vec<_> = all.filter(|tensor| !is_ignored(&tensor.name)).collect();
        let packed = tensors
            .iter()
            .filter(|tensor| tensor.dtype == safetensors::Dtype::U32)
            .filter_map(|tensor| tensor.name.strip_suffix(".weight"))
            .filter_map(|path| Some((path, quantization.layer(path)?)))
            .collect();
        StoredWeights { tensors, packed }
    }

    /// The settings of a packed weight; none for any other tensor.
    fn packing(&self, tensor: &TensorEntry) -> Option<Quantization> {
        self.packed.get(tensor.name.strip_suffix(".weight")?).copied()
    }

    /// Whether a tensor is a scale or bias of a packed weight.
    fn belongs_to_packed(&self, tensor: &TensorEntry) -> bool {
        let name = tensor.name.as_str();
        let path = name.strip_suffix(".scales").or(name.strip_suffix(".biases"));
        path.is_some_and(|path| self.packed.contains_key(path))
    }

    fn num_parameters(&self) -> u64 {
        let of = |tensor: &&TensorEntry| match self.packing(tensor) {
            Some(settings) => num_elements(tensor) * 32 / settings.bits as u64,
            None if self.belongs_to_packed(tensor) => 0,
            None => num_elements(tensor),
        };
        self.tensors.iter().map(of).sum()
    }

    fn bytes_in_memory(&self, device: ComputeDevice, keep_quantized: bool) -> u64 {
        let converts = device.compute_dtype().is_some();
        let of = |tensor: &&TensorEntry| match self.packing(tensor) {
            Some(settings) if !keep_quantized => {
                num_elements(tensor) * 32 / settings.bits as u64 * 4
            }
            None if !keep_quantized && self.belongs_to_packed(tensor) => 0,
            None if converts && is_float(tensor.dtype) => num_elements(tensor) * 4,
            _ => tensor.bytes.end - tensor.bytes.start,
        };
        self.tensors.iter().map(of).sum()
    }

    /// Bytes of the floating-point numbers that the files hold most of.
    fn float_bytes(&self) -> u64 {
        let has_f32_only = self
            .tensors
            .iter()
            .filter(|tensor| is_float(tensor.dtype))
            .all(|tensor| tensor.dtype == safetensors::Dtype::F32);
        if has_f32_only { 4 } else { 2 }
    }
}

fn num_elements(tensor: &TensorEntry) -> u64 {
    tensor.shape.iter().map(|&length| length as u64).product()
}

fn is_float(dtype: safetensors::Dtype) -> bool {
    use safetensors::Dtype;
    matches!(dtype, Dtype::F16 | Dtype::Bf16 | Dtype::F32)
}
