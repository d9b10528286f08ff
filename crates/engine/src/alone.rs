//! An answer that cannot share a batch, because its keys and values are quantized or a draft model proposes its tokens.

use std::ops::ControlFlow;
use std::rc::Rc;

use cairn_chat::FinishReason;
use cairn_lm::cache::LayerCache;
use cairn_lm::{
    Draft, GenerateOptions, Input, LmError, Sampled, Sampling, SpeculativeStream, TokenStream, generate_step, speculative_generate_step,
};

use crate::answer::Answer;
use crate::worker::Worker;
use crate::{EngineError, EngineState};

enum Stream {
    Plain(TokenStream),
    Speculative(SpeculativeStream),
}

impl Stream {
    fn next_token(&mut self) -> Result<Option<Sampled>, LmError> {
        match self {
            Stream::Plain(stream) => stream.next_token(),
            Stream::Speculative(stream) => stream.next_token(),
        }
    }

    fn into_caches(self) -> Result<Vec<LayerCache>, LmError> {
        match self {
            Stream::Plain(stream) => stream.into_caches(),
            Stream::Speculative(stream) => Ok(stream.into_caches()?.0),
        }
    }
}

/// Makes the answer from its first step to its last.
pub(crate) fn run(worker: &mut Worker, mut answer: Answer, mut caches: Vec<LayerCache>) -> Result<(), EngineError> {
    let loaded = Rc::clone(&answer.loaded);
    let request = answer.job.request.clone();
    let closing = worker.closing.clone();
    let options = GenerateOptions {
        max_tokens: answer.max_tokens,
        prefill_step_size: request.prefill_step_size,
        num_top_logprobs: request.num_top_logprobs,
        max_kv_size: None,
        kv_quantization: request.kv_cache.quantization,
        num_draft_tokens: request.num_draft_tokens.unwrap_or_default(),
    };
    let sampling = Sampling::new(&request.sampling, &loaded.model)?;
    let (cached_tokens, tokens) = answer.cached_and_uncached();
    let input = Input { tokens: &tokens, cached_tokens: &cached_tokens, ..Input::default() };
    let model = &loaded.model.model;
    let draft = worker.draft.clone();
    let mut on_progress = |processed: usize, _: usize| {
        answer.prefilled(processed);
        let (processed_tokens, total_tokens) = answer.progress();
        worker.publish_progress(|| EngineState::Prefilling { model: loaded.name.clone(), processed_tokens, total_tokens });
        if answer.job.is_stopped() || *closing.borrow() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let started = match request.num_draft_tokens {
        Some(_) if request.prompt_cache_file.is_some() => return Err(EngineError::DraftWithFile),
        Some(_) => {
            let draft = draft.as_ref().ok_or(LmError::NoDraftModel)?;
            let draft = Draft { model: &draft.model, caches: &mut Vec::new() };
            speculative_generate_step(model, draft, input, &mut caches, sampling, options, &mut on_progress).map(Stream::Speculative)
        }
        None => generate_step(model, input, &mut caches, sampling, options, &mut on_progress).map(Stream::Plain),
    };
    let mut stream = match started {
        Ok(stream) => stream,
        Err(LmError::Cancelled) => {
            answer.finish(worker, FinishReason::Cancelled, false, caches);
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let eos = answer.eos_token_ids()?;
    let (mut reason, mut ended_by_eos) = (FinishReason::Length, false);
    while let Some(sampled) = stream.next_token()? {
        if eos.contains(&sampled.token) {
            answer.end_of_sequence(sampled.token);
            (reason, ended_by_eos) = (FinishReason::Stop, true);
            break;
        }
        if answer.token(sampled.token, sampled.logprobs.map(|logprobs| (logprobs.own, logprobs.top)))? {
            reason = FinishReason::Stop;
            break;
        }
        if answer.job.is_stopped() || *closing.borrow() {
            reason = FinishReason::Cancelled;
            break;
        }
        let (generation_tokens, generation_tps) = (answer.sampled.len(), answer.generation_tps());
        worker.publish_progress(|| EngineState::Generating { model: loaded.name.clone(), generation_tokens, generation_tps });
    }
    let caches = stream.into_caches()?;
    answer.finish(worker, reason, ended_by_eos, caches);
    Ok(())
}
