//! Reads documents before a question is there, so that it continues from their end: those of a draft
//! behind its conversation, those of a folder at the beginning of every conversation in it. What was read
//! stays saved if reading is stopped.

use std::ops::ControlFlow::{self, Break, Continue};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_chat::{CachedFrom, GenerationStats, Prompt};
use cairn_engine::{
    EngineError, GenerateEvent, GenerateRequest, KvCacheOptions, PromptInput, Tokenizer, WorkFor,
    WorkKind,
};
use cairn_prompt_cache::Owner;
use cairn_store::AheadSource;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::cache::owners::{conversation_owner, folder_owner};
use crate::chat::listed;
use crate::chat::model as chat_model;
use crate::clock::now_ms;
use crate::convert;
use crate::crashes::record::{self, RunningStep, StepKind};
use crate::documents::attached;
use crate::documents::counting::{self, Counted};
use crate::documents::drafts::{self, Draft};
use crate::documents::readings::Reading;
use crate::models::loaded::{loaded_name, loaded_status};
use crate::models::{loading, of_chats, own_settings};
use crate::settings::Settings;
use crate::wire::{DocumentReading, DocumentsOf, Event, Failure};

/// Progress is sent at most so often.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Begins to read documents, in the place of a reading that runs.
pub(crate) fn begin(app: &Arc<App>, of: &DocumentsOf) {
    emit(app, of, DocumentReading::Waiting);
    let reading = Reading::new(None);
    let before = app.readings.all().insert(of.clone(), reading.clone());
    run(app, of, reading, before);
}

/// Looks whether documents are read already, if nobody knows that and their model is in memory.
pub(crate) async fn look(app: &Arc<App>, of: &DocumentsOf) {
    let model = match of {
        DocumentsOf::Conversation { id } => chat_model::in_memory(app, id).await,
        DocumentsOf::Folder { .. } => loaded_name(app).and_then(|name| loaded_status(app, &name)),
    };
    let Some(model) = model else { return };
    let look = Reading::new(Some(model.name));
    if let (true, before) = app.readings.begin_look(of, &look) {
        run(app, of, look, before);
    }
}

/// Counts again what was too long, or was not for what room will be made: the context may have become
/// longer, and what happens when it is full another thing.
pub(crate) fn again_where_too_long(app: &Arc<App>) {
    for of in app.readings.without_room() {
        begin(app, &of);
    }
}

/// `before`: the reading in whose place this one is.
fn run(app: &Arc<App>, of: &DocumentsOf, reading: Reading, before: Option<Reading>) {
    if let Some(before) = &before {
        before.stop.cancel();
    }
    let (shared, of) = (app.clone(), of.clone());
    app.spawn(async move {
        let _ended = reading.ended.clone().drop_guard();
        if let Some(before) = before {
            before.ended.cancelled().await;
        }
        let state = match read(&shared, &of, &reading).await {
            Ok(state) => state,
            Err(Failure { message: why, kind, .. }) => DocumentReading::Failed { why, kind },
        };
        show(&shared, &of, &reading, state);
        // Its row says how much of it is saved.
        if let DocumentsOf::Conversation { id } = &of {
            listed::emit(&shared, id).await;
        }
    });
}

/// Reads documents again whose prompt has changed, if they were read or were to be.
pub(crate) async fn again(app: &Arc<App>, of: &DocumentsOf) {
    if !app.readings.is_wanted(of) {
        if app.readings.forget_look(of) {
            look(app, of).await;
        }
        return;
    }
    match attached::documents_of(app, of).await {
        Ok(documents) if !documents.is_empty() => begin(app, of),
        _ => app.readings.forget(Some(of)),
    }
}

/// Lets an answer of this conversation go before: what is read of its draft and of its folder is saved
/// first. The answer reads the rest that it needs; then reading goes on. An answer that is stopped does
/// not wait.
pub(crate) async fn give_way(app: &Arc<App>, conversation_id: &str, stop: &CancellationToken) {
    let ended_or_stopped = async |ended: CancellationToken| {
        tokio::select! {
            () = ended.cancelled() => {}
            () = stop.cancelled() => {}
        }
    };
    let draft = DocumentsOf::conversation(conversation_id);
    if let Some(ended) = app.readings.stop(&draft) {
        ended_or_stopped(ended).await;
        again(app, &draft).await;
    }
    let row = app.store.conversation(conversation_id).await.ok().flatten();
    let Some(id) = row.and_then(|row| row.folder_id) else { return };
    let folder = DocumentsOf::Folder { id };
    let Some(ended) = app.readings.pause(&folder) else { return };
    emit(app, &folder, DocumentReading::Waiting);
    ended_or_stopped(ended).await;
    let (shared, answers) = (app.clone(), app.answers.of(conversation_id));
    app.spawn(async move {
        for running in answers {
            running.ended.cancelled().await;
        }
        again(&shared, &folder).await;
    });
}

/// Stops a reading at a person's wish, or because what it has read is deleted.
pub(crate) fn stop(app: &App, of: &DocumentsOf) {
    app.readings.forget(Some(of));
    emit(app, of, DocumentReading::Unread);
}

/// Stops all readings, because what they have read is deleted.
pub(crate) fn stop_all(app: &App) {
    let all: Vec<DocumentsOf> = app.readings.all().keys().cloned().collect();
    for of in &all {
        stop(app, of);
    }
}

fn emit(app: &App, of: &DocumentsOf, reading: DocumentReading) {
    app.emit(Event::DocumentsReading { of: of.clone(), reading });
}

fn show(app: &App, of: &DocumentsOf, reading: &Reading, state: DocumentReading) {
    // Looking says nothing but that everything is read, or cannot be.
    let is_known = matches!(state, DocumentReading::Read { .. } | DocumentReading::TooLong { .. });
    let is_told = !reading.only_looks() || is_known;
    if is_told && app.readings.set(of, reading, &state) {
        emit(app, of, state);
    }
}

async fn read(
    app: &Arc<App>,
    of: &DocumentsOf,
    reading: &Reading,
) -> Result<DocumentReading, Failure> {
    let stopped = async {
        tokio::select! {
            () = reading.stop.cancelled() => {}
            () = app.closing.cancelled() => {}
        }
    };
    let prepared = async {
        // No one has asked a question yet: a quiet start reads only what an answer needs.
        app.crashes.not_quiet().await;
        prepare(app, of, reading).await
    };
    let prepared = tokio::select! {
        prepared = prepared => prepared,
        () = stopped => return Ok(DocumentReading::Unread),
    };
    match prepared? {
        Continue(ready) => generate(app, of, reading, ready).await,
        Break(known) => Ok(known),
    }
}

/// What the next step of a reading needs, or what is known of the documents so that there is none.
type Step<T> = ControlFlow<DocumentReading, T>;

/// A request that reads documents.
struct Ready {
    request: GenerateRequest,
    model: String,
    /// Tokens of the documents, with which the prompt ends.
    num_document_tokens: usize,
}

/// Prepares the request that reads documents: waits until the answers before them have ended and
/// the model is loaded, and counts the tokens.
async fn prepare(
    app: &Arc<App>,
    of: &DocumentsOf,
    reading: &Reading,
) -> Result<Step<Ready>, Failure> {
    let draft = match drafted(app, of, reading).await? {
        Continue(draft) => draft,
        Break(known) => return Ok(Break(known)),
    };
    let (model, settings, is_ahead) = (draft.model.clone(), draft.settings.clone(), draft.is_ahead);
    let _step = begin_step(app, of, &model);
    let (prompt, num_document_tokens) = match counted_prompt(app, of, draft, reading).await? {
        Continue(counted) => counted,
        Break(known) => return Ok(Break(known)),
    };
    let request = request(app, of, &model, &settings, prompt).filter(|_| is_ahead);
    let ready = request.map(|request| Ready { request, model, num_document_tokens });
    Ok(match ready {
        // What could not be continued is read with the question.
        None => Break(DocumentReading::WithQuestion),
        Some(ready) if reading.only_looks() => Break(looked_up(app, ready).await?),
        Some(ready) => Continue(ready),
    })
}

/// The draft that is read, with documents in it.
async fn drafted(
    app: &Arc<App>,
    of: &DocumentsOf,
    reading: &Reading,
) -> Result<Step<Draft>, Failure> {
    let draft = match of {
        DocumentsOf::Conversation { id } if reading.only_looks() => {
            drafts::of_model_in_memory(app, id).await?
        }
        DocumentsOf::Conversation { id } => match draft_to_read(app, of, id).await? {
            Continue(draft) => Some(draft),
            Break(known) => return Ok(Break(known)),
        },
        DocumentsOf::Folder { id } => drafts::of_folder(app, id, reading.only_looks()).await?,
    };
    let draft = draft.filter(|draft| !draft.documents.is_empty());
    Ok(draft.map_or(Break(DocumentReading::Unread), Continue))
}

/// The draft of a conversation once its answers have ended and its model is loaded. Before that its tokens
/// are counted, so that what is too long for the model is known at once.
async fn draft_to_read(app: &Arc<App>, of: &DocumentsOf, id: &str) -> Result<Step<Draft>, Failure> {
    for running in app.answers.of(id) {
        running.ended.cancelled().await;
    }
    if let Some(too_long) = count_ahead(app, of, id).await? {
        return Ok(Break(too_long));
    }
    let model = match of_chats::of(app, id).await?.name {
        Some(name) => {
            loading::ensure_loaded_for_chat(app, &name).await?;
            name
        }
        None => drafts::load_any(app).await?,
    };
    Ok(Continue(drafts::of_conversation(app, id, model).await?))
}

/// Builds the prompt up to the end of the documents and counts its tokens with its model, which is
/// loaded. Returns the tokens of the documents too.
async fn counted_prompt(
    app: &Arc<App>,
    of: &DocumentsOf,
    draft: Draft,
    reading: &Reading,
) -> Result<Step<(Prompt, usize)>, Failure> {
    let model = draft.model.clone();
    let (tokenizer, own_length) = app
        .engine
        .submit(Some(&model), |loaded| (loaded.tokenizer.clone(), loaded.model.context_length()))
        .await?;
    let counted = counting::count(app, of, draft, tokenizer, own_length).await?;
    if reading.stop.is_cancelled() {
        return Ok(Break(DocumentReading::Unread));
    }
    attached::emit(app, of).await;
    Ok(match counted {
        Counted::Fits { prompt, num_document_tokens } => Continue((prompt, num_document_tokens)),
        Counted::WithQuestion => Break(DocumentReading::WithQuestion),
        Counted::TooLong { exceeds_by } => Break(DocumentReading::TooLong { exceeds_by, model }),
    })
}

/// Whether all that a request would read is saved.
async fn looked_up(app: &App, ready: Ready) -> Result<DocumentReading, EngineError> {
    let Ready { request, model, num_document_tokens } = ready;
    let num_tokens = num_prompt_tokens(&request);
    let outlook = app.engine.outlook(request).await?;
    // The last token of a prompt is always read: its logits are not saved.
    let is_read = outlook.num_cached + 1 >= num_tokens;
    Ok(if is_read {
        read_to_the_end(num_tokens, num_document_tokens, model)
    } else {
        DocumentReading::Unread
    })
}

/// Counts the tokens of a draft with the files of the model that will be loaded, unless it is. The
/// result says that they are too many. What cannot be counted now is counted once the model is loaded.
async fn count_ahead(
    app: &Arc<App>,
    of: &DocumentsOf,
    id: &str,
) -> Result<Option<DocumentReading>, Failure> {
    let of_chat = of_chats::of(app, id).await?.name;
    let is_loaded = match &of_chat {
        Some(name) => loaded_status(app, name).is_some(),
        None => loaded_name(app).is_some(),
    };
    // Or one is being loaded, which may be another than the next lines would find.
    if is_loaded || app.loading.try_lock().is_err() {
        return Ok(None);
    }
    let Some(model) = loading::to_load(app, of_chat).await else {
        return Ok(None);
    };
    let folder = PathBuf::from(&model.path);
    let _step = begin_step(app, of, &model.name);
    let Ok(memory) = own_settings::read_memory(app, &model.name, &folder).await else {
        return Ok(None);
    };
    let tokenizer = app.blocking(move || Tokenizer::load(&folder).ok()).await.flatten();
    let Some(tokenizer) = tokenizer else { return Ok(None) };
    let draft = drafts::of_conversation(app, id, model.name.clone()).await?;
    // A template that fails is told of when the model is there.
    let own_length = memory.context_length;
    let Ok(counted) = counting::count(app, of, draft, Arc::new(tokenizer), own_length).await else {
        return Ok(None);
    };
    attached::emit(app, of).await;
    let model = model.name;
    Ok(match counted {
        Counted::TooLong { exceeds_by } => Some(DocumentReading::TooLong { exceeds_by, model }),
        Counted::Fits { .. } | Counted::WithQuestion => None,
    })
}

/// The request that reads a prompt; none where what it computes could not be continued.
fn request(
    app: &App,
    of: &DocumentsOf,
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
        owner: Some(match of {
            DocumentsOf::Conversation { id } => conversation_owner(id),
            DocumentsOf::Folder { id } => folder_owner(id),
        }),
        work_for: match of {
            // Documents of private chats are not read ahead.
            DocumentsOf::Conversation { id } => {
                WorkFor::conversation(WorkKind::ReadAhead, id, false)
            }
            DocumentsOf::Folder { .. } => WorkFor::kind(WorkKind::ReadAhead),
        },
        // Which of their tokens matter, only a question says.
        kv_cache: KvCacheOptions {
            snapkv: None,
            ..convert::kv_cache(settings, status.kv_group_size)
        },
        ..GenerateRequest::new(PromptInput::Assembled(prompt))
    })
}

/// Notes in the crash record that a model reads documents. Documents of private chats are not read
/// ahead.
fn begin_step(app: &App, of: &DocumentsOf, model: &str) -> RunningStep {
    let conversation_id = match of {
        DocumentsOf::Conversation { id } => Some(id.clone()),
        DocumentsOf::Folder { .. } => None,
    };
    let step = record::Step::new(StepKind::ReadingAhead, model.to_owned());
    app.crashes.begin(record::Step { conversation_id, ..step })
}

async fn generate(
    app: &App,
    of: &DocumentsOf,
    reading: &Reading,
    ready: Ready,
) -> Result<DocumentReading, Failure> {
    let Ready { request, model, num_document_tokens } = ready;
    let num_tokens = num_prompt_tokens(&request);
    let step = begin_step(app, of, &model);
    let mut ahead = Ahead::from_request(&request, &model);
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
            () = app.closing.cancelled() => {
                ahead.note(app, None).await;
                return Ok(DocumentReading::Unread);
            }
        };
        match event {
            Some(GenerateEvent::Prefill { processed, total, cached }) => {
                (ahead.num_cached, ahead.num_processed) = (cached, processed);
                let is_due = shown.is_none_or(|shown| shown.elapsed() >= PROGRESS_INTERVAL);
                if is_due {
                    shown = Some(Instant::now());
                    let state = DocumentReading::Reading {
                        processed_tokens: convert::tokens(processed),
                        total_tokens: convert::tokens(total),
                        document_tokens: convert::tokens(num_document_tokens),
                        cached_tokens: convert::tokens(cached),
                    };
                    show(app, of, reading, state);
                }
            }
            Some(GenerateEvent::Finished(finished)) if is_stopping => {
                ahead.note(app, finished.stats.cached_from).await;
                return Ok(DocumentReading::Unread);
            }
            Some(GenerateEvent::Finished(finished)) => {
                step.succeeded();
                ahead.note(app, finished.stats.cached_from).await;
                note_speed(app, &finished.stats).await;
                return Ok(read_to_the_end(num_tokens, num_document_tokens, model));
            }
            Some(GenerateEvent::Failed(error)) => return Err(error.into()),
            Some(GenerateEvent::SoFar(_) | GenerateEvent::Delta { .. }) => {}
            None => return Ok(DocumentReading::Unread),
        }
    }
}

/// Progress of a reading. It decides how much its tokens save later.
struct Ahead {
    owner: Option<String>,
    model: String,
    num_cached: usize,
    /// Tokens processed so far, tokens from saved context included.
    num_processed: usize,
}

impl Ahead {
    fn from_request(request: &GenerateRequest, model: &str) -> Self {
        let owner = request.owner.as_ref().map(Owner::to_string);
        Ahead { owner, model: model.to_owned(), num_cached: 0, num_processed: 0 }
    }

    /// Notes what was read, and where the rest came from; `None` if that is not known. Without this
    /// note the question would seem to save what was read for it.
    async fn note(&self, app: &App, from: Option<CachedFrom>) {
        let Some(owner) = &self.owner else { return };
        let CachedFrom { num_restored, num_shared, .. } = from.unwrap_or_default();
        let num_own = self.num_cached.saturating_sub(num_shared);
        let first_restored = num_own.saturating_sub(num_restored);
        let ranges = [
            (AheadSource::Restored, first_restored..num_own),
            (AheadSource::Shared, num_own..self.num_cached),
            (AheadSource::Read, self.num_cached..self.num_processed),
        ];
        if let Err(error) = app.store.note_read_ahead(owner, &self.model, &ranges).await {
            tracing::warn!("what was read ahead was not noted: {error}");
        }
    }
}

fn read_to_the_end(
    num_tokens: usize,
    num_document_tokens: usize,
    model: String,
) -> DocumentReading {
    let document_tokens = convert::tokens(num_document_tokens);
    DocumentReading::Read { tokens: convert::tokens(num_tokens), document_tokens, model }
}

fn num_prompt_tokens(request: &GenerateRequest) -> usize {
    match &request.prompt {
        PromptInput::Assembled(prompt) => prompt.tokens.len(),
        _ => 0,
    }
}

/// Notes how fast the model read: the answers that continue from here read too little to tell. Private
/// chats are not read ahead. Without it only the time that they save stays unknown.
async fn note_speed(app: &App, stats: &GenerationStats) {
    let num_read = stats.num_prompt_tokens.saturating_sub(stats.num_cached_tokens);
    let noted = app.store.note_reading(&stats.model, num_read, stats.prompt_tps, now_ms()).await;
    if let Err(error) = noted {
        tracing::warn!("the speed of a reading was not noted: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Command, MessageStatus, Reply};
    use crate::{DataFolder, Options};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_stopped_answer_does_not_wait_for_what_is_read_of_its_draft() {
        let home = tempfile::tempdir().unwrap();
        let model = home.path().join("models").join("tiny-chat");
        cairn_tiny_models::copy_tiny_model("llama/tiny-chat", &model).unwrap();
        let app = App::open(Options::new(DataFolder::new(home.path()))).await.unwrap();
        let created = app.call(Command::NewConversation).await.unwrap();
        let Reply::Conversation { conversation, .. } = created else { panic!("{created:?}") };
        let conversation_id = conversation.id;
        // It does not end before the answer has.
        let reading = Reading::new(None);
        let of = DocumentsOf::conversation(&conversation_id);
        app.readings.all().insert(of.clone(), reading.clone());
        let text = "Why?".to_owned();
        let conversation_id = || conversation_id.clone();
        let send = Command::SendMessage { conversation_id: conversation_id(), text };
        app.call(send).await.unwrap();
        let [answer] = app.answers.of(&conversation_id()).try_into().unwrap();
        reading.stop.cancelled().await;
        app.call(Command::Stop { conversation_id: conversation_id() }).await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(60), answer.ended.cancelled());
        ended.await.expect("it does not wait");
        assert_eq!(answer.message().status, MessageStatus::Stopped);
        reading.ended.cancel();
        app.close().await;
    }
}
