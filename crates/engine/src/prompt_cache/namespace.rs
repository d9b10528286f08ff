//! The namespace, the spec and the needs of a model's caches.

use cairn_lm::LoadedModel;
use cairn_lm::cache::{CacheSpec, KvQuantization, LayerCache, SnapKv};
use cairn_prompt_cache::{KvFormat, Namespace, RestoreNeeds};

use crate::request::KvCacheOptions;

/// The shared namespace of what `caches` contain, which a request has computed that asked for
/// `kv_format`.
pub(super) fn namespace(
    model: &LoadedModel,
    caches: &[LayerCache],
    kv_format: KvFormat,
) -> Namespace {
    let format = match CacheSpec::of(caches) {
        // How much is kept, the caches do not tell.
        Some(spec) if spec.is_compressed() => kv_format,
        Some(spec) => kv_format_of(&spec),
        None => KvFormat::Plain,
    };
    Namespace::computed(model.fingerprint.as_str(), format)
}

/// How caches store the keys and values of all tokens.
pub(crate) fn kv_format_of(spec: &CacheSpec) -> KvFormat {
    spec.quantization().map_or(KvFormat::Plain, |KvQuantization { bits, group_size, .. }| {
        quantized_format(bits, group_size)
    })
}

/// The format that a request asks for.
pub(crate) fn kv_format(options: &KvCacheOptions) -> KvFormat {
    match *options {
        KvCacheOptions { quantization: Some(KvQuantization { bits, group_size, .. }), .. } => {
            quantized_format(bits, group_size)
        }
        KvCacheOptions { snapkv: Some(snapkv), .. } => {
            KvFormat::Compressed { keep_tokens: snapkv.keep_tokens.try_into().unwrap_or(u32::MAX) }
        }
        _ => KvFormat::Plain,
    }
}

/// The choice of tokens whose result has a format, of prompts of any length; none where all are kept.
pub(crate) fn snapkv(kv_format: KvFormat) -> Option<SnapKv> {
    match kv_format {
        KvFormat::Compressed { keep_tokens } => {
            Some(SnapKv { keep_tokens: keep_tokens as usize, min_context: 0 })
        }
        KvFormat::Plain | KvFormat::Quantized { .. } => None,
    }
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
        KvFormat::Plain | KvFormat::Compressed { .. } => None,
        KvFormat::Quantized { bits, group_size } => {
            let (bits, group_size) = (bits.into(), group_size.into());
            Some(KvQuantization { bits, group_size, start: 0 })
        }
    }
}

/// What the caches are that `namespace` stores for a model; none where they cannot be stored.
pub(super) fn stored_spec(namespace: &Namespace, model: &LoadedModel) -> Option<CacheSpec> {
    spec_like_own(model, namespace.kv_format)
}

/// What a model's own caches are in a format, with their types where the model can tell them; none
/// where they cannot be stored.
pub(super) fn spec_like_own(model: &LoadedModel, kv_format: KvFormat) -> Option<CacheSpec> {
    let own = model.model.typed_cache_spec().unwrap_or(model.model.cache_spec());
    let spec = match kv_format {
        KvFormat::Compressed { .. } => own.compressed(),
        KvFormat::Plain | KvFormat::Quantized { .. } => {
            quantized_like(own, quantization(kv_format))
        }
    };
    spec.filter(|spec| spec.layout().is_some())
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
