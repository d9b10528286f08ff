//! Speculative decoding: a small draft model proposes tokens, the main model verifies them in one
//! pass and accepts those that it would have chosen.
//!
//! With greedy sampling the result is that of the main model; otherwise tokens are drawn from the
//! main model's distributions (Leviathan et al. 2023, in mlx-lm's simpler form: a proposal is
//! accepted if the main model's own draw is the same token). Refused proposals are removed from
//! both models' caches: by trimming or, if a cache cannot be trimmed, by a rollback, after which
//! the accepted tokens are read again together with the next proposals.

use std::collections::VecDeque;

use mlx_rs::transforms::eval;
use mlx_rs::{Array, memory, ops};

use super::history::History;
use super::logprobs::Logprobs;
use super::prefill::{Prompt, prefill};
use super::tokens::CLEAR_CACHE_EVERY;
use super::{
    GenerateOptions, Input, OnProgress, RollbackPoint, Sampled, Sampling, make_caches, num_cached,
    quantize_if_due, token_array, token_limit,
};
use crate::cache::LayerCache;
use crate::models::Model;
use crate::sample::logprobs;
use crate::{LmError, ffi};

/// A draft model with its caches.
#[derive(Debug)]
pub struct Draft<'a> {
    /// The draft model; it must have the main model's vocabulary.
    pub model: &'a Model,
    /// Its caches, which must hold the same tokens as the main model's. Created if empty.
    pub caches: &'a mut Vec<LayerCache>,
}

/// How many draft tokens were accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Acceptance {
    /// Tokens proposed.
    pub num_drafted: usize,
    /// Tokens proposed, accepted and returned.
    pub num_accepted: usize,
}

/// A stream of tokens generated with a draft model. It owns both models' caches until
/// [`SpeculativeStream::into_caches`].
#[derive(Debug)]
pub struct SpeculativeStream {
    main: Reader,
    draft: Reader,
    sampling: Sampling,
    history: History,
    options: GenerateOptions,
    /// The prompt and the tokens returned so far.
    sequence: Vec<u32>,
    /// Tokens chosen, but not returned yet.
    chosen: VecDeque<Sampled>,
    num_sampled: usize,
    acceptance: Acceptance,
}

/// Reads `input` with both models, the draft model first. Arguments and errors are those of
/// [`generate_step`](super::generate_step).
///
/// Fails also if the vocabularies differ, and if embeddings are given, because a draft model cannot
/// read another model's embeddings.
pub fn speculative_generate_step<'a>(
    model: &Model,
    draft: Draft<'_>,
    input: impl Into<Input<'a>>,
    caches: &mut Vec<LayerCache>,
    sampling: impl Into<Sampling>,
    mut options: GenerateOptions,
    on_progress: OnProgress<'_>,
) -> Result<SpeculativeStream, LmError> {
    let (input, sampling) = (input.into(), sampling.into());
    options.validate()?;
    if input.embeddings.is_some() {
        return Err(LmError::DraftWithEmbeddings);
    }
    check_vocabularies(model, draft.model)?;
    let prompt = Prompt::checked(&input, model)?;
    let history = History::new(&sampling.processors, &[input.cached_tokens, input.tokens]);
    make_caches(draft.caches, draft.model, &options)?;
    make_caches(caches, model, &options)?;
    let num_prompt_tokens = num_cached(caches) + prompt.len();
    options.max_tokens = token_limit(options.max_tokens, num_prompt_tokens, model);
    // Progress counts the main model's tokens only.
    prefill(&prompt, draft.model, draft.caches, &options, &mut |_, total| on_progress(0, total))?;
    prefill(&prompt, model, caches, &options, on_progress)?;
    let reader = |model: &Model, caches: &mut Vec<LayerCache>| Reader {
        model: model.clone(),
        caches: std::mem::take(caches),
        num_read: prompt.len() - 1,
        rollback_point: None,
    };
    let mut stream = SpeculativeStream {
        main: reader(model, caches),
        draft: reader(draft.model, draft.caches),
        sampling,
        history,
        options,
        sequence: input.tokens.to_vec(),
        chosen: VecDeque::new(),
        num_sampled: 0,
        acceptance: Acceptance::default(),
    };
    if stream.options.max_tokens == 0 {
        stream.main.read_to(&stream.sequence, stream.sequence.len())?;
    }
    Ok(stream)
}

/// Fails unless both models have vocabularies of the same size.
pub fn check_vocabularies(model: &Model, draft: &Model) -> Result<(), LmError> {
    let (vocab_size, draft_vocab_size) = (model.vocab_size(), draft.vocab_size());
    if vocab_size == draft_vocab_size {
        Ok(())
    } else {
        Err(LmError::DraftVocabulary { vocab_size, draft_vocab_size })
    }
}

impl SpeculativeStream {
    /// The most tokens that are sampled.
    pub(super) fn max_tokens(&self) -> usize {
        self.options.max_tokens
    }

    /// The next token; `None` after `max_tokens`.
    pub fn next_token(&mut self) -> Result<Option<Sampled>, LmError> {
        if self.num_sampled >= self.options.max_tokens {
            return Ok(None);
        }
        if self.chosen.is_empty() {
            self.discard_unreturned()?;
            self.round()?;
        }
        let Some(sampled) = self.chosen.pop_front() else { return Ok(None) };
        self.sequence.push(sampled.token);
        self.history.push(&Array::from_slice(&[sampled.token], &[1]))?;
        self.num_sampled += 1;
        self.acceptance.num_accepted += usize::from(sampled.from_draft);
        if self.num_sampled.is_multiple_of(CLEAR_CACHE_EVERY) {
            memory::clear_cache()?;
        }
        Ok(Some(sampled))
    }

    /// How many draft tokens were accepted so far.
    pub fn acceptance(&self) -> Acceptance {
        self.acceptance
    }

    /// Ends the stream and returns both models' caches, the main model's first.
    ///
    /// Their offsets tell how many tokens of the prompt and the returned tokens they hold: at most
    /// all but the last, and a few fewer if a cache cannot be trimmed. After a failed step they
    /// must not be used.
    pub fn into_caches(mut self) -> Result<(Vec<LayerCache>, Vec<LayerCache>), LmError> {
        self.discard_unreturned()?;
        ffi::synchronize()?;
        Ok((self.main.caches, self.draft.caches))
    }

    /// Rolls both models' caches back to the returned tokens, without the last one, which the next
    /// round reads again.
    fn discard_unreturned(&mut self) -> Result<(), LmError> {
        self.chosen.clear();
        for reader in [&mut self.main, &mut self.draft] {
            reader.go_back(self.sequence.len() - 1)?;
            quantize_if_due(&mut reader.caches, self.options.kv_quantization.as_ref())?;
        }
        Ok(())
    }

    /// Lets the draft model propose tokens and the main model verify them.
    fn round(&mut self) -> Result<(), LmError> {
        let num_left = self.options.max_tokens - self.num_sampled;
        let mut num_drafts = self.options.num_draft_tokens.min(num_left);
        // Proposals that the main model has to read one by one gain nothing.
        if self.main.reads_one_by_one(self.sequence.len() - self.main.num_read + num_drafts) {
            num_drafts = 0;
        }
        let drafts = if num_drafts > 0 { self.propose(num_drafts)? } else { Vec::new() };
        self.acceptance.num_drafted += num_drafts;

        self.main.prepare(&self.sequence, num_drafts)?;
        let mut input = vec![token_array(&self.sequence[self.main.num_read..])];
        for draft in &drafts {
            input.push(ops::reshape(draft, &[1, 1])?);
        }
        self.main.num_read = self.sequence.len() + num_drafts;
        let rows = num_drafts as i32 + 1;
        let logits = self.main.last_logits(&ops::concatenate(&input, 1)?, rows)?; // [rows, V]
        let logits = self.process_rows(logits, &drafts)?;
        let tokens = self.sampling.sampler.sample(&logits)?; // [rows]
        let logprobs =
            if self.options.num_top_logprobs.is_some() { Some(logprobs(&logits)?) } else { None };
        eval(std::iter::once(&tokens).chain(&drafts).chain(&logprobs).chain(self.history.array()))?;

        let tokens = tokens.try_as_slice::<u32>()?;
        for (index, &token) in tokens.iter().enumerate().take(num_left) {
            let from_draft = match drafts.get(index) {
                Some(draft) => draft.try_as_slice::<u32>()? == [token],
                None => false,
            };
            let logprobs = match &logprobs {
                Some(logprobs) => Some(Logprobs::read(
                    row(logprobs, index as i32)?,
                    token,
                    self.options.num_top_logprobs.unwrap_or(0),
                )?),
                None => None,
            };
            self.chosen.push_back(Sampled { token, from_draft, logprobs });
            if !from_draft {
                break;
            }
        }
        Ok(())
    }

    /// The draft model's next tokens, each `[1]`, launched but not waited for.
    fn propose(&mut self, num_drafts: usize) -> Result<Vec<Array>, LmError> {
        self.draft.prepare(&self.sequence, num_drafts)?;
        let mut input = token_array(&self.sequence[self.draft.num_read..]);
        // The draft model does not read its last proposal, which may be refused.
        self.draft.num_read = self.sequence.len() + num_drafts - 1;
        let mut drafts: Vec<Array> = Vec::with_capacity(num_drafts);
        for _ in 0..num_drafts {
            let logits = self.draft.last_logits(&input, 1)?;
            let logits = self.history.process(&mut self.sampling.processors, &drafts, logits)?;
            let token = self.sampling.sampler.sample(&logits)?;
            mlx_rs::transforms::async_eval([&token])?;
            input = ops::reshape(&token, &[1, 1])?;
            drafts.push(token);
        }
        Ok(drafts)
    }

    /// Applies processors to the logits `[rows, V]`: for row `i` they see the first `i` drafts.
    fn process_rows(&mut self, logits: Array, drafts: &[Array]) -> Result<Array, LmError> {
        if self.sampling.processors.is_empty() {
            return Ok(logits);
        }
        let vocab_size = logits.dim(1);
        let mut rows = Vec::with_capacity(drafts.len() + 1);
        for index in 0..=drafts.len() {
            let row = ffi::slice(&logits, &[index as i32, 0], &[index as i32 + 1, vocab_size])?;
            rows.push(self.history.process(
                &mut self.sampling.processors,
                &drafts[..index],
                row,
            )?);
        }
        Ok(ops::concatenate(&rows, 0)?)
    }
}

/// One of the two models, its caches, and how much of the common sequence they hold.
#[derive(Debug)]
struct Reader {
    model: Model,
    caches: Vec<LayerCache>,
    /// How many tokens the caches hold, of the sequence and its proposed continuation.
    num_read: usize,
    /// The position before the last proposals, and `num_read` there.
    rollback_point: Option<(RollbackPoint, usize)>,
}

impl Reader {
    /// Takes a rollback point before up to `num_drafts` tokens beyond `sequence` are read.
    fn prepare(&mut self, sequence: &[u32], num_drafts: usize) -> Result<(), LmError> {
        let num_unread = sequence.len() - self.num_read;
        // Accepted tokens that a rollback removed are read with the new proposals; if they become
        // too many, they are read now, so that the next rollback does not remove them again.
        if num_unread > num_drafts + 1 || self.reads_one_by_one(num_unread + num_drafts) {
            self.read_to(sequence, sequence.len() - 1)?;
        }
        let num_ahead = sequence.len() - self.num_read + num_drafts;
        self.rollback_point = Some((RollbackPoint::take(&self.caches, num_ahead), self.num_read));
        Ok(())
    }

    /// Rolls back to the first `num_tokens` of the sequence, or to fewer if the caches cannot be
    /// trimmed.
    fn go_back(&mut self, num_tokens: usize) -> Result<(), LmError> {
        let Some((rollback_point, num_read_then)) = self.rollback_point.take() else {
            return Ok(());
        };
        if self.num_read <= num_tokens {
            return Ok(());
        }
        if rollback_point.only_trims() {
            for cache in &mut self.caches {
                cache.trim(self.num_read - num_tokens);
            }
            self.num_read = num_tokens;
        } else {
            rollback_point.restore(&mut self.caches)?;
            self.num_read = num_read_then;
        }
        Ok(())
    }

    /// Reads the sequence into the caches until they hold its first `num_tokens`.
    fn read_to(&mut self, sequence: &[u32], num_tokens: usize) -> Result<(), LmError> {
        while self.num_read < num_tokens {
            let stop = if self.reads_one_by_one(num_tokens - self.num_read) {
                self.num_read + 1
            } else {
                num_tokens
            };
            self.model.forward(&token_array(&sequence[self.num_read..stop]), &mut self.caches)?;
            eval(self.caches.iter().flat_map(LayerCache::arrays))?;
            self.num_read = stop;
        }
        Ok(())
    }

    /// Whether `length` tokens must be read one by one, because a pass over all of them would
    /// attend to other tokens.
    fn reads_one_by_one(&self, length: usize) -> bool {
        self.caches.iter().any(|cache| cache.as_kind().reads_one_by_one(length))
    }

    /// Runs the model over `tokens` `[1, L]` and returns the logits of the last `rows`, `[rows,
    /// V]`.
    fn last_logits(&mut self, tokens: &Array, rows: i32) -> Result<Array, LmError> {
        let hidden = self.model.forward(tokens, &mut self.caches)?;
        let (length, width) = (hidden.dim(1), hidden.dim(2));
        let last = if length == rows {
            hidden
        } else {
            ffi::slice(&hidden, &[0, length - rows, 0], &[1, length, width])?
        };
        Ok(ops::reshape(&self.model.logits(&last)?, &[rows, -1])?)
    }
}

/// Row `index` of `[rows, V]`, `[V]`.
fn row(rows: &Array, index: i32) -> Result<Array, LmError> {
    let vocab_size = rows.dim(1);
    Ok(ops::reshape(&ffi::slice(rows, &[index, 0], &[index + 1, vocab_size])?, &[vocab_size])?)
}
