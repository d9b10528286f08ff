//! Numbers equal to mlx-lm's: every tiny random checkpoint of tests/goldens, and the logits and
//! tokens that the pinned oracle computed from it. A new golden needs no line here.

mod families;
mod gguf_families;
mod hostile_configs;
mod other_forms;
mod published;

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use cairn_formats::python_json;
use cairn_lm::cache::LayerCache;
use cairn_lm::models::{Model, SUPPORTED};
use cairn_lm::{GenerateOptions, LoadOptions, Sampler, generate_step};
use cairn_tests::{copy_tiny_model, goldens, tiny_model, tiny_models};
use mlx_rs::ops::indexing::{self, IndexOp};
use mlx_rs::{Array, ops};
use serde_json::{Value, json};

/// f32 on both sides; different BLAS kernels move tiny models by 1e-5, a wrong formula by whole
/// units.
const TOLERANCE: f32 = 1e-3;

#[test]
fn checkpoints_compute_what_mlx_lm_computes() {
    for name in tiny_models() {
        check(&name, true);
    }
}

#[test]
fn dequantizing_at_load_changes_no_answer() {
    let names: Vec<String> = tiny_models().into_iter().filter(|name| is_quantized(name)).collect();
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        check(&name, false);
    }
}

#[test]
fn every_supported_architecture_has_a_golden() {
    let of_goldens: BTreeSet<String> = tiny_models()
        .iter()
        .filter_map(|name| Some(config(name).get("model_type")?.as_str()?.to_owned()))
        .collect();
    for known in SUPPORTED {
        assert!(
            of_goldens.contains(known.model_type),
            "{}: see tests/goldens/make_goldens.py",
            known.model_type
        );
    }
}

/// The reference leaves the softcap out, so its numbers are capped here.
#[test]
fn gemma3_caps_logits_where_the_config_asks() {
    const NAME: &str = "gemma3_text/dense";
    const CAP: f32 = 3.0;
    let folder = tempfile::tempdir().expect("folder");
    copy_tiny_model(NAME, folder.path()).expect("copies");
    let mut config = config(NAME);
    config["final_logit_softcapping"] = json!(CAP);
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("config.json");

    let (model, _) = Model::load(folder.path(), LoadOptions::new()).expect("load");
    let expected = Expected::of(NAME);
    let capped: Vec<f32> = expected
        .array("logits")
        .as_slice::<f32>()
        .iter()
        .map(|logit| CAP * (logit / CAP).tanh())
        .collect();
    let logits = forward(&model, &expected.ids("tokens"), &mut model.make_cache());
    let capped = Array::from_slice(&capped, expected.array("logits").shape());
    compare(NAME, "capped logits", &logits, &capped);
}

/// The logits of heads that predict further tokens: of all pairs at once, in pieces, and one further.
#[test]
fn heads_compute_what_the_published_formula_says() {
    let mut num_heads = 0;
    for name in tiny_models() {
        let expected = Expected::of(&name);
        let Some(logits) = expected.find("mtp_logits") else { continue };
        num_heads += 1;
        for keep_quantized in [true, false] {
            let (model, _) =
                Model::load(&tiny_model(&name), LoadOptions::new().keep_quantized(keep_quantized))
                    .unwrap_or_else(|error| panic!("{name}: {error}"));
            let tokens = expected.ids("tokens2");
            for lengths in [&[23][..], &[16, 1, 6]] {
                let (found, further) = predict(&model, &tokens, lengths);
                compare(&name, "of the head", &found, logits);
                compare(&name, "one further", &further, expected.array("mtp_further"));
            }
        }
    }
    assert_eq!(num_heads, 7);
}

/// The logits of the head behind each two of `tokens`, which are read in pieces of `lengths`, and those
/// behind the likeliest token that follows.
fn predict(model: &Model, tokens: &[u32], lengths: &[usize]) -> (Array, Array) {
    let ids = |tokens: &[u32]| Array::from_slice(tokens, &[1, tokens.len() as i32]);
    let hidden = model.forward(&ids(tokens), &mut model.make_cache()).expect("forward");
    let mut caches = model.make_mtp_cache().expect("a head");
    let (mut start, mut logits, mut last) = (0, Vec::new(), None);
    for length in lengths {
        let rows = hidden.index((.., start..start + *length as i32, ..));
        let behind = ids(&tokens[start as usize + 1..][..*length]);
        let predicted = model.forward_mtp(&behind, &rows, &mut caches).expect("the head");
        logits.push(model.logits(&predicted).expect("logits"));
        start += *length as i32;
        last = Some(predicted.index((.., -1.., ..)));
    }
    let last = last.expect("a piece");
    let likeliest = indexing::argmax_axis(model.logits(&last).expect("logits"), -1, false)
        .expect("the likeliest token");
    let further = model.forward_mtp(&likeliest, &last, &mut caches).expect("the head");
    let logits = ops::concatenate(&logits, 1).expect("concatenates");
    (logits, model.logits(&further).expect("logits"))
}

/// One forward pass, one continued from a cache, and greedy decoding of a checkpoint, against the
/// oracle's.
fn check(name: &str, keep_quantized: bool) {
    let (model, _) =
        Model::load(&tiny_model(name), LoadOptions::new().keep_quantized(keep_quantized))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    let expected = Expected::of(name);

    let mut caches = model.make_cache();
    let logits = forward(&model, &expected.ids("tokens"), &mut caches);
    compare(name, "logits", &logits, expected.array("logits"));

    let mut caches = model.make_cache();
    let tokens = expected.ids("tokens2");
    forward(&model, &tokens[..16], &mut caches);
    let logits = forward(&model, &tokens[16..], &mut caches);
    compare(name, "logits2", &logits, expected.array("logits2"));

    let greedy = expected.ids("greedy");
    for prefill_step_size in [2048, 7] {
        let options = GenerateOptions {
            max_tokens: greedy.len(),
            prefill_step_size,
            ..GenerateOptions::default()
        };
        let found = decode(&model, &expected.ids("tokens"), options);
        assert_eq!(found, greedy, "{name}, greedy, {prefill_step_size} prompt tokens at once");
    }
}

/// The arrays of `expected.safetensors`.
struct Expected(std::collections::HashMap<String, Array>);

impl Expected {
    fn of(name: &str) -> Expected {
        let file = goldens().join(name).join("expected.safetensors");
        Expected(Array::load_safetensors(file).expect("expected.safetensors"))
    }

    fn array(&self, name: &str) -> &Array {
        &self.0[name]
    }

    fn find(&self, name: &str) -> Option<&Array> {
        self.0.get(name)
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        self.array(name).as_slice::<i32>().iter().map(|&id| id as u32).collect()
    }
}

fn config(name: &str) -> Value {
    let config = std::fs::read(goldens().join(name).join("config.json")).expect("config.json");
    python_json(&config).expect("config.json")
}

fn is_quantized(name: &str) -> bool {
    ["quantization", "quantization_config"].iter().any(|key| config(name).get(*key).is_some())
}

fn decode(model: &Model, prompt: &[u32], options: GenerateOptions) -> Vec<u32> {
    let mut caches = model.make_cache();
    let mut on_progress = |_, _| ControlFlow::Continue(());
    let mut stream =
        generate_step(model, prompt, &mut caches, Sampler::Greedy, options, &mut on_progress)
            .expect("start");
    let mut tokens = Vec::new();
    while let Some(step) = stream.next_token().expect("step") {
        tokens.push(step.token);
    }
    tokens
}

/// Logits [1, T, vocab] of the tokens after what the caches hold.
fn forward(model: &Model, tokens: &[u32], caches: &mut [LayerCache]) -> Array {
    let hidden = model
        .forward(&Array::from_slice(tokens, &[1, tokens.len() as i32]), caches)
        .expect("forward");
    model.logits(&hidden).expect("logits")
}

fn compare(case: &str, name: &str, found: &Array, expected: &Array) {
    compare_within(case, name, found, expected, TOLERANCE);
}

fn compare_within(case: &str, name: &str, found: &Array, expected: &Array, tolerance: f32) {
    let [found, expected] = [found, expected].map(|array| array.contiguous().expect("contiguous"));
    let (found, expected) = (found.as_slice::<f32>(), expected.as_slice::<f32>());
    assert_eq!(found.len(), expected.len(), "{case}, {name}");
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    // `max` passes over NaN.
    let worst = differences.fold(0.0, |worst: f32, difference| {
        if difference.is_nan() { f32::INFINITY } else { worst.max(difference) }
    });
    assert!(worst < tolerance, "{case}, {name}: off by {worst}");
}
