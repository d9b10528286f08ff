//! How much of its model's context a chat takes, and how much room that leaves.

use std::sync::Arc;

use cairn_engine::{EngineError, LoadedModelStatus, PromptInput};
use cairn_store::Store;
use serde_json::Map;

use crate::app::App;
use crate::chat::beginning::{Beginning, ReadPart};
use crate::chat::creation::expected_system_prompt;
use crate::chat::model;
use crate::chat::prompt::{read_rows, unsent_question};
use crate::convert;
use crate::crashes::record::StepKind;
use crate::documents::attached;
use crate::documents::prompt::WithDocuments;
use crate::documents::sizes::{self, Sizes};
use crate::models::loaded::{loaded_name, loaded_status};
use crate::settings::{Settings, commands as settings};
use crate::wire::{ChatContext, ContextOf, DocumentsOf, Event, Failure, NewChat, Reply};

/// How many tokens a chat with a model may have, and how many of them stay free for its next answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) limit: usize,
    pub(crate) for_answer: usize,
}

impl Room {
    pub(crate) fn of(model: &LoadedModelStatus, settings: &Settings) -> Room {
        let own = settings.context_length.map_or(usize::MAX, |length| length as usize);
        let limit = own.min(model.context_length);
        // Long answers are allowed, few are written: more than a quarter is not kept for them.
        Room { limit, for_answer: (settings.max_tokens as usize).min(limit / 4) }
    }

    /// Whether an answer to a prompt of so many tokens can be written.
    pub(crate) fn fits(self, num_tokens: usize) -> bool {
        num_tokens + self.for_answer <= self.limit
    }
}

/// How many tokens a prompt has for a loaded model.
pub(crate) async fn num_tokens(
    app: &App,
    model: &str,
    prompt: PromptInput,
    settings: &Settings,
) -> Result<usize, EngineError> {
    Ok(tokens(app, model, prompt, settings).await?.len())
}

/// The tokens of a prompt for a loaded model, as an answer would have them.
pub(crate) async fn tokens(
    app: &App,
    model: &str,
    prompt: PromptInput,
    settings: &Settings,
) -> Result<Vec<u32>, EngineError> {
    let thinking = Some(convert::thinking(settings.thinking));
    app.engine.prompt_tokens(Some(model), prompt, Map::new(), thinking).await
}

/// Returns how much of its model's context a chat takes, or how much a new one begins with. `None`
/// while that model is not in memory.
pub(crate) async fn get(app: &Arc<App>, of: ContextOf) -> Result<Reply, Failure> {
    let context = match of {
        ContextOf::Conversation { id } => of_conversation(app, &id).await?,
        ContextOf::New(new) => of_new_chat(app, new).await?,
    };
    let Some(context) = context else { return Ok(Reply::Context { context: None }) };
    let own_system_prompt = app.engine.own_system_prompt(&context.model).await.unwrap_or_default();
    Ok(Reply::Context { context: Some(ChatContext { own_system_prompt, ..context }) })
}

async fn of_conversation(app: &App, id: &str) -> Result<Option<ChatContext>, Failure> {
    let Some(model) = model::in_memory(app, id).await else { return Ok(None) };
    let store = app.store_of(id).await;
    let row = store.listed_conversation(id).await?;
    let settings = settings::for_answer(app, store, id, Some(&model.name)).await?;
    let _step = app.begin_step(StepKind::Counting, id, Some(&model.name)).await;
    let Some(parts) = measured(app, store, id, &model, &settings).await? else { return Ok(None) };
    Ok(Some(described(&model, &settings, row.system_prompt, parts)))
}

/// Measures a chat that has no row yet: its first message makes one.
async fn of_new_chat(app: &Arc<App>, new: NewChat) -> Result<Option<ChatContext>, Failure> {
    let NewChat { folder_id, system_prompt, model } = new;
    let model = model.or_else(|| loaded_name(app)).and_then(|name| loaded_status(app, &name));
    let Some(model) = model else { return Ok(None) };
    let settings = settings::of_loaded(app, &model.name).await?;
    let folders = app.store.folders().await?;
    let folder = folders.into_iter().find(|folder| Some(&folder.id) == folder_id.as_ref());
    let of_folder = folder.as_ref().map(|folder| folder.system_prompt.clone());
    let system_prompt = match system_prompt.or(of_folder.filter(|prompt| !prompt.is_empty())) {
        Some(prompt) => prompt,
        None => expected_system_prompt(app, Some(&model.name)).await,
    };
    let beginning = Beginning::Own { system_prompt: system_prompt.clone(), documents: Vec::new() };
    let Ok(num_beginning) = num_shared(app, &beginning, &model.name, &settings).await else {
        return Ok(None);
    };
    let documents = match folder {
        Some(folder) => {
            let sum = sizes::for_folder(app, &folder.id, &model.name).await?;
            if sum.is_new {
                attached::emit(app, &DocumentsOf::folder(&folder.id)).await;
            }
            sum.num_tokens
        }
        None => 0,
    };
    let parts =
        Parts { used: num_beginning + documents, beginning: num_beginning, documents, summary: 0 };
    Ok(Some(described(&model, &settings, system_prompt, parts)))
}

/// The tokens of a chat in all, and of some of its parts.
struct Parts {
    used: usize,
    beginning: usize,
    documents: usize,
    summary: usize,
}

fn described(
    model: &LoadedModelStatus,
    settings: &Settings,
    system_prompt: String,
    parts: Parts,
) -> ChatContext {
    let room = Room::of(model, settings);
    ChatContext {
        model: model.name.clone(),
        limit_tokens: convert::tokens(room.limit),
        used_tokens: convert::tokens(parts.used),
        beginning_tokens: convert::tokens(parts.beginning),
        document_tokens: convert::tokens(parts.documents),
        summary_tokens: convert::tokens(parts.summary),
        answer_tokens: convert::tokens(room.for_answer),
        at_overflow: settings.at_overflow,
        system_prompt,
        own_system_prompt: None,
    }
}

/// Counts the tokens that all chats with this beginning share before their first question.
async fn num_shared(
    app: &App,
    beginning: &Beginning,
    model: &str,
    settings: &Settings,
) -> Result<usize, EngineError> {
    let with_question = async |text: &str| {
        let messages = [unsent_question("", text)];
        let alone = beginning.with(ReadPart { messages: &messages, summary: None });
        tokens(app, model, alone, settings).await
    };
    let (one, other) = (with_question("a").await?, with_question("b").await?);
    Ok(one.iter().zip(&other).take_while(|(a, b)| a == b).count())
}

/// None where the model cannot read the chat: it has no template, or the chat is another model's.
async fn measured(
    app: &App,
    store: &Store,
    id: &str,
    model: &LoadedModelStatus,
    settings: &Settings,
) -> Result<Option<Parts>, Failure> {
    let (rows, cuts) = (store.branch(id).await?, store.context_cuts(id).await?);
    let branch = WithDocuments::of(store, id, &rows).await?;
    let part = ReadPart::of(branch.rows(), &cuts).before_next_question();
    let Ok(beginning) = Beginning::of(app, store, id, Some(model)).await else { return Ok(None) };
    let sizes = sizes::for_conversation(app, store, id, &model.name).await?;
    emit_new(app, store, id, &sizes).await?;
    let in_messages = read_rows(part.messages).map(|row| sizes.num_in_message(&row.id));
    let documents = sizes.num_in_beginning + in_messages.sum::<usize>();
    let num_tokens = async |prompt| num_tokens(app, &model.name, prompt, settings).await;
    let measure = async {
        let plain = beginning.without_documents();
        let num_beginning = num_shared(app, &plain, &model.name, settings).await?;
        let used = if part.to_messages("").is_empty() {
            num_beginning + documents
        } else {
            num_tokens(beginning.with(part)).await?
        };
        let summary = match part.summary {
            Some(_) => {
                let without = ReadPart { summary: None, ..part };
                used.saturating_sub(num_tokens(beginning.with(without)).await?)
            }
            None => 0,
        };
        Ok::<_, EngineError>(Parts { used, beginning: num_beginning.min(used), documents, summary })
    };
    Ok(measure.await.ok())
}

/// Sends the draft and the messages that show sizes which are new.
async fn emit_new(app: &App, store: &Store, id: &str, sizes: &Sizes) -> Result<(), Failure> {
    if sizes.has_new_in_draft {
        attached::emit(app, &DocumentsOf::conversation(id)).await;
    }
    for message_id in &sizes.new_in_messages {
        emit_message(app, store, id, message_id).await?;
    }
    Ok(())
}

/// Lets a chat be read from its beginning again, or from an earlier cut.
pub(crate) async fn read_again(
    app: &Arc<App>,
    conversation_id: &str,
    message_id: &str,
) -> Result<Reply, Failure> {
    let _turn = app.turns.lock().await;
    let store = app.store_of(conversation_id).await;
    if app.answers.is_streaming(conversation_id) {
        let id = conversation_id.to_owned();
        return Err(cairn_store::StoreError::AlreadyStreaming { conversation_id: id }.into());
    }
    store.remove_context_cut(message_id).await?;
    emit_message(app, store, conversation_id, message_id).await?;
    Ok(Reply::Done)
}

/// Sends a message of the current branch as it is now.
pub(crate) async fn emit_message(
    app: &App,
    store: &Store,
    conversation_id: &str,
    message_id: &str,
) -> Result<(), Failure> {
    let branch = store.branch(conversation_id).await?;
    let Some(row) = branch.into_iter().find(|row| row.id == message_id) else { return Ok(()) };
    let mut cuts = store.context_cuts(conversation_id).await?;
    let versions = store.versions(conversation_id).await?;
    let documents = store.documents_of(conversation_id).await?.remove(message_id);
    if let Some(mut message) = convert::message(row) {
        message.documents =
            documents.unwrap_or_default().into_iter().map(convert::document).collect();
        message.versions = versions.siblings(message_id);
        message.cut = cuts.remove(message_id).map(convert::context_cut);
        app.emit(Event::Message { message });
    }
    Ok(())
}
