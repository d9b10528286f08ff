//! Continuous batching: many answers at once, which join and leave between steps.
//!
//! ```text
//! insert ── pending ── prefill (chunks, several prompts per pass) ── batch (one token per row and step) ── finished
//! ```
//! Every [`BatchGenerator::next`] writes one token for each answer under way, and then reads at
//! most one chunk of each prompt that is being read; requests are admitted in the order in which
//! they came. Rows of one *batch* share a forward pass. A lone row runs on the plain caches of its
//! request, as fast as a [`crate::TokenStream`]; rows whose caches cannot be batched have decode_batches of
//! their own. Scheduling and names follow mlx-lm 0.32's BatchGenerator.

mod batch_generate;
mod decode_batch;
mod prefill;
mod request;
mod stats;

use std::collections::VecDeque;
use std::time::Instant;

use cairn_chat::StopTokens;

pub use batch_generate::{BatchAnswer, batch_generate};
pub use request::{
    BatchFinish, BatchOptions, BatchRequest, BatchStep, BatchToken, PromptProgress, RequestId,
    RowState,
};
pub use stats::BatchStats;

use crate::batch::decode_batch::{DecodeBatch, PendingRow};
use crate::batch::prefill::Prefilling;
use crate::cache::batch::batch_kinds;
use crate::models::Model;
use crate::{LmError, ffi, memory};

/// MLX keeps freed buffers for reuse; letting them go this often bounds what long answers hold.
/// mlx-lm does the same.
const CLEAR_CACHE_EVERY: usize = 512;

/// Many answers at once. It owns their caches; an answer's end or removal gives its own back.
#[derive(Debug)]
pub struct BatchGenerator {
    model: Model,
    options: BatchOptions,
    /// Of the options; rows share it.
    stop: StopTokens,
    next_id: u64,
    pending: VecDeque<Prefilling>,
    prefilling: Vec<Prefilling>,
    decode_batches: Vec<DecodeBatch>,
    stats: BatchStats,
    num_steps: usize,
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
        }
    }

    /// Queues a request. Fails where it cannot be answered: an empty prompt, `max_tokens` of 0, ids
    /// outside the vocabulary, caches of another number of layers.
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

    /// One round: a token for every answer under way, then at most one chunk of each prompt that is
    /// being read.
    ///
    /// Call it while [`BatchGenerator::has_work`]; the round that launches an answer's first step
    /// reports no token for it. What goes wrong with one request is in [`BatchStep::failed`]. An
    /// error means that a pass over several rows failed as a whole: their caches are lost and the
    /// generator is empty, but each of them may be inserted again.
    #[expect(
        clippy::should_implement_trait,
        reason = "named as in mlx-lm; without work there is a round too, an empty one"
    )]
    pub fn next(&mut self) -> Result<BatchStep, LmError> {
        let mut step = BatchStep::default();
        if self.num_decoding() > 0 && !self.prefers_prefill() {
            self.decode(&mut step).inspect_err(|_| self.clear())?;
        }
        if self.num_decoding() < self.options.completion_batch_size {
            self.admit();
            self.start_decoding(&mut step);
            self.prefill(&mut step);
        }
        Ok(step)
    }

    /// Whether any request is unfinished.
    pub fn has_work(&self) -> bool {
        self.num_pending() + self.num_prefilling() + self.num_decoding() > 0
    }

    /// Requests that wait.
    pub fn num_pending(&self) -> usize {
        self.pending.len()
    }

    /// Requests whose prompt is being read.
    pub fn num_prefilling(&self) -> usize {
        self.prefilling.len()
    }

    /// Requests whose answer is being written.
    pub fn num_decoding(&self) -> usize {
        self.decode_batches.iter().map(DecodeBatch::num_rows).sum()
    }

    /// Ends a request where it is and gives back what was computed for it; none if it is unknown or
    /// has ended.
    ///
    /// Its share of the batch is freed at once. An error loses the caches, not the removal.
    pub fn remove(&mut self, id: RequestId) -> Result<Option<RowState>, LmError> {
        if let Some(index) = self.pending.iter().position(|row| row.id() == id) {
            return Ok(self.pending.remove(index).map(Prefilling::into_state));
        }
        if let Some(index) = self.prefilling.iter().position(|row| row.id() == id) {
            return Ok(Some(self.prefilling.remove(index).into_state()));
        }
        let Some((index, row)) = self.find_decoding(id) else { return Ok(None) };
        let state = self.decode_batches[index].state(row);
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

    /// A copy of what was computed for a request so far; none if it is unknown or has ended.
    pub fn extract_cache(&self, id: RequestId) -> Result<Option<RowState>, LmError> {
        if let Some(row) = self.pending.iter().chain(&self.prefilling).find(|row| row.id() == id) {
            return Ok(Some(row.state()));
        }
        self.find_decoding(id).map(|(batch, row)| self.decode_batches[batch].state(row)).transpose()
    }

    /// What was done since the generator was made.
    pub fn stats(&self) -> BatchStats {
        BatchStats { peak_memory_bytes: memory::peak_bytes(), ..self.stats }
    }

    /// Drops all requests, when the device has finished what was launched.
    pub fn close(mut self) {
        self.clear();
    }

    fn clear(&mut self) {
        self.pending.clear();
        self.prefilling.clear();
        // Leaving the process with work in flight aborts in MLX.
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

    /// Takes the oldest requests, as many as there is room for.
    fn admit(&mut self) {
        let room = self.options.prefill_batch_size.saturating_sub(self.prefilling.len());
        let slots = self.options.completion_batch_size - self.num_decoding();
        let count = room.min(slots.saturating_sub(self.prefilling.len())).min(self.pending.len());
        self.prefilling.extend(self.pending.drain(..count));
    }

    /// Moves the rows of which only the last token is unread to the decode_batches, where it is the first
    /// step's input.
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
            let kinds = batch_kinds(&row.caches).ok();
            let batch = self
                .decode_batches
                .iter()
                .position(|batch| kinds.is_some() && batch.kinds == kinds);
            let is_same = |group: &&mut (Option<usize>, Vec<PendingRow>)| match (batch, group.0) {
                (Some(batch), Some(other)) => batch == other,
                (None, None) => kinds.is_some() && batch_kinds(&group.1[0].caches).ok() == kinds,
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

    fn prefill(&mut self, step: &mut BatchStep) {
        if self.prefilling.is_empty() {
            return;
        }
        let start = Instant::now();
        let chunks = prefill::prefill_chunks(
            &self.model,
            &mut self.prefilling,
            self.options.prefill_step_size,
            step,
        );
        self.prefilling.retain(|row| !step.has_failed(row.id()));
        self.stats.prompt_tokens += chunks;
        self.stats.prompt_time_s += start.elapsed().as_secs_f64();
    }
}

impl Drop for BatchGenerator {
    fn drop(&mut self) {
        self.clear();
    }
}
