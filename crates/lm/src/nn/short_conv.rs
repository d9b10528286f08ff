//! A short causal convolution over time, with which recurrent layers mix neighbouring tokens.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, ops};

use crate::LmError;
use crate::cache::{ArraysCache, StateSize};
use crate::ffi;
use crate::nn::Elementwise;
use crate::nn::exponential::silu;
use crate::tensor_list::TensorList;
use crate::weights::Layer;

/// A causal convolution of each channel over its last K inputs, then SiLU or nothing.
#[derive(Debug)]
pub struct ShortConv {
    // With the axes of inputs, so that nothing is broadcast where there is one row.
    weight: Array,       // f32 [1, K, C]
    bias: Option<Array>, // f32 [1, 1, C]
    activates: bool,
    /// The products of a token's inputs and the weights.
    products: Elementwise<1>,
    /// The bias and SiLU.
    finish: Elementwise<1>,
}

/// The sizes of a [`ShortConv`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvSizes {
    /// C
    pub channels: i32,
    /// K
    pub kernel: i32,
    pub has_bias: bool,
    /// Whether SiLU follows.
    pub activates: bool,
}

impl ConvSizes {
    /// How files have `weight`: as MLX stores it, and as PyTorch does.
    fn weight_shapes(self) -> Vec<Vec<i32>> {
        let ConvSizes { channels, kernel, .. } = self;
        vec![vec![channels, kernel, 1], vec![channels, 1, kernel]]
    }

    /// Adds what [`ShortConv::load`] takes at `path`.
    pub(crate) fn list(self, list: &mut TensorList, path: &str) {
        list.plain_in(format!("{path}.weight"), self.weight_shapes());
        if self.has_bias {
            list.plain(format!("{path}.bias"), &[self.channels]);
        }
    }

    /// The inputs that a cache holds.
    pub fn state(self) -> StateSize {
        StateSize { shape: vec![self.kernel - 1, self.channels], dtype: None }
    }
}

impl ShortConv {
    /// Takes `weight` in either shape, and `bias` if there is one.
    pub fn load(layer: &mut Layer, sizes: ConvSizes) -> Result<Self, LmError> {
        let ConvSizes { channels, kernel, has_bias, activates } = sizes;
        let weight = layer.take_as("weight", &sizes.weight_shapes())?;
        let weight = by_tap(&weight, channels, kernel)?;
        let bias = match has_bias {
            true => {
                let bias = layer.take("bias", &[channels])?.as_dtype(Dtype::Float32)?;
                Some(ops::reshape(bias, &[1, 1, channels])?)
            }
            false => None,
        };
        mlx_rs::transforms::eval(&bias)?;
        Ok(ShortConv::new(weight, bias, activates))
    }

    /// A convolution with `weight` `[1, K, C]` and `bias` `[1, 1, C]`, both f32.
    fn new(weight: Array, bias: Option<Array>, activates: bool) -> Self {
        let by_taps = weight.clone();
        let products = Elementwise::new(move |[inputs]| ops::multiply(inputs, &by_taps));
        let added = bias.clone();
        let finish = Elementwise::new(move |[sum]| {
            let sum = match &added {
                Some(bias) => ops::add(sum, bias)?,
                None => sum.clone(),
            };
            if activates { silu(&sum) } else { Ok(sum) }
        });
        ShortConv { weight, bias, activates, products, finish }
    }

    /// `x` `[B, L, C]` to f32 of the same shape. The inputs before it, `[B, K - 1, C]`, are in
    /// slot `slot` of `cache` and are replaced by the last ones of each row.
    pub fn forward(
        &self,
        x: &Array,
        cache: &mut ArraysCache,
        slot: usize,
    ) -> Result<Array, Exception> {
        let sums = self.sums(x, cache, slot)?;
        match self.bias.is_some() || self.activates {
            true => self.finish.call([&sums]),
            false => Ok(sums),
        }
    }

    /// As [`ShortConv::forward`], without bias and SiLU.
    pub fn sums(
        &self,
        x: &Array,
        cache: &mut ArraysCache,
        slot: usize,
    ) -> Result<Array, Exception> {
        let (batch, length, channels) = (x.dim(0), x.dim(1), x.dim(2));
        let num_before = self.weight.dim(1) - 1;
        let before = match cache.get(slot) {
            Some(before) => before.clone(),
            None => ops::zeros_dtype(&[batch, num_before, channels], x.dtype())?,
        };
        let inputs = ops::concatenate(&[&before, x], 1)?; // [B, K - 1 + L, C]
        cache.set(slot, last_inputs(&inputs, num_before, cache.lengths())?);
        match length {
            1 => self.products.call([&inputs])?.sum_axis(1, true),
            _ => self.shifted_sum(&inputs.as_dtype(Dtype::Float32)?, length),
        }
    }

    /// The bias, f32 `[1, 1, C]`.
    pub fn bias(&self) -> Option<&Array> {
        self.bias.as_ref()
    }

    /// The convolution of `inputs` `[B, K - 1 + L, C]` as a sum of shifted products: on a CPU many
    /// times faster than MLX's convolution with one channel per group.
    fn shifted_sum(&self, inputs: &Array, length: i32) -> Result<Array, Exception> {
        let (batch, channels) = (inputs.dim(0), inputs.dim(2));
        let tap = |index: i32| {
            let weight = ffi::slice(&self.weight, &[0, index, 0], &[1, index + 1, channels])?;
            ops::multiply(
                ffi::slice(inputs, &[0, index, 0], &[batch, index + length, channels])?,
                weight,
            )
        };
        let mut sum = tap(0)?;
        for index in 1..self.weight.dim(1) {
            sum = ops::add(sum, tap(index)?)?;
        }
        Ok(sum)
    }
}

/// `weight` `[C, K]` in either order of files as `[1, K, C]` of f32.
fn by_tap(weight: &Array, channels: i32, kernel: i32) -> Result<Array, Exception> {
    let weight = ops::reshape(weight, &[channels, kernel])?.as_dtype(Dtype::Float32)?;
    let weight = ops::expand_dims(weight.transpose()?, 0)?.contiguous()?;
    weight.eval()?;
    Ok(weight)
}

/// The `count` inputs of each row, `[B, count, C]`, that the next step needs. `inputs`
/// `[B, count + L, C]` begin with those of this step; of a padded row only the first `lengths[row]`
/// after these are its own.
fn last_inputs(inputs: &Array, count: i32, lengths: Option<&[i32]>) -> Result<Array, Exception> {
    let (batch, channels) = (inputs.dim(0), inputs.dim(2));
    let length = inputs.dim(1) - count;
    match lengths {
        Some(lengths) => {
            let ends = lengths.iter().map(|&own| own.clamp(0, length));
            let positions: Vec<i32> = ends.flat_map(|end| end..end + count).collect();
            inputs.take_along_axis(Array::from_slice(&positions, &[batch, count, 1]), 1)
        }
        None => {
            let last = ffi::slice(inputs, &[0, length, 0], &[batch, length + count, channels])?;
            // A view would keep the inputs of the whole prompt in memory.
            if length == 1 { Ok(last) } else { last.contiguous() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: usize = 3;
    const CHANNELS: usize = 2;

    fn conv() -> ShortConv {
        let weight = [0.5f32, -1.0, 0.25, 2.0, -0.75, 1.5];
        let weight = Array::from_slice(&weight, &[1, KERNEL as i32, CHANNELS as i32]);
        ShortConv::new(weight, None, true)
    }

    /// The inputs of a row: a token's numbers depend on the row and its position.
    fn inputs(row: usize, start: usize, length: usize) -> Vec<f32> {
        let number = |index: usize| ((index * 7 + row * 5) % 11) as f32 / 4.0 - 1.0;
        (start * CHANNELS..(start + length) * CHANNELS).map(number).collect()
    }

    /// The output for each token of a row, in double precision.
    fn expected(row: usize, length: usize) -> Vec<f32> {
        let conv = conv();
        let (weight, x) = (conv.weight.as_slice::<f32>(), inputs(row, 0, length));
        let output = |token: usize, channel: usize| {
            let terms = (0..KERNEL).filter(|tap| token + tap + 1 >= KERNEL).map(|tap| {
                let input = x[(token + tap + 1 - KERNEL) * CHANNELS + channel];
                f64::from(weight[tap * CHANNELS + channel]) * f64::from(input)
            });
            let sum: f64 = terms.sum();
            (sum / (1.0 + (-sum).exp())) as f32
        };
        (0..length)
            .flat_map(|token| (0..CHANNELS).map(move |channel| (token, channel)))
            .map(|(token, channel)| output(token, channel))
            .collect()
    }

    fn assert_close(found: &Array, expected: &[f32], what: &str) {
        let found = found.contiguous().expect("contiguous");
        let found = found.as_slice::<f32>();
        assert_eq!(found.len(), expected.len(), "{what}");
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-5, "{what}: {found} instead of {expected}");
        }
    }

    #[test]
    fn steps_of_any_length_continue_each_other() {
        for steps in [&[5][..], &[1, 1, 1, 1, 1], &[2, 3], &[4, 1], &[1, 4]] {
            let (mut cache, mut start) = (ArraysCache::new(1), 0);
            let whole = expected(0, 5);
            for &length in steps {
                let x = Array::from_slice(
                    &inputs(0, start, length),
                    &[1, length as i32, CHANNELS as i32],
                );
                let found = conv().forward(&x, &mut cache, 0).expect("convolves");
                let range = start * CHANNELS..(start + length) * CHANNELS;
                assert_close(&found, &whole[range], &format!("{steps:?} from {start}"));
                start += length;
            }
        }
    }

    #[test]
    fn a_padded_row_continues_from_its_own_last_inputs() {
        let shape = [2, 4, CHANNELS as i32];
        let mut padded = inputs(1, 0, 2);
        padded.extend([9.0; 2 * CHANNELS]);
        let x = Array::from_slice(&[inputs(0, 0, 4), padded].concat(), &shape);
        let mut cache = ArraysCache::new(1);
        cache.prepare(&[4, 2]);
        conv().forward(&x, &mut cache, 0).expect("convolves");
        cache.finalize();
        let next = [inputs(0, 4, 1), inputs(1, 2, 1)].concat();
        let x = Array::from_slice(&next, &[2, 1, CHANNELS as i32]);
        let found = conv().forward(&x, &mut cache, 0).expect("convolves");
        let expected = [&expected(0, 5)[4 * CHANNELS..], &expected(1, 3)[2 * CHANNELS..]].concat();
        assert_close(&found, &expected, "after padding");
    }
}
