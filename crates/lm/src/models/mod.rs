//! The architectures: one file each, named by config.json's `model_type`.

pub mod llama;
#[cfg(feature = "scripted")]
pub mod scripted;

use std::path::Path;

use mlx_rs::Array;

use crate::cache::LayerCache;
use crate::weights::{LoadOptions, Weights};
use crate::{LmError, config};

/// config.json's `model_type`s that can be loaded.
pub const SUPPORTED: &[&str] = &["llama", "mistral"];

/// A loaded model of any architecture.
#[derive(Debug)]
pub enum Model {
    /// Llama 2 and 3, Mistral, SmolLM2.
    Llama(llama::Model),
    /// Answers from a script.
    #[cfg(feature = "scripted")]
    Scripted(scripted::Model),
}

impl Model {
    /// Loads the model in `folder`; also returns the bytes of its weight files.
    pub fn load(folder: &Path, options: LoadOptions) -> Result<(Self, u64), LmError> {
        let config = config::read(folder)?;
        let model_type = config.get("model_type").and_then(|name| name.as_str()).unwrap_or_default();
        match model_type {
            "llama" | "mistral" => {
                let args: llama::ModelArgs = config::arguments(folder, &config)?;
                let mut weights = Weights::open(folder, &config, options)?;
                let model = llama::Model::load(args, &mut weights)?;
                let num_bytes = weights.finish(model_type)?;
                Ok((Model::Llama(model), num_bytes))
            }
            #[cfg(feature = "scripted")]
            "scripted" => Ok((Model::Scripted(scripted::Model::load(config::arguments(folder, &config)?)?), 0)),
            other => Err(LmError::UnknownModelType { model_type: other.to_owned(), supported: SUPPORTED.join(", ") }),
        }
    }

    /// Runs `tokens` `[1, L]` after what `caches` hold, and returns their hidden states `[1, L, D]`.
    pub fn forward(&self, tokens: &Array, caches: &mut [LayerCache]) -> Result<Array, LmError> {
        match self {
            Model::Llama(model) => Ok(model.forward(tokens, caches)?),
            #[cfg(feature = "scripted")]
            Model::Scripted(model) => model.forward(tokens, caches),
        }
    }

    /// Hidden states `[1, L, D]` to logits `[1, L, V]`.
    pub fn logits(&self, hidden: &Array) -> Result<Array, LmError> {
        match self {
            Model::Llama(model) => Ok(model.logits(hidden)?),
            #[cfg(feature = "scripted")]
            Model::Scripted(model) => model.logits(hidden),
        }
    }

    /// Empty caches, one per layer.
    pub fn make_cache(&self) -> Vec<LayerCache> {
        match self {
            Model::Llama(model) => model.make_cache(),
            #[cfg(feature = "scripted")]
            Model::Scripted(model) => model.make_cache(),
        }
    }

    /// Token ids are below this.
    pub fn vocab_size(&self) -> usize {
        match self {
            Model::Llama(model) => model.vocab_size(),
            #[cfg(feature = "scripted")]
            Model::Scripted(model) => model.vocab_size(),
        }
    }

    /// The most tokens the model can attend to.
    pub fn context_length(&self) -> usize {
        match self {
            Model::Llama(model) => model.context_length(),
            #[cfg(feature = "scripted")]
            Model::Scripted(model) => model.context_length(),
        }
    }
}
