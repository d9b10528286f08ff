//! Writes a model folder with random weights.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};

use crate::Failure;
use crate::shapes::{Experts, Family, Shape, Weights};

pub const GROUP_SIZE: usize = 64;
pub const BITS: usize = 4;
/// mlx-lm quantizes routers with more bits than the rest.
const ROUTER_BITS: usize = 8;

/// The linear attention of Qwen3-Next.
const LINEAR_KEY_HEADS: usize = 16;
const LINEAR_VALUE_HEADS: usize = 32;
const LINEAR_DIM: usize = 128;
const LINEAR_KERNEL: usize = 4;

/// Writes config.json and model.safetensors; returns the bytes of the tensors.
pub fn write(folder: &Path, shape: &Shape) -> Result<u64, Failure> {
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join("config.json"), config(shape).to_string())?;
    let mut tensors = Tensors::new(shape.weights);
    if matches!(shape.family, Family::Gemma3 { .. }) {
        tensors.norm = 0.0; // stored minus one
    }
    tensors.matrix("model.embed_tokens", shape.vocab, shape.hidden);
    for layer in 0..shape.layers {
        tensors.layer(&format!("model.layers.{layer}"), shape, layer);
    }
    tensors.vector("model.norm", shape.hidden);
    if !shape.is_tied() {
        tensors.matrix("lm_head", shape.vocab, shape.hidden);
    }
    tensors.write(&folder.join("model.safetensors"))
}

fn config(shape: &Shape) -> Value {
    let model_type = match shape.family {
        Family::Llama => "llama",
        Family::Qwen3 => "qwen3",
        Family::Gemma3 { .. } => "gemma3_text",
        Family::Qwen3Moe(_) => "qwen3_moe",
        Family::Qwen3Next(_) => "qwen3_next",
    };
    let mut config = json!({
        "model_type": model_type, "hidden_size": shape.hidden, "num_hidden_layers": shape.layers,
        "intermediate_size": shape.intermediate, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "rms_norm_eps": 1e-6,
        "vocab_size": shape.vocab, "max_position_embeddings": 131_072, "rope_theta": 1_000_000.0,
        "tie_word_embeddings": shape.is_tied(),
    });
    if shape.weights == Weights::FourBits {
        config["quantization"] = json!({ "group_size": GROUP_SIZE, "bits": BITS });
    }
    let mut add = |more: Value| {
        for (name, value) in more.as_object().into_iter().flatten() {
            config[name] = value.clone();
        }
    };
    match shape.family {
        Family::Llama | Family::Qwen3 => {}
        Family::Gemma3 { window } => add(json!({
            "sliding_window": window, "sliding_window_pattern": 6,
            "query_pre_attn_scalar": shape.head_dim,
        })),
        Family::Qwen3Moe(experts) => {
            add(expert_config(experts));
            add(json!({ "mlp_only_layers": [] }));
        }
        Family::Qwen3Next(experts) => {
            add(expert_config(experts));
            add(json!({
                "mlp_only_layers": [], "shared_expert_intermediate_size": experts.intermediate,
                "full_attention_interval": 4, "partial_rotary_factor": 0.25,
                "linear_num_value_heads": LINEAR_VALUE_HEADS,
                "linear_num_key_heads": LINEAR_KEY_HEADS, "linear_key_head_dim": LINEAR_DIM,
                "linear_value_head_dim": LINEAR_DIM, "linear_conv_kernel_dim": LINEAR_KERNEL,
            }));
        }
    }
    if let Family::Qwen3Moe(_) | Family::Qwen3Next(_) = shape.family
        && shape.weights == Weights::FourBits
    {
        for layer in 0..shape.layers {
            for gate in ["gate", "shared_expert_gate"] {
                config["quantization"][format!("model.layers.{layer}.mlp.{gate}")] =
                    json!({ "group_size": GROUP_SIZE, "bits": ROUTER_BITS });
            }
        }
    }
    config
}

fn expert_config(experts: Experts) -> Value {
    json!({
        "num_experts": experts.count, "num_experts_per_tok": experts.chosen,
        "moe_intermediate_size": experts.intermediate, "decoder_sparse_step": 1,
        "norm_topk_prob": true,
    })
}

/// The contents of a tensor.
#[derive(Clone, Copy)]
enum Fill {
    /// Uniformly distributed bits.
    Packed,
    /// bf16 numbers around the given one.
    Near(f32),
    /// bf16 numbers between minus and plus this.
    Within(f32),
}

struct Tensors {
    weights: Weights,
    header: serde_json::Map<String, Value>,
    fills: Vec<(Fill, usize)>, // with bytes
    end: usize,
    /// What the stored weights of norms are near.
    norm: f32,
}

impl Tensors {
    fn new(weights: Weights) -> Self {
        Tensors { weights, header: serde_json::Map::new(), fills: Vec::new(), end: 0, norm: 1.0 }
    }

    fn layer(&mut self, path: &str, shape: &Shape, index: usize) {
        let path = |part: &str| format!("{path}.{part}");
        let &Shape { hidden, heads, kv_heads, head_dim, .. } = shape;
        self.vector(&path("input_layernorm"), hidden);
        self.vector(&path("post_attention_layernorm"), hidden);
        let is_next = matches!(shape.family, Family::Qwen3Next(_));
        if is_next && !(index + 1).is_multiple_of(4) {
            self.linear_attention(&path("linear_attn"), hidden);
        } else {
            let gates = if is_next { 2 } else { 1 };
            self.matrix(&path("self_attn.q_proj"), gates * heads * head_dim, hidden);
            self.matrix(&path("self_attn.k_proj"), kv_heads * head_dim, hidden);
            self.matrix(&path("self_attn.v_proj"), kv_heads * head_dim, hidden);
            self.matrix(&path("self_attn.o_proj"), hidden, heads * head_dim);
            if !matches!(shape.family, Family::Llama) {
                self.vector(&path("self_attn.q_norm"), head_dim);
                self.vector(&path("self_attn.k_norm"), head_dim);
            }
        }
        if let Family::Gemma3 { .. } = shape.family {
            self.vector(&path("pre_feedforward_layernorm"), hidden);
            self.vector(&path("post_feedforward_layernorm"), hidden);
        }
        match shape.family {
            Family::Qwen3Moe(experts) => self.experts(&path("mlp"), hidden, experts),
            Family::Qwen3Next(experts) => {
                self.experts(&path("mlp"), hidden, experts);
                self.mlp(&path("mlp.shared_expert"), hidden, experts.intermediate);
                self.matrices(&path("mlp.shared_expert_gate"), &[1], hidden, ROUTER_BITS);
            }
            _ => self.mlp(&path("mlp"), hidden, shape.intermediate),
        }
    }

    fn mlp(&mut self, path: &str, hidden: usize, intermediate: usize) {
        self.matrix(&format!("{path}.gate_proj"), intermediate, hidden);
        self.matrix(&format!("{path}.up_proj"), intermediate, hidden);
        self.matrix(&format!("{path}.down_proj"), hidden, intermediate);
    }

    fn experts(&mut self, path: &str, hidden: usize, experts: Experts) {
        let Experts { count, intermediate, .. } = experts;
        self.matrices(&format!("{path}.gate"), &[count], hidden, ROUTER_BITS);
        let path = |name: &str| format!("{path}.switch_mlp.{name}");
        self.matrices(&path("gate_proj"), &[count, intermediate], hidden, BITS);
        self.matrices(&path("up_proj"), &[count, intermediate], hidden, BITS);
        self.matrices(&path("down_proj"), &[count, hidden], intermediate, BITS);
    }

    fn linear_attention(&mut self, path: &str, hidden: usize) {
        let (keys, values) = (LINEAR_KEY_HEADS * LINEAR_DIM, LINEAR_VALUE_HEADS * LINEAR_DIM);
        let path = |name: &str| format!("{path}.{name}");
        self.matrix(&path("in_proj_qkvz"), 2 * keys + 2 * values, hidden);
        self.matrix(&path("in_proj_ba"), 2 * LINEAR_VALUE_HEADS, hidden);
        self.matrix(&path("out_proj"), hidden, values);
        let conv = [2 * keys + values, LINEAR_KERNEL, 1];
        self.add(path("conv1d.weight"), "BF16", &conv, Fill::Near(0.3));
        self.add(path("A_log"), "BF16", &[LINEAR_VALUE_HEADS], Fill::Near(0.5));
        self.add(path("dt_bias"), "BF16", &[LINEAR_VALUE_HEADS], Fill::Near(1.0));
        // This norm is stored as it is.
        self.add(path("norm.weight"), "BF16", &[LINEAR_DIM], Fill::Near(1.0));
    }

    fn add(&mut self, name: String, dtype: &str, shape: &[usize], fill: Fill) {
        let bytes = shape.iter().product::<usize>() * if dtype == "U32" { 4 } else { 2 };
        self.header.insert(
            name,
            json!({ "dtype": dtype, "shape": shape, "data_offsets": [self.end, self.end + bytes] }),
        );
        self.end += bytes;
        self.fills.push((fill, bytes));
    }

    fn vector(&mut self, name: &str, length: usize) {
        self.add(format!("{name}.weight"), "BF16", &[length], Fill::Near(self.norm));
    }

    fn matrix(&mut self, name: &str, outputs: usize, inputs: usize) {
        self.matrices(name, &[outputs], inputs, BITS);
    }

    /// Weights spread evenly around zero, with the variance that keeps activations near one. Packed
    /// ones have `bits` bits.
    fn matrices(&mut self, name: &str, rows: &[usize], inputs: usize, bits: usize) {
        match self.weights {
            Weights::FourBits => self.packed(name, rows, inputs, bits),
            Weights::Bfloat16 => {
                let most = (3.0 / inputs as f32).sqrt();
                let shape = [rows, &[inputs]].concat();
                self.add(format!("{name}.weight"), "BF16", &shape, Fill::Within(most));
            }
        }
    }

    fn packed(&mut self, name: &str, rows: &[usize], inputs: usize, bits: usize) {
        let levels = (1 << bits) as f32;
        let scale = 16.0 / levels / (4.6 * (inputs as f32).sqrt());
        let shape = |columns: usize| [rows, &[columns]].concat();
        self.add(format!("{name}.weight"), "U32", &shape(inputs * bits / 32), Fill::Packed);
        let groups = shape(inputs / GROUP_SIZE);
        self.add(format!("{name}.scales"), "BF16", &groups, Fill::Near(scale));
        let middle = (levels - 1.0) / 2.0;
        self.add(format!("{name}.biases"), "BF16", &groups, Fill::Near(-middle * scale));
    }

    fn write(self, path: &Path) -> Result<u64, Failure> {
        let mut header = Value::Object(self.header).to_string();
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        // Large tensors repeat a block, whose odd length keeps rows different.
        const BLOCK_WORDS: usize = (1 << 18) + 1;
        let mut random = Random(2);
        for (fill, bytes) in self.fills {
            let words = BLOCK_WORDS.min(bytes.div_ceil(4));
            let block: Vec<u8> = (0..words)
                .flat_map(|_| match fill {
                    Fill::Packed => (random.next() as u32).to_le_bytes(),
                    Fill::Near(value) => {
                        (random.near(value) | random.near(value) << 16).to_le_bytes()
                    }
                    Fill::Within(most) => {
                        (random.within(most) | random.within(most) << 16).to_le_bytes()
                    }
                })
                .collect();
            let mut remaining = bytes;
            while remaining > 0 {
                let length = remaining.min(block.len());
                file.write_all(&block[..length])?;
                remaining -= length;
            }
        }
        file.flush()?;
        Ok(self.end as u64)
    }
}

/// Xorshift (Marsaglia 2003): the same weights on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    /// The bits of a bf16 within an eighth of `value`.
    fn near(&mut self, value: f32) -> u32 {
        let factor = 1.0 + (self.next() % 1024) as f32 / 4096.0 - 0.125;
        (value * factor).to_bits() >> 16
    }

    /// The bits of a bf16 at most `most` from zero.
    fn within(&mut self, most: f32) -> u32 {
        let part = (self.next() % 4096) as f32 / 2048.0 - 1.0;
        (most * part).to_bits() >> 16
    }
}
