//! Exponentials of many numbers, and what is made of them.
//!
//! MLX's CPU backend computes exponentials one number at a time on some processors: half of the time
//! of a pass over several rows. Sums and products are computed several at a time everywhere, so that a
//! polynomial of them is five times as fast there, as long as it stays in a processor's cache. Small
//! arrays and other types get MLX's own operations.

use std::f32::consts::{LN_2, LOG2_E};

use mlx_rs::error::Result;
use mlx_rs::{Array, Dtype, ops};

use crate::device::ComputeDevice;
use crate::ffi;

/// Fewer numbers gain less than the polynomial's additional operations cost.
const MIN_SIZE: usize = 1 << 13;
/// More are in no cache from one operation to the next, and in memory that is new to the process each
/// time: there the polynomial is no faster.
pub const MAX_SIZE: usize = 1 << 20;

/// Coefficients of a polynomial for 2^x within half of zero, the constant one first. With the first
/// exact, the others are a fit at Chebyshev's points, with an error of 1e-8.
const POWER_OF_TWO: [f32; 7] =
    [1.0, LN_2, 0.240_226_5, 0.055_503_57, 0.009_618_057, 0.001_339_086_7, 0.000_154_614_48];

/// 1.5 * 2^23: added to a number of less than 2^22, it leaves the nearest whole number in the last
/// bits of the sum.
const ROUNDS: f32 = 12_582_912.0;
/// Where an f32 has its exponent.
const EXPONENT: i32 = 1 << 23;
/// Exponentials of less are taken for that of the first, and of more for that of the second: f32 has
/// little beyond.
const RANGE: (f32, f32) = (-87.0, 88.0);

/// Whether the polynomial is faster for so many numbers of this type.
pub fn is_composed(size: usize, dtype: Dtype) -> bool {
    dtype == Dtype::Float32 && size >= MIN_SIZE && ComputeDevice::current() == ComputeDevice::Cpu
}

/// `e^x` of each number of [`RANGE`].
fn composed_exp(x: &Array) -> Result<Array> {
    let (least, most) = RANGE;
    let within = ops::minimum(ops::maximum(x, Array::from_f32(least))?, Array::from_f32(most))?;
    // e^x = 2^whole * 2^part
    let power = ops::multiply(within, Array::from_f32(LOG2_E))?;
    let rounded = ops::add(&power, Array::from_f32(ROUNDS))?;
    let part = ops::subtract(&power, ops::subtract(&rounded, Array::from_f32(ROUNDS))?)?;
    let mut coefficients = POWER_OF_TWO.into_iter().rev().map(Array::from_f32);
    let mut of_part = coefficients.next().unwrap_or_else(|| Array::from_f32(0.0));
    for coefficient in coefficients {
        of_part = ops::add(ops::multiply(of_part, &part)?, coefficient)?;
    }
    let bits = rounded.view_dtype(Dtype::Int32)?;
    let whole = ops::subtract(bits, Array::from_int(ROUNDS.to_bits() as i32))?;
    let exponent = ops::multiply(whole, Array::from_int(EXPONENT))?;
    ops::add(of_part.view_dtype(Dtype::Int32)?, exponent)?.view_dtype(Dtype::Float32)
}

/// What `function` makes of each number, in parts that are in a processor's cache.
fn in_parts(x: &Array, function: impl Fn(&Array) -> Result<Array>) -> Result<Array> {
    if x.size() <= MAX_SIZE {
        return function(x);
    }
    let flat = x.reshape(&[-1])?;
    let starts = (0..x.size()).step_by(MAX_SIZE);
    let part = |start: usize| {
        let stop = x.size().min(start + MAX_SIZE);
        function(&ffi::slice(&flat, &[start as i32], &[stop as i32])?)
    };
    ops::concatenate(&starts.map(part).collect::<Result<Vec<_>>>()?, 0)?.reshape(x.shape())
}

/// `1 / (1 + e^-x)` of each number.
pub fn sigmoid(x: &Array) -> Result<Array> {
    if !is_composed(x.size(), x.dtype()) {
        return ops::sigmoid(x);
    }
    let one = Array::from_f32(1.0);
    let of_part = |x: &Array| ops::divide(&one, ops::add(composed_exp(&ops::negative(x)?)?, &one)?);
    in_parts(x, of_part)
}

/// `x * sigmoid(x)` of each number.
pub fn silu(x: &Array) -> Result<Array> {
    if !is_composed(x.size(), x.dtype()) {
        return ops::multiply(ops::sigmoid(x)?, x);
    }
    let one = Array::from_f32(1.0);
    let of_part = |x: &Array| ops::divide(x, ops::add(composed_exp(&ops::negative(x)?)?, &one)?);
    in_parts(x, of_part)
}

/// Exponentials along the last axis.
pub struct Exponentials {
    /// Divided by the largest of their row.
    pub weights: Array,
    /// The sums of the weights, as a last axis of one.
    pub sum: Array,
    /// The logarithms of the sums of all exponentials, as a last axis of one.
    pub total: Array,
}

/// The exponentials of `scores`, f32; `None` where MLX's own softmax is faster.
pub fn exponentials(scores: &Array) -> Result<Option<Exponentials>> {
    if !is_composed(scores.size(), scores.dtype()) || scores.size() > MAX_SIZE {
        return Ok(None);
    }
    let largest = scores.max_axis(-1, true)?;
    let weights = composed_exp(&ops::subtract(scores, &largest)?)?;
    let sum = weights.sum_axis(-1, true)?;
    let total = ops::add(largest, sum.log()?)?;
    Ok(Some(Exponentials { weights, sum, total }))
}

/// The logarithm of the sum of the exponentials along the last axis, which stays with a length of
/// one.
pub fn logsumexp(x: &Array) -> Result<Array> {
    let num_rows = x.size() / x.dim(-1).max(1) as usize;
    let rows_of_part = MAX_SIZE / x.dim(-1).max(1) as usize;
    if !is_composed(x.size(), x.dtype()) || rows_of_part == 0 {
        return x.logsumexp_axis(-1, true);
    }
    let rows = x.reshape(&[num_rows as i32, -1])?;
    let total = |start: usize| {
        let stop = num_rows.min(start + rows_of_part);
        let part = ffi::slice(&rows, &[start as i32, 0], &[stop as i32, x.dim(-1)])?;
        match exponentials(&part)? {
            Some(exponentials) => Ok(exponentials.total),
            None => part.logsumexp_axis(-1, true),
        }
    };
    let totals = (0..num_rows).step_by(rows_of_part).map(total).collect::<Result<Vec<_>>>()?;
    let mut shape = x.shape().to_vec();
    shape[x.ndim() - 1] = 1;
    ops::concatenate(&totals, 0)?.reshape(&shape)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    fn numbers(array: &Array) -> Vec<f32> {
        array.eval().unwrap();
        array.as_slice::<f32>().to_vec()
    }

    /// Numbers from `least` on, `step` apart.
    fn row(least: f32, step: f32, count: usize) -> Vec<f32> {
        (0..count).map(|index| least + index as f32 * step).collect()
    }

    /// `found` of `xs` is what f64 gives but for `tolerance` times that, and for less than
    /// `smallest`.
    fn check(xs: &[f32], found: &[f32], tolerance: f64, expected: impl Fn(f64) -> f64) {
        for (&x, &found) in xs.iter().zip(found) {
            let expected = expected(f64::from(x));
            let off = (f64::from(found) - expected).abs();
            assert!(off <= tolerance * expected.abs() + 1e-35, "of {x}: {found}, not {expected}");
        }
    }

    #[test]
    fn large_arrays_have_the_same_exponentials_as_small_ones() {
        let xs = row(-100.0, 0.0211, 2 * MIN_SIZE);
        let array = Array::from_slice(&xs, &[xs.len() as i32]);
        assert!(xs.len() >= MIN_SIZE && xs.iter().any(|x| *x > 88.0));
        let within: Vec<f32> = xs.iter().map(|x| x.clamp(RANGE.0, RANGE.1)).collect();
        // A product with log2(e) is rounded, which counts most where the exponent is large.
        check(&within, &numbers(&composed_exp(&array).unwrap()), 8e-6, f64::exp);
        let near: Vec<f32> = row(-2.0, 0.001, 4000);
        let array = Array::from_slice(&near, &[near.len() as i32]);
        check(&near, &numbers(&composed_exp(&array).unwrap()), 4e-7, f64::exp);
    }

    #[test]
    fn sigmoids_are_those_of_mlx() {
        let xs = row(-120.0, 0.0173, 2 * MIN_SIZE);
        let array = Array::from_slice(&xs, &[xs.len() as i32]);
        let of_x = |x: f64| 1.0 / (1.0 + (-x).exp());
        check(&xs, &numbers(&sigmoid(&array).unwrap()), 1e-5, of_x);
        check(&xs, &numbers(&silu(&array).unwrap()), 1e-5, |x| x * of_x(x));
        let few = Array::from_slice(&xs[..100], &[100]);
        assert_eq!(numbers(&sigmoid(&few).unwrap()), numbers(&ops::sigmoid(&few).unwrap()));
    }

    #[test]
    fn sums_of_exponentials_are_those_of_mlx() {
        let xs = row(-60.0, 0.011, MIN_SIZE);
        let array = Array::from_slice(&xs, &[4, MIN_SIZE as i32 / 4]);
        let (found, expected) =
            (logsumexp(&array).unwrap(), array.logsumexp_axis(-1, true).unwrap());
        for (found, expected) in numbers(&found).iter().zip(numbers(&expected)) {
            assert!((found - expected).abs() < 1e-5, "{found}, not {expected}");
        }
        // What a mask hides has no weight.
        let mut hidden = vec![f32::MIN; MIN_SIZE];
        hidden[7] = 3.0;
        let array = Array::from_slice(&hidden, &[1, MIN_SIZE as i32]);
        let Exponentials { weights, total, .. } = exponentials(&array).unwrap().unwrap();
        assert_eq!(numbers(&weights)[7], 1.0);
        assert!(numbers(&weights).iter().sum::<f32>() < 1.0 + 1e-6);
        assert!((numbers(&total)[0] - 3.0).abs() < 1e-6);
    }

    #[test]
    fn arrays_beyond_a_cache_are_computed_in_parts() {
        let xs = row(-9.0, 1e-5, MAX_SIZE + MAX_SIZE / 2);
        let array = Array::from_slice(&xs, &[3, MAX_SIZE as i32 / 2]);
        let of_x = |x: f64| x / (1.0 + (-x).exp());
        let found = silu(&array).unwrap();
        assert_eq!(found.shape(), array.shape());
        check(&xs, &numbers(&found), 1e-6, of_x);
        let rows = array.reshape(&[3, 8, -1]).unwrap();
        let (found, expected) = (logsumexp(&rows).unwrap(), rows.logsumexp_axis(-1, true).unwrap());
        assert_eq!(found.shape(), expected.shape());
        for (found, expected) in numbers(&found).iter().zip(numbers(&expected)) {
            assert!((found - expected).abs() < 1e-5, "{found}, not {expected}");
        }
    }

    #[test]
    fn what_is_not_a_number_stays_so() {
        let array = Array::from_slice(&vec![f32::NAN; MIN_SIZE], &[MIN_SIZE as i32]);
        assert!(numbers(&composed_exp(&array).unwrap()).iter().all(|x| x.is_nan()));
    }
}
