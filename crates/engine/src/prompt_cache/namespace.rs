//! Where caches belong by how they are kept, and what their layers need.

use cairn_lm::LoadedModel;
use cairn_lm::cache::chunk_state::CacheLayout;
use cairn_lm::cache::{KvQuantization, LayerCache, QuantizedKvCache};

use super::index::Needs;
use crate::records::Namespace;

/// Where what `caches` hold belongs; no caches stand for plain ones.
pub(super) fn namespace(model: &LoadedModel, caches: &[LayerCache]) -> Namespace {
    Namespace { fingerprint: model.fingerprint.clone(), variant: cache_variant(caches) }
}

/// The [`Namespace::KV format`] of what `caches` hold.
pub(crate) fn cache_variant(caches: &[LayerCache]) -> String {
    let quantized = caches.iter().find_map(|cache| {
        if let LayerCache::Quantized(cache) = cache { Some(cache) } else { None }
    });
    quantized.map_or_else(String::new, |cache| quantized_variant(cache.bits(), cache.group_size()))
}

pub(super) fn variant(quantization: KvQuantization) -> String {
    quantized_variant(quantization.bits, quantization.group_size)
}

fn quantized_variant(bits: i32, group_size: i32) -> String {
    format!("kv{bits}g{group_size}")
}

/// The quantization that a [`Namespace::KV format`] names; from which token on it began it does not say.
pub(crate) fn named_quantization(variant: &str) -> Option<KvQuantization> {
    let (bits, group_size) = Namespace::kept_as(variant).strip_prefix("kv")?.split_once('g')?;
    Some(KvQuantization {
        bits: bits.parse().ok()?,
        group_size: group_size.parse().ok()?,
        start: 0,
    })
}

/// The layers of what is stored in `namespace` for a model; none where they cannot be stored.
pub(super) fn layout(
    namespace: &Namespace,
    model: &LoadedModel,
    quantization: Option<KvQuantization>,
) -> Option<CacheLayout> {
    let quantization = quantization
        .filter(|quantization| Namespace::kept_as(&namespace.variant) == variant(*quantization));
    CacheLayout::of(&quantized_like(model.model.make_cache(), quantization)?)
}

/// Empty caches like a model's `own`, with keys and values quantized where that is asked for; none
/// where they cannot be.
pub(crate) fn quantized_like(
    own: Vec<LayerCache>,
    quantization: Option<KvQuantization>,
) -> Option<Vec<LayerCache>> {
    let quantized = |cache| match (cache, quantization) {
        (LayerCache::Kv(_), Some(KvQuantization { bits, group_size, .. })) => {
            QuantizedKvCache::new(group_size, bits).ok().map(LayerCache::Quantized)
        }
        (cache, _) => Some(cache),
    };
    own.into_iter().map(quantized).collect()
}

pub(super) fn needs(layout: &CacheLayout) -> Needs {
    Needs { window: layout.window(), state: layout.has_state() }
}
