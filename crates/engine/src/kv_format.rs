//! How keys and values are stored: what requests ask for, what caches are, and the formats that the
//! prompt cache tells apart.

use cairn_lm::cache::{CacheSpec, KvQuantization, SnapKv};
use cairn_prompt_cache::KvFormat;

/// How a request's keys and values are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KvCacheOptions {
    /// Stores the first four tokens and the latest, this many in all; with none, every token.
    /// Without effect where they are quantized.
    pub max_size: Option<usize>,
    /// Quantizes keys and values; with none they stay as computed.
    pub quantization: Option<KvQuantization>,
    /// Keeps only some of the tokens of a long prompt once it has been read; none keeps all. Not with
    /// `quantization`, nor with a draft model.
    pub snapkv: Option<SnapKv>,
}

impl KvCacheOptions {
    /// Those of what is stored in this format.
    pub fn of_format(kv_format: KvFormat) -> Self {
        let (quantization, snapkv) = (quantization(kv_format), snapkv(kv_format));
        KvCacheOptions { quantization, snapkv, ..Self::default() }
    }

    /// The format that is asked for.
    pub(crate) fn format(&self) -> KvFormat {
        match *self {
            KvCacheOptions {
                quantization: Some(KvQuantization { bits, group_size, .. }), ..
            } => quantized_format(bits, group_size),
            KvCacheOptions { snapkv: Some(snapkv), .. } => {
                let keep_tokens = snapkv.keep_tokens.try_into().unwrap_or(u32::MAX);
                KvFormat::Compressed { keep_tokens }
            }
            _ => KvFormat::Plain,
        }
    }

    /// The bound that applies: quantized caches store every token.
    pub(crate) fn effective_max_size(&self) -> Option<usize> {
        if self.quantization.is_some() { None } else { self.max_size }
    }
}

/// How caches store the keys and values of all tokens.
pub(crate) fn kv_format_of(spec: &CacheSpec) -> KvFormat {
    spec.quantization().map_or(KvFormat::Plain, |KvQuantization { bits, group_size, .. }| {
        quantized_format(bits, group_size)
    })
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

/// The choice of tokens whose result has a format, of prompts of any length; none where all are kept.
fn snapkv(kv_format: KvFormat) -> Option<SnapKv> {
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
