//! config.json of the new model: the old one's entries, and how its matrices are packed. Reference:
//! mlx-lm's `load_config`, `quantize_model` and `save_config`.

use serde_json::{Map, Value, json};

use crate::config::Quantization;

/// Entries about what the new model lacks.
const REMOVED: [&str; 2] = ["_name_or_path", "vision_config"];

/// The settings of a whole model and of single matrices.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    /// Of all matrices that have none of their own; the model's, if it was quantized before.
    pub(super) common: Option<Value>,
    /// By the path of the matrix.
    pub(super) own: Vec<(String, Value)>,
}

/// The new config.
pub(super) fn new_config(
    old: Value,
    generation: Option<&Value>,
    settings: Option<Settings>,
) -> Value {
    let Value::Object(mut config) = old else { return old };
    for name in REMOVED {
        config.remove(name);
    }
    if let Some(token) = generation.and_then(|config| config.get("eos_token_id"))
        && is_something(token)
    {
        config.insert("eos_token_id".to_owned(), token.clone());
    }
    for name in ["quantization", "quantization_config"] {
        config.remove(name);
    }
    if let Some(Value::Object(text)) = config.get_mut("text_config") {
        for name in ["quantization", "quantization_config"] {
            text.remove(name);
        }
    }
    if let Some(Settings { common: Some(Value::Object(mut section)), own }) = settings {
        section.extend(own);
        config.insert("quantization".to_owned(), Value::Object(section.clone()));
        config.insert("quantization_config".to_owned(), Value::Object(section));
    }
    let mut entries: Vec<(String, Value)> = config.into_iter().collect();
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    tagged(Value::Object(entries.into_iter().collect()))
}

/// Whether Python takes it for true.
fn is_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// Settings as config.json has them, with their mode if they are not the family's own.
pub(super) fn entry(settings: Quantization, with_mode: bool) -> Value {
    let Quantization { mode, group_size, bits } = settings;
    match with_mode {
        true => json!({
            "group_size": group_size, "bits": bits, "mode": mode.name().to_string_lossy(),
        }),
        false => json!({ "group_size": group_size, "bits": bits }),
    }
}

/// Numbers that JSON has no form for, which were read as words, as newer tools write them.
fn tagged(value: Value) -> Value {
    match value {
        Value::String(word) if ["Infinity", "-Infinity", "NaN"].contains(&word.as_str()) => {
            json!({ "__float__": word })
        }
        Value::Array(list) => Value::Array(list.into_iter().map(tagged).collect()),
        Value::Object(map) if map.contains_key("__float__") => Value::Object(map),
        Value::Object(map) => {
            let entries = map.into_iter().map(|(name, value)| (name, tagged(value)));
            Value::Object(entries.collect::<Map<_, _>>())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_other_parts_go_and_numbers_without_a_form_are_tagged() {
        let old = json!({
            "vision_config": { "hidden_size": 9 }, "_name_or_path": "x", "model_type": "llama",
            "eos_token_id": 2, "time_step_limit": [0.0, "Infinity"],
            "quantization_config": { "quant_method": "fp8" },
            "text_config": { "quantization": { "bits": 4 }, "quantization_config": {} },
        });
        let generation = json!({ "eos_token_id": [2, 7] });
        let expected = json!({
            "eos_token_id": [2, 7], "model_type": "llama", "text_config": {},
            "time_step_limit": [0.0, { "__float__": "Infinity" }],
        });
        assert_eq!(new_config(old.clone(), Some(&generation), None), expected);
        let again = new_config(expected.clone(), Some(&json!({ "eos_token_id": 0 })), None);
        assert_eq!(again, expected);
    }
}
