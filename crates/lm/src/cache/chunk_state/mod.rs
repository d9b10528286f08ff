//! Conversion between caches and chunk states: the part of all layers' caches that belongs to a
//! range of tokens. Conversations are stored as chunks.
//!
//! The state of the tokens `start..stop` is a set of named tensors (`<layer>` is the layer's
//! number; an entry of a list of caches adds `.<entry>`):
//!
//! ```text
//! keys.<layer>, values.<layer>    [1, H, n, D] for all n = stop - start tokens; for a ring, the last
//!                                 tokens that it still held
//! keys_packed.<layer> …           quantized keys and values: packed, scales and biases of each
//! state_<slot>.<layer>            a recurrent state after token stop - 1, if a checkpoint was taken
//!                                 there
//! ```
//! Plain caches have keys and values of every token, so generation can continue from any token of a
//! chunk. A ring overwrites old tokens and a recurrent state holds only the newest state; to
//! continue from an earlier position, a [`Checkpoint`] has to be taken there.

mod assemble;
mod extract;
mod layout;

use mlx_rs::Dtype;

pub use assemble::{CacheAssembler, TensorSlice};
pub use extract::{Checkpoint, ChunkState, EvaluatedLayers, StateTensor};
pub use layout::CacheLayout;
pub(super) use layout::LayerLayout;

use super::{KvSizes, LayerCacheSpec};

/// What chunk states store of one layer's cache after a given number of tokens.
#[derive(Debug)]
pub(crate) enum ChunkForm {
    /// The tokens from `first` on, in buffers for `capacity` of them.
    Tokens { tensors: Vec<TokenTensor>, first: usize, capacity: usize },
    /// The arrays of a recurrent state; `None` for a size that is not known.
    State(Vec<Option<StateTensorSize>>),
    /// Those of the entries of a list.
    Entries(Vec<LayerCacheSpec>),
}

/// A tensor `[1, heads, n, width]` of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenTensor {
    /// Its name before the layer's number.
    pub(crate) name: &'static str,
    /// Heads and width, where they are known.
    pub(crate) size: Option<[usize; 2]>,
    /// Its type, where it is known. Only packed numbers are of Dtype::Uint32.
    pub(crate) dtype: Option<Dtype>,
}

/// A tensor of a recurrent state.
#[derive(Debug)]
pub(crate) struct StateTensorSize {
    /// All its axes.
    pub(crate) shape: Vec<usize>,
    /// Its type, where it is known.
    pub(crate) dtype: Option<Dtype>,
}

impl ChunkForm {
    /// Keys and values as they are.
    pub(crate) fn plain(sizes: &Option<KvSizes>, first: usize, capacity: usize) -> ChunkForm {
        let tensor = |name, width: fn(&KvSizes) -> i32, side: usize| TokenTensor {
            name,
            size: sizes.as_ref().map(|sizes| [sizes.heads, width(sizes)].map(|n| n as usize)),
            dtype: sizes.and_then(|sizes| Some(sizes.types?[side])),
        };
        let keys = tensor(PLAIN[0], |sizes| sizes.key_dim, 0);
        let values = tensor(PLAIN[1], |sizes| sizes.value_dim, 1);
        ChunkForm::Tokens { tensors: vec![keys, values], first, capacity }
    }
}

/// The tensor names of keys and values, in the order in which they are extracted and assembled.
const PLAIN: [&str; 2] = ["keys", "values"];
pub(crate) const QUANTIZED: [[&str; 3]; 2] = [
    ["keys_packed", "keys_scales", "keys_biases"],
    ["values_packed", "values_scales", "values_biases"],
];

/// How the names of recurrent states begin.
const STATE: &str = "state_";

fn state_name(slot: usize, path: &str) -> String {
    format!("{STATE}{slot}.{path}")
}

fn entry_path(path: &str, entry: usize) -> String {
    format!("{path}.{entry}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests;
