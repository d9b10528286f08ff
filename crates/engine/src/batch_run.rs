//! Sequences of one model that share a batch, which rows join and leave between slices.

use std::collections::BTreeMap;
use std::rc::Rc;

use cairn_chat::FinishReason;
use cairn_lm::Sampling;
use cairn_lm::batch::{
    BatchGenerator, BatchOptions, BatchRequest, BatchStep, BatchToken, RequestId,
};
use cairn_lm::cache::LayerCache;
use tokio::sync::watch;

use crate::EngineError;
use crate::generate_job::GenerateJob;
use crate::guard::caught;
use crate::model_pool::Loaded;
use crate::sequence::Sequence;
use crate::worker::Worker;

/// A batch and its sequences. Created for the first sequence and dropped after the last: an idle
/// engine holds only its models.
///
/// - The generator has a row for every sequence in `rows`, and no other.
pub(crate) struct BatchRun {
    pub(crate) loaded: Rc<Loaded>,
    generator: BatchGenerator,
    pub(crate) rows: BTreeMap<RequestId, Sequence>,
    /// Whether other sequences may join.
    pub(crate) is_shared: bool,
}

/// A slice that failed as a whole. Its rows have left the batch.
pub(crate) struct FailedSlice {
    pub(crate) error: EngineError,
    pub(crate) sequences: Vec<Sequence>,
}

impl BatchRun {
    pub(crate) fn new(loaded: Rc<Loaded>, options: BatchOptions, is_shared: bool) -> Self {
        let generator = BatchGenerator::new(loaded.model.model.clone(), options);
        BatchRun { loaded, generator, rows: BTreeMap::new(), is_shared }
    }

    pub(crate) fn is_decoding(&self) -> bool {
        self.num_decoding() > 0
    }

    pub(crate) fn num_decoding(&self) -> usize {
        self.generator.num_decoding()
    }

    pub(crate) fn is_reading(&self) -> bool {
        self.generator.can_prefill()
    }

    pub(crate) fn num_unread_tokens(&self) -> usize {
        self.generator.num_unread_tokens()
    }

    /// The shortest prefill step that one of its requests asked for.
    pub(crate) fn prefill_step_size(&self) -> Option<usize> {
        self.rows.values().map(|sequence| sequence.job.request.prefill_step_size).min()
    }

    /// Queues `prompt`, which continues `caches`; `cached_tokens` are the tokens in these, where
    /// they are known.
    pub(crate) fn insert(
        &mut self,
        mut sequence: Sequence,
        cached_tokens: Vec<u32>,
        prompt: Vec<u32>,
        caches: Vec<LayerCache>,
    ) -> Result<(), EngineError> {
        let Sampling { mut sampler, processors } = sequence.sampling()?;
        let request = &sequence.job.request;
        // A sequence that is retried continues its stream of random numbers.
        sampler.skip(sequence.sampled.len());
        // Behind a prompt that was read elsewhere nothing is dropped again.
        let is_first = sequence.sampled.is_empty() || caches.iter().all(LayerCache::is_empty);
        let snapkv = request.kv_cache.snapkv.filter(|_| is_first);
        let id = self.generator.insert(BatchRequest {
            sampler,
            snapkv,
            processors,
            num_top_logprobs: request.num_top_logprobs,
            stop: sequence.eos_token_ids()?.into_iter().map(|id| vec![id]).collect(),
            caches: Some(caches),
            return_caches: request.uses_prompt_cache(),
            boundaries: if sequence.sampled.is_empty() {
                sequence.uncached_stops()
            } else {
                Vec::new()
            },
            cached_tokens,
            ..BatchRequest::new(prompt, sequence.max_tokens - sequence.sampled.len())
        })?;
        self.rows.insert(id, sequence);
        Ok(())
    }

    /// Makes the reading of a prompt stop after `num_tokens` of it.
    pub(crate) fn stop_reading_at(&mut self, stop: &watch::Receiver<bool>, num_tokens: usize) {
        let mut rows = self.rows.iter();
        let row = rows.find(|(_, row)| row.job.stop.same_channel(stop));
        if let Some((&id, sequence)) = row {
            self.generator.add_boundary(id, sequence.uncached_position(num_tokens));
        }
    }

    /// Decodes a token for every row, and returns how many there were.
    pub(crate) fn decode(&mut self, worker: &mut Worker) -> Result<usize, Box<FailedSlice>> {
        let num_rows = self.generator.num_decoding();
        let step = worker.guarded("answering", |_| Ok(self.generator.decode_step()?));
        self.process(worker, step)?;
        Ok(num_rows)
    }

    /// Reads at most `max_tokens` of the waiting prompts, and returns how many it read: none if
    /// sequences only joined those that decode.
    pub(crate) fn prefill(
        &mut self,
        worker: &mut Worker,
        max_tokens: usize,
    ) -> Result<usize, Box<FailedSlice>> {
        let num_before = self.generator.stats().prompt_tokens;
        let step =
            worker.guarded("reading a prompt", |_| Ok(self.generator.prefill_slice(max_tokens)));
        // The last token of a sequence that joins is read by its first decode step.
        let joins =
            |step: &BatchStep| step.prompts.iter().filter(|prompt| prompt.end_of_prompt).count();
        let num_joined = step.as_ref().map_or(0, joins);
        self.process(worker, step)?;
        let num_tokens = self.generator.stats().prompt_tokens - num_before;
        Ok(num_tokens.saturating_sub(num_joined))
    }

    /// Ends the sequences for which `ends` holds, and saves their caches.
    pub(crate) fn cancel(&mut self, worker: &mut Worker, ends: impl Fn(&GenerateJob) -> bool) {
        let ending: Vec<RequestId> = self
            .rows
            .iter()
            .filter(|(_, sequence)| ends(&sequence.job))
            .map(|(&id, _)| id)
            .collect();
        for id in ending {
            self.end(worker, id, FinishReason::Cancelled);
        }
    }

    fn process(
        &mut self,
        worker: &mut Worker,
        step: Result<BatchStep, EngineError>,
    ) -> Result<(), Box<FailedSlice>> {
        let step = step.map_err(|error| {
            let sequences = std::mem::take(&mut self.rows).into_values().collect();
            Box::new(FailedSlice { error, sequences })
        })?;
        for progress in step.prompts {
            let Some(sequence) = self.rows.get_mut(&progress.id) else { continue };
            sequence.prefilled(progress.processed);
            // Behind a prompt that was read elsewhere, positions are counted from another place.
            let is_first = sequence.sampled.is_empty();
            if sequence.is_awaited() {
                let row = caught("copying a beginning that is shared", || {
                    Ok(self.generator.extract_cache(progress.id)?)
                });
                if let Ok(Some(row)) = row {
                    sequence.awaited.keep(row.caches);
                }
            }
            if is_first && progress.end_of_segment && sequence.is_checkpoint(progress.processed) {
                let row =
                    caught("copying a state", || Ok(self.generator.extract_cache(progress.id)?));
                if let Ok(Some(row)) = row {
                    sequence.add_checkpoint(row.caches);
                }
            }
            if let Some(compressed) = progress.compressed
                && let Ok(Some(row)) = caught("copying what is left of a context", || {
                    Ok(self.generator.extract_cache(progress.id)?)
                })
            {
                sequence.record_compression(compressed, &row.caches);
            }
        }
        for (id, error) in step.failed {
            if let Some(sequence) = self.rows.remove(&id) {
                sequence.job.fail(error.into());
            }
        }
        for token in step.tokens {
            self.process_token(worker, token);
        }
        Ok(())
    }

    fn process_token(&mut self, worker: &mut Worker, token: BatchToken) {
        let BatchToken { id, token, logprobs, finish } = token;
        let Some(sequence) = self.rows.get_mut(&id) else { return };
        // The batch stops only at end-of-sequence tokens.
        let is_eos = finish.as_ref().is_some_and(|finish| finish.reason == FinishReason::Stop);
        let is_stopped = caught("decoding a token's text", || {
            if is_eos {
                sequence.end_of_sequence(token);
                return Ok(true);
            }
            sequence.token(token, logprobs.map(|logprobs| (logprobs.own, logprobs.top)))
        });
        match (is_stopped, finish) {
            (Err(error), finish) => {
                if finish.is_none() {
                    self.remove_row(id);
                }
                if let Some(sequence) = self.rows.remove(&id) {
                    sequence.job.fail(error);
                }
            }
            (Ok(is_stopped), Some(finish)) => {
                let reason = if is_stopped { FinishReason::Stop } else { finish.reason };
                if let Some(sequence) = self.rows.remove(&id) {
                    sequence.finish(worker, reason, finish.caches);
                }
            }
            (Ok(true), None) => self.end(worker, id, FinishReason::Stop),
            (Ok(false), None) => {}
        }
    }

    /// Ends a sequence whose row is still in the batch.
    fn end(&mut self, worker: &mut Worker, id: RequestId, reason: FinishReason) {
        let caches = self.remove_row(id);
        if let Some(sequence) = self.rows.remove(&id) {
            sequence.finish(worker, reason, caches);
        }
    }

    /// Removes a row from the batch and returns its caches.
    fn remove_row(&mut self, id: RequestId) -> Vec<LayerCache> {
        match caught("ending an answer", || Ok(self.generator.remove(id)?)) {
            Ok(row) => row.map_or(Vec::new(), |row| row.caches),
            Err(error) => {
                tracing::warn!(%error, "the caches of a stopped answer are lost");
                Vec::new()
            }
        }
    }

    /// Takes the rows that decode from the generator, as a removal does that fails.
    #[cfg(test)]
    pub(crate) fn drop_decoding(&mut self) {
        for (&id, sequence) in &self.rows {
            if !sequence.sampled.is_empty() {
                self.generator.remove(id).expect("a row");
            }
        }
    }

    /// The sequences whose rows the generator has lost, because removing another failed.
    pub(crate) fn take_lost(&mut self) -> Vec<Sequence> {
        let BatchRun { generator, rows, .. } = self;
        rows.extract_if(.., |&id, _| !generator.has(id)).map(|(_, sequence)| sequence).collect()
    }
}
