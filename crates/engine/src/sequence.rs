//! One running request: its prompt, the text of its tokens, its stop conditions and its figures.
//! `scheduler` or `unbatched` supply its tokens.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Instant;

use cairn_chat::{
    CachedFrom, CallOutcome, FinishReason, GenerationStats, GuessCounts, Prompt, Role, SegmentEvent,
};
use cairn_lm::cache::chunk_state::Checkpoint;
use cairn_lm::cache::{
    Compressed, LayerCache, NUM_OBSERVED, SnapKv, can_trim_prompt_cache, make_prompt_cache,
    trim_prompt_cache,
};
use cairn_lm::{Acceptance, AnswerStep, AnswerText, LmError, Sampling, Stops, memory};
use cairn_prompt_cache::{ChunkKind, Miss};

use crate::EngineError;
use crate::generate_job::GenerateJob;
use crate::guard::caught;
use crate::lookup::{draft_query, query};
use crate::model_pool::Loaded;
use crate::prompt_cache::{Computed, PendingRestore, Reuse};
use crate::prompt_facts;
use crate::prompt_facts::PromptFacts;
use crate::prompt_file::{self, Beginning};
use crate::request::{
    FinishedGeneration, GenerateEvent, GenerateRequest, SoFar, TokenLogprob, TopLogprob,
};
use crate::restoring::Restored;
use crate::segments::{AnswerGrammar, AnswerSegments};
use crate::shared_reading::{Awaited, ReadBeginning};
use crate::work::OpenWork;
use crate::worker::Worker;

/// The draft model of a sequence, and its caches of a beginning of prompt and answer; they are empty while
/// a run has them.
pub(crate) struct SequenceDraft {
    pub(crate) loaded: Rc<Loaded>,
    pub(crate) caches: Vec<LayerCache>,
}

impl SequenceDraft {
    /// With what the prompt cache has of the draft model's own reading of the prompt, of which `pending`
    /// is restored. None of what it has not read is read here.
    pub(crate) fn begin(
        worker: &mut Worker,
        loaded: Rc<Loaded>,
        request: &GenerateRequest,
        prompt: &Prompt,
        pending: Option<PendingRestore>,
    ) -> Result<Self, EngineError> {
        let caches = if request.uses_prompt_cache() {
            let query = draft_query(request, prompt, &loaded);
            worker.cache.longest_prefix(&loaded.model, &query, pending).caches
        } else {
            make_prompt_cache(&loaded.model.model, request.kv_cache.effective_max_size())?
        };
        Ok(SequenceDraft { loaded, caches })
    }
}

/// The fewest written tokens that tell a speed: proposed tokens come several at once.
pub const LEAST_TIMED_TOKENS: usize = 8;

/// A request that is being answered.
pub(crate) struct Sequence {
    pub(crate) job: GenerateJob,
    pub(crate) loaded: Rc<Loaded>,
    pub(crate) prompt: Prompt,
    /// The number of tokens in the prompt-cache file; they precede the prompt.
    num_in_file: usize,
    /// Those tokens, if the file names them.
    tokens_in_file: Vec<u32>,
    /// The most tokens of the answer: the request's limit, or what remains of the context.
    pub(crate) max_tokens: usize,
    /// Sampled ids, an end-of-sequence token included.
    pub(crate) sampled: Vec<u32>,
    ended_by_eos: bool,
    num_cached: usize,
    cached_from: CachedFrom,
    num_read: usize,
    /// Its work so far.
    work: OpenWork,
    miss: Option<Miss>,
    /// The positions in the prompt at which prefill takes a checkpoint.
    checkpoints_at: Vec<usize>,
    checkpoints: Vec<Checkpoint>,
    /// Beginnings of the prompt that others wait for.
    pub(crate) awaited: Awaited,
    /// How many of its tokens the prompt's caches kept, where they dropped some for this answer.
    num_kept: Option<usize>,
    text: AnswerText,
    /// Cuts the text into segments, where asked for; none after the end.
    segments: Option<AnswerSegments>,
    grammar: Option<AnswerGrammar>,
    stop_string: Option<String>,
    began: Instant,
    /// When the cached beginning was in place and reading the rest began.
    reading_began: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    /// The draft model, while it proposes for this sequence or has done so.
    pub(crate) draft: Option<SequenceDraft>,
    /// What has become of proposed tokens, once the run that proposed them has ended.
    pub(crate) acceptance: Acceptance,
    /// The peak of MLX memory during this sequence, up to the last reset of the counter.
    peak_memory_bytes: u64,
}

impl Sequence {
    /// Checks the request and looks up its prompt, a part of which may be `restored`; the returned
    /// caches contain a beginning of the prompt, never all of it. For one that was stopped nothing
    /// is looked up, and there are no caches.
    pub(crate) fn begin(
        worker: &mut Worker,
        mut job: GenerateJob,
        restored: Restored,
    ) -> Result<(Self, Vec<LayerCache>), EngineError> {
        let Restored { began, pending, shared, awaited, .. } = restored;
        let loaded = worker.models.get(job.request.model.as_deref())?;
        worker.models.touch(&loaded.name);
        let request = &job.request;
        request.check()?;
        // Before prefill: once a stream has begun, its status cannot say that a request is wrong.
        Sampling::check(&request.sampling, &loaded.model)?;
        let stops = Stops { strings: request.stop.clone(), ..Stops::default() };
        let mut text = AnswerText::new(&loaded.model.tokenizer, stops)?;
        let grammar = if job.is_stopped() { None } else { job.take_grammar(&loaded)? };
        let prompt = job.take_prompt(&loaded)?;
        // After the prompt, which is empty if the job was stopped while it was built.
        let is_stopped = job.is_stopped();
        let request = &job.request;
        let mut segments = AnswerSegments::new(&loaded, request, &prompt.text);
        // They get to where they were when the answer was stopped.
        let mut so_far = SoFar::default();
        for &token in &request.answer_so_far {
            let step = text.push(token)?;
            so_far.segments.extend(segments.iter_mut().flat_map(|segments| segments.push(&step)));
            so_far.text += if request.skip_special_tokens { &step.visible } else { &step.text };
        }
        let CachedBeginning { num_in_file, tokens_in_file, reuse } = if is_stopped {
            CachedBeginning::default()
        } else if let Some(shared) = shared {
            CachedBeginning::shared(shared)
        } else {
            cached_beginning(worker, &loaded, request, &prompt, pending)?
        };
        let checkpoints_at = match request.uses_prompt_cache() {
            true => worker.cache.checkpoints_at(
                &loaded.model,
                &prompt,
                request.kv_cache.format(),
                reuse.num_tokens,
            ),
            false => Vec::new(),
        };
        let context_length = request.context_length(loaded.model.model.context_length());
        // Whether a prompt is too long is not asked of one that was stopped.
        let context_left = context_length.saturating_sub(num_in_file + prompt.tokens.len());
        if !request.answer_so_far.is_empty() {
            let _ = job.events.send(GenerateEvent::SoFar(Box::new(so_far)));
        }
        if !is_stopped {
            // A retried sequence has told its facts before.
            let _ = job.facts.set(PromptFacts {
                num_tokens: num_in_file + prompt.tokens.len(),
                num_cached: reuse.num_tokens,
                token_ids: prompt.tokens.clone(),
                loss: reuse.miss.as_ref().and_then(|miss| prompt_facts::loss(&miss.reason)),
            });
        }
        let mut work = worker.work.open(request.work_for.clone(), &loaded.name);
        work.cached(reuse.from);
        let sequence = Sequence {
            num_in_file,
            tokens_in_file,
            max_tokens: request.max_tokens.min(context_left),
            num_cached: reuse.num_tokens,
            cached_from: reuse.from,
            num_read: reuse.num_tokens,
            work,
            miss: reuse.miss,
            checkpoints_at,
            checkpoints: Vec::new(),
            awaited,
            num_kept: None,
            sampled: Vec::new(),
            ended_by_eos: false,
            segments,
            grammar,
            stop_string: None,
            first_token: None,
            last_token: None,
            draft: None,
            acceptance: Acceptance::default(),
            peak_memory_bytes: 0,
            job,
            loaded,
            prompt,
            text,
            began,
            reading_began: Instant::now(),
        };
        Ok((sequence, reuse.caches))
    }

    /// The cached tokens, as far as their ids are known, and the tokens to prefill.
    pub(crate) fn cached_and_uncached(&self) -> (Vec<u32>, Vec<u32>) {
        let (cached, uncached) = self.prompt.tokens.split_at(self.num_cached - self.num_in_file);
        if self.job.request.prompt.opaque_prefix().is_some() {
            return (Vec::new(), uncached.to_vec());
        }
        (self.tokens_in_file.iter().chain(cached).copied().collect(), uncached.to_vec())
    }

    /// All tokens of prompt and answer, to start again from the first; none where the ids of some
    /// are unknown.
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

    /// The positions of checkpoints, counted from the first token that was not cached.
    pub(crate) fn uncached_checkpoints_at(&self) -> Vec<usize> {
        self.checkpoints_at.iter().map(|position| position - self.num_cached).collect()
    }

    /// A position in the prompt, counted from the first token that was not cached.
    pub(crate) fn uncached_position(&self, position: usize) -> usize {
        position.saturating_sub(self.num_cached)
    }

    /// The positions at which reading stops, counted from the first token that was not cached.
    pub(crate) fn uncached_stops(&self) -> Vec<usize> {
        let awaited = self.awaited.stops().iter();
        let awaited = awaited.filter_map(|stop| stop.checked_sub(self.num_cached));
        self.uncached_checkpoints_at().into_iter().chain(awaited).collect()
    }

    /// Whether others wait for no more of the prompt than has been read.
    pub(crate) fn is_awaited(&self) -> bool {
        self.sampled.is_empty() && self.awaited.is_enough(self.num_read)
    }

    /// Whether a part of the prompt is not read yet.
    pub(crate) fn is_reading(&self) -> bool {
        self.sampled.is_empty() && self.num_read < self.num_prompt_tokens()
    }

    /// Whether to take a checkpoint after `processed` tokens of those that were not cached.
    pub(crate) fn is_checkpoint(&self, processed: usize) -> bool {
        self.checkpoints_at.contains(&(self.num_cached + processed))
    }

    /// Adds a checkpoint from the caches at its position.
    pub(crate) fn add_checkpoint(&mut self, caches: Vec<LayerCache>) {
        self.checkpoints.extend(Checkpoint::of(caches));
    }

    /// Records what the `caches` of the prompt have dropped. Checkpoints from before are of all tokens,
    /// and what is left is right for any prompt only behind every token that took part in the choice:
    /// at an earlier position, another question would find what this one attends to.
    pub(crate) fn record_compression(&mut self, compressed: Compressed, caches: &[LayerCache]) {
        self.num_kept = Some(compressed.num_kept);
        self.checkpoints.clear();
        if self.job.request.uses_prompt_cache() {
            let kept = Checkpoint::of(caches.to_vec());
            self.checkpoints.extend(kept.filter(|kept| kept.num_tokens() == compressed.num_read));
        }
    }

    /// Emits the progress of prefill: `processed` tokens of those that were not cached. A retried
    /// sequence does not emit it again.
    pub(crate) fn prefilled(&mut self, processed: usize) {
        let num_read = (self.num_cached + processed).min(self.num_prompt_tokens());
        if processed > 0 && num_read <= self.num_read {
            return;
        }
        self.work.read(num_read - self.num_read);
        self.num_read = num_read;
        let (processed, total) = self.progress();
        let _ = self.job.events.send(GenerateEvent::Prefill {
            processed,
            total,
            cached: self.num_cached,
        });
    }

    /// Emits that the whole prompt has been prefilled.
    pub(crate) fn prefilled_all(&mut self) {
        self.prefilled(self.num_prompt_tokens() - self.num_cached);
    }

    /// Prompt tokens read, cached ones included, and the length of the prompt.
    pub(crate) fn progress(&self) -> (usize, usize) {
        (self.num_read, self.num_prompt_tokens())
    }

    fn num_prompt_tokens(&self) -> usize {
        self.num_in_file + self.prompt.tokens.len()
    }

    /// Adds a sampled token to the answer and emits its text. Returns true if a stop string or a
    /// tool call ended the answer.
    pub(crate) fn token(
        &mut self,
        token: u32,
        logprobs: Option<(f32, Vec<(u32, f32)>)>,
    ) -> Result<bool, EngineError> {
        self.count(token, true);
        let mut step = self.text.push(token)?;
        self.stop_string = step.end.take().and_then(|end| end.stop_string);
        let logprob = logprobs.map(|logprobs| self.logprob(token, logprobs)).transpose()?;
        let segments = self.segments.as_mut().map_or(Vec::new(), |segments| segments.push(&step));
        let ends = self.stop_string.is_some() || self.ends_after(&segments);
        let text = self.requested_text(step);
        let _ = self.job.events.send(GenerateEvent::Delta { text, token, logprob, segments });
        Ok(ends)
    }

    /// A token's log-probability and those of the likeliest ones, with their texts.
    fn logprob(
        &self,
        token: u32,
        (logprob, top): (f32, Vec<(u32, f32)>),
    ) -> Result<TokenLogprob, LmError> {
        let tokenizer = &self.loaded.model.tokenizer;
        let written = |token| {
            let text = tokenizer.token_text(token)?;
            let bytes = tokenizer.token_bytes(token, &text);
            Ok::<_, LmError>((text, bytes))
        };
        let top = top.into_iter().map(|(token, logprob)| {
            let (text, bytes) = written(token)?;
            Ok(TopLogprob { token, text, bytes, logprob })
        });
        let top = top.collect::<Result<_, LmError>>()?;
        let (text, bytes) = written(token)?;
        Ok(TokenLogprob { token, text, bytes, logprob, top })
    }

    /// Whether the answer ends here, because one tool call was asked for.
    fn ends_after(&self, segments: &[SegmentEvent]) -> bool {
        let is_call = |event: &SegmentEvent| {
            matches!(event, SegmentEvent::CallEnded { outcome: CallOutcome::Complete, .. })
        };
        let options = self.job.request.segments.as_ref();
        options.is_some_and(|options| options.ends_after_call) && segments.iter().any(is_call)
    }

    /// The text of a step, with or without special tokens according to the request.
    fn requested_text(&self, step: AnswerStep) -> String {
        if self.job.request.skip_special_tokens { step.visible } else { step.text }
    }

    /// Records the end-of-sequence token that ended the answer; it is sampled, but no part of the
    /// text.
    pub(crate) fn end_of_sequence(&mut self, token: u32) {
        self.count(token, false);
        self.ended_by_eos = true;
    }

    /// How the next tokens are chosen.
    pub(crate) fn sampling(&mut self) -> Result<Sampling, EngineError> {
        let mut sampling = Sampling::new(&self.job.request.sampling, &self.loaded.model)?;
        // An answer that goes on continues its stream of random numbers.
        sampling.sampler.skip(self.job.request.answer_so_far.len());
        let num_before = self.job.request.answer_so_far.len() + self.sampled.len();
        if let Some(grammar) = &mut self.grammar {
            sampling.processors.constrain(grammar.constraint(self.sampled.len()));
        } else if let Some(num_left @ 1..) = self.job.request.min_tokens.checked_sub(num_before) {
            let vocab_size = self.loaded.model.model.vocab_size();
            sampling.processors.exclude(&self.eos_token_ids()?, num_left, vocab_size);
        }
        Ok(sampling)
    }

    /// Empty caches, bounded according to the request.
    pub(crate) fn new_caches(&self) -> Result<Vec<LayerCache>, LmError> {
        let max_size = self.job.request.kv_cache.effective_max_size();
        make_prompt_cache(&self.loaded.model.model, max_size)
    }

    /// Records MLX's peak before the counter is reset for another request.
    pub(crate) fn note_peak_memory(&mut self) {
        self.peak_memory_bytes = self.peak_memory_bytes.max(memory::peak_bytes());
    }

    fn count(&mut self, token: u32, is_written: bool) {
        self.work.sampled(is_written);
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.sampled.push(token);
    }

    /// The tokens that end the answer: the model's, and those of the request.
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

    /// Emits the end of the answer, then saves `caches`, which contain a beginning of prompt and
    /// answer.
    pub(crate) fn finish(
        mut self,
        worker: &mut Worker,
        reason: FinishReason,
        caches: Vec<LayerCache>,
    ) {
        match caught("ending an answer", || self.finished(reason)) {
            // Emitted before the caches are saved, so that the caller does not wait for that.
            Ok(finished) => {
                // Before the end is sent, so that its receiver finds the work too.
                let first_token_ms = finished.stats.time_to_first_token_ms;
                self.work.end((first_token_ms > 0.0).then_some(first_token_ms));
                let _ = self.job.events.send(GenerateEvent::Finished(Box::new(finished)));
            }
            Err(error) => return self.job.fail(error),
        }
        if let Some(why) = self.loaded.model.model.take_tracing_problem() {
            tracing::warn!(model = %self.loaded.name, "its decode steps are not traced: {why}");
        }
        let saved = worker.guarded("saving a conversation", |worker| {
            self.save(worker, caches);
            Ok(())
        });
        if let Err(error) = saved {
            tracing::warn!(%error, "the caches of an answer are not saved");
        }
    }

    /// The end of the answer.
    fn finished(&mut self, mut reason: FinishReason) -> Result<FinishedGeneration, EngineError> {
        // Nothing follows a stop string; otherwise the withheld text may still complete one.
        let mut last_step = match self.stop_string {
            Some(_) => AnswerStep::default(),
            None => self.text.finish()?,
        };
        if let Some(end) = last_step.end.take()
            && reason != FinishReason::Cancelled
        {
            reason = FinishReason::Stop;
            self.stop_string = end.stop_string;
        }
        let segments = self.segments.take();
        let segments = segments.map_or(Vec::new(), |segments| segments.finish(&last_step));
        let text = self.requested_text(last_step);
        let so_far = &self.job.request.answer_so_far;
        // It has neither if it was stopped while it was built.
        let prompt_end = self.prompt.tokens.len().saturating_sub(so_far.len());
        Ok(FinishedGeneration {
            text,
            segments,
            stop_string: self.stop_string.take(),
            new_prompt_ids: self.prompt.tokens[self.prompt.new_from..prompt_end].to_vec(),
            token_ids: so_far.iter().chain(&self.sampled).copied().collect(),
            stats: self.stats(reason),
            miss: self.miss.take(),
            acceptance: self.acceptance,
        })
    }

    /// Saves the caches in the prompt cache, if the request uses it.
    fn save(self, worker: &mut Worker, caches: Vec<LayerCache>) {
        let request = self.job.request;
        // Chunks that continue an imported file keep the file's format, so caches that were
        // quantized during this request are not saved.
        let changes_format =
            request.prompt.opaque_prefix().is_some() && request.kv_cache.quantization.is_some();
        if !request.uses_prompt_cache() || changes_format {
            return;
        }
        let mut tokens = self.prompt.tokens;
        tokens.extend(&self.sampled);
        let kinds = self.prompt.roles.into_iter().map(|role| match role {
            Role::System => ChunkKind::System,
            Role::User => ChunkKind::User,
            Role::Assistant => ChunkKind::Assistant,
        });
        let boundaries: Vec<_> = self.prompt.boundaries.into_iter().zip(kinds).collect();
        // Before the model's, which is what ran last.
        if let Some(draft) = self.draft {
            worker.cache.save(Computed {
                model: &draft.loaded.model,
                model_name: &draft.loaded.name,
                tokens: tokens.clone(),
                boundaries: boundaries.clone(),
                checkpoints: Vec::new(),
                kv_format: request.kv_cache.format(),
                caches: draft.caches,
                prefix_provenance: request.prefix_provenance(),
                num_opaque: 0,
                permit: self.job.permit.clone(),
                is_draft: true,
            });
        }
        worker.cache.save(Computed {
            model: &self.loaded.model,
            model_name: &self.loaded.name,
            tokens,
            boundaries,
            checkpoints: self.checkpoints,
            kv_format: request.kv_cache.format(),
            caches,
            prefix_provenance: request.prefix_provenance(),
            num_opaque: request.prompt.num_opaque(),
            permit: self.job.permit.clone(),
            is_draft: false,
        });
    }

    fn stats(&self, finish_reason: FinishReason) -> GenerationStats {
        // Without a token, for example after a stop during prefill, there is no time to report.
        let until_first = |start: Instant| {
            self.first_token.map_or(0.0, |first_token| (first_token - start).as_secs_f64())
        };
        let num_prompt_tokens = self.num_prompt_tokens();
        GenerationStats {
            model: self.loaded.name.clone(),
            finish_reason,
            num_prompt_tokens,
            num_cached_tokens: self.num_cached,
            cached_from: Some(self.cached_from),
            num_kept_tokens: self.num_kept,
            cache_note: None,
            miss: None,
            saved_ms: None,
            num_generation_tokens: self.sampled.len() - usize::from(self.ended_by_eos),
            guesses: self.guesses(),
            queue_ms: (self.began - self.job.arrived).as_secs_f64() * 1e3,
            prompt_tps: rate(num_prompt_tokens - self.num_cached, until_first(self.reading_began)),
            generation_tps: self.generation_tps(),
            time_to_first_token_ms: until_first(self.job.arrived) * 1e3,
            mlx_active_bytes: memory::active_bytes(),
            mlx_peak_bytes: self.peak_memory_bytes.max(memory::peak_bytes()),
            process_bytes: 0,
            process_peak_bytes: 0,
        }
    }

    fn guesses(&self) -> Option<GuessCounts> {
        let Acceptance { num_drafted, num_accepted, num_checked } = self.acceptance;
        (num_drafted > 0).then_some(GuessCounts {
            num_proposed: num_drafted,
            num_accepted,
            num_checked,
        })
    }

    /// As [`Sequence::generation_tps`], but 0 for too few tokens.
    pub(crate) fn shown_tps(&self) -> f64 {
        if self.sampled.len() < LEAST_TIMED_TOKENS { 0.0 } else { self.generation_tps() }
    }

    /// Sampled tokens per second, counted from the first: the time before it belongs to the prompt.
    pub(crate) fn generation_tps(&self) -> f64 {
        let (Some(first_token), Some(last_token)) = (self.first_token, self.last_token) else {
            return 0.0;
        };
        rate(self.sampled.len() - 1, (last_token - first_token).as_secs_f64())
    }
}

/// The tokens before those to prefill, and their caches.
#[derive(Default)]
struct CachedBeginning {
    /// Tokens in the prompt-cache file, which precede the prompt.
    num_in_file: usize,
    /// Those tokens; empty if the file does not name them.
    tokens_in_file: Vec<u32>,
    reuse: Reuse,
}

impl CachedBeginning {
    /// A beginning that another request has read.
    fn shared(beginning: ReadBeginning) -> Self {
        let ReadBeginning { num_tokens, caches } = beginning;
        let from = CachedFrom { num_shared: num_tokens, ..CachedFrom::default() };
        let reuse = Reuse { num_tokens, from, miss: None, caches };
        CachedBeginning { reuse, ..CachedBeginning::default() }
    }
}

/// The caches of the request's file, of the longest prefix in the prompt cache, or empty ones.
fn cached_beginning(
    worker: &mut Worker,
    loaded: &Loaded,
    request: &GenerateRequest,
    prompt: &Prompt,
    pending: Option<PendingRestore>,
) -> Result<CachedBeginning, EngineError> {
    let model = &loaded.model.model;
    let path = request.prompt_cache_file.as_ref();
    let file = path.map(|path| prompt_file::load(path, loaded)).transpose()?;
    let num_in_file = file.as_ref().map_or(0, |file| file.num_tokens);
    let num_tokens = num_in_file + prompt.tokens.len();
    let context_length = request.context_length(model.context_length());
    if num_tokens >= context_length {
        return Err(LmError::PromptTooLong { num_tokens, context_length }.into());
    }
    let opaque = request.prompt.opaque_prefix();
    let (reuse, tokens_in_file) = match file {
        Some(Beginning { num_tokens, token_ids, caches }) => {
            let from = CachedFrom { num_restored: num_tokens, ..CachedFrom::default() };
            (Reuse { num_tokens, from, miss: None, caches }, token_ids)
        }
        // An opaque prefix can only come from the prompt cache.
        None if request.uses_prompt_cache() || opaque.is_some() => {
            let query = query(request, prompt, num_tokens, loaded);
            let mut reuse = worker.cache.longest_prefix(&loaded.model, &query, pending);
            if let Some(snapkv) = &request.kv_cache.snapkv {
                let num_left = num_tokens - 1 - reuse.num_tokens;
                let num_trimmed = trim_for_choice(&mut reuse.caches, snapkv, num_left);
                reuse.num_tokens -= num_trimmed;
                reuse.from.shorten(num_trimmed);
            }
            (reuse, Vec::new())
        }
        None => {
            let caches = make_prompt_cache(model, request.kv_cache.effective_max_size())?;
            (Reuse { caches, ..Reuse::default() }, Vec::new())
        }
    };
    if opaque.is_some_and(|prefix| reuse.num_tokens < prefix.num_tokens) {
        return Err(EngineError::BeginningLost);
    }
    Ok(CachedBeginning { num_in_file, tokens_in_file, reuse })
}

/// Trims caches of all tokens that are to be compressed, of a prompt with `num_left` tokens to read, so
/// that enough queries are computed to choose by. Returns how many tokens were trimmed.
fn trim_for_choice(caches: &mut [LayerCache], snapkv: &SnapKv, num_left: usize) -> usize {
    let num_cached = caches.iter().map(LayerCache::offset).max().unwrap_or(0);
    let num_read = num_cached + num_left;
    let is_long = num_read > snapkv.keep_tokens && num_read >= snapkv.min_context;
    if num_left >= NUM_OBSERVED || !is_long || !can_trim_prompt_cache(caches) {
        return 0;
    }
    trim_prompt_cache(caches, (NUM_OBSERVED - num_left).min(num_cached))
}

fn rate(count: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}
