//! Mamba-2's layer (Dao and Gu 2024): a short convolution, a state space, and a gate. Reference:
//! mlx-lm's mamba2.py.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use crate::LmError;
use crate::cache::{ArraysCache, ArraysSpec, LayerCacheSpec, StateSize};
use crate::ffi;
use crate::nn::exponential::silu;
use crate::nn::{
    ConvSizes, Elementwise, Linear, Norm, NormProjections, ShortConv, StateSpace, StateSpaceStep,
    StepSizes, exactly, fused, step_lengths,
};
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

    fn step(&self) -> StepSizes {
        let &Mamba2Sizes { heads, head_dim, groups, state, step_limits: limits, .. } = self;
        StepSizes { heads, head_dim, groups, state, limits }
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
    a: Array,       // f32 [1, 1, H]: −exp(A_log)
    dt_bias: Array, // f32 [1, 1, H]
    step: StateSpaceStep,
    norm: Option<Array>, // [H * P]
    /// The outputs of the state space, its x and the gate to what is normalized next, or to the result.
    gated: Elementwise<3>,
    /// What was normalized and the gate to the result.
    finish: Elementwise<2>,
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
        // The factor of x in the output, for each number of a head: f32 [1, 1, H * P].
        let d = ops::reshape(of_heads("D")?, &[1, 1, sizes.heads, 1])?;
        let d = ops::broadcast_to(d, &[1, 1, sizes.heads, sizes.head_dim])?;
        let d = ops::reshape(d, &[1, 1, sizes.inner()])?;
        mlx_rs::transforms::eval([&a, &dt_bias, &d])?;
        let own_norm = match sizes.gate {
            GateKind::Plain => None,
            _ => Some(layer.layer("norm").take("weight", &[sizes.inner()])?),
        };
        Ok(Mamba2 {
            projections: NormProjections::new(norm, in_proj.into_parts(parts)?)?,
            conv: ShortConv::load(&mut layer.layer("conv1d"), sizes.conv())?,
            step: StateSpaceStep::new(sizes.step(), &a, &dt_bias)?,
            a,
            dt_bias,
            gated: sizes.gate.before_norm(d),
            finish: sizes.gate.after_norm(own_norm.clone()),
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
        let mixed = self.conv.forward(&convolved, cache, CONV_SLOT)?; // f32 [B, L, C]
        let Mamba2Sizes { groups, state, .. } = self.sizes;
        let (inner, written) = (self.sizes.inner(), groups * state);
        let [x, b, c] = exactly(ffi::cut(&mixed, &[inner, inner + written], 2)?)?;
        let before = cache.get(STATE_SLOT);
        let (outputs, state) = match (x.dim(1), mask) {
            (1, None) => self.step.forward(before, [&x, &b, &c], &dt)?,
            _ => self.space([&x, &b, &c], &dt)?.update(before, mask)?,
        };
        cache.set(STATE_SLOT, state);
        cache.advance(x.dim(1) as usize);
        let outputs = ops::reshape(outputs, gate.shape())?;
        let gated = self.gated.call([&outputs, &x, &gate])?;
        self.normed(gated, &gate)
    }

    /// The inputs of the state space from x, B and C of all heads and groups, `[B, L, width]`, and the
    /// projection `dt` `[B, L, H]`.
    fn space(&self, [x, b, c]: [&Array; 3], dt: &Array) -> Result<StateSpace, Exception> {
        let &Mamba2Sizes { heads, head_dim, groups, state, step_limits, .. } = &self.sizes;
        let split = |array: &Array, count: i32, width: i32| {
            ops::reshape(array, &[array.dim(0), array.dim(1), count, width])
        };
        Ok(StateSpace {
            x: split(x, heads, head_dim)?,
            b: split(b, groups, state)?,
            c: split(c, groups, state)?,
            dt: step_lengths(dt, &self.dt_bias, step_limits)?,
            a: self.a.clone(),
        })
    }

    /// What [`GateKind::before_norm`] returned, normalized if the layer does that.
    fn normed(&self, gated: Array, gate: &Array) -> Result<Array, Exception> {
        let &[batch, length, inner] = gate.shape() else {
            return Err(Exception::custom("a gate has three axes".to_owned()));
        };
        let weight = self.norm.as_ref();
        let normed = match self.sizes.gate {
            GateKind::Plain => return Ok(gated),
            GateKind::ThenNorm { eps, parts: 1 } | GateKind::AfterNorm(eps) => {
                fused::rms_norm(&gated, weight, eps)?
            }
            GateKind::ThenNorm { eps, parts } => {
                let in_parts = ops::reshape(gated, &[batch, length, parts, inner / parts])?;
                ops::reshape(fused::rms_norm(&in_parts, None, eps)?, gate.shape())?
            }
        };
        self.finish.call([&normed, gate])
    }
}

impl GateKind {
    /// Of the state space's outputs and x, both f32, and the gate, `[B, L, inner]` each.
    fn before_norm(self, d: Array) -> Elementwise<3> {
        Elementwise::new(move |[outputs, x, gate]| {
            let outputs = ops::add(outputs, ops::multiply(x, &d)?)?;
            let open = || silu(&gate.as_dtype(Dtype::Float32)?);
            match self {
                GateKind::Plain => ops::multiply(outputs, open()?)?.as_dtype(gate.dtype()),
                GateKind::ThenNorm { .. } => ops::multiply(outputs, open()?),
                GateKind::AfterNorm(_) => Ok(outputs),
            }
        })
    }

    /// Of what was normalized, f32, and the gate.
    fn after_norm(self, weight: Option<Array>) -> Elementwise<2> {
        Elementwise::new(move |[normed, gate]| {
            let result = match (self, &weight) {
                (GateKind::AfterNorm(_), _) => {
                    ops::multiply(normed, silu(&gate.as_dtype(Dtype::Float32)?)?)?
                }
                // Parts were normalized without the weight.
                (GateKind::ThenNorm { parts: 2.., .. }, Some(weight)) => {
                    ops::multiply(normed, weight)?
                }
                _ => normed.clone(),
            };
            result.as_dtype(gate.dtype())
        })
    }
}
