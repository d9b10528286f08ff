//! A sequence that does not share a batch, because its keys and values are quantized or its tokens are
//! proposed. It owns its caches and takes turns with the batches, one step each.
//!
//! A draft model continues from the prompt cache too. What it has not read of the prompt it reads between
//! the first tokens of the answer, so that nobody waits for it.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use cairn_chat::{Encode, FinishReason};
use cairn_lm::cache::LayerCache;
use cairn_lm::{
    Acceptance, GenerateOptions, LmError, LoadedModel, OwnedDraft, PromptReader, Sampled,
    SpeculativeStream, TokenStream,
};

use crate::EngineError;
use crate::guard::caught;
use crate::model_pool::Loaded;
use crate::prompt_cache::PendingRestore;
use crate::request::Speculation;
use crate::sequence::{Sequence, SequenceDraft};
use crate::worker::Worker;

/// An unbatched sequence.
pub(crate) struct UnbatchedRun {
    sequence: Sequence,
    stream: Stream,
    eos_token_ids: BTreeSet<u32>,
}

/// Where its tokens come from.
enum Stream {
    /// The prompt is being read.
    Reading(Box<PromptReader>),
    /// Tokens are being decoded.
    Decoding(Box<TokenStream>),
    /// Tokens are proposed and decoded.
    Speculating(Box<SpeculativeStream>),
    /// The run has ended.
    Ended,
}

/// How a slice of an unbatched sequence ended.
pub(crate) enum RunStep {
    /// It goes on.
    Continues,
    /// The answer has ended.
    Ends(FinishReason),
}

impl UnbatchedRun {
    /// A run that continues `caches`, which contain the cached beginning of the prompt. `of_draft` is what
    /// has been restored for a draft model.
    pub(crate) fn new(
        worker: &mut Worker,
        mut sequence: Sequence,
        caches: Vec<LayerCache>,
        of_draft: Option<PendingRestore>,
    ) -> Result<Self, EngineError> {
        sequence.draft = draft(worker, &sequence, of_draft)?;
        sequence.prefilled(0);
        let reader = reader(&mut sequence, caches)?;
        let eos_token_ids = sequence.eos_token_ids()?;
        Ok(UnbatchedRun { sequence, stream: Stream::Reading(Box::new(reader)), eos_token_ids })
    }

    pub(crate) fn loaded(&self) -> &Rc<Loaded> {
        &self.sequence.loaded
    }

    pub(crate) fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    pub(crate) fn sequence_mut(&mut self) -> &mut Sequence {
        &mut self.sequence
    }

    pub(crate) fn is_reading(&self) -> bool {
        match &self.stream {
            Stream::Reading(_) => true,
            Stream::Decoding(_) | Stream::Speculating(_) | Stream::Ended => false,
        }
    }

    /// How many prompt tokens are not read yet, the last one included.
    pub(crate) fn num_unread_tokens(&self) -> usize {
        match &self.stream {
            Stream::Reading(reader) => reader.num_left() + 1,
            Stream::Decoding(_) | Stream::Speculating(_) | Stream::Ended => 0,
        }
    }

    /// How many prompt tokens are left to the passes that read: the last one is read by the pass that
    /// samples the first token.
    pub(crate) fn num_left_to_read(&self) -> usize {
        self.num_unread_tokens().saturating_sub(1)
    }

    /// Reads at most `max_tokens` of the prompt. After an error the run is of no further use.
    pub(crate) fn prefill(&mut self, max_tokens: usize) -> Result<RunStep, EngineError> {
        caught("reading a prompt", || self.read(max_tokens))
    }

    /// Decodes one token, or returns one of those that were proposed. After an error the run is of no
    /// further use.
    pub(crate) fn decode(&mut self) -> Result<RunStep, EngineError> {
        caught("answering", || self.next_token())
    }

    /// Ends the answer and saves its caches.
    pub(crate) fn finish(self, worker: &mut Worker, reason: FinishReason) {
        let UnbatchedRun { mut sequence, stream, .. } = self;
        sequence.acceptance = acceptance(&stream);
        let caches = worker.guarded("ending an answer", |_| match stream {
            Stream::Reading(reader) => Ok(reader.into_caches()),
            // Waits for the step that was launched in advance.
            Stream::Decoding(stream) => Ok(stream.into_caches()?),
            Stream::Speculating(stream) => Ok(end(*stream, &mut sequence)?),
            Stream::Ended => Ok(Vec::new()),
        });
        let caches = caches.unwrap_or_else(|error| {
            tracing::warn!(%error, "the caches of an answer are lost");
            Vec::new()
        });
        sequence.finish(worker, reason, caches);
    }

    /// Whether it could share a batch: it only decodes by itself for the tokens that are proposed where
    /// that pays.
    pub(crate) fn may_share(&self) -> bool {
        let request = &self.sequence.job.request;
        let looks_up = matches!(request.speculation, Speculation::Auto);
        let decodes = matches!(self.stream, Stream::Speculating(_));
        // One that has all its tokens ends with its next step.
        let goes_on = self.sequence.sampled.len() < self.sequence.max_tokens;
        let can_begin_again = goes_on && self.sequence.all_tokens().is_some();
        looks_up && decodes && !request.is_unbatched() && can_begin_again
    }

    /// Prepares to leave for a batch, and returns whether it can do so now. Otherwise it can after some
    /// more tokens.
    pub(crate) fn drain(&mut self) -> Result<bool, EngineError> {
        match &mut self.stream {
            Stream::Speculating(stream) => Ok(stream.drain()?),
            _ => Ok(false),
        }
    }

    /// The sequence and its caches, once it is drained.
    pub(crate) fn into_drained(self) -> Result<(Sequence, Vec<LayerCache>), EngineError> {
        let UnbatchedRun { mut sequence, stream, .. } = self;
        sequence.acceptance = acceptance(&stream);
        let caches = match stream {
            Stream::Speculating(stream) => end(*stream, &mut sequence)?,
            _ => Vec::new(),
        };
        Ok((sequence, caches))
    }

    /// Ends the answer with an error.
    pub(crate) fn fail(self, error: EngineError) {
        self.sequence.job.fail(error);
    }

    fn read(&mut self, max_tokens: usize) -> Result<RunStep, EngineError> {
        let max_tokens = max_tokens.min(self.sequence.job.request.prefill_step_size).max(1);
        match std::mem::replace(&mut self.stream, Stream::Ended) {
            Stream::Reading(mut reader) => {
                let was_read = reader.num_left() == 0;
                if !was_read {
                    read_to_checkpoint(&mut self.sequence, &mut reader, max_tokens)?;
                }
                let may_choose = was_read || self.sequence.job.request.kv_cache.snapkv.is_none();
                let chosen = match reader.num_left() == 0 && may_choose {
                    true => reader.compress_within(CHOOSING_PART)?,
                    false => None,
                };
                self.stream = if reader.num_left() > 0 || chosen.is_none() {
                    Stream::Reading(reader)
                } else {
                    if let Some(compressed) = chosen.flatten() {
                        self.sequence.record_compression(compressed, reader.caches());
                    }
                    let stream = start(&mut self.sequence, *reader)?;
                    self.sequence.prefilled_all();
                    stream
                };
                Ok(RunStep::Continues)
            }
            other => {
                self.stream = other;
                Ok(RunStep::Continues)
            }
        }
    }

    fn next_token(&mut self) -> Result<RunStep, EngineError> {
        let sampled = match &mut self.stream {
            Stream::Decoding(stream) => stream.next_token()?,
            Stream::Speculating(stream) => stream.next_token()?,
            Stream::Reading(_) | Stream::Ended => return Ok(RunStep::Continues),
        };
        let sequence = &mut self.sequence;
        let Some(Sampled { token, logprobs, .. }) = sampled else {
            return Ok(RunStep::Ends(FinishReason::Length));
        };
        if self.eos_token_ids.contains(&token) {
            sequence.end_of_sequence(token);
            return Ok(RunStep::Ends(FinishReason::Stop));
        }
        let logprobs = logprobs
            .filter(|_| sequence.job.request.num_top_logprobs.is_some())
            .map(|logprobs| (logprobs.own, logprobs.top));
        if sequence.token(token, logprobs)? {
            return Ok(RunStep::Ends(FinishReason::Stop));
        }
        Ok(RunStep::Continues)
    }
}

fn acceptance(stream: &Stream) -> Acceptance {
    match stream {
        Stream::Speculating(stream) => stream.acceptance(),
        Stream::Reading(_) | Stream::Decoding(_) | Stream::Ended => Acceptance::default(),
    }
}

/// How long others wait at once while an answer chooses what is kept of its prompt, about.
const CHOOSING_PART: Duration = Duration::from_millis(50);

/// Reads at most `max_tokens`, and not beyond the next checkpoint, which is taken there.
fn read_to_checkpoint(
    sequence: &mut Sequence,
    reader: &mut PromptReader,
    max_tokens: usize,
) -> Result<(), EngineError> {
    let num_read = reader.num_read();
    let stops = sequence.uncached_stops().into_iter();
    let next = stops.filter(|&position| position > num_read).min();
    reader.read(next.map_or(max_tokens, |position| max_tokens.min(position - num_read)))?;
    if reader.num_read() > 0 {
        sequence.prefilled(reader.num_read());
    }
    if sequence.is_awaited() {
        sequence.awaited.keep(reader.caches().to_vec());
    }
    if next == Some(reader.num_read()) && sequence.is_checkpoint(reader.num_read()) {
        sequence.add_checkpoint(reader.caches().to_vec());
    }
    Ok(())
}

fn reader(sequence: &mut Sequence, caches: Vec<LayerCache>) -> Result<PromptReader, EngineError> {
    let sampling = sequence.sampling()?;
    let prediction = prediction(sequence);
    let request = &sequence.job.request;
    let options = GenerateOptions {
        max_tokens: sequence.max_tokens,
        prefill_step_size: request.prefill_step_size,
        num_top_logprobs: request.num_top_logprobs,
        kv_quantization: request.kv_cache.quantization,
        snapkv: request.kv_cache.snapkv,
        prediction,
        ..GenerateOptions::default()
    };
    let model = &sequence.loaded.model;
    let (cached_tokens, tokens) = sequence.cached_and_uncached();
    let reader =
        PromptReader::new(&model.model, tokens, &cached_tokens, caches, sampling, options)?;
    match request.speculation.own_drafter().filter(|_| sequence.draft.is_none()) {
        Some(drafter) => Ok(reader.with_drafter(drafter)?),
        None => Ok(reader),
    }
}

/// The tokens of what the answer is expected to say; none where nothing is looked up.
fn prediction(sequence: &Sequence) -> Vec<u32> {
    let request = &sequence.job.request;
    match request.prediction.as_ref().filter(|_| request.speculation.looks_up()) {
        Some(text) => predicted_tokens(&sequence.loaded.model, text),
        None => Vec::new(),
    }
}

/// More bytes than nearly all tokens of text have.
const MOST_BYTES_PER_TOKEN: usize = 16;

/// The tokens of `text`, no more than a context has: a client may send megabytes, and other answers wait
/// until they are tokens. What cannot be looked up proposes nothing, and fails nothing.
fn predicted_tokens(model: &LoadedModel, text: &str) -> Vec<u32> {
    let most = model.model.context_length();
    let text = &text[..text.floor_char_boundary(most.saturating_mul(MOST_BYTES_PER_TOKEN))];
    let mut tokens = match model.tokenizer.encode_plain(text) {
        Ok(tokens) => tokens,
        Err(error) => {
            tracing::warn!(%error, "a prediction was not looked up");
            Vec::new()
        }
    };
    // Some tokenizers have tokens that their model does not.
    let is_foreign = |token: &u32| *token as usize >= model.model.vocab_size();
    let num_known = tokens.iter().position(is_foreign).unwrap_or(tokens.len());
    tokens.truncate(num_known.min(most));
    tokens
}

/// Starts decoding, with proposals where the request asks for them.
fn start(sequence: &mut Sequence, reader: PromptReader) -> Result<Stream, EngineError> {
    let speculation = sequence.job.request.speculation;
    let (cached_tokens, _) = sequence.cached_and_uncached();
    if let (Some(draft), Some(number)) = (&mut sequence.draft, speculation.wanted_draft()) {
        let caches = std::mem::take(&mut draft.caches);
        let draft = OwnedDraft { model: draft.loaded.model.model.clone(), caches, number };
        return Ok(Stream::Speculating(Box::new(reader.start_with_draft(&cached_tokens, draft)?)));
    }
    if speculation.own_drafter().is_none() {
        return Ok(Stream::Decoding(Box::new(reader.start()?)));
    }
    Ok(Stream::Speculating(Box::new(reader.start_speculating(&cached_tokens)?)))
}

/// Ends a stream, and gives the draft model's caches back to the sequence.
fn end(stream: SpeculativeStream, sequence: &mut Sequence) -> Result<Vec<LayerCache>, EngineError> {
    let (caches, of_draft) = stream.into_caches()?;
    if let (Some(draft), Some(of_draft)) = (&mut sequence.draft, of_draft) {
        draft.caches = of_draft;
    }
    Ok(caches)
}

/// The draft model that proposes for a sequence, with what it has read of the prompt before. Fails if the
/// request needs one and there is none.
fn draft(
    worker: &mut Worker,
    sequence: &Sequence,
    pending: Option<PendingRestore>,
) -> Result<Option<SequenceDraft>, EngineError> {
    let request = &sequence.job.request;
    let needs_one = request.speculation.draft_tokens().is_some() && request.suits_draft();
    match worker.draft_for(&sequence.loaded, request) {
        Some(loaded) => {
            let draft = SequenceDraft::begin(worker, loaded, request, &sequence.prompt, pending)?;
            Ok(Some(draft))
        }
        None if needs_one => Err(LmError::NoDraftModel.into()),
        None => Ok(None),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use cairn_lm::LoadOptions;
    use cairn_tiny_models::tiny_model;

    use super::*;

    #[test]
    fn a_prediction_has_at_most_the_tokens_of_a_context() {
        let model = LoadedModel::load(&tiny_model("llama/tiny-chat"), LoadOptions::new()).unwrap();
        let most = model.model.context_length();
        assert_eq!(predicted_tokens(&model, &"häuser ".repeat(most * 4)).len(), most);
        let few = model.tokenizer.encode_plain("häuser").unwrap();
        assert_eq!(predicted_tokens(&model, "häuser"), few);
        assert!(predicted_tokens(&model, "").is_empty());
    }
}
