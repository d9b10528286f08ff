//! A model that reads a sequence, also tokens that may turn out not to belong to it.

use mlx_rs::transforms::eval;
use mlx_rs::{Array, ops};

use super::super::{RollbackPoint, token_array};
use crate::cache::LayerCache;
use crate::models::Model;
use crate::{LmError, ffi};

/// Draws a token `[1]` from logits `[1, V]` behind the proposals that were drawn before, and launches
/// its computation.
pub(super) type Draw<'a> = &'a mut dyn FnMut(Array, &[Array]) -> Result<Array, LmError>;

/// How many tokens a draft model may be behind and still propose: it reads them together with the first
/// proposal.
const NEAR: usize = 16;
/// How many tokens a draft model that is further behind reads for each token of the answer. A few passes
/// of the main model give time for a long prompt, and none of them waits long.
const CATCH_UP: usize = 64;

/// A model, its caches, and how much of the common sequence they hold.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) model: Model,
    pub(super) caches: Vec<LayerCache>,
    /// How many tokens the caches hold, of the sequence and its proposed continuation.
    pub(super) num_read: usize,
    /// The position before the last proposals, and `num_read` there.
    rollback_point: Option<(RollbackPoint, usize)>,
}

impl Reader {
    pub(super) fn new(model: Model, caches: Vec<LayerCache>, num_read: usize) -> Self {
        Reader { model, caches, num_read, rollback_point: None }
    }

    /// Takes a rollback point before up to `num_drafts` tokens beyond `sequence` are read.
    pub(super) fn prepare(&mut self, sequence: &[u32], num_drafts: usize) -> Result<(), LmError> {
        let num_unread = sequence.len() - self.num_read;
        // Accepted tokens that a rollback removed are read with the new proposals; if they become
        // too many, they are read now, so that the next rollback does not remove them again.
        if num_unread > num_drafts + 1 || self.reads_one_by_one(num_unread + num_drafts) {
            self.read_to(sequence, sequence.len() - 1)?;
        }
        if num_drafts > 0 {
            self.set_rollback_point(sequence.len() - self.num_read + num_drafts);
        }
        Ok(())
    }

    /// Remembers the present position, which a cache other than a plain one takes a copy for when it
    /// is written to. At most `num_ahead` tokens may be read before the rollback.
    pub(super) fn set_rollback_point(&mut self, num_ahead: usize) {
        self.rollback_point = Some((RollbackPoint::take(&self.caches, num_ahead), self.num_read));
    }

    /// Rolls back to the first `num_tokens` of the sequence, or to fewer if the caches cannot be
    /// trimmed. Does nothing where nothing was proposed.
    pub(super) fn go_back(&mut self, num_tokens: usize) -> Result<(), LmError> {
        let Some((rollback_point, num_read_then)) = self.rollback_point.take() else {
            return Ok(());
        };
        if self.num_read <= num_tokens {
            return Ok(());
        }
        if rollback_point.only_trims() {
            for cache in &mut self.caches {
                cache.trim(self.num_read - num_tokens);
            }
            self.num_read = num_tokens;
        } else {
            rollback_point.restore(&mut self.caches)?;
            self.num_read = num_read_then;
        }
        Ok(())
    }

    /// Reads the sequence into the caches until they hold its first `num_tokens`.
    pub(super) fn read_to(&mut self, sequence: &[u32], num_tokens: usize) -> Result<(), LmError> {
        while self.num_read < num_tokens {
            let stop = if self.reads_one_by_one(num_tokens - self.num_read) {
                self.num_read + 1
            } else {
                num_tokens
            };
            self.model.forward(&token_array(&sequence[self.num_read..stop]), &mut self.caches)?;
            eval(self.caches.iter().flat_map(LayerCache::arrays))?;
            self.num_read = stop;
        }
        Ok(())
    }

    /// Whether so little of a sequence of `length` tokens is not read that proposals need not wait.
    pub(super) fn is_near(&self, length: usize) -> bool {
        length.saturating_sub(self.num_read) <= NEAR
    }

    /// Reads a slice of the sequence, if much of it is not read. Returns whether it did.
    pub(super) fn catch_up(&mut self, sequence: &[u32]) -> Result<bool, LmError> {
        if self.is_near(sequence.len()) {
            return Ok(false);
        }
        self.read_to(sequence, (self.num_read + CATCH_UP).min(sequence.len() - 1))?;
        Ok(true)
    }

    /// Whether `length` tokens must be read one by one, because a pass over all of them would
    /// attend to other tokens.
    pub(super) fn reads_one_by_one(&self, length: usize) -> bool {
        self.caches.iter().any(|cache| cache.as_kind().reads_one_by_one(length))
    }

    /// Draws `num_tokens` that follow `sequence`, of which the last is not read, because it may be
    /// refused.
    pub(super) fn draw(
        &mut self,
        sequence: &[u32],
        num_tokens: usize,
        draw: Draw<'_>,
    ) -> Result<Vec<Array>, LmError> {
        self.prepare(sequence, num_tokens)?;
        let mut input = token_array(&sequence[self.num_read..]);
        self.num_read = sequence.len() + num_tokens - 1;
        let mut drawn: Vec<Array> = Vec::with_capacity(num_tokens);
        for _ in 0..num_tokens {
            let (logits, _) = self.last_logits(&input, 1)?;
            let token = draw(logits, &drawn)?;
            input = ops::reshape(&token, &[1, 1])?;
            drawn.push(token);
        }
        Ok(drawn)
    }

    /// Runs the model over `tokens` `[1, L]` and returns the logits of the last `rows`, `[rows,
    /// V]`, and the hidden states `[1, L, D]`.
    pub(super) fn last_logits(
        &mut self,
        tokens: &Array,
        rows: i32,
    ) -> Result<(Array, Array), LmError> {
        let hidden = self.model.forward(tokens, &mut self.caches)?;
        let (length, width) = (hidden.dim(1), hidden.dim(2));
        let last = if length == rows {
            hidden.clone()
        } else {
            ffi::slice(&hidden, &[0, length - rows, 0], &[1, length, width])?
        };
        Ok((ops::reshape(&self.model.logits(&last)?, &[rows, -1])?, hidden))
    }
}
