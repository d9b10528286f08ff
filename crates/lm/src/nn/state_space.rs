//! State spaces of Mamba-2 (Dao and Gu 2024): a state that decays by one factor for each head.
//!
//! Per head, with a state S `[P, N]`, each token computes `S ← exp(dt a) S + dt x Bᵀ`, `y = S C`. A
//! single token is computed in exactly this way ([`StateSpaceStep`]). Several tokens are computed in
//! chunks, in which they attend to each other: `y = (L ∘ C Bᵀ) (dt x)`, where L holds the decays from one token to the
//! other, beside what the state before the chunk gives. Reference: mlx-lm's ssm.py.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use crate::nn::Elementwise;
use crate::nn::time_chunks::{TimeChunks, decay_between, last_of_chunk};

/// The inputs of the rule, all f32. Head `h` uses the B and C of group `h / (H / G)`.
#[derive(Debug)]
pub struct StateSpace {
    /// `[B, L, H, P]`
    pub x: Array,
    /// `[B, L, G, N]`: what a token writes its x by.
    pub b: Array,
    /// `[B, L, G, N]`: what a token reads the state by.
    pub c: Array,
    /// `[B, L, H]`: how long a token's step is, 0 or more.
    pub dt: Array,
    /// `[H]` or `[1, 1, H]`: the exponent of the decay in a step of one, below 0.
    pub a: Array,
}

impl StateSpace {
    /// Tokens per chunk: in larger ones the products of all pairs of tokens cost more than the steps
    /// that they save.
    pub const CHUNK: i32 = 64;

    /// Updates `state` `[B, H, P, N]` (`None`: zeros) by the tokens; returns their outputs
    /// `[B, L, H, P]` and the new state, both f32. Tokens where `mask` (bool `[B, L]`) is false do
    /// not change the state.
    pub fn update(
        mut self,
        state: Option<&Array>,
        mask: Option<&Array>,
    ) -> Result<(Array, Array), Exception> {
        let (&[batch, length, heads, head_dim], &[_, _, groups, width]) =
            (self.x.shape(), self.b.shape())
        else {
            return Err(Exception::custom("a state space takes inputs of four axes".to_owned()));
        };
        if groups == 0 || heads % groups != 0 {
            let message = format!("{heads} heads cannot share {groups} groups");
            return Err(Exception::custom(message));
        }
        if let Some(mask) = mask {
            let zero = Array::from_slice(&[0.0f32], &[1]);
            self.dt = ops::select(ops::expand_dims(mask, -1)?, &self.dt, zero)?;
        }
        let sharing = heads / groups;
        let grouped = [batch, groups, sharing, head_dim, width];
        let state = match state {
            Some(state) => ops::reshape(state, &grouped)?,
            None => ops::zeros_dtype(&grouped, Dtype::Float32)?,
        };
        let layout = TimeChunks::of(batch, length, Self::CHUNK);
        let (outputs, state) = self.chunks(layout, state)?;
        let outputs = ops::reshape(outputs, &[batch, length, heads, head_dim])?;
        Ok((outputs, ops::reshape(state, &[batch, heads, head_dim, width])?))
    }

    /// The factor by which each token scales the state before it, `[B, L, H]`.
    fn decay(&self) -> Result<Array, Exception> {
        ops::exp(ops::multiply(&self.dt, &self.a)?)
    }

    /// Several tokens. All that does not depend on the state is computed for every chunk at once.
    fn chunks(&self, layout: TimeChunks, state: Array) -> Result<(Array, Array), Exception> {
        let (groups, sharing) = (state.dim(1), state.dim(2));
        let b = layout.vectors(&self.b, groups, 1)?; // [N, B, G, 1, C, N]
        let c = layout.vectors(&self.c, groups, 1)?; // [N, B, G, 1, C, N]
        let written = ops::multiply(&self.x, ops::expand_dims(&self.dt, -1)?)?;
        let written = layout.vectors(&written, groups, sharing)?; // [N, B, G, R, C, P]
        let decay = layout.numbers(&self.decay()?, groups, sharing, 1.0)?; // [N, B, G, R, C, 1]

        let from_start = decay.cumprod(-2, false, true)?; // [N, B, G, R, C, 1]
        let between = decay_between(&decay, layout.chunk)?; // [N, B, G, R, C, C]
        let overlap = ops::matmul(&c, ops::swap_axes(&b, -1, -2)?)?;
        let within = ops::matmul(ops::multiply(overlap, &between)?, &written)?;
        // [N, B, G, R, C, 1]
        let until_end = ops::swap_axes(last_of_chunk(&between, layout.chunk, -2)?, -1, -2)?;
        let added = ops::matmul(ops::swap_axes(ops::multiply(written, until_end)?, -1, -2)?, b)?; // [N, B, G, R, P, N]

        let ends = layout.ends();
        let by_chunk = |array: Array| crate::ffi::cut(&array, &ends, 0);
        let whole = by_chunk(last_of_chunk(&from_start, layout.chunk, -2)?)?;
        let read = by_chunk(ops::multiply(c, from_start)?)?;
        let (within, added) = (by_chunk(within)?, by_chunk(added)?);
        let mut state = ops::expand_dims(state, 0)?; // [1, B, G, R, P, N]
        let mut outputs = Vec::with_capacity(within.len());
        for n in 0..within.len() {
            let transposed = ops::swap_axes(&state, -1, -2)?;
            outputs.push(ops::addmm(&within[n], &read[n], transposed, 1.0, 1.0)?);
            state = ops::add(ops::multiply(&state, &whole[n])?, &added[n])?;
        }
        Ok((layout.joined(&outputs)?, state))
    }
}

/// The rule for one token, in few graph nodes: every decode step does this once per layer.
#[derive(Debug)]
pub struct StateSpaceStep {
    sizes: StepSizes,
    /// The state after the token, of that before it, its x, its B and its projected step.
    update: Elementwise<4>,
}

/// The sizes of a [`StateSpaceStep`], and the bounds of its steps.
#[derive(Debug, Clone, Copy)]
pub struct StepSizes {
    /// H
    pub heads: i32,
    /// P
    pub head_dim: i32,
    /// G
    pub groups: i32,
    /// N
    pub state: i32,
    pub limits: [f32; 2],
}

impl StateSpaceStep {
    /// With the exponents `a` of the heads and the bias of their steps, H numbers of f32 each.
    pub fn new(sizes: StepSizes, a: &Array, dt_bias: &Array) -> Result<Self, Exception> {
        let of_heads = |array: &Array| -> Result<Array, Exception> {
            let shaped = ops::reshape(array, &sizes.lead(1, [1, 1]))?;
            shaped.eval()?;
            Ok(shaped)
        };
        let (a, dt_bias) = (of_heads(a)?, of_heads(dt_bias)?);
        let update = Elementwise::new(move |[state, x, b, dt]| {
            let dt = step_lengths(dt, &dt_bias, sizes.limits)?;
            let decayed = ops::multiply(state, ops::exp(ops::multiply(&dt, &a)?)?)?;
            // An outer product by broadcasting, because GPUs may round the inputs of a matrix product.
            ops::add(decayed, ops::multiply(ops::multiply(x, dt)?, b)?)
        });
        Ok(StateSpaceStep { sizes, update })
    }

    /// Updates `state` `[B, H, P, N]` (`None`: zeros) by a token; returns its outputs `[B, 1, H P]` and
    /// the new state. `x` is `[B, 1, H P]`, `b` and `c` are `[B, 1, G N]`, all f32, and `dt` is the
    /// projection of the token's step, `[B, 1, H]`.
    pub fn forward(
        &self,
        state: Option<&Array>,
        [x, b, c]: [&Array; 3],
        dt: &Array,
    ) -> Result<(Array, Array), Exception> {
        let StepSizes { heads, head_dim, groups, state: width, .. } = self.sizes;
        let batch = x.dim(0);
        let of_heads = |rest| self.sizes.lead(batch, rest);
        let of_groups = |rest: [i32; 2]| match groups {
            1 => vec![batch, 1, rest[0], rest[1]],
            _ => vec![batch, groups, 1, rest[0], rest[1]],
        };
        let state = match state {
            Some(state) => ops::reshape(state, &of_heads([head_dim, width]))?,
            None => ops::zeros_dtype(&of_heads([head_dim, width]), Dtype::Float32)?,
        };
        let state = self.update.call([
            &state,
            &ops::reshape(x, &of_heads([head_dim, 1]))?,
            &ops::reshape(b, &of_groups([1, width]))?,
            &ops::reshape(dt, &of_heads([1, 1]))?,
        ])?;
        let outputs = ops::matmul(&state, ops::reshape(c, &of_groups([width, 1]))?)?;
        let state = ops::reshape(state, &[batch, heads, head_dim, width])?;
        Ok((ops::reshape(outputs, x.shape())?, state))
    }
}

impl StepSizes {
    /// The shape of an array of all heads, whose last axes are `rest`: by group if there are several.
    fn lead(&self, batch: i32, rest: [i32; 2]) -> Vec<i32> {
        match self.groups {
            1 => vec![batch, self.heads, rest[0], rest[1]],
            groups => vec![batch, groups, self.heads / groups, rest[0], rest[1]],
        }
    }
}

/// How long steps are: `softplus(dt + bias)` within the limits, f32.
pub fn step_lengths(dt: &Array, bias: &Array, [least, most]: [f32; 2]) -> Result<Array, Exception> {
    let mut steps = ops::logaddexp(ops::add(dt, bias)?, Array::from_f32(0.0))?;
    if least > 0.0 {
        steps = ops::maximum(steps, Array::from_f32(least))?;
    }
    if most.is_finite() {
        steps = ops::minimum(steps, Array::from_f32(most))?;
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: usize = 2;
    const GROUPS: usize = 2;
    const SHARING: usize = 2;
    const HEADS: usize = GROUPS * SHARING;
    const HEAD_DIM: usize = 3;
    const WIDTH: usize = 5;

    /// Numbers between two bounds, each time the same.
    fn numbers(seed: usize, count: usize, from: f32, to: f32) -> Vec<f32> {
        let part = |index: usize| ((index * 7919 + seed * 104_729) % 1009) as f32 / 1009.0;
        (0..count).map(|index| from + (to - from) * part(index)).collect()
    }

    struct Inputs {
        length: usize,
        x: Vec<f32>,
        b: Vec<f32>,
        c: Vec<f32>,
        dt: Vec<f32>,
        a: Vec<f32>,
        state: Vec<f32>,
    }

    impl Inputs {
        fn of(length: usize, longest_step: f32) -> Self {
            let rows = BATCH * length;
            Inputs {
                length,
                x: numbers(1, rows * HEADS * HEAD_DIM, -1.0, 1.0),
                b: numbers(2, rows * GROUPS * WIDTH, -1.0, 1.0),
                c: numbers(3, rows * GROUPS * WIDTH, -1.0, 1.0),
                dt: numbers(4, rows * HEADS, 0.0, longest_step),
                a: numbers(5, HEADS, -2.0, -0.1),
                state: numbers(6, BATCH * HEADS * HEAD_DIM * WIDTH, -1.0, 1.0),
            }
        }

        fn space(&self) -> StateSpace {
            let shaped = |numbers: &[f32], rest: &[usize]| {
                let shape: Vec<i32> =
                    [BATCH, self.length].iter().chain(rest).map(|&size| size as i32).collect();
                Array::from_slice(numbers, &shape)
            };
            StateSpace {
                x: shaped(&self.x, &[HEADS, HEAD_DIM]),
                b: shaped(&self.b, &[GROUPS, WIDTH]),
                c: shaped(&self.c, &[GROUPS, WIDTH]),
                dt: shaped(&self.dt, &[HEADS]),
                a: Array::from_slice(&self.a, &[HEADS as i32]),
            }
        }

        /// What [`StateSpaceStep`] makes of the only token and `state`.
        fn step(&self, state: &Array) -> (Array, Array) {
            let [heads, head_dim, groups, width] =
                [HEADS, HEAD_DIM, GROUPS, WIDTH].map(|size| size as i32);
            // Steps are at least 0 as they are: softplus is undone before.
            let limits = [0.0, f32::INFINITY];
            let sizes = StepSizes { heads, head_dim, groups, state: width, limits };
            let zeros = Array::from_slice(&[0.0f32; HEADS], &[heads]);
            let a = Array::from_slice(&self.a, &[heads]);
            let dt: Vec<f32> = self.dt.iter().map(|dt| (dt.exp() - 1.0).ln()).collect();
            let shaped = |numbers: &[f32]| {
                Array::from_slice(numbers, &[BATCH as i32, 1, (numbers.len() / BATCH) as i32])
            };
            let inputs = [&self.x, &self.b, &self.c].map(|numbers| shaped(numbers));
            let step = StateSpaceStep::new(sizes, &a, &zeros).expect("a step");
            step.forward(Some(state), inputs.each_ref(), &shaped(&dt)).expect("updates")
        }

        /// The rule as it is written, of the first `lengths[row]` tokens of each row, in double
        /// precision.
        fn expected(&self, lengths: [usize; BATCH]) -> (Vec<f32>, Vec<f32>) {
            let mut outputs = vec![0.0; self.x.len()];
            let mut state: Vec<f64> = self.state.iter().map(|&number| number.into()).collect();
            for (row, length) in lengths.into_iter().enumerate() {
                for (time, head) in (0..length).flat_map(|time| (0..HEADS).map(move |h| (time, h)))
                {
                    let token = row * self.length + time;
                    let dt = f64::from(self.dt[token * HEADS + head]);
                    let decay = (dt * f64::from(self.a[head])).exp();
                    let group = (token * GROUPS + head / SHARING) * WIDTH;
                    for part in 0..HEAD_DIM {
                        let place = (token * HEADS + head) * HEAD_DIM + part;
                        let own = ((row * HEADS + head) * HEAD_DIM + part) * WIDTH;
                        let mut output = 0.0;
                        for index in 0..WIDTH {
                            let added = dt * f64::from(self.x[place] * self.b[group + index]);
                            state[own + index] = decay * state[own + index] + added;
                            output += state[own + index] * f64::from(self.c[group + index]);
                        }
                        outputs[place] = output as f32;
                    }
                }
            }
            (outputs, state.into_iter().map(|number| number as f32).collect())
        }
    }

    fn assert_close(found: &Array, expected: &[f32], what: &str) {
        let found = found.contiguous().expect("contiguous");
        for (found, expected) in found.as_slice::<f32>().iter().zip(expected) {
            assert!((found - expected).abs() < 1e-4, "{what}: {found} instead of {expected}");
        }
    }

    fn check(length: usize, longest_step: f32) {
        let inputs = Inputs::of(length, longest_step);
        let shape = [BATCH, HEADS, HEAD_DIM, WIDTH].map(|size| size as i32);
        let state = Array::from_slice(&inputs.state, &shape);
        let what = format!("{length} tokens, steps up to {longest_step}");
        let (outputs, after) = inputs.space().update(Some(&state), None).expect("updates");
        let (expected, expected_after) = inputs.expected([length; BATCH]);
        assert_close(&outputs, &expected, &what);
        assert_close(&after, &expected_after, &what);

        if length == 1 {
            let (outputs, after) = inputs.step(&state);
            assert_close(&outputs, &expected, "a step");
            assert_close(&after, &expected_after, "a step");
        }

        // A padded row's state is that after its own last token.
        let own = [length, length / 2];
        let mask: Vec<bool> =
            own.iter().flat_map(|&own| (0..length).map(move |time| time < own)).collect();
        let mask = Array::from_slice(&mask, &[BATCH as i32, length as i32]);
        let (_, after) = inputs.space().update(Some(&state), Some(&mask)).expect("updates");
        assert_close(&after, &inputs.expected(own).1, &format!("{what}, padded"));
    }

    #[test]
    fn tokens_at_once_give_what_the_rule_gives_one_by_one() {
        for length in [1, 2, 5, 63, 64, 65, 200] {
            check(length, 0.5);
        }
    }

    #[test]
    fn a_state_that_is_forgotten_at_once_is_no_quotient_of_zeros() {
        check(100, 200.0);
    }
}
