//! How a chunk file names the caches that its chunk is part of.
//!
//! The names are on disk since the first version and must stay readable, which is why they are types
//! of their own. They say nothing of sizes: those of a model's caches follow from its config.json.

use serde::{Deserialize, Serialize};

use crate::cache::{
    ArraysSpec, CacheSpec, KvSpec, LayerCacheSpec, ListSpec, QuantizedSpec, RotatingSpec,
};

/// The layers, as a chunk file's metadata has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheLayout(Vec<LayerLayout>);

/// One layer, or an entry of its list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LayerLayout {
    Kv,
    /// Keys and values of the tokens that are left of a context.
    CompressedKv,
    Rotating {
        max_size: usize,
    },
    Quantized {
        group_size: i32,
        bits: i32,
    },
    Arrays {
        num_slots: usize,
    },
    List(Vec<LayerLayout>),
}

impl CacheLayout {
    pub(crate) fn new(layers: Vec<LayerLayout>) -> CacheLayout {
        CacheLayout(layers)
    }

    /// The caches, without sizes.
    pub fn spec(&self) -> CacheSpec {
        CacheSpec::new(self.0.iter().map(LayerLayout::spec).collect())
    }
}

impl LayerLayout {
    /// `None` for a layer that is not stored in chunks.
    pub(crate) fn of(spec: &LayerCacheSpec) -> Option<LayerLayout> {
        Some(match spec {
            LayerCacheSpec::Kv(KvSpec { is_compressed: true, .. }) => LayerLayout::CompressedKv,
            LayerCacheSpec::Kv(_) => LayerLayout::Kv,
            &LayerCacheSpec::Rotating(RotatingSpec { max_size, keep: 0, .. }) => {
                LayerLayout::Rotating { max_size }
            }
            &LayerCacheSpec::Quantized(QuantizedSpec { group_size, bits, .. }) => {
                LayerLayout::Quantized { group_size, bits }
            }
            LayerCacheSpec::Arrays(state) => LayerLayout::Arrays { num_slots: state.slots.len() },
            LayerCacheSpec::List(list) => {
                LayerLayout::List(list.entries.iter().map(LayerLayout::of).collect::<Option<_>>()?)
            }
            LayerCacheSpec::Rotating(_) | LayerCacheSpec::Chunked(_) => return None,
        })
    }

    fn spec(&self) -> LayerCacheSpec {
        let sizes = None;
        match *self {
            LayerLayout::Kv => LayerCacheSpec::Kv(KvSpec::new(sizes)),
            LayerLayout::CompressedKv => LayerCacheSpec::Kv(KvSpec { sizes, is_compressed: true }),
            LayerLayout::Rotating { max_size } => {
                LayerCacheSpec::Rotating(RotatingSpec { max_size, keep: 0, sizes })
            }
            LayerLayout::Quantized { group_size, bits } => {
                LayerCacheSpec::Quantized(QuantizedSpec { group_size, bits, sizes })
            }
            LayerLayout::Arrays { num_slots } => {
                LayerCacheSpec::Arrays(ArraysSpec { slots: vec![None; num_slots] })
            }
            LayerLayout::List(ref entries) => {
                let entries = entries.iter().map(LayerLayout::spec).collect();
                LayerCacheSpec::List(ListSpec { entries })
            }
        }
    }
}
