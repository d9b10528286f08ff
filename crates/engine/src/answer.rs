//! One answer under way: its prompt, the text of its tokens, when it ends, and its figures. What computes the tokens stands above.

use std::rc::Rc;
use std::time::Instant;

use cairn_chat::{ChatError, Encode, FinishReason, GenerationStats, Prompt, StopStrings, assemble};
use cairn_lm::cache::LayerCache;
use cairn_lm::{Detokenizer, LmError, LoadedModel, Sampled, check_length, memory};
use tokio::sync::{mpsc, watch};

use crate::EngineError;
use crate::prompt_cache::Reuse;
use crate::request::{FinishedGeneration, GenerateEvent, GenerateRequest, PromptInput, TokenLogprob};
use crate::worker::{Loaded, Worker};

/// A request for an answer, with the way back to whoever asked.
#[derive(Debug)]
pub(crate) struct GenerateJob {
    pub(crate) request: Box<GenerateRequest>,
    pub(crate) events: mpsc::UnboundedSender<GenerateEvent>,
    pub(crate) stop: watch::Receiver<bool>,
    pub(crate) arrived: Instant,
}

impl GenerateJob {
    /// Whether nobody waits for the answer any more, or asked it to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.events.is_closed() || *self.stop.borrow()
    }

    pub(crate) fn fail(&self, error: EngineError) {
        let _ = self.events.send(GenerateEvent::Failed(error));
    }
}

/// The tokens of a prompt, with where cached chunks should end.
pub(crate) fn prompt_tokens(model: &LoadedModel, prompt: &PromptInput) -> Result<Prompt, EngineError> {
    let plain = |tokens: Vec<u32>| Prompt { new_from: 0, boundaries: vec![tokens.len()], tokens, text: String::new() };
    let tokenizer = model.tokenizer.as_ref();
    let template = || tokenizer.chat_template().ok_or(ChatError::NoTemplate);
    match prompt {
        PromptInput::Messages(messages) => Ok(assemble(template()?, messages, tokenizer)?),
        // Templates write the beginning-of-sequence token themselves.
        PromptInput::OpenTurn(messages) => Ok(plain(tokenizer.encode(&template()?.render_open(messages)?, false)?)),
        PromptInput::Continuation(messages) => Ok(plain(tokenizer.encode(&template()?.render_continuation(messages)?, false)?)),
        PromptInput::Text(text) => Ok(plain(tokenizer.encode_prompt(text)?)),
        PromptInput::MoreText(text) => Ok(plain(tokenizer.encode(text, false)?)),
        PromptInput::Tokens(tokens) => Ok(plain(tokens.clone())),
    }
}

/// An answer that is being made.
pub(crate) struct Answer {
    pub(crate) job: GenerateJob,
    pub(crate) loaded: Rc<Loaded>,
    pub(crate) prompt: Prompt,
    /// The longest that this answer may become: what was asked for, or what the context leaves.
    pub(crate) max_tokens: usize,
    /// Sampled ids, an end-of-sequence token included.
    pub(crate) sampled: Vec<u32>,
    num_cached: usize,
    num_read: usize,
    cache_note: Option<String>,
    detokenizer: Detokenizer,
    stop_strings: StopStrings,
    stop_string: Option<String>,
    began: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Answer {
    /// Checks the request and finds what earlier work can be reused: the caches hold a beginning of the prompt, never all of it.
    pub(crate) fn begin(worker: &mut Worker, job: GenerateJob) -> Result<(Self, Vec<LayerCache>), EngineError> {
        let began = Instant::now();
        let request = &job.request;
        let loaded = worker.loaded.clone().ok_or(EngineError::NoModel)?;
        request.sampling.validate()?;
        let stop_strings = StopStrings::new(request.stop.clone())?;
        let prompt = prompt_tokens(&loaded.model, &request.prompt)?;
        let total = prompt.tokens.len();
        if total == 0 {
            return Err(LmError::EmptyPrompt.into());
        }
        let model = &loaded.model.model;
        check_length(total, model)?;
        let room = model.context_length() - total;
        if room == 0 {
            return Err(LmError::PromptTooLong { num_tokens: total, context_length: total }.into());
        }
        let reuse = match request.use_prompt_cache {
            // At least one token must be run, to have something to sample from.
            true => worker.cache.longest_prefix(&loaded.model, &prompt, total - 1),
            false => Reuse::nothing(model),
        };
        let answer = Answer {
            max_tokens: request.max_tokens.min(room),
            detokenizer: loaded.model.tokenizer.stream(),
            num_cached: reuse.num_tokens,
            num_read: reuse.num_tokens,
            cache_note: reuse.note,
            sampled: Vec::new(),
            stop_string: None,
            first_token: None,
            last_token: None,
            job,
            loaded,
            prompt,
            stop_strings,
            began,
        };
        Ok((answer, reuse.caches))
    }

    /// Prompt tokens that no cache held.
    pub(crate) fn uncached_prompt(&self) -> &[u32] {
        &self.prompt.tokens[self.num_cached..]
    }

    /// Tells that `processed` tokens of what was not cached have been read. An answer that begins anew after a failure has told it.
    pub(crate) fn prefilled(&mut self, processed: usize) {
        let num_read = (self.num_cached + processed).min(self.prompt.tokens.len());
        if processed > 0 && num_read <= self.num_read {
            return;
        }
        self.num_read = num_read;
        let (processed, total) = self.progress();
        let _ = self.job.events.send(GenerateEvent::Prefill { processed, total, cached: self.num_cached });
    }

    /// Prompt tokens read, cached ones included, and the length of the prompt.
    pub(crate) fn progress(&self) -> (usize, usize) {
        (self.num_read, self.prompt.tokens.len())
    }

    /// Takes a sampled token that is part of the answer, and tells its text. Returns true when a stop string ended the answer.
    pub(crate) fn token(&mut self, sampled: Sampled) -> Result<bool, EngineError> {
        self.count(sampled.token);
        let text = self.detokenizer.push(sampled.token)?;
        let step = self.stop_strings.push(&text);
        let logprob = sampled.logprobs.map(|(logprob, top)| TokenLogprob { token: sampled.token, logprob, top });
        let _ = self.job.events.send(GenerateEvent::Delta { text: step.text, token: sampled.token, logprob });
        self.stop_string = step.stopped;
        Ok(self.stop_string.is_some())
    }

    /// Takes the end-of-sequence token that ended the answer: it is sampled, but no part of it.
    pub(crate) fn end_of_sequence(&mut self, token: u32) {
        self.count(token);
    }

    fn count(&mut self, token: u32) {
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.sampled.push(token);
    }

    /// Tells the end of the answer and keeps what was computed for it: `caches` hold a beginning of prompt and answer.
    pub(crate) fn finish(mut self, worker: &mut Worker, reason: FinishReason, ended_by_eos: bool, caches: Vec<LayerCache>) {
        let stats = self.stats(reason, ended_by_eos);
        // Nothing follows a stop string; else what was held back is text after all.
        let text = match self.stop_string {
            Some(_) => Ok(String::new()),
            None => self.detokenizer.finish().map(|rest| self.stop_strings.push(&rest).text + &self.stop_strings.finish()),
        };
        let text = match text {
            Ok(text) => text,
            Err(error) => {
                let _ = self.job.events.send(GenerateEvent::Failed(error.into()));
                return;
            }
        };
        let finished = FinishedGeneration {
            text,
            stop_string: self.stop_string,
            new_prompt_ids: self.prompt.tokens[self.prompt.new_from..].to_vec(),
            token_ids: self.sampled.clone(),
            stats,
        };
        // The answer is given first; filing its cache must not make anyone wait.
        let _ = self.job.events.send(GenerateEvent::Finished(Box::new(finished)));
        if self.job.request.use_prompt_cache {
            let mut tokens = self.prompt.tokens;
            tokens.extend(&self.sampled);
            worker.cache.keep(&self.loaded.model.fingerprint, tokens, &self.prompt.boundaries, caches);
        }
    }

    fn stats(&self, finish_reason: FinishReason, ended_by_eos: bool) -> GenerationStats {
        // Without a token, as after a stop while the prompt was read, there is no time to tell.
        let until_first = |start: Instant| self.first_token.map_or(0.0, |first_token| (first_token - start).as_secs_f64());
        let num_prompt_tokens = self.prompt.tokens.len();
        GenerationStats {
            model: self.loaded.name.clone(),
            finish_reason,
            num_prompt_tokens,
            num_cached_tokens: self.num_cached,
            cache_note: self.cache_note.clone(),
            num_generation_tokens: self.sampled.len() - usize::from(ended_by_eos),
            queue_ms: (self.began - self.job.arrived).as_secs_f64() * 1e3,
            prompt_tps: rate(num_prompt_tokens - self.num_cached, until_first(self.began)),
            generation_tps: self.generation_tps(),
            time_to_first_token_ms: until_first(self.job.arrived) * 1e3,
            mlx_active_bytes: memory::active_bytes(),
            mlx_peak_bytes: memory::peak_bytes(),
            process_bytes: 0,
            process_peak_bytes: 0,
        }
    }

    /// Sampled tokens a second, counted from the first: the time before that belongs to the prompt.
    pub(crate) fn generation_tps(&self) -> f64 {
        let (Some(first_token), Some(last_token)) = (self.first_token, self.last_token) else { return 0.0 };
        rate(self.sampled.len() - 1, (last_token - first_token).as_secs_f64())
    }
}

fn rate(count: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}
