//! The keys of config.json that single families have. What no key of GGUF says is what ggml-org's
//! llama.cpp takes for the same architecture.

use serde_json::{Map, Value, json};

use super::GgufProblem;
use super::architecture::Architecture;
use super::sizes::{Keys, Sizes};

/// Adds the keys of the family of `architecture`.
pub fn add_settings(
    architecture: &Architecture,
    keys: &Keys,
    sizes: &Sizes,
    config: &mut Map<String, Value>,
) -> Result<(), GgufProblem> {
    let model_type = architecture.model_type;
    let mut set = |key: &str, value: Value| drop(config.insert(key.into(), value));
    match model_type {
        "llama" | "xverse" => set("hidden_act", json!("silu")),
        "qwen2" => set("use_sliding_window", json!(false)),
        "starcoder2" => set("use_bias", json!(true)),
        "smollm3" => set("no_rope_layer_interval", json!(4)),
        "granite" | "granitemoe" => {
            for (name, key) in [
                ("attention.scale", "attention_multiplier"),
                ("embedding_scale", "embedding_multiplier"),
                ("residual_scale", "residual_multiplier"),
                ("logit_scale", "logits_scaling"),
            ] {
                set(key, json!(keys.positive(name)?));
            }
        }
        "cohere" => set("logit_scale", json!(keys.positive("logit_scale")?)),
        "cohere2" => {
            set("logit_scale", json!(keys.positive("logit_scale")?));
            set("sliding_window", json!(keys.size(WINDOW)?));
            set("sliding_window_pattern", json!(4));
        }
        "gemma2" => {
            // The key has the window of every second layer.
            set("sliding_window", json!(keys.count(WINDOW)?.unwrap_or(4096)));
            set("query_pre_attn_scalar", json!(gemma_query_scalar(sizes, 46)));
            for name in ["attn_logit_softcapping", "final_logit_softcapping"] {
                set(name, json!(keys.positive(name)?));
            }
        }
        "gemma3_text" => {
            set("sliding_window", json!(keys.size(WINDOW)?));
            set("sliding_window_pattern", json!(6));
            set("query_pre_attn_scalar", json!(gemma_query_scalar(sizes, 62)));
            let local = keys.positive_or("rope.freq_base_swa", 10_000.0)?;
            set("rope_local_base_freq", json!(local));
            if let Some(cap) = keys.number("final_logit_softcapping")?.filter(|cap| *cap != 0.0) {
                set("final_logit_softcapping", json!(cap));
            }
        }
        "glm4_moe" | "deepseek_v2" | "deepseek_v3" => {
            add_deepseek_experts(model_type, keys, sizes, &mut set)?;
            // GLM's small model, which norms its latent vectors with the epsilon of its other norms.
            let words = keys.gguf.text("tokenizer.ggml.pre")?;
            if model_type == "deepseek_v3" && matches!(words, Some("glm4" | "chatglm-bpe")) {
                set("model_type", json!("glm4_moe_lite"));
                set("architectures", json!(["Glm4MoeLiteForCausalLM"]));
            }
        }
        "llama4" => {
            // Of which only the smaller one normalizes.
            set("use_qk_norm", json!(sizes.num_experts != 128));
            set("attention_chunk_size", json!(8192));
            set("interleave_moe_layer_step", json!(sizes.expert_step));
            set("intermediate_size", json!(sizes.expert_inner));
            set("intermediate_size_mlp", json!(sizes.inner));
            set("hidden_act", json!("silu"));
        }
        "mistral3" => {
            let growth = keys.number("attention.temperature_scale")?;
            if let Some(growth) = growth.filter(|growth| *growth != 0.0) {
                return add_ministral_positions(keys, growth, config);
            }
        }
        "gpt_oss" => set("sliding_window", json!(keys.size(WINDOW)?)),
        "phi3" | "phimoe" => {
            if let Some(length) = keys.count("rope.scaling.original_context_length")? {
                set("original_max_position_embeddings", json!(length));
            }
        }
        "exaone4" => {
            if let Some(window) = keys.count(WINDOW)?.filter(|window| *window != 0) {
                let kinds = windows(keys, sizes)?;
                let kinds = kinds.iter().map(|is_window| if *is_window { 'L' } else { 'G' });
                set("sliding_window", json!(window));
                set("sliding_window_pattern", json!(kinds.collect::<String>()));
            }
        }
        "olmo2" => {
            if let Some(window) = keys.count(WINDOW)?.filter(|window| *window != 0) {
                let kinds = windows(keys, sizes)?;
                let kind = |is_window: &bool| match is_window {
                    true => "sliding_attention",
                    false => "full_attention",
                };
                set("model_type", json!("olmo3"));
                set("architectures", json!(["Olmo3ForCausalLM"]));
                set("sliding_window", json!(window));
                set("layer_types", kinds.iter().map(kind).collect());
            }
        }
        _ => {}
    }
    add_experts(model_type, sizes, &mut set);
    Ok(())
}

const WINDOW: &str = "attention.sliding_window";

/// The largest model of each generation, which has so many layers, divides scores by another number
/// than the length of a head's vector.
fn gemma_query_scalar(sizes: &Sizes, layers_of_largest: usize) -> usize {
    match sizes.num_layers == layers_of_largest {
        true => sizes.hidden / sizes.num_heads,
        false => sizes.head_dim,
    }
}

/// Which layers attend to a window: by the file, or three of four.
fn windows(keys: &Keys, sizes: &Sizes) -> Result<Vec<bool>, GgufProblem> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let Some(listed) = keys.gguf.flags(&keys.key(PATTERN))? else {
        return Ok((1..=sizes.num_layers).map(|number| number % 4 != 0).collect());
    };
    if listed.len() != sizes.num_layers {
        let allowed = format!("one entry for each of {} layers", sizes.num_layers);
        return Err(keys.unsupported(PATTERN, format!("{} entries", listed.len()), &allowed));
    }
    Ok(listed)
}

/// Ministral's queries grow with their position: in the section that scales positions.
fn add_ministral_positions(
    keys: &Keys,
    growth: f64,
    config: &mut Map<String, Value>,
) -> Result<(), GgufProblem> {
    let theta = config.remove("rope_theta");
    let mut section = config.remove("rope_scaling").unwrap_or(json!({"rope_type": "default"}));
    section["original_max_position_embeddings"] =
        json!(keys.size("rope.scaling.original_context_length")?);
    section["llama_4_scaling_beta"] = json!(growth);
    section["rope_theta"] = theta.unwrap_or_default();
    config.insert("rope_parameters".into(), section);
    config.insert("model_type".into(), json!("ministral3"));
    Ok(())
}

/// The experts of DeepSeek and of families made after it, and of the former its latent vectors.
fn add_deepseek_experts(
    model_type: &str,
    keys: &Keys,
    sizes: &Sizes,
    set: &mut impl FnMut(&str, Value),
) -> Result<(), GgufProblem> {
    let num_groups = keys.count("expert_group_count")?.unwrap_or(1).max(1);
    let is_softmax = model_type == "deepseek_v2";
    set("n_routed_experts", json!(sizes.num_experts));
    set("n_shared_experts", json!(sizes.shared_inner / sizes.expert_inner));
    set("num_experts_per_tok", json!(sizes.num_chosen_experts));
    set("moe_intermediate_size", json!(sizes.expert_inner));
    set("first_k_dense_replace", json!(sizes.num_dense));
    set("moe_layer_freq", json!(1));
    set("n_group", json!(num_groups));
    set("topk_group", json!(keys.count("expert_group_used_count")?.unwrap_or(1).max(1)));
    set("routed_scaling_factor", json!(expert_scale(keys)?));
    let adds_up = keys.gguf.flag(&keys.key("expert_weights_norm"))?;
    set("norm_topk_prob", json!(adds_up.unwrap_or(false)));
    set("num_nextn_predict_layers", json!(sizes.num_mtp_layers));
    match (is_softmax, num_groups) {
        (false, _) => set("topk_method", json!("noaux_tc")),
        (true, 1) => set("topk_method", json!("greedy")),
        (true, _) => set("topk_method", json!("group_limited_greedy")),
    }
    set("scoring_func", json!(if is_softmax { "softmax" } else { "sigmoid" }));
    if model_type != "glm4_moe" {
        let latent = &sizes.latent;
        let query_rank = Some(latent.query_rank).filter(|rank| *rank > 0);
        set("q_lora_rank", json!(query_rank));
        set("kv_lora_rank", json!(latent.rank));
        set("qk_nope_head_dim", json!(latent.plain));
        set("qk_rope_head_dim", json!(latent.rotated));
        set("v_head_dim", json!(latent.value));
        set("attention_bias", json!(false));
    }
    Ok(())
}

/// What experts' shares are multiplied by; 0 stands for nothing.
fn expert_scale(keys: &Keys) -> Result<f64, GgufProblem> {
    const SCALE: &str = "expert_weights_scale";
    match keys.number(SCALE)? {
        None | Some(0.0) => Ok(1.0),
        Some(_) => keys.positive(SCALE),
    }
}

fn add_experts(model_type: &str, sizes: &Sizes, set: &mut impl FnMut(&str, Value)) {
    let count_key = match model_type {
        "mixtral" | "granitemoe" | "phimoe" | "gpt_oss" | "llama4" => "num_local_experts",
        "qwen2_moe" | "qwen3_moe" | "olmoe" => "num_experts",
        _ => return,
    };
    set(count_key, json!(sizes.num_experts));
    set("num_experts_per_tok", json!(sizes.num_chosen_experts));
    match model_type {
        "qwen2_moe" => {
            set("moe_intermediate_size", json!(sizes.expert_inner));
            set("shared_expert_intermediate_size", json!(sizes.shared_inner));
        }
        "qwen3_moe" => {
            set("moe_intermediate_size", json!(sizes.expert_inner));
            set("decoder_sparse_step", json!(1));
            set("norm_topk_prob", json!(true));
        }
        "olmoe" => {
            set("intermediate_size", json!(sizes.expert_inner));
            set("norm_topk_prob", json!(false));
        }
        "llama4" => {}
        _ => set("intermediate_size", json!(sizes.expert_inner)),
    }
}
