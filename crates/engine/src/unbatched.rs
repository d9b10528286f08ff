//! Runs a request that cannot share a batch, because its keys and values are quantized or a draft
//! model proposes its tokens.
//!
//! With a draft model, a [`cairn_lm::ModelKit`] generates the answer and keeps its caches for the
//! next request. Without one, the request continues from caches of the prompt cache.

use std::ops::ControlFlow;
use std::rc::Rc;

use cairn_chat::FinishReason;
use cairn_lm::cache::LayerCache;
use cairn_lm::{
    GenerateOptions, GenerateParams, GenerationResponse, Input, LmError, ModelKitOptions,
    PromptProgress, Sampler, Sampling, Stops, StreamRequest, generate_step, stream_generate,
};

use crate::sequence::Sequence;
use crate::worker::Worker;
use crate::{EngineError, EngineState};

/// Runs the request from start to end. `caches` contain the cached beginning of the prompt; a kit
/// has its own.
pub(crate) fn run(
    worker: &mut Worker,
    mut sequence: Sequence,
    caches: Vec<LayerCache>,
) -> Result<(), EngineError> {
    let request = &sequence.job.request;
    let (reason, caches) = match (&request.prompt_cache_file, request.num_draft_tokens) {
        (None, Some(_)) => (with_kit(worker, &mut sequence)?, Vec::new()),
        (_, None) => with_caches(worker, &mut sequence, caches)?,
        (Some(_), Some(_)) => return Err(EngineError::DraftWithFile),
    };
    sequence.finish(worker, reason, caches);
    Ok(())
}

fn with_kit(worker: &mut Worker, sequence: &mut Sequence) -> Result<FinishReason, EngineError> {
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
        speculative_decoding: Some(request.num_draft_tokens.is_some()),
        num_draft_tokens: request.num_draft_tokens,
    };
    let keeps_kit = request.use_prompt_cache;
    let prompt = sequence.prompt.tokens.clone();
    // The kit leaves the worker until the answer has ended without an error: after a failure it is
    // not reused.
    let mut kit = worker.take_kit(&sequence.loaded, options, keeps_kit)?;
    let mut on_progress = |progress| {
        match progress {
            PromptProgress::Begin { is_draft: false, cached_tokens, .. } => {
                sequence.found_cached(cached_tokens)
            }
            PromptProgress::Update { is_draft: false, prefill_tokens_processed } => {
                sequence.prefilled(prefill_tokens_processed)
            }
            // The draft model's progress is not reported.
            _ => {}
        }
        after_chunk(worker, sequence)
    };
    let mut stream = kit.generate(&prompt, &params, &mut on_progress)?;
    let reason = decode(worker, sequence, || stream.next_response())?;
    drop(stream);
    if keeps_kit {
        worker.kit = Some(kit);
    }
    Ok(reason)
}

/// Continues from `caches`, and returns them with the answer's tokens added.
fn with_caches(
    worker: &mut Worker,
    sequence: &mut Sequence,
    mut caches: Vec<LayerCache>,
) -> Result<(FinishReason, Vec<LayerCache>), EngineError> {
    let loaded = Rc::clone(&sequence.loaded);
    let request = &sequence.job.request;
    let options = GenerateOptions {
        max_tokens: sequence.max_tokens,
        prefill_step_size: request.prefill_step_size,
        num_top_logprobs: request.num_top_logprobs,
        kv_quantization: request.kv_cache.quantization,
        ..GenerateOptions::default()
    };
    let sampling = Sampling::new(&request.sampling, &loaded.model)?;
    let stops = Stops { eos_token_ids: sequence.eos_token_ids()?, ..Stops::default() };
    let (mut cached_tokens, tokens) = sequence.cached_and_uncached();
    sequence.prefilled(0);
    let num_read = match prefill_to_checkpoints(worker, sequence, &mut caches, &tokens, &options) {
        Err(LmError::Cancelled) => return Ok((FinishReason::Cancelled, caches)),
        read => read?,
    };
    let (read, tokens) = tokens.split_at(num_read);
    cached_tokens.extend(read);
    let mut on_progress = |processed, _| {
        if processed > 0 {
            sequence.prefilled(num_read + processed);
        }
        after_chunk(worker, sequence)
    };
    let started = stream_generate(
        &loaded.model,
        StreamRequest {
            input: Input { tokens, cached_tokens: &cached_tokens, embeddings: None },
            sampling,
            stops,
            options,
            caches: Some(&mut caches),
            draft: None,
            on_progress: Some(&mut on_progress),
        },
    );
    let mut stream = match started {
        Err(LmError::Cancelled) => return Ok((FinishReason::Cancelled, caches)),
        started => started?,
    };
    let reason = decode(worker, sequence, || stream.next().transpose())?;
    // Waits for the step that was launched in advance.
    let (caches, _) = stream.into_caches()?;
    Ok((reason, caches))
}

/// Prefills up to each checkpoint position and takes the checkpoint. Returns how many of `tokens`
/// were prefilled.
fn prefill_to_checkpoints(
    worker: &mut Worker,
    sequence: &mut Sequence,
    caches: &mut Vec<LayerCache>,
    tokens: &[u32],
    options: &GenerateOptions,
) -> Result<usize, LmError> {
    let loaded = Rc::clone(&sequence.loaded);
    let mut num_read = 0;
    for position in sequence.uncached_checkpoints_at() {
        let options = GenerateOptions { max_tokens: 0, num_top_logprobs: None, ..options.clone() };
        let mut on_progress = |processed, _| {
            if processed > 0 {
                sequence.prefilled(num_read + processed);
            }
            after_chunk(worker, sequence)
        };
        let stream = generate_step(
            &loaded.model.model,
            &tokens[num_read..position],
            caches,
            Sampler::Greedy,
            options,
            &mut on_progress,
        )?;
        *caches = stream.into_caches()?;
        num_read = position;
        sequence.add_checkpoint(caches.clone());
    }
    Ok(num_read)
}

/// Publishes the progress of prefill, and breaks if the request was cancelled.
fn after_chunk(worker: &mut Worker, sequence: &Sequence) -> ControlFlow<()> {
    let (processed_tokens, total_tokens) = sequence.progress();
    worker.publish_progress(|| EngineState::Prefilling {
        model: sequence.loaded.name.clone(),
        processed_tokens,
        total_tokens,
    });
    if is_cancelled(worker, sequence) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Decodes token by token until the answer ends, and returns why it did. A prompt that was
/// cancelled has no tokens.
fn decode(
    worker: &mut Worker,
    sequence: &mut Sequence,
    mut next: impl FnMut() -> Result<Option<GenerationResponse>, LmError>,
) -> Result<FinishReason, EngineError> {
    let has_logprobs = sequence.job.request.num_top_logprobs.is_some();
    while !is_cancelled(worker, sequence) {
        let Some(response) = next()? else { return Ok(FinishReason::Length) };
        sequence.prefilled_all();
        if response.finish_reason == Some(FinishReason::Stop) {
            sequence.end_of_sequence(response.token);
            return Ok(FinishReason::Stop);
        }
        let logprobs =
            response.logprobs.filter(|_| has_logprobs).map(|logprobs| (logprobs.own, logprobs.top));
        if sequence.token(response.token, logprobs)? {
            return Ok(FinishReason::Stop);
        }
        let (generation_tokens, generation_tps) =
            (sequence.sampled.len(), sequence.generation_tps());
        worker.publish_progress(|| EngineState::Generating {
            model: sequence.loaded.name.clone(),
            generation_tokens,
            generation_tps,
        });
    }
    Ok(FinishReason::Cancelled)
}

fn is_cancelled(worker: &Worker, sequence: &Sequence) -> bool {
    sequence.job.is_stopped() || *worker.closing.borrow()
}
