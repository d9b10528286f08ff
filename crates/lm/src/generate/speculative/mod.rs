//! Speculative decoding: a drafter proposes tokens, the main model reads them in one pass, and those
//! are accepted that it would have chosen.
//!
//! ```text
//! Drafter ── proposals ──┐
//! the last token ────────┴─ one pass of the main model ── a token behind each ── equal ones are accepted
//! ```
//!
//! The answer is that of the main model alone. That holds for random sampling too: the token at each
//! place is drawn with the random number that it would be drawn with in any case, and a proposal is
//! accepted if it is that token. A draft model draws its proposals with the same numbers, so that it
//! agrees as often as its distributions do. Refused proposals are removed from the caches: by
//! trimming or, if a cache cannot be trimmed, by a rollback, after which the accepted tokens are
//! read again together with the next proposals.
//!
//! Where nothing is proposed, the next pass is launched before its token is known, as in plain
//! decoding. Prompt lookup can then propose what follows the token that it predicts. A draft model and
//! a head need the token itself.

mod head;
mod pace;
mod prompt_lookup;
mod proposer;
mod reader;
mod token_index;

use std::collections::VecDeque;
use std::time::Instant;

use mlx_rs::transforms::async_eval;
use mlx_rs::{Array, memory, ops};

use super::history::History;
use super::logprobs::Logprobs;
use super::prefill::{Prompt, prefill, prefill_with};
use super::tokens::CLEAR_CACHE_EVERY;
use super::{
    GenerateOptions, Input, OnProgress, Sampled, Sampling, check_tokens, make_caches, num_cached,
    quantize_if_due, token_array, token_limit,
};
use crate::cache::LayerCache;
use crate::models::Model;
use crate::sample::{DrawPosition, logprobs};
use crate::{LmError, ffi};
use pace::{EndedPass, Source};
use prompt_lookup::LookupDrafter;
use proposer::{Drawn, Number, Proposer};
use reader::Reader;

pub(super) use head::HeadReader;
pub use prompt_lookup::PromptLookup;

/// What proposes tokens.
#[derive(Debug)]
pub enum Drafter<'a> {
    /// A smaller model.
    Model(Draft<'a>),
    /// A smaller model, what followed the same tokens in the prompt or the answer, or nothing: what pays
    /// most, which is measured.
    ModelWhereItPays(Draft<'a>),
    /// Something that needs no other model.
    Own(OwnDrafter),
}

/// What proposes tokens without another model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnDrafter {
    /// What followed the same tokens in the prompt or the answer.
    PromptLookup(PromptLookup),
    /// The model's head that predicts further tokens, so many at once.
    MtpHead(usize),
    /// The head, if the model has one, what is looked up, or nothing: what pays most, which is
    /// measured.
    WhereItPays,
}

/// A draft model with its caches.
#[derive(Debug)]
pub struct Draft<'a> {
    /// The draft model; it must have the main model's vocabulary.
    pub model: &'a Model,
    /// Its caches, which must hold the same tokens as the main model's. Created if empty.
    pub caches: &'a mut Vec<LayerCache>,
}

/// A draft model with caches that may hold less of the sequence than the main model's.
#[derive(Debug)]
pub struct OwnedDraft {
    /// The draft model; it must have the main model's vocabulary.
    pub model: Model,
    /// Its caches of a beginning of prompt and cached tokens. Created if empty.
    pub caches: Vec<LayerCache>,
    /// How many tokens it proposes at a time; none: as many as pay, and where the look-up pays more or
    /// nothing does, none.
    pub number: Option<usize>,
}

impl<'a> From<Draft<'a>> for Drafter<'a> {
    fn from(draft: Draft<'a>) -> Self {
        Drafter::Model(draft)
    }
}

impl From<OwnDrafter> for Drafter<'_> {
    fn from(own: OwnDrafter) -> Self {
        Drafter::Own(own)
    }
}

impl From<PromptLookup> for Drafter<'_> {
    fn from(lookup: PromptLookup) -> Self {
        Drafter::Own(OwnDrafter::PromptLookup(lookup))
    }
}

impl OwnDrafter {
    /// The reader of the model's head, if it is to propose. Fails if it has to and there is none.
    pub(super) fn head(self, model: &Model) -> Result<Option<HeadReader>, LmError> {
        match self {
            OwnDrafter::PromptLookup(_) => Ok(None),
            OwnDrafter::MtpHead(_) => HeadReader::new(model).map(Some),
            OwnDrafter::WhereItPays => Ok(HeadReader::new(model).ok()),
        }
    }

    /// The proposer for a prompt.
    fn proposer<'t>(
        self,
        model: &Model,
        head: Option<HeadReader>,
        tokens: impl IntoIterator<Item = &'t u32>,
        prediction: &[u32],
    ) -> Proposer {
        let (number, looks_up) = match self {
            OwnDrafter::PromptLookup(PromptLookup::Always(number)) => {
                (Number::Always(number), true)
            }
            OwnDrafter::MtpHead(number) => (Number::Always(number), false),
            OwnDrafter::PromptLookup(PromptLookup::WhereItPays) | OwnDrafter::WhereItPays => {
                (Number::where_it_pays(model.pass_costs()), true)
            }
        };
        Proposer {
            drawn: head.map(|head| Drawn::Head(Box::new(head))),
            lookup: looks_up.then(|| Box::new(LookupDrafter::new(tokens, prediction))),
            number,
        }
    }
}

/// How many proposed tokens were accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Acceptance {
    /// Tokens proposed.
    pub num_drafted: usize,
    /// Tokens proposed, accepted and returned.
    pub num_accepted: usize,
    /// Tokens returned that the model chose in a pass over several ("target-verified"). Such a pass may add
    /// up in another order than one over a single token, so that of two tokens that are equally likely but
    /// for the last bits it, or a later pass, chooses the other. An answer without any is plain decoding's.
    pub num_checked: usize,
}

/// A stream of tokens generated with a drafter. It owns the caches until
/// [`SpeculativeStream::into_caches`].
#[derive(Debug)]
pub struct SpeculativeStream {
    main: Reader,
    proposer: Proposer,
    sampling: Sampling,
    history: History,
    /// Whether `history` has the token of the launched pass, which is not returned yet.
    history_is_ahead: bool,
    options: GenerateOptions,
    /// Whether passes are launched before their token is known.
    runs_ahead: bool,
    /// The prompt and the tokens returned so far.
    sequence: Vec<u32>,
    pass: Option<Pass>,
    /// Tokens of one pass that are chosen, but not returned yet.
    chosen: VecDeque<Sampled>,
    /// Whether that pass had proposals.
    is_checked: bool,
    num_sampled: usize,
    acceptance: Acceptance,
}

/// A launched pass over the last token and the proposals behind it.
#[derive(Debug)]
struct Pass {
    /// The token that the main model chooses behind each, u32 `[proposals + 1]`.
    tokens: Array,
    /// `[proposals + 1, V]`, if asked for.
    logprobs: Option<Array>,
    proposals: Proposals,
    source: Source,
    /// The hidden states `[1, L, D]` of the tokens that it reads, if a head needs them.
    hidden: Option<Array>,
    /// How many tokens the sequence has with the last one.
    sequence_length: usize,
    /// The last token, where it was not known yet and the proposals only follow this one.
    expects: Option<u32>,
    /// Where the random numbers stood before `tokens` were drawn.
    draws_from: DrawPosition,
    /// Whether it was launched while the pass before it was computed.
    is_ahead: bool,
}

/// Proposed tokens.
#[derive(Debug)]
enum Proposals {
    /// Drawn by a draft model, each `[1]`; they may not be computed yet.
    Drawn(Vec<Array>),
    /// Found on the host.
    Found(Vec<u32>),
}

impl Proposals {
    fn none() -> Self {
        Proposals::Found(Vec::new())
    }

    fn len(&self) -> usize {
        match self {
            Proposals::Drawn(tokens) => tokens.len(),
            Proposals::Found(tokens) => tokens.len(),
        }
    }

    /// Each as `[1]`.
    fn arrays(&self) -> Vec<Array> {
        match self {
            Proposals::Drawn(tokens) => tokens.clone(),
            Proposals::Found(tokens) => {
                tokens.iter().map(|&token| Array::from_slice(&[token], &[1])).collect()
            }
        }
    }

    /// `last` `[1, n]` and the proposals behind it.
    fn behind(&self, last: Array) -> Result<Array, LmError> {
        let mut input = vec![last];
        match self {
            Proposals::Found(tokens) if tokens.is_empty() => {}
            Proposals::Found(tokens) => input.push(token_array(tokens)),
            Proposals::Drawn(tokens) => {
                for token in tokens {
                    input.push(ops::reshape(token, &[1, 1])?);
                }
            }
        }
        Ok(if input.len() == 1 { input.remove(0) } else { ops::concatenate(&input, 1)? })
    }

    /// Waits for them.
    fn into_tokens(self) -> Result<Vec<u32>, LmError> {
        match self {
            Proposals::Found(tokens) => Ok(tokens),
            Proposals::Drawn(tokens) => {
                let read = |token: Array| Ok(token.try_as_slice::<u32>()?[0]);
                tokens.into_iter().map(read).collect()
            }
        }
    }
}

/// Reads `input` with the main model, and before it with the draft model if that is the drafter.
/// Arguments and errors are those of [`generate_step`](super::generate_step).
///
/// Fails also if the vocabularies differ, and if embeddings are given, because a drafter needs
/// tokens.
pub fn speculative_generate_step<'a>(
    model: &Model,
    drafter: impl Into<Drafter<'a>>,
    input: impl Into<Input<'a>>,
    caches: &mut Vec<LayerCache>,
    sampling: impl Into<Sampling>,
    mut options: GenerateOptions,
    on_progress: OnProgress<'_>,
) -> Result<SpeculativeStream, LmError> {
    let (drafter, input, sampling) = (drafter.into(), input.into(), sampling.into());
    options.validate()?;
    if input.embeddings.is_some() {
        return Err(LmError::DraftWithEmbeddings);
    }
    if let Drafter::Model(draft) | Drafter::ModelWhereItPays(draft) = &drafter {
        check_vocabularies(model, draft.model)?;
    }
    let prompt = Prompt::checked(&input, model)?;
    check_tokens(&options.prediction, model.vocab_size())?;
    let history = History::new(&sampling.processors, &[input.cached_tokens, input.tokens]);
    // A draft model keeps all tokens: it is small, and guesses better so.
    let all = GenerateOptions { snapkv: None, ..options.clone() };
    let all_tokens = || input.cached_tokens.iter().chain(input.tokens);
    let mut proposer = match drafter {
        Drafter::Model(draft) => {
            make_caches(draft.caches, draft.model, &all)?;
            make_caches(caches, model, &options)?;
            let reader = read_with_draft(draft, &prompt, &all, on_progress)?;
            let number = Number::Always(options.num_draft_tokens);
            Proposer { drawn: Some(Drawn::Model(reader)), lookup: None, number }
        }
        Drafter::ModelWhereItPays(draft) => {
            let pass_costs = draft.model.pass_costs();
            make_caches(draft.caches, draft.model, &all)?;
            make_caches(caches, model, &options)?;
            let reader = read_with_draft(draft, &prompt, &all, on_progress)?;
            let lookup = Some(Box::new(LookupDrafter::new(all_tokens(), &options.prediction)));
            Proposer {
                drawn: Some(Drawn::Model(reader)),
                lookup,
                number: Number::where_it_pays(pass_costs),
            }
        }
        Drafter::Own(own) => {
            let head = own.head(model)?;
            make_caches(caches, model, &options)?;
            own.proposer(model, head, all_tokens(), &options.prediction)
        }
    };
    options.max_tokens = token_limit(options.max_tokens, num_cached(caches) + prompt.len(), model);
    let mut on_hidden = |hidden: &Array, start: usize| match proposer.head_mut() {
        Some(head) => head.read_chunk(hidden, start, input.tokens),
        None => Ok(()),
    };
    prefill_with(&prompt, model, caches, &options, &mut on_hidden, on_progress)?;
    let main = Reader::new(model.clone(), std::mem::take(caches), prompt.len() - 1);
    SpeculativeStream::start(main, proposer, input.tokens.to_vec(), sampling, history, options)
}

/// Reads the prompt with a draft model. Its progress counts as none: that is of the main model's tokens.
fn read_with_draft(
    draft: Draft<'_>,
    prompt: &Prompt<'_>,
    options: &GenerateOptions,
    on_progress: OnProgress<'_>,
) -> Result<Reader, LmError> {
    let mut on_draft = |_, total| on_progress(0, total);
    prefill(prompt, draft.model, draft.caches, options, &mut on_draft)?;
    let caches = std::mem::take(draft.caches);
    Ok(Reader::new(draft.model.clone(), caches, prompt.len() - 1))
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
    /// A stream without another model. `caches` hold `input` but its last token, and so does the head.
    pub(super) fn with_own(
        (drafter, head): (OwnDrafter, Option<HeadReader>),
        (model, caches): (Model, Vec<LayerCache>),
        input: &Input<'_>,
        sampling: Sampling,
        history: History,
        options: GenerateOptions,
    ) -> Result<Self, LmError> {
        let tokens_seen = input.cached_tokens.iter().chain(input.tokens);
        let proposer = drafter.proposer(&model, head, tokens_seen, &options.prediction);
        let main = Reader::new(model, caches, input.tokens.len() - 1);
        let tokens = input.tokens.to_vec();
        SpeculativeStream::start(main, proposer, tokens, sampling, history, options)
    }

    /// A stream with a draft model, which reads what it has not read of `sequence` between the first
    /// tokens of the answer. `caches` hold `sequence` but its last token.
    pub(super) fn with_draft(
        draft: OwnedDraft,
        (model, caches): (Model, Vec<LayerCache>),
        sequence: Vec<u32>,
        sampling: Sampling,
        history: History,
        options: GenerateOptions,
    ) -> Result<Self, LmError> {
        let OwnedDraft { model: draft, caches: mut draft_caches, number } = draft;
        check_vocabularies(&model, &draft)?;
        if num_cached(&draft_caches) >= sequence.len() {
            draft_caches.clear(); // they hold another sequence
        }
        // All of the sequence is kept for it, also where the main model drops some.
        let kept = GenerateOptions { snapkv: None, ..options.clone() };
        make_caches(&mut draft_caches, &draft, &kept)?;
        let num_read = num_cached(&draft_caches);
        let (lookup, number) = match number {
            Some(number) => (None, Number::Always(number)),
            None => {
                let lookup = LookupDrafter::new(&sequence, &options.prediction);
                (Some(Box::new(lookup)), Number::where_it_pays(draft.pass_costs()))
            }
        };
        let drawn = Some(Drawn::Model(Reader::new(draft, draft_caches, num_read)));
        let main = Reader::new(model, caches, sequence.len() - 1);
        let proposer = Proposer { drawn, lookup, number };
        SpeculativeStream::start(main, proposer, sequence, sampling, history, options)
    }

    fn start(
        mut main: Reader,
        proposer: Proposer,
        sequence: Vec<u32>,
        sampling: Sampling,
        history: History,
        options: GenerateOptions,
    ) -> Result<Self, LmError> {
        if options.max_tokens == 0 {
            main.read_to(&sequence, sequence.len())?;
        }
        Ok(SpeculativeStream {
            main,
            proposer,
            sampling,
            history,
            history_is_ahead: false,
            options,
            runs_ahead: true,
            sequence,
            pass: None,
            chosen: VecDeque::new(),
            is_checked: false,
            num_sampled: 0,
            acceptance: Acceptance::default(),
        })
    }

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
            // A pass that was launched ahead is computed meanwhile: what is left of it tells nothing.
            let caught_up = self.let_draft_catch_up()?;
            let began = (!caught_up).then(Instant::now);
            let pass = match self.pass.take() {
                Some(pass) => pass,
                None => {
                    // A stream that was drained goes on by itself after all.
                    self.runs_ahead = true;
                    self.launch_next()?
                }
            };
            self.choose(pass, began)?;
        }
        let Some(sampled) = self.chosen.pop_front() else { return Ok(None) };
        self.sequence.push(sampled.token);
        self.proposer.push(sampled.token);
        if !std::mem::take(&mut self.history_is_ahead) {
            self.history.push(&Array::from_slice(&[sampled.token], &[1]))?;
        }
        self.num_sampled += 1;
        self.acceptance.num_accepted += usize::from(sampled.from_draft);
        self.acceptance.num_checked += usize::from(self.is_checked);
        if self.num_sampled.is_multiple_of(CLEAR_CACHE_EVERY) {
            memory::clear_cache()?;
        }
        Ok(Some(sampled))
    }

    /// Launches no more passes before their token is known, and returns whether none is under way: then
    /// the caches lack a token of those that were returned, behind which another can go on.
    pub fn drain(&mut self) -> Result<bool, LmError> {
        self.runs_ahead = false;
        let is_drained = self.pass.is_none() && self.chosen.is_empty();
        if is_drained {
            self.discard_unreturned()?;
        }
        Ok(is_drained)
    }

    /// How many proposed tokens were accepted so far.
    pub fn acceptance(&self) -> Acceptance {
        self.acceptance
    }

    /// Ends the stream and returns the main model's caches, and those of a draft model.
    ///
    /// Their offsets tell how many tokens of the prompt and the returned tokens they hold: at most
    /// all with prompt lookup, all but the last with a draft model, and a few fewer if a cache cannot
    /// be trimmed. After a failed step they must not be used.
    pub fn into_caches(mut self) -> Result<(Vec<LayerCache>, Option<Vec<LayerCache>>), LmError> {
        self.discard_unreturned()?;
        ffi::synchronize()?;
        let draft = match self.proposer.drawn {
            Some(Drawn::Model(reader)) => Some(reader.caches),
            Some(Drawn::Head(_)) | None => None,
        };
        Ok((self.main.caches, draft))
    }

    /// Rolls the caches back to the returned tokens, without the last one, which the next pass reads
    /// again.
    fn discard_unreturned(&mut self) -> Result<(), LmError> {
        self.chosen.clear();
        self.pass = None;
        let kv_quantization = self.options.kv_quantization.as_ref();
        for reader in self.proposer.draft_mut().into_iter().chain([&mut self.main]) {
            reader.go_back(self.sequence.len() - 1)?;
            quantize_if_due(&mut reader.caches, kv_quantization)?;
        }
        Ok(())
    }

    /// Lets a draft model that is far behind read a slice of the sequence, not before the first token.
    /// Returns whether it read.
    fn let_draft_catch_up(&mut self) -> Result<bool, LmError> {
        if self.num_sampled == 0 || !self.runs_ahead {
            return Ok(false);
        }
        let Some(draft) = self.proposer.wanted_draft() else { return Ok(false) };
        let has_read = draft.catch_up(&self.sequence)?;
        quantize_if_due(&mut draft.caches, self.options.kv_quantization.as_ref())?;
        Ok(has_read)
    }

    /// Launches a pass over the last token, which is known, and what is proposed behind it.
    fn launch_next(&mut self) -> Result<Pass, LmError> {
        self.discard_unreturned()?;
        let num_unread = self.sequence.len() - self.main.num_read;
        let num_left = self.options.max_tokens - self.num_sampled;
        let (source, number) =
            self.proposer.choose(self.sequence.len(), 0).unwrap_or((Source::LookedUp, 0));
        let proposals = match source {
            Source::Drawn => {
                let number = number.min(num_left);
                self.draw(self.most_proposals(num_unread, number))?
            }
            Source::LookedUp => {
                // The token behind the last proposal comes without one.
                let number = self.most_proposals(num_unread, number.min(num_left - 1));
                let lookup = self.proposer.lookup.as_ref();
                Proposals::Found(lookup.map(|lookup| lookup.propose(number)).unwrap_or_default())
            }
        };
        self.main.prepare(&self.sequence, proposals.len())?;
        let unread = token_array(&self.sequence[self.main.num_read..]);
        self.main.num_read = self.sequence.len() + proposals.len();
        self.launch(unread, (source, proposals), None, self.sequence.len())
    }

    /// Launches a pass over `token` `[1]`, which has not been computed yet, and what is proposed
    /// behind it.
    fn launch_ahead(&mut self, token: &Array) -> Result<Option<Pass>, LmError> {
        // `token` is one of those that are left, and so is the one behind it.
        let num_left = self.options.max_tokens - self.num_sampled;
        if num_left < 2 {
            return Ok(None);
        }
        let waits = self.proposer.waits_for_tokens();
        let choice = self.proposer.choose(self.sequence.len(), usize::from(!waits));
        let (expects, found) = match choice {
            // What draws has to know the token.
            Some((Source::Drawn, _)) => return Ok(None),
            Some(_) if waits => return Ok(None),
            Some((Source::LookedUp, number)) => {
                let lookup = self.proposer.lookup.as_ref();
                let limit = number.min(num_left - 2);
                lookup.and_then(|lookup| lookup.propose_after_next(limit)).unzip()
            }
            None => (None, None),
        };
        let mut found = found.unwrap_or_default();
        quantize_if_due(&mut self.main.caches, self.options.kv_quantization.as_ref())?;
        found.truncate(self.most_proposals(1, found.len()));
        let proposals = Proposals::Found(found);
        if proposals.len() > 0 {
            self.main.set_rollback_point(1 + proposals.len());
        }
        self.history.push(token)?;
        self.history_is_ahead = true;
        self.main.num_read += 1 + proposals.len();
        let length = self.sequence.len() + 1;
        let token = ops::reshape(token, &[1, 1])?;
        let pass = self.launch(token, (Source::LookedUp, proposals), expects, length)?;
        Ok(Some(Pass { is_ahead: true, ..pass }))
    }

    /// Launches a pass over `last` `[1, n]`, with which the sequence has `sequence_length` tokens, and
    /// proposals.
    fn launch(
        &mut self,
        last: Array,
        (source, proposals): (Source, Proposals),
        expects: Option<u32>,
        sequence_length: usize,
    ) -> Result<Pass, LmError> {
        self.acceptance.num_drafted += proposals.len();
        let rows = proposals.len() as i32 + 1;
        let (logits, hidden) = self.main.last_logits(&proposals.behind(last)?, rows)?; // [rows, V]
        let hidden = self.proposer.head_mut().map(|_| hidden);
        let logits = self.process_rows(logits, &proposals)?;
        let draws_from = self.sampling.sampler.position();
        let tokens = self.sampling.sampler.sample_successive(&logits)?; // [rows]
        let logprobs =
            if self.options.num_top_logprobs.is_some() { Some(logprobs(&logits)?) } else { None };
        async_eval(std::iter::once(&tokens).chain(&logprobs).chain(self.history.array()))?;
        Ok(Pass {
            tokens,
            logprobs,
            proposals,
            source,
            hidden,
            sequence_length,
            expects,
            draws_from,
            is_ahead: false,
        })
    }

    /// How many of `number` proposals one pass may read behind `num_unread` tokens.
    fn most_proposals(&self, num_unread: usize, number: usize) -> usize {
        let mut number = number;
        if let Some(quantization) = &self.options.kv_quantization {
            // From here on each token attends to quantized keys, those before it do not.
            let offset = num_cached(&self.main.caches);
            if offset < quantization.start {
                number = number.min((quantization.start - offset).saturating_sub(num_unread));
            }
        }
        // Proposals that the main model has to read one by one gain nothing.
        if self.main.reads_one_by_one(num_unread + number) { 0 } else { number }
    }

    /// Waits for a pass and chooses the tokens up to the first that was not proposed. The next pass
    /// is launched before, where it does not depend on that. `began` is none where what the pass takes
    /// cannot be seen.
    fn choose(&mut self, pass: Pass, began: Option<Instant>) -> Result<(), LmError> {
        let Pass { tokens, logprobs, proposals, expects, draws_from, .. } = pass;
        let num_proposed = proposals.len();
        self.is_checked = num_proposed > 0;
        if num_proposed == 0 && self.runs_ahead {
            self.pass = self.launch_ahead(&tokens)?;
        }
        let tokens = tokens.try_as_slice::<u32>()?;
        let mut proposed = proposals.into_tokens()?;
        if expects.is_some_and(|expected| self.sequence.last() != Some(&expected)) {
            proposed.clear();
        }
        let num_left = self.options.max_tokens - self.num_sampled;
        for (index, &token) in tokens.iter().enumerate().take(num_left) {
            let from_draft = proposed.get(index) == Some(&token);
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
        if num_proposed > 0 {
            self.sampling.sampler.go_back(&draws_from, self.chosen.len());
        }
        if let (Some(head), Some(hidden)) = (self.proposer.head_mut(), &pass.hidden) {
            let num_before = hidden.dim(1) as usize - num_proposed;
            let end = pass.sequence_length + self.chosen.len() - 1;
            head.push(hidden, pass.sequence_length - num_before, end)?;
        }
        let num_right = self.chosen.iter().filter(|sampled| sampled.from_draft).count();
        let next_is_plain = self.pass.as_ref().is_some_and(|next| next.proposals.len() == 0);
        let ended = EndedPass {
            source: pass.source,
            num_proposed,
            took: began.map(|began| began.elapsed()),
            is_between_plain: pass.is_ahead && next_is_plain,
        };
        self.proposer.passed(ended, num_right);
        Ok(())
    }

    /// The next tokens as the draft model or the head predicts them, launched but not waited for.
    fn draw(&mut self, num_tokens: usize) -> Result<Proposals, LmError> {
        let SpeculativeStream { proposer, sequence, sampling, history, .. } = self;
        if num_tokens == 0 {
            return Ok(Proposals::none());
        }
        let draws_from = sampling.sampler.position();
        let mut draw = |logits: Array, drawn: &[Array]| -> Result<Array, LmError> {
            let logits = history.process(&mut sampling.processors, drawn, logits)?;
            let token = sampling.sampler.sample(&logits)?;
            async_eval([&token])?;
            Ok(token)
        };
        let drawn = match &mut proposer.drawn {
            Some(Drawn::Model(draft)) => draft.draw(sequence, num_tokens, &mut draw)?,
            Some(Drawn::Head(head)) => head.draw(sequence, num_tokens, &mut draw)?,
            None => Vec::new(),
        };
        // The main model draws with the same random numbers.
        sampling.sampler.go_back(&draws_from, 0);
        Ok(Proposals::Drawn(drawn))
    }

    /// Applies processors to the logits `[rows, V]`: for row `i` they see the first `i` proposals.
    fn process_rows(&mut self, logits: Array, proposals: &Proposals) -> Result<Array, LmError> {
        if self.sampling.processors.is_empty() {
            return Ok(logits);
        }
        let (proposals, vocab_size) = (proposals.arrays(), logits.dim(1));
        let mut rows = Vec::with_capacity(proposals.len() + 1);
        for index in 0..=proposals.len() {
            let row = ffi::slice(&logits, &[index as i32, 0], &[index as i32 + 1, vocab_size])?;
            rows.push(self.history.process(
                &mut self.sampling.processors,
                &proposals[..index],
                row,
            )?);
        }
        Ok(ops::concatenate(&rows, 0)?)
    }
}

/// Row `index` of `[rows, V]`, `[V]`.
fn row(rows: &Array, index: i32) -> Result<Array, LmError> {
    let vocab_size = rows.dim(1);
    Ok(ops::reshape(&ffi::slice(rows, &[index, 0], &[index + 1, vocab_size])?, &[vocab_size])?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use crate::cache::make_prompt_cache;
    use crate::{LoadOptions, LoadedModel};

    /// What is left of a pass after the draft model has read is no measurement of it.
    #[test]
    fn a_pass_during_which_the_draft_model_reads_is_not_measured() {
        let folder = cairn_tiny_models::tiny_model("llama/dense-tied");
        let model = LoadedModel::load(&folder, LoadOptions::new()).unwrap().model;
        let sequence: Vec<u32> = (0..400).map(|index| (index * index + 7 * index) % 101).collect();
        let mut caches = make_prompt_cache(&model, None).unwrap();
        model.forward(&token_array(&sequence[..399]), &mut caches).unwrap();
        let draft = OwnedDraft { model: model.clone(), caches: Vec::new(), number: None };
        let options = GenerateOptions { max_tokens: 40, ..GenerateOptions::default() };
        let (sampling, history) = (Sampling::default(), History::new(&Default::default(), &[]));
        let main = (model, caches);
        let mut stream =
            SpeculativeStream::with_draft(draft, main, sequence, sampling, history, options)
                .unwrap();
        let seen = |stream: &mut SpeculativeStream| {
            let Number::WhereItPays(pace) = &stream.proposer.number else { panic!("it measures") };
            let plain = pace.plain_pass();
            (stream.proposer.draft_mut().unwrap().num_read, plain)
        };
        let mut num_slices = 0;
        loop {
            let (read_before, plain_before) = seen(&mut stream);
            if stream.next_token().unwrap().is_none() {
                break;
            }
            let (read, plain) = seen(&mut stream);
            if read >= read_before + 64 {
                num_slices += 1;
                assert_eq!(plain, plain_before, "{read_before} to {read}");
            }
        }
        assert!(num_slices > 0);
    }
}
