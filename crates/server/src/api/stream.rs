//! Answers as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::answer::{Answer, Piece};
use super::error::ApiError;

/// A comment this often keeps clients and proxies from taking a long prompt for a dead connection.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// A client that reads slowly holds back its own answer, and no more events than this are waiting.
const NUM_WAITING: usize = 16;

/// How a route writes the parts of an answer.
pub(super) trait Form: Send + 'static {
    /// What comes before the answer.
    fn begin(&mut self) -> Vec<Event>;
    /// A part of it.
    fn piece(&mut self, piece: Piece) -> Vec<Event>;
    /// The last event of an answer that failed.
    fn failed(&mut self, error: &ApiError) -> Event;
}

/// A response that writes an answer while it is made. A client that goes away ends it.
pub(super) fn response(answer: Answer, form: impl Form) -> Response {
    let (events, receiver) = mpsc::channel(NUM_WAITING);
    tokio::spawn(write(answer, form, events));
    let events = ReceiverStream::new(receiver).map(Ok::<_, Infallible>);
    Sse::new(events)
        .keep_alive(KeepAlive::new().interval(PING_INTERVAL).text("ping"))
        .into_response()
}

async fn write(mut answer: Answer, mut form: impl Form, events: mpsc::Sender<Event>) {
    let mut written = form.begin();
    loop {
        for event in written {
            if events.send(event).await.is_err() {
                return;
            }
        }
        let piece = tokio::select! {
            piece = answer.next() => piece,
            () = events.closed() => return,
        };
        written = match piece {
            Some(Ok(piece)) => form.piece(piece),
            Some(Err(error)) => vec![form.failed(&error)],
            None => return,
        };
    }
}

/// An event of JSON data.
pub(super) fn json(data: &impl Serialize) -> Event {
    // Serializing cannot fail: the vendors' types have string keys and finite numbers only.
    Event::default().data(serde_json::to_string(data).unwrap_or_default())
}

/// OpenAI's last event.
pub(super) fn done() -> Event {
    Event::default().data("[DONE]")
}
