//! Reads the documents of a draft before the question is there, so that the question continues from
//! their end. What was read stays saved if reading is stopped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cairn_chat::{Encode, Prompt, Role, assemble_turns};
use cairn_engine::{GenerateEvent, GenerateRequest, PromptInput, Tokenizer};
use cairn_store::{ContextCut, Message, NewDocument};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::cache::owners::conversation_owner;
use crate::chat::answering::loaded_status;
use crate::documents::{commands, prompt};
use crate::settings::{Settings, commands as settings};
use crate::wire::{DocumentReading, Event, Failure, FailureCode};
use crate::{convert, models};

/// Progress is sent at most so often.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// How far the drafts of the conversations are read. Owned by [`crate::App`].
#[derive(Debug, Default)]
pub(crate) struct Readings(Mutex<HashMap<String, Reading>>);

/// The last reading of a conversation's draft.
#[derive(Debug, Clone)]
struct Reading {
    state: DocumentReading,
    stop: CancellationToken,
    ended: CancellationToken,
}

impl Readings {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Reading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far the draft of a conversation is read.
    pub(crate) fn state(&self, conversation_id: &str) -> DocumentReading {
        let all = self.all();
        all.get(conversation_id).map_or(DocumentReading::Unread, |reading| reading.state.clone())
    }

    /// Stops the reading of a conversation's draft, if one runs. The result is cancelled when it has
    /// ended.
    pub(crate) fn stop(&self, conversation_id: &str) -> Option<CancellationToken> {
        let reading = self.all().get(conversation_id).cloned()?;
        reading.stop.cancel();
        Some(reading.ended)
    }

    /// Whether a conversation's draft is read, or was to be read.
    fn is_wanted(&self, conversation_id: &str) -> bool {
        !matches!(self.state(conversation_id), DocumentReading::Unread)
    }

    /// Forgets what is known of a conversation's draft; of all with none.
    pub(crate) fn forget(&self, conversation_id: Option<&str>) {
        let mut all = self.all();
        for (id, reading) in all.iter_mut() {
            if conversation_id.is_none_or(|wanted| wanted == id) {
                reading.stop.cancel();
                reading.state = DocumentReading::Unread;
            }
        }
    }

    /// Sets the state of a reading; false if it was stopped, as it is when another takes its place.
    fn set(&self, conversation_id: &str, of: &Reading, state: &DocumentReading) -> bool {
        let mut all = self.all();
        if of.stop.is_cancelled() {
            return false;
        }
        if let Some(current) = all.get_mut(conversation_id) {
            current.state = state.clone();
        }
        true
    }
}

/// Begins to read the draft of a conversation, in the place of a reading that runs.
pub(crate) fn begin(app: &Arc<App>, conversation_id: &str) {
    let reading = Reading {
        state: DocumentReading::Waiting,
        stop: CancellationToken::new(),
        ended: CancellationToken::new(),
    };
    let before = app.readings.all().insert(conversation_id.to_owned(), reading.clone());
    if let Some(before) = &before {
        before.stop.cancel();
    }
    emit(app, conversation_id, DocumentReading::Waiting);
    let (shared, id) = (app.clone(), conversation_id.to_owned());
    app.spawn(async move {
        let _ended = reading.ended.clone().drop_guard();
        if let Some(before) = before {
            before.ended.cancelled().await;
        }
        let state = match read(&shared, &id, &reading).await {
            Ok(state) => state,
            Err(failure) => DocumentReading::Failed { why: failure.message },
        };
        show(&shared, &id, &reading, state);
        // Its row says how much of it is saved.
        shared.emit_conversation(&id).await;
    });
}

/// Reads the draft of a conversation again whose prompt has changed, if it was read or was to be.
pub(crate) async fn again(app: &Arc<App>, conversation_id: &str) {
    if !app.readings.is_wanted(conversation_id) {
        return;
    }
    let store = app.store_of(conversation_id).await;
    match store.draft_documents(conversation_id).await {
        Ok(draft) if !draft.is_empty() => begin(app, conversation_id),
        _ => app.readings.forget(Some(conversation_id)),
    }
}

/// Lets an answer of this conversation go before: what is read of its draft is saved first, and read
/// again behind the answer.
pub(crate) async fn give_way(app: &Arc<App>, conversation_id: &str) {
    if let Some(ended) = app.readings.stop(conversation_id) {
        ended.cancelled().await;
        again(app, conversation_id).await;
    }
}

/// Stops the reading of a conversation's draft at a person's wish.
pub(crate) fn stop(app: &App, conversation_id: &str) {
    app.readings.forget(Some(conversation_id));
    emit(app, conversation_id, DocumentReading::Unread);
}

fn emit(app: &App, conversation_id: &str, reading: DocumentReading) {
    let conversation_id = conversation_id.to_owned();
    app.emit(Event::DocumentsReading { conversation_id, reading });
}

fn show(app: &App, conversation_id: &str, reading: &Reading, state: DocumentReading) {
    if app.readings.set(conversation_id, reading, &state) {
        emit(app, conversation_id, state);
    }
}

/// What is known before anything is read.
struct Draft {
    branch: Vec<Message>,
    cuts: HashMap<String, ContextCut>,
    sent: HashMap<String, Vec<NewDocument>>,
    documents: Vec<(cairn_store::Document, String)>,
    system_prompt: String,
}

async fn read(
    app: &Arc<App>,
    conversation_id: &str,
    reading: &Reading,
) -> Result<DocumentReading, Failure> {
    let stopped = async {
        tokio::select! {
            () = reading.stop.cancelled() => {}
            () = app.closing.cancelled() => {}
        }
    };
    let prepared = tokio::select! {
        prepared = prepare(app, conversation_id, reading) => prepared?,
        () = stopped => return Ok(DocumentReading::Unread),
    };
    match prepared {
        Prepared::Known(state) => Ok(state),
        Prepared::Request { request, model } => {
            generate(app, conversation_id, reading, *request, model).await
        }
    }
}

/// What a draft needs.
enum Prepared {
    /// Nothing that could be read.
    Known(DocumentReading),
    /// To be read by the model of this name.
    Request { request: Box<GenerateRequest>, model: String },
}

/// Waits for the answer that the draft follows and for a model, and counts the tokens.
async fn prepare(
    app: &Arc<App>,
    conversation_id: &str,
    reading: &Reading,
) -> Result<Prepared, Failure> {
    for running in app.answers.of(conversation_id) {
        running.ended.cancelled().await;
    }
    let store = app.store_of(conversation_id).await.clone();
    let row = store.listed_conversation(conversation_id).await?;
    let branch = store.branch(conversation_id).await?;
    let before = branch.iter().rev().find_map(|message| message.model.clone());
    models::require_any(app).await?;
    // In a task: loading continues when reading is stopped, because the question needs the model too.
    let loading = app.spawn(models::ensure_loaded(app.clone(), before));
    loading.await.map_err(|fault| {
        let why = format!("A fault in Cairn stopped the model from being loaded: {fault}.");
        Failure::new(FailureCode::Engine, why)
    })??;
    let model = models::loaded_name(app).ok_or_else(models::no_model)?;
    let settings = settings::for_answer(app, &store, conversation_id, Some(&model)).await?;
    let draft = Draft {
        cuts: store.context_cuts(conversation_id).await?,
        sent: store.document_texts_of(conversation_id).await?,
        documents: store.draft_texts(conversation_id).await?,
        system_prompt: row.system_prompt,
        branch,
    };
    if draft.documents.is_empty() {
        return Ok(Prepared::Known(DocumentReading::Unread));
    }
    let (tokenizer, own_length) = app
        .engine
        .submit(Some(&model), |loaded| (loaded.tokenizer.clone(), loaded.model.context_length()))
        .await?;
    // Long texts take a while, in which the engine's thread can do other things.
    let ids: Vec<String> = draft.documents.iter().map(|(row, _)| row.id.clone()).collect();
    let tokenized = app.blocking(move || tokenize(&tokenizer, draft)).await;
    let fault = || {
        Failure::new(
            FailureCode::Engine,
            "A fault in Cairn stopped the documents from being counted.",
        )
    };
    let Tokenized { counts, prompt } = tokenized.ok_or_else(fault)??;
    for (id, count) in ids.iter().zip(counts) {
        store.set_document_tokens(id, i64::try_from(count).unwrap_or(i64::MAX), &model).await?;
    }
    if !reading.stop.is_cancelled() {
        commands::emit_draft(app, conversation_id).await;
    }
    let length =
        settings.context_length.map_or(own_length, |length| own_length.min(length as usize));
    let is_ahead = row.prefix.is_none() && !app.is_private(conversation_id).await;
    let Some(prompt) = prompt else { return Ok(Prepared::Known(DocumentReading::WithQuestion)) };
    // Room for one token of a question and one of its answer.
    if prompt.tokens.len() + 2 > length {
        let exceeds_by = convert::tokens(prompt.tokens.len() + 2 - length);
        return Ok(Prepared::Known(DocumentReading::TooLong { exceeds_by, model }));
    }
    match request(app, conversation_id, &model, &settings, prompt).filter(|_| is_ahead) {
        Some(request) => Ok(Prepared::Request { request: Box::new(request), model }),
        None => Ok(Prepared::Known(DocumentReading::WithQuestion)),
    }
}

/// The request that reads a prompt; none where what it computes could not be continued.
fn request(
    app: &App,
    conversation_id: &str,
    model: &str,
    settings: &Settings,
    prompt: Prompt,
) -> Option<GenerateRequest> {
    // A draft model's caches are its own.
    let status = loaded_status(app, model).filter(|status| status.draft.is_none())?;
    Some(GenerateRequest {
        model: Some(model.to_owned()),
        // The last token of an answer is not read, so this one leaves no trace.
        max_tokens: 1,
        context_length: settings.context_length.map(|length| length as usize),
        owner: Some(conversation_owner(conversation_id)),
        kv_cache: convert::kv_cache(settings, status.kv_group_size),
        ..GenerateRequest::new(PromptInput::Assembled(prompt))
    })
}

struct Tokenized {
    /// The tokens of each document.
    counts: Vec<usize>,
    /// The prompt up to the end of the documents; none where that is not found in it.
    prompt: Option<Prompt>,
}

fn tokenize(tokenizer: &Tokenizer, draft: Draft) -> Result<Tokenized, Failure> {
    let Draft { branch, cuts, sent, documents, system_prompt } = draft;
    let failed =
        |error: cairn_chat::ChatError| Failure::new(FailureCode::Engine, convert::sentence(error));
    let counts = documents.iter().map(|(_, text)| Ok(tokenizer.encode_plain(text)?.len()));
    let counts = counts.collect::<Result<Vec<usize>, _>>().map_err(failed)?;
    let documents = documents.into_iter().map(|(row, text)| NewDocument {
        name: row.name,
        kind: row.kind,
        text,
    });
    let template = tokenizer.chat_template();
    let template = template.ok_or(cairn_chat::ChatError::NoTemplate).map_err(failed)?;
    let turns = prompt::of_draft(&branch, &cuts, &sent, documents.collect(), &system_prompt);
    let prompt = assemble_turns(template, &turns, tokenizer).map_err(failed)?;
    Ok(Tokenized { counts, prompt: up_to_breakpoint(prompt) })
}

/// A prompt up to its last breakpoint. There chats with the same documents diverge, so it is the end of
/// what they share, as that of the system prompt is.
fn up_to_breakpoint(mut prompt: Prompt) -> Option<Prompt> {
    let end = prompt.breakpoints.last().copied()?;
    prompt.tokens.truncate(end);
    let earlier = prompt.boundaries.iter().zip(&prompt.roles).filter(|(at, _)| **at < end);
    let (mut boundaries, mut roles): (Vec<usize>, Vec<Role>) =
        earlier.map(|(at, role)| (*at, *role)).unzip();
    boundaries.push(end);
    roles.push(Role::System);
    let breakpoints = prompt.breakpoints.into_iter().filter(|at| *at < end).collect();
    let new_from = prompt.new_from.min(end);
    Some(Prompt { boundaries, roles, breakpoints, new_from, ..prompt })
}

async fn generate(
    app: &App,
    conversation_id: &str,
    reading: &Reading,
    request: GenerateRequest,
    model: String,
) -> Result<DocumentReading, Failure> {
    let num_tokens = match &request.prompt {
        PromptInput::Assembled(prompt) => prompt.tokens.len(),
        _ => 0,
    };
    let mut generation = app.engine.generate(request);
    let (mut is_stopping, mut shown) = (false, None::<Instant>);
    loop {
        let event = tokio::select! {
            event = generation.recv() => event,
            () = reading.stop.cancelled(), if !is_stopping => {
                is_stopping = true;
                generation.stop();
                continue;
            }
            // The app must not wait for it.
            () = app.closing.cancelled() => return Ok(DocumentReading::Unread),
        };
        match event {
            Some(GenerateEvent::Prefill { processed, total, cached }) => {
                let is_due = shown.is_none_or(|shown| shown.elapsed() >= PROGRESS_INTERVAL);
                if is_due {
                    shown = Some(Instant::now());
                    let state = DocumentReading::Reading {
                        processed_tokens: convert::tokens(processed),
                        total_tokens: convert::tokens(total),
                        cached_tokens: convert::tokens(cached),
                    };
                    show(app, conversation_id, reading, state);
                }
            }
            Some(GenerateEvent::Finished(_)) if is_stopping => return Ok(DocumentReading::Unread),
            Some(GenerateEvent::Finished(_)) => {
                let tokens = convert::tokens(num_tokens);
                return Ok(DocumentReading::Read { tokens, model });
            }
            Some(GenerateEvent::Failed(error)) => return Err(error.into()),
            Some(GenerateEvent::SoFar(_) | GenerateEvent::Delta { .. }) => {}
            None => return Ok(DocumentReading::Unread),
        }
    }
}
