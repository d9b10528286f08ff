//! The namespace, the layout and the needs of a model's caches.

use cairn_lm::LoadedModel;
use cairn_lm::cache::chunk_state::CacheLayout;
use cairn_lm::cache::{KvQuantization, LayerCache, QuantizedKvCache};
use cairn_prompt_cache::{KvFormat, Namespace, RestoreNeeds};

/// The shared namespace of what `caches` contain.
pub(super) fn namespace(model: &LoadedModel, caches: &[LayerCache]) -> Namespace {
    Namespace::computed(model.fingerprint.as_str(), kv_format_of(caches))
}

/// How `caches` store keys and values.
pub(crate) fn kv_format_of(caches: &[LayerCache]) -> KvFormat {
    let quantized = caches.iter().find_map(|cache| match cache {
        LayerCache::Quantized(cache) => Some(cache),
        _ => None,
    });
    quantized.map_or(KvFormat::Plain, |cache| quantized_format(cache.bits(), cache.group_size()))
}

/// The format of caches that are quantized, or not, as asked for.
pub(super) fn kv_format(quantization: Option<KvQuantization>) -> KvFormat {
    quantization.map_or(KvFormat::Plain, |KvQuantization { bits, group_size, .. }| {
        quantized_format(bits, group_size)
    })
}

/// The caches themselves refuse numbers that do not fit.
fn quantized_format(bits: i32, group_size: i32) -> KvFormat {
    KvFormat::Quantized {
        bits: bits.try_into().unwrap_or(u8::MAX),
        group_size: group_size.try_into().unwrap_or(u16::MAX),
    }
}

/// The quantization, from the first token on, whose result has a format; none where keys and values
/// are plain.
pub(crate) fn quantization(kv_format: KvFormat) -> Option<KvQuantization> {
    match kv_format {
        KvFormat::Plain => None,
        KvFormat::Quantized { bits, group_size } => {
            let (bits, group_size) = (bits.into(), group_size.into());
            Some(KvQuantization { bits, group_size, start: 0 })
        }
    }
}

/// The layers of what `namespace` stores for a model; none where its caches cannot be stored.
pub(super) fn layout(
    namespace: &Namespace,
    model: &LoadedModel,
    quantization: Option<KvQuantization>,
) -> Option<CacheLayout> {
    let quantization =
        quantization.filter(|wanted| namespace.kv_format == kv_format(Some(*wanted)));
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

/// What must be stored for caches of this layout to be restored at a position.
pub(super) fn needs(layout: &CacheLayout) -> RestoreNeeds {
    RestoreNeeds { window: layout.window(), needs_state: layout.has_state() }
}
