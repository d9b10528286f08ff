//! Answers that a grammar constrains: llguidance computes which tokens may come next, and all others
//! get a logit of negative infinity.
//!
//! ```text
//! tokens so far ──▶ Constraint (of an answer) ──▶ mask ─┐
//!                                                       ▼
//!                                            logits ──▶ masked logits
//! ```

use std::fmt;

use llguidance::Matcher;
use llguidance::api::StopReason;
use mlx_rs::transforms::async_eval;
use mlx_rs::{Array, Dtype, ops};
use rayon::prelude::*;

use crate::{LmError, ffi};

/// The state of an answer in its grammar.
pub struct Constraint {
    matcher: Matcher,
    /// How many tokens of the answer are known before the first call.
    num_sampled: usize,
    /// How many tokens of prompt and answer have been read; none before the first call.
    num_read: Option<usize>,
}

impl fmt::Debug for Constraint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Constraint");
        debug.field("num_read", &self.num_read).finish_non_exhaustive()
    }
}

/// A row of a batch that a grammar constrains.
pub(crate) struct ConstrainedRow<'a> {
    pub(crate) row: usize,
    pub(crate) constraint: &'a mut Constraint,
    /// All tokens of prompt and answer but the last.
    pub(crate) tokens: &'a [u32],
    pub(crate) last: u32,
}

/// In the parser's error for a token that its grammar does not allow.
const NOT_ALLOWED: &str = "doesn't satisfy the grammar";

fn left(error: impl fmt::Display) -> LmError {
    let error = error.to_string();
    // Any other error is a limit of the parser.
    if !error.contains(NOT_ALLOWED) {
        return dead_end(&error);
    }
    // What follows the first line is the parser's state.
    let reason = error.lines().next().unwrap_or_default().to_owned();
    LmError::Constraint { reason }
}

/// The grammar allows no next token, or could not compute which it allows. It allowed all tokens
/// before, so it is at fault itself.
pub(crate) fn dead_end(reason: &str) -> LmError {
    let reason = match is_dead_end(reason) {
        true => "no complete answer is possible from here",
        false => "it is too complex to be enforced",
    };
    LmError::Grammar { reason: reason.to_owned() }
}

/// Whether the grammar allows no next token.
pub(crate) fn is_dead_end(reason: &str) -> bool {
    reason.contains(&StopReason::NoExtensionBias.to_string())
}

impl Constraint {
    pub(crate) fn new(matcher: Matcher, num_sampled: usize) -> Self {
        Constraint { matcher, num_sampled, num_read: None }
    }

    /// How many words a mask of so many tokens has.
    pub fn num_words(vocab_size: usize) -> usize {
        vocab_size.div_ceil(WORD_TOKENS as usize)
    }

    /// Writes which tokens may follow `tokens` and `last`, all tokens of prompt and answer: a bit for
    /// each token, in [`num_words`](Self::num_words) words.
    pub fn allowed(
        &mut self,
        tokens: &[u32],
        last: u32,
        allowed: &mut [u32],
    ) -> Result<(), LmError> {
        let num_tokens = tokens.len() + 1;
        let first = num_tokens - self.num_sampled.min(num_tokens);
        let num_read = self.num_read.replace(num_tokens).unwrap_or(first);
        let known = tokens.get(num_read..).unwrap_or_default();
        let last = (num_read < num_tokens).then_some(last);
        for token in known.iter().copied().chain(last) {
            // The step behind the end is launched before the end is known.
            if !self.matcher.is_stopped() {
                self.matcher.consume_token(token).map_err(left)?;
            }
        }
        let mask = self.matcher.compute_mask_or_eos();
        let mask = mask.map_err(|error| dead_end(&error.to_string()))?;
        allowed.fill(0);
        for (words, mask) in allowed.iter_mut().zip(mask.as_slice()) {
            *words = *mask;
        }
        Ok(())
    }

    /// Masks the logits `[1, V]` of the token after `tokens` `[n]` u32. It waits for these; while it
    /// computes which may follow, the device computes the logits.
    pub(crate) fn mask(&mut self, tokens: &Array, logits: &Array) -> Result<Array, LmError> {
        async_eval([logits])?;
        let tokens = tokens.try_as_slice::<u32>()?;
        let mut allowed = vec![0; Constraint::num_words(logits.dim(1) as usize)];
        if let Some((&last, tokens)) = tokens.split_last() {
            self.allowed(tokens, last, &mut allowed)?;
        }
        masked(logits, &Array::from_slice(&allowed, &[1, allowed.len() as i32]))
    }
}

/// Launches the logits `[B, V]`, and masks those rows that grammars constrain. Returns also the rows
/// that have left their grammars. `rows` waits for the tokens of the step before.
///
/// - Where these are computed already (`are_known`), other threads compute the mask while this one
///   launches the logits: a small model's pass is mostly launches.
/// - Otherwise the mask is computed after the launch, while the device computes the logits.
pub(crate) fn launch_masked<'a>(
    logits: &Array,
    are_known: bool,
    rows: impl FnOnce() -> Result<Vec<ConstrainedRow<'a>>, LmError>,
) -> Result<(Array, Vec<(usize, LmError)>), LmError> {
    let num_rows = logits.dim(0) as usize;
    let num_words = Constraint::num_words(logits.dim(1) as usize);
    let (allowed, failed) = if are_known {
        let rows = rows()?;
        let mut computed = None;
        let launched = rayon::in_place_scope(|scope| {
            scope.spawn(|_| computed = Some(allowed_in(rows, num_rows, num_words)));
            async_eval([logits])
        });
        launched?;
        computed.ok_or_else(|| {
            let reason = "its mask was not computed".to_owned();
            LmError::Constraint { reason }
        })?
    } else {
        async_eval([logits])?;
        allowed_in(rows()?, num_rows, num_words)
    };
    let allowed = Array::from_slice(&allowed, &[num_rows as i32, num_words as i32]);
    Ok((masked(logits, &allowed)?, failed))
}

/// Which tokens may follow in each of `num_rows` rows, as [`masked`] takes them, and the rows that
/// have left their grammars; these and the rows without one may be followed by any.
fn allowed_in(
    rows: Vec<ConstrainedRow>,
    num_rows: usize,
    num_words: usize,
) -> (Vec<u32>, Vec<(usize, LmError)>) {
    let mut allowed = vec![u32::MAX; num_rows * num_words];
    let mut masks: Vec<Option<&mut [u32]>> = allowed.chunks_mut(num_words).map(Some).collect();
    let work: Vec<_> = rows
        .into_iter()
        .filter_map(|row| {
            let mask = masks.get_mut(row.row)?.take()?;
            Some((row, mask))
        })
        .collect();
    let compute = |(row, mask): (ConstrainedRow, &mut [u32])| {
        let failed = row.constraint.allowed(row.tokens, row.last, mask).err()?;
        mask.fill(u32::MAX);
        Some((row.row, failed))
    };
    let failed = match work.len() {
        1 => work.into_iter().filter_map(compute).collect(),
        _ => work.into_par_iter().filter_map(compute).collect(),
    };
    (allowed, failed)
}

/// Tokens in a word of a mask.
const WORD_TOKENS: i32 = u32::BITS as i32;

/// Logits `[B, V]`, of which only those stay whose bit in `allowed` is set: u32 `[B, W]`, the first
/// token of a word as its lowest bit. The device takes the bits apart: an eighth of the bytes travel.
fn masked(logits: &Array, allowed: &Array) -> Result<Array, LmError> {
    let (num_rows, vocab_size) = (logits.dim(0), logits.dim(1));
    let powers: [u32; WORD_TOKENS as usize] = std::array::from_fn(|bit| 1 << bit);
    let powers = Array::from_slice(&powers, &[WORD_TOKENS]);
    let shifted = ops::floor_divide(ops::expand_dims(allowed, 2)?, powers)?; // [B, W, 32]
    let bits = ops::remainder(shifted, Array::from_slice(&[2u32], &[1]))?;
    let bits = ops::reshape(&bits.as_dtype(Dtype::Bool)?, &[num_rows, -1])?;
    let bits = ffi::slice(&bits, &[0, 0], &[num_rows, vocab_size])?;
    let never = Array::from_f32(f32::NEG_INFINITY).as_dtype(logits.dtype())?;
    Ok(ops::select(&bits, logits, &never)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_end_says_whether_the_grammar_ends_there_or_is_too_complex() {
        fn check(found: &str, expected: &str) {
            let LmError::Grammar { reason } = dead_end(found) else { panic!("{found}") };
            assert_eq!(reason, expected);
        }
        check("NoExtensionBias\n<non-verbose/>", "no complete answer is possible from here");
        let complex = "it is too complex to be enforced";
        check("parser error: too many items\n<non-verbose/>", complex);
    }

    #[test]
    fn tells_limits_from_tokens_outside_grammar() {
        let limit = "Parser Error: Current row has 2008 items; max is 2000";
        assert!(matches!(left(limit), LmError::Grammar { .. }));
        let token = "Parser Error: token \"x\" doesn't satisfy the grammar; byte 'x' fails parse";
        assert!(matches!(left(token), LmError::Constraint { .. }));
    }
}
