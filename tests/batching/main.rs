//! Batched generation gives the same tokens as unbatched generation, whichever requests join, leave
//! or fail in the same batch.

mod equality;
mod requests;
mod row_caches;
mod sampling;
mod shared_prefix;
mod snapkv;

use std::ops::ControlFlow;

use cairn_lm::batch::{BatchAnswer, BatchOptions, BatchRequest, batch_generate_tokens};
use cairn_lm::models::Model;
use cairn_lm::{GenerateOptions, LoadOptions, Sampled, Sampler, generate_step};

/// The tiny model `model_type/case`, with quantized weights kept quantized.
pub fn model(case: &str) -> Model {
    Model::load(&cairn_tests::tiny_model(case), LoadOptions::new().keep_quantized(true))
        .unwrap_or_else(|error| panic!("{case}: {error}"))
        .0
}

/// A scripted model with a context of `context_length` tokens.
pub fn scripted(context_length: usize) -> Model {
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!(
        r#"{{"model_type": "scripted", "vocab_size": 8, "script": [5, 6, 7],
            "max_position_embeddings": {context_length}}}"#
    );
    std::fs::write(folder.path().join("config.json"), config).expect("config.json");
    Model::load(folder.path(), LoadOptions::new().keep_quantized(true)).expect("a model").0
}

/// Pseudo-random numbers, the same in every run (a linear congruential generator).
pub struct Numbers(pub u64);

impl Numbers {
    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    /// `count` token ids within the vocabulary of `model`.
    pub fn tokens(&mut self, model: &Model, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(model.vocab_size()) as u32).collect()
    }
}

/// The greedy, unbatched answer to a prompt, with log-probabilities.
pub fn unbatched(model: &Model, prompt: &[u32], max_tokens: usize) -> Vec<Sampled> {
    let options =
        GenerateOptions { max_tokens, num_top_logprobs: Some(2), ..GenerateOptions::default() };
    let mut caches = model.make_cache();
    let mut on_progress = |_, _| ControlFlow::Continue(());
    let mut stream =
        generate_step(model, prompt, &mut caches, Sampler::Greedy, options, &mut on_progress)
            .expect("start");
    std::iter::from_fn(|| stream.next_token().expect("step")).collect()
}

/// The ids of sampled tokens.
pub fn tokens(sampled: &[Sampled]) -> Vec<u32> {
    sampled.iter().map(|step| step.token).collect()
}

/// A greedy request that asks for log-probabilities and for its caches.
pub fn with_logprobs(prompt: &[u32], max_tokens: usize) -> BatchRequest {
    BatchRequest {
        num_top_logprobs: Some(2),
        return_caches: true,
        ..BatchRequest::new(prompt.to_vec(), max_tokens)
    }
}

/// The answers to `requests`, none of which may fail, in their order.
pub fn answers(
    model: &Model,
    requests: Vec<BatchRequest>,
    options: BatchOptions,
) -> Vec<BatchAnswer> {
    let (answers, _) = batch_generate_tokens(model, requests, options).expect("batch");
    answers.into_iter().map(|answer| answer.expect("answer")).collect()
}
