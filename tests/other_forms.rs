//! Configs and files of other forms compute what the usual form computes.

use std::path::Path;

use cairn_lm::LoadOptions;
use cairn_lm::models::Model;
use cairn_tests::{copy_tiny_model, tiny_models};
use mlx_rs::Array;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::{Expected, compare, config, forward};

/// The logits of a tiny model's second prompt with another config.json, `[8, vocab]`.
fn logits(name: &str, config: &Value, change_files: impl FnOnce(&Path)) -> Array {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("model");
    copy_tiny_model(name, &folder).expect("a model");
    std::fs::write(folder.join("config.json"), config.to_string()).expect("config.json");
    change_files(&folder);
    let options = LoadOptions::new().keep_quantized(true);
    let (model, _) =
        Model::load(&folder, options).unwrap_or_else(|error| panic!("{name}, {config}: {error}"));
    let tokens = Expected::of(name).ids("tokens2");
    let mut caches = model.make_cache();
    forward(&model, &tokens[..16], &mut caches);
    forward(&model, &tokens[16..], &mut caches)
}

fn check(name: &str, what: &str, config: &Value) {
    let found = logits(name, config, |_| {});
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

#[test]
fn aliases_are_the_architectures_that_they_stand_for() {
    for (name, aliases) in [
        ("qwen3_5/dense", ["qwen3_5_text", "qwen3_8", "qwen3_8_text"]),
        ("qwen3_5_moe/dense", ["qwen3_5_moe_text", "qwen3_8_moe", "qwen3_8_moe_text"]),
    ] {
        for alias in aliases {
            let mut changed = config(name);
            if alias.ends_with("_text") {
                // As a text model that is stored by itself.
                let text = changed["text_config"].take();
                changed.as_object_mut().expect("an object").remove("text_config");
                for (key, value) in text.as_object().expect("an object") {
                    changed[key] = value.clone();
                }
            }
            changed["model_type"] = json!(alias);
            check(name, alias, &changed);
        }
    }
}

#[test]
fn gemma4_reads_the_sizes_of_single_layers() {
    for name in ["gemma4_text/dense", "gemma4_text/experts", "gemma4/published"] {
        let mut changed = config(name);
        let keys = text(&mut changed);
        let mut own = json!({ "head_dim": keys["global_head_dim"] });
        if keys["attention_k_eq_v"] == true {
            own["num_key_value_heads"] = keys["num_global_key_value_heads"].clone();
        }
        let types = keys["layer_types"].as_array().expect("types").iter().enumerate();
        let full = types.filter(|(_, kind)| **kind == "full_attention");
        let layers = full.map(|(index, _)| (index.to_string(), own.clone())).collect();
        keys["per_layer_config"] = Value::Object(layers);
        let keys = keys.as_object_mut().expect("an object");
        keys.remove("global_head_dim");
        keys.remove("num_global_key_value_heads");
        check(name, "with per_layer_config", &changed);
    }
}

/// Adds a tensor to the weight file: a copy of another, each number twice as large.
fn add_doubled(folder: &Path, of: &str, name: &str) {
    let path = folder.join("model.safetensors");
    let bytes = std::fs::read(&path).expect("the weights");
    let tensors = SafeTensors::deserialize(&bytes).expect("tensors");
    let source = tensors.tensor(of).expect("the tensor");
    let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
    let doubled: Vec<u8> = source
        .data()
        .chunks_exact(4)
        .flat_map(|bytes| (2.0 * number(bytes)).to_le_bytes())
        .collect();
    let added = TensorView::new(source.dtype(), source.shape().to_vec(), &doubled).expect("a view");
    let mut all: Vec<(String, TensorView)> = tensors.tensors();
    all.push((name.to_owned(), added));
    let bytes = safetensors::serialize(all, None).expect("bytes");
    std::fs::remove_file(&path).expect("the copy");
    std::fs::write(path, bytes).expect("the file");
}

#[test]
fn llama4_text_takes_an_output_layer_of_its_own() {
    let name = "llama4_text/dense";
    let mut untied = config(name);
    untied["tie_word_embeddings"] = json!(false);
    let expected = Expected::of(name).array("logits2") * Array::from_f32(2.0);
    for output in ["lm_head.weight", "output.weight"] {
        let add = |folder: &Path| add_doubled(folder, "model.embed_tokens.weight", output);
        compare(name, output, &logits(name, &untied, add), &expected);
    }
}
