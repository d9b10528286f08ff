//! Schedules the running requests. Each is a row of one batch, which rows join and leave between
//! steps. A request that cannot share a batch runs from start to end while there is no batch.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};

use cairn_chat::FinishReason;
use cairn_lm::batch::{
    BatchGenerator, BatchOptions, BatchRequest, BatchStep, BatchToken, RequestId,
};
use cairn_lm::cache::LayerCache;
use cairn_lm::{Sampling, ffi, memory};

use crate::request::GenerateEvent;
use crate::sequence::{GenerateJob, Sequence};
use crate::unbatched;
use crate::worker::Worker;
use crate::{EngineError, EngineState};

/// The running sequences and the batch that computes them. Owned by the engine's thread.
pub(crate) struct Scheduler {
    options: BatchOptions,
    /// Created for the first sequence and dropped after the last: an idle engine holds only its
    /// model.
    batch: Option<BatchGenerator>,
    rows: BTreeMap<RequestId, Sequence>,
    /// The sequences of a step that failed as a whole. They are retried one at a time, so that only
    /// the one at fault fails.
    retry_queue: VecDeque<Sequence>,
}

impl Scheduler {
    pub(crate) fn new(options: BatchOptions) -> Self {
        Scheduler { options, batch: None, rows: BTreeMap::new(), retry_queue: VecDeque::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.retry_queue.is_empty()
    }

    /// Whether another sequence may join the running ones.
    pub(crate) fn has_room(&self) -> bool {
        self.retry_queue.is_empty() && self.rows.len() < self.options.completion_batch_size
    }

    /// Starts a request. If the request is invalid, its events report the failure.
    pub(crate) fn begin(&mut self, worker: &mut Worker, job: GenerateJob) {
        // MLX has one peak counter for the whole process; each sequence records the peak of its own
        // time.
        for sequence in self.rows.values_mut().chain(&mut self.retry_queue) {
            sequence.note_peak_memory();
        }
        memory::reset_peak();
        let events = job.events.clone();
        let begun = guarded(worker, "starting an answer", |worker| {
            let (mut sequence, caches) = Sequence::begin(worker, job)?;
            // An imported file may be quantized although the request does not ask for it.
            let is_quantized = caches.iter().any(|cache| matches!(cache, LayerCache::Quantized(_)));
            if sequence.max_tokens > 0 && (is_quantized || sequence.job.request.is_unbatched()) {
                return unbatched::run(worker, sequence, caches);
            }
            sequence.prefilled(0);
            if sequence.max_tokens == 0 {
                sequence.finish(worker, FinishReason::Length, caches);
                return Ok(());
            }
            let (cached, remaining) = sequence.cached_and_uncached();
            self.insert(sequence, cached, remaining, caches)
        });
        if let Err(error) = begun {
            let _ = events.send(GenerateEvent::Failed(error));
        }
        self.free_if_idle(worker);
    }

    /// Runs one step for all sequences: a token for each that is decoding, and a chunk of the
    /// prompts that are being prefilled.
    pub(crate) fn step(&mut self, worker: &mut Worker) {
        if self.is_empty() {
            return;
        }
        self.remove_stopped(worker, GenerateJob::is_stopped);
        if self.rows.is_empty() {
            self.retry_next(worker);
        }
        if !self.rows.is_empty() {
            self.step_batch(worker);
        }
        self.free_if_idle(worker);
    }

    fn step_batch(&mut self, worker: &mut Worker) {
        let Some(batch) = self.batch.as_mut().filter(|batch| batch.has_work()) else {
            // Removing a row has failed and taken the other rows with it.
            return self.isolate(worker, None);
        };
        match guarded(worker, "answering", |_| Ok(batch.next()?)) {
            Ok(step) => self.process(worker, step),
            Err(error) => self.isolate(worker, Some(error)),
        }
    }

    /// Cancels every sequence.
    pub(crate) fn cancel_all(&mut self, worker: &mut Worker) {
        self.remove_stopped(worker, |_| true);
    }

    /// Queues `prompt`, which continues `caches`; `cached_tokens` are the tokens in these, where
    /// they are known.
    fn insert(
        &mut self,
        sequence: Sequence,
        cached_tokens: Vec<u32>,
        prompt: Vec<u32>,
        caches: Vec<LayerCache>,
    ) -> Result<(), EngineError> {
        let loaded = &sequence.loaded.model;
        let request = &sequence.job.request;
        let batch = self.batch.get_or_insert_with(|| {
            let options = BatchOptions {
                prefill_step_size: request.prefill_step_size,
                ..self.options.clone()
            };
            BatchGenerator::new(loaded.model.clone(), options)
        });
        let Sampling { mut sampler, processors } = Sampling::new(&request.sampling, loaded)?;
        // A sequence that is retried continues its stream of random numbers.
        sampler.skip(sequence.sampled.len());
        let id = batch.insert(BatchRequest {
            sampler,
            processors,
            num_top_logprobs: request.num_top_logprobs,
            stop: sequence.eos_token_ids()?.into_iter().map(|id| vec![id]).collect(),
            caches: Some(caches),
            return_caches: request.uses_prompt_cache(),
            boundaries: if sequence.sampled.is_empty() {
                sequence.uncached_checkpoints_at()
            } else {
                Vec::new()
            },
            cached_tokens,
            ..BatchRequest::new(prompt, sequence.max_tokens - sequence.sampled.len())
        })?;
        self.rows.insert(id, sequence);
        Ok(())
    }

    fn process(&mut self, worker: &mut Worker, step: BatchStep) {
        for progress in step.prompts {
            let Some(sequence) = self.rows.get_mut(&progress.id) else { continue };
            sequence.prefilled(progress.processed);
            if progress.end_of_segment
                && sequence.is_checkpoint(progress.processed)
                && let Some(Ok(Some(row))) =
                    self.batch.as_ref().map(|batch| batch.extract_cache(progress.id))
            {
                sequence.add_checkpoint(row.caches);
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
        self.publish(worker);
    }

    fn process_token(&mut self, worker: &mut Worker, token: BatchToken) {
        let Some(sequence) = self.rows.get_mut(&token.id) else { return };
        // The batch stops only at end-of-sequence tokens.
        let is_eos =
            token.finish.as_ref().is_some_and(|finish| finish.reason == FinishReason::Stop);
        let is_stopped = match is_eos {
            true => {
                sequence.end_of_sequence(token.token);
                Ok(true)
            }
            false => {
                let logprobs = token.logprobs.map(|logprobs| (logprobs.own, logprobs.top));
                sequence.token(token.token, logprobs)
            }
        };
        match (is_stopped, token.finish) {
            (Err(error), _) => {
                self.remove_row(token.id);
                if let Some(sequence) = self.rows.remove(&token.id) {
                    sequence.job.fail(error);
                }
            }
            (Ok(is_stopped), Some(finish)) => {
                let reason = if is_stopped { FinishReason::Stop } else { finish.reason };
                if let Some(sequence) = self.rows.remove(&token.id) {
                    sequence.finish(worker, reason, finish.caches);
                }
            }
            (Ok(true), None) => self.end(worker, token.id, FinishReason::Stop),
            (Ok(false), None) => {}
        }
    }

    /// Ends the sequences that were cancelled, and saves their caches.
    fn remove_stopped(&mut self, worker: &mut Worker, is_stopped: impl Fn(&GenerateJob) -> bool) {
        let stopped: Vec<RequestId> = self
            .rows
            .iter()
            .filter(|(_, sequence)| is_stopped(&sequence.job))
            .map(|(&id, _)| id)
            .collect();
        for id in stopped {
            self.end(worker, id, FinishReason::Cancelled);
        }
        let (stopped, others): (VecDeque<_>, _) =
            self.retry_queue.drain(..).partition(|sequence| is_stopped(&sequence.job));
        self.retry_queue = others;
        for sequence in stopped {
            sequence.finish(worker, FinishReason::Cancelled, Vec::new());
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
        let removed = self.batch.as_mut().map(|batch| batch.remove(id));
        match removed {
            Some(Ok(Some(row))) => row.caches,
            Some(Err(error)) => {
                tracing::warn!(%error, "the caches of a stopped answer are lost");
                Vec::new()
            }
            Some(Ok(None)) | None => Vec::new(),
        }
    }

    /// Handles a step that failed as a whole: a lone sequence is at fault; several are retried one
    /// by one, from their tokens.
    fn isolate(&mut self, worker: &mut Worker, error: Option<EngineError>) {
        self.batch = None;
        worker.forget_conversations();
        let _ = ffi::synchronize();
        let mut sequences: VecDeque<Sequence> =
            std::mem::take(&mut self.rows).into_values().collect();
        match error {
            Some(error) if sequences.len() == 1 => {
                if let Some(sequence) = sequences.pop_front() {
                    sequence.job.fail(error);
                }
            }
            _ => self.retry_queue.append(&mut sequences),
        }
    }

    /// Makes the first sequence of the retry queue that can continue the only row.
    fn retry_next(&mut self, worker: &mut Worker) {
        while let Some(sequence) = self.retry_queue.pop_front() {
            let events = sequence.job.events.clone();
            let Some(prompt) = sequence.all_tokens() else {
                // The tokens in its file are unknown and were lost with the caches.
                sequence.job.fail(EngineError::Interrupted);
                continue;
            };
            let inserted = guarded(worker, "answering", |_| {
                let caches = sequence.new_caches()?;
                self.insert(sequence, Vec::new(), prompt, caches)
            });
            match inserted {
                Ok(()) => return,
                Err(error) => drop(events.send(GenerateEvent::Failed(error))),
            }
        }
    }

    fn publish(&self, worker: &mut Worker) {
        let Some(sequence) = self.rows.values().next() else { return };
        let model = &sequence.loaded.name;
        let decoding = self.rows.values().filter(|sequence| !sequence.sampled.is_empty());
        let (generation_tokens, generation_tps) =
            decoding.fold((0, 0.0), |(tokens, tps), sequence| {
                (tokens + sequence.sampled.len(), tps + sequence.generation_tps())
            });
        worker.publish_progress(|| match generation_tokens {
            0 => {
                let (processed_tokens, total_tokens) = sequence.progress();
                EngineState::Prefilling { model: model.clone(), processed_tokens, total_tokens }
            }
            _ => {
                EngineState::Generating { model: model.clone(), generation_tokens, generation_tps }
            }
        });
    }

    /// Frees the batch when the last sequence has ended.
    fn free_if_idle(&mut self, worker: &mut Worker) {
        if self.is_empty() {
            self.batch = None;
            memory::clear_cache();
            worker.publish_idle();
        }
    }
}

/// Runs a part of a job and turns a panic into an error.
pub(crate) fn guarded<T>(
    worker: &mut Worker,
    during: &'static str,
    job: impl FnOnce(&mut Worker) -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    // Unwinding leaves no half-changed state that matters: caches in use are dropped with the
    // batch, and the model is only read.
    catch_unwind(AssertUnwindSafe(|| job(worker))).unwrap_or_else(|panic| {
        worker.forget_conversations();
        let _ = ffi::synchronize();
        Err(EngineError::Panicked { during, message: panic_message(panic.as_ref()) })
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}
