//! Every family computes the same whatever way a prompt takes: at once or in steps, token by token,
//! beside others, after its context was stored, and with quantized keys and values. A new family is
//! one line of [`FAMILIES`].

use std::collections::HashMap;
use std::path::Path;

use cairn_lm::cache::chunk_state::{CacheAssembler, Checkpoint, EvaluatedLayers, TensorSlice};
use cairn_lm::cache::{CacheSpec, KvQuantization, LayerCache, LayerCacheSpec};
use cairn_lm::models::{Model, SUPPORTED};
use cairn_lm::{LmError, LoadOptions, ModelMemory};
use cairn_tests::{tiny_model, tiny_models};
use mlx_rs::Array;
use serde_json::{Value, json};

use crate::{Expected, compare, compare_within, config, forward};

/// A checkpoint of each family that has all kinds of its layers.
const FAMILIES: &[&str] = &[
    "cohere/normed",
    "cohere2/dense",
    "deepseek_v2/dense",
    "deepseek_v3/dense",
    "deepseek_v3/joyai",
    "deepseek_v3/kimi",
    "ernie4_5/bias",
    "ernie4_5_moe/dense",
    "exaone4/dense",
    "falcon_h1/dense",
    "gemma/quant4",
    "gemma2/dense",
    "gemma3/dense",
    "gemma3_text/pattern3",
    "gemma4/published",
    "gemma4/unified",
    "gemma4_text/dense",
    "gemma4_text/experts",
    "glm/dense",
    "glm4/dense",
    "glm4_moe/published",
    "glm4_moe_lite/published",
    "gpt_oss/dense",
    "granite/quant-mixed",
    "granitemoe/dense",
    "granitemoehybrid/dense",
    "helium/bias",
    "internlm3/bias",
    "jamba/dense",
    "kimi_k25/dense",
    "kimi_vl/dense",
    "lfm2/published",
    "lfm2_moe/dense",
    "llama/iquestcoder",
    "llama/mistral-windows",
    "llama/rope-yarn",
    "llama/xverse",
    "llama4/dense",
    "llama4_text/dense",
    "mamba2/dense",
    "mimo/published",
    "minicpm/dense",
    "ministral3/windows",
    "mistral3/ministral",
    "mixtral/dense",
    "nemotron_h/dense",
    "olmo2/dense",
    "olmo3/dense",
    "olmoe/dense",
    "phi3/longrope",
    "phimoe/dense",
    "qwen2/dense",
    "qwen2_moe/dense",
    "qwen3/quant4-tied",
    "qwen3_5/dense",
    "qwen3_5_moe/quant4",
    "qwen3_moe/quant4",
    "qwen3_next/dense",
    "seed_oss/dense",
    "smollm3/dense",
    "stablelm/parallel",
    "starcoder2/dense",
];

/// The lengths of the prompts whose last logits are expected.
const LENGTHS: [usize; 4] = [1, 5, 40, 300];
const STEP: usize = 64;
/// How many tokens are read one by one.
const NUM_SINGLE: usize = 24;

fn model(name: &str) -> Model {
    Model::load(&tiny_model(name), LoadOptions::new().keep_quantized(true))
        .unwrap_or_else(|error| panic!("{name}: {error}"))
        .0
}

/// The logits of the last token of `logits` `[1, T, vocab]`, `[vocab]`.
fn last(logits: &Array) -> Array {
    logits.take_axis(Array::from_slice(&[logits.dim(1) - 1], &[1]), 1).expect("the last")
}

/// The last logits of `tokens`, which are read `step` at a time after what `caches` hold.
fn read(model: &Model, tokens: &[u32], step: usize, caches: &mut [LayerCache]) -> Array {
    let steps = tokens.chunks(step).map(|tokens| forward(model, tokens, caches));
    last(&steps.last().expect("a token"))
}

/// The caches of a layer.
fn each(layer: LayerCacheSpec) -> Vec<LayerCacheSpec> {
    match layer {
        LayerCacheSpec::List(list) => list.entries.into_iter().flat_map(each).collect(),
        single => vec![single],
    }
}

/// docs/models.md's table.
fn table() -> String {
    let mut table =
        "| `model_type` | Models | Caches | Compared with mlx-lm |\n|---|---|---|---|\n".to_owned();
    for known in SUPPORTED {
        let is_of = |name: &String| config(name)["model_type"] == known.model_type;
        let cases: Vec<String> = tiny_models().into_iter().filter(is_of).collect();
        let layers = |name: &String| model(name).cache_spec().layers().to_vec();
        let layers: Vec<LayerCacheSpec> = cases.iter().flat_map(layers).flat_map(each).collect();
        let has = |is_kind: fn(&LayerCacheSpec) -> bool| layers.iter().any(is_kind);
        let kinds = [
            (has(|layer| matches!(layer, LayerCacheSpec::Kv(_))), "all tokens"),
            (has(|layer| matches!(layer, LayerCacheSpec::Rotating(_))), "windows"),
            (has(|layer| matches!(layer, LayerCacheSpec::Arrays(_))), "states"),
        ];
        let kinds: Vec<&str> =
            kinds.iter().filter(|(has, _)| *has).map(|(_, kind)| *kind).collect();
        let compared: Vec<&str> =
            cases.iter().map(|name| name.rsplit('/').next().unwrap_or(name)).collect();
        table.push_str(&format!(
            "| `{}` | {} | {} | {} |\n",
            known.model_type,
            known.models,
            kinds.join(", "),
            compared.join(", ")
        ));
    }
    table
}

#[test]
fn the_documentation_lists_every_family() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/models.md");
    let page = std::fs::read_to_string(page).expect("docs/models.md");
    let table = table();
    assert!(page.contains(&table), "docs/models.md has another table than this:\n{table}");
}

#[test]
fn every_family_has_a_line() {
    let mut named: Vec<String> = FAMILIES
        .iter()
        .map(|name| config(name)["model_type"].as_str().expect("a name").to_owned())
        .collect();
    named.sort();
    named.dedup();
    let supported: Vec<&str> = SUPPORTED.iter().map(|known| known.model_type).collect();
    assert_eq!(named, supported);
}

#[test]
fn prompts_of_all_lengths_compute_what_mlx_lm_computes() {
    for name in tiny_models() {
        let (model, expected) = (model(&name), Expected::of(&name));
        let long = expected.ids("long");
        for (index, length) in LENGTHS.into_iter().enumerate() {
            let row = Array::from_slice(&[index as i32], &[1]);
            let wanted = expected.array("last").take_axis(row, 0).expect("a row");
            for step in [length, STEP] {
                let found = read(&model, &long[..length], step, &mut model.make_cache());
                compare(&name, &format!("{length} tokens, {step} at once"), &found, &wanted);
            }
        }
    }
}

#[test]
fn tokens_that_are_read_one_by_one_compute_what_all_at_once_do() {
    for name in FAMILIES {
        let (model, long) = (model(name), Expected::of(name).ids("long"));
        let whole = forward(&model, &long, &mut model.make_cache());
        let mut caches = model.make_cache();
        let first = long.len() - NUM_SINGLE;
        read(&model, &long[..first], STEP, &mut caches);
        for index in first..long.len() {
            let found = read(&model, &long[index..=index], 1, &mut caches);
            let row = Array::from_slice(&[index as i32], &[1]);
            let wanted = whole.take_axis(row, 1).expect("a row");
            compare(name, &format!("token {index}"), &found, &wanted);
        }
    }
}

#[test]
fn rows_of_a_batch_compute_what_each_does_by_itself() {
    for name in FAMILIES {
        let (model, long) = (model(name), Expected::of(name).ids("long"));
        // Each has another length: the shorter ones are padded.
        let prompts = [&long[..37], &long[10..15], &long[20..91]];
        let mut rows = Vec::new();
        for prompt in prompts {
            let mut caches = model.make_cache();
            read(&model, &prompt[..prompt.len() - 1], STEP, &mut caches);
            rows.push(caches);
        }
        let mut single = rows.clone();
        let mut together = cairn_lm::cache::batch::merge(rows).expect("a batch");
        for shift in 0..3 {
            let next: Vec<u32> =
                prompts.iter().map(|prompt| prompt[prompt.len() - 1 - shift]).collect();
            let tokens = Array::from_slice(&next, &[next.len() as i32, 1]);
            let hidden = model.forward(&tokens, &mut together).expect("forward");
            let logits = model.logits(&hidden).expect("logits");
            for (index, (token, caches)) in next.iter().zip(&mut single).enumerate() {
                let wanted = read(&model, &[*token], 1, caches);
                let row = Array::from_slice(&[index as i32], &[1]);
                let found = logits.take_axis(row, 0).expect("a row");
                compare(name, &format!("row {index}, token {shift}"), &found, &wanted);
            }
        }
    }
}

#[test]
fn a_stored_context_continues_as_the_one_that_was_read() {
    for name in FAMILIES {
        let (model, long) = (model(name), Expected::of(name).ids("long"));
        let (stored, rest) = long.split_at(210);
        let mut caches = model.make_cache();
        read(&model, stored, STEP, &mut caches);
        let spec = CacheSpec::of(&caches).expect("one row");
        let mut restored = restored(&caches, &spec, stored.len()).expect("is restored");
        let wanted = read(&model, rest, STEP, &mut caches);
        let found = read(&model, rest, STEP, &mut restored);
        compare(name, "after a stored context", &found, &wanted);
    }
}

/// The caches as they come back from chunks of 100 tokens.
fn restored(
    caches: &[LayerCache],
    spec: &CacheSpec,
    num_tokens: usize,
) -> Result<Vec<LayerCache>, LmError> {
    // Windows and states are valid at their end only.
    let end = Checkpoint::of(caches.to_vec());
    let checkpoints: Vec<EvaluatedLayers> =
        end.iter().map(EvaluatedLayers::of_checkpoint).collect::<Result<_, _>>()?;
    let held = EvaluatedLayers::of(caches)?;
    let mut assembler = CacheAssembler::new(spec, num_tokens)?;
    for start in (0..num_tokens).step_by(100) {
        let stop = num_tokens.min(start + 100);
        let chunk = held.chunk_state(&checkpoints, start, stop)?;
        let tensors: HashMap<_, _> =
            chunk.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        assembler.add(start, stop, |name| {
            let tensor = tensors.get(name)?;
            let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
            Some(TensorSlice { dtype, shape, bytes: &chunk.bytes[tensor.range.clone()] })
        })?;
    }
    assembler.finish()
}

/// How far quantized keys and values may be from mlx-lm's, as a share of how far both are from exact
/// ones (root mean squares). A number between two steps may be rounded to the other one where sums
/// have another order: OpenBLAS's kernels for other processors made this up to 0.19. Another
/// rounding, or another group size, is as far from mlx-lm's as the two are from exact ones: above 1.
const QUANTIZED_SHARE: f32 = 0.5;
/// How far eight bits may be from none, in logits of a size around ten.
const EIGHT_BITS: f32 = 0.5;

#[test]
fn quantized_keys_and_values_compute_what_mlx_lm_computes() {
    let mut compared = 0;
    for name in tiny_models() {
        let (model, expected) = (model(&name), Expected::of(&name));
        let quantization = KvQuantization { bits: 8, group_size: 32, start: 0 };
        let Some(32 | 64) = model.cache_spec().kv_group_size() else { continue };
        let quantized = model.cache_spec().quantized(&quantization).expect("settings");
        let tokens = &expected.ids("long")[..40];
        let found = read(&model, tokens, tokens.len(), &mut quantized.make());
        let exact = read(&model, tokens, tokens.len(), &mut model.make_cache());
        let Some(wanted) = expected.find("last_kv8") else {
            compare_within(&name, "quantized keys", &found, &exact, EIGHT_BITS);
            continue;
        };
        compared += 1;
        let (off, scale) = (distance(&found, wanted), distance(&exact, wanted));
        assert!(off < QUANTIZED_SHARE * scale, "{name}, quantized keys: off by {off} of {scale}");
    }
    assert!(compared > 20, "{compared}");
}

/// The root mean square of differences.
fn distance(one: &Array, other: &Array) -> f32 {
    let squares = one.subtract(other).and_then(|off| off.square()?.mean(None)).expect("a mean");
    squares.sqrt().expect("a root").item_exact()
}

/// Values that a config may have by mistake or by malice, in place of a number.
fn hostile_numbers() -> Vec<Value> {
    vec![
        json!(-1),
        json!(0),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1_000_000_007),
        json!(-0.5),
        json!(1e-300),
        json!(1e308),
        json!(null),
        json!("NaN"),
        json!([]),
        json!({}),
    ]
}

/// Every place of a number in a config, as a JSON pointer.
fn numbers(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(path.to_owned()),
        Value::Object(entries) => {
            entries
                .iter()
                .for_each(|(name, entry)| numbers(entry, &format!("{path}/{name}"), found));
        }
        Value::Array(entries) => {
            let each = entries.iter().enumerate().take(2);
            each.for_each(|(index, entry)| numbers(entry, &format!("{path}/{index}"), found));
        }
        _ => {}
    }
}

/// Whatever stands in a config, it is refused or describes a model whose sizes are bounded.
#[test]
fn hostile_configs_are_refused_before_anything_is_allocated() {
    let mut refused = 0;
    for name in FAMILIES {
        let config = config(name);
        let mut places = Vec::new();
        numbers(&config, "", &mut places);
        for place in places {
            for value in hostile_numbers() {
                let mut hostile = config.clone();
                *hostile.pointer_mut(&place).expect("a place") = value;
                match ModelMemory::before_download(&hostile, 1 << 40) {
                    Ok(memory) => assert!(memory.num_layers() <= 1024, "{name}, {place}"),
                    Err(_) => refused += 1,
                }
            }
        }
        for scaling in [
            json!({"rope_type": "spiral", "factor": 2.0}),
            json!({"rope_type": "yarn", "factor": -2.0}),
            json!({"type": "longrope", "long_factor": [0.0]}),
        ] {
            let mut hostile = config.clone();
            hostile["rope_scaling"] = scaling.clone();
            // Families without scaled rotations do not read the key, as their reference.
            if let Err(error) = ModelMemory::before_download(&hostile, 1 << 40) {
                assert!(error.to_string().contains("rope"), "{name}: {error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}
