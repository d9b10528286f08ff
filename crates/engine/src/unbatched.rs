//! A sequence that does not share a batch, because its keys and values are quantized or its tokens are
//! proposed. It owns its caches and takes turns with the batches, one step each.
//!
//! With a draft model, a [`cairn_lm::ModelKit`] generates the answer and keeps its caches for the
//! next request. Without one, the sequence continues from caches of the prompt cache.

use std::collections::BTreeSet;
use std::rc::Rc;

use cairn_chat::FinishReason;
use cairn_lm::cache::LayerCache;
use cairn_lm::{
    Acceptance, GenerateOptions, GenerateParams, KitRun, ModelKitOptions, PromptReader, Sampled,
    SpeculativeStream, TokenStream,
};

use crate::EngineError;
use crate::guard::{caught, guarded};
use crate::model_pool::Loaded;
use crate::request::Speculation;
use crate::sequence::Sequence;
use crate::worker::Worker;

/// An unbatched sequence.
pub(crate) struct UnbatchedRun {
    sequence: Sequence,
    stream: Stream,
    eos_token_ids: BTreeSet<u32>,
}

/// Where its tokens come from.
enum Stream {
    /// The prompt is being read.
    Reading(Box<PromptReader>),
    /// Tokens are being decoded.
    Decoding(Box<TokenStream>),
    /// Tokens are looked up, or predicted by the model's head, and decoded.
    Speculating(Box<SpeculativeStream>),
    /// With a draft model: reading or decoding.
    Kit(Box<KitRun>),
    /// The run has ended.
    Ended,
}

/// How a slice of an unbatched sequence ended.
pub(crate) enum RunStep {
    /// It goes on.
    Continues,
    /// The answer has ended.
    Ends(FinishReason),
}

impl UnbatchedRun {
    /// A run that continues `caches`, which contain the cached beginning of the prompt; a kit has
    /// its own.
    pub(crate) fn new(
        worker: &mut Worker,
        mut sequence: Sequence,
        caches: Vec<LayerCache>,
    ) -> Result<Self, EngineError> {
        let request = &sequence.job.request;
        let stream = match (&request.prompt_cache_file, request.speculation.draft_tokens()) {
            (None, Some(_)) => {
                let run = kit_run(worker, &sequence)?;
                sequence.found_cached(run.num_cached());
                Stream::Kit(Box::new(run))
            }
            (_, None) => {
                sequence.prefilled(0);
                Stream::Reading(Box::new(reader(&mut sequence, caches)?))
            }
            (Some(_), Some(_)) => return Err(EngineError::DraftWithFile),
        };
        let eos_token_ids = sequence.eos_token_ids()?;
        Ok(UnbatchedRun { sequence, stream, eos_token_ids })
    }

    pub(crate) fn loaded(&self) -> &Rc<Loaded> {
        &self.sequence.loaded
    }

    pub(crate) fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    pub(crate) fn sequence_mut(&mut self) -> &mut Sequence {
        &mut self.sequence
    }

    pub(crate) fn is_reading(&self) -> bool {
        match &self.stream {
            Stream::Reading(_) => true,
            Stream::Kit(run) => !run.is_read(),
            Stream::Decoding(_) | Stream::Speculating(_) | Stream::Ended => false,
        }
    }

    /// How many prompt tokens are not read yet, the last one included.
    pub(crate) fn num_unread_tokens(&self) -> usize {
        match &self.stream {
            Stream::Reading(reader) => reader.num_left() + 1,
            Stream::Kit(run) if !run.is_read() => run.num_left() + 1,
            Stream::Kit(_) | Stream::Decoding(_) | Stream::Speculating(_) | Stream::Ended => 0,
        }
    }

    /// Reads at most `max_tokens` of the prompt. After an error the run is of no further use.
    pub(crate) fn prefill(&mut self, max_tokens: usize) -> Result<RunStep, EngineError> {
        caught("reading a prompt", || self.read(max_tokens))
    }

    /// Decodes one token, or returns one of those that a draft model proposed. After an error the
    /// run is of no further use.
    pub(crate) fn decode(&mut self) -> Result<RunStep, EngineError> {
        caught("answering", || self.next_token())
    }

    /// Ends the answer and saves its caches.
    pub(crate) fn finish(self, worker: &mut Worker, reason: FinishReason) {
        let UnbatchedRun { mut sequence, stream, .. } = self;
        sequence.acceptance = acceptance(&stream);
        let caches = guarded(worker, "ending an answer", |worker| match stream {
            Stream::Reading(reader) => Ok(reader.into_caches()),
            // Waits for the step that was launched in advance.
            Stream::Decoding(stream) => Ok(stream.into_caches()?),
            Stream::Speculating(stream) => Ok(stream.into_caches()?.0),
            Stream::Kit(run) => {
                let kit = run.into_kit()?;
                if sequence.job.request.use_prompt_cache {
                    worker.keep_kit(&sequence.loaded, kit);
                }
                Ok(Vec::new())
            }
            Stream::Ended => Ok(Vec::new()),
        });
        let caches = caches.unwrap_or_else(|error| {
            tracing::warn!(%error, "the caches of an answer are lost");
            Vec::new()
        });
        sequence.finish(worker, reason, caches);
    }

    /// Whether it could share a batch: it only decodes by itself for the tokens that are proposed where
    /// that pays.
    pub(crate) fn may_share(&self) -> bool {
        let request = &self.sequence.job.request;
        let looks_up = matches!(request.speculation, Speculation::Auto);
        let decodes = matches!(self.stream, Stream::Speculating(_));
        // One that has all its tokens ends with its next step.
        let goes_on = self.sequence.sampled.len() < self.sequence.max_tokens;
        let can_begin_again = goes_on && self.sequence.all_tokens().is_some();
        looks_up && decodes && !request.is_unbatched() && can_begin_again
    }

    /// Prepares to leave for a batch, and returns whether it can do so now. Otherwise it can after some
    /// more tokens.
    pub(crate) fn drain(&mut self) -> Result<bool, EngineError> {
        match &mut self.stream {
            Stream::Speculating(stream) => Ok(stream.drain()?),
            _ => Ok(false),
        }
    }

    /// The sequence and its caches, once it is drained.
    pub(crate) fn into_drained(self) -> Result<(Sequence, Vec<LayerCache>), EngineError> {
        let UnbatchedRun { mut sequence, stream, .. } = self;
        sequence.acceptance = acceptance(&stream);
        let caches = match stream {
            Stream::Speculating(stream) => stream.into_caches()?.0,
            _ => Vec::new(),
        };
        Ok((sequence, caches))
    }

    /// Ends the answer with an error.
    pub(crate) fn fail(self, error: EngineError) {
        self.sequence.job.fail(error);
    }

    fn read(&mut self, max_tokens: usize) -> Result<RunStep, EngineError> {
        let max_tokens = max_tokens.min(self.sequence.job.request.prefill_step_size).max(1);
        match std::mem::replace(&mut self.stream, Stream::Ended) {
            Stream::Reading(mut reader) => {
                read_to_checkpoint(&mut self.sequence, &mut reader, max_tokens)?;
                self.stream = if reader.num_left() > 0 {
                    Stream::Reading(reader)
                } else {
                    if let Some(compressed) = reader.compress()? {
                        self.sequence.record_compression(compressed, reader.caches());
                    }
                    let stream = start(&self.sequence, *reader)?;
                    self.sequence.prefilled_all();
                    stream
                };
                Ok(RunStep::Continues)
            }
            Stream::Kit(mut run) => {
                run.read(max_tokens)?;
                // The draft model's progress is not reported.
                if run.num_read() > run.num_cached() {
                    self.sequence.prefilled(run.num_read() - run.num_cached());
                }
                self.stream = Stream::Kit(run);
                Ok(RunStep::Continues)
            }
            other => {
                self.stream = other;
                Ok(RunStep::Continues)
            }
        }
    }

    fn next_token(&mut self) -> Result<RunStep, EngineError> {
        let sampled = match &mut self.stream {
            Stream::Decoding(stream) => stream.next_token()?,
            Stream::Speculating(stream) => stream.next_token()?,
            Stream::Kit(run) => run.next_response()?.map(|response| Sampled {
                token: response.token,
                from_draft: response.from_draft,
                logprobs: response.logprobs,
            }),
            Stream::Reading(_) | Stream::Ended => return Ok(RunStep::Continues),
        };
        let sequence = &mut self.sequence;
        let Some(Sampled { token, logprobs, .. }) = sampled else {
            return Ok(RunStep::Ends(FinishReason::Length));
        };
        if self.eos_token_ids.contains(&token) {
            sequence.end_of_sequence(token);
            return Ok(RunStep::Ends(FinishReason::Stop));
        }
        let logprobs = logprobs
            .filter(|_| sequence.job.request.num_top_logprobs.is_some())
            .map(|logprobs| (logprobs.own, logprobs.top));
        if sequence.token(token, logprobs)? {
            return Ok(RunStep::Ends(FinishReason::Stop));
        }
        Ok(RunStep::Continues)
    }
}

fn acceptance(stream: &Stream) -> Acceptance {
    match stream {
        Stream::Speculating(stream) => stream.acceptance(),
        Stream::Kit(run) => run.acceptance(),
        Stream::Reading(_) | Stream::Decoding(_) | Stream::Ended => Acceptance::default(),
    }
}

/// Reads at most `max_tokens`, and not beyond the next checkpoint, which is taken there.
fn read_to_checkpoint(
    sequence: &mut Sequence,
    reader: &mut PromptReader,
    max_tokens: usize,
) -> Result<(), EngineError> {
    let num_read = reader.num_read();
    let next = sequence.uncached_checkpoints_at().into_iter().find(|&position| position > num_read);
    reader.read(next.map_or(max_tokens, |position| max_tokens.min(position - num_read)))?;
    if reader.num_read() > 0 {
        sequence.prefilled(reader.num_read());
    }
    if next == Some(reader.num_read()) {
        sequence.add_checkpoint(reader.caches().to_vec());
    }
    Ok(())
}

fn reader(sequence: &mut Sequence, caches: Vec<LayerCache>) -> Result<PromptReader, EngineError> {
    let sampling = sequence.sampling()?;
    let request = &sequence.job.request;
    let options = GenerateOptions {
        max_tokens: sequence.max_tokens,
        prefill_step_size: request.prefill_step_size,
        num_top_logprobs: request.num_top_logprobs,
        kv_quantization: request.kv_cache.quantization,
        snapkv: request.kv_cache.snapkv,
        ..GenerateOptions::default()
    };
    let model = &sequence.loaded.model;
    let (cached_tokens, tokens) = sequence.cached_and_uncached();
    let reader =
        PromptReader::new(&model.model, tokens, &cached_tokens, caches, sampling, options)?;
    match request.speculation.own_drafter() {
        Some(drafter) => Ok(reader.with_drafter(drafter)?),
        None => Ok(reader),
    }
}

/// Starts decoding, with proposals where the request asks for them.
fn start(sequence: &Sequence, reader: PromptReader) -> Result<Stream, EngineError> {
    if sequence.job.request.speculation.own_drafter().is_none() {
        return Ok(Stream::Decoding(Box::new(reader.start()?)));
    }
    let (cached_tokens, _) = sequence.cached_and_uncached();
    Ok(Stream::Speculating(Box::new(reader.start_speculating(&cached_tokens)?)))
}

fn kit_run(worker: &mut Worker, sequence: &Sequence) -> Result<KitRun, EngineError> {
    let request = &sequence.job.request;
    let quantization = request.kv_cache.quantization;
    let options = ModelKitOptions {
        max_kv_size: request.kv_cache.effective_max_size(),
        kv_bits: quantization.map(|quantization| quantization.bits),
        kv_group_size: quantization.map(|quantization| quantization.group_size),
        quantized_kv_start: quantization.map(|quantization| quantization.start),
        prefill_step_size: Some(request.prefill_step_size),
    };
    let params = GenerateParams {
        sampling: request.sampling.clone(),
        max_tokens: sequence.max_tokens,
        // The sequence checks stop strings itself, as it does in a batch.
        stop_strings: Vec::new(),
        eos_token_ids: Some(sequence.eos_token_ids()?),
        top_logprobs: request.num_top_logprobs.unwrap_or_default(),
        speculative_decoding: Some(request.speculation.draft_tokens().is_some()),
        num_draft_tokens: request.speculation.draft_tokens(),
    };
    // The kit leaves the pool until the answer has ended without an error: after a failure it is
    // not reused.
    let kit = worker.take_kit(&sequence.loaded, options, request.use_prompt_cache)?;
    Ok(KitRun::new(kit, sequence.prompt.tokens.clone(), &params)?)
}
