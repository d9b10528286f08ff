//! A model without weights that answers from a script, for tests of the engine, its prompt cache
//! and the app.
//!
//! Its next token is `script[(sum of all token ids so far) % script.len()]`, and the ids are stored
//! in a real KV cache. A cache that was restored wrongly therefore changes the answer. It may have a head
//! that predicts the token after the next, and is wrong as often as asked.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};
use serde::Deserialize;

use crate::cache::{
    CacheSpec, KeysValues, KvSizes, KvSpec, LayerCache, LayerCacheSpec, Mask, causal_mask,
};
use crate::load_progress::{LoadProgress, OnPart};
use crate::models::{Architecture, MtpHead, NoMtpHead, Outline, Scratch};
use crate::published_numbers::PublishedNumbers;
use crate::tensor_list::TensorList;
use crate::{LmError, ffi};

/// See [`Architecture::numerics_revision`].
const NUMERICS_REVISION: u32 = 1;

/// The fields of a scripted model's config.json.
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
    /// Fails in a step that is traced.
    #[serde(default)]
    fails_traced: bool,
    /// A load pretends to read so many parts, of a byte each.
    #[serde(default)]
    load_parts: u64,
    /// Gives it a head that predicts further tokens, and is wrong where the sum of all ids is divisible
    /// by this.
    head_errs_every: Option<i32>,
}

fn default_context() -> usize {
    4096
}

/// The head size: each id is stored this often, because smaller keys cannot be quantized.
const HEAD_SIZE: i32 = 32;

fn cache_spec() -> CacheSpec {
    let types = Some([Dtype::Float32; 2]);
    let sizes = Some(KvSizes { types, ..KvSizes::new(1, HEAD_SIZE) });
    CacheSpec::new(vec![LayerCacheSpec::Kv(KvSpec::new(sizes))])
}

/// What follows from config.json alone.
pub fn outline(args: &ModelArgs) -> Outline {
    Outline {
        cache: cache_spec(),
        bf16_state_cache: None,
        context_length: args.max_position_embeddings,
        is_tied: false,
        scratch: Scratch {
            numbers_per_token: 256,
            recurrent_per_token: 0,
            numbers_per_key: 0,
            fixed_numbers: 0,
            heads: 1,
            score_arrays: 1,
            vocab: args.vocab_size as u64,
            stores_scores: false,
        },
        tensors: TensorList::default(),
        published_numbers: PublishedNumbers::Same,
        takes_mtp_head: false,
    }
}

/// A loaded script.
#[derive(Debug)]
pub struct Model {
    args: ModelArgs,
    script: Array,    // [S]
    positions: Array, // [V]
    head: Option<Head>,
}

/// A head that adds the id of the next token to the sum before it.
#[derive(Debug)]
struct Head {
    errs_every: i32,
    cache: CacheSpec,
}

impl MtpHead for Head {
    /// Ids `[B, L, 1]` and sums before them to the sums up to each, `[B, L, 1]`.
    fn forward(
        &self,
        embeddings: &Array,
        hidden: &Array,
        caches: &mut [LayerCache],
    ) -> Result<Array, LmError> {
        // Its cache is written as that of any head, and read by nothing.
        let (batch, length) = (embeddings.dim(0), embeddings.dim(1));
        let ids = ops::reshape(embeddings, &[batch, 1, length, 1])?;
        let ids = ops::broadcast_to(&ids, &[batch, 1, length, HEAD_SIZE])?;
        for cache in caches {
            cache.update_and_fetch(ids.clone(), ids.clone())?;
        }
        let sums = ops::add(embeddings, hidden)?;
        let rest = ops::remainder(&sums, Array::from_f32(self.errs_every as f32))?;
        let is_wrong = ops::eq(rest, Array::from_f32(0.0))?;
        Ok(ops::add(sums, is_wrong.as_dtype(Dtype::Float32)?)?)
    }

    fn cache_spec(&self) -> &CacheSpec {
        &self.cache
    }
}

impl Model {
    /// Fails if the script is empty or has ids outside the vocabulary.
    pub fn load(args: ModelArgs, on_part: &OnPart) -> Result<Self, LmError> {
        for bytes_read in 0..args.load_parts {
            on_part.pause(LoadProgress { bytes_read, total_bytes: args.load_parts })?;
        }
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
        let positions = Array::from_slice(&ids, &[args.vocab_size]);
        let head = args
            .head_errs_every
            .map(|every| Head { errs_every: every.max(1), cache: cache_spec() });
        Ok(Model { script, positions, args, head })
    }
}

impl Architecture for Model {
    /// Token ids `[B, L]` as f32 `[B, L, 1]`.
    fn embed(&self, tokens: &Array) -> Result<Array, LmError> {
        Ok(ops::expand_dims(tokens.as_dtype(Dtype::Float32)?, -1)?)
    }

    /// Ids `[B, L, 1]` to the sums of all ids up to each token, `[B, L, 1]`.
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
        if self.args.fails_traced && matches!(cache, LayerCache::Traced(_)) {
            return Err(LmError::Scripted(start));
        }
        let step = cache.attention_step(length, None)?;
        let ids = ops::broadcast_to(
            &ops::reshape(embeddings, &[batch, 1, length, 1])?,
            &[batch, 1, length, HEAD_SIZE],
        )?;
        let keys = all_ids(cache.update_and_fetch(ids.clone(), ids)?, batch)?;
        let keys = ffi::slice(&keys, &[0; 4], &[batch, 1, keys.dim(2), 1])?;
        // The mask hides the padding of a batch's rows.
        let keys = match &step.mask {
            Mask::Array(mask) => {
                let seen = over_all_columns(mask, keys.dim(2))?.as_dtype(Dtype::Float32)?;
                ops::multiply(seen, keys.transpose_axes(&[0, 1, 3, 2])?)?
            }
            Mask::None | Mask::Causal => {
                let seen =
                    causal_mask(length, keys.dim(2) - length, None)?.as_dtype(Dtype::Float32)?;
                ops::multiply(seen, keys.transpose_axes(&[0, 1, 3, 2])?)?
            }
        }; // [B, 1, L, T]
        Ok(ops::reshape(keys.sum_axis(-1, false)?, &[batch, length, 1])?)
    }

    /// Sums `[B, L, 1]` to logits `[B, L, V]` with one clear winner.
    fn logits(&self, hidden: &Array) -> Result<Array, LmError> {
        let length = Array::from_int(self.args.script.len() as i32);
        let index = ops::remainder(hidden.as_dtype(Dtype::Int32)?, length)?;
        let next = self.script.take_axis(index, 0)?;
        Ok(ops::multiply(
            ops::eq(next, &self.positions)?.as_dtype(Dtype::Float32)?,
            Array::from_f32(10.0),
        )?)
    }

    fn mtp_head(&self) -> Result<&dyn MtpHead, &NoMtpHead> {
        self.head.as_ref().map(|head| head as &dyn MtpHead).ok_or(&NoMtpHead::Absent)
    }

    fn cache_spec(&self) -> CacheSpec {
        cache_spec()
    }

    fn numerics_revision(&self) -> u32 {
        NUMERICS_REVISION
    }

    fn vocab_size(&self) -> usize {
        self.args.vocab_size as usize
    }

    fn context_length(&self) -> usize {
        self.args.max_position_embeddings
    }
}

/// The mask with columns for a shared prefix too, if it is of the rows' own keys alone.
fn over_all_columns(mask: &Array, num_columns: i32) -> Result<Array, Exception> {
    let mut shape = mask.shape().to_vec();
    match shape.last_mut() {
        Some(last) if *last < num_columns => *last = num_columns - *last,
        _ => return Ok(mask.clone()),
    }
    let seen = ops::ones_dtype(&shape, Dtype::Bool)?;
    ops::concatenate(&[seen, mask.clone()], -1)
}

/// The ids of all tokens before each row's end, `[B, 1, T, HEAD_SIZE]`.
fn all_ids(keys_values: KeysValues, num_rows: i32) -> Result<Array, Exception> {
    match keys_values {
        KeysValues::Dense { keys, .. } => Ok(keys),
        KeysValues::Quantized { .. } => {
            Err(Exception::custom("a scripted model does not read quantized ids".to_owned()))
        }
        KeysValues::AfterPrefix { prefix, own } => {
            let prefix = all_ids((*prefix).clone(), 1)?;
            let shape = [num_rows, 1, prefix.dim(2), HEAD_SIZE];
            let prefix = ops::broadcast_to(&prefix, &shape)?;
            ops::concatenate(&[prefix, all_ids(*own, num_rows)?], 2)
        }
    }
}
