//! Operations on the caches of all layers of one prompt: making, trimming and quantizing them.

use super::{CacheSpec, LayerCache, MAX_TOKENS, QuantizedKvCache};
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
        for cache in caches.iter_mut().filter(|cache| cache.offset() >= self.start) {
            if let Some(quantized) = cache.as_kind().quantized(self.group_size, self.bits)? {
                *cache = quantized;
            }
        }
        Ok(())
    }

    /// Fails if one of `caches` is rotating, because those cannot be quantized. mlx-lm raises only
    /// when the first of them reaches `start`.
    pub fn check_caches(&self, caches: &[LayerCache]) -> Result<(), LmError> {
        match caches.iter().any(|cache| cache.as_kind().forbids_quantization()) {
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
    let spec = model.cache_spec();
    match max_kv_size {
        Some(max_kv_size) => Ok(bounded(spec, max_kv_size)?.make()),
        None => Ok(spec.make()),
    }
}

pub(super) fn bounded(spec: &CacheSpec, max_kv_size: usize) -> Result<CacheSpec, LmError> {
    let refuse = |allowed: String| LmError::CacheSetting {
        name: "max_kv_size",
        value: max_kv_size.to_string(),
        allowed,
    };
    let smallest = NUM_KEEP + 1;
    if !(smallest as usize..=MAX_TOKENS as usize).contains(&max_kv_size) {
        let why = format!("because the first {NUM_KEEP} tokens are always kept");
        return Err(refuse(format!("it must be from {smallest} to {MAX_TOKENS}, {why}")));
    }
    if let Some(kind) = spec.unbounded_kind() {
        return Err(refuse(format!(
            "this model decides by itself what it keeps (a {kind} among its caches): leave it out"
        )));
    }
    Ok(spec.bounded(max_kv_size, NUM_KEEP))
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
