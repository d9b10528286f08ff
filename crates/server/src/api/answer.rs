//! One answer for a program: its events, as every route needs them.

use std::sync::Arc;

use cairn_app::completion::{
    Completion, EngineError, FinishReason, FinishedGeneration, GenerateEvent, GenerateRequest,
    GuessCounts, PromptInput, SegmentEvent, TokenLogprob,
};
use serde_json::Value;

use super::admission::AdmittedRequest;
use super::diagnosis::{Diagnosis, NewAnswer, PromptShape};
use super::error::ApiError;
use super::own_fields::OwnFields;
use super::sampling::{self, VendorSampling};
use super::tools::Tools;
use crate::request_guard::Refusal;
use crate::shared::Shared;

/// What a route asks for.
pub(super) struct AnswerRequest {
    pub(super) id: String,
    /// Parts by which the prompt is compared; none for text that is continued.
    pub(super) shape: Option<PromptShape>,
    /// The id of an earlier answer whose prompt it is compared with.
    pub(super) earlier: Option<String>,
    pub(super) model: Option<String>,
    /// Who asks. Counts it among the answers that run.
    pub(super) admitted: Arc<AdmittedRequest>,
    pub(super) prompt: PromptInput,
    /// What a chat offers; none for text that is continued, whose answer is text and nothing else.
    pub(super) tools: Option<Tools>,
    /// The schema of its text, with the field that says so.
    pub(super) schema: Option<(Value, &'static str)>,
    pub(super) sampling: VendorSampling,
    pub(super) own: OwnFields,
    pub(super) max_tokens: Option<u32>,
    pub(super) stops: Vec<String>,
    pub(super) num_top_logprobs: Option<usize>,
    /// What the answer is expected to say.
    pub(super) prediction: Option<String>,
}

/// A running answer. Dropping it cancels the work.
pub(super) struct Answer {
    shared: Arc<Shared>,
    pub(super) id: String,
    pub(super) model: String,
    shape: Option<PromptShape>,
    earlier: Option<String>,
    /// Facts of the prompt; none before the first event was received.
    prompt: Option<BegunPrompt>,
    generation: Completion,
    /// Whether it comes in segments.
    has_segments: bool,
    /// The field that asks for its form.
    form_param: &'static str,
    /// Whether the model is reasoning, and how many tokens it has spent on that.
    is_reasoning: bool,
    num_reasoning_tokens: u32,
    /// An event that was received before it was asked for.
    first: Option<GenerateEvent>,
    admitted: Arc<AdmittedRequest>,
}

/// A prompt whose answer has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BegunPrompt {
    pub(super) num_tokens: u32,
    pub(super) num_cached: u32,
    /// Why it was read again; none if it was not compared.
    pub(super) diagnosis: Option<Diagnosis>,
}

/// A part of an answer while it is written.
#[derive(Debug)]
pub(super) enum AnswerEvent {
    /// Prefill goes on.
    Prefill,
    /// What a token has completed: nothing where a character or a marker is still in pieces. With
    /// its log-probabilities, where they were asked for.
    Token { pieces: Vec<Piece>, logprobs: Option<TokenText> },
    /// The end. `pieces` were held back until now.
    End { pieces: Vec<Piece>, end: Ending },
}

/// A piece of an answer. The pieces of a call follow its beginning, and nothing comes between them.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Piece {
    Text(String),
    Reasoning(String),
    /// The beginning of a tool call.
    Call {
        id: String,
        name: String,
    },
    /// The next piece of its arguments.
    Arguments(String),
    /// Its end.
    CallEnd,
}

/// A part of a whole answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Part {
    Text(String),
    Reasoning(String),
    Call { id: String, name: String, arguments: String },
}

/// A token with its log-probability, and the likeliest ones with theirs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TokenText {
    pub(super) written: WrittenToken,
    pub(super) logprob: f32,
    pub(super) top: Vec<(WrittenToken, f32)>,
}

/// A token as text and as bytes, which are not UTF-8 if it ends within a character.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WrittenToken {
    pub(super) text: String,
    pub(super) bytes: Option<Vec<u8>>,
}

impl WrittenToken {
    /// Returns the text as OpenAI writes it, with bytes that are no character as `\xe2`.
    pub(super) fn escaped_text(&self) -> String {
        let Some(bytes) = &self.bytes else { return self.text.clone() };
        let mut text = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
        }
        text
    }

    /// Whether the token has bytes that are no character.
    pub(super) fn is_cut(&self) -> bool {
        self.bytes.as_ref().is_some_and(|bytes| std::str::from_utf8(bytes).is_err())
    }
}

/// How an answer has ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ending {
    pub(super) reason: FinishReason,
    pub(super) stop_string: Option<String>,
    /// Whether it calls tools, and waits for their results.
    pub(super) calls_tools: bool,
    pub(super) num_prompt_tokens: u32,
    pub(super) num_cached_tokens: u32,
    pub(super) num_answer_tokens: u32,
    pub(super) num_reasoning_tokens: u32,
    /// Proposed tokens that are part of the answer, and those that are not: 0 where nothing
    /// proposed.
    pub(super) num_accepted_tokens: u32,
    pub(super) num_rejected_tokens: u32,
    pub(super) diagnosis: Option<Diagnosis>,
}

impl Ending {
    /// The end of an answer that was to have no token.
    pub(super) fn without_tokens(num_prompt_tokens: u32) -> Ending {
        Ending {
            reason: FinishReason::Length,
            stop_string: None,
            calls_tools: false,
            num_prompt_tokens,
            num_cached_tokens: 0,
            num_answer_tokens: 0,
            num_reasoning_tokens: 0,
            num_accepted_tokens: 0,
            num_rejected_tokens: 0,
            diagnosis: None,
        }
    }

    /// This ending, with the tokens of both.
    pub(super) fn with_tokens_of(self, other: Ending) -> Ending {
        let sum = |of: fn(&Ending) -> u32| of(&self).saturating_add(of(&other));
        Ending {
            num_prompt_tokens: sum(|end| end.num_prompt_tokens),
            num_cached_tokens: sum(|end| end.num_cached_tokens),
            num_answer_tokens: sum(|end| end.num_answer_tokens),
            num_reasoning_tokens: sum(|end| end.num_reasoning_tokens),
            num_accepted_tokens: sum(|end| end.num_accepted_tokens),
            num_rejected_tokens: sum(|end| end.num_rejected_tokens),
            ..self
        }
    }
}

impl TokenText {
    fn of(token: TokenLogprob) -> Self {
        let TokenLogprob { text, bytes, logprob, top, .. } = token;
        let top = top.into_iter().map(|top| {
            let written = WrittenToken { text: top.text, bytes: top.bytes };
            (written, finite(top.logprob))
        });
        let written = WrittenToken { text, bytes };
        TokenText { written, logprob: finite(logprob), top: top.collect() }
    }
}

/// Sets when the answer may end by itself.
fn set_length(generate: &mut GenerateRequest, own: &OwnFields) -> Result<(), ApiError> {
    generate.ignore_eos = own.ignore_eos.unwrap_or(false);
    generate.min_tokens = own.min_tokens.unwrap_or(0) as usize;
    if generate.min_tokens > generate.max_tokens {
        let message = format!(
            "`min_tokens` is more than the {} tokens that the answer may have.",
            generate.max_tokens
        );
        return Err(ApiError::invalid("min_tokens", message));
    }
    if generate.form.is_some() && (generate.ignore_eos || generate.min_tokens > 0) {
        let param = if generate.ignore_eos { "ignore_eos" } else { "min_tokens" };
        let message = format!("`{param}` would go on after an answer that its form has ended.");
        return Err(ApiError::invalid(param, message));
    }
    Ok(())
}

impl Answer {
    /// Loads the model if need be and begins the answer.
    pub(super) async fn begin(
        shared: &Arc<Shared>,
        request: AnswerRequest,
    ) -> Result<Self, ApiError> {
        let model = request.model.as_deref();
        let generate = shared.app.completion(model, request.prompt).await;
        let mut generate = generate.map_err(|failure| ApiError::of_model(failure, model))?;
        sampling::apply(&mut generate, &request.sampling, &request.own)?;
        if let Some(max_tokens) = request.max_tokens {
            generate.max_tokens = max_tokens as usize;
        }
        generate.stop = request.stops;
        generate.num_top_logprobs = request.num_top_logprobs;
        generate.prediction = request.prediction;
        generate.segments = request.tools.as_ref().map(Tools::segments);
        let form = request.tools.as_ref().and_then(|tools| tools.form(request.schema));
        let (form, form_param) = form.unzip();
        generate.form = form;
        set_length(&mut generate, &request.own)?;
        request.own.apply_to_template(&mut generate);
        let client = &request.admitted.client;
        generate.owner = Some(client.owner(request.own.prompt_cache_key.as_deref()));
        if let Some(name) = &request.own.cairn.start_from {
            shared.app.start_from(&mut generate, name).await?;
        }
        let model = generate.model.clone().unwrap_or_default();
        request.admitted.record.iter().for_each(|record| record.set_model(&model));
        let has_segments = generate.segments.is_some();
        let offers_tools =
            generate.segments.as_ref().is_some_and(|segments| !segments.tools.is_empty());
        if offers_tools && shared.app.tells_of_tools(&model) {
            request.admitted.record.iter().for_each(|record| record.set_generic_tools());
        }
        let generation = shared.app.complete(generate);
        Ok(Answer {
            shared: shared.clone(),
            model,
            id: request.id,
            shape: request.shape,
            earlier: request.earlier,
            prompt: None,
            generation,
            has_segments,
            form_param: form_param.unwrap_or_default(),
            is_reasoning: false,
            num_reasoning_tokens: 0,
            first: None,
            admitted: request.admitted,
        })
    }

    /// Waits for the first event, which [`Answer::next`] then returns; fails if that is a failure.
    pub(super) async fn wait_for_first_event(&mut self) -> Result<(), ApiError> {
        let event = tokio::select! {
            biased;
            error = ended_early(&self.shared, &self.admitted) => return Err(error),
            event = self.generation.recv() => event,
        };
        self.note_prompt();
        match event {
            Some(GenerateEvent::Failed(error)) => Err(self.failure(error)),
            first => {
                self.first = first;
                Ok(())
            }
        }
    }

    /// The next part; none after the end.
    pub(super) async fn next(&mut self) -> Option<Result<AnswerEvent, ApiError>> {
        let event = self.receive().await;
        if let (Some(Err(error)), Some(record)) = (&event, &self.admitted.record) {
            record.end(error.status());
        }
        event
    }

    async fn receive(&mut self) -> Option<Result<AnswerEvent, ApiError>> {
        let event = match self.first.take() {
            Some(first) => first,
            None => tokio::select! {
                biased;
                error = ended_early(&self.shared, &self.admitted) => return Some(Err(error)),
                event = self.generation.recv() => event?,
            },
        };
        self.note_prompt();
        Some(match event {
            GenerateEvent::SoFar(_) | GenerateEvent::Prefill { .. } => Ok(AnswerEvent::Prefill),
            GenerateEvent::Delta { text, logprob, segments, .. } => {
                let pieces = self.pieces(text, segments);
                self.num_reasoning_tokens += u32::from(self.is_reasoning);
                Ok(AnswerEvent::Token { pieces, logprobs: logprob.map(TokenText::of) })
            }
            // Nobody but a closing app cancels it and still waits for it.
            GenerateEvent::Finished(finished)
                if finished.stats.finish_reason == FinishReason::Cancelled =>
            {
                Err(EngineError::Closed.into())
            }
            GenerateEvent::Finished(finished) => {
                self.admitted.record.iter().for_each(|record| record.finish(&finished.stats));
                Ok(self.end(*finished))
            }
            GenerateEvent::Failed(error) => Err(self.failure(error)),
        })
    }

    /// Returns facts of the prompt; `None` before the first event was received.
    pub(super) fn prompt(&self) -> Option<&BegunPrompt> {
        self.prompt.as_ref()
    }

    /// Keeps the prompt for later answers that are compared with this one, and compares it itself.
    fn note_prompt(&mut self) {
        let (None, Some(facts)) = (&self.prompt, self.generation.prompt()) else { return };
        let diagnosis = self.shape.as_ref().and_then(|shape| {
            let answer = NewAnswer { id: &self.id, model: &self.model, shape, facts };
            self.shared.answered.add(&self.admitted.client, answer, self.earlier.as_deref())
        });
        let (num_tokens, num_cached) = (count(facts.num_tokens), count(facts.num_cached));
        self.prompt = Some(BegunPrompt { num_tokens, num_cached, diagnosis });
    }

    /// The failure of an answer, which names the field that asks for what cannot be done.
    fn failure(&self, error: EngineError) -> ApiError {
        match error {
            EngineError::Form { reason } => {
                let message = format!("`{}` cannot be kept to: {reason}.", self.form_param);
                ApiError::invalid(self.form_param, message)
            }
            error => ApiError::of_answer(error, &self.model),
        }
    }

    /// The pieces that are told, in order. Markers are not, and neither is a call whose name was
    /// never found.
    fn pieces(&mut self, text: String, segments: Vec<SegmentEvent>) -> Vec<Piece> {
        if !self.has_segments {
            return if text.is_empty() { Vec::new() } else { vec![Piece::Text(text)] };
        }
        let pieces: Vec<Piece> = segments.into_iter().filter_map(piece).collect();
        if let Some(last) = pieces.last() {
            self.is_reasoning = matches!(last, Piece::Reasoning(_));
        }
        pieces
    }

    fn end(&mut self, finished: FinishedGeneration) -> AnswerEvent {
        let FinishedGeneration { text, segments, stop_string, stats, .. } = finished;
        let num_calls = match segments.last() {
            Some(SegmentEvent::Ended { num_complete_calls }) => *num_complete_calls,
            _ => 0,
        };
        let pieces = self.pieces(text, segments);
        let GuessCounts { num_proposed, num_accepted, .. } = stats.guesses.unwrap_or_default();
        let end = Ending {
            reason: stats.finish_reason,
            calls_tools: num_calls > 0
                && stop_string.is_none()
                && stats.finish_reason == FinishReason::Stop,
            stop_string,
            num_prompt_tokens: count(stats.num_prompt_tokens),
            num_cached_tokens: count(stats.num_cached_tokens),
            num_answer_tokens: count(stats.num_generation_tokens),
            num_reasoning_tokens: self.num_reasoning_tokens,
            num_accepted_tokens: count(num_accepted),
            num_rejected_tokens: count(num_proposed.saturating_sub(num_accepted)),
            diagnosis: self.prompt.as_ref().and_then(|prompt| prompt.diagnosis.clone()),
        };
        AnswerEvent::End { pieces, end }
    }

    /// Waits for the end.
    pub(super) async fn whole(mut self) -> Result<FinishedAnswer, ApiError> {
        let (mut parts, mut tokens) = (Vec::new(), Vec::new());
        while let Some(event) = self.next().await {
            match event? {
                AnswerEvent::Prefill => {}
                AnswerEvent::Token { pieces, logprobs } => {
                    pieces.into_iter().for_each(|piece| Part::join(&mut parts, piece));
                    tokens.extend(logprobs);
                }
                AnswerEvent::End { pieces, end } => {
                    pieces.into_iter().for_each(|piece| Part::join(&mut parts, piece));
                    let Answer { id, model, .. } = self;
                    return Ok(FinishedAnswer { id, model, parts, tokens, end });
                }
            }
        }
        Err(EngineError::Closed.into())
    }
}

fn piece(event: SegmentEvent) -> Option<Piece> {
    match event {
        SegmentEvent::Text(text) => Some(Piece::Text(text)),
        SegmentEvent::Reasoning(text) => Some(Piece::Reasoning(text)),
        SegmentEvent::CallStarted { name, id, .. } => {
            Some(Piece::Call { id: id.unwrap_or_else(new_call_id), name })
        }
        SegmentEvent::CallArguments { json, .. } => Some(Piece::Arguments(json)),
        SegmentEvent::CallEnded { index, .. } => index.map(|_| Piece::CallEnd),
        SegmentEvent::Markup(_) | SegmentEvent::Ended { .. } => None,
    }
}

fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

/// Waits until the server stops, or the key of a request is revoked.
pub(super) async fn ended_early(shared: &Shared, admitted: &AdmittedRequest) -> ApiError {
    tokio::select! {
        () = shared.closing.cancelled() => EngineError::Closed.into(),
        () = admitted.client.revoked() => ApiError::refused(Refusal::Revoked),
    }
}

/// A whole answer.
pub(super) struct FinishedAnswer {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) parts: Vec<Part>,
    pub(super) tokens: Vec<TokenText>,
    pub(super) end: Ending,
}

impl FinishedAnswer {
    /// All its text.
    pub(super) fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }
}

impl Part {
    /// Adds the next piece of an answer.
    pub(super) fn join(parts: &mut Vec<Part>, piece: Piece) {
        match (piece, parts.last_mut()) {
            (Piece::Text(text), Some(Part::Text(last))) => last.push_str(&text),
            (Piece::Reasoning(text), Some(Part::Reasoning(last))) => last.push_str(&text),
            (Piece::Arguments(json), Some(Part::Call { arguments, .. })) => {
                arguments.push_str(&json);
            }
            (Piece::Text(text), _) => parts.push(Part::Text(text)),
            (Piece::Reasoning(text), _) => parts.push(Part::Reasoning(text)),
            (Piece::Call { id, name }, _) => {
                parts.push(Part::Call { id, name, arguments: String::new() });
            }
            (Piece::Arguments(_) | Piece::CallEnd, _) => {}
        }
    }
}

/// JSON has no infinity; a token that is forbidden gets what OpenAI's API gives such a one.
pub(super) fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}

/// An id for an answer, as the vendors' have: a prefix, and letters and digits.
pub(super) fn new_id(prefix: &str) -> String {
    format!("{prefix}{}", cairn_app::new_id().simple())
}

/// An id for a tool call: nine letters and digits, because Mistral's templates take no other.
fn new_call_id() -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    // The lower half of the id is random but for two bits.
    let mut random = cairn_app::new_id().as_u64_pair().1;
    let digit = |_| {
        let digit = DIGITS[(random % 36) as usize];
        random /= 36;
        char::from(digit)
    };
    (0..9).map(digit).collect()
}

/// Seconds since the Unix epoch.
pub(super) fn now_s() -> u32 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u32::try_from(since.as_secs()).unwrap_or(u32::MAX))
}
