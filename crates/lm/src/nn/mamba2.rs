//! Mamba-2's layer (Dao and Gu 2024): a short convolution, a state space, and a gate. Reference:
//! mlx-lm's mamba2.py.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, fast, ops};

use crate::LmError;
use crate::cache::{ArraysCache, ArraysSpec, LayerCacheSpec, StateSize};
use crate::ffi;
use crate::nn::exponential::silu;
use crate::nn::{ConvSizes, Linear, Norm, NormProjections, ShortConv, StateSpace};
use crate::tensor_list::TensorList;
use crate::weights::Layer;

/// The slots of a cache.
const CONV_SLOT: usize = 0;
const STATE_SLOT: usize = 1;

/// The sizes of a [`Mamba2`], and its choices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mamba2Sizes {
    /// H
    pub heads: i32,
    /// P
    pub head_dim: i32,
    /// G, of which each has a B and a C.
    pub groups: i32,
    /// N, how many numbers of state each of a head's inputs has.
    pub state: i32,
    /// How many tokens the convolution sees.
    pub kernel: i32,
    pub conv_has_bias: bool,
    /// Whether the projection of its inputs has a bias.
    pub in_has_bias: bool,
    /// Whether the projection of its outputs has a bias.
    pub out_has_bias: bool,
    /// What steps are at least and at most.
    pub step_limits: [f32; 2],
    pub gate: GateKind,
}

/// How a layer's outputs are gated and normalized.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GateKind {
    /// `silu(gate) * y`
    Plain,
    /// `norm(silu(gate) * y)`, in so many parts by themselves.
    ThenNorm { eps: f32, parts: i32 },
    /// `silu(gate) * norm(y)`
    AfterNorm(f32),
}

impl Mamba2Sizes {
    /// The width of all heads.
    pub fn inner(&self) -> i32 {
        self.heads * self.head_dim
    }

    /// Fails unless groups share the heads evenly and the layer is not wider than an MLP may be; the
    /// errors name the keys of heads and groups.
    pub(crate) fn check(&self, heads: &'static str, groups: &'static str) -> Result<(), LmError> {
        let wrong = |name, value: i32, allowed: String| {
            Err(LmError::Config { name, value: value.to_string(), allowed })
        };
        if self.heads % self.groups != 0 {
            let allowed = format!("it must divide {heads} = {}", self.heads);
            return wrong(groups, self.groups, allowed);
        }
        let most = 1 << 20;
        if i64::from(self.heads) * i64::from(self.head_dim) > most {
            let allowed = format!("all heads together may have {most} numbers");
            return wrong(heads, self.heads, allowed);
        }
        Ok(())
    }

    fn conv(&self) -> ConvSizes {
        let &Mamba2Sizes { groups, state, kernel, conv_has_bias, .. } = self;
        let channels = self.inner() + 2 * groups * state;
        ConvSizes { channels, kernel, has_bias: conv_has_bias, activates: true }
    }

    /// Of the gate, of what is convolved, and of the steps.
    fn projections(&self) -> [i32; 3] {
        [self.inner(), self.conv().channels, self.heads]
    }

    /// The last inputs of the convolution, and each head's state, which is computed in f32.
    pub fn cache_spec(&self) -> LayerCacheSpec {
        let shape = vec![self.heads, self.head_dim, self.state];
        let states = StateSize { shape, dtype: Some(Dtype::Float32) };
        LayerCacheSpec::Arrays(ArraysSpec { slots: vec![Some(self.conv().state()), Some(states)] })
    }

    /// Adds what [`Mamba2::load`] takes at `path`.
    pub(crate) fn list(&self, list: &mut TensorList, path: &str, hidden: i32) {
        let width = self.projections().iter().sum();
        list.matrix(format!("{path}.in_proj"), hidden, width);
        if self.in_has_bias {
            list.plain(format!("{path}.in_proj.bias"), &[width]);
        }
        self.conv().list(list, &format!("{path}.conv1d"));
        for name in ["A_log", "D", "dt_bias"] {
            list.plain(format!("{path}.{name}"), &[self.heads]);
        }
        if self.gate != GateKind::Plain {
            list.plain(format!("{path}.norm.weight"), &[self.inner()]);
        }
    }
}

/// `gate(state_space(conv(x)))` of the projections of the normalized input.
#[derive(Debug)]
pub struct Mamba2 {
    /// The gate; x, B and C concatenated; the steps.
    projections: NormProjections<3>,
    /// Returns f32, so that everything from here to the output is computed in f32.
    conv: ShortConv,
    a: Array,            // f32 [1, 1, H]: −exp(A_log)
    dt_bias: Array,      // f32 [1, 1, H]
    d: Array,            // f32 [H, 1]: the factor of x in the output
    norm: Option<Array>, // [H * P]
    sizes: Mamba2Sizes,
}

impl Mamba2 {
    /// Takes the layer but for its output's projection.
    pub fn load(
        layer: &mut Layer,
        sizes: Mamba2Sizes,
        norm: Norm,
        hidden: i32,
    ) -> Result<Self, LmError> {
        let parts = sizes.projections();
        let width = parts.iter().sum();
        let in_proj = Linear::load(&mut layer.layer("in_proj"), hidden, width, sizes.in_has_bias)?;
        let mut of_heads = |name| -> Result<Array, LmError> {
            let numbers = layer.take(name, &[sizes.heads])?.as_dtype(Dtype::Float32)?;
            Ok(ops::reshape(numbers, &[1, 1, sizes.heads])?)
        };
        let a = ops::negative(ops::exp(of_heads("A_log")?)?)?;
        let dt_bias = of_heads("dt_bias")?;
        let d = ops::reshape(of_heads("D")?, &[sizes.heads, 1])?;
        mlx_rs::transforms::eval([&a, &dt_bias, &d])?;
        let own_norm = match sizes.gate {
            GateKind::Plain => None,
            _ => Some(layer.layer("norm").take("weight", &[sizes.inner()])?),
        };
        Ok(Mamba2 {
            projections: NormProjections::new(norm, in_proj.into_parts(parts)?)?,
            conv: ShortConv::load_sized(&mut layer.layer("conv1d"), sizes.conv())?,
            a,
            dt_bias,
            d,
            norm: own_norm,
            sizes,
        })
    }

    /// `[B, L, D]` to `[B, L, H * P]`. Tokens where `mask` (bool `[B, L]`) is false do not change
    /// the state.
    pub fn forward(
        &self,
        x: &Array,
        cache: &mut ArraysCache,
        mask: Option<&Array>,
    ) -> Result<Array, Exception> {
        let [gate, convolved, dt] = self.projections.forward_split(x)?;
        let dtype = gate.dtype();
        let mixed = self.conv.forward(&convolved, cache, CONV_SLOT)?; // f32 [B, L, C]
        let space = self.space(&mixed, &dt)?;
        let direct = ops::multiply(&space.x, &self.d)?;
        let (outputs, state) = space.update(cache.get(STATE_SLOT), mask)?;
        cache.set(STATE_SLOT, state);
        cache.advance(x.dim(1) as usize);
        let outputs = ops::reshape(ops::add(outputs, direct)?, gate.shape())?;
        self.gated(&outputs, &gate.as_dtype(Dtype::Float32)?)?.as_dtype(dtype)
    }

    /// The inputs of the state space from x, B and C `[B, L, C]` and the projection `dt` `[B, L, H]`.
    fn space(&self, mixed: &Array, dt: &Array) -> Result<StateSpace, Exception> {
        let &Mamba2Sizes { heads, head_dim, groups, state, step_limits: [least, most], .. } =
            &self.sizes;
        let (batch, length, inner) = (mixed.dim(0), mixed.dim(1), self.sizes.inner());
        let part = |from: i32, count: i32, width: i32| {
            let part = ffi::slice(mixed, &[0, 0, from], &[batch, length, from + count * width])?;
            ops::reshape(part, &[batch, length, count, width])
        };
        let dt = ops::add(dt, &self.dt_bias)?;
        let mut dt = ops::logaddexp(dt, Array::from_slice(&[0.0f32], &[1]))?; // softplus
        if least > 0.0 {
            dt = ops::maximum(dt, Array::from_slice(&[least], &[1]))?;
        }
        if most.is_finite() {
            dt = ops::minimum(dt, Array::from_slice(&[most], &[1]))?;
        }
        Ok(StateSpace {
            x: part(0, heads, head_dim)?,
            b: part(inner, groups, state)?,
            c: part(inner + groups * state, groups, state)?,
            dt,
            a: self.a.clone(),
        })
    }

    /// The outputs `y` `[B, L, H * P]` with their gates, both f32.
    fn gated(&self, y: &Array, gate: &Array) -> Result<Array, Exception> {
        let gate = silu(gate)?;
        let weight = self.norm.as_ref();
        match self.sizes.gate {
            GateKind::Plain => ops::multiply(y, gate),
            GateKind::ThenNorm { eps, parts: 1 } => {
                fast::rms_norm(&ops::multiply(y, gate)?, weight, eps)
            }
            GateKind::ThenNorm { eps, parts } => {
                let &[batch, length, inner] = y.shape() else {
                    return Err(Exception::custom("outputs have three axes".to_owned()));
                };
                let in_parts = [batch, length, parts, inner / parts];
                let gated = ops::reshape(ops::multiply(y, gate)?, &in_parts)?;
                let normed = ops::reshape(fast::rms_norm(&gated, None, eps)?, y.shape())?;
                weight.map_or(Ok(normed.clone()), |weight| ops::multiply(normed, weight))
            }
            GateKind::AfterNorm(eps) => ops::multiply(fast::rms_norm(y, weight, eps)?, gate),
        }
    }
}
