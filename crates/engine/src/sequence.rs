//! One answer under way: its prompt, the text of its tokens, when it ends, and its figures. Its
//! tokens come from `answers` or `unbatched`.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Instant;

use cairn_chat::{FinishReason, GenerationStats, Prompt, Role};
use cairn_lm::cache::chunk_state::Checkpoint;
use cairn_lm::cache::{LayerCache, QuantizedKvCache, make_prompt_cache};
use cairn_lm::{AnswerStep, AnswerText, LmError, Stops, check_prefill_step_size, memory};
use tokio::sync::{mpsc, watch};

use crate::EngineError;
use crate::prompt::prompt_tokens;
use crate::prompt_cache::{Computed, Query, Reuse};
use crate::prompt_file::{self, Beginning};
use crate::records::ChunkKind;
use crate::request::{FinishedGeneration, GenerateEvent, GenerateRequest, TokenLogprob};
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

/// An answer that is being made.
pub(crate) struct Sequence {
    pub(crate) job: GenerateJob,
    pub(crate) loaded: Rc<Loaded>,
    pub(crate) prompt: Prompt,
    /// Tokens that a prompt-cache file holds; they stand before the prompt.
    num_in_file: usize,
    /// Those tokens, where the file names them.
    tokens_in_file: Vec<u32>,
    /// The longest that this answer may become: what was asked for, or what the context leaves.
    pub(crate) max_tokens: usize,
    /// Sampled ids, an end-of-sequence token included.
    pub(crate) sampled: Vec<u32>,
    ended_by_eos: bool,
    num_cached: usize,
    num_read: usize,
    cache_note: Option<String>,
    /// Where the caches have to be caught on the way, in tokens of the prompt.
    checkpoints_at: Vec<usize>,
    checkpoints: Vec<Checkpoint>,
    text: AnswerText,
    stop_string: Option<String>,
    began: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    /// The most MLX memory in use while this answer was made, up to the last reset of the counter.
    peak_memory_bytes: u64,
}

impl Sequence {
    /// Checks the request and finds what earlier work can be reused: the caches hold a beginning of
    /// the prompt, never all of it.
    pub(crate) fn begin(
        worker: &mut Worker,
        job: GenerateJob,
    ) -> Result<(Self, Vec<LayerCache>), EngineError> {
        let began = Instant::now();
        let request = &job.request;
        let loaded = worker.loaded.clone().ok_or(EngineError::NoModel)?;
        request.sampling.validate()?;
        check_prefill_step_size(request.prefill_step_size)?;
        if let Some(quantization) = request.kv_cache.quantization {
            QuantizedKvCache::new(quantization.group_size, quantization.bits)?;
        }
        let stops = Stops { strings: request.stop.clone(), ..Stops::default() };
        let text = AnswerText::new(&loaded.model.tokenizer, stops)?;
        let prompt = prompt_tokens(&loaded.model, &request.prompt, &request.template_variables)?;
        let opaque = request.prompt.opaque_prefix();
        if opaque.is_some() && request.num_draft_tokens.is_some() {
            return Err(EngineError::DraftWithFile);
        }
        if prompt.tokens.is_empty() {
            return Err(LmError::EmptyPrompt.into());
        }
        let model = &loaded.model.model;
        let file = match &request.prompt_cache_file {
            Some(path) => Some(prompt_file::load(path, &loaded)?),
            None => None,
        };
        let total = file.as_ref().map_or(0, |file| file.num_tokens) + prompt.tokens.len();
        let context_length = model.context_length();
        if total >= context_length {
            return Err(LmError::PromptTooLong { num_tokens: total, context_length }.into());
        }
        let (reuse, tokens_in_file) = match file {
            Some(Beginning { num_tokens, token_ids, caches }) => {
                (Reuse { num_tokens, note: None, caches }, token_ids)
            }
            // What is not known as tokens is only there.
            None if request.uses_prompt_cache() || opaque.is_some() => {
                let query = Query {
                    prompt: &prompt,
                    // At least one token must be run, to have something to sample from.
                    limit: total - 1,
                    model_name: &loaded.name,
                    quantization: request.kv_cache.quantization,
                    prefix_provenance: request.prompt.prefix_provenance(),
                    owner: request.owner.as_deref(),
                };
                (worker.cache.longest_prefix(&loaded.model, &query), Vec::new())
            }
            None => {
                // A kit has caches of its own, and reports what they hold.
                let caches = match request.num_draft_tokens {
                    Some(_) => Vec::new(),
                    None => make_prompt_cache(model, request.kv_cache.effective_max_size())?,
                };
                (Reuse { num_tokens: 0, note: None, caches }, Vec::new())
            }
        };
        if opaque.is_some_and(|prefix| reuse.num_tokens < prefix.num_tokens) {
            return Err(EngineError::BeginningLost);
        }
        let checkpoints_at = match request.uses_prompt_cache() {
            true => worker.cache.checkpoints_at(&loaded.model, &prompt, reuse.num_tokens),
            false => Vec::new(),
        };
        let sequence = Sequence {
            num_in_file: total - prompt.tokens.len(),
            tokens_in_file,
            max_tokens: request.max_tokens.min(context_length - total),
            num_cached: reuse.num_tokens,
            num_read: reuse.num_tokens,
            cache_note: reuse.note,
            checkpoints_at,
            checkpoints: Vec::new(),
            sampled: Vec::new(),
            ended_by_eos: false,
            stop_string: None,
            first_token: None,
            last_token: None,
            peak_memory_bytes: 0,
            job,
            loaded,
            prompt,
            text,
            began,
        };
        Ok((sequence, reuse.caches))
    }

    /// The tokens that the caches held, as far as they are known as tokens, and those that are to
    /// be read.
    pub(crate) fn cached_and_uncached(&self) -> (Vec<u32>, Vec<u32>) {
        let (cached, uncached) = self.prompt.tokens.split_at(self.num_cached - self.num_in_file);
        if self.job.request.prompt.opaque_prefix().is_some() {
            return (Vec::new(), uncached.to_vec());
        }
        (self.tokens_in_file.iter().chain(cached).copied().collect(), uncached.to_vec())
    }

    /// Everything that is to be read to begin anew: none where a part is only known as keys and
    /// values.
    pub(crate) fn all_tokens(&self) -> Option<Vec<u32>> {
        let is_known = self.tokens_in_file.len() == self.num_in_file
            && self.job.request.prompt.opaque_prefix().is_none();
        is_known.then(|| {
            self.tokens_in_file
                .iter()
                .chain(&self.prompt.tokens)
                .chain(&self.sampled)
                .copied()
                .collect()
        })
    }

    /// The places of [`Sequence::add_checkpoint`], counted from the first token that was not cached.
    pub(crate) fn uncached_checkpoints_at(&self) -> Vec<usize> {
        self.checkpoints_at.iter().map(|place| place - self.num_cached).collect()
    }

    /// Whether the caches have to be caught behind `processed` tokens of what was not cached.
    pub(crate) fn is_checkpoint(&self, processed: usize) -> bool {
        self.checkpoints_at.contains(&(self.num_cached + processed))
    }

    /// Remembers what the layers were at a place on the way through the prompt.
    pub(crate) fn add_checkpoint(&mut self, caches: Vec<LayerCache>) {
        self.checkpoints.extend(Checkpoint::of(caches));
    }

    /// Tells that `processed` tokens of what was not cached have been read. An answer that begins
    /// anew after a failure has told it.
    pub(crate) fn prefilled(&mut self, processed: usize) {
        let num_read = (self.num_cached + processed).min(self.num_prompt_tokens());
        if processed > 0 && num_read <= self.num_read {
            return;
        }
        self.num_read = num_read;
        let (processed, total) = self.progress();
        let _ = self.job.events.send(GenerateEvent::Prefill {
            processed,
            total,
            cached: self.num_cached,
        });
    }

    /// Tells that the whole prompt has been read.
    pub(crate) fn prefilled_all(&mut self) {
        self.prefilled(self.num_prompt_tokens() - self.num_cached);
    }

    /// Tells that the caches hold the first `num_tokens` of the prompt, which is known only now.
    pub(crate) fn found_cached(&mut self, num_tokens: usize) {
        (self.num_cached, self.num_read) = (num_tokens, num_tokens);
        self.prefilled(0);
    }

    /// Prompt tokens read, cached ones included, and the length of the prompt.
    pub(crate) fn progress(&self) -> (usize, usize) {
        (self.num_read, self.num_prompt_tokens())
    }

    fn num_prompt_tokens(&self) -> usize {
        self.num_in_file + self.prompt.tokens.len()
    }

    /// Takes a sampled token that is part of the answer, and reports its text. Returns true when a
    /// stop string ended the answer.
    pub(crate) fn token(
        &mut self,
        token: u32,
        logprobs: Option<(f32, Vec<(u32, f32)>)>,
    ) -> Result<bool, EngineError> {
        self.count(token);
        let mut step = self.text.push(token)?;
        self.stop_string = step.end.take().and_then(|end| end.stop_string);
        let logprob = logprobs.map(|(logprob, top)| TokenLogprob { token, logprob, top });
        let text = self.requested_text(step);
        let _ = self.job.events.send(GenerateEvent::Delta { text, token, logprob });
        Ok(self.stop_string.is_some())
    }

    /// The text of a step, with or without special tokens as the request asks.
    fn requested_text(&self, step: AnswerStep) -> String {
        if self.job.request.skip_special_tokens { step.visible } else { step.text }
    }

    /// Takes the end-of-sequence token that ended the answer: it is sampled, but no part of it.
    pub(crate) fn end_of_sequence(&mut self, token: u32) {
        self.count(token);
        self.ended_by_eos = true;
    }

    /// Empty caches, bounded as the request asks.
    pub(crate) fn new_caches(&self) -> Result<Vec<LayerCache>, LmError> {
        let max_size = self.job.request.kv_cache.effective_max_size();
        make_prompt_cache(&self.loaded.model.model, max_size)
    }

    /// Takes over MLX's peak before the counter is reset for another answer.
    pub(crate) fn note_peak_memory(&mut self) {
        self.peak_memory_bytes = self.peak_memory_bytes.max(memory::peak_bytes());
    }

    fn count(&mut self, token: u32) {
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.sampled.push(token);
    }

    /// The tokens that end it: the model's, and those of the request.
    pub(crate) fn eos_token_ids(&self) -> Result<BTreeSet<u32>, EngineError> {
        let model = &self.loaded.model;
        let mut ids =
            if self.job.request.ignore_eos { BTreeSet::new() } else { model.eos_token_ids.clone() };
        for token in &self.job.request.extra_eos_tokens {
            ids.insert(
                model
                    .tokenizer
                    .token_to_id(token)
                    .ok_or_else(|| EngineError::UnknownToken { token: token.clone() })?,
            );
        }
        Ok(ids)
    }

    /// Tells the end of the answer and keeps what was computed for it: `caches` hold a beginning of
    /// prompt and answer.
    pub(crate) fn finish(
        mut self,
        worker: &mut Worker,
        reason: FinishReason,
        caches: Vec<LayerCache>,
    ) {
        // Nothing follows a stop string; otherwise the withheld text may still complete one.
        let rest = match self.stop_string {
            Some(_) => Ok(AnswerStep::default()),
            None => self.text.finish(),
        };
        let mut rest = match rest {
            Ok(rest) => rest,
            Err(error) => {
                let _ = self.job.events.send(GenerateEvent::Failed(error.into()));
                return;
            }
        };
        let mut reason = reason;
        if let Some(end) = rest.end.take()
            && reason != FinishReason::Cancelled
        {
            reason = FinishReason::Stop;
            self.stop_string = end.stop_string;
        }
        let text = self.requested_text(rest);
        let stats = self.stats(reason);
        let finished = FinishedGeneration {
            text,
            stop_string: self.stop_string,
            new_prompt_ids: self.prompt.tokens[self.prompt.new_from..].to_vec(),
            token_ids: self.sampled.clone(),
            stats,
        };
        // The answer is given first; writing its cache must not make anyone wait.
        let _ = self.job.events.send(GenerateEvent::Finished(Box::new(finished)));
        let opaque = self.job.request.prompt.opaque_prefix();
        // What follows a file is kept as the file is, and not quantized halfway.
        let is_quantized_on_the_way =
            opaque.is_some() && self.job.request.kv_cache.quantization.is_some();
        if self.job.request.uses_prompt_cache() && !is_quantized_on_the_way {
            let mut tokens = self.prompt.tokens;
            tokens.extend(&self.sampled);
            let kind = |role: Role| match role {
                Role::System => ChunkKind::System,
                Role::User => ChunkKind::User,
                Role::Assistant => ChunkKind::Assistant,
            };
            let boundaries = self
                .prompt
                .boundaries
                .into_iter()
                .zip(self.prompt.roles.into_iter().map(kind))
                .collect();
            worker.cache.keep(Computed {
                model: &self.loaded.model,
                model_name: &self.loaded.name,
                tokens,
                boundaries,
                checkpoints: self.checkpoints,
                caches,
                prefix_provenance: self.job.request.prompt.prefix_provenance(),
                owner: self.job.request.owner,
            });
        }
    }

    fn stats(&self, finish_reason: FinishReason) -> GenerationStats {
        // Without a token, as after a stop while the prompt was read, there is no time to tell.
        let until_first = |start: Instant| {
            self.first_token.map_or(0.0, |first_token| (first_token - start).as_secs_f64())
        };
        let num_prompt_tokens = self.num_prompt_tokens();
        GenerationStats {
            model: self.loaded.name.clone(),
            finish_reason,
            num_prompt_tokens,
            num_cached_tokens: self.num_cached,
            cache_note: self.cache_note.clone(),
            num_generation_tokens: self.sampled.len() - usize::from(self.ended_by_eos),
            queue_ms: (self.began - self.job.arrived).as_secs_f64() * 1e3,
            prompt_tps: rate(num_prompt_tokens - self.num_cached, until_first(self.began)),
            generation_tps: self.generation_tps(),
            time_to_first_token_ms: until_first(self.job.arrived) * 1e3,
            mlx_active_bytes: memory::active_bytes(),
            mlx_peak_bytes: self.peak_memory_bytes.max(memory::peak_bytes()),
            process_bytes: 0,
            process_peak_bytes: 0,
        }
    }

    /// Sampled tokens a second, counted from the first: the time before that belongs to the prompt.
    pub(crate) fn generation_tps(&self) -> f64 {
        let (Some(first_token), Some(last_token)) = (self.first_token, self.last_token) else {
            return 0.0;
        };
        rate(self.sampled.len() - 1, (last_token - first_token).as_secs_f64())
    }
}

fn rate(count: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}
