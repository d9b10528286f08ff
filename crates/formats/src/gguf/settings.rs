//! The keys of config.json that single families have. What no key of GGUF says is what ggml-org's
//! llama.cpp takes for the same architecture.

use serde_json::{Map, Value, json};

use super::GgufProblem;
use super::sizes::{Keys, Sizes};

/// Adds the keys of the family `model_type`.
pub fn add_settings(
    model_type: &str,
    keys: &Keys,
    sizes: &Sizes,
    config: &mut Map<String, Value>,
) -> Result<(), GgufProblem> {
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
        "phi3" => {
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

fn add_experts(model_type: &str, sizes: &Sizes, set: &mut impl FnMut(&str, Value)) {
    let count_key = match model_type {
        "mixtral" | "granitemoe" => "num_local_experts",
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
        _ => set("intermediate_size", json!(sizes.expert_inner)),
    }
}
