//! Streaming generation of text, with stop rules, statistics and an optional drafter.

use std::time::Instant;

use cairn_chat::FinishReason;
use mlx_rs::Array;

use super::response::Clock;
use super::text::AnswerText;
use super::{
    Acceptance, Drafter, GenerateOptions, Generated, GenerationResponse, Input, OnProgress,
    Sampled, Sampling, SpeculativeStream, Stops, TokenStream, generate_step,
    speculative_generate_step,
};
use crate::cache::LayerCache;
use crate::{LmError, LoadedModel};

/// The arguments of [`stream_generate`].
pub struct StreamRequest<'a> {
    /// The prompt.
    pub input: Input<'a>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// What ends the answer.
    pub stops: Stops,
    /// Limits, cache settings, log-probabilities.
    pub options: GenerateOptions,
    /// Caches to continue from; created if the vector is empty. On success the stream takes them
    /// and [`ResponseStream::into_caches`] returns them; on an error they are as [`generate_step`]
    /// leaves them.
    pub caches: Option<&'a mut Vec<LayerCache>>,
    /// What proposes tokens, for speculative decoding.
    pub drafter: Option<Drafter<'a>>,
    /// Called with the progress of the prefill.
    pub on_progress: Option<OnProgress<'a>>,
}

impl<'a> StreamRequest<'a> {
    /// Greedy generation after `input` that ends with the model's own end-of-sequence tokens.
    pub fn new(loaded: &LoadedModel, input: impl Into<Input<'a>>) -> Self {
        StreamRequest {
            input: input.into(),
            sampling: Sampling::default(),
            stops: Stops::of(loaded),
            options: GenerateOptions::default(),
            caches: None,
            drafter: None,
            on_progress: None,
        }
    }
}

/// The iterator of [`stream_generate`]: one response per token, the last with a finish reason.
/// After an error it ends too.
#[derive(Debug)]
pub struct ResponseStream {
    tokens: Tokens,
    text: AnswerText,
    clock: Clock,
    max_tokens: usize,
    has_ended: bool,
}

#[derive(Debug)]
enum Tokens {
    Plain(Box<TokenStream>),
    Speculative(Box<SpeculativeStream>),
}

/// Reads the prompt and returns an iterator over the generated tokens. Fails if `max_tokens` is 0,
/// because the last response needs a token.
pub fn stream_generate(
    loaded: &LoadedModel,
    request: StreamRequest<'_>,
) -> Result<ResponseStream, LmError> {
    let StreamRequest { input, sampling, stops, options, caches, drafter, on_progress } = request;
    if options.max_tokens == 0 {
        return Err(LmError::OutOfRange {
            name: "max_tokens",
            value: "0".to_owned(),
            allowed: "1 or more".to_owned(),
        });
    }
    let text = AnswerText::new(&loaded.tokenizer, stops)?;
    let num_read = match input.embeddings.map(Array::shape) {
        Some([.., length, _]) => *length as usize,
        Some(_) | None => input.tokens.len(), // embeddings of another shape are refused below
    };
    let prompt_tokens = input.cached_tokens.len() + num_read;
    let clock =
        Clock { prompt_tokens, num_read, began: Instant::now(), first_token: None, num_sampled: 0 };
    let mut own_caches = Vec::new();
    let caches = caches.unwrap_or(&mut own_caches);
    let mut go_on = |_, _| std::ops::ControlFlow::Continue(());
    let on_progress = on_progress.unwrap_or(&mut go_on);
    let model = &loaded.model;
    let tokens = match drafter {
        None => Tokens::Plain(Box::new(generate_step(
            model,
            input,
            caches,
            sampling,
            options,
            on_progress,
        )?)),
        Some(drafter) => Tokens::Speculative(Box::new(speculative_generate_step(
            model,
            drafter,
            input,
            caches,
            sampling,
            options,
            on_progress,
        )?)),
    };
    let max_tokens = match &tokens {
        Tokens::Plain(stream) => stream.max_tokens(),
        Tokens::Speculative(stream) => stream.max_tokens(),
    };
    Ok(ResponseStream { tokens, text, clock, max_tokens, has_ended: false })
}

/// Runs [`stream_generate`] to its end and returns the whole answer.
pub fn generate(loaded: &LoadedModel, request: StreamRequest<'_>) -> Result<Generated, LmError> {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    let mut stream = stream_generate(loaded, request)?;
    loop {
        let Some(response) = stream.next().transpose()? else { return Err(LmError::EmptyPrompt) };
        text.push_str(&response.text);
        tokens.push(response.token);
        tokens.truncate(response.generation_tokens);
        if response.finish_reason.is_some() {
            return Ok(Generated { text, tokens, last: response });
        }
    }
}

impl ResponseStream {
    /// How many draft tokens were accepted; zeros without a drafter.
    pub fn acceptance(&self) -> Acceptance {
        match &self.tokens {
            Tokens::Plain(_) => Acceptance::default(),
            Tokens::Speculative(stream) => stream.acceptance(),
        }
    }

    /// Ends the stream and returns the model's caches, and those of the draft model if there is
    /// one.
    ///
    /// Their offsets tell how many tokens of the prompt and the answer they hold. After an error
    /// they must not be used.
    pub fn into_caches(self) -> Result<(Vec<LayerCache>, Option<Vec<LayerCache>>), LmError> {
        match self.tokens {
            Tokens::Plain(stream) => Ok((stream.into_caches()?, None)),
            Tokens::Speculative(stream) => stream.into_caches(),
        }
    }

    /// Ends the answer early and returns the text that was withheld.
    pub fn stop(&mut self) -> Result<String, LmError> {
        self.has_ended = true;
        Ok(self.text.finish()?.text)
    }

    fn next_response(&mut self) -> Result<Option<GenerationResponse>, LmError> {
        let sampled = match &mut self.tokens {
            Tokens::Plain(stream) => stream.next_token()?,
            Tokens::Speculative(stream) => stream.next_token()?,
        };
        let Some(Sampled { token, from_draft, logprobs }) = sampled else { return Ok(None) };
        self.clock.tick();
        let mut response = self.clock.response(token, from_draft, logprobs);
        let mut step = self.text.push(token)?;
        if step.end.is_none() && self.clock.num_sampled == self.max_tokens {
            let rest = self.text.finish()?;
            step.text += &rest.text;
            step.end = rest.end;
            response.finish_reason = Some(FinishReason::Length);
        }
        response.text = step.text;
        if let Some(end) = step.end {
            response.finish_reason = Some(FinishReason::Stop);
            response.stop_string = end.stop_string;
            response.stop_tokens = end.stop_tokens;
            response.generation_tokens -= usize::from(end.excludes_last_token);
        }
        Ok(Some(response))
    }
}

impl Iterator for ResponseStream {
    type Item = Result<GenerationResponse, LmError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let response = self.next_response().transpose();
        self.has_ended =
            !matches!(&response, Some(Ok(response)) if response.finish_reason.is_none());
        response
    }
}
