//! Conversion between caches and chunk states: the part of all layers' caches that belongs to a
//! range of tokens. Conversations are stored as chunks.
//!
//! The state of the tokens `start..stop` is a set of named tensors (`<layer>` is the layer's
//! number; an entry of a list of caches adds `.<entry>`):
//!
//! ```text
//! keys.<layer>, values.<layer>      [1, H, n, D] for all n = stop - start tokens; for a ring, the last tokens that it still held
//! keys_packed.<layer> …             quantized keys and values: packed, scales and biases of each
//! state_<slot>.<layer>              a recurrent state after token stop - 1, if a checkpoint was taken there
//! ```
//! Plain caches have keys and values of every token, so generation can continue from any token of a
//! chunk. A ring overwrites old tokens and a recurrent state holds only the newest state; to
//! continue from an earlier position, a [`Checkpoint`] has to be taken there.

mod assemble;
mod extract;

use serde::{Deserialize, Serialize};

pub use assemble::{CacheAssembler, TensorSlice};
pub use extract::{Checkpoint, ChunkState, EvaluatedLayers, StateTensor};

use super::LayerCache;
use super::prompt_file::LayerState;

/// The settings of a layer's cache that are needed to assemble it from chunk states.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerLayout {
    /// Keys and values of every token.
    Kv,
    /// Keys and values of the last tokens.
    Rotating {
        /// The size of the ring in tokens.
        max_size: usize,
    },
    /// Keys and values of every token, quantized.
    Quantized {
        /// How many numbers share a scale.
        group_size: i32,
        /// Bits per number.
        bits: i32,
    },
    /// A recurrent state.
    Arrays {
        /// How many arrays it consists of.
        num_slots: usize,
    },
    /// Several caches of one layer.
    List(Vec<LayerLayout>),
}

/// The layout of all layers' caches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheLayout(Vec<LayerLayout>);

impl CacheLayout {
    /// The layout of `caches`; `None` if one of them cannot be stored in chunks: a rotating cache
    /// with `keep > 0`, a chunked cache or a batch.
    pub fn of(caches: &[LayerCache]) -> Option<CacheLayout> {
        caches.iter().map(LayerLayout::of).collect::<Option<_>>().map(CacheLayout)
    }

    /// The layout of the caches in a file, from its header alone.
    pub(super) fn of_states(layers: &[LayerState]) -> Option<CacheLayout> {
        layers.iter().map(LayerLayout::of_state).collect::<Option<_>>().map(CacheLayout)
    }

    /// Its layers.
    pub fn layers(&self) -> &[LayerLayout] {
        &self.0
    }

    /// The size of the widest ring; `None` if there is no ring.
    pub fn window(&self) -> Option<usize> {
        self.0.iter().filter_map(LayerLayout::window).max()
    }

    /// Whether a layer has a recurrent state, which is valid at one position only.
    pub fn has_state(&self) -> bool {
        self.0.iter().any(LayerLayout::has_state)
    }

    /// Whether generation can continue only from a [`Checkpoint`] or from the end of the caches.
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

/// The tensor names of keys and values, in the order in which they are extracted and assembled.
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
