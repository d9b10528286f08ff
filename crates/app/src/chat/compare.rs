//! Compares two answers to one question: of two models, or with two settings.
//!
//! Both are siblings in the tree of messages from the first moment, so nothing has to be merged or can be
//! lost. The first is the end of the branch on screen; the second is written beside it, and its events
//! say so ([`Event::Beside`]). Both belong to the conversation in the prompt cache too: whichever ends
//! last has its reference, and the other end keeps a stale one.
//!
//! The first answer loads its model and begins. Then the second loads its own, for which the engine
//! makes room without touching a model in use. If that does not fit, the second waits until the first
//! has ended, whose model may then go.

use std::sync::Arc;

use serde_json::json;

use crate::app::App;
use crate::chat::answering;
use crate::chat::branches;
use crate::chat::listed;
use crate::chat::model;
use crate::chat::running::{Running, stop_answers};
use crate::chat::turn::{Compared, Turn, Wanted};
use crate::chat::turns::{as_shown, refuse_unsaved};
use crate::clock::now_ms;
use crate::convert;
use crate::documents::attached;
use crate::models::{loading, locating};
use crate::settings::{SettingOverrides, SettingScope};
use crate::wire::{
    Command, CompareColumn, Conversation, DocumentsOf, Event, Failure, FailureKind, Message, Reply,
};

/// The window asks for the two that are compared.
const MAX_MESSAGES_AT_ONCE: usize = 100;

/// Runs the commands about comparisons.
pub(crate) async fn run(app: &Arc<App>, command: Command) -> Result<Reply, Failure> {
    match command {
        Command::Compare { conversation_id, message_id, text, columns } => {
            let question =
                ComparedQuestion::One { message_id: message_id.as_deref(), text: text.as_deref() };
            begin(app, &conversation_id, question, columns).await
        }
        Command::AskBoth { conversation_id, message_ids, text, columns } => {
            let Ok(behind) = <[String; 2]>::try_from(message_ids) else {
                return Err(Failure::invalid("A comparison has two answers."));
            };
            begin(app, &conversation_id, ComparedQuestion::Both { behind, text: &text }, columns)
                .await
        }
        Command::StopAnswer { conversation_id, message_id } => {
            let running = app.answers.of(&conversation_id);
            for running in running.iter().filter(|running| running.id() == message_id) {
                running.stop.cancel();
            }
            Ok(Reply::Done)
        }
        Command::GetVersions { conversation_id, message_ids } => {
            versions(app, &conversation_id, &message_ids).await
        }
        Command::ChooseAnswer { conversation_id, message_id } => {
            choose(app, &conversation_id, &message_id).await
        }
        _ => Err(Failure::invalid("This is no command about a comparison.")),
    }
}

/// The question that both answer.
enum ComparedQuestion<'a> {
    /// A new question, or else the one of a message or the last one.
    One { message_id: Option<&'a str>, text: Option<&'a str> },
    /// The same new question behind each of two answers.
    Both { behind: [String; 2], text: &'a str },
}

/// Starts both answers.
async fn begin(
    app: &Arc<App>,
    conversation_id: &str,
    question: ComparedQuestion<'_>,
    columns: Vec<CompareColumn>,
) -> Result<Reply, Failure> {
    let text = match &question {
        ComparedQuestion::One { text, .. } => *text,
        ComparedQuestion::Both { text, .. } => Some(*text),
    };
    if text.is_some_and(|text| text.trim().is_empty()) {
        return Err(
            Failure::invalid("A message cannot be empty.").of_kind(FailureKind::EmptyMessage)
        );
    }
    let Ok([first, second]) = <[CompareColumn; 2]>::try_from(columns) else {
        return Err(Failure::invalid("A comparison has two columns."));
    };
    app.titles.stop();
    let _turn = app.turns.lock().await;
    refuse_unsaved(app, conversation_id)?;
    let first = compared(app, conversation_id, first).await?;
    let second = compared(app, conversation_id, second).await?;
    let store = app.store_of(conversation_id).await.clone();
    let (user, answers) = match question {
        ComparedQuestion::One { message_id, text } => {
            store.begin_comparison(conversation_id, message_id, text, now_ms()).await?
        }
        ComparedQuestion::Both { behind: [first, second], text } => {
            let behind = [first.as_str(), second.as_str()];
            let ([question, _], answers) =
                store.begin_question_to_both(conversation_id, behind, text, now_ms()).await?;
            (Some(question), answers)
        }
    };
    let described = as_shown(&store, conversation_id).await;
    let user = user.and_then(&described);
    if let Some(user) = &user {
        app.emit(Event::Message { message: user.clone() });
        if !user.documents.is_empty() {
            attached::emit(app, &DocumentsOf::conversation(conversation_id)).await;
        }
    }
    let mut messages: Vec<Message> = user.into_iter().collect();
    let mut tasks = Vec::new();
    for (answer, mut compared) in answers.into_iter().zip([first, second]) {
        let turn = |wanted| Turn {
            store: store.clone(),
            conversation_id: conversation_id.to_owned(),
            user_message_id: answer.parent_id.clone(),
            message_id: answer.id.clone(),
            wanted,
        };
        compared.beside = tasks.first().map(|(running, _): &(Arc<Running>, Turn)| running.clone());
        let turn = turn(Wanted::Compared(Box::new(compared)));
        let Some(message) = described(answer) else { continue };
        let running = app.answers.begin(message.clone(), !tasks.is_empty());
        app.emit(running.event(Event::Message { message: message.clone() }));
        messages.push(message);
        tasks.push((running, turn));
    }
    listed::emit(app, conversation_id).await;
    let row = store.conversation(conversation_id).await;
    for (running, turn) in tasks {
        app.spawn(answering::answer(app.clone(), running, turn));
    }
    let no_row = || cairn_store::StoreError::NoConversation { id: conversation_id.to_owned() };
    let conversation = listed::described(app, row?.ok_or_else(no_row)?).await;
    let conversation = Conversation { is_streaming: true, ..conversation };
    Ok(Reply::Compared { conversation, messages })
}

/// Checks a column before anything is saved.
async fn compared(
    app: &Arc<App>,
    conversation_id: &str,
    column: CompareColumn,
) -> Result<Compared, Failure> {
    let model = match column.model {
        Some(name) => name,
        None => model::expected(app, conversation_id).await?.ok_or_else(loading::no_model)?,
    };
    locating::require(app, &model).await?;
    let wanted = [
        ("temperature", column.temperature.map(|temperature| json!(temperature))),
        ("seed", column.seed.map(|seed| json!(seed))),
        ("thinking", column.thinking.map(|thinking| json!(thinking))),
    ];
    let mut checked = SettingOverrides::none(SettingScope::Request);
    let mut overrides = Vec::new();
    for (key, value) in wanted {
        let Some(value) = value else { continue };
        checked.set(key, value.clone())?;
        overrides.push((key, value));
    }
    Ok(Compared { model, overrides, beside: None })
}

/// Messages of any branch, as interfaces show them.
async fn versions(
    app: &App,
    conversation_id: &str,
    message_ids: &[String],
) -> Result<Reply, Failure> {
    // Each comes with the ids of all of its versions.
    if message_ids.len() > MAX_MESSAGES_AT_ONCE {
        return Err(Failure::invalid(format!(
            "At most {MAX_MESSAGES_AT_ONCE} messages can be asked for at once."
        )));
    }
    let store = app.store_of(conversation_id).await;
    let all = store.versions(conversation_id).await?;
    let mut messages = Vec::new();
    for id in message_ids {
        // Looked up before the row is read, as for a branch.
        let running = app.answers.get(id);
        let row = store.message(id).await?.filter(|row| row.conversation_id == conversation_id);
        let row = row.ok_or_else(|| cairn_store::StoreError::NoMessage { id: id.clone() })?;
        let shown = match running {
            Some(running) => Some(running.shown()),
            None => convert::message(row),
        };
        let versions = all.siblings(id);
        messages.extend(shown.map(|message| Message { versions, ..message }));
    }
    Ok(Reply::Versions { messages })
}

/// Puts the branch with one of the answers on screen.
async fn choose(app: &Arc<App>, conversation_id: &str, message_id: &str) -> Result<Reply, Failure> {
    let _turn = app.turns.lock().await;
    let answers = app.answers.of(conversation_id);
    let (chosen, others): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|running| running.id() == message_id);
    stop_answers(&others).await;
    if others.iter().any(|running| running.is_streaming()) {
        return Err(Failure::invalid(
            "The other answer has not stopped yet: choose again in a moment.",
        )
        .of_kind(FailureKind::OtherAnswerStopping));
    }
    let before = branches::messages(app, conversation_id).await?;
    let store = app.store_of(conversation_id).await;
    let model = store.message(message_id).await?.and_then(|row| row.model);
    let row = store.listed_conversation(conversation_id).await?;
    store.show_compared(conversation_id, message_id).await?;
    // Before the branch is sent: what has been sent as beside it by then is in it.
    chosen.iter().for_each(|running| running.show());
    branches::shown(app, conversation_id, &before).await?;
    // Without a choice the chat is with its last answer's model.
    if row.model.is_some() && model.is_some() && row.model != model {
        store.set_conversation_model(conversation_id, model.as_deref()).await?;
        listed::emit(app, conversation_id).await;
    }
    if let Some(model) = model {
        let loading = app.clone();
        app.spawn(async move {
            if let Err(failure) = loading::ensure_loaded_for_chat(&loading, &model).await {
                loading.emit_failure(failure);
            }
        });
    }
    Ok(Reply::Done)
}
