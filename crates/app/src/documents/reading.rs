//! Reads documents before a question is there, so that it continues from their end: those of a draft
//! behind its conversation, those of a folder at the beginning of every conversation in it. What was read
//! stays saved if reading is stopped.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cairn_chat::{Encode, GenerationStats, Prompt, Role, assemble_turns};
use cairn_engine::{
    EngineError, GenerateEvent, GenerateRequest, KvCacheOptions, PromptInput, Tokenizer,
};
use cairn_store::{ContextCut, Message, NewDocument};
use tokio_util::sync::CancellationToken;

use crate::app::{App, now_ms};
use crate::cache::owners::{conversation_owner, folder_owner};
use crate::chat::answering::loaded_status;
use crate::chat::context::Beginning;
use crate::chat::model as chat_model;
use crate::chat::overflow;
use crate::commands::expected_system_prompt;
use crate::documents::{commands, prompt};
use crate::models::own_settings;
use crate::settings::{Settings, commands as settings};
use crate::wire::{DocumentReading, DocumentsOf, Event, Failure};
use crate::{convert, models};

/// Progress is sent at most so often.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// How far the documents of drafts and folders are read. Owned by [`crate::App`].
#[derive(Debug, Default)]
pub(crate) struct Readings(Mutex<HashMap<DocumentsOf, Reading>>);

/// The last reading of a draft or a folder.
#[derive(Debug, Clone)]
struct Reading {
    state: DocumentReading,
    stop: CancellationToken,
    ended: CancellationToken,
    /// Only looks whether this model has all of it saved already, and loads none for that.
    looks_for: Option<String>,
}

impl Reading {
    fn new(looks_for: Option<String>) -> Self {
        let state = match looks_for {
            Some(_) => DocumentReading::Unread,
            None => DocumentReading::Waiting,
        };
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        Reading { state, stop, ended, looks_for }
    }

    fn only_looks(&self) -> bool {
        self.looks_for.is_some()
    }
}

impl Readings {
    fn all(&self) -> MutexGuard<'_, HashMap<DocumentsOf, Reading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far documents are read.
    pub(crate) fn state(&self, of: &DocumentsOf) -> DocumentReading {
        let all = self.all();
        all.get(of).map_or(DocumentReading::Unread, |reading| reading.state.clone())
    }

    /// Stops a reading, if one runs; what is known of it stays. The result is cancelled when it has ended.
    pub(crate) fn stop(&self, of: &DocumentsOf) -> Option<CancellationToken> {
        let reading = self.all().get(of).cloned()?;
        reading.stop.cancel();
        Some(reading.ended)
    }

    /// Stops a reading that is to go on later, if one runs that does not only look. The result is cancelled
    /// when it has ended.
    fn pause(&self, of: &DocumentsOf) -> Option<CancellationToken> {
        let mut all = self.all();
        let running = |state: &DocumentReading| {
            matches!(state, DocumentReading::Waiting | DocumentReading::Reading { .. })
        };
        let reading = all.get_mut(of).filter(|reading| running(&reading.state))?;
        reading.stop.cancel();
        reading.state = DocumentReading::Waiting;
        Some(reading.ended.clone())
    }

    /// Puts a look in the place of what is known, unless that is more, or the same model was looked for.
    /// Returns whether it did, and what was there.
    fn begin_look(&self, of: &DocumentsOf, look: &Reading) -> (bool, Option<Reading>) {
        let mut all = self.all();
        let is_known = all.get(of).is_some_and(|known| {
            known.state != DocumentReading::Unread || known.looks_for == look.looks_for
        });
        if is_known { (false, None) } else { (true, all.insert(of.clone(), look.clone())) }
    }

    /// Forgets what a look has found or is about to find; false if the last reading was none.
    fn forget_look(&self, of: &DocumentsOf) -> bool {
        let mut all = self.all();
        let is_look = all.get(of).is_some_and(Reading::only_looks);
        if is_look && let Some(look) = all.remove(of) {
            look.stop.cancel();
        }
        is_look
    }

    /// The documents that were too long when they were counted, or for which their conversation might
    /// make room.
    fn without_room(&self) -> Vec<DocumentsOf> {
        let is_without = |(_, reading): &(&DocumentsOf, &Reading)| {
            matches!(reading.state, DocumentReading::TooLong { .. } | DocumentReading::WithQuestion)
        };
        self.all().iter().filter(is_without).map(|(of, _)| of.clone()).collect()
    }

    /// Whether documents are read, or were to be read.
    fn is_wanted(&self, of: &DocumentsOf) -> bool {
        !matches!(self.state(of), DocumentReading::Unread)
    }

    /// Forgets what is known of a reading; of all with none.
    pub(crate) fn forget(&self, of: Option<&DocumentsOf>) {
        let mut all = self.all();
        for (key, reading) in all.iter_mut() {
            if of.is_none_or(|wanted| wanted == key) {
                reading.stop.cancel();
                reading.state = DocumentReading::Unread;
            }
        }
    }

    /// Sets the state of a reading; false if it was stopped, as it is when another takes its place.
    fn set(&self, of: &DocumentsOf, reading: &Reading, state: &DocumentReading) -> bool {
        let mut all = self.all();
        if reading.stop.is_cancelled() {
            return false;
        }
        if let Some(current) = all.get_mut(of) {
            current.state = state.clone();
        }
        true
    }
}

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
        DocumentsOf::Folder { .. } => {
            models::loaded_name(app).and_then(|name| loaded_status(app, &name))
        }
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
            shared.emit_conversation(id).await;
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
    match commands::documents_of(app, of).await {
        Ok(documents) if !documents.is_empty() => begin(app, of),
        _ => app.readings.forget(Some(of)),
    }
}

/// Lets an answer of this conversation go before: what is read of its draft and of its folder is saved
/// first. The answer reads the rest that it needs; then reading goes on.
pub(crate) async fn give_way(app: &Arc<App>, conversation_id: &str) {
    let draft = DocumentsOf::conversation(conversation_id);
    if let Some(ended) = app.readings.stop(&draft) {
        ended.cancelled().await;
        again(app, &draft).await;
    }
    let row = app.store.conversation(conversation_id).await.ok().flatten();
    let Some(id) = row.and_then(|row| row.folder_id) else { return };
    let folder = DocumentsOf::Folder { id };
    let Some(ended) = app.readings.pause(&folder) else { return };
    emit(app, &folder, DocumentReading::Waiting);
    ended.cancelled().await;
    let (shared, answers) = (app.clone(), app.answers.of(conversation_id));
    app.spawn(async move {
        for running in answers {
            running.ended.cancelled().await;
        }
        again(&shared, &folder).await;
    });
}

/// Stops a reading at a person's wish.
pub(crate) fn stop(app: &App, of: &DocumentsOf) {
    app.readings.forget(Some(of));
    emit(app, of, DocumentReading::Unread);
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

/// What is known before anything is read.
struct Draft {
    beginning: Beginning,
    branch: Vec<Message>,
    cuts: HashMap<String, ContextCut>,
    sent: HashMap<String, Vec<NewDocument>>,
    documents: Vec<(cairn_store::Document, String)>,
    model: String,
    settings: Settings,
    /// Whether what is read now could be continued.
    is_ahead: bool,
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
    let prepared = tokio::select! {
        prepared = prepare(app, of, reading) => prepared?,
        () = stopped => return Ok(DocumentReading::Unread),
    };
    match prepared {
        Prepared::Known(state) => Ok(state),
        Prepared::Request { request, model } => generate(app, of, reading, *request, model).await,
    }
}

/// What documents need.
enum Prepared {
    /// Nothing that could be read.
    Known(DocumentReading),
    /// To be read by the model of this name.
    Request { request: Box<GenerateRequest>, model: String },
}

/// Waits for what documents stand behind and for a model, and counts the tokens; of a model that is not
/// loaded before it is, so that what is too long for it is known at once.
async fn prepare(app: &Arc<App>, of: &DocumentsOf, reading: &Reading) -> Result<Prepared, Failure> {
    let draft = match of {
        DocumentsOf::Conversation { id } if reading.only_looks() => {
            let Some(model) = chat_model::in_memory(app, id).await else {
                return Ok(Prepared::Known(DocumentReading::Unread));
            };
            // What could not be continued is not counted once more.
            Some(of_conversation(app, id, model.name).await?).filter(|draft| draft.is_ahead)
        }
        DocumentsOf::Conversation { id } => {
            for running in app.answers.of(id) {
                running.ended.cancelled().await;
            }
            if let Some(too_long) = count_ahead(app, of, id).await? {
                return Ok(Prepared::Known(too_long));
            }
            let model = match chat_model::of(app, id).await?.name {
                Some(name) => {
                    models::ensure_loaded_for_chat(app, &name).await?;
                    name
                }
                None => {
                    models::require_any(app).await?;
                    loaded(app, models::ensure_loaded(app.clone(), None)).await?
                }
            };
            Some(of_conversation(app, id, model).await?)
        }
        DocumentsOf::Folder { id } => of_folder(app, id, reading).await?,
    };
    let Some(draft) = draft.filter(|draft| !draft.documents.is_empty()) else {
        return Ok(Prepared::Known(DocumentReading::Unread));
    };
    let (model, settings, is_ahead) = (draft.model.clone(), draft.settings.clone(), draft.is_ahead);
    let (tokenizer, own_length) = app
        .engine
        .submit(Some(&model), |loaded| (loaded.tokenizer.clone(), loaded.model.context_length()))
        .await?;
    let counted = counted(app, of, draft, tokenizer, own_length).await?;
    if reading.stop.is_cancelled() {
        return Ok(Prepared::Known(DocumentReading::Unread));
    }
    commands::emit(app, of).await;
    let prompt = match counted {
        Counted::Fits(prompt) => prompt,
        Counted::WithQuestion => return Ok(Prepared::Known(DocumentReading::WithQuestion)),
        Counted::TooLong { exceeds_by } => {
            return Ok(Prepared::Known(DocumentReading::TooLong { exceeds_by, model }));
        }
    };
    let num_tokens = prompt.tokens.len();
    let Some(request) = request(app, of, &model, &settings, prompt).filter(|_| is_ahead) else {
        return Ok(Prepared::Known(DocumentReading::WithQuestion));
    };
    if reading.only_looks() {
        let outlook = app.engine.outlook(request).await?;
        // The last token of a prompt is always read: its logits are not saved.
        let is_read = outlook.num_cached + 1 >= num_tokens;
        let tokens = convert::tokens(num_tokens);
        return Ok(Prepared::Known(match is_read {
            true => DocumentReading::Read { tokens, model },
            false => DocumentReading::Unread,
        }));
    }
    Ok(Prepared::Request { request: Box::new(request), model })
}

/// Counts the tokens of a draft with the files of the model that will be loaded, unless it is. The
/// result says that they are too many. What cannot be counted now is counted once the model is loaded.
async fn count_ahead(
    app: &Arc<App>,
    of: &DocumentsOf,
    id: &str,
) -> Result<Option<DocumentReading>, Failure> {
    let of_chat = chat_model::of(app, id).await?.name;
    let is_loaded = match &of_chat {
        Some(name) => loaded_status(app, name).is_some(),
        None => models::loaded_name(app).is_some(),
    };
    // Or one is being loaded, which may be another than the next lines would find.
    if is_loaded || app.loading.try_lock().is_err() {
        return Ok(None);
    }
    let Some(model) = models::to_load(app, of_chat).await else {
        return Ok(None);
    };
    let folder = PathBuf::from(&model.path);
    let Ok(memory) = own_settings::read_memory(app, &model.name, &folder).await else {
        return Ok(None);
    };
    let tokenizer = app.blocking(move || Tokenizer::load(&folder).ok()).await.flatten();
    let Some(tokenizer) = tokenizer else { return Ok(None) };
    let draft = of_conversation(app, id, model.name.clone()).await?;
    // A template that fails is told of when the model is there.
    let own_length = memory.context_length;
    let Ok(counted) = counted(app, of, draft, Arc::new(tokenizer), own_length).await else {
        return Ok(None);
    };
    commands::emit(app, of).await;
    let model = model.name;
    Ok(match counted {
        Counted::TooLong { exceeds_by } => Some(DocumentReading::TooLong { exceeds_by, model }),
        Counted::Fits(_) | Counted::WithQuestion => None,
    })
}

/// What is known of a draft once its tokens are counted.
enum Counted {
    /// The prompt up to the end of the documents.
    Fits(Prompt),
    /// Their end is not found in the prompt, or the conversation makes room for them when they are sent.
    WithQuestion,
    TooLong {
        exceeds_by: u32,
    },
}

/// Counts the tokens of each document and saves the numbers. `own_length`: the model's context.
async fn counted(
    app: &App,
    of: &DocumentsOf,
    draft: Draft,
    tokenizer: Arc<Tokenizer>,
    own_length: usize,
) -> Result<Counted, Failure> {
    let model = draft.model.clone();
    let limit =
        draft.settings.context_length.map_or(own_length, |own| own_length.min(own as usize));
    let ids: Vec<String> = draft.documents.iter().map(|(row, _)| row.id.clone()).collect();
    // Long texts take a while, in which the engine's thread can do other things.
    let tokenized = app.blocking(move || tokenize(&tokenizer, draft, limit)).await;
    let fault = || Failure::fault("A fault in Cairn stopped the documents from being counted.");
    let Tokenized { counts, counted } = tokenized.ok_or_else(fault)??;
    for (id, count) in ids.iter().zip(counts) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        match of {
            DocumentsOf::Conversation { id: conversation_id } => {
                let store = app.store_of(conversation_id).await;
                store.set_document_tokens(id, count, &model).await?;
            }
            DocumentsOf::Folder { .. } => {
                app.store.set_folder_document_tokens(id, count, &model).await?;
            }
        }
    }
    Ok(counted)
}

/// By how many tokens a prompt is too long for a question and its answer; none: it fits.
fn exceeds(num_tokens: usize, limit: usize) -> Option<u32> {
    // Room for one token of a question and one of its answer.
    (num_tokens + 2 > limit).then(|| convert::tokens(num_tokens + 2 - limit))
}

/// The draft of a conversation.
async fn of_conversation(app: &Arc<App>, id: &str, model: String) -> Result<Draft, Failure> {
    let store = app.store_of(id).await.clone();
    let row = store.listed_conversation(id).await?;
    let branch = store.branch(id).await?;
    Ok(Draft {
        beginning: Beginning::Own {
            system_prompt: row.system_prompt,
            documents: store.beginning_texts(id).await?,
        },
        cuts: store.context_cuts(id).await?,
        sent: store.document_texts_of(id).await?,
        documents: store.draft_texts(id).await?,
        settings: settings::for_answer(app, &store, id, Some(&model)).await?,
        is_ahead: row.prefix.is_none() && !app.is_private(id).await,
        branch,
        model,
    })
}

/// The documents of a folder as the first message of a conversation in it, for the folder's model where
/// that is here, else for the one that answers.
async fn of_folder(app: &Arc<App>, id: &str, reading: &Reading) -> Result<Option<Draft>, Failure> {
    let folders = app.store.folders().await?;
    let Some(folder) = folders.into_iter().find(|folder| folder.id == id) else { return Ok(None) };
    let wanted = match folder.model {
        Some(name) if models::require(app, &name).await.is_ok() => Some(name),
        _ => None,
    };
    let model = match (wanted, reading.only_looks()) {
        (wanted, true) => {
            let model = wanted.or_else(|| models::loaded_name(app));
            let Some(model) = model.filter(|name| loaded_status(app, name).is_some()) else {
                return Ok(None);
            };
            model
        }
        (Some(name), false) => models::ensure_loaded_beside(app, &name).await?,
        (None, false) => {
            models::require_any(app).await?;
            loaded(app, models::ensure_loaded(app.clone(), None)).await?
        }
    };
    let system_prompt = match folder.system_prompt {
        prompt if prompt.is_empty() => expected_system_prompt(app, Some(&model)).await,
        prompt => prompt,
    };
    Ok(Some(Draft {
        beginning: Beginning::Own { system_prompt, documents: Vec::new() },
        branch: Vec::new(),
        cuts: HashMap::new(),
        sent: HashMap::new(),
        documents: app.store.folder_texts(id).await?,
        settings: settings::of_loaded(app, &model).await?,
        is_ahead: true,
        model,
    }))
}

/// The name of the model that answers, once it is loaded. In a task: loading continues when reading is
/// stopped, because the question needs the model too.
async fn loaded(
    app: &Arc<App>,
    loading: impl Future<Output = Result<(), Failure>> + Send + 'static,
) -> Result<String, Failure> {
    app.spawn(loading).await.map_err(|fault| {
        Failure::fault(format!("A fault in Cairn stopped the model from being loaded: {fault}."))
    })??;
    models::loaded_name(app).ok_or_else(models::no_model)
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
        // Which of their tokens matter, only a question says.
        kv_cache: KvCacheOptions {
            snapkv: None,
            ..convert::kv_cache(settings, status.kv_group_size)
        },
        ..GenerateRequest::new(PromptInput::Assembled(prompt))
    })
}

struct Tokenized {
    /// The tokens of each document.
    counts: Vec<usize>,
    counted: Counted,
}

fn tokenize(tokenizer: &Tokenizer, draft: Draft, limit: usize) -> Result<Tokenized, Failure> {
    let Draft { beginning, branch, cuts, sent, documents, settings, .. } = draft;
    let failed = |error: cairn_chat::ChatError| Failure::from(EngineError::Prompt(error));
    let counts = documents.iter().map(|(_, text)| Ok(tokenizer.encode_plain(text)?.len()));
    let counts = counts.collect::<Result<Vec<usize>, _>>().map_err(failed)?;
    let documents = documents.into_iter().map(|(row, text)| NewDocument {
        name: row.name,
        kind: row.kind,
        text,
    });
    let documents: Vec<NewDocument> = documents.collect();
    let template = tokenizer.chat_template();
    let template = template.ok_or(cairn_chat::ChatError::NoTemplate).map_err(failed)?;
    let prompt_behind = |branch: &[Message], cuts: &HashMap<_, _>| {
        let Some(turns) = prompt::of_draft(&beginning, branch, cuts, &sent, documents.clone())
        else {
            return Ok(None);
        };
        assemble_turns(template, &turns, tokenizer).map(up_to_breakpoint).map_err(failed)
    };
    let Some(prompt) = prompt_behind(&branch, &cuts)? else {
        return Ok(Tokenized { counts, counted: Counted::WithQuestion });
    };
    let Some(exceeds_by) = exceeds(prompt.tokens.len(), limit) else {
        return Ok(Tokenized { counts, counted: Counted::Fits(prompt) });
    };
    // Then the oldest turns would go, and at most all that the branch has.
    let rest = overflow::least_kept(&branch, &cuts, settings.at_overflow);
    let with_rest = rest.map(|rest| prompt_behind(rest, &HashMap::new())).transpose()?.flatten();
    let for_summary = overflow::summary_tokens(settings.at_overflow, limit);
    let makes_room =
        with_rest.is_some_and(|prompt| exceeds(prompt.tokens.len() + for_summary, limit).is_none());
    let counted = match makes_room {
        true => Counted::WithQuestion,
        false => Counted::TooLong { exceeds_by },
    };
    Ok(Tokenized { counts, counted })
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
    let last_from = prompt.last_from.min(end);
    Some(Prompt { boundaries, roles, breakpoints, new_from, last_from, ..prompt })
}

async fn generate(
    app: &App,
    of: &DocumentsOf,
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
                    show(app, of, reading, state);
                }
            }
            Some(GenerateEvent::Finished(_)) if is_stopping => return Ok(DocumentReading::Unread),
            Some(GenerateEvent::Finished(finished)) => {
                note_speed(app, &finished.stats).await;
                let tokens = convert::tokens(num_tokens);
                return Ok(DocumentReading::Read { tokens, model });
            }
            Some(GenerateEvent::Failed(error)) => return Err(error.into()),
            Some(GenerateEvent::SoFar(_) | GenerateEvent::Delta { .. }) => {}
            None => return Ok(DocumentReading::Unread),
        }
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

    #[test]
    fn a_paused_reading_waits_and_one_that_looks_goes_on() {
        let readings = Readings::default();
        let of = DocumentsOf::folder("contracts");
        assert!(readings.pause(&of).is_none(), "nothing is read");

        let looking = Reading::new(Some("m".to_owned()));
        readings.all().insert(of.clone(), looking.clone());
        assert!(readings.pause(&of).is_none());
        assert!(!looking.stop.is_cancelled());

        let reading = Reading::new(None);
        readings.all().insert(of.clone(), reading.clone());
        let half =
            DocumentReading::Reading { processed_tokens: 5, total_tokens: 10, cached_tokens: 0 };
        assert!(readings.set(&of, &reading, &half));
        assert!(readings.pause(&of).is_some());
        assert!(reading.stop.is_cancelled());
        assert_eq!(readings.state(&of), DocumentReading::Waiting, "no progress that stands still");
        assert!(readings.is_wanted(&of), "it goes on later");
        assert!(!readings.set(&of, &reading, &half), "it says nothing any more");
    }
}
