//! A short convolution between two gates, LFM2's recurrent layer. Reference: mlx-lm's lfm2.py.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::ops;

use crate::LmError;
use crate::cache::{ArraysCache, ArraysSpec, LayerCacheSpec};
use crate::nn::{ConvSizes, Elementwise, Linear, Norm, NormProjections, ShortConv};
use crate::tensor_list::TensorList;
use crate::weights::Layer;

/// The slot of a cache that holds the convolution's last inputs.
const CONV_SLOT: usize = 0;

/// The sizes of a [`GatedConv`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedConvSizes {
    /// C, as wide as hidden vectors.
    pub channels: i32,
    /// How many tokens the convolution sees.
    pub kernel: i32,
    /// Whether the convolution and both projections have biases.
    pub has_bias: bool,
}

impl GatedConvSizes {
    fn conv(self) -> ConvSizes {
        let GatedConvSizes { channels, kernel, has_bias } = self;
        ConvSizes { channels, kernel, has_bias, activates: false }
    }

    /// The last inputs of the convolution.
    pub fn cache_spec(self) -> LayerCacheSpec {
        LayerCacheSpec::Arrays(ArraysSpec { slots: vec![Some(self.conv().state())] })
    }

    /// Adds what [`GatedConv::load`] takes at `path`.
    pub(crate) fn list(self, list: &mut TensorList, path: &str, hidden: i32) {
        let in_proj = format!("{path}.in_proj");
        if self.has_bias {
            list.plain(format!("{in_proj}.bias"), &[3 * self.channels]);
        }
        list.matrix(in_proj, hidden, 3 * self.channels);
        self.conv().list(list, &format!("{path}.conv"));
    }
}

/// `c * conv(b * x)`, where b, c and x are projections of the normalized input.
#[derive(Debug)]
pub struct GatedConv {
    projections: NormProjections<3>,
    conv: ShortConv,
    /// `c * (sum + bias)`
    outputs: Elementwise<2>,
}

impl GatedConv {
    /// Takes `in_proj` and `conv` from the layer.
    pub fn load(
        layer: &mut Layer,
        sizes: GatedConvSizes,
        norm: Norm,
        hidden: i32,
    ) -> Result<Self, LmError> {
        let GatedConvSizes { channels, has_bias, .. } = sizes;
        let in_proj = Linear::load(&mut layer.layer("in_proj"), hidden, 3 * channels, has_bias)?;
        let conv = ShortConv::load(&mut layer.layer("conv"), sizes.conv())?;
        let bias = conv.bias().cloned();
        Ok(GatedConv {
            projections: NormProjections::new(norm, in_proj.into_parts([channels; 3])?)?,
            conv,
            outputs: Elementwise::new(move |[c, sums]| {
                let convolved = match &bias {
                    Some(bias) => ops::add(sums, bias)?,
                    None => sums.clone(),
                };
                ops::multiply(c, convolved.as_dtype(c.dtype())?)
            }),
        })
    }

    /// `[B, L, D]` to `[B, L, C]`. Tokens that do not belong to their row change no state: the cache
    /// knows how many do.
    pub fn forward(&self, x: &Array, cache: &mut ArraysCache) -> Result<Array, Exception> {
        let [b, c, x] = self.projections.forward_split(x)?;
        let sums = self.conv.sums(&ops::multiply(b, &x)?, cache, CONV_SLOT)?;
        cache.advance(x.dim(1) as usize);
        self.outputs.call([&c, &sums])
    }
}
