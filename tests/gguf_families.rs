//! A tiny model of each architecture that GGUF import knows, written as ggml-org's converter writes
//! it and imported again, computes the same. A new architecture is one line of [`CASES`].

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use cairn_formats::gguf::{
    GgmlType, GgufImport, ImportedGguf, RoundTo, RoundedWeights, architecture_names, import_gguf,
};
use cairn_formats::test_files::gguf::{TestGguf, TestTensor, as_f32};
use cairn_lm::LoadOptions;
use cairn_lm::models::Model;
use cairn_tests::copy_tiny_model;
use mlx_rs::ops::indexing::IndexOp;
use mlx_rs::{Array, Dtype};
use serde_json::{Value, json};

use crate::{compare_within, config, forward};

/// What a converter does for an architecture.
struct Case {
    /// The tiny model.
    golden: &'static str,
    architecture: &'static str,
    /// Keys of its config that GGUF cannot say, with what they are there.
    fixed: fn() -> Value,
    /// Names of modules that other architectures name otherwise.
    names: &'static [(&'static str, &'static str)],
    /// Keys of GGUF that no key of config.json is translated to.
    keys: &'static [(&'static str, f32)],
    /// The same with whole numbers.
    counts: &'static [(&'static str, u32)],
    /// How the tokenizer cuts words.
    words: &'static str,
    /// Whether the matrix of keys and values is stored as two.
    splits_heads: bool,
    rows: Rows,
    /// What is added to norms.
    norm_offset: f32,
}

/// The order of queries' and keys' rows.
#[derive(Clone, Copy, PartialEq)]
enum Rows {
    AsStored,
    /// The halves of a head by turns.
    Interleaved,
}

const CASE: Case = Case {
    golden: "",
    architecture: "",
    fixed: || json!({}),
    names: &[],
    keys: &[],
    counts: &[],
    words: "",
    splits_heads: false,
    rows: Rows::AsStored,
    norm_offset: 0.0,
};
/// An architecture that was made of llama's.
const LLAMA: Case = Case { architecture: "llama", rows: Rows::Interleaved, ..CASE };
const NORMS_AFTER: &[(&str, &str)] = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];
const NORMS_AROUND: &[(&str, &str)] = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

const CASES: &[Case] = &[
    Case { golden: "llama/dense-tied", ..LLAMA },
    Case { golden: "llama/dense-untied", ..LLAMA },
    Case { golden: "llama/bias", ..LLAMA },
    Case { golden: "llama/head-dim", ..LLAMA },
    Case { golden: "llama/rope-linear", ..LLAMA },
    Case { golden: "llama/rope-yarn", ..LLAMA },
    Case { golden: "llama/xverse", architecture: "xverse", ..LLAMA },
    Case { golden: "llama/dense-untied", architecture: "internlm2", ..LLAMA },
    Case { golden: "mixtral/dense", ..LLAMA },
    Case { golden: "smollm3/dense", architecture: "smollm3", ..LLAMA },
    Case { golden: "granite/dense", architecture: "granite", ..LLAMA },
    Case { golden: "granitemoe/dense", architecture: "granitemoe", ..LLAMA },
    Case {
        golden: "qwen2/dense",
        architecture: "qwen2",
        // It is not used.
        fixed: || json!({ "sliding_window": null }),
        ..CASE
    },
    Case { golden: "qwen2_moe/dense", architecture: "qwen2moe", ..CASE },
    Case { golden: "qwen3/dense", architecture: "qwen3", ..CASE },
    Case { golden: "qwen3_moe/dense", architecture: "qwen3moe", ..CASE },
    Case { golden: "gemma/dense", architecture: "gemma", norm_offset: 1.0, ..CASE },
    Case {
        golden: "gemma2/dense",
        architecture: "gemma2",
        fixed: || json!({ "query_pre_attn_scalar": 32 }),
        names: NORMS_AROUND,
        norm_offset: 1.0,
        ..CASE
    },
    Case {
        golden: "gemma3_text/dense",
        architecture: "gemma3",
        fixed: || json!({ "query_pre_attn_scalar": 8, "sliding_window_pattern": 6 }),
        names: NORMS_AROUND,
        norm_offset: 1.0,
        ..CASE
    },
    Case { golden: "phi3/dense", architecture: "phi3", ..CASE },
    Case {
        golden: "phi3/longrope",
        architecture: "phi3",
        // The square root of one and ln(4096 / 64) / ln(64).
        keys: &[("rope.scaling.attn_factor", std::f32::consts::SQRT_2)],
        ..CASE
    },
    Case { golden: "starcoder2/dense", architecture: "starcoder2", ..CASE },
    Case { golden: "stablelm/dense", architecture: "stablelm", ..CASE },
    Case { golden: "olmo2/dense", architecture: "olmo2", names: NORMS_AFTER, ..CASE },
    Case { golden: "olmo3/dense", architecture: "olmo2", names: NORMS_AFTER, ..CASE },
    Case { golden: "olmoe/dense", architecture: "olmoe", ..CASE },
    Case { golden: "cohere/dense", architecture: "command-r", ..CASE },
    Case {
        golden: "cohere2/dense",
        architecture: "cohere2",
        fixed: || json!({ "sliding_window_pattern": 4 }),
        ..CASE
    },
    Case {
        golden: "glm4/bias",
        architecture: "glm4",
        fixed: || json!({ "rope_traditional": true }),
        names: &[
            ("post_self_attn_layernorm", "post_attention_norm"),
            ("post_attention_layernorm", "ffn_norm"),
            ("post_mlp_layernorm", "post_ffw_norm"),
        ],
        ..CASE
    },
    Case {
        golden: "exaone4/dense",
        architecture: "exaone4",
        // Three layers of "LLLG" would all have windows.
        fixed: || json!({ "rope_scaling": null, "sliding_window_pattern": "LLLG" }),
        names: NORMS_AFTER,
        ..CASE
    },
    Case {
        golden: "seed_oss/dense",
        architecture: "seed_oss",
        names: &[("post_attention_layernorm", "post_attention_norm")],
        ..CASE
    },
    Case { golden: "ernie4_5/dense", architecture: "ernie4_5", ..CASE },
    Case { golden: "ernie4_5/bias", architecture: "ernie4_5", ..CASE },
    Case {
        golden: "phimoe/dense",
        architecture: "phimoe",
        // Its own magnitude is in no key; as in phi3, it follows from the lengths.
        fixed: || {
            let mut scaling = config("phimoe/dense")["rope_scaling"].clone();
            let of_lengths = json!(std::f64::consts::SQRT_2);
            (scaling["short_mscale"], scaling["long_mscale"]) = (of_lengths.clone(), of_lengths);
            json!({ "rope_scaling": scaling })
        },
        keys: &[
            ("rope.scaling.attn_factor", std::f32::consts::SQRT_2),
            ("attention.layer_norm_rms_epsilon", 1e-6),
        ],
        ..CASE
    },
    Case { golden: "gpt_oss/dense", ..GPT_OSS },
    Case {
        golden: "glm4_moe/dense",
        architecture: "glm4moe",
        names: &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
        ],
        counts: &[("expert_gating_func", 2)],
        ..CASE
    },
    Case {
        golden: "deepseek_v2/dense",
        // Of the two shares of the magnitude GGUF has one.
        fixed: || one_share("deepseek_v2/dense"),
        keys: &[("rope.scaling.yarn_log_multiplier", 0.15)],
        counts: LATENT_LENGTHS,
        splits_heads: true,
        ..DEEPSEEK
    },
    Case {
        golden: "deepseek_v2/dense",
        fixed: || one_share("deepseek_v2/dense"),
        keys: &[("rope.scaling.yarn_log_multiplier", 0.15)],
        // As older files say it.
        counts: &[("attention.key_length", 64), ("attention.value_length", 32)],
        ..DEEPSEEK
    },
    Case {
        golden: "deepseek_v3/dense",
        keys: &[("rope.scaling.yarn_log_multiplier", 0.1)],
        counts: DEEPSEEK_V3_COUNTS,
        ..DEEPSEEK
    },
    Case { golden: "deepseek_v3/joyai", counts: DEEPSEEK_V3_COUNTS, ..DEEPSEEK },
    Case { golden: "glm4_moe_lite/dense", counts: DEEPSEEK_V3_COUNTS, words: "glm4", ..DEEPSEEK },
    Case {
        golden: "llama4/dense",
        architecture: "llama4",
        fixed: || {
            json!({
                "attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1,
                "rope_scaling": null,
            })
        },
        counts: &[("expert_feed_forward_length", 32)],
        ..CASE
    },
    Case { golden: "mistral3/dense", architecture: "mistral3", ..LLAMA },
    Case {
        golden: "mistral3/ministral",
        architecture: "mistral3",
        keys: &[("rope.scaling.yarn_log_multiplier", 1.0)],
        ..LLAMA
    },
];

const GPT_OSS: Case = Case {
    golden: "gpt_oss/dense",
    architecture: "gpt-oss",
    names: &[("post_attention_layernorm", "post_attention_norm")],
    counts: &[("expert_feed_forward_length", 32)],
    ..CASE
};
const DEEPSEEK: Case = Case {
    architecture: "deepseek2",
    names: &[("mlp.gate.e_score_correction_bias", "exp_probs_b.bias")],
    ..CASE
};
const DEEPSEEK_V3_COUNTS: &[(&str, u32)] = &[
    ("expert_gating_func", 2),
    ("attention.key_length", 64),
    ("attention.value_length", 32),
    ("attention.key_length_mla", 64),
    ("attention.value_length_mla", 32),
];
/// Keys and values as the caches of llama.cpp have them, which hold the short vectors.
const LATENT_LENGTHS: &[(&str, u32)] = &[
    ("attention.key_length", 64),
    ("attention.value_length", 32),
    ("attention.key_length_mla", 64),
    ("attention.value_length_mla", 32),
];

/// The config's `rope_scaling`, with `mscale` as `mscale_all_dim` is.
fn one_share(golden: &str) -> Value {
    let mut scaling = config(golden)["rope_scaling"].clone();
    scaling["mscale"] = scaling["mscale_all_dim"].clone();
    json!({ "rope_scaling": scaling })
}

/// Names of modules, and theirs in GGUF.
const NAMES: &[(&str, &str)] = &[
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.switch_mlp.gate_proj", "ffn_gate_exps"),
    ("mlp.switch_mlp.up_proj", "ffn_up_exps"),
    ("mlp.switch_mlp.down_proj", "ffn_down_exps"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("self_attn.sinks", "attn_sinks.weight"),
    ("mlp.router", "ffn_gate_inp"),
    ("mlp.experts.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.up_proj", "ffn_up_exps"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ("feed_forward.gate_proj", "ffn_gate"),
    ("feed_forward.up_proj", "ffn_up"),
    ("feed_forward.down_proj", "ffn_down"),
    ("feed_forward.router", "ffn_gate_inp"),
    ("feed_forward.experts.gate_proj", "ffn_gate_exps"),
    ("feed_forward.experts.up_proj", "ffn_up_exps"),
    ("feed_forward.experts.down_proj", "ffn_down_exps"),
    ("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("feed_forward.shared_expert.up_proj", "ffn_up_shexp"),
    ("feed_forward.shared_expert.down_proj", "ffn_down_shexp"),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    ("self_attn.kv_b_proj", "attn_kv_b"),
    ("self_attn.embed_q", "attn_k_b"),
    ("self_attn.unembed_out", "attn_v_b"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("block_sparse_moe.router.layer", "ffn_gate_inp"),
    ("block_sparse_moe.switch_mlp.gate_proj", "ffn_gate_exps"),
    ("block_sparse_moe.switch_mlp.up_proj", "ffn_up_exps"),
    ("block_sparse_moe.switch_mlp.down_proj", "ffn_down_exps"),
];

/// Keys of config.json with a whole number, and theirs in GGUF.
const COUNTS: &[(&str, &str)] = &[
    ("num_hidden_layers", "block_count"),
    ("max_position_embeddings", "context_length"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("head_dim", "attention.value_length"),
    ("sliding_window", "attention.sliding_window"),
    ("intermediate_size_mlp", "feed_forward_length"),
    ("interleave_moe_layer_step", "interleave_moe_layer_step"),
    ("n_routed_experts", "expert_count"),
    ("n_shared_experts", "expert_shared_count"),
    ("n_group", "expert_group_count"),
    ("topk_group", "expert_group_used_count"),
    ("first_k_dense_replace", "leading_dense_block_count"),
    ("q_lora_rank", "attention.q_lora_rank"),
    ("kv_lora_rank", "attention.kv_lora_rank"),
    ("num_experts", "expert_count"),
    ("num_local_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
    ("original_max_position_embeddings", "rope.scaling.original_context_length"),
];

/// The same for numbers.
const NUMBERS: &[(&str, &str)] = &[
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("layer_norm_eps", "attention.layer_norm_epsilon"),
    ("norm_epsilon", "attention.layer_norm_epsilon"),
    ("rope_theta", "rope.freq_base"),
    ("routed_scaling_factor", "expert_weights_scale"),
    ("llama_4_scaling_beta", "attention.temperature_scale"),
    ("attention_multiplier", "attention.scale"),
    ("embedding_multiplier", "embedding_scale"),
    ("residual_multiplier", "residual_scale"),
    ("logits_scaling", "logit_scale"),
    ("logit_scale", "logit_scale"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
];

impl Case {
    /// The model in a folder, with the config that GGUF can say.
    fn original(&self, folder: &Path) -> Value {
        copy_tiny_model(self.golden, folder).expect("copies");
        let mut config = config(self.golden);
        let has_text_part = config.get("text_config").is_some();
        let text = if has_text_part { &mut config["text_config"] } else { &mut config };
        for (key, value) in (self.fixed)().as_object().expect("keys") {
            text[key] = value.clone();
        }
        let text = text.clone();
        std::fs::write(folder.join("config.json"), config.to_string()).expect("config.json");
        text
    }

    fn gguf(&self, folder: &Path, config: &Value) -> TestGguf {
        let mut file = TestGguf { version: 3, keys: Vec::new(), tensors: Vec::new() };
        self.set_keys(config, &mut file);
        let vocab_size = config["vocab_size"].as_u64().expect("a size");
        let tokens: Vec<String> = (0..vocab_size).map(|id| format!("<{id}>")).collect();
        file.set_text("tokenizer.ggml.model", "gpt2");
        if !self.words.is_empty() {
            file.set_text("tokenizer.ggml.pre", self.words);
        }
        file.set_texts("tokenizer.ggml.tokens", &tokens);
        file.set_texts("tokenizer.ggml.merges", &[]);

        let weights = Array::load_safetensors(folder.join("model.safetensors")).expect("weights");
        let sizes = Sizes::of(config);
        for (name, weight) in &weights {
            let Some(name) = of_text_part(name) else { continue };
            match name.strip_suffix("self_attn.kv_b_proj.weight") {
                Some(layer) if self.splits_heads => {
                    for (name, weight) in split_heads(layer, weight, config) {
                        file.tensors.push(self.tensor(&name, &weight, &sizes));
                    }
                }
                _ => file.tensors.push(self.tensor(&name, weight, &sizes)),
            }
        }
        // Which the order of a hash map is not.
        file.tensors.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(factors) = config["rope_scaling"].get("long_factor") {
            let short = &config["rope_scaling"]["short_factor"];
            for (name, factors) in [("long", factors), ("short", short)] {
                let factors = factors.as_array().expect("factors").iter();
                let factors: Vec<f32> =
                    factors.map(|factor| factor.as_f64().expect("a number") as f32).collect();
                file.tensors.push(TestTensor {
                    name: format!("rope_factors_{name}.weight"),
                    shape: vec![factors.len()],
                    type_id: GgmlType::F32.id(),
                    data: factors.into_iter().flat_map(f32::to_le_bytes).collect(),
                });
            }
        }
        file
    }

    fn set_keys(&self, config: &Value, file: &mut TestGguf) {
        file.set_text("general.architecture", self.architecture);
        let key = |name: &str| format!("{}.{name}", self.architecture);
        for (from, to) in COUNTS {
            if let Some(value) = config[*from].as_u64() {
                file.set_u32(&key(to), value as u32);
            }
        }
        for (from, to) in NUMBERS {
            let nested = &config["rope_parameters"][*from];
            if let Some(value) = config[*from].as_f64().or(nested.as_f64()) {
                file.set_f32(&key(to), value as f32);
            }
        }
        if let Some(adds_up) = config["norm_topk_prob"].as_bool() {
            file.set_flag(&key("expert_weights_norm"), adds_up);
        }
        for (name, value) in self.keys {
            file.set_f32(&key(name), *value);
        }
        let part = config["partial_rotary_factor"].as_f64().unwrap_or(1.0);
        let rotated = config["qk_rope_head_dim"].as_f64();
        let rotated = rotated.unwrap_or(Sizes::of(config).head_dim as f64 * part);
        file.set_u32(&key("rope.dimension_count"), rotated as u32);
        for (name, value) in self.counts {
            file.set_u32(&key(name), *value);
        }
        let sections = [&config["rope_scaling"], &config["rope_parameters"]];
        let scaling =
            sections.into_iter().find(|section| !section.is_null()).unwrap_or(&Value::Null);
        let kind = scaling["rope_type"].as_str().or(scaling["type"].as_str());
        if let Some(kind @ ("linear" | "yarn")) = kind {
            file.set_text(&key("rope.scaling.type"), kind);
            let factor = scaling["factor"].as_f64().expect("a factor") as f32;
            file.set_f32(&key("rope.scaling.factor"), factor);
            if let Some(length) = scaling["original_max_position_embeddings"].as_u64() {
                let name = "rope.scaling.original_context_length";
                file.set_u32(&key(name), length as u32);
            }
            for name in ["beta_fast", "beta_slow"] {
                if let Some(value) = scaling[name].as_f64() {
                    file.set_f32(&key(&format!("rope.scaling.yarn_{name}")), value as f32);
                }
            }
        }
    }

    fn tensor(&self, name: &str, weight: &Array, sizes: &Sizes) -> TestTensor {
        let (prefix, module) = match name.strip_prefix("model.layers.") {
            None => (String::new(), name),
            Some(rest) => {
                let (layer, module) = rest.split_once('.').expect("a layer");
                (format!("blk.{layer}."), module)
            }
        };
        let named = |module: &str| {
            let known = self.names.iter().chain(NAMES).find(|(own, _)| *own == module);
            known.map(|(_, source)| *source)
        };
        // Few tensors have a name without a suffix, which stands for all of theirs in GGUF.
        let (source, suffix) = match (named(module), module.rsplit_once('.')) {
            (Some(whole), _) => whole.rsplit_once('.').expect("a suffix"),
            (None, Some((module, suffix))) => {
                let source = named(module);
                (source.unwrap_or_else(|| panic!("{}: {module}", self.golden)), suffix)
            }
            _ => panic!("{}: {module}", self.golden),
        };
        let is_half = weight.dtype() == Dtype::Bfloat16;
        let weight = weight.as_dtype(Dtype::Float32).expect("numbers");
        let weight = weight.contiguous().expect("contiguous");
        let mut shape: Vec<usize> = weight.shape().iter().map(|&length| length as usize).collect();
        let mut values = weight.as_slice::<f32>().to_vec();
        if self.rows == Rows::Interleaved && ["attn_q", "attn_k"].contains(&source) {
            values = interleave(&values, shape[0], sizes.head_dim);
        }
        if source.ends_with("norm") && suffix == "weight" {
            values.iter_mut().for_each(|value| *value += self.norm_offset);
        }
        if source == "ffn_gate_inp_shexp" {
            shape.remove(0);
        }
        let bytes = values.into_iter().map(f32::to_le_bytes);
        TestTensor {
            name: format!("{prefix}{source}.{suffix}"),
            shape,
            type_id: if is_half { GgmlType::Bf16 } else { GgmlType::F32 }.id(),
            // The upper half of a number that is a bfloat16 is all of it.
            data: bytes.flat_map(|number| number[2 * usize::from(is_half)..].to_vec()).collect(),
        }
    }
}

/// The name of a tensor in the text part; none of one that belongs to another.
fn of_text_part(name: &str) -> Option<String> {
    let is_other = ["multi_modal_projector.", "vision_tower.", "vision_model."];
    let is_other = is_other.iter().any(|part| name.contains(part));
    (!is_other).then(|| name.replace("language_model.", ""))
}

/// The matrix of keys and values of all heads as the two that newer files have: of each head that of
/// keys turned, and that of values.
fn split_heads(layer: &str, weight: &Array, config: &Value) -> [(String, Array); 2] {
    let size = |key: &str| config[key].as_u64().expect("a size") as i32;
    let (heads, rank) = (size("num_attention_heads"), size("kv_lora_rank"));
    let (plain, value) = (size("qk_nope_head_dim"), size("v_head_dim"));
    let weight = weight.reshape(&[heads, plain + value, rank]).expect("heads");
    let turned = weight.index((.., ..plain, ..)).transpose_axes(&[0, 2, 1]).expect("turned");
    [("embed_q", turned), ("unembed_out", weight.index((.., plain.., ..)))]
        .map(|(name, part)| (format!("{layer}self_attn.{name}.weight"), part))
}

struct Sizes {
    head_dim: usize,
}

impl Sizes {
    fn of(config: &Value) -> Sizes {
        let size = |key: &str| config[key].as_u64().map(|size| size as usize);
        let (hidden, heads) = (size("hidden_size"), size("num_attention_heads"));
        let usual = hidden.expect("a size") / heads.expect("a number");
        Sizes { head_dim: size("head_dim").unwrap_or(usual) }
    }
}

/// Row `p * D/2 + j` of a head becomes row `2j + p`.
fn interleave(values: &[f32], num_rows: usize, head_dim: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = values.chunks(values.len() / num_rows).collect();
    let from = |row: usize| {
        let (head, within) = (row / head_dim, row % head_dim);
        head * head_dim + within % 2 * (head_dim / 2) + within / 2
    };
    (0..num_rows).flat_map(|row| rows[from(row)]).copied().collect()
}

fn import(file: &TestGguf, folder: &Path, round_to: RoundTo) -> ImportedGguf {
    let path = folder.join("model.gguf");
    std::fs::write(&path, file.bytes()).expect("writes");
    let options = GgufImport { name: Some("imported"), round_to };
    let mut go_on = |_, _| ControlFlow::Continue(());
    import_gguf(&path, folder, options, &mut go_on).expect("imports")
}

/// The logits of the tokens.
fn logits(folder: &Path, tokens: &[u32]) -> Array {
    let (model, _) = Model::load(folder, LoadOptions::new().keep_quantized(true))
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    forward(&model, tokens, &mut model.make_cache())
}

#[test]
fn an_imported_model_computes_what_the_original_does() {
    for case in CASES {
        let folder = tempfile::tempdir().expect("a folder");
        let original = folder.path().join("original");
        let config = case.original(&original);
        let file = case.gguf(&original, &config);
        let imported = import(&file, folder.path(), RoundTo::default());
        assert_eq!(imported.rounding.num_tensors, 0);

        let vocab_size = config["vocab_size"].as_u64().expect("a size") as u32;
        let tokens: Vec<u32> = (0..40).map(|index| (index * 7 + 3) % vocab_size).collect();
        let expected = logits(&original, &tokens);
        let found = logits(&imported.folder, &tokens);
        let name = format!("{} as {}", case.golden, case.architecture);
        compare_within(&name, "logits", &found, &expected, 1e-4);
    }
}

/// The logits of a file, imported, for forty tokens of the case's model.
fn imported_logits(case: &Case, file: &TestGguf) -> (tempfile::TempDir, ImportedGguf, Array) {
    let folder = tempfile::tempdir().expect("a folder");
    let imported = import(file, folder.path(), RoundTo::default());
    let vocab_size = config(case.golden)["vocab_size"].as_u64().expect("a size") as u32;
    let tokens: Vec<u32> = (0..40).map(|index| (index * 7 + 3) % vocab_size).collect();
    let logits = logits(&imported.folder, &tokens);
    logits.eval().expect("computes");
    (folder, imported, logits)
}

fn case_of(golden: &str) -> &'static Case {
    CASES.iter().find(|case| case.golden == golden).expect("a case")
}

/// A file of the case's model.
fn file_of(case: &Case) -> TestGguf {
    let folder = tempfile::tempdir().expect("a folder");
    let original = folder.path().join("original");
    let config = case.original(&original);
    case.gguf(&original, &config)
}

#[test]
fn experts_in_mxfp4_stay_so_beside_other_types() {
    let case = case_of("gpt_oss/dense");
    let mut file = file_of(case);
    let names = file.tensors.iter().map(|tensor| tensor.name.clone());
    for name in names.collect::<Vec<_>>() {
        if name.contains("_exps.weight") {
            file.store_as(&name, GgmlType::Mxfp4);
        } else if name.contains("attn_") && name.ends_with(".weight") && !name.contains("norm") {
            let is_matrix = file.tensor(&name).shape.len() == 2;
            is_matrix.then(|| file.store_as(&name, GgmlType::Q8_0));
        }
    }
    let (_folder, imported, found) = imported_logits(case, &file);
    let (_other, _, expected) = imported_logits(case, &dequantized(&file));
    compare_within("gpt-oss in MXFP4", "logits", &found, &expected, 1e-3);

    let config = std::fs::read(imported.folder.join("config.json")).expect("config.json");
    let config: Value = serde_json::from_slice(&config).expect("JSON");
    let of_experts = &config["quantization"]["model.layers.0.mlp.experts.down_proj"];
    let in_mxfp4 = json!({ "group_size": 32, "bits": 4, "mode": "mxfp4" });
    let common = &config["quantization"];
    assert_eq!((of_experts, &common["bits"]), (&in_mxfp4, &json!(8)));
    assert_eq!(imported.rounding.num_tensors, 0);
}

#[test]
fn layers_for_further_tokens_are_kept_aside() {
    let case = case_of("glm4_moe/dense");
    let mut file = file_of(case);
    let (_folder, _, expected) = imported_logits(case, &file);
    let further: Vec<TestTensor> = file
        .tensors
        .iter()
        .filter_map(|tensor| {
            let name = format!("blk.2.{}", tensor.name.strip_prefix("blk.1.")?);
            let (shape, type_id) = (tensor.shape.clone(), tensor.type_id);
            Some(TestTensor { name, shape, type_id, data: tensor.data.clone() })
        })
        .collect();
    file.tensors.extend(further);
    for (name, shape) in [("eh_proj", vec![64, 128]), ("enorm", vec![64]), ("hnorm", vec![64])] {
        let num_bytes = 4 * shape.iter().product::<usize>();
        let name = format!("blk.2.nextn.{name}.weight");
        let type_id = GgmlType::F32.id();
        file.tensors.push(TestTensor { name, shape, type_id, data: vec![0; num_bytes] });
    }
    file.set_u32("glm4moe.block_count", 3);
    file.set_u32("glm4moe.nextn_predict_layers", 1);
    let (_other, imported, found) = imported_logits(case, &file);
    compare_within("glm4moe", "logits", &found, &expected, 1e-6);
    let weights = imported.folder.join("model.safetensors");
    let weights = Array::load_safetensors(weights).expect("weights");
    assert!(weights.contains_key("model.layers.2.eh_proj.weight"));
    assert!(weights.contains_key("model.layers.2.mlp.switch_mlp.up_proj.weight"));
}

#[test]
fn the_halves_of_keys_and_values_become_the_same_matrix() {
    let case = case_of("deepseek_v2/dense");
    assert!(case.splits_heads);
    let mut file = file_of(case);
    let folder = tempfile::tempdir().expect("a folder");
    case.original(folder.path());
    let original = Array::load_safetensors(folder.path().join("model.safetensors"));
    let name = "model.layers.1.self_attn.kv_b_proj.weight";
    let expected = original.expect("weights")[name].clone();
    let joined = |file: &TestGguf| {
        let (_folder, imported, _) = imported_logits(case, file);
        let weights = Array::load_safetensors(imported.folder.join("model.safetensors"));
        weights.expect("weights")[name].clone()
    };
    assert_eq!(joined(&file).as_slice::<f32>(), expected.as_slice::<f32>());
    // Halves of which one is quantized are those of its numbers.
    file.store_as("blk.1.attn_k_b.weight", GgmlType::Q4_0);
    let found = joined(&file);
    assert_eq!(found.as_slice::<f32>(), joined(&dequantized(&file)).as_slice::<f32>());
}

#[test]
fn every_architecture_has_a_case_and_is_documented() {
    let mut named: Vec<&str> = CASES.iter().map(|case| case.architecture).collect();
    named.sort_unstable();
    named.dedup();
    assert_eq!(named, architecture_names());
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/models.md");
    let page = std::fs::read_to_string(page).expect("docs/models.md");
    for name in named {
        assert!(page.contains(&format!("`{name}`")), "docs/models.md does not name {name}");
    }
}

/// Tokens of the wide model, which has the vocabulary of the small one.
const TOKENS: [u32; 6] = [5, 250, 33, 33, 8, 120];

/// A llama wide enough for the longest blocks, with matrices of that type.
fn wide(ggml_type: GgmlType) -> TestGguf {
    let mut file = TestGguf::tiny();
    for (key, value) in [
        ("llama.embedding_length", 256),
        ("llama.feed_forward_length", 512),
        ("llama.rope.dimension_count", 128),
    ] {
        file.set_u32(key, value);
    }
    for tensor in &mut file.tensors {
        for length in &mut tensor.shape {
            // What was 16, 32 and 64 wide; rows of the embedding are tokens.
            *length = if *length == 263 { 263 } else { *length * 8 };
        }
    }
    let shapes: HashMap<String, usize> =
        file.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape.len())).collect();
    for (name, rank) in &shapes {
        file.store_as(name, if *rank == 2 { ggml_type } else { GgmlType::F32 });
    }
    file
}

/// Its matrices, not quantized.
fn dequantized(file: &TestGguf) -> TestGguf {
    let tensors = file.tensors.iter().map(|tensor| TestTensor {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        type_id: GgmlType::F32.id(),
        data: as_f32(GgmlType::from_id(tensor.type_id), &tensor.data),
    });
    TestGguf { version: 3, keys: file.keys.clone(), tensors: tensors.collect() }
}

/// The logits of a file with matrices of a type, and of the same dequantized.
fn logits_of_both(ggml_type: GgmlType, round_to: RoundTo) -> (ImportedGguf, [Array; 2]) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = wide(ggml_type);
    let dense: PathBuf = folder.path().join("dense");
    std::fs::create_dir(&dense).expect("a folder");
    let dense = import(&dequantized(&file), &dense, round_to).folder;
    let imported = import(&file, folder.path(), round_to);
    assert_eq!(RoundedWeights::read(&imported.folder), imported.rounding.recorded());
    let both = [logits(&imported.folder, &TOKENS), logits(&dense, &TOKENS)];
    both.iter().for_each(|logits| logits.eval().expect("computes"));
    (imported, both)
}

#[test]
fn a_model_of_each_type_computes_what_its_dequantized_form_does() {
    use GgmlType::{Bf16, Iq4Nl, Iq4Xs, Mxfp4, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q8_0};
    for ggml_type in [Bf16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4K, Q5K, Iq4Nl, Iq4Xs, Mxfp4] {
        let (imported, [found, expected]) = logits_of_both(ggml_type, RoundTo::default());
        assert_eq!(imported.rounding.num_tensors, 0, "{ggml_type:?}");
        compare_within(&ggml_type.name(), "logits", &found, &expected, 1e-2);
    }
}

#[test]
fn types_without_an_exact_form_are_rounded_as_was_chosen() {
    for ggml_type in [GgmlType::Q2K, GgmlType::Q3K, GgmlType::Q6K] {
        for (round_to, most) in
            [(RoundTo::Bfloat16, 2e-3), (RoundTo::Bits8, 8e-3), (RoundTo::Bits4, 0.1)]
        {
            let (imported, _) = logits_of_both(ggml_type, round_to);
            let rounding = imported.rounding;
            assert_eq!(rounding.num_tensors, 8, "{ggml_type:?}");
            let error = rounding.relative_error();
            assert!((0.0..most).contains(&error), "{ggml_type:?} to {round_to:?}: {error}");
        }
    }
}
