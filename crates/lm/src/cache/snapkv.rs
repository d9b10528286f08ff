//! SnapKV (Li et al. 2024, <https://arxiv.org/abs/2404.14469>): once a prompt has been read, layers that
//! attend to all tokens keep those that the prompt's last tokens attend to, and drop the others.
//!
//! ```text
//! columns of one head    sinks    the most attended to     newest
//!                        ├─────┤  ├─┤  ├┤     ├──┤   ├┤  ├────────┤
//! tokens of the prompt   0 ──────────────────────────────────────▶ T
//! ```
//! [`observe_queries`] has the caches remember the newest queries while the prompt is read;
//! [`compress`] chooses by them. Positions stay true: a cache counts what it has dropped.

use std::time::{Duration, Instant};

use mlx_rs::error::{Exception, Result};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype, memory, ops};

use super::buffer::token_range;
use super::{CacheKind, KvCache, KvQuantization, LayerCache, causal_mask};
use crate::LmError;
use crate::device_kernels::HeadShape;
use crate::nn::softcap;

/// How many of the last queries choose, as in the paper.
pub const NUM_OBSERVED: usize = 32;

/// A token counts as much as the most attended one of so many around it: what stands beside an
/// important word is needed to understand it.
const POOL_WIDTH: i32 = 7;

/// Of what is kept, the first tokens are one in so many, and the newest are another.
const SINKS_FRACTION: usize = 16;
const NEWEST_FRACTION: usize = 4;
/// The most of either, as in the implementation for mlx-lm by Levin (2026). The paper has no sinks, and
/// keeps the observed tokens alone as the newest.
const MAX_SINKS: usize = 128;
const MAX_NEWEST: usize = 512;

/// Which tokens of a long prompt are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapKv {
    /// How many tokens each layer keeps, at least [`SnapKv::MIN_TOKENS`].
    pub keep_tokens: usize,
    /// Shorter prompts are kept whole.
    pub min_context: usize,
}

/// What [`compress`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compressed {
    /// How many tokens had been read.
    pub num_read: usize,
    /// How many of them are left.
    pub num_kept: usize,
}

impl SnapKv {
    /// Fewer tokens than this are not worth a choice.
    pub const MIN_TOKENS: usize = 16;

    /// Fails if too few tokens would be kept.
    pub fn check(&self) -> std::result::Result<(), LmError> {
        match self.keep_tokens >= Self::MIN_TOKENS {
            true => Ok(()),
            false => Err(LmError::CacheSetting {
                name: "snapkv",
                value: self.keep_tokens.to_string(),
                allowed: format!("at least {} tokens must be kept", Self::MIN_TOKENS),
            }),
        }
    }

    /// Fails also if keys and values are quantized.
    pub fn check_beside(
        &self,
        quantization: Option<&KvQuantization>,
    ) -> std::result::Result<(), LmError> {
        quantization.map_or(Ok(()), |quantization| Err(not_quantized(quantization.bits)))?;
        self.check()
    }

    fn num_sinks(&self) -> i32 {
        (self.keep_tokens / SINKS_FRACTION).min(MAX_SINKS) as i32
    }

    fn num_newest(&self) -> i32 {
        (self.keep_tokens / NEWEST_FRACTION).min(MAX_NEWEST) as i32
    }

    /// Whether a cache is compressed after a prompt. One that has been is compressed again when it
    /// holds twice as many tokens as are kept, and not with every question.
    fn applies_to(&self, cache: &KvCache) -> bool {
        let most = self.keep_tokens * if cache.is_compressed() { 2 } else { 1 };
        cache.offset() >= self.min_context && cache.num_columns() as usize > most
    }
}

/// The error of a context of which tokens were dropped, and which is to be quantized as well.
pub(crate) fn not_quantized(bits: i32) -> LmError {
    LmError::CacheSetting {
        name: "kv_bits",
        value: bits.to_string(),
        allowed: "a context of which SnapKV drops tokens is not quantized: leave one of them out"
            .to_owned(),
    }
}

/// The newest queries of a layer.
#[derive(Debug, Clone, Default)]
pub(super) struct ObservedQueries {
    /// `[1, H, W, D]` of the newest W tokens, and how they become scores.
    queries: Option<(Array, HeadShape)>,
}

impl ObservedQueries {
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.queries.iter().map(|(queries, _)| queries)
    }

    /// Adds `queries` `[1, H, L, D]`.
    fn push(&mut self, queries: &Array, heads: HeadShape) -> Result<()> {
        let most = NUM_OBSERVED as i32;
        let all = match &self.queries {
            Some((before, _)) if queries.dim(2) < most => ops::concatenate(&[before, queries], 2)?,
            _ => queries.clone(),
        };
        let length = all.dim(2);
        let newest = if length > most { token_range(&all, length - most, length)? } else { all };
        self.queries = Some((newest, heads));
        Ok(())
    }
}

impl LayerCache {
    /// Whether [`LayerCache::observe`] is asked for.
    pub(crate) fn is_observed(&self) -> bool {
        matches!(self, LayerCache::Kv(cache) if cache.is_observed())
    }

    /// Remembers `queries` `[1, H, L, D]` of the tokens that were appended last, if that is wanted.
    pub(crate) fn observe(&mut self, queries: &Array, heads: HeadShape) -> Result<()> {
        match self {
            LayerCache::Kv(cache) => match cache.observed_mut() {
                Some(observed) => observed.push(queries, heads),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

/// Has the caches of one row remember the newest queries from now on, for [`compress`].
pub fn observe_queries(caches: &mut [LayerCache]) {
    caches.iter_mut().for_each(|cache| match cache {
        LayerCache::Kv(cache) => cache.observe(),
        LayerCache::List(list) => observe_queries(list.entries_mut()),
        _ => {}
    });
}

/// Has the caches of one row remember no queries any longer.
pub(crate) fn forget_queries(caches: &mut [LayerCache]) {
    caches.iter_mut().for_each(|cache| match cache {
        LayerCache::Kv(cache) => drop(cache.take_observed()),
        LayerCache::List(list) => forget_queries(list.entries_mut()),
        _ => {}
    });
}

/// Drops what the newest tokens of a prompt attend to least, if the prompt is long enough: sinks,
/// newest tokens and the most attended to of the others are left, [`SnapKv::keep_tokens`] in all.
/// `None` if everything is kept. The caches remember no queries afterwards.
///
/// A token's score in one head of keys is the sum of the attention weights of the observed queries
/// (their softmax, without a head's own sinks), the largest among the heads that share the keys, and
/// then the largest among the tokens around it. Recurrent states and caches that are bounded already
/// stay as they are.
pub fn compress(
    caches: &mut [LayerCache],
    snapkv: &SnapKv,
) -> std::result::Result<Option<Compressed>, LmError> {
    let mut choice = Choice::default();
    while !choice.advance(caches, snapkv, Duration::MAX)? {}
    choice.apply(caches, snapkv)
}

/// The choice of [`compress`] in parts, between which the caches are whole and others can have their
/// turns.
#[derive(Debug, Default)]
pub struct Choice {
    /// What is kept of the plain caches so far, in the order of the layers: see [`chosen_columns`].
    of_caches: Vec<Option<Array>>,
}

impl Choice {
    /// Chooses for another layer, and for more until `limit` has passed. Returns whether nothing is left
    /// to choose.
    pub fn advance(
        &mut self,
        caches: &[LayerCache],
        snapkv: &SnapKv,
        limit: Duration,
    ) -> std::result::Result<bool, LmError> {
        let began = Instant::now();
        let plain = plain_caches(caches);
        for cache in &plain[self.of_caches.len().min(plain.len())..] {
            let observed = cache.observed().and_then(|observed| observed.queries.as_ref());
            let observed = observed.filter(|_| snapkv.applies_to(cache));
            let columns = observed
                .map(|(queries, heads)| chosen_columns(cache, queries, heads, snapkv))
                .transpose()?;
            let is_chosen = columns.is_some();
            self.of_caches.push(columns);
            if is_chosen && began.elapsed() >= limit {
                break;
            }
        }
        Ok(self.of_caches.len() >= plain.len())
    }

    /// Drops what was not chosen from the caches that it was chosen for.
    pub fn apply(
        self,
        caches: &mut [LayerCache],
        snapkv: &SnapKv,
    ) -> std::result::Result<Option<Compressed>, LmError> {
        let (mut compressed, mut of_caches) = (None, self.of_caches.into_iter());
        for_each_plain(caches, &mut |cache| {
            cache.take_observed();
            let Some(columns) = of_caches.next().flatten() else { return Ok(()) };
            let num_read = cache.offset();
            cache.keep(&columns, snapkv.num_newest())?;
            compressed = Some(Compressed { num_read, num_kept: cache.num_columns() as usize });
            // Layer by layer, so that no more than one is in memory twice.
            eval(cache.arrays())?;
            memory::clear_cache()
        })?;
        Ok(compressed)
    }
}

/// The plain caches of all layers, those in lists included.
fn plain_caches(caches: &[LayerCache]) -> Vec<&KvCache> {
    let of_layers = caches.iter().flat_map(|cache| match cache {
        LayerCache::Kv(cache) => vec![cache],
        LayerCache::List(list) => plain_caches(list.entries()),
        _ => Vec::new(),
    });
    of_layers.collect()
}

/// Calls `action` with the plain caches of all layers, those in lists included.
fn for_each_plain(
    caches: &mut [LayerCache],
    action: &mut dyn FnMut(&mut KvCache) -> Result<()>,
) -> Result<()> {
    caches.iter_mut().try_for_each(|cache| match cache {
        LayerCache::Kv(cache) => action(cache),
        LayerCache::List(list) => for_each_plain(list.entries_mut(), action),
        _ => Ok(()),
    })
}

/// The columns that each head keeps, i32 `[1, H_kv, keep_tokens, 1]`, ascending.
fn chosen_columns(
    cache: &KvCache,
    queries: &Array,
    heads: &HeadShape,
    snapkv: &SnapKv,
) -> Result<Array> {
    let Some((keys, values)) = cache.tokens_in_use()? else {
        return Err(Exception::custom("an empty cache has no columns to choose from"));
    };
    let (sinks, newest) = (snapkv.num_sinks(), snapkv.num_newest());
    let (num_columns, keep) = (keys.dim(2), snapkv.keep_tokens as i32);
    let num_chosen = keep - sinks - newest;
    let mut of_heads = Vec::new();
    for head in 0..keys.dim(1) {
        let scores = head_scores(queries, [&keys, &values], head, heads)?; // [T]
        let between = crate::ffi::slice(&scores, &[sinks], &[num_columns - newest])?;
        let order = ops::argpartition(&ops::negative(&between)?, num_chosen - 1)?;
        let chosen = crate::ffi::slice(&order, &[0], &[num_chosen])?.as_dtype(Dtype::Int32)?;
        let chosen = ops::add(ops::sort(&chosen)?, Array::from_int(sinks))?;
        let range = |start: i32, stop: i32| ops::arange::<_, i32>(start, stop, 1);
        let columns = ops::concatenate(
            &[range(0, sinks)?, chosen, range(num_columns - newest, num_columns)?],
            0,
        )?;
        // Head by head: the weights of all heads together would take as much as the cache.
        eval([&columns])?;
        of_heads.push(columns);
    }
    ops::concatenate(&of_heads, 0)?.reshape(&[1, of_heads.len() as i32, keep, 1])
}

/// How much the observed queries attend to each column of one head of keys, f32 `[T]`.
fn head_scores(
    queries: &Array,
    [keys, values]: [&Array; 2],
    head: i32,
    heads: &HeadShape,
) -> Result<Array> {
    let (num_columns, num_queries) = (keys.dim(2), queries.dim(2));
    let per_head = queries.dim(1) / keys.dim(1);
    let of_keys = |array: &Array| {
        let (start, stop) = ([0, head, 0, 0], [1, head + 1, num_columns, array.dim(3)]);
        crate::ffi::slice(array, &start, &stop)?.reshape(&[num_columns, array.dim(3)])
    };
    let own_keys = match queries.dim(3) == keys.dim(3) {
        true => of_keys(keys)?,
        // Latent attention stores what is rotated beside the vectors.
        false => ops::concatenate(&[of_keys(keys)?, of_keys(values)?], -1)?,
    };
    let (start, stop) =
        ([0, head * per_head, 0, 0], [1, (head + 1) * per_head, num_queries, queries.dim(3)]);
    let queries = crate::ffi::slice(queries, &start, &stop)?
        .reshape(&[per_head * num_queries, queries.dim(3)])?;
    let scores = ops::matmul(queries, own_keys.transpose()?)?.as_dtype(Dtype::Float32)?;
    let mut scores = ops::multiply(scores, Array::from_f32(heads.scale))?;
    if let Some(cap) = heads.softcap {
        scores = softcap(&scores, cap)?;
    }
    let scores = scores.reshape(&[per_head, num_queries, num_columns])?;
    let mask = causal_mask(num_queries, num_columns - num_queries, None)?;
    let scores = ops::select(mask, scores, Array::from_f32(f32::MIN))?;
    let weights = ops::softmax_axes(scores, &[-1], true)?;
    pooled(&weights.sum_axes(&[1], false)?.max_axes(&[0], false)?)
}

/// Of each number of `scores` `[T]` the largest among the [`POOL_WIDTH`] around it.
fn pooled(scores: &Array) -> Result<Array> {
    let (length, reach) = (scores.dim(0), POOL_WIDTH / 2);
    // Weights are not negative, so zeros beyond the ends change nothing.
    let room = Array::zeros::<f32>(&[reach])?;
    let wide = ops::concatenate(&[&room, scores, &room], 0)?;
    let mut largest = crate::ffi::slice(&wide, &[0], &[length])?;
    for shift in 1..POOL_WIDTH {
        largest = ops::maximum(largest, crate::ffi::slice(&wide, &[shift], &[length + shift])?)?;
    }
    Ok(largest)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests;
