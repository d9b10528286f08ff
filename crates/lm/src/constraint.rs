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
use mlx_rs::transforms::async_eval;
use mlx_rs::{Array, ops};
use rayon::prelude::*;

use crate::LmError;

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

fn left(error: impl fmt::Display) -> LmError {
    LmError::Constraint { reason: error.to_string() }
}

impl Constraint {
    pub(crate) fn new(matcher: Matcher, num_sampled: usize) -> Self {
        Constraint { matcher, num_sampled, num_read: None }
    }

    /// Writes which tokens may follow `tokens` and `last`, all tokens of prompt and answer.
    pub fn allowed(
        &mut self,
        tokens: &[u32],
        last: u32,
        allowed: &mut [bool],
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
        let mask = self.matcher.compute_mask_or_eos().map_err(left)?;
        for (bits, allowed) in mask.as_slice().iter().zip(allowed.chunks_mut(32)) {
            for (bit, allowed) in allowed.iter_mut().enumerate() {
                *allowed = bits >> bit & 1 == 1;
            }
        }
        Ok(())
    }

    /// Masks the logits `[1, V]` of the token after `tokens` `[n]` u32. It waits for these; while it
    /// computes which may follow, the device computes the logits.
    pub(crate) fn mask(&mut self, tokens: &Array, logits: &Array) -> Result<Array, LmError> {
        async_eval([logits])?;
        let tokens = tokens.try_as_slice::<u32>()?;
        let mut allowed = vec![false; logits.dim(1) as usize];
        if let Some((&last, tokens)) = tokens.split_last() {
            self.allowed(tokens, last, &mut allowed)?;
        }
        masked(logits, &allowed)
    }
}

/// Masks those rows of the logits `[B, V]` that grammars constrain. Returns also the rows that have
/// left their grammars. The device computes the logits meanwhile, if they have been launched.
pub(crate) fn mask_rows(
    logits: &Array,
    rows: Vec<ConstrainedRow>,
) -> Result<(Array, Vec<(usize, LmError)>), LmError> {
    let (num_rows, vocab_size) = (logits.dim(0) as usize, logits.dim(1) as usize);
    let mut allowed = vec![true; num_rows * vocab_size];
    let mut masks: Vec<Option<&mut [bool]>> = allowed.chunks_mut(vocab_size).map(Some).collect();
    let work: Vec<_> = rows
        .into_iter()
        .filter_map(|row| {
            let mask = masks.get_mut(row.row)?.take()?;
            Some((row, mask))
        })
        .collect();
    let compute = |(row, mask): (ConstrainedRow, &mut [bool])| {
        mask.fill(false);
        let failed = row.constraint.allowed(row.tokens, row.last, mask).err()?;
        mask.fill(true);
        Some((row.row, failed))
    };
    let failed = match work.len() {
        1 => work.into_iter().filter_map(compute).collect(),
        _ => work.into_par_iter().filter_map(compute).collect(),
    };
    Ok((masked(logits, &allowed)?, failed))
}

/// Logits `[B, V]`, of which only those allowed stay.
fn masked(logits: &Array, allowed: &[bool]) -> Result<Array, LmError> {
    let allowed = Array::from_slice(allowed, logits.shape());
    let never = Array::from_f32(f32::NEG_INFINITY).as_dtype(logits.dtype())?;
    Ok(ops::select(&allowed, logits, &never)?)
}
