//! Operations on the caches of all layers of one prompt: making, trimming and quantizing them.

use super::{LayerCache, MAX_TOKENS, QuantizedKvCache, RotatingKvCache};
use crate::LmError;
use crate::models::Model;

/// How many first tokens a bounded cache never overwrites, as in mlx-lm: attention depends on them
/// (attention sinks, Xiao et al. 2023).
const NUM_KEEP: i32 = 4;

/// When and how keys and values are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvQuantization {
    /// Bits per number: 2, 3, 4, 6 or 8.
    pub bits: i32,
    /// How many numbers share a scale: 32, 64 or 128; it must divide the model's head size.
    pub group_size: i32,
    /// How many tokens a cache must hold before it is quantized.
    pub start: usize,
}

impl KvQuantization {
    /// Quantizes every [`KvCache`](super::KvCache) that holds at least `start` tokens; caches that
    /// are quantized already stay as they are.
    ///
    /// Recurrent, chunked and listed caches are not quantized, as in mlx-lm. A rotating cache is an
    /// error, see [`check_caches`](Self::check_caches).
    pub fn apply(&self, caches: &mut [LayerCache]) -> Result<(), LmError> {
        self.check_caches(caches)?;
        for cache in caches {
            if let LayerCache::Kv(kv) = cache
                && kv.offset() >= self.start
            {
                *cache = LayerCache::Quantized(kv.to_quantized(self.group_size, self.bits)?);
            }
        }
        Ok(())
    }

    /// Fails if one of `caches` is rotating, because those cannot be quantized. mlx-lm raises only
    /// when the first of them reaches `start`.
    pub fn check_caches(&self, caches: &[LayerCache]) -> Result<(), LmError> {
        match caches
            .iter()
            .any(|cache| matches!(cache, LayerCache::Rotating(_) | LayerCache::BatchRotating(_)))
        {
            true => {
                let allowed = "this model's sliding-window caches, or a max_kv_size, cannot be quantized: leave one of them out";
                Err(LmError::CacheSetting {
                    name: "kv_bits",
                    value: self.bits.to_string(),
                    allowed: allowed.to_owned(),
                })
            }
            false => Ok(()),
        }
    }

    /// Fails on settings that are invalid for every model.
    pub fn check(&self) -> Result<(), LmError> {
        QuantizedKvCache::new(self.group_size, self.bits).map(drop)
    }
}

/// Empty caches for `model`, one per layer. With `max_kv_size` each holds at most that many tokens:
/// the first four and the last ones.
///
/// For models with caches of their own kinds `max_kv_size` would bound nothing: mlx-lm ignores it,
/// here it is an error.
pub fn make_prompt_cache(
    model: &Model,
    max_kv_size: Option<usize>,
) -> Result<Vec<LayerCache>, LmError> {
    let caches = model.make_cache();
    let Some(max_kv_size) = max_kv_size else { return Ok(caches) };
    bounded(caches, max_kv_size)
}

pub(super) fn bounded(
    caches: Vec<LayerCache>,
    max_kv_size: usize,
) -> Result<Vec<LayerCache>, LmError> {
    let refuse = |allowed: String| LmError::CacheSetting {
        name: "max_kv_size",
        value: max_kv_size.to_string(),
        allowed,
    };
    let Some(max_size) = i32::try_from(max_kv_size)
        .ok()
        .filter(|max_size| (NUM_KEEP + 1..=MAX_TOKENS).contains(max_size))
    else {
        return Err(refuse(format!(
            "it must be from {} to {}, because the first {NUM_KEEP} tokens are always kept",
            NUM_KEEP + 1,
            MAX_TOKENS
        )));
    };
    if let Some(other) = caches.iter().find(|cache| !matches!(cache, LayerCache::Kv(_))) {
        return Err(refuse(format!(
            "this model decides by itself what it keeps (a {} among its caches): leave it out",
            other.kind()
        )));
    }
    Ok(caches
        .iter()
        .map(|_| LayerCache::Rotating(RotatingKvCache::new(max_size, NUM_KEEP)))
        .collect())
}

/// Whether tokens can be removed from the end of all `caches`.
pub fn can_trim_prompt_cache(caches: &[LayerCache]) -> bool {
    caches.iter().all(LayerCache::is_trimmable)
}

/// Removes the last `num_tokens` of all `caches` and returns how many the first removed; 0 (and no
/// change) if one of them cannot be trimmed.
pub fn trim_prompt_cache(caches: &mut [LayerCache], num_tokens: usize) -> usize {
    if !can_trim_prompt_cache(caches) {
        return 0;
    }
    let mut trimmed = caches.iter_mut().map(|cache| cache.trim(num_tokens));
    let first = trimmed.next().unwrap_or(0);
    trimmed.for_each(drop);
    first
}
