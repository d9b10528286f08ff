//! The gated delta rule (Yang et al. 2024, "Gated Delta Networks"): linear attention whose state
//! decays and is corrected by each token.
//!
//! Per value head, with a state S `[Dv, Dk]`, each token computes `S ← g S`, `S ← S + β (v − S k)
//! kᵀ`, `y = S q`. A single token is computed in exactly this way ([`GatedDeltaStep`]). Several tokens
//! are computed in chunks: the corrections of a chunk's tokens are the solution of one triangular system (the WY
//! form), so that a prompt becomes matrix products instead of a loop over its tokens. Reference:
//! mlx-lm's gated_delta.py.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use crate::nn::Elementwise;
use crate::nn::time_chunks::{TimeChunks, decay_between, last_of_chunk};

/// The inputs of the rule, all f32. Value head `h` uses the query and key head `h / (Hv / Hk)`.
#[derive(Debug)]
pub struct GatedDelta {
    /// `[B, L, Hk, Dk]`, with the attention scale applied.
    pub queries: Array,
    /// `[B, L, Hk, Dk]`, of unit length.
    pub keys: Array,
    /// `[B, L, Hv, Dv]`
    pub values: Array,
    /// `[B, L, Hv]`: g, the factor by which a token scales the state before it, 0 to 1.
    pub decay: Array,
    /// `[B, L, Hv]`: β, the share of the error that a token corrects, 0 to 1.
    pub beta: Array,
}

impl GatedDelta {
    /// Tokens per chunk. In larger chunks the triangular system costs more than the steps that they
    /// save.
    pub const CHUNK: i32 = 64;

    /// Updates `state` `[B, Hv, Dv, Dk]` of any type (`None`: zeros) by the tokens; returns their
    /// outputs `[B, L, Hv, Dv]` and the new state, both f32. Tokens where `mask` (bool `[B, L]`) is false
    /// do not change the state, and their outputs are undefined.
    pub fn update(
        mut self,
        state: Option<&Array>,
        mask: Option<&Array>,
    ) -> Result<(Array, Array), Exception> {
        let (&[batch, length, key_heads, key_dim], &[_, _, value_heads, value_dim]) =
            (self.keys.shape(), self.values.shape())
        else {
            return Err(Exception::custom(
                "the gated delta rule takes keys and values of four axes".to_owned(),
            ));
        };
        if key_heads == 0 || value_heads % key_heads != 0 {
            return Err(Exception::custom(format!(
                "{value_heads} value heads cannot share {key_heads} key heads"
            )));
        }
        if let Some(mask) = mask {
            let mask = ops::expand_dims(mask, -1)?;
            self.decay = ops::select(&mask, &self.decay, Array::from_slice(&[1.0f32], &[1]))?;
            self.beta = ops::select(&mask, &self.beta, Array::from_slice(&[0.0f32], &[1]))?;
        }
        let heads =
            Heads { batch, key_heads, sharing: value_heads / key_heads, key_dim, value_dim };
        let state = match state {
            Some(state) => ops::reshape(state, &heads.state_shape())?.as_dtype(Dtype::Float32)?,
            None => ops::zeros_dtype(&heads.state_shape(), Dtype::Float32)?,
        };
        let (outputs, state) = self.chunks(&heads, length, state)?;
        let outputs = ops::reshape(outputs, &[batch, length, value_heads, value_dim])?;
        Ok((outputs, ops::reshape(state, &[batch, value_heads, value_dim, key_dim])?))
    }

    /// Several tokens. A chunk's corrections U `[C, Dv]` solve `(I + A) U = β (V − G K Sᵀ)`, where
    /// G_i is the product of the decays up to i and `A_ij = β_i (G_i / G_j) k_i·k_j` for j < i. All
    /// terms without S are computed for every chunk at once.
    fn chunks(
        &self,
        heads: &Heads,
        length: i32,
        state: Array,
    ) -> Result<(Array, Array), Exception> {
        let &Heads { batch, key_heads, sharing, .. } = heads;
        let layout = TimeChunks::of(batch, length, Self::CHUNK);
        let TimeChunks { chunk, num_chunks, .. } = layout;

        let queries = layout.vectors(&self.queries, key_heads, 1)?; // [N, B, Hk, 1, C, Dk]
        let keys = layout.vectors(&self.keys, key_heads, 1)?; // [N, B, Hk, 1, C, Dk]
        let values = layout.vectors(&self.values, key_heads, sharing)?; // [N, B, Hk, R, C, Dv]
        let decay = layout.numbers(&self.decay, key_heads, sharing, 1.0)?; // [N, B, Hk, R, C, 1]
        let beta = layout.numbers(&self.beta, key_heads, sharing, 0.0)?; // [N, B, Hk, R, C, 1]

        let from_start = decay.cumprod(-2, false, true)?; // [N, B, Hk, R, C, 1]
        let between = decay_between(&decay, chunk)?; // [N, B, Hk, R, C, C]
        let keys_transposed = ops::swap_axes(&keys, -1, -2)?;
        let overlap =
            ops::multiply(ops::multiply(&between, &beta)?, ops::matmul(&keys, &keys_transposed)?)?;
        let inverse = unit_triangular_inverse(&overlap, chunk)?;
        let decayed_keys = ops::multiply(ops::multiply(&beta, &from_start)?, &keys)?;
        let ends = layout.ends();
        let by_chunk = |array: Array| crate::ffi::cut(&array, &ends, 0);
        let recall = by_chunk(ops::matmul(&inverse, decayed_keys)?)?; // each [1, B, Hk, R, C, Dk]
        let correction = by_chunk(ops::matmul(&inverse, ops::multiply(&beta, values)?)?)?; // each [1, B, Hk, R, C, Dv]

        let attention =
            by_chunk(ops::multiply(ops::matmul(&queries, keys_transposed)?, &between)?)?;
        let queries = by_chunk(ops::multiply(&queries, &from_start)?)?;
        let until_end = ops::swap_axes(last_of_chunk(&between, chunk, -2)?, -1, -2)?; // [N, B, Hk, R, C, 1]
        let keys = by_chunk(ops::multiply(keys, until_end)?)?;
        let whole = by_chunk(last_of_chunk(&from_start, chunk, -2)?)?; // each [1, B, Hk, R, 1, 1]

        let mut state = ops::expand_dims(state, 0)?; // [1, B, Hk, R, Dv, Dk]
        let mut outputs = Vec::with_capacity(num_chunks as usize);
        for n in 0..num_chunks as usize {
            let transposed = ops::swap_axes(&state, -1, -2)?;
            let correction = ops::addmm(&correction[n], &recall[n], &transposed, -1.0, 1.0)?; // U
            let earlier = ops::matmul(&queries[n], transposed)?;
            outputs.push(ops::addmm(earlier, &attention[n], &correction, 1.0, 1.0)?);
            let decayed = ops::multiply(&state, &whole[n])?;
            state = ops::addmm(decayed, ops::swap_axes(correction, -1, -2)?, &keys[n], 1.0, 1.0)?;
        }
        Ok((layout.joined(&outputs)?, state))
    }
}

/// The rule for one token, in few graph nodes: every decode step does this once per layer.
#[derive(Debug)]
pub struct GatedDeltaStep {
    /// The state, and the projection that gives its decay, to the decayed state.
    decay: Elementwise<2>,
    /// The decayed state, what it recalls, the values, the key, and the projection that gives β, to the
    /// new state.
    correct: Elementwise<5>,
}

impl GatedDeltaStep {
    /// With `decay_scale` and `dt_bias` of H_v numbers each, f32, of `key_heads` that share the value
    /// heads evenly: g is `exp(decay_scale * softplus(a + dt_bias))`.
    pub fn new(decay_scale: &Array, dt_bias: &Array, key_heads: i32) -> Result<Self, Exception> {
        let of_heads = |array: &Array| -> Result<Array, Exception> {
            let shaped = ops::reshape(array, &[1, key_heads, -1, 1, 1])?;
            shaped.eval()?;
            Ok(shaped)
        };
        let (scale, bias) = (of_heads(decay_scale)?, of_heads(dt_bias)?);
        let decay = Elementwise::new(move |[state, a]| {
            let steps = ops::logaddexp(ops::add(a, &bias)?, Array::from_f32(0.0))?; // softplus
            ops::multiply(state, ops::exp(ops::multiply(steps, &scale)?)?)
        });
        let correct = Elementwise::new(|[decayed, recalled, values, key, b]| {
            let beta = ops::sigmoid(b.as_dtype(Dtype::Float32)?)?;
            let correction = ops::multiply(ops::subtract(values, recalled)?, beta)?;
            // An outer product by broadcasting, because GPUs may round the inputs of a matrix product.
            ops::add(decayed, ops::multiply(correction, key)?)
        });
        Ok(GatedDeltaStep { decay, correct })
    }

    /// Updates `state` `[B, Hv, Dv, Dk]` of any type (`None`: zeros) by a token with queries and keys
    /// `[B, 1, Hk, Dk]`, values `[B, 1, Hv, Dv]`, all f32, and the projections b and a `[B, 1, Hv]`;
    /// returns its outputs `[B, 1, Hv, Dv]` and the new state, both f32.
    pub fn forward(
        &self,
        state: Option<&Array>,
        [queries, keys, values]: [&Array; 3],
        [b, a]: [&Array; 2],
    ) -> Result<(Array, Array), Exception> {
        let (&[batch, _, key_heads, key_dim], &[_, _, value_heads, value_dim]) =
            (keys.shape(), values.shape())
        else {
            return Err(Exception::custom("keys and values have four axes".to_owned()));
        };
        let sharing = value_heads / key_heads;
        let heads = Heads { batch, key_heads, sharing, key_dim, value_dim };
        let state = match state {
            Some(state) => ops::reshape(state, &heads.state_shape())?,
            None => ops::zeros_dtype(&heads.state_shape(), Dtype::Float32)?,
        };
        let column = |array: &Array| ops::reshape(array, &[batch, key_heads, 1, key_dim, 1]);
        let scalar = |array: &Array| ops::reshape(array, &[batch, key_heads, sharing, 1, 1]);
        let decayed = self.decay.call([&state, &scalar(a)?])?;
        let recalled = ops::matmul(&decayed, column(keys)?)?; // [B, Hk, R, Dv, 1]
        let values = ops::reshape(values, &[batch, key_heads, sharing, value_dim, 1])?;
        let key_row = ops::reshape(keys, &[batch, key_heads, 1, 1, key_dim])?;
        let state = self.correct.call([&decayed, &recalled, &values, &key_row, &scalar(b)?])?;
        let outputs = ops::matmul(&state, column(queries)?)?;
        let outputs = ops::reshape(outputs, &[batch, 1, value_heads, value_dim])?;
        Ok((outputs, ops::reshape(state, &[batch, value_heads, value_dim, key_dim])?))
    }
}

/// The lengths of all axes but time. R value heads share a key head.
#[derive(Debug)]
struct Heads {
    batch: i32,
    key_heads: i32,
    sharing: i32,
    key_dim: i32,
    value_dim: i32,
}

impl Heads {
    fn state_shape(&self) -> [i32; 5] {
        [self.batch, self.key_heads, self.sharing, self.value_dim, self.key_dim]
    }
}

/// The inverse of I + A, where A is the part of `below` `[..., C, C]` strictly below the diagonal
/// and C a power of two.
///
/// The inverses of the diagonal blocks of one size give those of the blocks twice as large. This is
/// as exact as forward substitution, also if keys repeat. (A product of powers of A would be
/// shorter, but with equal keys its entries grow to 10¹⁸ and cancel.)
fn unit_triangular_inverse(below: &Array, chunk: i32) -> Result<Array, Exception> {
    // `below` in the lower left quarter of each diagonal block of 2 * size, zeros elsewhere.
    let quarter = |size: i32| {
        let is_inside =
            |row: i32, column: i32| row / size == column / size + 1 && (row / size) % 2 == 1;
        let ones: Vec<f32> = (0..chunk)
            .flat_map(|row| {
                (0..chunk).map(move |column| f32::from(u8::from(is_inside(row, column))))
            })
            .collect();
        ops::multiply(below, Array::from_slice(&ones, &[chunk, chunk]))
    };
    let mut inverse = ops::subtract(ops::eye::<f32>(chunk, None, None)?, quarter(1)?)?;
    let mut size = 2;
    while size < chunk {
        inverse =
            ops::addmm(&inverse, ops::matmul(&inverse, quarter(size)?)?, &inverse, -1.0, 1.0)?;
        size *= 2;
    }
    Ok(inverse)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A deterministic stream of numbers below one.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> f32 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 40) as f32 / (1u64 << 24) as f32
        }

        fn fill(&mut self, count: usize, from: f32, to: f32) -> Vec<f32> {
            (0..count).map(|_| from + (to - from) * self.next()).collect()
        }

        /// `count` vectors of unit length.
        fn unit(&mut self, count: usize, dim: usize) -> Vec<f32> {
            let mut all = self.fill(count * dim, -1.0, 1.0);
            for vector in all.chunks_mut(dim) {
                let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
                vector.iter_mut().for_each(|x| *x /= norm);
            }
            all
        }
    }

    #[derive(Clone, Copy)]
    struct Case {
        batch: usize,
        length: usize,
        key_heads: usize,
        sharing: usize,
        key_dim: usize,
        value_dim: usize,
        decay: (f32, f32),
        equal_keys: bool,
        has_state: bool,
        is_masked: bool,
    }

    const CASE: Case = Case {
        batch: 2,
        length: 1,
        key_heads: 2,
        sharing: 2,
        key_dim: 16,
        value_dim: 8,
        decay: (0.6, 1.0),
        equal_keys: false,
        has_state: true,
        is_masked: false,
    };

    /// The rule as it is written, token by token in double precision, against
    /// [`GatedDelta::update`].
    fn check(case: Case) {
        let Case { batch, length, key_heads, sharing, key_dim, value_dim, .. } = case;
        let heads = key_heads * sharing;
        let mut numbers = Numbers(length as u64 + 7);
        let queries = numbers.unit(batch * length * key_heads, key_dim);
        let mut keys = numbers.unit(batch * length * key_heads, key_dim);
        if case.equal_keys {
            let first = keys[..key_dim].to_vec();
            keys.chunks_mut(key_dim).for_each(|key| key.copy_from_slice(&first));
        }
        let values = numbers.fill(batch * length * heads * value_dim, -1.0, 1.0);
        let mut decay = numbers.fill(batch * length * heads, case.decay.0, case.decay.1);
        if case.decay.0 == 0.0 {
            // Tokens that forget everything, or nearly, between others that forget little.
            decay.iter_mut().step_by(3).for_each(|number| *number = 0.99);
            decay.iter_mut().skip(1).step_by(7).for_each(|number| *number = 0.0);
        }
        let beta =
            numbers.fill(batch * length * heads, if case.equal_keys { 0.99 } else { 0.0 }, 1.0);
        let initial = numbers.fill(batch * heads * value_dim * key_dim, -1.0, 1.0);
        let lengths: Vec<usize> = (0..batch)
            .map(|row| if case.is_masked { length.saturating_sub(row * 5 + 1) } else { length })
            .collect();
        let mask: Vec<bool> =
            (0..batch * length).map(|at| at % length < lengths[at / length]).collect();

        let mut state: Vec<f64> =
            initial.iter().map(|&x| if case.has_state { f64::from(x) } else { 0.0 }).collect();
        let mut outputs = vec![0.0f64; values.len()];
        for at in (0..batch * length).filter(|&at| mask[at]) {
            for head in 0..heads {
                let key = &keys[(at * key_heads + head / sharing) * key_dim..][..key_dim];
                let query = &queries[(at * key_heads + head / sharing) * key_dim..][..key_dim];
                let decay = f64::from(decay[at * heads + head]);
                for row in 0..value_dim {
                    let state = &mut state
                        [((at / length * heads + head) * value_dim + row) * key_dim..][..key_dim];
                    state.iter_mut().for_each(|x| *x *= decay);
                    let dot = |state: &[f64], by: &[f32]| {
                        state.iter().zip(by).map(|(&a, &b)| a * f64::from(b)).sum::<f64>()
                    };
                    let value = f64::from(values[(at * heads + head) * value_dim + row]);
                    let correction = (value - dot(state, key)) * f64::from(beta[at * heads + head]);
                    state.iter_mut().zip(key).for_each(|(x, &k)| *x += correction * f64::from(k));
                    outputs[(at * heads + head) * value_dim + row] = dot(state, query);
                }
            }
        }

        let [b, l, hk, hv, dk, dv] =
            [batch, length, key_heads, heads, key_dim, value_dim].map(|length| length as i32);
        let inputs = GatedDelta {
            queries: Array::from_slice(&queries, &[b, l, hk, dk]),
            keys: Array::from_slice(&keys, &[b, l, hk, dk]),
            values: Array::from_slice(&values, &[b, l, hv, dv]),
            decay: Array::from_slice(&decay, &[b, l, hv]),
            beta: Array::from_slice(&beta, &[b, l, hv]),
        };
        let initial = case.has_state.then(|| Array::from_slice(&initial, &[b, hv, dv, dk]));
        let mask_array = case.is_masked.then(|| Array::from_slice(&mask, &[b, l]));
        let (found, found_state) =
            inputs.update(initial.as_ref(), mask_array.as_ref()).expect("update");
        assert_eq!(
            (found.shape(), found_state.shape()),
            (&[b, l, hv, dv][..], &[b, hv, dv, dk][..])
        );
        let worst = |found: &Array, expected: &[f64], counts: &dyn Fn(usize) -> bool| {
            let found = found.contiguous().expect("contiguous");
            let numbers = found
                .as_slice::<f32>()
                .iter()
                .zip(expected)
                .enumerate()
                .filter(|(at, _)| counts(*at));
            // A NaN is as wrong as can be; `max` alone would pass over it.
            numbers
                .map(
                    |(_, (&a, b))| {
                        if a.is_nan() { f64::INFINITY } else { (f64::from(a) - b).abs() }
                    },
                )
                .fold(0.0, f64::max)
        };
        let of_outputs = worst(&found, &outputs, &|at| mask[at / (heads * value_dim)]);
        let of_state = worst(&found_state, &state, &|_| true);
        assert!(
            of_outputs < 1e-4 && of_state < 1e-4,
            "length {length}: outputs off by {of_outputs}, state by {of_state}"
        );
    }

    const LENGTHS: [usize; 7] = [1, 2, 7, 63, 64, 65, 130];

    #[test]
    fn chunks_compute_what_the_recurrence_computes() {
        for length in LENGTHS {
            check(Case { length, ..CASE });
            check(Case { length, has_state: false, sharing: 1, ..CASE });
            check(Case {
                length,
                batch: 1,
                key_heads: 1,
                sharing: 3,
                key_dim: 32,
                value_dim: 32,
                ..CASE
            });
        }
    }

    #[test]
    fn masked_tokens_leave_the_state_alone() {
        for length in LENGTHS {
            check(Case { length, batch: 3, is_masked: true, ..CASE });
            check(Case { length, batch: 3, is_masked: true, has_state: false, ..CASE });
        }
    }

    #[test]
    fn decays_from_nothing_to_everything_stay_exact() {
        for length in LENGTHS {
            check(Case { length, decay: (0.999999, 1.0), ..CASE });
            check(Case { length, decay: (0.0, 1e-30), ..CASE });
            check(Case { length, decay: (0.0, 1.0), is_masked: true, ..CASE });
        }
    }

    #[test]
    fn one_key_over_and_over_stays_exact() {
        for length in LENGTHS {
            check(Case { length, equal_keys: true, decay: (0.999, 1.0), ..CASE });
        }
    }
}
