//! The recurrent layers of decoders that have some: one kind for a model, from `nn/`.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use crate::LmError;
use crate::cache::{ArraysCache, LayerCacheSpec};
use crate::nn::{
    GatedConv, GatedConvSizes, Linear, Mamba, Mamba2, Mamba2Sizes, MambaSizes, Norm, SelectiveScan,
    StateSpace,
};
use crate::tensor_list::TensorList;
use crate::weights::Layer;

/// A recurrent layer.
#[derive(Debug, Clone)]
pub enum RecurrentKind {
    /// A short convolution between two gates.
    GatedConv(GatedConvSizes),
    /// A state space with one decay for each head.
    Mamba2(Mamba2Sizes),
    /// A state space with a decay for each number of its state.
    Mamba(MambaSizes),
}

/// What a recurrent layer holds while it reads, see `Scratch`.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecurrentScratch {
    pub(super) numbers_per_token: u64,
    pub(super) fixed_numbers: u64,
}

impl RecurrentKind {
    pub(super) fn cache_spec(&self) -> LayerCacheSpec {
        match self {
            RecurrentKind::GatedConv(sizes) => sizes.cache_spec(),
            RecurrentKind::Mamba2(sizes) => sizes.cache_spec(),
            RecurrentKind::Mamba(sizes) => sizes.cache_spec(),
        }
    }

    /// Adds what [`RecurrentLayer::load`] and [`RecurrentKind::load_output`] take at `path`.
    pub(super) fn list(&self, list: &mut TensorList, path: &str, hidden: i32) {
        match self {
            RecurrentKind::GatedConv(sizes) => sizes.list(list, path, hidden),
            RecurrentKind::Mamba2(sizes) => sizes.list(list, path, hidden),
            RecurrentKind::Mamba(sizes) => sizes.list(list, path, hidden),
        }
        let out_proj = format!("{path}.out_proj");
        let (width, has_bias) = self.outputs();
        if has_bias {
            list.plain(format!("{out_proj}.bias"), &[hidden]);
        }
        list.matrix(out_proj, width, hidden);
    }

    /// The matrix from what the layer computes to the residual stream.
    pub(super) fn load_output(&self, layer: &mut Layer, hidden: i32) -> Result<Linear, LmError> {
        let (width, has_bias) = self.outputs();
        Linear::load(&mut layer.layer("out_proj"), width, hidden, has_bias)
    }

    /// How wide its results are, and whether their projection has a bias.
    fn outputs(&self) -> (i32, bool) {
        match self {
            RecurrentKind::GatedConv(sizes) => (sizes.channels, sizes.has_bias),
            RecurrentKind::Mamba2(sizes) => (sizes.inner(), sizes.out_has_bias),
            RecurrentKind::Mamba(sizes) => (sizes.inner, sizes.has_bias),
        }
    }

    /// How many results of each width live at once, by the example `memory`.
    pub(super) fn scratch(&self) -> RecurrentScratch {
        match self {
            RecurrentKind::GatedConv(sizes) => {
                RecurrentScratch { numbers_per_token: 6 * sizes.channels as u64, fixed_numbers: 0 }
            }
            RecurrentKind::Mamba(sizes) => {
                let [inner, state] = [sizes.inner, sizes.state].map(|size| size as u64);
                RecurrentScratch {
                    numbers_per_token: 8 * inner + 2 * (sizes.rank as u64 + 3 * state),
                    fixed_numbers: 25 * SelectiveScan::CHUNK as u64 * inner * state,
                }
            }
            RecurrentKind::Mamba2(sizes) => {
                let [inner, heads, state] =
                    [sizes.inner(), sizes.heads, sizes.state].map(|size| size as u64);
                let chunk = StateSpace::CHUNK as u64;
                let written = 2 * sizes.groups as u64 * state;
                let of_pairs = 4 * heads * chunk + 2 * inner * state / chunk;
                RecurrentScratch {
                    numbers_per_token: 11 * inner + 9 * written + of_pairs,
                    fixed_numbers: 4 * inner * state + 4 * heads * chunk * chunk,
                }
            }
        }
    }
}

/// A recurrent layer with the norm before it.
#[derive(Debug)]
pub(super) enum RecurrentLayer {
    GatedConv(Box<GatedConv>),
    Mamba2(Box<Mamba2>),
    Mamba(Box<Mamba>),
}

impl RecurrentLayer {
    pub(super) fn load(
        layer: &mut Layer,
        kind: &RecurrentKind,
        norm: Norm,
        hidden: i32,
    ) -> Result<Self, LmError> {
        Ok(match kind {
            RecurrentKind::GatedConv(sizes) => {
                RecurrentLayer::GatedConv(Box::new(GatedConv::load(layer, *sizes, norm, hidden)?))
            }
            RecurrentKind::Mamba2(sizes) => {
                RecurrentLayer::Mamba2(Box::new(Mamba2::load(layer, *sizes, norm, hidden)?))
            }
            RecurrentKind::Mamba(sizes) => {
                RecurrentLayer::Mamba(Box::new(Mamba::load(layer, *sizes, norm, hidden)?))
            }
        })
    }

    /// `[B, L, D]` to `[B, L, width]`. Tokens where `mask` (bool `[B, L]`) is false do not change
    /// the state.
    pub(super) fn forward(
        &self,
        x: &Array,
        cache: &mut ArraysCache,
        mask: Option<&Array>,
    ) -> Result<Array, Exception> {
        match self {
            RecurrentLayer::GatedConv(conv) => conv.forward(x, cache),
            RecurrentLayer::Mamba2(mamba) => mamba.forward(x, cache, mask),
            RecurrentLayer::Mamba(mamba) => mamba.forward(x, cache, mask),
        }
    }
}
