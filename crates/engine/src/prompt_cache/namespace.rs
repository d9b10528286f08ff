//! The namespace, the spec and the needs of a model's caches.

use cairn_lm::LoadedModel;
use cairn_lm::cache::{CacheSpec, KvQuantization, LayerCache};
use cairn_prompt_cache::{KvFormat, Namespace, RestoreNeeds};

/// The shared namespace of what `caches` contain.
pub(super) fn namespace(model: &LoadedModel, caches: &[LayerCache]) -> Namespace {
    let format = CacheSpec::of(caches).map_or(KvFormat::Plain, |spec| kv_format_of(&spec));
    Namespace::computed(model.fingerprint.as_str(), format)
}

/// How caches store keys and values.
pub(crate) fn kv_format_of(spec: &CacheSpec) -> KvFormat {
    kv_format(spec.quantization())
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

/// What the caches are that `namespace` stores for a model; none where they cannot be stored.
pub(super) fn stored_spec(
    namespace: &Namespace,
    model: &LoadedModel,
    quantization: Option<KvQuantization>,
) -> Option<CacheSpec> {
    spec_like_own(
        model,
        quantization.filter(|wanted| namespace.kv_format == kv_format(Some(*wanted))),
    )
}

/// What a model's own caches are, quantized where that is asked for and with their types where the
/// model can tell them; none where they cannot be stored.
pub(super) fn spec_like_own(
    model: &LoadedModel,
    quantization: Option<KvQuantization>,
) -> Option<CacheSpec> {
    let own = model.model.typed_cache_spec().unwrap_or(model.model.cache_spec());
    quantized_like(own, quantization).filter(|spec| spec.layout().is_some())
}

/// What caches like a model's `own` are after keys and values have been quantized where that is
/// asked for; none where they cannot be.
pub(crate) fn quantized_like(
    own: &CacheSpec,
    quantization: Option<KvQuantization>,
) -> Option<CacheSpec> {
    match quantization {
        Some(quantization) => own.quantized(&quantization).ok(),
        None => Some(own.clone()),
    }
}

/// What must be stored for caches to be restored at a position.
pub(super) fn needs(spec: &CacheSpec) -> RestoreNeeds {
    RestoreNeeds { window: spec.window(), needs_state: spec.has_state() }
}
