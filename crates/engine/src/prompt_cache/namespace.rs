//! The namespace, the spec and the needs of a model's caches.

use cairn_lm::LoadedModel;
use cairn_lm::cache::{CacheSpec, LayerCache};
use cairn_prompt_cache::{KvFormat, Namespace, RestoreNeeds};

use crate::kv_format::{kv_format_of, quantization, quantized_like};

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

/// What must be stored for caches to be restored at a position.
pub(super) fn needs(spec: &CacheSpec) -> RestoreNeeds {
    RestoreNeeds { window: spec.window(), needs_state: spec.has_state() }
}
