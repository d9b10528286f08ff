//! The head that predicts the token after the next (multi-token prediction, MTP): one more layer, which
//! reads what the last one has made of a token together with the embedding of the token behind it.
//!
//! ```text
//! norm(embedding of token t + 1) ┐
//! norm(hidden state of token t) ─┴▶ fc ─▶ a layer that attends ─▶ norm ─▶ the model's output layer
//! ```
//! The hidden state is the normalized one that logits are made of. Reference: vLLM's qwen3_next_mtp.py
//! and qwen3_5_mtp.py.

use std::path::Path;

use cairn_formats::safetensors::{Limits, SafetensorsError, SafetensorsFile};
use mlx_rs::{Array, ops};

use super::{BlockKind, Layout, Shape, TransformerBlock};
use crate::LmError;
use crate::cache::{CacheSpec, KvSizes, KvSpec, LayerCache, LayerCacheSpec};
use crate::models::{MtpHead, NoMtpHead};
use crate::nn::{Linear, RmsNorm};
use crate::weights::Weights;

/// What begins the names of a head's tensors.
const PREFIX: &str = "mtp.";
/// Files with these hold a head; some hold norms of one that was left out.
pub(crate) const SIGNS: [&str; 2] = ["mtp.fc.weight", "mtp.layers.0.self_attn.q_proj.weight"];
/// Norms of published heads are stored less one, and those of converted ones as they are. In the heads
/// of this family the mean of the first norm of the layer is at most 0.4 in the one form and at least
/// 0.85 in the other.
const LEAST_MEAN: f32 = 0.6;

/// A loaded head.
#[derive(Debug)]
pub(super) struct Head {
    embedding_norm: RmsNorm,
    hidden_norm: RmsNorm,
    fc: Linear,
    layer: TransformerBlock,
    norm: RmsNorm,
    cache: CacheSpec,
}

impl Head {
    /// Takes the head from the model's files, or from a file of its own beside them. Fails only where
    /// the load is cancelled: the model answers without a head, too.
    pub(super) fn load(
        weights: &mut Weights,
        shape: &Shape,
        layout: Layout,
    ) -> Result<Result<Head, NoMtpHead>, LmError> {
        let mut load = || {
            if !weights.contains(SIGNS[0])
                && let Some(file) = beside(weights.folder())?
            {
                weights.add_file(file);
            }
            let is_there = SIGNS.into_iter().all(|name| weights.contains(name));
            is_there.then(|| Head::take(weights, shape, layout)).transpose()
        };
        match load() {
            Ok(Some(head)) => Ok(Ok(head)),
            Ok(None) => Ok(Err(NoMtpHead::Absent)),
            Err(LmError::Cancelled) => Err(LmError::Cancelled),
            Err(error) => Ok(Err(NoMtpHead::Unusable(error.to_string()))),
        }
    }

    fn take(weights: &mut Weights, shape: &Shape, layout: Layout) -> Result<Head, LmError> {
        let unsupported = |name: &str, allowed: &str| LmError::Config {
            name: "mtp_num_hidden_layers",
            value: name.to_owned(),
            allowed: allowed.to_owned(),
        };
        if weights.contains("mtp.layers.1.input_layernorm.weight") {
            return Err(unsupported("2", "only heads of one layer are supported"));
        }
        if weights.contains("mtp.embed_tokens.weight") {
            return Err(unsupported("mtp.embed_tokens", "a head must use the model's embeddings"));
        }
        let first_norm = weights.mean("mtp.layers.0.input_layernorm.weight")?;
        let layout = match first_norm {
            Some(mean) if mean < LEAST_MEAN => Layout::HuggingFace,
            Some(_) if layout == Layout::Mlx => Layout::Mlx,
            _ => layout,
        };
        let &Shape { hidden, eps, .. } = shape;
        let kind = BlockKind {
            attends: true,
            has_experts: weights.contains("mtp.layers.0.mlp.gate.weight"),
        };
        let mut norm =
            |name: &str| layout.norm(&mut weights.layer(format!("{PREFIX}{name}")), hidden, eps);
        let (embedding_norm, hidden_norm, last) =
            (norm("pre_fc_norm_embedding")?, norm("pre_fc_norm_hidden")?, norm("norm")?);
        let fc = Linear::load(&mut weights.layer("mtp.fc"), 2 * hidden, hidden, false)?;
        fc.eval()?;
        let layer = &mut weights.layer("mtp.layers.0");
        let layer = TransformerBlock::load(layer, shape, layout, kind)?;
        let sizes = Some(KvSizes::new(shape.kv_heads, shape.head_dim));
        let cache = CacheSpec::new(vec![LayerCacheSpec::Kv(KvSpec::new(sizes))]);
        Ok(Head { embedding_norm, hidden_norm, fc, layer, norm: last, cache })
    }
}

impl MtpHead for Head {
    fn forward(
        &self,
        embeddings: &Array,
        hidden: &Array,
        caches: &mut [LayerCache],
    ) -> Result<Array, LmError> {
        let both = [self.embedding_norm.forward(embeddings)?, self.hidden_norm.forward(hidden)?];
        let x = self.fc.forward(&ops::concatenate(&both, -1)?)?;
        let [cache] = caches else { return Err(LmError::MixedCaches) };
        let step = cache.attention_step(x.dim(1), None)?;
        Ok(self.norm.forward(&self.layer.forward(x, cache, &step, None)?)?)
    }

    fn cache_spec(&self) -> &CacheSpec {
        &self.cache
    }
}

/// The file of a head beside the model's files: `*mtp*.safetensors`, with names as in published models,
/// below `language_model`, or without a prefix. Where the name begins with `model`, it is one of the
/// model's files.
pub(crate) fn beside(folder: &Path) -> Result<Option<SafetensorsFile>, SafetensorsError> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_head = |name: &String| {
        name.contains("mtp") && name.ends_with(".safetensors") && !name.starts_with("model")
    };
    let Some(name) = names.filter(is_head).min() else { return Ok(None) };
    let file = SafetensorsFile::open(&folder.join(name), Limits::MODEL)?;
    file.renamed(name_in_head).map(Some)
}

/// The name of a head's tensor as published models have it.
fn name_in_head(name: &str) -> Option<String> {
    let name = name.strip_prefix("language_model.").unwrap_or(name);
    let name = name.strip_prefix("model.").filter(|rest| rest.starts_with(PREFIX)).unwrap_or(name);
    match name.starts_with(PREFIX) {
        true => Some(name.to_owned()),
        false => Some(format!("{PREFIX}{name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_beside_the_model_may_have_any_prefix() {
        for stored in
            ["fc.weight", "mtp.fc.weight", "language_model.mtp.fc.weight", "model.mtp.fc.weight"]
        {
            assert_eq!(name_in_head(stored).as_deref(), Some("mtp.fc.weight"), "{stored}");
        }
    }
}
