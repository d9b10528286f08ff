//! The text part of a model that has others too, such as one that sees images: its config and its
//! tensors as a model of text alone has them. Also the names of a decoder that was saved alone.

use std::path::Path;

use cairn_formats::safetensors::{SafetensorsFile, check_weight_files};
use serde_json::{Map, Value, json};

use crate::models::listed_type;
use crate::{LmError, rope_keys};

/// The `model_type`s of such models, with what their text parts take for keys that are left out.
fn usual(model_type: &str) -> Option<Value> {
    match listed_type(model_type) {
        "gemma3" => Some(json!({
            "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
        })),
        "gemma4" | "gemma4_unified" | "kimi_k25" | "kimi_vl" => Some(json!({})),
        "llama4" | "mistral3" | "qwen3_5" | "qwen3_5_moe" => {
            Some(json!({ "tie_word_embeddings": false }))
        }
        _ => None,
    }
}

fn model_type(config: &Value) -> &str {
    config.get("model_type").and_then(Value::as_str).unwrap_or_default()
}

/// The config of the text part, with the entries of the whole that it does not have, and with the
/// keys of the rotation in one form.
pub(crate) fn config(config: Value) -> Value {
    rope_keys::unify(as_stored(config)).config
}

/// The config of the text part, with the entries of the whole that it does not have; any other
/// model's config as it is.
pub(crate) fn as_stored(config: Value) -> Value {
    if model_type(&config) == "llama4_text" {
        return with_settings_renamed(config, name_of_llama4);
    }
    let Some(Value::Object(usual)) = usual(model_type(&config)) else { return config };
    let Value::Object(mut whole) = config else { return config };
    let Some(Value::Object(mut text)) = whole.remove("text_config") else {
        return Value::Object(whole);
    };
    whole.remove("vision_config");
    if let Some(kind) = text.remove("model_type") {
        text.insert("text_model_type".to_owned(), kind);
    }
    for (name, value) in usual {
        text.entry(name).or_insert(value);
    }
    // Embeddings of images are counted in the vocabulary of the whole.
    if let Some(vocab) = whole.remove("vocab_size") {
        text.insert("vocab_size".to_owned(), vocab);
    }
    let of_whole: Map<String, Value> = whole;
    let config = Value::Object(of_whole.into_iter().chain(text).collect());
    with_settings_renamed(config, name_in_text)
}

/// A config whose layers' own quantization stands under other names than in the files.
fn with_settings_renamed(mut config: Value, new_name: fn(&str) -> Option<String>) -> Value {
    for name in ["quantization", "quantization_config"] {
        if let Some(Value::Object(section)) = config.get_mut(name) {
            let renamed = |(name, value): (String, Value)| (new_name(&name).unwrap_or(name), value);
            *section = std::mem::take(section).into_iter().map(renamed).collect();
        }
    }
    config
}

/// The name of a tensor or a layer in a model of text alone; `None` for those of other parts.
fn name_in_text(name: &str) -> Option<String> {
    const OTHER_PARTS: [&str; 9] = [
        "vision_tower",
        "vision_model",
        "vision_embedder",
        "embed_vision",
        "audio_tower",
        "embed_audio",
        "multi_modal_projector",
        "mm_projector",
        "model.visual.",
    ];
    if OTHER_PARTS.iter().any(|part| name.contains(part)) {
        return None;
    }
    let newer = name.strip_prefix("model.language_model.").map(|rest| format!("model.{rest}"));
    newer.or_else(|| Some(name.strip_prefix("language_model.").unwrap_or(name).to_owned()))
}

/// The name of a tensor or a layer of Llama 4's text model, whose output layer mlx-lm calls
/// `output`.
fn name_of_llama4(name: &str) -> Option<String> {
    let output =
        name.strip_prefix("output").filter(|rest| rest.is_empty() || rest.starts_with('.'));
    Some(output.map_or_else(|| name.to_owned(), |rest| format!("lm_head{rest}")))
}

/// The weight files of the model in `folder`, with the tensors of its text part.
pub(crate) fn weight_files(folder: &Path, config: &Value) -> Result<Vec<SafetensorsFile>, LmError> {
    let files = check_weight_files(folder)?;
    if model_type(config) == "llama4_text" {
        return files.into_iter().map(|file| Ok(file.renamed(name_of_llama4)?)).collect();
    }
    if usual(model_type(config)).is_some() {
        return files.into_iter().map(|file| Ok(file.renamed(name_in_text)?)).collect();
    }
    match is_saved_alone(&files) {
        true => files.into_iter().map(|file| Ok(file.renamed(name_in_whole)?)).collect(),
        false => Ok(files),
    }
}

/// Whether files hold a decoder without the model around it. Embedding models are saved so:
/// `embed_tokens.weight` in place of `model.embed_tokens.weight`, and no output layer.
fn is_saved_alone(files: &[SafetensorsFile]) -> bool {
    let mut tensors = files.iter().flat_map(SafetensorsFile::tensors);
    tensors.any(|tensor| tensor.name == "embed_tokens.weight")
}

/// The name that a tensor of a decoder saved alone has in a whole model.
fn name_in_whole(name: &str) -> Option<String> {
    Some(match name.starts_with("model.") || name.starts_with("lm_head.") {
        true => name.to_owned(),
        false => format!("model.{name}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_part_has_its_own_keys_and_those_of_the_whole() {
        let whole = json!({
            "model_type": "gemma3", "vocab_size": 300, "eos_token_id": [1, 106],
            "vision_config": { "hidden_size": 9 },
            "text_config": { "model_type": "gemma3_text", "hidden_size": 64, "vocab_size": 299 },
            "quantization": { "bits": 4, "language_model.model.embed_tokens": { "bits": 8 } },
        });
        let expected = json!({
            "model_type": "gemma3", "vocab_size": 300, "eos_token_id": [1, 106],
            "text_model_type": "gemma3_text", "hidden_size": 64, "num_attention_heads": 8,
            "num_key_value_heads": 4, "max_position_embeddings": 131_072,
            "quantization": { "bits": 4, "model.embed_tokens": { "bits": 8 } },
        });
        assert_eq!(config(whole), expected);
        assert_eq!(config(expected.clone()), expected);
        let other = json!({ "model_type": "llama", "text_config": {} });
        assert_eq!(config(other.clone()), other);
    }

    #[test]
    fn tensors_of_other_parts_are_not_the_text_parts() {
        for (stored, expected) in [
            ("language_model.model.norm.weight", Some("model.norm.weight")),
            ("model.language_model.norm.weight", Some("model.norm.weight")),
            ("language_model.lm_head.weight", Some("lm_head.weight")),
            ("lm_head.weight", Some("lm_head.weight")),
            ("model.vision_tower.patch.weight", None),
            ("multi_modal_projector.linear_1.weight", None),
            ("model.embed_audio.embedding_projection.weight", None),
            ("model.vision_embedder.patch.weight", None),
            ("model.visual.blocks.0.norm1.weight", None),
        ] {
            assert_eq!(name_in_text(stored).as_deref(), expected, "{stored}");
        }
    }

    #[test]
    fn names_tensors_of_decoder_saved_alone() {
        for (stored, expected) in [
            ("embed_tokens.weight", "model.embed_tokens.weight"),
            ("layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
            ("norm.weight", "model.norm.weight"),
            ("lm_head.weight", "lm_head.weight"),
        ] {
            assert_eq!(name_in_whole(stored).as_deref(), Some(expected), "{stored}");
        }
    }
}
