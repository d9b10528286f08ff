//! The caches that a kit reuses from one prompt to the next: one list of tokens, and for both
//! models the caches of a prefix of it.
//!
//! A new prompt reuses its common prefix with the list. Caches that hold more are trimmed; if they
//! cannot be trimmed, they are rolled back to a point inside the last prompt; if that point is not
//! in the common prefix, they are emptied.

use std::ops::{ControlFlow, Range};

use crate::LmError;
use crate::cache::{CacheSpec, LayerCache};
use crate::generate::{GenerateOptions, RollbackPoint, make_caches, prefill_chunks, token_array};
use crate::models::Model;

/// How many tokens before the end of a prompt its rollback point is taken: chat templates change
/// the last few tokens of a turn when the next one is added.
const ROLLBACK_DISTANCE: usize = 11;

/// The tokens and caches of the last prompt and answer.
#[derive(Debug, Default)]
pub(super) struct CacheWrapper {
    /// The tokens of the last prompt and its answer.
    pub(super) tokens: Vec<u32>,
    pub(super) main: ModelCaches,
    pub(super) draft: ModelCaches,
}

/// Which of a kit's models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KitModel {
    Main,
    Draft,
}

/// One model's caches. They hold the first tokens of the wrapper's list; their offset says how
/// many.
#[derive(Debug, Default)]
pub(super) struct ModelCaches {
    pub(super) caches: Vec<LayerCache>,
    /// A point to roll back to, and the number of tokens there.
    rollback_point: Option<(RollbackPoint, usize)>,
}

impl CacheWrapper {
    pub(super) fn of(&self, model: KitModel) -> &ModelCaches {
        match model {
            KitModel::Main => &self.main,
            KitModel::Draft => &self.draft,
        }
    }

    /// Drops the draft model's caches.
    pub(super) fn forget_draft(&mut self) {
        self.draft = ModelCaches::default();
    }

    /// Reduces the caches of both models to what they share with `prompt`, whose last token has to
    /// be run, because its logits are sampled.
    pub(super) fn begin(&mut self, prompt: &[u32]) {
        let most = prompt.len() - 1;
        let common =
            self.tokens.iter().zip(&prompt[..most]).take_while(|(held, new)| held == new).count();
        for caches in [&mut self.main, &mut self.draft] {
            caches.go_back(common);
        }
        self.tokens = prompt.to_vec();
    }
}

impl ModelCaches {
    /// How many tokens the caches hold.
    pub(super) fn num_read(&self) -> usize {
        self.caches.iter().map(LayerCache::offset).max().unwrap_or(0)
    }

    /// Reduces the caches to a prefix of the first `num_tokens` tokens.
    fn go_back(&mut self, num_tokens: usize) {
        let surplus = self.num_read().saturating_sub(num_tokens);
        if surplus > 0 && !self.trim(surplus) {
            match &self.rollback_point {
                Some((rollback_point, length))
                    if *length <= num_tokens
                        && rollback_point.restore(&mut self.caches).is_ok() => {}
                _ => self.caches.clear(),
            }
        }
        self.rollback_point = self
            .rollback_point
            .take()
            .filter(|(_, length)| *length <= num_tokens && !self.caches.is_empty());
    }

    fn trim(&mut self, num_tokens: usize) -> bool {
        self.caches.iter().all(LayerCache::is_trimmable)
            && self.caches.iter_mut().all(|cache| cache.trim(num_tokens) == num_tokens)
    }

    /// Reads the next `max_tokens` of `prompt` or less, never its last token. Any error empties the
    /// caches.
    pub(super) fn read_slice(
        &mut self,
        prompt: &[u32],
        model: &Model,
        options: &GenerateOptions,
        max_tokens: usize,
    ) -> Result<(), LmError> {
        make_caches(&mut self.caches, model, options)?;
        let (start, end) = (self.num_read(), prompt.len() - 1);
        let rollback_at = prompt.len().saturating_sub(ROLLBACK_DISTANCE);
        let stop = end.min(start + max_tokens.min(options.prefill_step_size));
        let stop = if (start + 1..stop).contains(&rollback_at) { rollback_at } else { stop };
        prefill_chunks(
            start..stop,
            options.prefill_step_size,
            &mut |range: Range<usize>, caches: &mut [LayerCache]| {
                model.forward(&token_array(&prompt[range]), caches)
            },
            &mut self.caches,
            options.kv_quantization.as_ref(),
            &mut |_| ControlFlow::Continue(()),
        )?;
        if stop == rollback_at && stop > start {
            // Caches that can always be trimmed do not need one.
            let is_trimmable = CacheSpec::of(&self.caches).is_some_and(|spec| spec.is_trimmable());
            let rollback_point = || (RollbackPoint::take(&self.caches, usize::MAX), stop);
            self.rollback_point = (!is_trimmable).then(rollback_point);
        }
        Ok(())
    }
}
