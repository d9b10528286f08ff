//! What is done with the branches of a conversation: showing another one, branching into a new
//! conversation, deleting messages and bringing them back.
//!
//! When another branch is shown, interfaces get what is different about it ([`Event::Branch`]), and
//! the conversation's reference moves to what is saved of that branch: what a window says about saved
//! context is about what it shows.

use std::sync::Arc;

use cairn_prompt_cache::PromptTokens;

use crate::app::App;
use crate::cache::owners::conversation_owner;
use crate::chat::beginning::{Beginning, ReadPart};
use crate::chat::context;
use crate::chat::listed;
use crate::chat::model;
use crate::chat::prompt::messages_for;
use crate::clock::now_ms;
use crate::convert;
use crate::crashes::record::StepKind;
use crate::documents::reading;
use crate::names::checked_title;
use crate::settings::commands as settings;
use crate::wire::{Conversation, DocumentsOf, Event, Failure, Message, Reply};

/// The current branch, as the interface shows it. A running answer is as the events so far describe it;
/// its row may be older.
pub(crate) async fn messages(app: &App, conversation_id: &str) -> Result<Vec<Message>, Failure> {
    // Looked up before the rows are read: an answer that ends in between is then shown as it ended,
    // instead of as an old row.
    let running = app.answers.of(conversation_id);
    let store = app.store_of(conversation_id).await;
    let branch = store.branch(conversation_id).await?;
    let versions = store.versions(conversation_id).await?;
    let mut documents = store.documents_of(conversation_id).await?;
    let mut messages: Vec<Message> = branch.into_iter().filter_map(convert::message).collect();
    let mut cuts = store.context_cuts(conversation_id).await?;
    for message in &mut messages {
        let documents = documents.remove(&message.id).unwrap_or_default();
        message.documents = documents.into_iter().map(convert::document).collect();
        message.versions = versions.siblings(&message.id);
        message.cut = cuts.remove(&message.id).map(convert::context_cut);
    }
    for running in running {
        let Some(message) = messages.iter_mut().find(|message| message.id == running.id()) else {
            continue;
        };
        // Another version may have been brought back since the answer began.
        running.message().versions.clone_from(&message.versions);
        *message = running.shown();
    }
    Ok(messages)
}

/// A conversation with its current branch.
pub(crate) async fn conversation(
    app: &App,
    id: &str,
) -> Result<(Conversation, Vec<Message>), Failure> {
    let messages = messages(app, id).await?;
    let row = app.store_of(id).await.listed_conversation(id).await?;
    Ok((listed::described(app, row).await, messages))
}

/// Puts the branch with a message on screen.
pub(crate) async fn show(
    app: &Arc<App>,
    conversation_id: &str,
    message_id: &str,
) -> Result<Reply, Failure> {
    let _turn = app.turns.lock().await;
    let before = messages(app, conversation_id).await?;
    app.store_of(conversation_id).await.show_version(conversation_id, message_id).await?;
    shown(app, conversation_id, &before).await?;
    Ok(Reply::Done)
}

/// Hides a message, with all that follows it or alone.
pub(crate) async fn delete(
    app: &Arc<App>,
    conversation_id: &str,
    message_id: &str,
    with_following: bool,
) -> Result<Reply, Failure> {
    let _turn = app.turns.lock().await;
    let before = messages(app, conversation_id).await?;
    let store = app.store_of(conversation_id).await;
    let deletion = store.delete_messages(conversation_id, message_id, with_following).await?;
    shown(app, conversation_id, &before).await?;
    let num_messages = convert::tokens(deletion.num_messages);
    Ok(Reply::MessagesDeleted { deletion_id: deletion.id, num_messages })
}

/// Brings deleted messages back.
pub(crate) async fn restore(
    app: &Arc<App>,
    conversation_id: &str,
    deletion_id: &str,
) -> Result<Reply, Failure> {
    let _turn = app.turns.lock().await;
    let before = messages(app, conversation_id).await?;
    let store = app.store_of(conversation_id).await;
    store.restore_messages(conversation_id, deletion_id).await?;
    shown(app, conversation_id, &before).await?;
    Ok(Reply::Done)
}

/// A new conversation with the messages up to one, which refers to the same saved context.
pub(crate) async fn branch_off(
    app: &Arc<App>,
    conversation_id: &str,
    message_id: &str,
    title: &str,
) -> Result<Reply, Failure> {
    let title = checked_title(title)?;
    let _turn = app.turns.lock().await;
    let store = app.store_of(conversation_id).await;
    store.listed_conversation(conversation_id).await?;
    let row = store.copy_branch(conversation_id, message_id, title, now_ms()).await?;
    point_saved(app, &row.id, conversation_id).await;
    let messages = messages(app, &row.id).await?;
    let conversation = listed::described(app, row).await;
    app.emit(Event::Conversation { conversation: conversation.clone() });
    Ok(Reply::Conversation { conversation, messages })
}

/// Sends what of a branch is different from before, once its rows are saved.
pub(crate) async fn shown(
    app: &Arc<App>,
    conversation_id: &str,
    before: &[Message],
) -> Result<(), Failure> {
    point_saved(app, conversation_id, conversation_id).await;
    reading::again(app, &DocumentsOf::conversation(conversation_id)).await;
    let mut messages = messages(app, conversation_id).await?;
    let num_same = messages.iter().zip(before).take_while(|(now, before)| now == before).count();
    let rest = messages.split_off(num_same);
    let after = messages.pop().map(|last| last.id);
    let conversation_id = conversation_id.to_owned();
    app.emit(Event::Branch { conversation_id: conversation_id.clone(), after, messages: rest });
    listed::emit(app, &conversation_id).await;
    Ok(())
}

/// Moves a conversation's reference to what is saved of its branch; `of` is the conversation itself, or
/// the one that it was copied from. Failing costs nothing but the words about it.
async fn point_saved(app: &App, conversation_id: &str, of: &str) {
    if app.is_private(conversation_id).await {
        return;
    }
    let Some(handle) = app.engine.cache() else { return };
    let row = app.store.conversation(conversation_id).await.ok().flatten();
    let Ok(branch) = app.store.branch(conversation_id).await else { return };
    let (owner, of) = (conversation_owner(conversation_id), conversation_owner(of));
    let Ok(cuts) = app.store.context_cuts(conversation_id).await else { return };
    let messages = messages_for("", &branch);
    let has_cuts = branch.iter().any(|message| cuts.contains_key(&message.id));
    // Questions without an answer between them, as below one that was stopped before its first word, are
    // read as one, whose ids no row has.
    let is_known = messages.iter().rev().skip(1).all(|message| message.token_ids.is_some());
    if has_cuts || !is_known {
        let part = ReadPart::of(&branch, &cuts);
        if let Some(tokens) = tokens_of_part(app, conversation_id, part).await {
            handle.point_ref(&owner, &of, &tokens);
            return;
        }
        if has_cuts {
            return;
        }
    }
    let (num_opaque, mut ids) = match row.and_then(|row| row.prefix) {
        Some(prefix) => match prefix.token_ids {
            Some(ids) => (0, ids),
            None => (usize::try_from(prefix.num_tokens).unwrap_or(0), Vec::new()),
        },
        None => (0, Vec::new()),
    };
    // The ids of a question are those that it added to its prompt, the template's around it included:
    // all ids one after another are the prompt. Where some are not known, what follows is not either.
    for message in messages {
        let Some(more) = message.token_ids else { break };
        ids.extend(more);
    }
    handle.point_ref(&owner, &of, &PromptTokens::after_opaque(num_opaque, ids));
}

/// The prompt of a branch of which only a part is read, if its model is in memory, which can say: the ids of its
/// first question are not the beginning of a prompt.
async fn tokens_of_part(
    app: &App,
    conversation_id: &str,
    part: ReadPart<'_>,
) -> Option<PromptTokens> {
    let model = model::in_memory(app, conversation_id).await?;
    let beginning = Beginning::of(app, &app.store, conversation_id, Some(&model)).await.ok()?;
    let num_opaque = beginning.num_opaque();
    let prompt = beginning.with(part);
    let _step = app.begin_step(StepKind::Counting, conversation_id, Some(&model.name)).await;
    let settings = settings::for_answer(app, &app.store, conversation_id, Some(&model.name));
    let ids = context::tokens(app, &model.name, prompt, &settings.await.ok()?).await.ok()?;
    Some(PromptTokens::after_opaque(num_opaque, ids.get(num_opaque..)?.to_vec()))
}
