//! The probabilities of an answer's tokens, and of what could have stood in their places.

use std::rc::Rc;

use cairn_chat::{CachedFrom, Cancel, Prompt};
use cairn_lm::cache::{LayerCache, make_prompt_cache};
use cairn_lm::{AnswerReader, LmError, ModelMemory, PassSizes, TokenChoice};

use crate::EngineError;
use crate::lookup::query;
use crate::model_pool::Loaded;
use crate::prompt::prompt_tokens;
use crate::prompt_cache::{Blocking, PendingRestore, Query};
use crate::request::{AnswerToken, GenerateRequest, LikelyToken, Speculation};
use crate::slice_limits::SliceLimits;
use crate::work::OpenWork;
use crate::worker::Worker;

/// An answer that is read again, a slice at a time. What is saved of its prompt is copied, so that the
/// conversation finds its own as it was.
pub(crate) struct Probabilities {
    loaded: Rc<Loaded>,
    request: Box<GenerateRequest>,
    state: State,
    /// Prompt and answer, except for its last token, behind which nothing is read.
    num_tokens: usize,
    /// What reading takes beside the weights, from its beginning to its end.
    reserved_bytes: Option<u64>,
}

/// The tokens of the last pass: what is counted on for its logits.
const LAST_PASS: usize = 64;

enum State {
    /// The prompt's beginning is being restored from chunks.
    Restoring {
        prompt: Prompt,
        pending: Option<PendingRestore>,
    },
    Reading(AnswerReader),
    Read(Vec<TokenChoice>),
}

impl Probabilities {
    /// Computes nothing yet. Fails on what no answer could begin with, and without an answer.
    pub(crate) fn new(
        worker: &mut Worker,
        loaded: &Rc<Loaded>,
        request: Box<GenerateRequest>,
        cancel: Cancel,
    ) -> Result<Self, EngineError> {
        // A draft model would have its own caches.
        let request =
            Box::new(GenerateRequest { speculation: Speculation::Off, form: None, ..*request });
        request.check()?;
        let GenerateRequest { prompt, template_variables, thinking, .. } = &*request;
        let prompt = prompt_tokens(&loaded.model, prompt, template_variables, *thinking, cancel)?;
        // Refused before anything is looked up.
        let (model, answer) = (&loaded.model.model, &request.answer_so_far);
        AnswerReader::new(model, &prompt.tokens, answer, Vec::new(), 0)?;
        let pending = match request.looks_up() {
            true => worker.cache.begin_restore(&loaded.model, &look(&request, &prompt, loaded)),
            false => None,
        };
        let num_tokens = prompt.tokens.len() + answer.len() - 1;
        let state = State::Restoring { prompt, pending };
        let loaded = Rc::clone(loaded);
        Ok(Probabilities { loaded, request, state, num_tokens, reserved_bytes: None })
    }

    /// How many tokens have been read, of how many; those that were saved count as read.
    pub(crate) fn progress(&self) -> (usize, usize) {
        let num_read = match &self.state {
            State::Restoring { .. } => 0,
            State::Reading(reader) => reader.progress().0,
            State::Read(_) => self.num_tokens,
        };
        (num_read, self.num_tokens)
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, State::Read(_))
    }

    /// What it takes beside the weights, once it has begun.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes.unwrap_or(0)
    }

    /// What has to be free for it to begin.
    pub(crate) fn least_bytes(&self, memory: &ModelMemory, max_tokens: usize) -> u64 {
        match self.reserved_bytes {
            None => self.pass_bytes(memory, max_tokens),
            Some(_) => 0,
        }
    }

    fn pass_bytes(&self, memory: &ModelMemory, max_tokens: usize) -> u64 {
        let num_new = max_tokens.clamp(1, self.num_tokens);
        let num_before = self.num_tokens - num_new;
        let num_logits = self.request.answer_so_far.len().min(LAST_PASS);
        memory.pass_bytes(&PassSizes {
            num_rows: 1,
            num_before,
            num_new,
            shares: false,
            num_logits,
        })
    }

    /// Restores a chunk, or reads a slice. Returns how many tokens were read.
    pub(crate) fn advance(
        &mut self,
        worker: &mut Worker,
        limits: SliceLimits<'_>,
        done: &mut OpenWork,
    ) -> Result<usize, EngineError> {
        if self.reserved_bytes.is_none() {
            let bytes =
                limits.memory.map_or(0, |(memory, _)| self.pass_bytes(memory, limits.max_tokens));
            self.reserved_bytes = Some(bytes);
        }
        match &mut self.state {
            State::Restoring { prompt, pending } => {
                if let Some(pending) = pending
                    && !worker.cache.restore_next(pending, Blocking::Allowed)
                {
                    return Ok(0);
                }
                let pending = pending.take();
                let (caches, from) =
                    beginning(worker, &self.loaded, &self.request, prompt, pending)?;
                done.cached(from);
                let num_top = self.request.num_top_logprobs.unwrap_or(0);
                let (model, answer) = (&self.loaded.model.model, &self.request.answer_so_far);
                let reader = AnswerReader::new(model, &prompt.tokens, answer, caches, num_top)?;
                self.state = State::Reading(reader);
            }
            State::Reading(reader) => {
                let (before, num_tokens) = reader.progress();
                reader.read(limits.max_tokens)?;
                let (num_read, _) = reader.progress();
                if num_read == num_tokens {
                    let choices = reader.take();
                    self.state = State::Read(choices);
                }
                return Ok(num_read - before);
            }
            State::Read(_) => {}
        }
        Ok(0)
    }

    /// The tokens of the answer with their texts, once all are read.
    pub(crate) fn finish(self) -> Result<Vec<AnswerToken>, EngineError> {
        let State::Read(choices) = self.state else { return Err(EngineError::Closed) };
        let (tokenizer, eos) = (&self.loaded.model.tokenizer, &self.loaded.model.eos_token_ids);
        let mut texts = tokenizer.stream();
        let mut tokens = Vec::with_capacity(choices.len());
        for choice in choices {
            let top = choice.top.into_iter().map(|(token, logprob)| {
                let (text, ends) = (tokenizer.token_text(token)?, eos.contains(&token));
                Ok(LikelyToken { token, text, logprob, ends })
            });
            tokens.push(AnswerToken {
                token: choice.token,
                text: texts.push(choice.token)?.text,
                logprob: choice.logprob,
                rank: choice.rank,
                entropy_bits: choice.entropy_bits,
                ends: eos.contains(&choice.token),
                top: top.collect::<Result<_, LmError>>()?,
            });
        }
        if let Some(last) = tokens.last_mut() {
            last.text.push_str(&texts.finish()?.text);
        }
        Ok(tokens)
    }
}

/// A look at what is saved of a prompt.
fn look<'a>(request: &'a GenerateRequest, prompt: &'a Prompt, loaded: &'a Loaded) -> Query<'a> {
    let query = query(request, prompt, prompt.tokens.len(), loaded);
    Query { owner: None, only_looks: true, ..query }
}

/// The caches of the longest beginning of a prompt that is saved, or empty ones.
fn beginning(
    worker: &mut Worker,
    loaded: &Loaded,
    request: &GenerateRequest,
    prompt: &Prompt,
    pending: Option<PendingRestore>,
) -> Result<(Vec<LayerCache>, CachedFrom), EngineError> {
    if !request.looks_up() {
        let max_size = request.kv_cache.effective_max_size();
        let caches = make_prompt_cache(&loaded.model.model, max_size)?;
        return Ok((caches, CachedFrom::default()));
    }
    let query = look(request, prompt, loaded);
    let reuse = worker.cache.longest_prefix(&loaded.model, &query, pending);
    match request.prompt.opaque_prefix() {
        Some(prefix) if reuse.num_tokens < prefix.num_tokens => Err(EngineError::BeginningLost),
        _ => Ok((reuse.caches, reuse.from)),
    }
}
