//! The namespace and the layout that a model's caches belong to.

use cairn_lm::LoadedModel;
use cairn_lm::cache::chunk_state::CacheLayout;
use cairn_lm::cache::{KvQuantization, LayerCache, QuantizedKvCache};

use super::index::Needs;
use crate::records::{KvFormat, Namespace};

/// The shared namespace of what `caches` contain.
pub(super) fn namespace(model: &LoadedModel, caches: &[LayerCache]) -> Namespace {
    Namespace::computed(&model.fingerprint, kv_format_of(caches))
}

/// How `caches` store keys and values.
pub(crate) fn kv_format_of(caches: &[LayerCache]) -> KvFormat {
    let quantized = caches.iter().find_map(|cache| match cache {
        LayerCache::Quantized(cache) => Some(cache),
        _ => None,
    });
    quantized.map_or(KvFormat::Plain, |cache| KvFormat::Quantized {
        bits: cache.bits(),
        group_size: cache.group_size(),
    })
}

/// The layers of what `namespace` stores for a model; none where its caches cannot be stored.
pub(super) fn layout(
    namespace: &Namespace,
    model: &LoadedModel,
    quantization: Option<KvQuantization>,
) -> Option<CacheLayout> {
    let quantization =
        quantization.filter(|wanted| namespace.kv_format == KvFormat::from(Some(*wanted)));
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
