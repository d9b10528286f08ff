//! Saves an answer: now and then while it is written, at its end, and again later if that failed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_store::{FinishedMessage, StoreError};
use tokio::task::{JoinError, JoinHandle};

use crate::app::App;
use crate::chat::progress::Progress;
use crate::chat::turn::Turn;
use crate::wire::{Failure, NoticeKind, NoticeLevel};

/// The interval between attempts to save an answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The saving of an answer's text while it is generated: in a task of its own, so that a slow disk
/// does not delay the text.
pub(crate) struct Saving {
    pub(crate) running: Option<JoinHandle<Result<(), StoreError>>>,
    has_warned: bool,
}

/// Why a text is not saved: as a part of a sentence, and for interfaces.
pub(crate) struct NotSaved {
    text: String,
    why: Failure,
}

impl Saving {
    pub(crate) fn new() -> Self {
        Saving { running: None, has_warned: false }
    }

    pub(crate) fn begin(&mut self, app: &Arc<App>, turn: &Turn, progress: &Progress) {
        let (store, id) = (turn.store.clone(), turn.message_id.clone());
        let (text, token_ids) = (progress.prompt_text().to_owned(), progress.token_ids().to_vec());
        let segments = progress.stored_segments(Instant::now());
        let model = progress.model.clone();
        self.running = Some(app.spawn(async move {
            let (segments, model) = (segments.as_deref(), model.as_deref());
            store.save_progress(&id, &text, segments, &token_ids, model).await
        }));
    }

    /// Waits until no save runs, so that none overwrites what is saved next.
    pub(crate) async fn settle(&mut self, app: &Arc<App>) {
        if self.running.is_some() {
            let result = self.ended().await;
            self.note(app, result);
        }
    }

    /// Waits for the running save, or for ever when there is none.
    pub(crate) async fn ended(&mut self) -> Result<(), NotSaved> {
        match &mut self.running {
            Some(running) => {
                let fault = |fault: JoinError| NotSaved {
                    text: fault.to_string(),
                    why: Failure::fault(fault.to_string()),
                };
                running
                    .await
                    .map_err(fault)?
                    .map_err(|error| NotSaved { text: error.to_string(), why: error.into() })
            }
            None => std::future::pending().await,
        }
    }

    pub(crate) fn note(&mut self, app: &App, result: Result<(), NotSaved>) {
        self.running = None;
        match result {
            Ok(()) => self.has_warned = false,
            Err(NotSaved { text: error, why }) if !self.has_warned => {
                self.has_warned = true;
                let text = format!(
                    "The answer continues, but is not being saved ({error}); Cairn tries again when it is finished."
                );
                app.emit_warning(text, NoticeKind::AnswerNotSaving { why });
            }
            Err(_) => {}
        }
    }
}

pub(crate) async fn save(
    turn: &Turn,
    new_prompt_ids: &[u32],
    finished: &FinishedMessage,
) -> Result<(), StoreError> {
    match &turn.user_message_id {
        Some(user_message_id) if !new_prompt_ids.is_empty() => {
            turn.store
                .finish_turn(user_message_id, new_prompt_ids, &turn.message_id, finished)
                .await
        }
        _ => turn.store.finish(&turn.message_id, finished).await,
    }
}

pub(crate) fn is_worth_retrying(error: &StoreError) -> bool {
    !matches!(
        error,
        StoreError::NoMessage { .. }
            | StoreError::NoConversation { .. }
            | StoreError::Closed { .. }
    )
}

/// Tries until the answer is saved. When the app closes it tries one last time.
pub(crate) async fn retry(
    app: &App,
    turn: &Turn,
    new_prompt_ids: &[u32],
    finished: &FinishedMessage,
) {
    loop {
        let is_last = !app.is_open_after(RETRY_INTERVAL).await;
        match save(turn, new_prompt_ids, finished).await {
            Ok(()) => {
                let text = "The answer is saved now.".to_owned();
                app.emit_notice(NoticeLevel::Info, text, NoticeKind::AnswerSaved);
                return;
            }
            Err(error) if is_last || !is_worth_retrying(&error) => {
                tracing::error!("an answer could not be saved: {error}");
                return;
            }
            Err(_) => {}
        }
    }
}
