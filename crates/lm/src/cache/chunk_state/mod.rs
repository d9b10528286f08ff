//! Caches cut into spans of tokens and put together again: how a conversation is stored piece by
//! piece.
//!
//! Of the tokens `start..stop` a span holds, as tensors by name (`<layer>` is the layer's number;
//! an entry of a list of caches adds `.<entry>`):
//!
//! ```text
//! keys.<layer>, values.<layer>      [1, H, n, D] of all n = stop - start tokens, or of those last ones that a ring still held
//! keys_packed.<layer> …             quantized keys and values: packed, scales and biases of each
//! state_<slot>.<layer>              a recurrent state behind the token stop - 1, where it was caught there
//! ```
//! Keys and values of plain caches are there for every span, so a conversation can go on from any
//! token of them. A ring gives up old tokens and a recurrent state all but the last: what they were
//! on the way is kept only where a [`Checkpoint`] was taken.

mod assemble;
mod extract;

use serde::{Deserialize, Serialize};

pub use assemble::{CacheAssembler, TensorSlice};
pub use extract::{Checkpoint, ChunkState, EvaluatedLayers, StateTensor};

use super::LayerCache;
use super::prompt_file::LayerState;

/// What has to be known of a layer's cache to put one together from spans.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerLayout {
    /// Keys and values of every token.
    Kv,
    /// Keys and values of the last tokens.
    Rotating {
        /// How many of them.
        max_size: usize,
    },
    /// Keys and values of every token, quantized.
    Quantized {
        /// Values that share a scale.
        group_size: i32,
        /// Bits a value.
        bits: i32,
    },
    /// A recurrent state.
    Arrays {
        /// Arrays that it consists of.
        num_slots: usize,
    },
    /// Several caches of one layer.
    List(Vec<LayerLayout>),
}

/// What has to be known of all layers' caches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheLayout(Vec<LayerLayout>);

impl CacheLayout {
    /// That of `caches`; none where one of them cannot be cut: rings that keep their first tokens,
    /// chunked caches and batches.
    pub fn of(caches: &[LayerCache]) -> Option<CacheLayout> {
        caches.iter().map(LayerLayout::of).collect::<Option<_>>().map(CacheLayout)
    }

    /// That of the caches in a file, by its header alone.
    pub(super) fn of_states(layers: &[LayerState]) -> Option<CacheLayout> {
        layers.iter().map(LayerLayout::of_state).collect::<Option<_>>().map(CacheLayout)
    }

    /// Its layers.
    pub fn layers(&self) -> &[LayerLayout] {
        &self.0
    }

    /// The tokens that the widest ring holds; none where every layer holds all.
    pub fn window(&self) -> Option<usize> {
        self.0.iter().filter_map(LayerLayout::window).max()
    }

    /// Whether a layer remembers a state that only stands for one place.
    pub fn has_state(&self) -> bool {
        self.0.iter().any(LayerLayout::has_state)
    }

    /// Whether a conversation can only go on where a [`Checkpoint`] was taken or its last answer
    /// ended.
    pub fn needs_checkpoints(&self) -> bool {
        self.window().is_some() || self.has_state()
    }
}

impl LayerLayout {
    fn of(cache: &LayerCache) -> Option<LayerLayout> {
        Some(match cache {
            LayerCache::Kv(_) => LayerLayout::Kv,
            LayerCache::Rotating(cache) if cache.keep() == 0 => {
                LayerLayout::Rotating { max_size: cache.max_size() }
            }
            LayerCache::Quantized(cache) => {
                LayerLayout::Quantized { group_size: cache.group_size(), bits: cache.bits() }
            }
            LayerCache::Arrays(cache) if cache.num_rows() == 1 => {
                LayerLayout::Arrays { num_slots: cache.num_slots() }
            }
            LayerCache::List(list) => LayerLayout::List(
                list.entries().iter().map(LayerLayout::of).collect::<Option<_>>()?,
            ),
            LayerCache::Rotating(_)
            | LayerCache::Chunked(_)
            | LayerCache::Arrays(_)
            | LayerCache::BatchKv(_)
            | LayerCache::BatchRotating(_) => return None,
        })
    }

    fn of_state(state: &LayerState) -> Option<LayerLayout> {
        Some(match state {
            LayerState::Kv { .. } => LayerLayout::Kv,
            LayerState::Rotating { keep: 0, max_size, .. } => {
                LayerLayout::Rotating { max_size: *max_size }
            }
            LayerState::Quantized { group_size, bits, .. } => {
                LayerLayout::Quantized { group_size: *group_size, bits: *bits }
            }
            LayerState::Arrays(slots) => LayerLayout::Arrays { num_slots: slots.len() },
            LayerState::List(entries) => {
                LayerLayout::List(entries.iter().map(LayerLayout::of_state).collect::<Option<_>>()?)
            }
            LayerState::Rotating { .. } | LayerState::Chunked { .. } => return None,
        })
    }

    fn window(&self) -> Option<usize> {
        match self {
            LayerLayout::Rotating { max_size } => Some(*max_size),
            LayerLayout::List(entries) => entries.iter().filter_map(LayerLayout::window).max(),
            LayerLayout::Kv | LayerLayout::Quantized { .. } | LayerLayout::Arrays { .. } => None,
        }
    }

    fn has_state(&self) -> bool {
        match self {
            LayerLayout::Arrays { .. } => true,
            LayerLayout::List(entries) => entries.iter().any(LayerLayout::has_state),
            LayerLayout::Kv | LayerLayout::Rotating { .. } | LayerLayout::Quantized { .. } => false,
        }
    }
}

/// The tensors of keys and values, in the order in which they are cut and joined.
const PLAIN: [&str; 2] = ["keys", "values"];
const QUANTIZED: [&str; 6] = [
    "keys_packed",
    "keys_scales",
    "keys_biases",
    "values_packed",
    "values_scales",
    "values_biases",
];

fn state_name(slot: usize, path: &str) -> String {
    format!("state_{slot}.{path}")
}

fn entry_path(path: &str, entry: usize) -> String {
    format!("{path}.{entry}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests;
