//! What a model takes in memory, from the headers of its folder: no weight is read.
//!
//! Weights and keys and values are exact; what a forward pass needs besides is an upper bound,
//! which `tests/model_memory.rs` compares with MLX's counters.

use std::collections::HashMap;
use std::path::Path;

use cairn_formats::safetensors::{self, SafetensorsFile, TensorEntry};
use mlx_rs::Dtype;
use serde_json::Value;

use crate::LmError;
use crate::cache::{CacheSpec, KvQuantization, LayerCacheSpec};
use crate::config::{ConfigFile, Quantization, QuantizationConfig};
use crate::device::ComputeDevice;
use crate::models::{self, Outline, Scratch};
use crate::nn::MOST_STORED_SCORES;
use crate::nn::exponential::{MAX_SIZE, is_composed};
use crate::published::ModelTensors;
use crate::tensor_list::TensorList;
use crate::text_part;
use crate::weights::LoadOptions;

/// The memory of a model on this device.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelMemory {
    /// config.json's `model_type`.
    pub model_type: String,
    /// The numbers that were trained, however they are stored.
    pub num_parameters: u64,
    /// Bytes of the weights in memory, with those of a head that predicts further tokens where the
    /// files are here.
    pub weight_bytes: u64,
    /// The most tokens of one conversation.
    pub context_length: usize,
    /// Bits and group size of most weights, where they are quantized.
    pub quantization: Option<(i32, i32)>,
    /// Whether [`LoadOptions::bf16_state`] makes a difference.
    pub takes_bf16_state: bool,
    num_layers: usize,
    cache: CacheSpec,
    /// Bytes of a number that is computed.
    float_bytes: u64,
    scratch: Scratch,
    /// Where the model computes.
    device: ComputeDevice,
}

/// Several rows that are read at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassSizes {
    /// How many they are.
    pub num_rows: usize,
    /// How many tokens were read of each.
    pub num_before: usize,
    /// How many are read of each, padding included.
    pub num_new: usize,
    /// Whether all continue the same tokens, which are held once.
    pub shares: bool,
    /// After how many tokens of all rows logits are computed.
    pub num_logits: usize,
}

/// Rows that share tokens hold their own in buffers that grow by so many.
const OWN_STEP: u64 = 32;
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
        let outline = models::outline(folder, &config)?.with_options(options);
        // A scripted model has no weight files.
        if is_scripted(&config) {
            return Ok(ModelMemory::without_weights(&config, outline, ComputeDevice::current()));
        }
        let tensors = ModelTensors::open(folder, &config)?;
        let outline = outline.with_tensors(&tensors);
        ModelMemory::of_tensors(folder, &config, outline, &tensors, options)
    }

    /// As [`ModelMemory::read`], of files that are open.
    pub(crate) fn of_tensors(
        folder: &Path,
        config: &Value,
        outline: Outline,
        tensors: &ModelTensors,
        options: LoadOptions,
    ) -> Result<Self, LmError> {
        let device = ComputeDevice::current();
        let quantization = QuantizationConfig::parse(config)?;
        let stored = StoredWeights::new(tensors, &quantization, &outline);
        let keep_quantized = options.keep_quantized || device == ComputeDevice::Gpu;
        // One that cannot be opened is not loaded either.
        let beside = models::mtp_file(folder).ok().flatten().filter(|_| outline.takes_mtp_head);
        let entries = tensors.entries().chain(beside.iter().flat_map(SafetensorsFile::tensors));
        let head = StoredWeights::of_head(entries, &quantization, &outline);
        let mut memory = ModelMemory::without_weights(config, outline, device);
        memory.num_parameters = stored.num_parameters();
        memory.weight_bytes = stored.bytes_in_memory(device, keep_quantized)
            + head.bytes_in_memory(device, keep_quantized);
        memory.quantization = quantization.common().map(bits_and_group_size);
        if device.compute_dtype().is_none() {
            memory.float_bytes = stored.float_bytes();
        }
        Ok(memory)
    }

    /// The memory on this device of a model that is not here yet, from what its config.json contains
    /// and the length of all its weight files together. Quantized weights are dequantized on a CPU,
    /// as loading does by default.
    ///
    /// The parameters follow from the config's sizes and are exact. On a CPU so are the weights. On a
    /// GPU they are the files' length, which is more than the weights by the files' headers and by
    /// tensors that the architecture does not take; both are less than one percent of most models.
    /// Keys and values are exact where the config names the type of the weights; otherwise that type
    /// is the one with which the weights come closest to the files' length.
    pub fn before_download(config: &Value, weight_file_bytes: u64) -> Result<Self, LmError> {
        ModelMemory::before_download_on(ComputeDevice::current(), config, weight_file_bytes)
    }

    /// As [`ModelMemory::before_download`], for any device.
    pub fn before_download_on(
        device: ComputeDevice,
        config: &Value,
        weight_file_bytes: u64,
    ) -> Result<Self, LmError> {
        let config = &text_part::config(config.clone());
        // Errors then name "config.json".
        let outline = models::outline(Path::new(""), config)?;
        let tensors = outline.tensors.clone();
        let mut memory = ModelMemory::without_weights(config, outline, device);
        if is_scripted(config) {
            return Ok(memory);
        }
        let quantization = QuantizationConfig::parse(config)?;
        let (float_bytes, has_optional) =
            closest(&tensors, &quantization, named_float_bytes(config), weight_file_bytes);
        memory.num_parameters = tensors.num_parameters(has_optional);
        memory.quantization = quantization.common().map(bits_and_group_size);
        match device {
            ComputeDevice::Cpu => memory.weight_bytes = memory.num_parameters.saturating_mul(4),
            ComputeDevice::Gpu => {
                memory.weight_bytes = weight_file_bytes;
                memory.float_bytes = float_bytes;
            }
        }
        Ok(memory)
    }

    fn without_weights(config: &Value, outline: Outline, device: ComputeDevice) -> Self {
        let Outline { cache, bf16_state_cache, context_length, scratch, tensors, .. } = outline;
        let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
        ModelMemory {
            model_type: model_type.to_owned(),
            num_parameters: 0,
            weight_bytes: config.get("declared_weight_bytes").and_then(Value::as_u64).unwrap_or(0),
            context_length,
            quantization: None,
            takes_bf16_state: bf16_state_cache.is_some(),
            num_layers: tensors.num_layers().max(cache.layers().len()),
            cache,
            float_bytes: 4,
            scratch,
            device,
        }
    }

    /// The size of the groups in which its keys and values can be quantized, see
    /// [`CacheSpec::kv_group_size`].
    pub fn kv_group_size(&self) -> Option<i32> {
        self.cache.kv_group_size()
    }

    /// The same with keys and values that are quantized. Fails on settings that are invalid for
    /// every model.
    pub fn quantized(&self, quantization: &KvQuantization) -> Result<Self, LmError> {
        Ok(ModelMemory { cache: self.cache.quantized(quantization)?, ..self.clone() })
    }

    /// How many layers the model has. Some may have no cache of their own.
    pub fn num_layers(&self) -> usize {
        self.num_layers
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
        let results = |num_tokens, length| self.results(num_tokens, length, MOST_STORED_SCORES);
        let results = results(num_tokens - last, step).max(results(num_tokens, last));
        let logits = rows * self.scratch.vocab * LIVE_LOGITS * 4;
        let scratch = (copied + results * (100 + MARGIN_PERCENT) / 100).max(logits);
        self.weight_bytes + rows * reading + scratch + FIXED_BYTES
    }

    /// An upper bound of the bytes that a pass over several rows takes beside the weights and what
    /// was read before it, which stays as it is.
    pub fn pass_bytes(&self, pass: &PassSizes) -> u64 {
        let PassSizes { num_rows, num_before, num_new, shares, num_logits } = *pass;
        let (rows, num_tokens) = (num_rows as u64, num_before + num_new);
        let caches = match shares {
            // Rows hold states, and keys and values of their own tokens.
            true => {
                let own = (num_new as u64).next_multiple_of(OWN_STEP) * self.kv_bytes_per_token();
                rows * (own + self.cache.num_state_bytes(self.float_bytes))
            }
            false => rows * self.kv_bytes(num_tokens),
        };
        // Rows that join others, and those that end before them, are copied.
        // The scores over tokens that rows share are stored all at once.
        let most_scores = if shares { u64::MAX } else { MOST_STORED_SCORES };
        let results = self.results(num_tokens, num_new, most_scores) * (100 + MARGIN_PERCENT) / 100;
        let logits = num_logits as u64 * self.scratch.vocab * LIVE_LOGITS * 4;
        2 * caches + (2 * rows * results).max(logits) + FIXED_BYTES
    }

    /// Whether some layers attend to the last tokens only.
    fn has_window(&self) -> bool {
        let is_window = |layer: &LayerCacheSpec| matches!(layer, LayerCacheSpec::Rotating(_));
        self.cache.layers().iter().any(is_window)
    }

    /// Bytes of intermediate results during a pass over the last `length` of `num_tokens`, in which an
    /// array of scores has at most so many.
    fn results(&self, num_tokens: usize, length: usize, most_scores: u64) -> u64 {
        let keys = self.cache.num_keys_while_reading(num_tokens, length);
        let Scratch { numbers_per_token, recurrent_per_token, fixed_numbers, heads, .. } =
            self.scratch;
        let of_keys = keys * self.scratch.numbers_per_key * self.float_bytes;
        let length = length as u64;
        // A single query is not divided.
        let in_array = (length * heads * keys).min(most_scores.max(heads * keys));
        let scores = self.scratch.score_arrays * in_array * self.float_bytes;
        let fixed = fixed_numbers * self.float_bytes;
        match self.device {
            // A number for each head and key, and a byte for each key in the mask; the mask of a window
            // is made of another, over the tokens that are read at once. Layers of one kind
            // have freed their results when one of the other kind needs most, and attention its
            // scores when gates are computed.
            ComputeDevice::Cpu => {
                let window_mask = if self.has_window() { length * length.min(keys) } else { 0 };
                let scores = scores + length * keys + window_mask;
                let num_gates = length * numbers_per_token / GATED;
                let attending = length * numbers_per_token * self.float_bytes
                    + scores.max(exponential_bytes(num_gates));
                attending.max(length * recurrent_per_token * self.float_bytes) + of_keys + fixed
            }
            // Attention to most dense keys has a fused kernel there. The numbers were measured on a
            // CPU: another device may run further behind.
            ComputeDevice::Gpu => {
                let stores = self.scratch.stores_scores || self.cache.quantization().is_some();
                let scores = if stores { 2 * scores } else { 0 };
                2 * length * numbers_per_token.max(recurrent_per_token) * self.float_bytes
                    + scores
                    + 2 * of_keys
                    + fixed
            }
        }
    }
}

/// Of the numbers of a token that live at once in a layer, less than one in so many are of the array
/// whose sigmoids are computed.
const GATED: u64 = 5;
/// Arrays that live at once while exponentials are computed on a CPU.
const EXPONENTIAL_ARRAYS: u64 = 6;

/// What the exponentials of so many f32 take on a CPU beside them. They are computed in parts.
fn exponential_bytes(count: u64) -> u64 {
    let is_composed = is_composed(count as usize, Dtype::Float32);
    if is_composed { EXPONENTIAL_ARRAYS * 4 * count.min(MAX_SIZE as u64) } else { 0 }
}

pub(crate) fn is_scripted(config: &Value) -> bool {
    config.get("model_type").and_then(Value::as_str) == Some("scripted")
}

fn bits_and_group_size(settings: Quantization) -> (i32, i32) {
    (settings.bits, settings.group_size)
}

/// Bytes of the floating-point numbers of the weight files, if config.json names their type.
fn named_float_bytes(config: &Value) -> Option<u64> {
    match config.get("dtype").or_else(|| config.get("torch_dtype"))?.as_str()? {
        "float32" => Some(4),
        "float16" | "bfloat16" => Some(2),
        _ => None,
    }
}

/// Bytes of a floating-point number, unless they are known, and whether files of this length hold
/// the tensors that files may lack: what comes closest to that length.
fn closest(
    tensors: &TensorList,
    quantization: &QuantizationConfig,
    float_bytes: Option<u64>,
    weight_file_bytes: u64,
) -> (u64, bool) {
    let sizes = float_bytes.map_or(vec![2, 4], |known| vec![known]);
    let guesses = sizes.iter().flat_map(|&size| [(size, false), (size, true)]);
    let distance = |&(size, with_optional): &(u64, bool)| {
        tensors.stored_bytes(quantization, size, with_optional).abs_diff(weight_file_bytes)
    };
    // Of equally close ones the first: without an optional tensor, both are the same.
    guesses.min_by_key(distance).unwrap_or((2, false))
}

/// Whether loading drops a tensor of this name, which its architecture does not take.
pub(crate) fn is_ignored(name: &str, outline: &Outline) -> bool {
    name.contains("mtp.")
        || name.contains("mtp_")
        || name.ends_with("rotary_emb.inv_freq")
        || (outline.is_tied && name.starts_with("lm_head."))
        || outline.tensors.leaves(name)
}

/// The tensors of a folder that its architecture takes.
struct StoredWeights<'a> {
    tensors: Vec<&'a TensorEntry>,
    /// The settings of packed weights, by the path of their layer.
    packed: HashMap<&'a str, Quantization>,
}

impl<'a> StoredWeights<'a> {
    fn new(
        tensors: &'a ModelTensors,
        quantization: &'a QuantizationConfig,
        outline: &Outline,
    ) -> Self {
        let all = tensors.entries();
        let taken = all.filter(|tensor| !is_ignored(&tensor.name, outline)).collect();
        StoredWeights::with_packed(taken, quantization)
    }

    /// A head that predicts further tokens, if there is one and the architecture takes it.
    fn of_head(
        all: impl Iterator<Item = &'a TensorEntry>,
        quantization: &'a QuantizationConfig,
        outline: &Outline,
    ) -> Self {
        let head: Vec<_> = all.filter(|tensor| tensor.name.starts_with("mtp.")).collect();
        let holds = |name: &str| head.iter().any(|tensor| tensor.name == name);
        let is_there = outline.takes_mtp_head && models::MTP_SIGNS.into_iter().all(holds);
        StoredWeights::with_packed(if is_there { head } else { Vec::new() }, quantization)
    }

    fn with_packed(tensors: Vec<&'a TensorEntry>, quantization: &'a QuantizationConfig) -> Self {
        let packed = tensors
            .iter()
            .filter_map(|tensor| packed_path(tensor))
            .filter_map(|path| Some((path, quantization.layer(path)?)))
            .collect();
        StoredWeights { tensors, packed }
    }

    /// The settings of a packed weight; none for any other tensor.
    fn packing(&self, tensor: &TensorEntry) -> Option<Quantization> {
        self.packed.get(packed_path(tensor)?).copied()
    }

    /// Whether a tensor is a scale or bias of a packed weight.
    fn belongs_to_packed(&self, tensor: &TensorEntry) -> bool {
        let name = tensor.name.as_str();
        let ends = [".scales", ".biases", "_scales"];
        let path = ends.into_iter().find_map(|end| name.strip_suffix(end));
        path.is_some_and(|path| self.packed.contains_key(path))
    }

    fn num_parameters(&self) -> u64 {
        let of = |tensor: &&TensorEntry| match self.packing(tensor) {
            Some(settings) => num_packed(tensor, settings),
            None if self.belongs_to_packed(tensor) => 0,
            None => num_elements(tensor),
        };
        self.tensors.iter().map(of).sum()
    }

    fn bytes_in_memory(&self, device: ComputeDevice, keep_quantized: bool) -> u64 {
        let converts = device.compute_dtype().is_some();
        let of = |tensor: &&TensorEntry| match self.packing(tensor) {
            Some(settings) if !keep_quantized => num_packed(tensor, settings) * 4,
            None if !keep_quantized && self.belongs_to_packed(tensor) => 0,
            None if converts && is_float(tensor.dtype) => num_elements(tensor) * 4,
            _ => tensor.bytes.end - tensor.bytes.start,
        };
        self.tensors.iter().map(of).sum()
    }

    /// Bytes of a number where the device computes in the type of the files: 4 if all of their
    /// floating-point numbers are f32, else 2.
    fn float_bytes(&self) -> u64 {
        let has_f32_only = self
            .tensors
            .iter()
            .filter(|tensor| is_float(tensor.dtype))
            .all(|tensor| tensor.dtype == safetensors::Dtype::F32);
        if has_f32_only { 4 } else { 2 }
    }
}

/// The layer of a packed weight, in words or in published blocks; `None` for other tensors.
fn packed_path(tensor: &TensorEntry) -> Option<&str> {
    match tensor.dtype {
        safetensors::Dtype::U32 => tensor.name.strip_suffix(".weight"),
        safetensors::Dtype::U8 => tensor.name.strip_suffix("_blocks"),
        _ => None,
    }
}

/// How many numbers a tensor holds that is packed.
fn num_packed(tensor: &TensorEntry, settings: Quantization) -> u64 {
    (tensor.bytes.end - tensor.bytes.start) * 8 / settings.bits as u64
}

fn num_elements(tensor: &TensorEntry) -> u64 {
    tensor.shape.iter().map(|&length| length as u64).product()
}

fn is_float(dtype: safetensors::Dtype) -> bool {
    use safetensors::Dtype;
    matches!(dtype, Dtype::F16 | Dtype::Bf16 | Dtype::F32)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    const OPTIONS: LoadOptions = LoadOptions::new();

    #[test]
    fn layers_that_share_a_cache_are_counted_too() {
        let folder = cairn_tiny_models::tiny_model("gemma4_text/dense");
        let memory = ModelMemory::read(&folder, OPTIONS).unwrap();
        assert_eq!((memory.num_layers(), memory.cache.layers().len()), (4, 2));
    }

    #[test]
    fn before_a_download_the_estimate_is_that_of_the_files() {
        for case in cairn_tiny_models::tiny_models() {
            let folder = cairn_tiny_models::tiny_model(&case);
            let config = ConfigFile::read(&folder).unwrap().value;
            let tensors = ModelTensors::open(&folder, &config).unwrap();
            // Of tiny files, headers are a large part, unlike of others.
            let file_bytes = tensors.files.iter().map(SafetensorsFile::data_bytes).sum();
            let read = ModelMemory::read(&folder, OPTIONS).unwrap();
            let before = ModelMemory::before_download(&config, file_bytes).unwrap();
            assert_eq!(before.num_parameters, read.num_parameters, "{case}");
            assert_eq!(before.kv_bytes_per_token(), read.kv_bytes_per_token(), "{case}");
            for num_tokens in [1, 100, 5000] {
                assert_eq!(before.kv_bytes(num_tokens), read.kv_bytes(num_tokens), "{case}");
            }
            assert_eq!(before.quantization, read.quantization, "{case}");
            assert_eq!(before.context_length, read.context_length, "{case}");
            let outline = models::outline(&folder, &config).unwrap();
            let quantization = QuantizationConfig::parse(&config).unwrap();
            let stored = StoredWeights::new(&tensors, &quantization, &outline);
            let on_gpu =
                ModelMemory::before_download_on(ComputeDevice::Gpu, &config, file_bytes).unwrap();
            assert_eq!(on_gpu.weight_bytes, file_bytes, "{case}");
            match before.device {
                ComputeDevice::Cpu => {
                    // That there is a head only files tell.
                    let entries = tensors.entries();
                    let head = StoredWeights::of_head(entries, &quantization, &outline);
                    let bytes = before.weight_bytes + 4 * head.num_parameters();
                    assert_eq!(bytes, read.weight_bytes, "{case}");
                }
                // What the architecture does not take is in the files too.
                ComputeDevice::Gpu => assert!(before.weight_bytes >= read.weight_bytes, "{case}"),
            }
            assert_eq!(on_gpu.float_bytes, stored.float_bytes(), "{case}");
        }
    }

    #[test]
    fn what_cannot_be_loaded_is_refused_before_its_download() {
        let config = |model_type: &str| serde_json::json!({ "model_type": model_type });
        let refused = ModelMemory::before_download(&config("mamba"), 1 << 30).unwrap_err();
        assert!(matches!(refused, LmError::UnknownModelType { .. }), "{refused}");
        let refused = ModelMemory::before_download(&config("qwen3"), 1 << 30).unwrap_err();
        assert!(refused.to_string().starts_with("config.json is not valid"), "{refused}");
    }

    /// The memory on a GPU of a Llama with heads of so many numbers, in 16 bits.
    fn llama_on_gpu(head_dim: u64, sinks: bool) -> ModelMemory {
        let mut config = serde_json::json!({
            "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 2,
            "intermediate_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": head_dim, "rms_norm_eps": 1e-6, "vocab_size": 1024,
            "max_position_embeddings": 1 << 20, "rope_theta": 1e6, "torch_dtype": "bfloat16",
            "tie_word_embeddings": false,
        });
        if sinks {
            config["model_type"] = "gpt_oss".into();
            config["num_local_experts"] = 4.into();
            config["num_experts_per_tok"] = 2.into();
            config["sliding_window"] = 128.into();
        }
        ModelMemory::before_download_on(ComputeDevice::Gpu, &config, 1 << 30).unwrap()
    }

    /// Bytes of results beside those that would be there if no scores were stored.
    fn score_bytes(memory: &ModelMemory, num_tokens: usize, length: usize) -> u64 {
        let none = Scratch { heads: 0, ..memory.scratch };
        let without = ModelMemory { scratch: none, ..memory.clone() };
        let results = |memory: &ModelMemory| memory.results(num_tokens, length, MOST_STORED_SCORES);
        results(memory) - results(&without)
    }

    #[test]
    fn stored_scores_are_counted_by_what_a_kernel_takes() {
        const BYTES: u64 = 2 * 2; // of bf16, two at once
        let with_kernel = llama_on_gpu(128, false);
        assert_eq!(score_bytes(&with_kernel, 5000, 100), 0);
        let quantization = KvQuantization { bits: 8, group_size: 64, start: 0 };
        let quantized = with_kernel.quantized(&quantization).unwrap();
        for memory in [llama_on_gpu(256, false), quantized] {
            let keys = memory.cache.num_keys_while_reading(5000, 100);
            assert_eq!(score_bytes(&memory, 5000, 100), 100 * 32 * keys * BYTES);
            // Queries take turns, but one is whole.
            let most = MOST_STORED_SCORES;
            assert_eq!(score_bytes(&memory, 200_000, 2048), most * BYTES);
            let of_one = 32 * memory.cache.num_keys_while_reading(8_000_000, 1);
            assert!(of_one > most);
            assert_eq!(score_bytes(&memory, 8_000_000, 1), of_one * BYTES);
        }
        // Three arrays of so many beside sinks.
        let with_sinks = llama_on_gpu(96, true);
        assert_eq!(score_bytes(&with_sinks, 200_000, 2048), 3 * MOST_STORED_SCORES * BYTES);
    }

    #[test]
    fn the_largest_sizes_that_are_accepted_do_not_overflow() {
        let config = serde_json::json!({
            "model_type": "qwen3_moe", "hidden_size": 1 << 17, "num_hidden_layers": 1024,
            "intermediate_size": 1 << 20, "num_attention_heads": 1024, "num_key_value_heads": 1024,
            "head_dim": 4096, "rms_norm_eps": 1e-6, "vocab_size": 1 << 22,
            "max_position_embeddings": 1 << 26, "rope_theta": 1e6, "num_experts": 1 << 14,
            "num_experts_per_tok": 1 << 14, "moe_intermediate_size": 1 << 20,
            "decoder_sparse_step": 1, "norm_topk_prob": true,
        });
        for device in [ComputeDevice::Cpu, ComputeDevice::Gpu] {
            let memory = ModelMemory::before_download_on(device, &config, u64::MAX / 2).unwrap();
            assert!(memory.num_parameters > 1 << 60, "{memory:?}");
        }
    }
}
