//! Rows behind a prefix that they share give the numbers of each row alone, in any company.

use cairn_lm::batch::{RowAfterPrefix, SharedPrefix};
use cairn_lm::cache::{KvCache, LayerCache, RotatingKvCache};
use cairn_lm::models::Model;
use cairn_lm::{LmError, ffi, logprobs};
use cairn_sweeps::sweep;
use mlx_rs::Array;

use crate::{Numbers, model, scripted};

/// One checkpoint for each architecture and kind of cache.
pub const MODELS: &[&str] = &[
    "llama/dense-tied",
    "llama/gqa",
    "llama/quant4-untied",
    "cohere2/dense",
    "deepseek_v2/dense",
    "deepseek_v3/dense",
    "falcon_h1/dense",
    "gemma2/dense",
    "gemma3_text/dense",
    "gemma3_text/pattern3",
    "gpt_oss/dense",
    "granitemoehybrid/dense",
    "llama4/dense",
    "mamba2/dense",
    "mistral3/ministral",
    "nemotron_h/dense",
    "qwen2/dense",
    "qwen3/dense",
    "qwen3_moe/dense",
    "qwen3_next/dense",
    "qwen3_next/interval",
];

/// The sums of a batch are computed in another order than those of one row.
pub const TOLERANCE: f32 = 1e-4;

/// The log-probabilities `[n, V]` after the last `num_scored` of `tokens`, which are read into
/// `caches` alone.
pub fn alone(
    model: &Model,
    mut caches: Vec<LayerCache>,
    tokens: &[u32],
    num_scored: usize,
) -> Vec<f32> {
    let tokens = Array::from_slice(tokens, &[1, tokens.len() as i32]);
    let hidden = model.forward(&tokens, &mut caches).expect("a pass");
    let logits = model.logits(&hidden).expect("logits");
    let all = numbers(&logprobs(&logits).expect("log-probabilities"));
    all[all.len() - num_scored * model.vocab_size()..].to_vec()
}

fn numbers(array: &Array) -> Vec<f32> {
    array.eval().expect("evaluated");
    array.as_slice::<f32>().to_vec()
}

/// The log-probabilities of all rows, read in slices of `slice` tokens.
fn together(prefix: &mut SharedPrefix, rows: &[RowAfterPrefix], slice: usize) -> Vec<f32> {
    let mut reading = prefix.rows(rows.to_vec()).expect("rows");
    while reading.num_unread() > 0 {
        let before = reading.num_unread();
        reading.read(slice).expect("a slice");
        assert!(reading.num_unread() < before, "a slice reads something");
    }
    numbers(&logprobs(&reading.logits().expect("logits")).expect("log-probabilities"))
}

pub fn assert_near(case: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{case}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < tolerance, "{case}: {found} instead of {expected}");
    }
}

fn random_rows(model: &Model, random: &mut Numbers) -> Vec<RowAfterPrefix> {
    let row = |random: &mut Numbers| {
        let length = 1 + random.below(14);
        let num_scored = 1 + random.below(length.min(3));
        RowAfterPrefix { tokens: random.tokens(model, length), num_scored }
    };
    (0..1 + random.below(6)).map(|_| row(random)).collect()
}

fn check(case: &str, seed: u64) {
    let model = model(case);
    let mut random = Numbers(seed);
    let num_shared = [0, 1, 21, 70][random.below(4)];
    let tokens = random.tokens(&model, num_shared);
    let mut prefix = SharedPrefix::new(&model, tokens.clone()).expect("a prefix");
    while prefix.num_unread() > 0 {
        prefix.read(1 + random.below(30)).expect("a slice");
    }
    for _ in 0..3 {
        let rows = random_rows(&model, &mut random);
        let slice = 1 + random.below(60);
        let expected: Vec<f32> = rows
            .iter()
            .flat_map(|row| {
                let whole = [tokens.as_slice(), row.tokens.as_slice()].concat();
                alone(&model, model.make_cache(), &whole, row.num_scored)
            })
            .collect();
        let described = format!("{case}, seed {seed}, {num_shared} shared, {slice} in a slice");
        assert_near(&described, &together(&mut prefix, &rows, slice), &expected, TOLERANCE);
    }
}

#[test]
fn rows_give_what_each_gives_alone() {
    for case in MODELS {
        for seed in sweep("rows behind a shared prefix", 4) {
            check(case, seed);
        }
    }
}

/// Caches that have read `tokens`, quantized then.
pub fn quantized_after(model: &Model, tokens: &[u32]) -> Vec<LayerCache> {
    let mut caches = model.make_cache();
    let ids = Array::from_slice(tokens, &[1, tokens.len() as i32]);
    model.forward(&ids, &mut caches).expect("a pass");
    let quantized = |cache: LayerCache| match cache {
        LayerCache::Kv(cache) => {
            LayerCache::Quantized(cache.to_quantized(32, 8).expect("quantized"))
        }
        other => other,
    };
    caches.into_iter().map(quantized).collect()
}

#[test]
fn rows_behind_quantized_keys_and_values_give_what_each_gives_alone() {
    let model = model("qwen3_moe/quant4");
    let mut random = Numbers(5);
    let tokens = random.tokens(&model, 40);
    let caches = quantized_after(&model, &tokens);
    let mut prefix = SharedPrefix::after(&model, tokens, caches.clone()).expect("a prefix");
    for _ in 0..4 {
        let rows = random_rows(&model, &mut random);
        let expected: Vec<f32> = rows
            .iter()
            .flat_map(|row| alone(&model, caches.clone(), &row.tokens, row.num_scored))
            .collect();
        assert_near("quantized", &together(&mut prefix, &rows, 100), &expected, TOLERANCE);
    }
}

#[test]
fn the_prefix_stays_as_it_was_read() {
    for case in ["llama/gqa", "gemma3_text/dense", "qwen3_next/dense"] {
        let model = model(case);
        let mut random = Numbers(7);
        let tokens = random.tokens(&model, 21);
        let mut prefix = SharedPrefix::new(&model, tokens).expect("a prefix");
        let row = RowAfterPrefix { tokens: random.tokens(&model, 3), num_scored: 1 };
        let first = together(&mut prefix, std::slice::from_ref(&row), 100);
        let num_bytes = prefix.nbytes();
        for _ in 0..50 {
            together(&mut prefix, &random_rows(&model, &mut random), 100);
        }
        assert_eq!(together(&mut prefix, &[row], 100), first, "{case}: the same bits");
        assert_eq!(prefix.nbytes(), num_bytes, "{case}");
    }
}

#[test]
fn the_memory_of_a_pass_does_not_grow_with_the_prefix_times_the_rows() {
    let model = model("llama/gqa");
    let mut random = Numbers(11);
    let tokens = random.tokens(&model, 70);
    let mut prefix = SharedPrefix::new(&model, tokens).expect("a prefix");
    let row = RowAfterPrefix { tokens: random.tokens(&model, 2), num_scored: 1 };
    let mut reading = prefix.rows(vec![row; 64]).expect("rows");
    reading.read(usize::MAX).expect("a pass");
    let shared = prefix.nbytes();
    assert!(reading.own_nbytes() < 64 * shared / 2, "{} rows' own bytes", reading.own_nbytes());
    ffi::synchronize().expect("idle");
}

#[test]
fn what_cannot_be_a_row_is_refused() {
    let model = scripted(20);
    let mut prefix = SharedPrefix::new(&model, vec![1; 16]).expect("a prefix");
    let row = |tokens: &[u32]| vec![RowAfterPrefix { tokens: tokens.to_vec(), num_scored: 1 }];
    assert!(matches!(prefix.rows(row(&[])), Err(LmError::EmptyPrompt)));
    assert!(matches!(prefix.rows(row(&[8])), Err(LmError::TokenOutOfRange { token: 8, .. })));
    assert!(matches!(
        prefix.rows(row(&[1; 5])),
        Err(LmError::PromptTooLong { num_tokens: 21, context_length: 20 })
    ));
    assert!(prefix.rows(row(&[1; 4])).is_ok());
    assert!(SharedPrefix::new(&model, vec![1; 20]).is_err());

    let mut caches = vec![LayerCache::Rotating(RotatingKvCache::new(8, 4))];
    let ids = Array::from_slice(&[1u32; 12], &[1, 12]);
    model.forward(&ids, &mut caches).expect("a pass");
    let mut prefix = SharedPrefix::after(&model, vec![1; 12], caches).expect("a prefix");
    assert!(matches!(prefix.rows(row(&[1])), Err(LmError::NotBatchable { .. })));
    let two = vec![LayerCache::Kv(KvCache::new()); 2];
    assert!(matches!(
        SharedPrefix::after(&model, vec![1], two),
        Err(LmError::CacheLayers { found: 2, expected: 1 })
    ));
}
