//! A config.json of any family with one value replaced by a hostile one is refused in one sentence
//! or counted; it never panics, and what follows from it takes no memory to speak of.

use cairn_lm::ModelMemory;
use cairn_tests::tiny_models;
use serde_json::{Value, json};

use crate::config;

/// Values that no key of a config should have, and some that are right for few.
fn hostile_values() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(0),
        json!(1),
        json!(-1),
        json!(3),
        json!(7919),
        json!(i64::from(i32::MAX)),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1e308),
        json!(-1e308),
        json!(5e-324),
        json!(0.3),
        json!("nan"),
        json!(""),
        json!([]),
        json!([1, "a", null]),
        json!(vec![1_000_000_000_i64; 64]),
        json!({}),
        json!({ "rope_type": "unknown", "factor": -1.0 }),
        json!({ "rope_type": "yarn", "factor": 1e300, "original_max_position_embeddings": 0 }),
        json!({ "rope_type": "llama3", "factor": 0.0 }),
        json!({ "rope_type": "longrope", "long_factor": ["x"], "short_factor": [] }),
        json!({ "quant_method": "gptq", "desc_act": true }),
        json!({ "group_size": -64, "bits": 1e9 }),
    ]
}

/// Keys that families read beside those of their goldens.
const MORE_KEYS: &[&str] = &[
    "head_dim",
    "layer_types",
    "num_key_value_heads",
    "partial_rotary_factor",
    "quantization",
    "quantization_config",
    "rope_parameters",
    "rope_scaling",
    "sliding_window",
    "sliding_window_pattern",
    "text_config",
];

/// Every path of objects to a value.
fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
    let Some(entries) = value.as_object() else { return };
    for (key, value) in entries {
        let path = format!("{path}/{key}");
        paths(value, &path, found);
        found.push(path);
    }
}

/// What is said of a config, or the refusal. Panics where the sentence is none.
fn described(name: &str, path: &str, config: &Value) -> bool {
    match ModelMemory::before_download(config, 1 << 30) {
        Ok(memory) => {
            // Sums saturate; they never wrap to something small.
            memory.peak_bytes(memory.context_length.min(4096), 1, 2048);
            true
        }
        Err(error) => {
            let text = error.to_string();
            let is_sentence = !text.is_empty() && text.len() < 4000 && !text.contains('\n');
            assert!(is_sentence, "{name}, {path}: {text:?}");
            false
        }
    }
}

#[test]
fn a_hostile_value_is_refused_or_counted_whatever_the_family() {
    let (mut num_refused, mut num_counted) = (0, 0);
    let mut families = std::collections::BTreeSet::new();
    for name in tiny_models() {
        let original = config(&name);
        // One model of each family: others have the same keys.
        if !families.insert(original["model_type"].to_string()) {
            continue;
        }
        let mut keys: Vec<String> = MORE_KEYS.iter().map(|key| format!("/{key}")).collect();
        paths(&original, "", &mut keys);
        for path in keys {
            for value in hostile_values() {
                let mut changed = original.clone();
                match changed.pointer_mut(&path) {
                    Some(place) => *place = value,
                    None => changed[path.trim_start_matches('/')] = value,
                }
                match described(&name, &path, &changed) {
                    true => num_counted += 1,
                    false => num_refused += 1,
                }
            }
            let mut changed = original.clone();
            if let Some(entries) = changed.as_object_mut() {
                entries.remove(path.trim_start_matches('/'));
            }
            described(&name, &path, &changed);
        }
    }
    // Most keys are not read by most families; those that are have limits.
    assert!(num_refused > 5_000 && num_counted > 1_000, "{num_refused} of {num_counted} refused");
}
