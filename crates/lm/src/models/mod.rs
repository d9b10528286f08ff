//! The architectures: one file each, named after config.json's `model_type`.

mod gemma3_text;
mod llama;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod qwen3_next;
#[cfg(feature = "scripted")]
mod scripted;

use std::fmt::Debug;
use std::path::Path;
use std::rc::Rc;

use mlx_rs::Array;

use crate::cache::LayerCache;
use crate::cuda::CudaKernels;
use crate::weights::{CancelCheck, LoadOptions, LoadedWeights, Weights};
use crate::{LmError, config, device_kernels};

/// The values of config.json's `model_type` that can be loaded.
pub const SUPPORTED: &[&str] =
    &["gemma3_text", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen3_next"];

/// What every architecture implements. The rows of a batch (B) are independent of each other.
pub(crate) trait Architecture: Debug {
    /// Token ids `[B, L]` to embeddings `[B, L, D]`.
    fn embed(&self, tokens: &Array) -> Result<Array, LmError>;

    /// Runs all layers over `embeddings` `[B, L, D]`, which follow the tokens in `caches`, and
    /// returns normalized hidden states of the same shape.
    fn forward(&self, embeddings: Array, caches: &mut [LayerCache]) -> Result<Array, LmError>;

    /// Hidden states `[B, L, D]` to logits `[B, L, V]`.
    fn logits(&self, hidden: &Array) -> Result<Array, LmError>;

    /// Empty caches, one per layer.
    fn make_cache(&self) -> Vec<LayerCache>;

    /// The revision of the architecture's numerics, which is part of a model's fingerprint. It has to
    /// be increased with every change after which keys, values or states differ by more than
    /// rounding, so that caches from before the change are not reused.
    fn numerics_revision(&self) -> u32;

    /// The size of the vocabulary: token ids are smaller.
    fn vocab_size(&self) -> usize;

    /// The most tokens that the model can attend to.
    fn context_length(&self) -> usize;
}

/// A loaded model of any architecture. A clone is another handle to the same model.
#[derive(Debug, Clone)]
pub struct Model(Rc<dyn Architecture>);

impl Model {
    /// Loads the model in `folder` and returns it with the number of bytes of its weights.
    pub fn load(folder: &Path, options: LoadOptions) -> Result<(Self, u64), LmError> {
        let config = config::ConfigFile::read(folder)?;
        let (model, weights) =
            Model::load_with(folder, &config.value, options, CancelCheck(Rc::new(|| false)))?;
        Ok((model, weights.num_bytes))
    }

    /// Loads the model in `folder`, whose config.json has been read. Ends with
    /// [`LmError::Cancelled`] before the tensor at which `is_cancelled` first says so.
    pub(crate) fn load_with(
        folder: &Path,
        config: &serde_json::Value,
        options: LoadOptions,
        is_cancelled: CancelCheck,
    ) -> Result<(Self, LoadedWeights), LmError> {
        let model_type =
            config.get("model_type").and_then(|name| name.as_str()).unwrap_or_default();
        match model_type {
            "gemma3_text" => {
                load(folder, config, model_type, options, is_cancelled, gemma3_text::Model::load)
            }
            "llama" | "mistral" => {
                load(folder, config, model_type, options, is_cancelled, llama::Model::load)
            }
            "qwen2" => load(folder, config, model_type, options, is_cancelled, qwen2::Model::load),
            "qwen3" => load(folder, config, model_type, options, is_cancelled, qwen3::Model::load),
            "qwen3_moe" => {
                load(folder, config, model_type, options, is_cancelled, qwen3_moe::Model::load)
            }
            "qwen3_next" => {
                load(folder, config, model_type, options, is_cancelled, qwen3_next::Model::load)
            }
            #[cfg(feature = "scripted")]
            "scripted" => {
                let model = scripted::Model::load(config::arguments(folder, config)?)?;
                Ok((Model(Rc::new(model)), LoadedWeights::default()))
            }
            other => Err(LmError::UnknownModelType {
                model_type: other.to_owned(),
                supported: SUPPORTED.join(", "),
            }),
        }
    }

    /// Runs the model over `tokens` `[B, L]`, which follow the tokens in `caches`, and returns
    /// their hidden states `[B, L, D]`.
    pub fn forward(&self, tokens: &Array, caches: &mut [LayerCache]) -> Result<Array, LmError> {
        self.0.forward(self.0.embed(tokens)?, caches)
    }

    /// Token ids `[B, L]` to embeddings `[B, L, D]`.
    pub fn embed(&self, tokens: &Array) -> Result<Array, LmError> {
        self.0.embed(tokens)
    }

    /// As [`Model::forward`], from embeddings `[B, L, D]` instead of token ids.
    pub fn forward_embeddings(
        &self,
        embeddings: Array,
        caches: &mut [LayerCache],
    ) -> Result<Array, LmError> {
        self.0.forward(embeddings, caches)
    }

    /// Hidden states `[B, L, D]` to logits `[B, L, V]`.
    pub fn logits(&self, hidden: &Array) -> Result<Array, LmError> {
        self.0.logits(hidden)
    }

    /// Empty caches, one per layer.
    pub fn make_cache(&self) -> Vec<LayerCache> {
        self.0.make_cache()
    }

    /// The revision of the architecture's numerics: caches of another revision must not be reused.
    pub fn numerics_revision(&self) -> u32 {
        self.0.numerics_revision()
    }

    /// The size of the vocabulary: token ids are smaller.
    pub fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    /// The most tokens that the model can attend to.
    pub fn context_length(&self) -> usize {
        self.0.context_length()
    }
}

/// Deserializes config.json into the architecture's arguments and builds its network from the
/// weight files.
fn load<Args: serde::de::DeserializeOwned, Network: Architecture + 'static>(
    folder: &Path,
    config: &serde_json::Value,
    model_type: &str,
    options: LoadOptions,
    is_cancelled: CancelCheck,
    build: impl FnOnce(Args, &mut Weights) -> Result<Network, LmError>,
) -> Result<(Model, LoadedWeights), LmError> {
    let args = config::arguments(folder, config)?;
    let mut weights = Weights::open(folder, config, options, is_cancelled)?;
    weights.kernels = device_kernels::choose(CudaKernels::load);
    let network = build(args, &mut weights)?;
    let weights = weights.finish(model_type)?;
    Ok((Model(Rc::new(network)), weights))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod node_count_tests;
