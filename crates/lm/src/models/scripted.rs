//! A model that answers from a script, for tests of what stands above models: the engine, its prompt cache, the app.
//!
//! Its next token is `script[(sum of the token ids it remembers) % script.len()]`, and it remembers ids in a real key/value cache. So a
//! cache that was restored wrongly changes the answer, and a test can tell without knowing any weights.

use mlx_rs::{Array, ops};
use serde::Deserialize;

use crate::LmError;
use crate::cache::{KvCache, LayerCache};

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
        if args.script.is_empty() || args.script.iter().any(|token| !(0..args.vocab_size).contains(token)) {
            let allowed = format!("it must hold token ids below vocab_size = {}", args.vocab_size);
            return Err(LmError::Config { name: "script", value: format!("{:?}", args.script), allowed });
        }
        let script = Array::from_slice(&args.script, &[args.script.len() as i32]);
        let ids: Vec<i32> = (0..args.vocab_size).collect();
        Ok(Model { script, positions: Array::from_slice(&ids, &[args.vocab_size]), args })
    }

    /// `[1, L]` to the running sums of remembered ids, `[1, L, 1]`.
    pub fn forward(&self, tokens: &Array, caches: &mut [LayerCache]) -> Result<Array, LmError> {
        let length = tokens.dim(1);
        let cache = match caches {
            [cache] => cache.kv(),
            _ => return Err(mlx_rs::error::Exception::custom("a scripted model has one layer".to_owned()).into()),
        };
        let (start, stop) = (cache.offset(), cache.offset() + length as usize);
        if self.args.fail_at.is_some_and(|position| (start..stop).contains(&position)) {
            return Err(LmError::Scripted(start));
        }
        if self.args.panic_at.is_some_and(|position| (start..stop).contains(&position)) {
            panic!("the script panics at token {start}");
        }
        let ids = ops::reshape(tokens.as_dtype(mlx_rs::Dtype::Float32)?, &[1, 1, length, 1])?;
        let (keys, _) = cache.update_and_fetch(ids.clone(), ids)?;
        let sums = ops::reshape(keys.cumsum(2, None, None)?, &[1, stop as i32, 1])?;
        Ok(crate::ffi::slice(&sums, &[0, start as i32, 0], &[1, stop as i32, 1])?)
    }

    /// Sums `[1, L, 1]` to logits `[1, L, V]` with one clear winner.
    pub fn logits(&self, hidden: &Array) -> Result<Array, LmError> {
        let length = Array::from_int(self.args.script.len() as i32);
        let index = ops::remainder(hidden.as_dtype(mlx_rs::Dtype::Int32)?, length)?;
        let next = self.script.take_axis(index, 0)?;
        Ok(ops::multiply(ops::eq(next, &self.positions)?.as_dtype(mlx_rs::Dtype::Float32)?, Array::from_f32(10.0))?)
    }

    /// One empty cache.
    pub fn make_cache(&self) -> Vec<LayerCache> {
        vec![LayerCache::Kv(KvCache::new())]
    }

    /// config.json's `vocab_size`.
    pub fn vocab_size(&self) -> usize {
        self.args.vocab_size as usize
    }

    /// config.json's `max_position_embeddings`.
    pub fn context_length(&self) -> usize {
        self.args.max_position_embeddings
    }
}
