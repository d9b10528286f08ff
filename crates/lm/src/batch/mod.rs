//! Continuous batching: many sequences at once, which join and leave between steps.
//!
//! ```text
//! insert ── pending ── prefill ── decode batch ── finished
//!                      │          └ one token per row and step
//!                      └ chunks, several prompts per pass
//! ```
//! Every [`BatchGenerator::next`] decodes one token of each running sequence, then prefills at most
//! one chunk of each prompt; requests are admitted in the order in which they came. The rows of a
//! decode batch share a forward pass. A single row runs on the plain caches of its request, as fast
//! as a [`crate::TokenStream`]; a row whose caches cannot be batched has a decode batch of its own.
//! Scheduling and names follow mlx-lm 0.32's BatchGenerator.

mod batch_generate;
mod decode_batch;
mod next_token;
mod prefill;
mod request;
mod row_caches;
mod shared_prefix;
mod stats;

use std::collections::VecDeque;
use std::time::Instant;

use cairn_chat::StopTokens;

pub use batch_generate::{BatchAnswer, BatchResponse, batch_generate, batch_generate_tokens};
pub use next_token::NextTokenLogprobs;
pub use request::{
    BatchFinish, BatchOptions, BatchRequest, BatchStep, BatchToken, PromptProgress, RequestId,
    RowState,
};
pub use row_caches::RowCaches;
pub use shared_prefix::{RowAfterPrefix, RowsAfterPrefix, SharedPrefix};
pub use stats::BatchStats;

use crate::batch::decode_batch::{DecodeBatch, PendingRow};
use crate::batch::prefill::{Prefilling, are_batchable};
use crate::cache::batch::batch_spec;
use crate::models::Model;
use crate::{LmError, ffi, memory};

/// MLX keeps freed buffers for reuse. Releasing them after this many steps, as mlx-lm does, bounds
/// the memory of long answers.
const CLEAR_CACHE_EVERY: usize = 512;

/// One slice in this many begins with the oldest prompt, even if another has fewer unread tokens.
const OLDEST_FIRST_EVERY: usize = 4;

/// Generates many sequences at once. It owns their caches; when a sequence ends or is removed, its
/// caches are returned if the request asked for them.
#[derive(Debug)]
pub struct BatchGenerator {
    model: Model,
    options: BatchOptions,
    /// The stop sequences of the options, which rows share.
    stop: StopTokens,
    next_id: u64,
    pending: VecDeque<Prefilling>,
    prefilling: Vec<Prefilling>,
    decode_batches: Vec<DecodeBatch>,
    stats: BatchStats,
    num_steps: usize,
    num_slices: usize,
}

impl BatchGenerator {
    /// A generator without requests.
    pub fn new(model: Model, options: BatchOptions) -> Self {
        let options = BatchOptions {
            completion_batch_size: options
                .completion_batch_size
                .max(options.prefill_batch_size)
                .max(1),
            prefill_batch_size: options.prefill_batch_size.max(1),
            prefill_step_size: options.prefill_step_size.max(1),
            ..options
        };
        BatchGenerator {
            model,
            stop: StopTokens::new(options.stop.clone()),
            options,
            next_id: 0,
            pending: VecDeque::new(),
            prefilling: Vec::new(),
            decode_batches: Vec::new(),
            stats: BatchStats::default(),
            num_steps: 0,
            num_slices: 0,
        }
    }

    /// Queues a request. Fails on an empty prompt, `max_tokens` of 0, token ids outside the
    /// vocabulary, and caches that do not fit the model or `cached_tokens`.
    pub fn insert(&mut self, request: BatchRequest) -> Result<RequestId, LmError> {
        let id = RequestId(self.next_id);
        self.pending.push_back(Prefilling::new(
            id,
            request,
            &self.model,
            &self.options,
            &self.stop,
        )?);
        self.next_id += 1;
        Ok(id)
    }

    /// Ends a chunk of a waiting prompt after this many of its tokens, like the request's
    /// `boundaries`. Does nothing if they are read already.
    pub fn add_boundary(&mut self, id: RequestId, position: usize) {
        let mut unread = self.pending.iter_mut().chain(&mut self.prefilling);
        if let Some(row) = unread.find(|row| row.id() == id) {
            row.add_boundary(position);
        }
    }

    /// One round: a token of every running sequence, then at most one chunk of each prompt.
    ///
    /// Call it while [`BatchGenerator::has_work`]; the round that launches a sequence's first step
    /// reports no token for it. The failure of a single request is in [`BatchStep::failed`]. An
    /// error means that a pass over several rows failed as a whole: all caches are lost and the
    /// generator is empty, but the requests may be inserted again.
    #[expect(
        clippy::should_implement_trait,
        reason = "named as in mlx-lm; it never ends, without work a round is empty"
    )]
    pub fn next(&mut self) -> Result<BatchStep, LmError> {
        let mut step = BatchStep::default();
        if self.num_decoding() > 0 && !self.prefers_prefill() {
            self.decode(&mut step).inspect_err(|_| self.clear())?;
        }
        if self.begin_prefill(&mut step) {
            let start = Instant::now();
            let step_size = self.options.prefill_step_size;
            let num_tokens =
                prefill::prefill_chunks(&self.model, &mut self.prefilling, step_size, &mut step);
            self.end_prefill(&step, num_tokens, start);
        }
        Ok(step)
    }

    /// The first half of [`BatchGenerator::next`] for a caller that chooses between the two itself:
    /// a token of every running sequence.
    pub fn decode_step(&mut self) -> Result<BatchStep, LmError> {
        let mut step = BatchStep::default();
        self.decode(&mut step).inspect_err(|_| self.clear())?;
        Ok(step)
    }

    /// The second half: reads at most `max_tokens` of the waiting prompts, padding included. One is
    /// read to its end before the next, the one with the fewest unread tokens first; every fourth
    /// call begins with the oldest one, so that none waits for ever. Those with chunks of similar
    /// length share a pass.
    ///
    /// While others decode, a sequence that was read to its end joins them in a call of its own, which
    /// reads nothing: joining copies caches, and the others would wait for both.
    pub fn prefill_slice(&mut self, max_tokens: usize) -> BatchStep {
        let mut step = BatchStep::default();
        let only_joins =
            self.num_decoding() > 0 && self.prefilling.iter().any(Prefilling::is_ready);
        if self.begin_prefill(&mut step) && !only_joins {
            let start = Instant::now();
            let max_tokens = max_tokens.clamp(1, self.options.prefill_step_size);
            self.num_slices += 1;
            let oldest_first = self.num_slices.is_multiple_of(OLDEST_FIRST_EVERY);
            let num_tokens = prefill::prefill_slice(
                &self.model,
                &mut self.prefilling,
                max_tokens,
                oldest_first,
                &mut step,
            );
            self.end_prefill(&step, num_tokens, start);
            if self.num_decoding() == 0 {
                self.start_decoding(&mut step);
            }
        }
        step
    }

    /// How many prompt tokens are not read yet, of requests in prefill and of those that wait.
    pub fn num_unread_tokens(&self) -> usize {
        self.pending.iter().chain(&self.prefilling).map(Prefilling::num_unread).sum()
    }

    /// Whether [`BatchGenerator::prefill_slice`] has something to do.
    pub fn can_prefill(&self) -> bool {
        self.num_pending() + self.num_prefilling() > 0
            && self.num_decoding() < self.options.completion_batch_size
    }

    /// Whether any request is unfinished.
    pub fn has_work(&self) -> bool {
        self.num_pending() + self.num_prefilling() + self.num_decoding() > 0
    }

    /// Whether this request is unfinished.
    pub fn has(&self, id: RequestId) -> bool {
        let mut unread = self.pending.iter().chain(&self.prefilling);
        unread.any(|row| row.id() == id) || self.find_decoding(id).is_some()
    }

    /// How many requests wait for a slot.
    pub fn num_pending(&self) -> usize {
        self.pending.len()
    }

    /// How many requests are in prefill.
    pub fn num_prefilling(&self) -> usize {
        self.prefilling.len()
    }

    /// How many requests are in decode.
    pub fn num_decoding(&self) -> usize {
        self.decode_batches.iter().map(DecodeBatch::num_rows).sum()
    }

    /// Cancels a request and returns its tokens, and its caches if it asked for them; `None` if it is
    /// unknown or has ended.
    ///
    /// Its part of the batch is freed at once. On an error the request is removed, but its caches
    /// are lost, and those that shared its passes may be removed too (see [`BatchGenerator::has`]).
    pub fn remove(&mut self, id: RequestId) -> Result<Option<RowState>, LmError> {
        if let Some(index) = self.pending.iter().position(|row| row.id() == id) {
            return Ok(self.pending.remove(index).map(Prefilling::into_state));
        }
        if let Some(index) = self.prefilling.iter().position(|row| row.id() == id) {
            return Ok(Some(self.prefilling.remove(index).into_state()));
        }
        let Some((index, row)) = self.find_decoding(id) else { return Ok(None) };
        let batch = &self.decode_batches[index];
        let state = match batch.returns_caches(row) {
            true => batch.state(row),
            false => Ok(RowState { caches: Vec::new(), tokens: batch.tokens(row).to_vec() }),
        };
        let kept: Vec<usize> =
            (0..self.decode_batches[index].num_rows()).filter(|&other| other != row).collect();
        if kept.is_empty() {
            self.decode_batches.remove(index);
        } else if let Err(error) = self.decode_batches[index].filter(&kept) {
            self.decode_batches.remove(index);
            return Err(error);
        }
        state.map(Some)
    }

    /// A copy of what was computed for a request so far; `None` if it is unknown or has ended.
    pub fn extract_cache(&self, id: RequestId) -> Result<Option<RowState>, LmError> {
        if let Some(row) = self.pending.iter().chain(&self.prefilling).find(|row| row.id() == id) {
            return Ok(Some(row.state()));
        }
        self.find_decoding(id).map(|(batch, row)| self.decode_batches[batch].state(row)).transpose()
    }

    /// Bytes of the caches of all requests, capacity included. As mlx-lm's `prompt_cache_nbytes`.
    pub fn prompt_cache_nbytes(&self) -> usize {
        let prompts = self.pending.iter().chain(&self.prefilling).map(Prefilling::cache_nbytes);
        prompts.chain(self.decode_batches.iter().map(DecodeBatch::cache_nbytes)).sum()
    }

    /// Statistics since the generator was made.
    pub fn stats(&self) -> BatchStats {
        BatchStats { peak_memory_bytes: memory::peak_bytes(), ..self.stats }
    }

    /// Waits for the device to finish what was launched, and drops all requests.
    pub fn close(mut self) {
        self.clear();
    }

    fn clear(&mut self) {
        self.pending.clear();
        self.prefilling.clear();
        // MLX aborts a process that exits while the device is working.
        if !self.decode_batches.is_empty() {
            let _ = ffi::synchronize();
        }
        self.decode_batches.clear();
    }

    fn find_decoding(&self, id: RequestId) -> Option<(usize, usize)> {
        self.decode_batches
            .iter()
            .enumerate()
            .find_map(|(batch, rows)| Some((batch, rows.position(id)?)))
    }

    fn prefers_prefill(&self) -> bool {
        let is_waiting = !self.pending.is_empty() || !self.prefilling.is_empty();
        self.options.prefer_prefill_when_pending
            && is_waiting
            && self.num_decoding() < self.options.completion_batch_size
    }

    fn decode(&mut self, step: &mut BatchStep) -> Result<(), LmError> {
        let start = Instant::now();
        let num_before = step.tokens.len();
        for batch in &mut self.decode_batches {
            batch.step(&self.model, step)?;
        }
        self.decode_batches.retain(|batch| batch.num_rows() > 0);
        self.num_steps += 1;
        if self.num_steps.is_multiple_of(CLEAR_CACHE_EVERY) {
            memory::clear_cache();
        }
        self.stats.generation_tokens += step.tokens.len() - num_before;
        self.stats.generation_time_s += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Moves the oldest requests into prefill, as many as there are slots.
    fn admit(&mut self) {
        let room = self.options.prefill_batch_size.saturating_sub(self.prefilling.len());
        let slots = self.options.completion_batch_size - self.num_decoding();
        let count = room.min(slots.saturating_sub(self.prefilling.len())).min(self.pending.len());
        self.prefilling.extend(self.pending.drain(..count));
    }

    /// Moves the rows of which only the last token is unread into decode batches; that token is the
    /// first step's input.
    fn start_decoding(&mut self, step: &mut BatchStep) {
        let (ready, rest) =
            std::mem::take(&mut self.prefilling).into_iter().partition(Prefilling::is_ready);
        self.prefilling = rest;
        let ready: Vec<Prefilling> = ready;
        let mut groups: Vec<(Option<usize>, Vec<PendingRow>)> = Vec::new();
        for row in ready {
            step.prompts.push(row.finished());
            self.stats.prompt_tokens += 1;
            let row = row.into_pending_row();
            let spec = batch_spec(&row.caches).ok();
            let batch =
                self.decode_batches.iter().position(|batch| are_batchable(&batch.spec, &spec));
            let is_same = |group: &&mut (Option<usize>, Vec<PendingRow>)| match (batch, group.0) {
                (Some(batch), Some(other)) => batch == other,
                (None, None) => are_batchable(&batch_spec(&group.1[0].caches).ok(), &spec),
                _ => false,
            };
            match groups.iter_mut().find(is_same) {
                Some(group) => group.1.push(row),
                None => groups.push((batch, vec![row])),
            }
        }
        for (batch, rows) in groups {
            let ids: Vec<RequestId> = rows.iter().map(PendingRow::id).collect();
            let joined = match batch {
                Some(batch) => self.decode_batches[batch].extend(rows),
                None => DecodeBatch::new(rows).map(|batch| self.decode_batches.push(batch)),
            };
            if let Err(error) = joined {
                step.fail(ids, error);
            }
        }
    }

    /// Admits requests and starts those that are read. False if nothing is left to prefill.
    fn begin_prefill(&mut self, step: &mut BatchStep) -> bool {
        if self.num_decoding() >= self.options.completion_batch_size {
            return false;
        }
        self.admit();
        self.start_decoding(step);
        !self.prefilling.is_empty()
    }

    fn end_prefill(&mut self, step: &BatchStep, num_tokens: usize, start: Instant) {
        self.prefilling.retain(|row| !step.has_failed(row.id()));
        self.stats.prompt_tokens += num_tokens;
        self.stats.prompt_time_s += start.elapsed().as_secs_f64();
    }
}

impl Drop for BatchGenerator {
    fn drop(&mut self) {
        self.clear();
    }
}
