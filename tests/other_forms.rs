//! Configs and files of other forms compute what the usual form computes.

use cairn_lm::LoadOptions;
use cairn_lm::models::Model;
use cairn_tests::{copy_tiny_model, tiny_models};
use mlx_rs::Array;
use serde_json::{Value, json};

use crate::{Expected, compare, config, forward};

/// The logits of a tiny model's second prompt with another config.json, `[8, vocab]`.
fn logits(name: &str, config: &Value) -> Array {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("model");
    copy_tiny_model(name, &folder).expect("a model");
    std::fs::write(folder.join("config.json"), config.to_string()).expect("config.json");
    let options = LoadOptions::new().keep_quantized(true);
    let (model, _) =
        Model::load(&folder, options).unwrap_or_else(|error| panic!("{name}, {config}: {error}"));
    let tokens = Expected::of(name).ids("tokens2");
    let mut caches = model.make_cache();
    forward(&model, &tokens[..16], &mut caches);
    forward(&model, &tokens[16..], &mut caches)
}

fn check(name: &str, what: &str, config: &Value) {
    let found = logits(name, config);
    compare(name, what, &found, Expected::of(name).array("logits2"));
}

/// The keys of the text model in a config.
fn text(config: &mut Value) -> &mut Value {
    match config.get("text_config").is_some() {
        true => &mut config["text_config"],
        false => config,
    }
}

#[test]
fn rope_parameters_win_in_every_family() {
    let (mut num_flat, mut num_nested) = (0, 0);
    for name in tiny_models() {
        let mut changed = config(&name);
        let keys = text(&mut changed);
        let theta = keys["rope_theta"].as_f64();
        let nested = keys["rope_parameters"].clone();
        match (theta, nested.get("rope_theta")) {
            (Some(theta), None) => {
                keys["rope_theta"] = json!(4.0 * theta);
                let mut nested = json!({ "rope_theta": theta });
                if let Some(factor) = keys.get("partial_rotary_factor").filter(|key| !key.is_null())
                {
                    nested["partial_rotary_factor"] = factor.clone();
                    keys["partial_rotary_factor"] = json!(1.0);
                }
                keys["rope_parameters"] = nested;
                num_flat += 1;
            }
            (None, Some(theta)) => {
                keys["rope_theta"] = json!(4.0 * theta.as_f64().expect("a number"));
                num_nested += 1;
            }
            // By the type of layer, or usual.
            _ => continue,
        }
        // Gemma 3 has a rotation for each type of layer.
        if changed.to_string().contains("\"gemma3") {
            continue;
        }
        check(&name, "with rope_parameters", &changed);
    }
    assert!(num_flat > 60 && num_nested > 10, "{num_flat}, {num_nested}");
}
