//! `POST /v1/completions`: text that continues other text, without a chat template.

use std::sync::Arc;

use async_openai::types::chat::{Choice, CompletionFinishReason, Logprobs, Prompt};
use async_openai::types::completions::{CreateCompletionRequest, CreateCompletionResponse};
use axum::Json;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use cairn_app::completion::{FinishReason, PromptInput, PromptToken};
use futures_util::future::try_join_all;
use serde_json::{Map, Value};

use super::MAX_ANSWERS;
use super::answer::{
    Answer, AnswerRequest, BegunPrompt, Ending, FinishedAnswer, Piece, TokenText, WrittenToken,
    ended_early, finite, new_id, now_s,
};
use super::body::{self, Body, Fields};
use super::chat::{stops, usage};
use super::error::{ApiError, Vendor};
use super::sampling::VendorSampling;
use super::stream::{self, StreamFormat};
use crate::shared::Shared;

/// The most alternatives to a token that this route reports.
const MAX_LOGPROBS: u8 = 5;

/// OpenAI's limit, which programs that name none expect.
const DEFAULT_MAX_TOKENS: u32 = 16;

pub(super) async fn create(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    match answer(&shared, request).await {
        Ok(response) => response,
        Err(error) => error.response(Vendor::OpenAi),
    }
}

async fn answer(shared: &Arc<Shared>, request: Request) -> Result<Response, ApiError> {
    // A limit that the program was started with counts before OpenAI's.
    let default_length = shared.app.default_max_tokens().is_none().then_some(DEFAULT_MAX_TOKENS);
    let read = body::read(shared, request, &FIELDS, move |body: Body<CreateCompletionRequest>| {
        let streams = body.fields.stream.unwrap_or(false);
        let options = body.fields.stream_options.as_ref();
        let includes_usage = options.and_then(|options| options.include_usage).unwrap_or(false);
        let echoes = body.fields.echo.unwrap_or(false);
        let questions = questions(body, default_length)?;
        if streams && questions.len() > 1 {
            let message = "Several prompts are answered at once only without `stream`.";
            return Err(ApiError::invalid("stream", message));
        }
        Ok((questions, streams, includes_usage, echoes))
    });
    let (mut questions, streams, includes_usage, echoes) = read.await?;
    let mut echoes = if echoes { Echo::read(shared, &questions).await? } else { Vec::new() };
    if streams && let Some(question) = questions.pop() {
        let answer = Answer::begin(shared, question).await?;
        let chunk = response(answer.id.clone(), answer.model.clone());
        let chunks = Chunks { chunk, includes_usage, num_chars: 0, echo: echoes.pop() };
        return stream::response(answer, chunks).await;
    }
    let echoes = echoes.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
    let choice = async |(question, echo): (AnswerRequest, Option<Echo>)| match echo {
        Some(echo) if question.max_tokens == Some(0) => Ok((echo.alone(question), Some(echo))),
        echo => Ok::<_, ApiError>((Answer::begin(shared, question).await?.whole().await?, echo)),
    };
    let answers = try_join_all(questions.into_iter().zip(echoes).map(choice)).await?;
    let first = answers.first().map(|(first, _)| (first.id.clone(), first.model.clone()));
    let (id, model) = first.unwrap_or_default();
    let ends = answers.iter().map(|(answer, _)| answer.end.clone());
    let usage = ends.reduce(Ending::with_tokens_of).map(|end| usage(&end));
    let choices = answers.into_iter().zip(0..).map(|((answer, echo), index)| {
        let written = answer.text();
        let FinishedAnswer { tokens, end, .. } = answer;
        let (mut text, mut all, mut num_chars) = (String::new(), None, 0);
        if let Some(echo) = echo {
            all = echo.logprobs(&mut num_chars);
            text = echo.text;
        }
        text.push_str(&written);
        let logprobs = joined(all, logprobs(tokens, &mut num_chars));
        Choice { text, index, logprobs, finish_reason: Some(finish_reason(&end)) }
    });
    let choices = choices.collect();
    Ok(Json(CreateCompletionResponse { choices, usage, ..response(id, model) }).into_response())
}

/// A prompt that is part of its answer's text.
struct Echo {
    text: String,
    model: String,
    tokens: Vec<PromptToken>,
    has_logprobs: bool,
}

impl Echo {
    /// The prompts of requests for the same model. If they ask for log-probabilities, all tokens are
    /// read: what is saved of a prompt does not tell them.
    async fn read(
        shared: &Arc<Shared>,
        questions: &[AnswerRequest],
    ) -> Result<Vec<Echo>, ApiError> {
        let Some(AnswerRequest { model, prompt, admitted, num_top_logprobs, .. }) =
            questions.first()
        else {
            return Ok(Vec::new());
        };
        let generate = shared.app.completion(model.as_deref(), prompt.clone()).await;
        let generate = generate.map_err(|failure| ApiError::of_model(failure, model.as_deref()))?;
        let model = generate.model.unwrap_or_default();
        admitted.record.iter().for_each(|record| record.set_model(&model));
        let prompts = questions.iter().map(|question| question.prompt.clone()).collect();
        let prompts = tokio::select! {
            biased;
            error = ended_early(shared, admitted) => return Err(error),
            prompts = shared.app.echo(Some(model.clone()), prompts, *num_top_logprobs) => prompts?,
        };
        let echo = |(question, tokens): (&AnswerRequest, Vec<PromptToken>)| Echo {
            text: match &question.prompt {
                PromptInput::Text(text) => text.clone(),
                _ => tokens.iter().map(|token| token.text.as_str()).collect(),
            },
            model: model.clone(),
            tokens,
            has_logprobs: num_top_logprobs.is_some(),
        };
        Ok(questions.iter().zip(prompts).map(echo).collect())
    }

    /// An answer without a token of its own, for which nothing is generated.
    fn alone(&self, question: AnswerRequest) -> FinishedAnswer {
        let num_prompt_tokens = u32::try_from(self.tokens.len()).unwrap_or(u32::MAX);
        if let Some(record) = &question.admitted.record {
            record.scored(num_prompt_tokens);
        }
        FinishedAnswer {
            id: question.id,
            model: self.model.clone(),
            parts: Vec::new(),
            tokens: Vec::new(),
            end: Ending::without_tokens(num_prompt_tokens),
        }
    }

    /// The log-probabilities, if they were asked for; `num_chars` counts the text of the tokens.
    fn logprobs(&self, num_chars: &mut u32) -> Option<Logprobs> {
        if !self.has_logprobs {
            return None;
        }
        let mut all = Logprobs::default();
        for (place, token) in self.tokens.iter().enumerate() {
            all.text_offset.push(*num_chars);
            // A token that the tokenizer puts before every text is no part of it.
            if place > 0 || self.text.starts_with(&token.text) {
                *num_chars += num_chars_of(&token.text);
            }
            all.tokens.push(token.text.clone());
            all.token_logprobs.push(token.logprob.map(finite));
            all.top_logprobs.push(match token.logprob {
                None => Value::Null,
                Some(_) => top_logprobs(token.top.iter().cloned()),
            });
        }
        Some(all)
    }
}

pub(super) const FIELDS: Fields = Fields {
    schema: "CompletionRequest",
    read: &[
        "prompt",
        "stream",
        "stream_options",
        "logprobs",
        "echo",
        "max_tokens",
        "stop",
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "seed",
    ],
    refused,
};

/// A field that asks for what Cairn cannot do.
fn refused(fields: &Map<String, Value>) -> Option<String> {
    let asks = |name: &str| match (name, fields.get(name)) {
        (_, None) => false,
        ("n", Some(number)) => *number != 1,
        _ => true,
    };
    ["n", "suffix"].into_iter().find(|name| asks(name)).map(str::to_owned)
}

/// One request for each prompt. `default_length` is its limit of tokens if it names none.
fn questions(
    body: Body<CreateCompletionRequest>,
    default_length: Option<u32>,
) -> Result<Vec<AnswerRequest>, ApiError> {
    let Body { model, mut own, admitted, fields } = body;
    // Programs that measure prompts ask for one token more and drop the last: it has to be there, also
    // if the model would end its answer at once.
    let measures = fields.echo.unwrap_or(false) && fields.logprobs.is_some();
    if measures && fields.max_tokens == Some(1) {
        own.ignore_eos = Some(true);
    }
    let is_empty = match &fields.prompt {
        Prompt::String(_) => false,
        Prompt::IntegerArray(tokens) => tokens.is_empty(),
        Prompt::StringArray(texts) => texts.is_empty(),
        Prompt::ArrayOfIntegerArray(rows) => rows.is_empty() || rows.iter().any(Vec::is_empty),
    };
    if is_empty {
        let message = "`prompt` is empty: send a text, or token ids, to be continued.";
        return Err(ApiError::invalid("prompt", message));
    }
    let prompts: Vec<PromptInput> = match fields.prompt {
        Prompt::String(text) => vec![PromptInput::Text(text)],
        Prompt::IntegerArray(tokens) => vec![PromptInput::Tokens(tokens)],
        Prompt::StringArray(texts) => texts.into_iter().map(PromptInput::Text).collect(),
        Prompt::ArrayOfIntegerArray(rows) => rows.into_iter().map(PromptInput::Tokens).collect(),
    };
    if prompts.len() > MAX_ANSWERS {
        let count = prompts.len();
        let message = format!("`prompt` has {count} prompts, and may have {MAX_ANSWERS}.");
        return Err(ApiError::invalid("prompt", message));
    }
    if fields.logprobs.is_some_and(|number| number > MAX_LOGPROBS) {
        let message = format!("logprobs is 0 to {MAX_LOGPROBS}.");
        return Err(ApiError::invalid("logprobs", message));
    }
    let stops = stops(fields.stop)?;
    let question = |prompt| AnswerRequest {
        id: new_id("cmpl-"),
        shape: None,
        earlier: None,
        model: model.clone(),
        admitted: admitted.clone(),
        prompt,
        tools: None,
        schema: None,
        sampling: VendorSampling {
            temperature: fields.temperature,
            top_p: fields.top_p,
            presence_penalty: fields.presence_penalty,
            frequency_penalty: fields.frequency_penalty,
            seed: fields.seed,
        },
        own: own.clone(),
        max_tokens: fields.max_tokens.or(default_length),
        stops: stops.clone(),
        num_top_logprobs: fields.logprobs.map(usize::from),
        prediction: None,
    };
    Ok(prompts.into_iter().map(question).collect())
}

fn response(id: String, model: String) -> CreateCompletionResponse {
    CreateCompletionResponse {
        id,
        created: now_s(),
        model,
        object: "text_completion".to_owned(),
        ..CreateCompletionResponse::default()
    }
}

/// An answer as chunks.
struct Chunks {
    /// What all of them have.
    chunk: CreateCompletionResponse,
    includes_usage: bool,
    /// How long the text of the tokens before is.
    num_chars: u32,
    /// Comes first.
    echo: Option<Echo>,
}

impl Chunks {
    fn event(&self, choice: Choice) -> Event {
        stream::chunk(&CreateCompletionResponse { choices: vec![choice], ..self.chunk.clone() })
    }
}

impl StreamFormat for Chunks {
    fn begin(&mut self, _prompt: Option<&BegunPrompt>) -> Vec<Event> {
        let Some(echo) = self.echo.take() else { return Vec::new() };
        let logprobs = echo.logprobs(&mut self.num_chars);
        vec![self.event(Choice { text: echo.text, logprobs, ..Choice::default() })]
    }

    fn token(&mut self, pieces: Vec<Piece>, logprobs: Option<TokenText>) -> Vec<Event> {
        if pieces.is_empty() && logprobs.is_none() {
            return Vec::new();
        }
        let text = text(pieces);
        let logprobs = self::logprobs(logprobs.into_iter().collect(), &mut self.num_chars);
        vec![self.event(Choice { text, logprobs, ..Choice::default() })]
    }

    fn end(&mut self, pieces: Vec<Piece>, end: &Ending) -> Vec<Event> {
        let text = text(pieces);
        let finish_reason = Some(finish_reason(end));
        let last = self.event(Choice { text, finish_reason, ..Choice::default() });
        let usage = self.includes_usage.then(|| {
            let usage = Some(usage(end));
            stream::chunk(&CreateCompletionResponse { usage, ..self.chunk.clone() })
        });
        [Some(last), usage, Some(stream::done())].into_iter().flatten().collect()
    }

    fn failed(&mut self, error: &ApiError) -> Event {
        stream::json(&error.body(Vendor::OpenAi))
    }
}

/// The text of pieces; without segments they are nothing else.
fn text(pieces: Vec<Piece>) -> String {
    let texts = pieces.into_iter().filter_map(|piece| match piece {
        Piece::Text(text) => Some(text),
        _ => None,
    });
    texts.collect()
}

fn finish_reason(end: &Ending) -> CompletionFinishReason {
    match end.reason {
        FinishReason::Length | FinishReason::Context => CompletionFinishReason::Length,
        FinishReason::Stop | FinishReason::Cancelled => CompletionFinishReason::Stop,
    }
}

/// `num_chars` counts the text of the tokens before.
fn logprobs(tokens: Vec<TokenText>, num_chars: &mut u32) -> Option<Logprobs> {
    if tokens.is_empty() {
        return None;
    }
    let mut all = Logprobs::default();
    for TokenText { written, logprob, top } in tokens {
        all.text_offset.push(*num_chars);
        *num_chars += num_chars_of(&written.text);
        all.tokens.push(token_text(&written));
        all.token_logprobs.push(Some(logprob));
        let top = top.iter().map(|(written, logprob)| (token_text(written), *logprob));
        all.top_logprobs.push(top_logprobs(top));
    }
    Some(all)
}

/// Returns the text of a token. This form has no field for bytes, so OpenAI marks a token that ends
/// within a character.
fn token_text(token: &WrittenToken) -> String {
    let text = token.escaped_text();
    if token.is_cut() { format!("bytes:{text}") } else { text }
}

fn num_chars_of(text: &str) -> u32 {
    u32::try_from(text.chars().count()).unwrap_or(u32::MAX)
}

/// The likeliest tokens by their texts. Of two with the same text the likelier one counts.
fn top_logprobs(top: impl IntoIterator<Item = (String, f32)>) -> Value {
    let mut all = Map::new();
    for (text, logprob) in top {
        all.entry(text).or_insert_with(|| finite(logprob).into());
    }
    all.into()
}

/// The log-probabilities of a prompt and of its answer.
fn joined(prompt: Option<Logprobs>, answer: Option<Logprobs>) -> Option<Logprobs> {
    let (mut all, more) = match (prompt, answer) {
        (Some(prompt), Some(answer)) => (prompt, answer),
        (prompt, answer) => return prompt.or(answer),
    };
    all.tokens.extend(more.tokens);
    all.token_logprobs.extend(more.token_logprobs);
    all.top_logprobs.extend(more.top_logprobs);
    all.text_offset.extend(more.text_offset);
    Some(all)
}
