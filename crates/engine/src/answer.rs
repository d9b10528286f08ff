//! One answer on the engine's thread: prompt → longest stored prefix → prefill → tokens → text → what is to be kept.

use std::ops::ControlFlow;
use std::time::Instant;

use cairn_chat::{FinishReason, GenerationStats, Prompt, assemble};
use cairn_lm::{GenerateOptions, Input, LmError, LoadedModel, Sampling, TokenStream, check_length, generate_step, memory};
use tokio::sync::{mpsc, watch};

use crate::request::{FinishedGeneration, GenerateEvent, GenerateRequest, PromptInput, TokenLogprob};
use crate::worker::Worker;
use crate::{EngineError, EngineState};

/// Makes the answer and sends its events, `Finished` included. An error is left to the caller to send.
pub(crate) fn run(
    worker: &mut Worker,
    request: &GenerateRequest,
    events: &mpsc::UnboundedSender<GenerateEvent>,
    stop: &watch::Receiver<bool>,
    arrived: Instant,
) -> Result<(), EngineError> {
    let loaded = worker.loaded.clone().ok_or(EngineError::NoModel)?;
    Call { worker, request, events, stop, arrived, model: &loaded.model, name: &loaded.name }.answer()
}

/// The tokens of a prompt, with where cached chunks should end.
pub(crate) fn prompt_tokens(model: &LoadedModel, prompt: &PromptInput) -> Result<Prompt, EngineError> {
    let plain = |tokens: Vec<u32>| Prompt { new_from: 0, boundaries: vec![tokens.len()], tokens, text: String::new() };
    match prompt {
        PromptInput::Messages(messages) => {
            let template = model.tokenizer.chat_template().ok_or(cairn_chat::ChatError::NoTemplate)?;
            Ok(assemble(template, messages, model.tokenizer.as_ref())?)
        }
        PromptInput::Text(text) => Ok(plain(model.tokenizer.encode_prompt(text)?)),
        PromptInput::Tokens(tokens) => Ok(plain(tokens.clone())),
    }
}

struct Call<'a> {
    worker: &'a mut Worker,
    request: &'a GenerateRequest,
    events: &'a mpsc::UnboundedSender<GenerateEvent>,
    stop: &'a watch::Receiver<bool>,
    arrived: Instant,
    model: &'a LoadedModel,
    name: &'a str,
}

/// When things happened, and how much.
#[derive(Default)]
struct Progress {
    prefill_began: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    /// Sampled ids, an end-of-sequence token included.
    sampled: Vec<u32>,
    ended_by_eos: bool,
}

impl Call<'_> {
    fn answer(&mut self) -> Result<(), EngineError> {
        self.request.sampling.validate()?;
        memory::reset_peak();
        let prompt = prompt_tokens(self.model, &self.request.prompt)?;
        let total = prompt.tokens.len();
        if total == 0 {
            return Err(LmError::EmptyPrompt.into());
        }
        check_length(total, &self.model.model)?;
        let room = self.model.model.context_length() - total;
        if room == 0 {
            return Err(LmError::PromptTooLong { num_tokens: total, context_length: total }.into());
        }
        let max_tokens = self.request.max_tokens.min(room);

        let reuse = match self.request.use_prompt_cache {
            // At least one token must be run, to have something to sample from.
            true => self.worker.cache.longest_prefix(self.model, &prompt, total - 1),
            false => crate::prompt_cache::Reuse::nothing(&self.model.model),
        };
        let (cached, cache_note, mut caches) = (reuse.num_tokens, reuse.note, reuse.caches);

        let mut progress = Progress { prefill_began: Some(Instant::now()), ..Progress::default() };
        let sampling = Sampling::new(&self.request.sampling, self.model)?;
        let options = GenerateOptions {
            max_tokens,
            prefill_step_size: self.request.prefill_step_size,
            num_top_logprobs: self.request.num_top_logprobs,
            ..GenerateOptions::default()
        };
        let model = self.model;
        let mut on_progress = |processed: usize, _: usize| self.prefill_progress(cached + processed, total, cached);
        let (cached_tokens, tokens) = prompt.tokens.split_at(cached);
        let input = Input { tokens, cached_tokens, ..Input::default() };
        let started = generate_step(&model.model, input, &mut caches, sampling, options, &mut on_progress);
        let (mut finish_reason, text) = match started {
            Ok(mut stream) => {
                let outcome = self.decode(&mut stream, &mut progress);
                caches = stream.into_caches()?;
                outcome?
            }
            Err(LmError::Cancelled) => (FinishReason::Cancelled, String::new()),
            Err(error) => return Err(error.into()),
        };
        if progress.ended_by_eos {
            finish_reason = FinishReason::Stop;
        }
        let stats = self.stats(&progress, finish_reason, total, cached, cache_note);
        let finished = FinishedGeneration {
            text,
            new_prompt_ids: prompt.tokens[prompt.new_from..].to_vec(),
            token_ids: progress.sampled.clone(),
            stats,
        };
        // The answer is given first; filing its cache must not make anyone wait.
        let _ = self.events.send(GenerateEvent::Finished(Box::new(finished)));
        self.worker.publish(EngineState::Ready { model: self.name.to_owned() });
        if self.request.use_prompt_cache {
            let mut tokens = prompt.tokens;
            tokens.extend(&progress.sampled);
            self.worker.cache.keep(&self.model.fingerprint, tokens, &prompt.boundaries, caches);
        }
        Ok(())
    }

    /// Samples until an end-of-sequence token, the limit or a stop; returns why and the text that was held back.
    fn decode(&mut self, stream: &mut TokenStream, progress: &mut Progress) -> Result<(FinishReason, String), EngineError> {
        let mut detokenizer = self.model.tokenizer.stream();
        let mut reason = FinishReason::Length;
        while let Some(step) = stream.next_token()? {
            let now = Instant::now();
            progress.first_token.get_or_insert(now);
            progress.last_token = Some(now);
            progress.sampled.push(step.token);
            if !self.request.ignore_eos && self.model.eos_token_ids.contains(&step.token) {
                progress.ended_by_eos = true;
                break;
            }
            let text = detokenizer.push(step.token)?;
            let logprob = step.logprobs.map(|logprobs| TokenLogprob { token: step.token, logprob: logprobs.own, top: logprobs.top });
            let _ = self.events.send(GenerateEvent::Delta { text, token: step.token, logprob });
            if self.is_stopped() {
                reason = FinishReason::Cancelled;
                break;
            }
            let (generation_tokens, generation_tps, model) = (progress.sampled.len(), generation_tps(progress), self.name);
            self.worker.publish_progress(|| EngineState::Generating { model: model.to_owned(), generation_tokens, generation_tps });
        }
        Ok((reason, detokenizer.finish()?))
    }

    fn prefill_progress(&mut self, processed: usize, total: usize, cached: usize) -> ControlFlow<()> {
        let _ = self.events.send(GenerateEvent::Prefill { processed, total, cached });
        let model = self.name;
        self.worker.publish_progress(|| EngineState::Prefilling {
            model: model.to_owned(),
            processed_tokens: processed,
            total_tokens: total,
        });
        if self.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn is_stopped(&self) -> bool {
        self.events.is_closed() || *self.stop.borrow() || *self.worker.closing.borrow()
    }

    fn stats(
        &self,
        progress: &Progress,
        finish_reason: FinishReason,
        num_prompt_tokens: usize,
        num_cached_tokens: usize,
        cache_note: Option<String>,
    ) -> GenerationStats {
        // Without a token, as after a stop while the prompt was read, there is no time to tell.
        let since = |start: Option<Instant>| match (start, progress.first_token) {
            (Some(start), Some(first_token)) => (first_token - start).as_secs_f64(),
            _ => 0.0,
        };
        GenerationStats {
            model: self.name.to_owned(),
            finish_reason,
            num_prompt_tokens,
            num_cached_tokens,
            cache_note,
            num_generation_tokens: progress.sampled.len() - usize::from(progress.ended_by_eos),
            prompt_tps: rate(num_prompt_tokens - num_cached_tokens, since(progress.prefill_began)),
            generation_tps: generation_tps(progress),
            time_to_first_token_ms: since(Some(self.arrived)) * 1e3,
            mlx_active_bytes: memory::active_bytes(),
            mlx_peak_bytes: memory::peak_bytes(),
            process_bytes: 0,
            process_peak_bytes: 0,
        }
    }
}

/// Sampled tokens a second, counted from the first: the time before that belongs to the prompt.
fn generation_tps(progress: &Progress) -> f64 {
    let (Some(first_token), Some(last_token)) = (progress.first_token, progress.last_token) else { return 0.0 };
    rate(progress.sampled.len() - 1, (last_token - first_token).as_secs_f64())
}

fn rate(count: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}
