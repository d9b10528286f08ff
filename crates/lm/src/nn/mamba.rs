//! Mamba's layer (Gu and Dao 2023) with Jamba's norms: a short convolution, a state space whose decay
//! differs for every number of the state, and a gate. Reference: mlx-lm's jamba.py.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use crate::LmError;
use crate::cache::{ArraysCache, ArraysSpec, LayerCacheSpec, StateSize};
use crate::ffi;
use crate::nn::exponential::silu;
use crate::nn::{
    ConvSizes, Elementwise, Linear, Norm, NormProjections, RmsNorm, ShortConv, exactly,
};
use crate::tensor_list::TensorList;
use crate::weights::Layer;

/// The slots of a cache.
const CONV_SLOT: usize = 0;
const STATE_SLOT: usize = 1;

/// The sizes of a [`Mamba`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MambaSizes {
    /// C
    pub inner: i32,
    /// N, how many numbers of state each channel has.
    pub state: i32,
    /// How short the vector is that steps are made of.
    pub rank: i32,
    /// How many tokens the convolution sees.
    pub kernel: i32,
    pub conv_has_bias: bool,
    /// Whether the projections of inputs and outputs have biases.
    pub has_bias: bool,
    /// Epsilon of the norms of steps, B and C.
    pub eps: f32,
}

impl MambaSizes {
    fn conv(&self) -> ConvSizes {
        let &MambaSizes { inner, kernel, conv_has_bias, .. } = self;
        ConvSizes { channels: inner, kernel, has_bias: conv_has_bias, activates: true }
    }

    /// The last inputs of the convolution, and the state, which is computed in f32.
    pub fn cache_spec(&self) -> LayerCacheSpec {
        let shape = vec![self.inner, self.state];
        let states = StateSize { shape, dtype: Some(Dtype::Float32) };
        LayerCacheSpec::Arrays(ArraysSpec { slots: vec![Some(self.conv().state()), Some(states)] })
    }

    /// Adds what [`Mamba::load`] takes at `path`.
    pub(crate) fn list(&self, list: &mut TensorList, path: &str, hidden: i32) {
        let &MambaSizes { inner, state, rank, .. } = self;
        list.matrix(format!("{path}.in_proj"), hidden, 2 * inner);
        if self.has_bias {
            list.plain(format!("{path}.in_proj.bias"), &[2 * inner]);
        }
        self.conv().list(list, &format!("{path}.conv1d"));
        list.matrix(format!("{path}.x_proj"), inner, rank + 2 * state);
        list.matrix(format!("{path}.dt_proj"), rank, inner);
        list.plain(format!("{path}.dt_proj.bias"), &[inner]);
        list.plain(format!("{path}.A_log"), &[inner, state]);
        list.plain(format!("{path}.D"), &[inner]);
        for (name, width) in [("dt", rank), ("b", state), ("c", state)] {
            list.plain(format!("{path}.{name}_layernorm.weight"), &[width]);
        }
    }
}

/// `silu(gate) * scan(conv(x))` of the projections of the normalized input.
#[derive(Debug)]
pub struct Mamba {
    /// x and the gate.
    projections: NormProjections<2>,
    /// Returns f32, as the scan does.
    conv: ShortConv,
    x_proj: Linear,
    dt_proj: Linear,
    norms: [RmsNorm; 3], // of steps, B and C
    a: Array,            // f32 [C, N]: −exp(A_log)
    /// The state after a token, of that before it, its x, its B and its projected step.
    update: Elementwise<4>,
    /// The outputs of the scan, its x and the gate to the result.
    gated: Elementwise<3>,
    sizes: MambaSizes,
}

impl Mamba {
    /// Takes the layer but for its output's projection.
    pub fn load(
        layer: &mut Layer,
        sizes: MambaSizes,
        norm: Norm,
        hidden: i32,
    ) -> Result<Self, LmError> {
        let MambaSizes { inner, state, rank, has_bias, eps, .. } = sizes;
        let in_proj = Linear::load(&mut layer.layer("in_proj"), hidden, 2 * inner, has_bias)?;
        let x_proj = Linear::load(&mut layer.layer("x_proj"), inner, rank + 2 * state, false)?;
        let dt_proj = Linear::load(&mut layer.layer("dt_proj"), rank, inner, true)?;
        x_proj.eval()?;
        dt_proj.eval()?;
        let a_log = layer.take("A_log", &[inner, state])?.as_dtype(Dtype::Float32)?;
        let a = ops::negative(ops::exp(a_log)?)?;
        let d = layer.take("D", &[inner])?.as_dtype(Dtype::Float32)?;
        mlx_rs::transforms::eval([&a, &d])?;
        let mut norm_of = |name: &str, width| RmsNorm::load(&mut layer.layer(name), width, eps);
        let norms = [
            norm_of("dt_layernorm", rank)?,
            norm_of("b_layernorm", state)?,
            norm_of("c_layernorm", state)?,
        ];
        Ok(Mamba {
            projections: NormProjections::new(norm, in_proj.into_parts([inner; 2])?)?,
            conv: ShortConv::load(&mut layer.layer("conv1d"), sizes.conv())?,
            x_proj,
            dt_proj,
            norms,
            update: step(a.clone()),
            a,
            gated: Elementwise::new(move |[outputs, x, gate]| {
                let outputs = ops::add(outputs, ops::multiply(x, &d)?)?;
                let open = silu(&gate.as_dtype(Dtype::Float32)?)?;
                ops::multiply(outputs, open)?.as_dtype(gate.dtype())
            }),
            sizes,
        })
    }

    /// `[B, L, D]` to `[B, L, C]`. Tokens where `mask` (bool `[B, L]`) is false do not change the
    /// state.
    pub fn forward(
        &self,
        x: &Array,
        cache: &mut ArraysCache,
        mask: Option<&Array>,
    ) -> Result<Array, Exception> {
        let [convolved, gate] = self.projections.forward_split(x)?;
        let mixed = self.conv.forward(&convolved, cache, CONV_SLOT)?; // f32 [B, L, C]
        let of_token = self.of_token(&mixed, gate.dtype())?;
        let before = cache.get(STATE_SLOT);
        let (outputs, state) = match (mixed.dim(1), mask) {
            (1, None) => self.one(before, &mixed, of_token)?,
            _ => self.scan(&mixed, of_token, mask)?.update(before)?,
        };
        cache.set(STATE_SLOT, state);
        cache.advance(x.dim(1) as usize);
        self.gated.call([&outputs, &mixed, &gate])
    }

    /// The projected step `[B, L, C]`, and B and C `[B, L, N]`, of what was convolved.
    fn of_token(&self, mixed: &Array, dtype: Dtype) -> Result<[Array; 3], Exception> {
        let MambaSizes { state, rank, .. } = self.sizes;
        let projected = self.x_proj.forward(&mixed.as_dtype(dtype)?)?;
        let [dt, b, c] = exactly(ffi::cut(&projected, &[rank, rank + state], 2)?)?;
        let [of_dt, of_b, of_c] = &self.norms;
        Ok([self.dt_proj.forward(&of_dt.forward(&dt)?)?, of_b.forward(&b)?, of_c.forward(&c)?])
    }

    /// The rule for one token, in few graph nodes.
    fn one(
        &self,
        state: Option<&Array>,
        mixed: &Array,
        [dt, b, c]: [Array; 3],
    ) -> Result<(Array, Array), Exception> {
        let MambaSizes { inner, state: width, .. } = self.sizes;
        let batch = mixed.dim(0);
        let zeros = || ops::zeros_dtype(&[batch, inner, width], Dtype::Float32);
        let state = state.map_or_else(zeros, |state| Ok(state.clone()))?;
        let column = |array: &Array, width| ops::reshape(array, &[batch, width, 1]);
        let state = self.update.call([&state, &column(mixed, inner)?, &b, &column(&dt, inner)?])?;
        let outputs = ops::matmul(&state, column(&c, width)?.as_dtype(Dtype::Float32)?)?;
        Ok((ops::reshape(outputs, mixed.shape())?, state))
    }

    /// The inputs of the scan from what was convolved.
    fn scan(
        &self,
        mixed: &Array,
        [dt, b, c]: [Array; 3],
        mask: Option<&Array>,
    ) -> Result<SelectiveScan, Exception> {
        let f32 = |array: Array| array.as_dtype(Dtype::Float32);
        let zero = Array::from_slice(&[0.0f32], &[1]);
        let mut dt = ops::logaddexp(f32(dt)?, &zero)?; // softplus
        if let Some(mask) = mask {
            dt = ops::select(ops::expand_dims(mask, -1)?, dt, zero)?;
        }
        Ok(SelectiveScan { x: mixed.clone(), b: f32(b)?, c: f32(c)?, dt, a: self.a.clone() })
    }
}

/// What a token makes of the state `[B, C, N]`, with its x and projected step `[B, C, 1]` and its B
/// `[B, 1, N]`. The exponents `a` are `[C, N]`.
fn step(a: Array) -> Elementwise<4> {
    Elementwise::new(move |[state, x, b, dt]| {
        let dt = ops::logaddexp(dt.as_dtype(Dtype::Float32)?, Array::from_f32(0.0))?; // softplus
        let decayed = ops::multiply(state, ops::exp(ops::multiply(&dt, &a)?)?)?;
        ops::add(decayed, ops::multiply(ops::multiply(x, dt)?, b.as_dtype(Dtype::Float32)?)?)
    })
}

/// The selective scan: with a state S `[C, N]`, each token computes `S ← exp(dt a) S + dt x Bᵀ`,
/// `y = S C`, where every number of S has a decay of its own. All inputs are f32.
#[derive(Debug)]
pub struct SelectiveScan {
    /// `[B, L, C]`
    pub x: Array,
    /// `[B, L, N]`: what a token writes its x by.
    pub b: Array,
    /// `[B, L, N]`: what a token reads the state by.
    pub c: Array,
    /// `[B, L, C]`: how long a token's step is, 0 or more; one of 0 does not change the state.
    pub dt: Array,
    /// `[C, N]`: the exponents of the decays in a step of one, below 0.
    pub a: Array,
}

impl SelectiveScan {
    /// Tokens per chunk: each holds a few states for every token.
    pub const CHUNK: i32 = 32;

    /// Updates `state` `[B, C, N]` (`None`: zeros) by the tokens; returns their outputs `[B, L, C]`
    /// and the new state.
    pub fn update(&self, state: Option<&Array>) -> Result<(Array, Array), Exception> {
        let (&[batch, length, channels], &[_, _, width]) = (self.x.shape(), self.b.shape()) else {
            return Err(Exception::custom("a scan takes inputs of three axes".to_owned()));
        };
        let mut state = match state {
            Some(state) => ops::expand_dims(state, 1)?, // [B, 1, C, N]
            None => ops::zeros_dtype(&[batch, 1, channels, width], Dtype::Float32)?,
        };
        let written = ops::multiply(&self.dt, &self.x)?;
        let mut outputs = Vec::new();
        for start in (0..length).step_by(Self::CHUNK as usize) {
            let stop = length.min(start + Self::CHUNK);
            let of_chunk =
                |array: &Array| ffi::slice(array, &[0, start, 0], &[batch, stop, array.dim(2)]);
            let decay = ops::multiply(ops::expand_dims(of_chunk(&self.dt)?, -1)?, &self.a)?;
            let added = ops::multiply(
                ops::expand_dims(of_chunk(&written)?, -1)?,
                ops::expand_dims(of_chunk(&self.b)?, 2)?,
            )?; // [B, T, C, N]
            let (decay, added) = scanned(ops::exp(decay)?, added)?;
            let states = ops::add(added, ops::multiply(decay, &state)?)?;
            let column = ops::expand_dims(of_chunk(&self.c)?, -1)?; // [B, T, N, 1]
            outputs.push(ops::squeeze_axes(ops::matmul(&states, column)?, &[-1])?);
            let last = stop - start;
            let from = [0, last - 1, 0, 0];
            state = ffi::slice(&states, &from, &[batch, last, channels, width])?;
            // A view would keep the states of the whole chunk in memory.
            state = if last == 1 { state } else { state.contiguous()? };
        }
        let outputs = match outputs.as_slice() {
            [single] => single.clone(),
            several => ops::concatenate(several, 1)?,
        };
        Ok((outputs, ops::squeeze_axes(state, &[1])?))
    }
}

/// Decays and what is added, `[B, T, C, N]`, from each token alone to all tokens up to it (Hillis and
/// Steele 1986): twice as many with every step.
fn scanned(mut decay: Array, mut added: Array) -> Result<(Array, Array), Exception> {
    let &[batch, length, channels, width] = decay.shape() else {
        return Err(Exception::custom("states of tokens have four axes".to_owned()));
    };
    let mut reach = 1;
    while reach < length {
        let earlier =
            |array: &Array| ffi::slice(array, &[0; 4], &[batch, length - reach, channels, width]);
        let later =
            |array: &Array| ffi::slice(array, &[0, reach, 0, 0], &[batch, length, channels, width]);
        let first = |array: &Array| ffi::slice(array, &[0; 4], &[batch, reach, channels, width]);
        let sum = ops::add(later(&added)?, ops::multiply(later(&decay)?, earlier(&added)?)?)?;
        let product = ops::multiply(later(&decay)?, earlier(&decay)?)?;
        added = ops::concatenate(&[&first(&added)?, &sum], 1)?;
        decay = ops::concatenate(&[&first(&decay)?, &product], 1)?;
        reach *= 2;
    }
    Ok((decay, added))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: usize = 2;
    const CHANNELS: usize = 3;
    const WIDTH: usize = 4;

    /// Numbers between two bounds, each time the same.
    fn numbers(seed: usize, count: usize, from: f32, to: f32) -> Vec<f32> {
        let part = |index: usize| ((index * 7919 + seed * 104_729) % 1009) as f32 / 1009.0;
        (0..count).map(|index| from + (to - from) * part(index)).collect()
    }

    /// The rule as it is written, in double precision, against [`SelectiveScan::update`].
    fn check(length: usize, longest_step: f32) {
        let tokens = BATCH * length;
        let x = numbers(1, tokens * CHANNELS, -1.0, 1.0);
        let [b, c] = [2, 3].map(|seed| numbers(seed, tokens * WIDTH, -1.0, 1.0));
        let mut dt = numbers(4, tokens * CHANNELS, 0.0, longest_step);
        dt.iter_mut().skip(5).step_by(11).for_each(|step| *step = 0.0);
        let a = numbers(5, CHANNELS * WIDTH, -3.0, -0.1);
        let initial = numbers(6, BATCH * CHANNELS * WIDTH, -1.0, 1.0);

        let mut outputs = vec![0.0f32; x.len()];
        let mut state: Vec<f64> = initial.iter().map(|&number| number.into()).collect();
        for token in 0..tokens {
            for channel in 0..CHANNELS {
                let place = token * CHANNELS + channel;
                let row = token / length * CHANNELS + channel;
                let mut output = 0.0;
                for index in 0..WIDTH {
                    let own = &mut state[row * WIDTH + index];
                    let decay = f64::from(dt[place]) * f64::from(a[channel * WIDTH + index]);
                    let added = f64::from(dt[place] * x[place] * b[token * WIDTH + index]);
                    *own = decay.exp() * *own + added;
                    output += *own * f64::from(c[token * WIDTH + index]);
                }
                outputs[place] = output as f32;
            }
        }

        let array = |numbers: &[f32], shape: &[usize]| {
            let shape: Vec<i32> = shape.iter().map(|&size| size as i32).collect();
            Array::from_slice(numbers, &shape)
        };
        let scan = SelectiveScan {
            x: array(&x, &[BATCH, length, CHANNELS]),
            b: array(&b, &[BATCH, length, WIDTH]),
            c: array(&c, &[BATCH, length, WIDTH]),
            dt: array(&dt, &[BATCH, length, CHANNELS]),
            a: array(&a, &[CHANNELS, WIDTH]),
        };
        let before = array(&initial, &[BATCH, CHANNELS, WIDTH]);
        let (found, after) = scan.update(Some(&before)).expect("scans");
        let state: Vec<f32> = state.into_iter().map(|number| number as f32).collect();
        for (found, expected) in [(found, outputs), (after, state)] {
            let found = found.contiguous().expect("contiguous");
            for (found, expected) in found.as_slice::<f32>().iter().zip(&expected) {
                let off = (found - expected).abs();
                assert!(off < 1e-4, "{length} tokens: {found} instead of {expected}");
            }
        }
    }

    #[test]
    fn tokens_at_once_give_what_the_rule_gives_one_by_one() {
        for length in [1, 2, 7, 31, 32, 33, 100] {
            check(length, 0.5);
        }
        check(40, 200.0);
    }
}
