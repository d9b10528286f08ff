//! One running answer, from the loaded model to the saved message: a task that outlives whoever
//! asked for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_chat::{FinishReason, GenerationStats, SamplingParams};
use cairn_engine::{GenerateEvent, GenerateRequest, KvCacheOptions, PromptInput};
use cairn_store::{FinishedMessage, MessageStatus, Store, StoreError};
use tokio::task::JoinHandle;

use crate::app::App;
use crate::cache::owners::conversation_owner;
use crate::cache::prefix;
use crate::chat::progress::{Delta, Prefill, Progress, utf16_length};
use crate::chat::prompt;
use crate::chat::running::Running;
use crate::wire::{Event, Failure, NoticeLevel};
use crate::{convert, models, platform};

/// How long an answer may take to stop when the app closes; then what is there is saved.
const CLOSING_GRACE: Duration = Duration::from_millis(700);
/// Between two tries to save an answer that could not be saved.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Which answer to which question.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    /// Where its rows are.
    pub(crate) store: Arc<Store>,
    pub(crate) conversation_id: String,
    /// None for an answer without a question, which only a damaged file has.
    pub(crate) user_message_id: Option<String>,
    pub(crate) message_id: String,
}

/// How an answer ended.
struct Outcome {
    status: MessageStatus,
    error: Option<String>,
    /// What the question added to the model's input; empty where that is not known.
    new_prompt_ids: Vec<u32>,
    token_ids: Option<Vec<u32>>,
    stats: Option<GenerationStats>,
}

impl Outcome {
    fn without_figures(status: MessageStatus, error: Option<String>, progress: &Progress) -> Self {
        let token_ids = Some(progress.token_ids().to_vec()).filter(|ids| !ids.is_empty());
        Outcome { status, error, new_prompt_ids: Vec::new(), token_ids, stats: None }
    }

    fn failed(error: impl ToString, progress: &Progress) -> Self {
        Self::without_figures(MessageStatus::Failed, Some(convert::sentence(error)), progress)
    }
}

/// Writes the answer, saves it, and reports subscribers all along.
pub(crate) async fn answer(app: Arc<App>, running: Arc<Running>, turn: Turn) {
    let _end = End { app: &app, running: &running };
    let mut progress = Progress::new(Instant::now());
    let outcome = write(&app, &running, &turn, &mut progress).await;
    if let Some(delta) = progress.flush_delta() {
        tell_delta(&app, &running, delta);
    }
    let finished = FinishedMessage {
        status: outcome.status,
        text: progress.text().to_owned(),
        token_ids: outcome.token_ids,
        error: outcome.error,
        stats: outcome.stats,
    };
    let saved = save(&turn, &outcome.new_prompt_ids, &finished).await;
    let is_saved = match &saved {
        Err(error) if is_worth_retrying(error) => {
            let text = format!(
                "The answer is not saved ({error}); Cairn keeps it in memory and tries again."
            );
            app.emit(Event::Notice { level: NoticeLevel::Error, text });
            false
        }
        // A conversation that was purged under its answer needs no row.
        _ => true,
    };
    if is_saved {
        // Before the event, on which the next question may follow at once.
        app.answers.remove(&running);
        tell_finished(&app, &running, &finished);
    } else {
        tell_finished(&app, &running, &finished);
        app.emit_conversation(&turn.conversation_id).await;
        retry(&app, &turn, &outcome.new_prompt_ids, &finished).await;
        app.answers.remove(&running);
    }
    app.emit_conversation(&turn.conversation_id).await;
}

/// Lets go of the answer even where its task panics.
struct End<'a> {
    app: &'a App,
    running: &'a Arc<Running>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.app.answers.remove(self.running);
        self.running.ended.cancel();
    }
}

async fn write(app: &Arc<App>, running: &Running, turn: &Turn, progress: &mut Progress) -> Outcome {
    // Loading goes on when the answer is stopped: the next one needs the model too.
    let loading = app.spawn(models::ensure_loaded(app.clone()));
    tokio::select! {
        () = running.stop.cancelled() => return Outcome::without_figures(MessageStatus::Stopped, None, progress),
        loaded = loading => match loaded {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => return Outcome::failed(failure.message, progress),
            Err(fault) => return Outcome::failed(format!("A fault in Cairn stopped the model from being loaded: {fault}"), progress),
        },
    }
    let request = match request(app, turn).await {
        Ok(request) => request,
        Err(failure) => return Outcome::failed(failure.message, progress),
    };
    let mut generation = app.engine.generate(request);
    let give_up = async {
        app.closing.cancelled().await;
        tokio::time::sleep(CLOSING_GRACE).await;
    };
    tokio::pin!(give_up);
    let (mut has_begun, mut is_stopping) = (false, false);
    let mut saving = Saving { running: None, has_warned: false };
    let outcome = loop {
        let due = progress.next_due(Instant::now(), saving.running.is_some());
        tokio::select! {
            event = generation.recv() => match event {
                Some(GenerateEvent::Prefill { processed, total, cached }) => {
                    has_begun = true;
                    progress.prefill(Prefill { processed, total, cached });
                }
                Some(GenerateEvent::Delta { text, token, logprob: _ }) => {
                    has_begun = true;
                    progress.token(token, &text);
                }
                Some(GenerateEvent::Finished(finished)) => {
                    progress.append(&finished.text);
                    let status = match finished.stats.finish_reason {
                        FinishReason::Cancelled => MessageStatus::Stopped,
                        FinishReason::Stop | FinishReason::Length => MessageStatus::Complete,
                    };
                    break Outcome {
                        status,
                        error: None,
                        new_prompt_ids: finished.new_prompt_ids,
                        token_ids: Some(finished.token_ids),
                        stats: Some(with_process_memory(finished.stats)),
                    };
                }
                Some(GenerateEvent::Failed(error)) => break Outcome::failed(error, progress),
                None => break Outcome::failed("The engine ended before the answer did.", progress),
            },
            // Behind other answers its turn may be far off, and there are no figures to wait for.
            () = running.stop.cancelled(), if !has_begun => break Outcome::without_figures(MessageStatus::Stopped, None, progress),
            () = running.stop.cancelled(), if !is_stopping => {
                is_stopping = true;
                generation.stop();
            }
            () = &mut give_up => break Outcome::without_figures(MessageStatus::Stopped, None, progress),
            result = saving.ended(), if saving.running.is_some() => saving.note(app, result),
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => {}
        }
        let now = Instant::now();
        if let Some(prefill) = progress.take_prefill(now) {
            tell_prefill(app, turn, prefill);
        }
        if let Some(delta) = progress.take_delta(now) {
            tell_delta(app, running, delta);
        }
        if saving.running.is_none() && progress.wants_save(now) {
            progress.mark_saved(now);
            saving.begin(app, turn, progress);
        }
    };
    // What was saved on the way must not overtake the end.
    if saving.running.is_some() {
        let result = saving.ended().await;
        saving.note(app, result);
    }
    outcome
}

async fn request(app: &App, turn: &Turn) -> Result<GenerateRequest, Failure> {
    let row = turn.store.conversation(&turn.conversation_id).await?;
    let branch = turn.store.branch(&turn.conversation_id).await?;
    let (system_prompt, prefix) =
        row.map(|row| (row.system_prompt, row.prefix)).unwrap_or_default();
    let (prompt, kv_cache) = match prefix {
        Some(prefix) => {
            let prefix = prefix::checked(app, &turn.conversation_id, prefix).await?;
            let kv_cache = prefix.kv_cache();
            (PromptInput::After { prefix, messages: prompt::messages_for("", &branch) }, kv_cache)
        }
        None => (
            PromptInput::Messages(prompt::messages_for(&system_prompt, &branch)),
            KvCacheOptions::default(),
        ),
    };
    let settings = app.settings();
    let is_private = !Arc::ptr_eq(&turn.store, &app.store);
    Ok(GenerateRequest {
        // The settings are within range, and single precision is what models are sampled with.
        sampling: SamplingParams {
            temperature: settings.temperature as f32,
            top_p: settings.top_p as f32,
            seed: settings.seed,
            ..SamplingParams::default()
        },
        max_tokens: settings.max_tokens as usize,
        prefill_step_size: app.engine.interactive_prefill_step_size(),
        // What a private conversation computes must not come near the prompt cache's files.
        use_prompt_cache: !is_private,
        owner: (!is_private).then(|| conversation_owner(&turn.conversation_id)),
        kv_cache,
        ..GenerateRequest::new(prompt)
    })
}

/// The save that runs beside the answer, so that a slow disk does not hold up the text.
struct Saving {
    running: Option<JoinHandle<Result<(), StoreError>>>,
    has_warned: bool,
}

impl Saving {
    fn begin(&mut self, app: &Arc<App>, turn: &Turn, progress: &Progress) {
        let (store, id) = (turn.store.clone(), turn.message_id.clone());
        let (text, token_ids) = (progress.text().to_owned(), progress.token_ids().to_vec());
        self.running =
            Some(app.spawn(async move { store.save_progress(&id, &text, &token_ids).await }));
    }

    /// Waits for the running save, or for ever when there is none.
    async fn ended(&mut self) -> Result<(), String> {
        match &mut self.running {
            Some(running) => {
                running.await.map_err(|fault| fault.to_string())?.map_err(|error| error.to_string())
            }
            None => std::future::pending().await,
        }
    }

    fn note(&mut self, app: &App, result: Result<(), String>) {
        self.running = None;
        match result {
            Ok(()) => self.has_warned = false,
            Err(error) if !self.has_warned => {
                self.has_warned = true;
                let text = format!(
                    "The answer goes on, but is not being saved ({error}); Cairn tries again when it is finished."
                );
                app.emit(Event::Notice { level: NoticeLevel::Warning, text });
            }
            Err(_) => {}
        }
    }
}

async fn save(
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

fn is_worth_retrying(error: &StoreError) -> bool {
    !matches!(
        error,
        StoreError::NoMessage { .. }
            | StoreError::NoConversation { .. }
            | StoreError::Closed { .. }
    )
}

/// Tries until the answer is saved; once more when the app closes, and then no longer.
async fn retry(app: &App, turn: &Turn, new_prompt_ids: &[u32], finished: &FinishedMessage) {
    loop {
        let is_last = tokio::select! {
            () = app.closing.cancelled() => true,
            () = tokio::time::sleep(RETRY_INTERVAL) => false,
        };
        match save(turn, new_prompt_ids, finished).await {
            Ok(()) => {
                app.emit(Event::Notice {
                    level: NoticeLevel::Info,
                    text: "The answer is saved now.".to_owned(),
                });
                return;
            }
            Err(error) if is_last || !is_worth_retrying(&error) => {
                tracing::error!("an answer is lost: {error}");
                return;
            }
            Err(_) => {}
        }
    }
}

fn tell_prefill(app: &App, turn: &Turn, prefill: Prefill) {
    app.emit(Event::Prefill {
        conversation_id: turn.conversation_id.clone(),
        message_id: turn.message_id.clone(),
        processed_tokens: convert::tokens(prefill.processed),
        total_tokens: convert::tokens(prefill.total),
        cached_tokens: convert::tokens(prefill.cached),
    });
}

fn tell_delta(app: &App, running: &Running, delta: Delta) {
    let mut message = running.message();
    debug_assert_eq!(delta.offset, utf16_length(&message.text));
    message.text.push_str(&delta.text);
    let (conversation_id, message_id) = (message.conversation_id.clone(), message.id.clone());
    app.emit(Event::Delta { conversation_id, message_id, offset: delta.offset, text: delta.text });
}

fn tell_finished(app: &App, running: &Running, finished: &FinishedMessage) {
    let mut message = running.message();
    message.status = convert::message_status(finished.status);
    message.error.clone_from(&finished.error);
    message.stats = finished.stats.clone().map(convert::message_stats);
    app.emit(Event::Message { message: message.clone() });
}

/// Fills in what the engine does not know, and takes out what JSON cannot hold: the store would
/// drop all figures for it. What is told is then exactly what is read back later.
fn with_process_memory(stats: GenerationStats) -> GenerationStats {
    let memory = platform::process_memory();
    GenerationStats {
        queue_ms: convert::figure(stats.queue_ms),
        prompt_tps: convert::figure(stats.prompt_tps),
        generation_tps: convert::figure(stats.generation_tps),
        time_to_first_token_ms: convert::figure(stats.time_to_first_token_ms),
        process_bytes: memory.now,
        process_peak_bytes: memory.peak,
        ..stats
    }
}
