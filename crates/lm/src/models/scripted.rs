//! A model that answers from a script, for tests of what stands above models: the engine, its
//! prompt cache, the app.
//!
//! Its next token is `script[(sum of the token ids it remembers) % script.len()]`, and it remembers
//! ids in a real key/value cache. So a cache that was restored wrongly changes the answer, and a
//! test can tell without knowing any weights.

use mlx_rs::{Array, ops};
use serde::Deserialize;

use crate::cache::{KeysValues, KvCache, LayerCache, Mask, causal_mask};
use crate::models::Architecture;
use crate::{LmError, ffi};

/// config.json of a scripted model.
#[derive(Debug, Clone, Deserialize)]
pub struct ModelArgs {
    vocab_size: i32,
    script: Vec<i32>,
    #[serde(default = "default_context")]
    max_position_embeddings: usize,
    /// Fails when it is run on this position.
    fail_at: Option<usize>,
    /// Panics when it is run on this position.
    panic_at: Option<usize>,
}

fn default_context() -> usize {
    4096
}

/// How often an id is remembered: the smallest head whose keys can be quantized.
const HEAD_SIZE: i32 = 32;

/// A loaded script.
#[derive(Debug)]
pub struct Model {
    args: ModelArgs,
    script: Array,    // [S]
    positions: Array, // [V]
}

impl Model {
    /// Checks the script.
    pub fn load(args: ModelArgs) -> Result<Self, LmError> {
        if args.script.is_empty()
            || args.script.iter().any(|token| !(0..args.vocab_size).contains(token))
        {
            let allowed = format!("it must hold token ids below vocab_size = {}", args.vocab_size);
            return Err(LmError::Config {
                name: "script",
                value: format!("{:?}", args.script),
                allowed,
            });
        }
        let script = Array::from_slice(&args.script, &[args.script.len() as i32]);
        let ids: Vec<i32> = (0..args.vocab_size).collect();
        Ok(Model { script, positions: Array::from_slice(&ids, &[args.vocab_size]), args })
    }
}

impl Architecture for Model {
    /// Ids `[B, L]` to themselves, `[B, L, 1]`.
    fn embed(&self, tokens: &Array) -> Result<Array, LmError> {
        Ok(ops::expand_dims(tokens.as_dtype(mlx_rs::Dtype::Float32)?, -1)?)
    }

    /// Ids `[B, L, 1]` to the running sums of remembered ids, `[B, L, 1]`.
    fn forward(&self, embeddings: Array, caches: &mut [LayerCache]) -> Result<Array, LmError> {
        let (batch, length) = (embeddings.dim(0), embeddings.dim(1));
        let [cache] = caches else {
            return Err(mlx_rs::error::Exception::custom(
                "a scripted model has one layer".to_owned(),
            )
            .into());
        };
        let (start, stop) = (cache.offset(), cache.offset() + length as usize);
        if self.args.fail_at.is_some_and(|position| (start..stop).contains(&position)) {
            return Err(LmError::Scripted(start));
        }
        if self.args.panic_at.is_some_and(|position| (start..stop).contains(&position)) {
            panic!("the script panics at token {start}");
        }
        let step = cache.attention_step(length, None)?;
        let ids = ops::broadcast_to(
            &ops::reshape(embeddings, &[batch, 1, length, 1])?,
            &[batch, 1, length, HEAD_SIZE],
        )?;
        let KeysValues::Dense { keys, .. } = cache.update_and_fetch(ids.clone(), ids)? else {
            return Err(mlx_rs::error::Exception::custom(
                "a scripted model does not read quantized ids".to_owned(),
            )
            .into());
        };
        let keys = ffi::slice(&keys, &[0; 4], &[batch, 1, keys.dim(2), 1])?;
        // A batch pads its rows with keys that no query sees.
        let keys = match &step.mask {
            Mask::Array(mask) => ops::multiply(
                mask.as_dtype(mlx_rs::Dtype::Float32)?,
                keys.transpose_axes(&[0, 1, 3, 2])?,
            )?,
            Mask::None | Mask::Causal => {
                let seen = causal_mask(length, keys.dim(2) - length, None)?
                    .as_dtype(mlx_rs::Dtype::Float32)?;
                ops::multiply(seen, keys.transpose_axes(&[0, 1, 3, 2])?)?
            }
        }; // [B, 1, L, T]
        Ok(ops::reshape(keys.sum_axis(-1, false)?, &[batch, length, 1])?)
    }

    /// Sums `[B, L, 1]` to logits `[B, L, V]` with one clear winner.
    fn logits(&self, hidden: &Array) -> Result<Array, LmError> {
        let length = Array::from_int(self.args.script.len() as i32);
        let index = ops::remainder(hidden.as_dtype(mlx_rs::Dtype::Int32)?, length)?;
        let next = self.script.take_axis(index, 0)?;
        Ok(ops::multiply(
            ops::eq(next, &self.positions)?.as_dtype(mlx_rs::Dtype::Float32)?,
            Array::from_f32(10.0),
        )?)
    }

    fn make_cache(&self) -> Vec<LayerCache> {
        vec![LayerCache::Kv(KvCache::new())]
    }

    fn vocab_size(&self) -> usize {
        self.args.vocab_size as usize
    }

    fn context_length(&self) -> usize {
        self.args.max_position_embeddings
    }
}
