//! Answers as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

use super::answer::{Answer, AnswerEvent, BegunPrompt, Ending, Piece, TokenText};
use super::error::ApiError;

/// A comment this often keeps clients and proxies from taking a long prompt for a dead connection.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// A request that fails within this time gets the status of its failure. One that waits for others
/// begins its response then.
const FAILURE_LIMIT: Duration = Duration::from_secs(2);
/// How many events wait for a client that reads slowly.
const NUM_WAITING: usize = 16;
/// A client that takes no event for so long has gone.
const CLIENT_LIMIT: Duration = Duration::from_secs(60);

/// How a route writes an answer as events.
pub(super) trait StreamFormat: Send + 'static {
    /// Events before the answer. `prompt` is `None` if the answer still waits for others.
    fn begin(&mut self, prompt: Option<&BegunPrompt>) -> Vec<Event>;
    /// Events after each part of the prompt that was read. Without them a client that has gone would go
    /// unnoticed until the answer begins.
    fn prefill(&mut self) -> Vec<Event> {
        vec![Event::default().comment("reading")]
    }
    /// What a token has completed.
    fn token(&mut self, pieces: Vec<Piece>, logprobs: Option<TokenText>) -> Vec<Event>;
    /// The end, with what was held back until then.
    fn end(&mut self, pieces: Vec<Piece>, end: &Ending) -> Vec<Event>;
    /// The last event of an answer that failed.
    fn failed(&mut self, error: &ApiError) -> Event;
}

/// A response that writes an answer while it is made. A client that goes away cancels it.
pub(super) async fn response(
    mut answer: Answer,
    format: impl StreamFormat,
) -> Result<Response, ApiError> {
    // Once the response has begun, its status cannot say any more that the request is at fault.
    if let Ok(begun) = timeout(FAILURE_LIMIT, answer.wait_for_first_event()).await {
        begun?;
    }
    let (events, receiver) = mpsc::channel(NUM_WAITING);
    tokio::spawn(write(answer, format, events));
    let events = ReceiverStream::new(receiver).map(Ok::<_, Infallible>);
    let keep_alive = KeepAlive::new().interval(PING_INTERVAL).text("ping");
    Ok(Sse::new(events).keep_alive(keep_alive).into_response())
}

async fn write(mut answer: Answer, mut format: impl StreamFormat, events: mpsc::Sender<Event>) {
    let (mut written, mut has_failed) = (format.begin(answer.prompt()), false);
    loop {
        for event in written {
            if !matches!(timeout(CLIENT_LIMIT, events.send(event)).await, Ok(Ok(()))) {
                return;
            }
        }
        if has_failed {
            return;
        }
        let event = tokio::select! {
            event = answer.next() => event,
            () = events.closed() => return,
        };
        written = match event {
            Some(Ok(AnswerEvent::Prefill)) => format.prefill(),
            Some(Ok(AnswerEvent::Token { pieces, logprobs })) => format.token(pieces, logprobs),
            Some(Ok(AnswerEvent::End { pieces, end })) => format.end(pieces, &end),
            Some(Err(error)) => {
                has_failed = true;
                vec![format.failed(&error)]
            }
            None => return,
        };
    }
}

/// An event of JSON data.
pub(super) fn json(data: &impl Serialize) -> Event {
    // Serializing cannot fail: the vendors' types have string keys and finite numbers only.
    Event::default().data(serde_json::to_string(data).unwrap_or_default())
}

/// A chunk of an answer of OpenAI's. Clients look for null in what its types leave out.
pub(super) fn chunk(chunk: &impl Serialize) -> Event {
    let mut chunk = serde_json::to_value(chunk).unwrap_or_default();
    for choice in chunk["choices"].as_array_mut().into_iter().flatten() {
        for name in ["finish_reason", "logprobs"] {
            if choice.get(name).is_none() {
                choice[name] = Value::Null;
            }
        }
    }
    json(&chunk)
}

/// OpenAI's last event.
pub(super) fn done() -> Event {
    Event::default().data("[DONE]")
}
