//! A model's head that predicts further tokens, and what it has read of the sequence.

use std::collections::VecDeque;

use mlx_rs::transforms::eval;
use mlx_rs::{Array, ops};

use super::super::token_array;
use super::reader::Draw;
use crate::cache::LayerCache;
use crate::models::Model;
use crate::{LmError, ffi};

/// Where nothing is proposed, so many hidden states are kept for when something is again. Older ones
/// are dropped, and the head begins anew with what is left.
const MOST_PENDING: usize = 256;

/// A head and its caches. It reads pairs: pair `t` is the hidden state of token `t` of the sequence, as
/// the model has computed it, and token `t + 1`. What was read before the sequence (from the prompt
/// cache) it does not know; it predicts a little worse then.
///
/// The caches hold pairs that end where the pending hidden states begin, and no proposals: those are
/// trimmed as soon as their graph is built.
#[derive(Debug)]
pub(in super::super) struct HeadReader {
    model: Model,
    caches: Vec<LayerCache>,
    /// Hidden states `[1, n, D]` of tokens whose pairs were not read.
    pending: VecDeque<Array>,
    /// The pair behind those in the caches.
    num_read: usize,
    num_pending: usize,
}

impl HeadReader {
    /// Fails if the model has no head.
    pub(in super::super) fn new(model: &Model) -> Result<Self, LmError> {
        let caches = model.make_mtp_cache()?;
        let model = model.clone();
        Ok(HeadReader { model, caches, pending: VecDeque::new(), num_read: 0, num_pending: 0 })
    }

    /// Adds the hidden states `[1, L, D]` of the tokens from `start` on. Those from `end` on do not
    /// belong to the sequence, and those that were added before are left out.
    pub(super) fn push(&mut self, hidden: &Array, start: usize, end: usize) -> Result<(), LmError> {
        let known = self.num_read + self.num_pending;
        if start > known {
            self.begin_at(start)?;
        }
        let (first, stop) = (known.max(start), end.min(start + hidden.dim(1) as usize));
        if first >= stop {
            return Ok(());
        }
        let (from, to) = ((first - start) as i32, (stop - start) as i32);
        self.pending.push_back(ffi::slice(hidden, &[0, from, 0], &[1, to, hidden.dim(2)])?);
        self.num_pending += stop - first;
        while self.num_pending > MOST_PENDING
            && let Some(oldest) = self.pending.pop_front()
        {
            let dropped = self.num_pending - MOST_PENDING;
            let length = oldest.dim(1) as usize;
            let kept = length.saturating_sub(dropped);
            if kept > 0 {
                let (from, to) = ((length - kept) as i32, length as i32);
                let rest = ffi::slice(&oldest, &[0, from, 0], &[1, to, oldest.dim(2)])?;
                self.pending.push_front(rest);
            }
            self.num_pending -= length - kept;
            self.num_read += length - kept;
            self.caches = self.model.make_mtp_cache()?;
        }
        Ok(())
    }

    /// Forgets everything; the next pair is that of token `position`.
    fn begin_at(&mut self, position: usize) -> Result<(), LmError> {
        self.caches = self.model.make_mtp_cache()?;
        self.pending.clear();
        (self.num_read, self.num_pending) = (position, 0);
        Ok(())
    }

    /// Reads a chunk of the prompt: the hidden states `[1, L, D]` of the tokens from `start` on. The last
    /// one's pair is left to the first proposal.
    pub(in super::super) fn read_chunk(
        &mut self,
        hidden: &Array,
        start: usize,
        tokens: &[u32],
    ) -> Result<(), LmError> {
        let end = start + hidden.dim(1) as usize;
        // Reading them here keeps few hidden states, however long a chunk is.
        let last = last(hidden)?;
        self.pending.push_back(hidden.clone());
        self.num_pending += end - start;
        let num_pairs = self.num_pending - 1;
        if num_pairs > 0 {
            let rows = self.first_pending(num_pairs)?;
            let behind = &tokens[self.num_read + 1..][..num_pairs];
            self.model.forward_mtp(&token_array(behind), &rows, &mut self.caches)?;
            self.num_read += num_pairs;
        }
        self.pending.clear();
        self.pending.push_back(last);
        self.num_pending = 1;
        eval(self.caches.iter().flat_map(LayerCache::arrays).chain(&self.pending))?;
        Ok(())
    }

    /// The first `count` of the pending hidden states, `[1, count, D]`; they stay pending.
    fn first_pending(&self, count: usize) -> Result<Array, LmError> {
        let parts: Vec<&Array> = self.pending.iter().collect();
        let all = match parts.as_slice() {
            [one] => (*one).clone(),
            parts => ops::concatenate(parts, 1)?,
        };
        Ok(ffi::slice(&all, &[0, 0, 0], &[1, count as i32, all.dim(2)])?)
    }

    /// Draws `num_tokens` that follow `sequence`; none if the hidden state of the token before its last
    /// is not known.
    pub(super) fn draw(
        &mut self,
        sequence: &[u32],
        num_tokens: usize,
        draw: Draw<'_>,
    ) -> Result<Vec<Array>, LmError> {
        let Some(mut hidden) = self.read(sequence)? else { return Ok(Vec::new()) };
        let mut drawn: Vec<Array> = Vec::with_capacity(num_tokens);
        loop {
            let logits = ops::reshape(&self.model.logits(&hidden)?, &[1, -1])?;
            drawn.push(draw(logits, &drawn)?);
            if drawn.len() == num_tokens {
                break;
            }
            // Its own hidden state stands in for the model's.
            let token = ops::reshape(&drawn[drawn.len() - 1], &[1, 1])?;
            hidden = self.model.forward_mtp(&token, &hidden, &mut self.caches)?;
        }
        for cache in &mut self.caches {
            cache.trim(num_tokens - 1);
        }
        Ok(drawn)
    }

    /// Reads what is pending, and returns the hidden state `[1, 1, D]` of what follows `sequence`.
    fn read(&mut self, sequence: &[u32]) -> Result<Option<Array>, LmError> {
        if self.num_pending == 0 || self.num_read + self.num_pending + 1 != sequence.len() {
            return Ok(None);
        }
        let rows = self.first_pending(self.num_pending)?;
        let behind = token_array(&sequence[self.num_read + 1..]);
        let predicted = self.model.forward_mtp(&behind, &rows, &mut self.caches)?;
        self.num_read += self.num_pending;
        self.pending.clear();
        self.num_pending = 0;
        last(&predicted).map(Some)
    }
}

/// The last of `[1, L, D]`.
fn last(hidden: &Array) -> Result<Array, LmError> {
    let (length, width) = (hidden.dim(1), hidden.dim(2));
    Ok(ffi::slice(hidden, &[0, length - 1, 0], &[1, length, width])?)
}
