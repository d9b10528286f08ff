//! The kinds of caches that a file may hold.

use super::CacheFileError;
use super::error::refusal;
use crate::excerpt::excerpt;

/// A kind of cache, by mlx-lm's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheClass {
    /// `KVCache`
    Kv,
    /// `RotatingKVCache`
    Rotating,
    /// `QuantizedKVCache`
    Quantized,
    /// `ChunkedKVCache`
    Chunked,
    /// `ArraysCache`
    Arrays,
    /// `CacheList`
    List,
}

impl CacheClass {
    const ALL: [CacheClass; 6] = [
        CacheClass::Kv,
        CacheClass::Rotating,
        CacheClass::Quantized,
        CacheClass::Chunked,
        CacheClass::Arrays,
        CacheClass::List,
    ];

    /// The class of that name.
    fn parse(name: &str) -> Option<CacheClass> {
        // 0.30.4's name of an ArraysCache with two slots.
        let name = if name == "MambaCache" { "ArraysCache" } else { name };
        CacheClass::ALL.into_iter().find(|class| class.name() == name)
    }

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            CacheClass::Kv => "KVCache",
            CacheClass::Rotating => "RotatingKVCache",
            CacheClass::Quantized => "QuantizedKVCache",
            CacheClass::Chunked => "ChunkedKVCache",
            CacheClass::Arrays => "ArraysCache",
            CacheClass::List => "CacheList",
        }
    }

    /// Its name for people.
    pub const fn kind(self) -> &'static str {
        match self {
            CacheClass::Kv => "cache of keys and values",
            CacheClass::Rotating => "rotating cache",
            CacheClass::Quantized => "quantized cache",
            CacheClass::Chunked => "chunked cache",
            CacheClass::Arrays => "recurrent state",
            CacheClass::List => "list of caches",
        }
    }
}

/// The class that a file names for a layer.
pub(super) fn known_class(layer: usize, name: &str) -> Result<CacheClass, CacheFileError> {
    CacheClass::parse(name).ok_or_else(|| {
        let known = CacheClass::ALL.map(CacheClass::name);
        refusal(
            format!("layer {layer} is a {:?}", excerpt(name)),
            &format!("only {} can be read", known.join(", ")),
        )
    })
}
