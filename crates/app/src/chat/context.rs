//! How much of its model's context a chat takes, and how much room that leaves.

use std::sync::Arc;

use cairn_engine::{EngineError, LoadedModelStatus, PromptInput};
use cairn_store::Store;
use serde_json::Map;

use crate::app::App;
use crate::chat::beginning::{Beginning, ReadPart};
use crate::chat::model;
use crate::chat::prompt::unsent_question;
use crate::convert;
use crate::crashes::record::StepKind;
use crate::documents::prompt::WithDocuments;
use crate::models::loaded::{loaded_name, loaded_status};
use crate::settings::{Settings, commands as settings};
use crate::wire::{ChatContext, Event, Failure, Reply};

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
) -> Result<usize, EngineError> {
    Ok(app.engine.prompt_tokens(Some(model), prompt, Map::new()).await?.len())
}

/// How much of its model's context a chat takes; none while that is not in memory. Without a chat, what a new one would find.
pub(crate) async fn get(app: &Arc<App>, conversation_id: Option<&str>) -> Result<Reply, Failure> {
    let nothing = Reply::Context { context: None };
    let model = match conversation_id {
        Some(id) => model::in_memory(app, id).await,
        None => loaded_name(app).and_then(|name| loaded_status(app, &name)),
    };
    let Some(model) = model else { return Ok(nothing) };
    let own_system_prompt = app.engine.own_system_prompt(&model.name).await.unwrap_or_default();
    let context = match conversation_id {
        Some(id) => {
            let store = app.store_of(id).await;
            store.listed_conversation(id).await?;
            let settings = settings::for_answer(app, store, id, Some(&model.name)).await?;
            let _step = app.begin_step(StepKind::Counting, id, Some(&model.name)).await;
            measured(app, store, id, &model, &settings).await?
        }
        None => {
            let settings = settings::of_loaded(app, &model.name).await?;
            Some(empty(&model, &settings))
        }
    };
    let Some(context) = context else { return Ok(nothing) };
    Ok(Reply::Context { context: Some(ChatContext { own_system_prompt, ..context }) })
}

fn empty(model: &LoadedModelStatus, settings: &Settings) -> ChatContext {
    let room = Room::of(model, settings);
    ChatContext {
        model: model.name.clone(),
        limit_tokens: convert::tokens(room.limit),
        used_tokens: 0,
        beginning_tokens: 0,
        document_tokens: 0,
        summary_tokens: 0,
        answer_tokens: convert::tokens(room.for_answer),
        at_overflow: settings.at_overflow,
        own_system_prompt: None,
    }
}

/// None where the model cannot read the chat: it has no template, or the chat is another model's.
async fn measured(
    app: &App,
    store: &Store,
    id: &str,
    model: &LoadedModelStatus,
    settings: &Settings,
) -> Result<Option<ChatContext>, Failure> {
    let (rows, cuts) = (store.branch(id).await?, store.context_cuts(id).await?);
    let branch = WithDocuments::of(store, id, &rows).await?;
    let part = ReadPart::of(branch.rows(), &cuts).before_next_question();
    let Ok(beginning) = Beginning::of(app, store, id, Some(model)).await else { return Ok(None) };
    let tokens = |prompt| app.engine.prompt_tokens(Some(&model.name), prompt, Map::new());
    // What all chats with a beginning have before their first question.
    let shared = async |beginning: &Beginning| {
        let (one, other) = ([unsent_question(id, "a")], [unsent_question(id, "b")]);
        let alone = |messages| beginning.with(ReadPart { messages, summary: None });
        let (one, other) = (tokens(alone(&one)).await?, tokens(alone(&other)).await?);
        Ok::<_, EngineError>(one.iter().zip(&other).take_while(|(a, b)| a == b).count())
    };
    let measure = async {
        let has_turns = !part.to_messages("").is_empty();
        let plain = beginning.without_documents();
        let num_shared = shared(&plain).await?;
        let used = match has_turns {
            true => tokens(beginning.with(part)).await?.len(),
            false => shared(&beginning).await?,
        };
        let without_documents =
            match (has_turns, branch.has_documents() || beginning.has_documents()) {
                (_, false) => used,
                (true, true) => {
                    let plain_part = ReadPart::of(&rows, &cuts).before_next_question();
                    tokens(plain.with(plain_part)).await?.len()
                }
                (false, true) => num_shared,
            };
        let summary = match part.summary {
            Some(_) => {
                let without = ReadPart { summary: None, ..part };
                used.saturating_sub(tokens(beginning.with(without)).await?.len())
            }
            None => 0,
        };
        let documents = used.saturating_sub(without_documents);
        Ok::<_, EngineError>((num_shared.min(used), documents, summary, used))
    };
    let Ok((beginning, documents, summary, used)) = measure.await else { return Ok(None) };
    Ok(Some(ChatContext {
        used_tokens: convert::tokens(used),
        beginning_tokens: convert::tokens(beginning),
        document_tokens: convert::tokens(documents),
        summary_tokens: convert::tokens(summary),
        ..empty(model, settings)
    }))
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
