//! What a model takes in memory, from the headers of its folder: no weight is read.
//!
//! Weights and keys and values are exact; what a forward pass needs besides is an upper bound,
//! which `tests/model_memory.rs` compares with MLX's counters.

use std::collections::HashMap;
use std::path::Path;

use cairn_formats::safetensors::{self, SafetensorsFile, TensorEntry, check_weight_files};
use serde_json::Value;

use crate::LmError;
use crate::cache::KvCache;
use crate::config::{ConfigFile, Quantization, QuantizationConfig, check_range};
use crate::device::ComputeDevice;
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
    layers: Vec<LayerMemory>,
    /// Bytes of a number that is computed.
    float_bytes: u64,
    scratch: ScratchBound,
}

/// What one layer stores of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LayerMemory {
    /// So many numbers for each token, of the last `window` tokens or of all.
    Kv { numbers_per_token: u64, window: Option<u64> },
    /// So many numbers in the compute type, and bytes besides, however many tokens there are.
    State { numbers: u64, bytes: u64 },
}

/// The widths that intermediate results have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ScratchBound {
    /// Numbers of one token in all intermediate results that live at once.
    numbers_per_token: u64,
    /// Attention scores: a number for each head and pair of tokens.
    heads: u64,
    vocab: u64,
}

/// How many sets of one layer's intermediate results live at once. This and the numbers below bound
/// what `cargo test --test model_memory` measures on the goldens' models and the starter model.
const LIVE_RESULTS: u64 = 4;
/// How many matrices of attention scores live at once on a device without a fused kernel.
const LIVE_SCORES: u64 = 3;
/// How many rows over the vocabulary live at once for each sequence: logits, log-probabilities,
/// a sampler's sorted copies and indices.
const LIVE_LOGITS: u64 = 8;
/// What MLX needs however small a model is.
const FIXED_BYTES: u64 = 1 << 20;

impl ModelMemory {
    /// Reads config.json and the headers of the weight files in `folder`.
    pub fn read(folder: &Path, options: LoadOptions) -> Result<Self, LmError> {
        let config = ConfigFile::read(folder)?.value;
        let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
        if model_type == "scripted" {
            return Ok(ModelMemory::scripted(&config));
        }
        let files = check_weight_files(folder)?;
        let quantization = QuantizationConfig::parse(&config)?;
        let fields = Fields(&config);
        fields.check()?;
        let stored = StoredWeights::new(&files, &quantization, &fields);
        let device = ComputeDevice::current();
        let keep_quantized = options.keep_quantized || device == ComputeDevice::Gpu;
        let float_bytes = match device.compute_dtype() {
            Some(_) => 4,
            None => stored.float_bytes(),
        };
        Ok(ModelMemory {
            num_parameters: stored.num_parameters(),
            weight_bytes: stored.bytes_in_memory(device, keep_quantized),
            context_length: fields.number("max_position_embeddings", fields.default_context())
                as usize,
            quantization: quantization
                .common()
                .map(|settings| (settings.bits, settings.group_size)),
            layers: layers(model_type, &fields),
            float_bytes,
            scratch: scratch(&fields),
            model_type: model_type.to_owned(),
        })
    }

    /// A scripted model has no weights, and the sizes that its config.json declares.
    fn scripted(config: &Value) -> Self {
        let fields = Fields(config);
        ModelMemory {
            model_type: "scripted".to_owned(),
            num_parameters: 0,
            weight_bytes: fields.number("declared_weight_bytes", 0),
            context_length: fields.number("max_position_embeddings", 4096) as usize,
            quantization: None,
            layers: vec![LayerMemory::Kv { numbers_per_token: 64, window: None }],
            float_bytes: 4,
            scratch: ScratchBound { numbers_per_token: 64, heads: 1, vocab: 259 },
        }
    }

    /// How many layers the model has.
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// Bytes that one more token of a conversation takes, as long as it is within every window.
    pub fn kv_bytes_per_token(&self) -> u64 {
        let numbers = self.layers.iter().map(|layer| match layer {
            LayerMemory::Kv { numbers_per_token, .. } => *numbers_per_token,
            LayerMemory::State { .. } => 0,
        });
        numbers.sum::<u64>() * self.float_bytes
    }

    /// Bytes of the caches of a conversation of so many tokens, with the room that buffers grow by.
    /// Exact, except that a window that is not full yet may take up to one such step less.
    pub fn kv_bytes(&self, num_tokens: usize) -> u64 {
        let step = KvCache::STEP as u64;
        let num_tokens = num_tokens as u64;
        let bytes = |layer: &LayerMemory| match *layer {
            LayerMemory::Kv { numbers_per_token, window: None } => {
                num_tokens.next_multiple_of(step) * numbers_per_token * self.float_bytes
            }
            LayerMemory::Kv { numbers_per_token, window: Some(window) } => {
                window.min(num_tokens + step) * numbers_per_token * self.float_bytes
            }
            LayerMemory::State { numbers, bytes } => numbers * self.float_bytes + bytes,
        };
        self.layers.iter().map(bytes).sum()
    }

    /// An upper bound of the bytes in use while `num_rows` conversations of at most `num_tokens`
    /// are read in steps of `step_size`, the weights included.
    pub fn peak_bytes(&self, num_tokens: usize, num_rows: usize, step_size: usize) -> u64 {
        let (rows, step) = (num_rows as u64, step_size.min(num_tokens.max(1)) as u64);
        let scratch = self.scratch;
        let results = step * scratch.numbers_per_token * LIVE_RESULTS;
        // Attention has a fused kernel on GPUs, which stores no scores.
        let live_scores = match ComputeDevice::current() {
            ComputeDevice::Cpu => LIVE_SCORES,
            ComputeDevice::Gpu => 0,
        };
        let scores = step * num_tokens as u64 * scratch.heads * live_scores;
        let logits = rows * scratch.vocab * LIVE_LOGITS;
        // Buffers that grow are copied layer by layer; rows that join a batch are copied whole.
        let kv = rows * self.kv_bytes(num_tokens + step_size);
        let copied = match num_rows {
            0 | 1 => 2 * kv / self.layers.len().max(1) as u64,
            _ => kv,
        };
        // Windows hold a whole step besides until the next token.
        let windows = rows * step * self.kv_bytes_per_token();
        self.weight_bytes
            + kv
            + copied
            + windows
            + (results + scores) * self.float_bytes
            + logits * 4
            + FIXED_BYTES
    }
}

/// config.json's numbers.
struct Fields<'a>(&'a Value);

/// The numbers that sizes are computed from, each with the most that it may be: what an
/// architecture accepts, so that products of them fit 64 bits.
const MAX_NUMBERS: &[(&str, i64)] = &[
    ("hidden_size", 1 << 17),
    ("intermediate_size", 1 << 20),
    ("moe_intermediate_size", 1 << 20),
    ("num_hidden_layers", 1024),
    ("num_attention_heads", 1024),
    ("num_key_value_heads", 1024),
    ("head_dim", 4096),
    ("vocab_size", 1 << 22),
    ("max_position_embeddings", 1 << 26),
    ("sliding_window", 1 << 26),
    ("num_experts", 1 << 14),
    ("num_experts_per_tok", 1 << 14),
    ("linear_num_key_heads", 1024),
    ("linear_num_value_heads", 1024),
    ("linear_key_head_dim", 4096),
    ("linear_value_head_dim", 4096),
    ("linear_conv_kernel_dim", 4096),
];

impl Fields<'_> {
    /// Refuses numbers that no architecture accepts. Values of another type are for the
    /// architecture to refuse.
    fn check(&self) -> Result<(), LmError> {
        for &(name, max) in MAX_NUMBERS {
            let value = self.0.get(name).filter(|value| value.is_i64() || value.is_u64());
            if let Some(value) = value {
                check_range(name, value.as_i64().unwrap_or(i64::MAX), 0..=max)?;
            }
        }
        Ok(())
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        self.0.get(name).and_then(Value::as_u64).unwrap_or(default)
    }

    fn model_type(&self) -> &str {
        self.0.get("model_type").and_then(Value::as_str).unwrap_or_default()
    }

    /// The context of a config that does not say it.
    fn default_context(&self) -> u64 {
        match self.model_type() {
            "gemma3_text" | "qwen2" => 32_768,
            _ => 2048,
        }
    }

    fn text_list(&self, name: &str) -> Option<Vec<&str>> {
        self.0.get(name)?.as_array()?.iter().map(Value::as_str).collect()
    }

    fn heads(&self) -> u64 {
        self.number("num_attention_heads", 4).max(1)
    }

    fn head_dim(&self) -> u64 {
        let default = match self.model_type() {
            "gemma3_text" => 256,
            _ => self.number("hidden_size", 1152) / self.heads(),
        };
        self.number("head_dim", default)
    }

    /// The numbers of keys and values that a token takes in a layer with attention.
    fn kv_numbers(&self) -> u64 {
        let default = match self.model_type() {
            "gemma3_text" => 1,
            _ => self.heads(),
        };
        2 * self.number("num_key_value_heads", default) * self.head_dim()
    }
}

/// What each layer stores; every architecture that is not named here has plain attention only.
fn layers(model_type: &str, fields: &Fields<'_>) -> Vec<LayerMemory> {
    let numbers_per_token = fields.kv_numbers();
    let attention = |window| LayerMemory::Kv { numbers_per_token, window };
    let num_layers = fields.number("num_hidden_layers", 26);
    let kinds = fields.text_list("layer_types");
    match model_type {
        "gemma3_text" => {
            let window = fields.number("sliding_window", 512);
            let pattern = fields.number("sliding_window_pattern", 6).max(1);
            let is_full = |index: u64| match &kinds {
                Some(kinds) => kinds.get(index as usize) == Some(&"full_attention"),
                None => (index + 1).is_multiple_of(pattern),
            };
            (0..num_layers).map(|index| attention((!is_full(index)).then_some(window))).collect()
        }
        "qwen3_next" => {
            let interval = fields.number("full_attention_interval", 4).max(1);
            let is_full = |index: u64| (index + 1).is_multiple_of(interval);
            let state = linear_state(fields);
            (0..num_layers)
                .map(|index| if is_full(index) { attention(None) } else { state })
                .collect()
        }
        _ => (0..num_layers).map(|_| attention(None)).collect(),
    }
}

/// The state of a layer with linear attention: the last inputs of its convolution in the compute
/// type, and a matrix for each head in f32.
fn linear_state(fields: &Fields<'_>) -> LayerMemory {
    let (key_heads, value_heads) =
        (fields.number("linear_num_key_heads", 0), fields.number("linear_num_value_heads", 0));
    let (key_dim, value_dim) =
        (fields.number("linear_key_head_dim", 0), fields.number("linear_value_head_dim", 0));
    let width = 2 * key_heads * key_dim + value_heads * value_dim;
    let kernel = fields.number("linear_conv_kernel_dim", 4);
    LayerMemory::State {
        numbers: kernel.saturating_sub(1) * width,
        bytes: 4 * value_heads * value_dim * key_dim,
    }
}

fn scratch(fields: &Fields<'_>) -> ScratchBound {
    let hidden = fields.number("hidden_size", 1152);
    let per_expert =
        fields.number("moe_intermediate_size", 0) * fields.number("num_experts_per_tok", 0).max(1);
    let intermediate = fields.number("intermediate_size", 6912).max(per_expert);
    let attention = fields.heads() * fields.head_dim() + fields.kv_numbers();
    let experts =
        fields.number("num_experts", 0) + hidden * fields.number("num_experts_per_tok", 0);
    let linear = match linear_state(fields) {
        LayerMemory::State { numbers, bytes } => numbers + bytes / 4,
        LayerMemory::Kv { .. } => 0,
    };
    ScratchBound {
        numbers_per_token: hidden + 2 * intermediate + attention + experts + linear,
        heads: fields.heads(),
        vocab: fields.number("vocab_size", 262_144),
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
        fields: &Fields<'_>,
    ) -> Self {
        let model_type = fields.model_type();
        let is_tied = match model_type {
            // The file decides.
            "gemma3_text" => false,
            _ => fields
                .0
                .get("tie_word_embeddings")
                .and_then(Value::as_bool)
                .unwrap_or(matches!(model_type, "llama" | "mistral" | "qwen2")),
        };
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
