//! Prefill of one prompt in slices, between which the caller may do other work.

use std::ops::Range;
use std::time::Duration;

use mlx_rs::Array;

use super::history::History;
use super::prefill::{Forward, prefill_chunks};
use super::speculative::HeadReader;
use super::tokens::TokenStream;
use super::{
    GenerateOptions, Input, OwnDrafter, OwnedDraft, Sampling, SpeculativeStream, check_tokens,
    make_caches, num_cached, token_array, token_limit,
};
use crate::LmError;
use crate::cache::{Choice, Compressed, LayerCache};
use crate::models::Model;

/// A prompt that is read slice by slice, and then becomes a [`TokenStream`]. It owns its tokens and
/// caches.
///
/// After a slice has failed, the caches are empty and the reader is of no further use.
#[derive(Debug)]
pub struct PromptReader {
    model: Model,
    /// The tokens after those that the caches held at first.
    tokens: Vec<u32>,
    num_read: usize,
    caches: Vec<LayerCache>,
    choice: Choice,
    sampling: Sampling,
    history: History,
    options: GenerateOptions,
    drafter: Option<(OwnDrafter, Option<HeadReader>)>,
}

impl PromptReader {
    /// A reader of `tokens` after what `caches` hold (an empty vector is filled). Processors see
    /// `cached_tokens` before them.
    ///
    /// Reads nothing yet. Fails on the arguments that [`generate_step`](super::generate_step)
    /// refuses.
    pub fn new(
        model: &Model,
        tokens: Vec<u32>,
        cached_tokens: &[u32],
        mut caches: Vec<LayerCache>,
        sampling: impl Into<Sampling>,
        mut options: GenerateOptions,
    ) -> Result<Self, LmError> {
        let sampling = sampling.into();
        options.validate()?;
        if tokens.is_empty() {
            return Err(LmError::EmptyPrompt);
        }
        check_tokens(&tokens, model.vocab_size())?;
        // Processors index logits by them, and MLX does not check indices.
        check_tokens(cached_tokens, model.vocab_size())?;
        check_tokens(&options.prediction, model.vocab_size())?;
        make_caches(&mut caches, model, &options)?;
        let num_prompt_tokens = num_cached(&caches) + tokens.len();
        options.max_tokens = token_limit(options.max_tokens, num_prompt_tokens, model);
        let history = History::new(&sampling.processors, &[cached_tokens, &tokens]);
        let model = model.clone();
        Ok(PromptReader {
            model,
            tokens,
            num_read: 0,
            caches,
            choice: Choice::default(),
            sampling,
            history,
            options,
            drafter: None,
        })
    }

    /// The same with something that proposes tokens of the answer: a head reads the prompt too. Fails if
    /// the model lacks what is asked for.
    pub fn with_drafter(mut self, drafter: OwnDrafter) -> Result<Self, LmError> {
        self.drafter = Some((drafter, drafter.head(&self.model)?));
        Ok(self)
    }

    /// How many tokens have been read, without those that the caches held at first.
    pub fn num_read(&self) -> usize {
        self.num_read
    }

    /// How many tokens [`PromptReader::read`] has yet to read: the last one is left to
    /// [`PromptReader::start`].
    pub fn num_left(&self) -> usize {
        self.tokens.len() - 1 - self.num_read
    }

    /// The caches of what has been read.
    pub fn caches(&self) -> &[LayerCache] {
        &self.caches
    }

    /// Ends the prefill early and returns the caches.
    pub fn into_caches(self) -> Vec<LayerCache> {
        self.caches
    }

    /// Reads the next `max_tokens`, or all that are left.
    pub fn read(&mut self, max_tokens: usize) -> Result<(), LmError> {
        let end = self.num_read + max_tokens.min(self.num_left());
        self.read_range(self.num_read..end)?;
        self.num_read = end;
        Ok(())
    }

    /// Reads what is left of the tokens before the last one, and drops those that the options do not
    /// keep. Returns what has been dropped now; `None` if nothing was.
    pub fn compress(&mut self) -> Result<Option<Compressed>, LmError> {
        self.read(self.num_left())?;
        loop {
            if let Some(compressed) = self.compress_within(Duration::MAX)? {
                return Ok(compressed);
            }
        }
    }

    /// A part of [`PromptReader::compress`], of about this duration or of one layer. `None` while more is
    /// left; the caches are whole until then.
    pub fn compress_within(
        &mut self,
        limit: Duration,
    ) -> Result<Option<Option<Compressed>>, LmError> {
        self.read(self.num_left())?;
        let Some(snapkv) = self.options.snapkv else { return Ok(Some(None)) };
        let is_chosen = self.choice.advance(&self.caches, &snapkv, limit);
        if !is_chosen.inspect_err(|_| self.caches.clear())? {
            return Ok(None);
        }
        self.options.snapkv = None;
        let choice = std::mem::take(&mut self.choice);
        choice.apply(&mut self.caches, &snapkv).inspect_err(|_| self.caches.clear()).map(Some)
    }

    /// Reads what is left, samples the first token and launches its computation. With a
    /// `max_tokens` of 0 nothing is sampled, and the caches hold the whole prompt.
    pub fn start(mut self) -> Result<TokenStream, LmError> {
        self.compress()?;
        let last = token_array(&self.tokens[self.num_read..]);
        let hidden = self.model.forward(&last, &mut self.caches)?;
        let PromptReader { model, caches, sampling, history, options, .. } = self;
        TokenStream::start(model, caches, sampling, history, options, &hidden)
    }

    /// As [`PromptReader::start`], with proposals of its drafter, which sees `cached_tokens` before the
    /// prompt. Without a drafter nothing is looked up that would not pay.
    pub fn start_speculating(
        mut self,
        cached_tokens: &[u32],
    ) -> Result<SpeculativeStream, LmError> {
        self.compress()?;
        let PromptReader { model, tokens, caches, sampling, history, options, drafter, .. } = self;
        let input = Input { tokens: &tokens, embeddings: None, cached_tokens };
        let drafter = drafter.unwrap_or((OwnDrafter::WhereItPays, None));
        let main = (model, caches);
        SpeculativeStream::with_own(drafter, main, &input, sampling, history, options)
    }

    /// As [`PromptReader::start`], with proposals of a draft model, which reads what its caches lack between
    /// the first tokens of the answer. `cached_tokens` are all tokens that the caches held at first.
    pub fn start_with_draft(
        mut self,
        cached_tokens: &[u32],
        draft: OwnedDraft,
    ) -> Result<SpeculativeStream, LmError> {
        self.compress()?;
        let PromptReader { model, tokens, caches, sampling, history, options, .. } = self;
        let sequence = [cached_tokens, &tokens].concat();
        let main = (model, caches);
        SpeculativeStream::with_draft(draft, main, sequence, sampling, history, options)
    }

    fn read_range(&mut self, range: Range<usize>) -> Result<(), LmError> {
        let PromptReader { model, tokens, caches, options, drafter, .. } = self;
        let mut head = drafter.as_mut().and_then(|(_, head)| head.as_mut());
        let forward: Forward<'_> =
            &mut |range: Range<usize>, caches: &mut [LayerCache]| -> Result<Array, LmError> {
                let hidden = model.forward(&token_array(&tokens[range.clone()]), caches)?;
                if let Some(head) = &mut head {
                    head.read_chunk(&hidden, range.start, tokens)?;
                }
                Ok(hidden)
            };
        prefill_chunks(
            range,
            options.prefill_step_size,
            forward,
            caches,
            options.kv_quantization.as_ref(),
            &mut |_| std::ops::ControlFlow::Continue(()),
        )
    }
}
