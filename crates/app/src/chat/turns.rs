//! Begins turns: a question, another version of one, another answer, and an answer that goes on.

use std::sync::Arc;

use cairn_store::MessageStatus::Streaming;
use cairn_store::Store;

use crate::app::App;
use crate::chat::answering;
use crate::chat::listed;
use crate::chat::probabilities;
use crate::chat::turn::{Turn, Wanted};
use crate::clock::now_ms;
use crate::convert;
use crate::documents::{attached, limits};
use crate::models::{loading, locating, of_chats};
use crate::wire::{
    Conversation, DocumentsOf, Event, Failure, FailureCode, FailureKind, Message, MessageStatus,
    Reply,
};

/// Where a question goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place<'a> {
    /// To the end of the branch, with these documents of the draft, or with all of them.
    Behind { documents: Option<&'a [String]> },
    /// Beside this one, as another version of it, with its documents or with these.
    Beside { id: &'a str, documents: Option<&'a [String]> },
}

/// Appends a question, or another version of one, and starts its answer.
pub(crate) async fn send(
    app: &Arc<App>,
    conversation_id: &str,
    place: Place<'_>,
    text: &str,
) -> Result<Reply, Failure> {
    if text.trim().is_empty() {
        return Err(
            Failure::invalid("A message cannot be empty.").of_kind(FailureKind::EmptyMessage)
        );
    }
    if let Place::Beside { documents: Some(ids), .. } = place {
        limits::check_number(ids.len(), "message")?;
    }
    app.titles.stop();
    let _turn = app.turns.lock().await;
    refuse_unsaved(app, conversation_id)?;
    let model = of_chat(app, conversation_id).await?;
    let store = app.store_of(conversation_id).await;
    let (user, assistant) = match place {
        Place::Beside { id, documents } => {
            store.begin_edited_turn(conversation_id, id, text, documents, now_ms()).await?
        }
        Place::Behind { documents } => {
            store.begin_turn_with(conversation_id, text, documents, now_ms()).await?
        }
    };
    let sent = begin(app, Some(user), assistant, Wanted::OfChat(model)).await;
    let is_draft_sent = |sent: &Reply| match sent {
        Reply::Sent { messages, .. } => {
            messages.iter().any(|message| !message.documents.is_empty())
        }
        _ => false,
    };
    let leaves_draft = !matches!(place, Place::Beside { documents: None, .. });
    if leaves_draft && sent.as_ref().is_ok_and(is_draft_sent) {
        attached::emit(app, &DocumentsOf::conversation(conversation_id)).await;
    }
    sent
}

/// Starts another answer, with a model of this name if there is one.
pub(crate) async fn answer_again(
    app: &Arc<App>,
    conversation_id: &str,
    message_id: Option<&str>,
    model: Option<String>,
) -> Result<Reply, Failure> {
    app.titles.stop();
    let _turn = app.turns.lock().await;
    refuse_unsaved(app, conversation_id)?;
    let wanted = match model {
        Some(name) => {
            // Before anything is saved: a name that is no model's is a mistake of the caller's.
            locating::require(app, &name).await?;
            Wanted::Model(name)
        }
        None => Wanted::OfChat(of_chat(app, conversation_id).await?),
    };
    let store = app.store_of(conversation_id).await;
    let assistant = store.begin_sibling_answer(conversation_id, message_id, now_ms()).await?;
    begin(app, None, assistant, wanted).await
}

/// The model of a chat before its branch ends in another answer, or why nothing can answer.
async fn of_chat(app: &Arc<App>, conversation_id: &str) -> Result<Option<String>, Failure> {
    let name = of_chats::of(app, conversation_id).await?.name;
    match &name {
        // Checked before anything is saved, so that the question stays where it was written.
        Some(name) => app.crashes.require(name)?,
        None => loading::require_any(app).await?,
    }
    Ok(name)
}

/// Lets the last answer go on behind its own tokens.
pub(crate) async fn go_on(
    app: &Arc<App>,
    conversation_id: &str,
    message_id: &str,
) -> Result<Reply, Failure> {
    app.titles.stop();
    let _turn = app.turns.lock().await;
    refuse_unsaved(app, conversation_id)?;
    let store = app.store_of(conversation_id).await;
    let row = store.message(message_id).await?.filter(|row| row.status != Streaming);
    if let Some(row) = row {
        let model = row.model.clone().filter(|_| convert::row_can_continue(&row));
        let model = model.ok_or_else(|| {
            Failure::invalid("This answer cannot go on.").of_kind(FailureKind::CannotGoOn)
        })?;
        locating::require(app, &model).await?;
    }
    let before = store.resume_answer(conversation_id, message_id).await?;
    let assistant =
        cairn_store::Message { status: Streaming, error: None, error_kind: None, ..before.clone() };
    begin(app, None, assistant, Wanted::GoesOn(Box::new(before))).await
}

/// Starts another version of an answer, from its tokens before `position` and `token` behind them.
pub(crate) async fn write_from(
    app: &Arc<App>,
    conversation_id: &str,
    message_id: &str,
    position: u32,
    token: u32,
) -> Result<Reply, Failure> {
    app.titles.stop();
    let _turn = app.turns.lock().await;
    refuse_unsaved(app, conversation_id)?;
    let store = app.store_of(conversation_id).await;
    let position = usize::try_from(position).unwrap_or(usize::MAX);
    let with_other =
        probabilities::tokens_with_other(store, conversation_id, message_id, position, token);
    let (token_ids, model) = with_other.await?;
    locating::require(app, &model).await?;
    let begun = store.begin_sibling_answer(conversation_id, Some(message_id), now_ms()).await?;
    // As if it had failed with these tokens: if it cannot go on, it has.
    let before = cairn_store::Message {
        status: cairn_store::MessageStatus::Failed,
        token_ids: Some(token_ids),
        model: Some(model),
        ..begun.clone()
    };
    begin(app, None, begun, Wanted::GoesOn(Box::new(before))).await
}

/// Refuses another turn while the last answer has ended but could not be saved: the next one could
/// not be saved either.
pub(crate) fn refuse_unsaved(app: &App, conversation_id: &str) -> Result<(), Failure> {
    if app.answers.of(conversation_id).iter().any(|running| !running.is_streaming()) {
        let why = "The last answer is still waiting to be saved: make room on the disk or make the data folder writable.";
        return Err(Failure::new(FailureCode::Storage, why).of_kind(FailureKind::AnswerUnsaved));
    }
    Ok(())
}

/// What turns the rows of a turn that has just begun into messages, with their versions and documents.
pub(crate) async fn as_shown(
    store: &Store,
    conversation_id: &str,
) -> impl Fn(cairn_store::Message) -> Option<Message> + use<> {
    let versions = store.versions(conversation_id).await.unwrap_or_default();
    let documents = store.documents_of(conversation_id).await.unwrap_or_default();
    move |row| {
        let versions = versions.siblings(&row.id);
        let documents = documents.get(&row.id).cloned().unwrap_or_default();
        let documents = documents.into_iter().map(convert::document).collect();
        convert::message(row).map(|message| Message { versions, documents, ..message })
    }
}

/// Starts the task of an answer that has a row already, and emits the new rows.
async fn begin(
    app: &Arc<App>,
    user: Option<cairn_store::Message>,
    assistant: cairn_store::Message,
    wanted: Wanted,
) -> Result<Reply, Failure> {
    let store = app.store_of(&assistant.conversation_id).await.clone();
    let conversation_id = assistant.conversation_id.clone();
    let turn = Turn {
        store: store.clone(),
        conversation_id: conversation_id.clone(),
        user_message_id: assistant.parent_id.clone(),
        message_id: assistant.id.clone(),
        wanted,
    };
    let described = as_shown(&store, &conversation_id).await;
    let messages: Vec<Message> =
        user.into_iter().chain([assistant]).filter_map(described).collect();
    let Some(answer) = messages.last().filter(|last| last.status == MessageStatus::Streaming)
    else {
        return Err(Failure::invalid("There is no message to answer yet.")
            .of_kind(FailureKind::NothingToAnswer));
    };
    let running = app.answers.begin(answer.clone(), false);
    for message in &messages {
        app.emit(Event::Message { message: message.clone() });
    }
    listed::emit(app, &conversation_id).await;
    let row = store.conversation(&conversation_id).await;
    app.spawn(answering::answer(app.clone(), running, turn));
    let row = row?.ok_or(cairn_store::StoreError::NoConversation { id: conversation_id })?;
    let conversation = Conversation { is_streaming: true, ..listed::described(app, row).await };
    Ok(Reply::Sent { conversation, messages })
}
