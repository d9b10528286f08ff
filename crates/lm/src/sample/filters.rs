//! Sampling filters: each takes f32 logits `[B, V]` and sets those of excluded tokens to negative
//! infinity.
//!
//! mlx-lm filters log-probabilities; logits give the same result, because the filters depend only
//! on ratios of probabilities.

use mlx_rs::error::Result;
use mlx_rs::{Array, ops};

use crate::ffi;

/// Keeps the smallest set of tokens whose probabilities add up to `top_p`, and tokens as likely as
/// the least likely of them.
pub fn keep_top_p(logits: &Array, top_p: f32) -> Result<Array> {
    let ascending = ops::sort_axis(logits, -1)?;
    let probabilities = ops::softmax_axis(&ascending, -1, None)?;
    // The probability of all likelier tokens: a token stays while that is below top_p, so the most
    // likely one always does.
    let above = probabilities.cumsum(-1, true, false)?;
    let kept =
        ops::select(above.lt(Array::from_f32(top_p))?, ascending, Array::from_f32(f32::INFINITY))?;
    keep(&logits.ge(kept.min_axis(-1, true)?)?, logits)
}

/// Keeps tokens at least `exp(ln_min_p)` times as likely as the most likely one, and in any case
/// the `min_tokens_to_keep` most likely.
pub fn keep_min_p(logits: &Array, ln_min_p: f32, min_tokens_to_keep: i32) -> Result<Array> {
    let threshold = ops::add(logits.max_axis(-1, true)?, Array::from_f32(ln_min_p))?;
    let mut kept = logits.ge(threshold)?;
    if min_tokens_to_keep > 1 {
        let vocab_size = logits.dim(-1);
        if min_tokens_to_keep >= vocab_size {
            return Ok(logits.clone());
        }
        let ascending = ops::argpartition_axis(logits, vocab_size - min_tokens_to_keep, -1)?;
        let most_likely = columns(&ascending, vocab_size - min_tokens_to_keep, vocab_size)?;
        kept = kept.put_along_axis(most_likely, Array::from_bool(true), -1)?;
    }
    keep(&kept, logits)
}

/// XTC (exclude top choices): of the tokens more likely than `threshold`, keeps only the least
/// likely one; keeps all tokens below it.
///
/// Tokens that are true in `exempt` `[V]` are never excluded. From
/// <https://github.com/oobabooga/text-generation-webui/pull/6335>.
pub fn exclude_top_choices(
    logits: &Array,
    threshold: f32,
    exempt: Option<&Array>,
) -> Result<Array> {
    let probabilities = ops::softmax_axis(logits, -1, None)?;
    let infinity = Array::from_f32(f32::INFINITY);
    let likely =
        ops::select(probabilities.gt(Array::from_f32(threshold))?, &probabilities, infinity)?;
    let mut kept = probabilities.le(likely.min_axis(-1, true)?)?;
    if let Some(exempt) = exempt {
        kept = ops::logical_or(kept, exempt)?;
    }
    keep(&kept, logits)
}

/// Keeps exactly the `top_k` most likely tokens; ties are broken as MLX's partition orders them.
pub fn keep_top_k(logits: &Array, top_k: i32) -> Result<Array> {
    let num_dropped = logits.dim(-1) - top_k;
    if num_dropped <= 0 {
        return Ok(logits.clone());
    }
    let ascending = ops::argpartition_axis(logits, num_dropped, -1)?;
    logits.put_along_axis(
        columns(&ascending, 0, num_dropped)?,
        Array::from_f32(f32::NEG_INFINITY),
        -1,
    )
}

fn keep(kept: &Array, logits: &Array) -> Result<Array> {
    ops::select(kept, logits, Array::from_f32(f32::NEG_INFINITY))
}

fn columns(array: &Array, start: i32, stop: i32) -> Result<Array> {
    ffi::slice(array, &[0, start], &[array.dim(0), stop])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The probabilities of a filtered distribution, to four decimals; of each row, when all rows
    /// are filtered at once and alone.
    fn check<const V: usize>(
        filter: impl Fn(&Array) -> Result<Array>,
        rows: &[[f32; V]],
        expected: &[[f32; V]],
    ) {
        let filtered = |rows: &[[f32; V]]| {
            let logits: Vec<f32> =
                rows.iter().flatten().map(|probability| probability.ln() + 3.0).collect();
            let logits = filter(&Array::from_slice(&logits, &[rows.len() as i32, V as i32]))
                .expect("filter");
            let probabilities = ops::softmax_axis(logits, -1, None).expect("softmax");
            probabilities.eval().expect("eval");
            probabilities
                .as_slice::<f32>()
                .iter()
                .map(|value| (value * 1e4).round() / 1e4)
                .collect::<Vec<f32>>()
        };
        assert_eq!(filtered(rows), expected.concat(), "{rows:?}");
        let alone: Vec<f32> = rows.iter().flat_map(|row| filtered(&[*row])).collect();
        assert_eq!(alone, expected.concat(), "{rows:?} alone");
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_the_mass() {
        let check = |top_p, rows: &[[f32; 4]], expected: &[[f32; 4]]| {
            check(|logits| keep_top_p(logits, top_p), rows, expected)
        };
        check(0.3, &[[0.9, 0.0, 0.0, 0.1]], &[[1.0, 0.0, 0.0, 0.0]]);
        check(0.95, &[[0.9, 0.0, 0.0, 0.1]], &[[0.9, 0.0, 0.0, 0.1]]);
        check(0.4, &[[0.0, 0.5, 0.4, 0.1]], &[[0.0, 1.0, 0.0, 0.0]]);
        check(0.6, &[[0.0, 0.5, 0.4, 0.1]], &[[0.0, 0.5556, 0.4444, 0.0]]);
        check(0.95, &[[0.0, 0.5, 0.4, 0.1]], &[[0.0, 0.5, 0.4, 0.1]]);
        check(
            0.5,
            &[[0.9, 0.0, 0.0, 0.1], [0.0, 0.8, 0.1, 0.1]],
            &[[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]],
        );
        check(0.1, &[[0.25, 0.25, 0.25, 0.25]], &[[0.25, 0.25, 0.25, 0.25]]);
        check(0.0001, &[[0.1, 0.9, 0.0, 0.0]], &[[0.0, 1.0, 0.0, 0.0]]);
    }

    #[test]
    fn min_p_keeps_what_is_likely_beside_the_most_likely() {
        let check = |min_p: f32, keep, rows: &[[f32; 4]], expected: &[[f32; 4]]| {
            check(|logits| keep_min_p(logits, min_p.ln(), keep), rows, expected);
        };
        check(0.8, 1, &[[0.9, 0.0, 0.0, 0.1]], &[[1.0, 0.0, 0.0, 0.0]]);
        check(0.05, 1, &[[0.9, 0.0, 0.0, 0.1]], &[[0.9, 0.0, 0.0, 0.1]]);
        check(
            0.7,
            1,
            &[[0.9, 0.0, 0.0, 0.1], [0.0, 0.8, 0.0, 0.1]],
            &[[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]],
        );
        check(
            1.0,
            2,
            &[[0.5, 0.1, 0.3, 0.1], [0.1, 0.2, 0.3, 0.4]],
            &[[0.625, 0.0, 0.375, 0.0], [0.0, 0.0, 0.4286, 0.5714]],
        );
        check(1.0, 4, &[[0.5, 0.1, 0.3, 0.1]], &[[0.5, 0.1, 0.3, 0.1]]);
    }

    #[test]
    fn top_k_keeps_exactly_that_many() {
        let check = |top_k, rows: &[[f32; 4]], expected: &[[f32; 4]]| {
            check(|logits| keep_top_k(logits, top_k), rows, expected)
        };
        check(1, &[[0.9, 0.0, 0.0, 0.1]], &[[1.0, 0.0, 0.0, 0.0]]);
        check(2, &[[0.6, 0.0, 0.1, 0.3]], &[[0.6667, 0.0, 0.0, 0.3333]]);
        check(
            1,
            &[[0.9, 0.0, 0.0, 0.1], [0.0, 0.8, 0.0, 0.1]],
            &[[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]],
        );
        check(3, &[[0.4, 0.3, 0.2, 0.1]], &[[0.4444, 0.3333, 0.2222, 0.0]]);
        check(4, &[[0.4, 0.3, 0.2, 0.1]], &[[0.4, 0.3, 0.2, 0.1]]);
        let tied = keep_top_k(&Array::from_slice(&[1.0f32; 4], &[1, 4]), 2).expect("filter");
        tied.eval().expect("eval");
        assert_eq!(tied.as_slice::<f32>().iter().filter(|value| value.is_finite()).count(), 2);
    }

    #[test]
    fn xtc_removes_the_likely_but_the_least_likely_of_them() {
        let check = |threshold,
                     exempt: Option<[bool; 4]>,
                     rows: &[[f32; 4]],
                     expected: &[[f32; 4]]| {
            let exempt = exempt.map(|exempt| Array::from_slice(&exempt, &[4]));
            check(|logits| exclude_top_choices(logits, threshold, exempt.as_ref()), rows, expected);
        };
        let row = [0.4, 0.3, 0.15, 0.15];
        check(0.2, None, &[row], &[[0.0, 0.5, 0.25, 0.25]]);
        check(0.1, None, &[row], &[[0.0, 0.0, 0.5, 0.5]]);
        check(0.1, Some([true, false, false, false]), &[row], &[[0.5714, 0.0, 0.2143, 0.2143]]);
        check(0.45, None, &[row], &[row]);
        check(
            0.2,
            None,
            &[row, [0.1, 0.1, 0.1, 0.7]],
            &[[0.0, 0.5, 0.25, 0.25], [0.1, 0.1, 0.1, 0.7]],
        );
    }
}
