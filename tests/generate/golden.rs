//! The checkpoints of these tests, and the plain answers to compare with.

use std::ops::ControlFlow;
use std::rc::Rc;

use cairn_lm::cache::LayerCache;
use cairn_lm::models::Model;
use cairn_lm::{
    GenerateOptions, Input, LmError, LoadOptions, LoadedModel, Sampled, Sampler, Sampling,
    SpeculativeStream, TokenStream, generate_step,
};
use mlx_rs::Array;

/// A checkpoint and a prompt whose greedy answer has no near ties.
pub struct Golden {
    /// `model_type/case`.
    pub name: String,
    pub model: Model,
    pub prompt: Vec<u32>,
}

/// One case of each kind of cache and layer: plain, windows narrower than the prompt, experts,
/// recurrent state.
pub const KINDS: &[&str] = &[
    "llama/dense-tied",
    "llama/quant4-untied",
    "gemma3_text/long-prompt",
    "qwen3_moe/dense",
    "qwen3_next/dense",
];

/// The checkpoint `model_type/case` with its prompt.
pub fn golden(name: &str) -> Golden {
    let folder = cairn_tests::tiny_model(name);
    let (model, _) = Model::load(&folder, LoadOptions::new().keep_quantized(true))
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let expected = cairn_tests::goldens().join(name).join("expected.safetensors");
    let expected = Array::load_safetensors(expected).expect("expected.safetensors");
    let prompt = expected["tokens"].as_slice::<i32>().iter().map(|&id| id as u32).collect();
    Golden { name: name.to_owned(), model, prompt }
}

/// Every checkpoint.
pub fn all() -> Vec<Golden> {
    cairn_tests::tiny_models().iter().map(|name| golden(name)).collect()
}

/// A tiny model whose tokens are bytes and whose answers are lower-case letters and spaces.
pub fn chat() -> LoadedModel {
    LoadedModel::load(
        &cairn_tests::tiny_model("llama/tiny-chat"),
        LoadOptions::new().keep_quantized(true),
    )
    .expect("tiny-chat")
}

/// A checkpoint with the tokenizer of bytes and without end-of-sequence tokens, so that answers end
/// only at their limit.
pub fn loaded(name: &str) -> Rc<LoadedModel> {
    let folder = cairn_tests::tiny_model(name);
    let loaded = LoadedModel::load(&folder, LoadOptions::new().keep_quantized(true));
    let mut loaded = loaded.unwrap_or_else(|error| panic!("{name}: {error}"));
    loaded.eos_token_ids.clear();
    Rc::new(loaded)
}

/// Default options with a token limit.
pub fn options(max_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens, ..GenerateOptions::default() }
}

/// As `on_progress`: continues always.
pub fn never_cancel(_: usize, _: usize) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// [`generate_step`] without progress.
pub fn start<'a>(
    model: &Model,
    input: impl Into<Input<'a>>,
    caches: &mut Vec<LayerCache>,
    sampling: impl Into<Sampling>,
    options: GenerateOptions,
) -> Result<TokenStream, LmError> {
    generate_step(model, input, caches, sampling, options, &mut never_cancel)
}

/// The remaining tokens of a stream.
pub fn rest(stream: &mut TokenStream) -> Vec<u32> {
    let mut tokens = Vec::new();
    while let Some(sampled) = stream.next_token().expect("step") {
        tokens.push(sampled.token);
    }
    tokens
}

/// The greedy answer of one model, without a draft model.
pub fn plain(model: &Model, prompt: &[u32], options: GenerateOptions) -> Vec<u32> {
    rest(&mut start(model, prompt, &mut Vec::new(), Sampler::Greedy, options).expect("start"))
}

/// How many tokens caches hold.
pub fn offset(caches: &[LayerCache]) -> usize {
    caches.iter().map(LayerCache::offset).max().unwrap_or(0)
}

/// All tokens of a stream that speculates.
pub fn collect(stream: &mut SpeculativeStream) -> Vec<Sampled> {
    let mut sampled = Vec::new();
    while let Some(step) = stream.next_token().expect("step") {
        sampled.push(step);
    }
    sampled
}

/// Their ids.
pub fn tokens(sampled: &[Sampled]) -> Vec<u32> {
    sampled.iter().map(|step| step.token).collect()
}
