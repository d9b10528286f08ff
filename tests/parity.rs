//! Numbers equal to mlx-lm's: tiny random checkpoints and the logits that the pinned oracle
//! computed from them.

use std::ops::ControlFlow;

use cairn_lm::models::Model;
use cairn_lm::{GenerateOptions, LoadOptions, Sampler, generate_step};
use mlx_rs::Array;

/// f32 on both sides; different BLAS kernels move tiny models by 1e-5, a wrong formula by whole
/// units.
const TOLERANCE: f32 = 1e-3;

/// One forward pass, one continued from a cache, and greedy decoding of a checkpoint, against the
/// oracle's.
fn check(case: &str, keep_quantized: bool) {
    let folder = cairn_tests::goldens().join(case);
    let (model, _) = Model::load(&folder, LoadOptions { keep_quantized })
        .unwrap_or_else(|error| panic!("{case}: {error}"));
    let expected =
        Array::load_safetensors(folder.join("expected.safetensors")).expect("expected.safetensors");
    let ids = |name: &str| -> Vec<u32> {
        expected[name].as_slice::<i32>().iter().map(|&id| id as u32).collect()
    };

    let mut caches = model.make_cache();
    let logits = forward(&model, &ids("tokens"), &mut caches);
    compare(case, "logits", &logits, &expected["logits"]);

    let mut caches = model.make_cache();
    let tokens = ids("tokens2");
    forward(&model, &tokens[..16], &mut caches);
    compare(case, "logits2", &forward(&model, &tokens[16..], &mut caches), &expected["logits2"]);

    let greedy = ids("greedy");
    for prefill_step_size in [2048, 7] {
        let options = GenerateOptions {
            max_tokens: greedy.len(),
            prefill_step_size,
            ..GenerateOptions::default()
        };
        let mut caches = model.make_cache();
        let mut on_progress = |_, _| ControlFlow::Continue(());
        let mut stream = generate_step(
            &model,
            &ids("tokens"),
            &mut caches,
            Sampler::Greedy,
            options,
            &mut on_progress,
        )
        .expect("start");
        let mut sampled = Vec::new();
        while let Some(step) = stream.next_token().expect("step") {
            sampled.push(step.token);
        }
        assert_eq!(sampled, greedy, "{case}, greedy, {prefill_step_size} prompt tokens at once");
    }
}

fn forward(model: &Model, tokens: &[u32], caches: &mut [cairn_lm::cache::LayerCache]) -> Array {
    let hidden = model
        .forward(&Array::from_slice(tokens, &[1, tokens.len() as i32]), caches)
        .expect("forward");
    model.logits(&hidden).expect("logits")
}

fn compare(case: &str, name: &str, found: &Array, expected: &Array) {
    let found = found.contiguous().expect("contiguous");
    let (found, expected) = (found.as_slice::<f32>(), expected.as_slice::<f32>());
    assert_eq!(found.len(), expected.len(), "{case}, {name}");
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    // `max` passes over NaN.
    let worst = differences.fold(0.0, |worst: f32, difference| {
        if difference.is_nan() { f32::INFINITY } else { worst.max(difference) }
    });
    assert!(worst < TOLERANCE, "{case}, {name}: off by {worst}");
}

#[test]
fn dense_checkpoints_compute_what_mlx_lm_computes() {
    for case in [
        "dense-tied",
        "dense-untied",
        "dense-bf16",
        "head-dim",
        "bias",
        "gqa",
        "mistral",
        "sharded",
    ] {
        check(&format!("llama/{case}"), false);
    }
}

#[test]
fn rope_variants_compute_what_mlx_lm_computes() {
    for case in ["rope-llama3", "rope-linear", "rope-traditional"] {
        check(&format!("llama/{case}"), true);
    }
}

#[test]
fn gemma3_computes_what_mlx_lm_computes() {
    for case in ["dense", "dense-bf16", "pattern3", "layer-types", "long-prompt", "untied"] {
        check(&format!("gemma3_text/{case}"), false);
    }
}

/// The reference leaves the softcap out, so its numbers are capped here.
#[test]
fn gemma3_caps_logits_where_the_config_asks() {
    const CAP: f32 = 3.0;
    let golden = cairn_tests::goldens().join("gemma3_text/dense");
    let folder = tempfile::tempdir().expect("folder");
    std::fs::copy(golden.join("model.safetensors"), folder.path().join("model.safetensors"))
        .expect("copy");
    let config = std::fs::read_to_string(golden.join("config.json")).expect("config.json");
    let (without, with) =
        ("\"final_logit_softcapping\": null", format!("\"final_logit_softcapping\": {CAP}"));
    assert!(config.contains(without));
    std::fs::write(folder.path().join("config.json"), config.replace(without, &with))
        .expect("config.json");

    let (model, _) =
        Model::load(folder.path(), LoadOptions { keep_quantized: false }).expect("load");
    let expected =
        Array::load_safetensors(golden.join("expected.safetensors")).expect("expected.safetensors");
    let tokens: Vec<u32> =
        expected["tokens"].as_slice::<i32>().iter().map(|&id| id as u32).collect();
    let capped: Vec<f32> = expected["logits"]
        .as_slice::<f32>()
        .iter()
        .map(|logit| CAP * (logit / CAP).tanh())
        .collect();
    let logits = forward(&model, &tokens, &mut model.make_cache());
    compare(
        "gemma3_text/dense",
        "capped logits",
        &logits,
        &Array::from_slice(&capped, expected["logits"].shape()),
    );
}

#[test]
fn qwen3_computes_what_mlx_lm_computes() {
    for case in ["dense", "rope-parameters"] {
        check(&format!("qwen3/{case}"), false);
    }
}

#[test]
fn qwen3_with_experts_computes_what_mlx_lm_computes() {
    for case in ["dense", "plain-scores", "mlp-only", "sparse-step", "unstacked"] {
        check(&format!("qwen3_moe/{case}"), false);
    }
}

#[test]
fn qwen3_next_computes_what_mlx_lm_computes() {
    for case in ["dense", "tied", "equal-heads", "interval", "some-experts", "hugging-face"] {
        check(&format!("qwen3_next/{case}"), false);
    }
}

const QUANTIZED: &[&str] = &[
    "llama/quant2",
    "llama/quant3",
    "llama/quant4-tied",
    "llama/quant4-untied",
    "llama/quant5",
    "llama/quant6",
    "llama/quant8",
    "llama/quant-mixed",
    "llama/quant-bias",
    "llama/quantization-config",
    "llama/tiny-chat",
    "gemma3_text/quant4",
    "gemma3_text/quant-mixed",
    "qwen3/quant4-tied",
    "qwen3_moe/quant4",
    "qwen3_moe/quant-mixed",
    "qwen3_next/quant4",
    "qwen3_next/quant4-tied",
];

#[test]
fn quantized_checkpoints_compute_what_mlx_lm_computes() {
    for case in QUANTIZED {
        check(case, true);
    }
}

#[test]
fn dequantizing_at_load_changes_no_answer() {
    for case in QUANTIZED {
        check(case, false);
    }
}
