//! The crate's errors. Each message says what failed, on which thing, and what to do.

use std::path::{Path, PathBuf};

use mlx_rs::error::{AsSliceError, Exception};

use cairn_formats::safetensors::SafetensorsError;
use cairn_formats::{FileError, read_file, readable};

use crate::ConvertError;

/// The errors of this crate. Each displays as one sentence.
#[derive(Debug, thiserror::Error)]
pub enum LmError {
    /// A file of the model folder cannot be read.
    #[error("{0}; download or import the model again")]
    File(#[from] FileError),
    /// A JSON file is broken.
    #[error("{path} is not valid: {}; download or import the model again", readable(source))]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A value in config.json is outside what makes sense.
    #[error("config.json says {name} = {}, but {allowed}", readable(value))]
    Config {
        /// The key in config.json.
        name: &'static str,
        /// What it holds.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A setting of the key/value caches is outside what makes sense, or does not fit the model.
    #[error("{name} = {value}, but {allowed}")]
    CacheSetting {
        /// The setting.
        name: &'static str,
        /// What was asked for.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A file is no prompt cache, or one that cannot be used.
    #[error("{path} is not a usable prompt cache: {what}, but {allowed}; make the file anew")]
    PromptFile {
        /// The file.
        path: PathBuf,
        /// What it says.
        what: String,
        /// What is allowed.
        allowed: String,
    },
    /// A layer's cache cannot be written in the layout of mlx-lm 0.30.
    #[error(
        "layer {layer} is a {kind}, which mlx-lm 0.30's layout cannot hold ({reason}): write the 0.32 layout"
    )]
    PromptFileLayout {
        /// The layer, counted from 0.
        layer: usize,
        /// The kind of its cache.
        kind: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No file implements this architecture.
    #[error(
        "the architecture '{}' is not supported{}",
        readable(model_type),
        nearest_of(*nearest, *count)
    )]
    UnknownModelType {
        /// config.json's `model_type`.
        model_type: String,
        /// The one that is spelt most like it, if one is.
        nearest: Option<&'static str>,
        /// How many are supported.
        count: usize,
    },
    /// The model is an encoder, and only decoders run.
    #[error(
        "{model_type} is an encoder, and Cairn makes embeddings with decoders only: choose one such as Qwen3-Embedding"
    )]
    Encoder {
        /// config.json's `model_type`.
        model_type: String,
    },
    /// The model was saved without the layer that makes logits.
    #[error(
        "this model has no output layer, so it makes embeddings and no text: choose another model to write"
    )]
    NoOutputLayer,
    /// The model's files ask for embeddings that are made in another way.
    #[error("no embeddings can be made with this model: {reason}")]
    Embedding {
        /// The setting that is not supported, or the file that is broken.
        reason: String,
    },
    /// A model is not converted.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// A weight file was refused before MLX could see it.
    #[error(transparent)]
    Weights(#[from] SafetensorsError),
    /// A tensor that the architecture needs is not in the files.
    #[error(
        "the weight files of {folder} lack the tensor '{name}'; download or import the model again"
    )]
    MissingWeight {
        /// The model folder.
        folder: PathBuf,
        /// The tensor.
        name: String,
    },
    /// A tensor has another shape than config.json asks for.
    #[error(
        "tensor '{name}' has shape {found:?}, but config.json asks for {expected:?}: the weights belong to another model"
    )]
    WrongShape {
        /// The tensor.
        name: String,
        /// What the file holds.
        found: Vec<i32>,
        /// What the architecture needs.
        expected: Vec<i32>,
    },
    /// The files hold tensors that the architecture does not use.
    #[error(
        "the weight files hold {count} tensors that '{model_type}' does not use, the first is '{first}': the weights belong to another model"
    )]
    UnusedWeights {
        /// The architecture.
        model_type: String,
        /// How many.
        count: usize,
        /// The first in order of name.
        first: String,
    },
    /// tokenizer.json cannot be used.
    #[error("{path} is not a usable tokenizer: {reason}; download or import the model again")]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The logits of a model are no numbers.
    #[error(
        "{model} computes no numbers (NaN): its weights are damaged; download or import the model again"
    )]
    NoNumbers {
        /// The model's folder.
        model: String,
    },
    /// Text could not be turned into tokens or back.
    #[error("{file} of the model {model} cannot handle this text: {reason}; choose another model")]
    Encoding {
        /// The model's folder.
        model: String,
        /// The tokenizer's file in it.
        file: String,
        /// Why, as the tokenizer says it.
        reason: String,
    },
    /// A grammar that constrains an answer cannot be compiled.
    #[error("no answer can be constrained by this: {reason}")]
    Grammar {
        /// What cannot be compiled, or why.
        reason: String,
    },
    /// The tokens that may come next could not be computed.
    #[error("the answer has left its form: {reason}")]
    Constraint {
        /// Why.
        reason: String,
    },
    /// The prompt holds nothing.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt does not fit into the model's context.
    #[error(
        "the prompt has {num_tokens} tokens, but the model's context ends at {context_length}: shorten it or start a new conversation"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        num_tokens: usize,
        /// Tokens that fit.
        context_length: usize,
    },
    /// A token id lies outside the vocabulary.
    #[error("token id {token} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Ids are below this.
        vocab_size: usize,
    },
    /// An answer of no tokens was asked for.
    #[error("max_tokens is 0, but an answer has at least 1 token")]
    NoTokensAskedFor,
    /// A kind of cache has no batched form.
    #[error("a {kind} has no batched form: run its requests one after another")]
    NotBatchable {
        /// The kind.
        kind: &'static str,
    },
    /// Caches of different kinds, or of different models, were to become one batch.
    #[error("only caches of one model, one kind and one size can be rows of a batch")]
    MixedCaches,
    /// A request's caches belong to another model.
    #[error(
        "the caches of a request are for {found} layers, but the model has {expected}: choose the model that they were made with"
    )]
    CacheLayers {
        /// Caches given.
        found: usize,
        /// Layers of the model.
        expected: usize,
    },
    /// A layer's numbers are of another type than the model's.
    #[error(
        "its layer {layer} holds {found} numbers, but the model computes with {expected}: make the file anew"
    )]
    CachePrecision {
        /// The first layer that does not fit, counted from 0.
        layer: usize,
        /// Their type.
        found: String,
        /// The model's.
        expected: String,
    },
    /// Layers have read different numbers of tokens.
    #[error("its layer {layer} has read {found} tokens, but others {expected}: make the file anew")]
    CacheOffsets {
        /// The first layer that differs, counted from 0.
        layer: usize,
        /// What it has read.
        found: usize,
        /// What most have.
        expected: usize,
    },
    /// A layer's cache is of another kind or shape than the model's.
    #[error(
        "its layer {layer} is {found}, but the model's is {expected}: choose the model that it was made with"
    )]
    CacheFit {
        /// The first layer that does not fit, counted from 0.
        layer: usize,
        /// What was given.
        found: String,
        /// What the model has.
        expected: String,
    },
    /// A chunk of a stored conversation cannot be extracted from caches or assembled with others.
    #[error("a chunk of a stored conversation cannot be used: {what}")]
    ChunkState {
        /// What is wrong with it.
        what: String,
    },
    /// A request's caches do not hold the tokens that they are said to hold.
    #[error("the caches of a request hold {held} tokens, but {named} cached tokens were named")]
    CachedTokens {
        /// Tokens in the caches.
        held: usize,
        /// Tokens named.
        named: usize,
    },
    /// A parameter does not fit the model.
    #[error("{name} is {value}, but must be {allowed}")]
    OutOfRange {
        /// The parameter as users write it.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is allowed, in words.
        allowed: String,
    },
    /// A parameter names a token that the model does not have.
    #[error("{name} names token id {token}, which is outside the vocabulary of {vocab_size}")]
    ParameterToken {
        /// The parameter as users write it.
        name: &'static str,
        /// The id.
        token: u32,
        /// Ids are below this.
        vocab_size: usize,
    },
    /// A logits processor returned something else than logits.
    #[error(
        "a logits processor returned an array of shape {found:?}, but logits are [1, {expected}]"
    )]
    ProcessedShape {
        /// The vocabulary's size.
        expected: i32,
        /// What it returned.
        found: Vec<i32>,
    },
    /// A custom sampler returned something else than token ids.
    #[error(
        "a sampler returned an array of {dtype} of shape {found:?}, but token ids are integers [{expected}]"
    )]
    SampledShape {
        /// The number of rows.
        expected: i32,
        /// The shape that it returned.
        found: Vec<i32>,
        /// The type that it returned.
        dtype: String,
    },
    /// A parameter is outside its range, whatever the model.
    #[error(transparent)]
    Parameter(#[from] cairn_chat::ChatError),
    /// A draft model proposes token ids, so both models must mean the same by them.
    #[error(
        "the draft model has a vocabulary of {draft_vocab_size} tokens, but the model has one of {vocab_size}: choose a draft model of the same family"
    )]
    DraftVocabulary {
        /// The model's.
        vocab_size: usize,
        /// The draft model's.
        draft_vocab_size: usize,
    },
    /// The draft model has other tokens.
    #[error(
        "the draft model has another tokenizer than the model: choose a draft model of the same family"
    )]
    DraftTokenizer,
    /// Embeddings belong to one model.
    #[error(
        "input_embeddings cannot be used with a draft model, which has embeddings of its own: leave one of them out"
    )]
    DraftWithEmbeddings,
    /// Speculative decoding was asked for, and there is nothing to speculate with.
    #[error("speculative decoding needs a draft model: load one first")]
    NoDraftModel,
    /// A prediction head is to propose tokens, and there is none.
    #[error(
        "this model has no prediction head (its files hold no mtp.* weights): choose another way to propose tokens"
    )]
    NoMtpHead,
    /// A prediction head is to propose tokens, and could not be loaded.
    #[error("the prediction head of this model (mtp.*) cannot be used: {0}")]
    UnusableMtpHead(String),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// MLX refused an operation or ran out of memory.
    #[error("MLX failed: {0}")]
    Mlx(#[from] Exception),
    /// Results could not be read from MLX memory.
    #[error("MLX returned an unreadable array: {0}")]
    Slice(#[from] AsSliceError),
    /// The chat template was refused.
    #[error("{source}, in {folder}; download or import the model again")]
    Template {
        /// The model folder.
        folder: PathBuf,
        /// What is wrong with it.
        source: cairn_chat::ChatError,
    },
    /// A file that should be text is not.
    #[error("{path} is not UTF-8 text; download or import the model again")]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// The scripted model was told to fail here.
    #[cfg(feature = "scripted")]
    #[error("the script fails at token {0}")]
    Scripted(usize),
}

fn nearest_of(nearest: Option<&str>, count: usize) -> String {
    let said = |nearest| format!("; the nearest of the {count} that are is '{nearest}'");
    nearest.map(said).unwrap_or_default()
}

/// Reads and parses a JSON file of at most `limit` bytes.
pub(crate) fn read_json<T: serde::de::DeserializeOwned>(
    path: &Path,
    limit: u64,
) -> Result<T, LmError> {
    serde_json::from_slice(&read_file(path, limit)?)
        .map_err(|source| LmError::Json { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_config_holds_is_repeated_as_one_readable_line() {
        let (value, allowed) = ("M*\0\n-E".to_owned(), "it must not".to_owned());
        let error = LmError::Config { name: "hybrid_override_pattern", value, allowed };
        let expected = r"config.json says hybrid_override_pattern = M*\u{0}\n-E, but it must not";
        assert_eq!(error.to_string(), expected);
        let model_type = "a\u{7}".repeat(1000);
        let error = LmError::UnknownModelType { model_type, nearest: Some("llama"), count: 1 };
        let text = error.to_string();
        assert!(text.len() < 2000 && text.starts_with(r"the architecture 'a\u{7}a\u{7}"), "{text}");
    }
}
