//! Which model answers a chat. One rule for asking, and for all that says beforehand what asking will do:
//! the outlook, the gauge, the settings, documents that are read ahead, the first column of a comparison.
//!
//! ```text
//! the model chosen in the chat ─▶ that of the last answer on the branch shown ─▶ its folder's ─▶ the loaded one
//! ```
//!
//! One that is not on this machine is passed over, and [`ChatModel::missing`] says so before anything is
//! asked. Of a choice that is gone it says so until another has answered: from then on that one is the
//! chat's. Another chat's model, or one that is loaded on the page of models, changes none that has begun.

use std::collections::HashSet;

use cairn_store::{Conversation, StoreError};

use super::names;
use crate::app::App;
use crate::wire::{ChatModel, ChatModelSource, Event, Failure, ModelOfChat};

/// The model of a chat.
pub(crate) async fn of(app: &App, conversation_id: &str) -> Result<ChatModel, Failure> {
    let row = app.store_of(conversation_id).await.listed_conversation(conversation_id).await?;
    Ok(of_row(app, &row).await)
}

/// The model of a chat with this row.
pub(crate) async fn of_row(app: &App, row: &Conversation) -> ChatModel {
    let (mut missing, here) = (HashSet::new(), candidates(row));
    for (name, _) in here.into_iter().flatten() {
        if names::has(app, name).await {
            break;
        }
        missing.insert(name);
    }
    decide(here, row.is_choice_newer, |name| !missing.contains(name))
}

/// The models of many chats, for which the machine's models are listed once.
pub(crate) async fn of_rows(app: &App, rows: &[Conversation]) -> Vec<ChatModel> {
    let here = names::names(app).await;
    of_rows_among(&here, rows)
}

fn of_rows_among(here: &HashSet<String>, rows: &[Conversation]) -> Vec<ChatModel> {
    let of_row = |row| decide(candidates(row), row.is_choice_newer, |name| here.contains(name));
    rows.iter().map(of_row).collect()
}

/// Says of every chat which model answers it: what that follows from has changed.
pub(crate) async fn emit_all(app: &App) {
    match all(app).await {
        Ok(models) => app.emit(Event::ChatModels { models }),
        Err(error) => tracing::debug!(%error, "the models of chats are not sent"),
    }
}

async fn all(app: &App) -> Result<Vec<ModelOfChat>, StoreError> {
    // Listing takes a while: the rows are as they are after it, with what was chosen meanwhile.
    let here = names::names(app).await;
    let mut rows = app.store.conversations().await?;
    if let Some(private) = app.private.get() {
        rows.extend(private.conversations().await?);
    }
    let models = of_rows_among(&here, &rows);
    let of_chat =
        |(row, model): (Conversation, ChatModel)| ModelOfChat { conversation_id: row.id, model };
    Ok(rows.into_iter().zip(models).map(of_chat).collect())
}

/// What may answer before the loaded model, the strongest first.
type Candidates<'a> = [Option<(&'a str, ChatModelSource)>; 3];

fn candidates(row: &Conversation) -> Candidates<'_> {
    in_order([row.model.as_deref(), row.answered_model.as_deref(), row.folder_model.as_deref()])
}

/// The model chosen in the chat, that of its last answer, and its folder's.
fn in_order([chosen, answered, folder]: [Option<&str>; 3]) -> Candidates<'_> {
    [
        chosen.map(|name| (name, ChatModelSource::Chat)),
        answered.map(|name| (name, ChatModelSource::Answer)),
        folder.map(|name| (name, ChatModelSource::Folder)),
    ]
}

/// `is_choice_newer`: nothing was asked since the first of them was chosen.
fn decide(
    candidates: Candidates<'_>,
    is_choice_newer: bool,
    is_here: impl Fn(&str) -> bool,
) -> ChatModel {
    let mut missing: Option<&str> = None;
    for (name, source) in candidates.into_iter().flatten() {
        // Whose answer came after the choice is the chat's model by that, whether it is here or not.
        let is_answered = source == ChatModelSource::Answer && !is_choice_newer;
        if is_answered {
            missing = None;
        }
        if is_here(name) {
            let missing = missing.map(str::to_owned);
            return ChatModel { name: Some(name.to_owned()), source, missing };
        }
        // The strongest is the one that a person expects.
        missing.get_or_insert(name);
    }
    ChatModel { name: None, source: ChatModelSource::App, missing: missing.map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_that_is_here_answers_and_one_that_is_not_is_named() {
        use ChatModelSource::{Answer, App, Chat, Folder};
        type Expected<'a> = (&'a str, ChatModelSource, &'a str);
        fn check_with(row: [&str; 3], is_newer: bool, here: &[&str], expected: Expected<'_>) {
            let some = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
            let candidates = in_order(row.map(|name| Some(name).filter(|name| !name.is_empty())));
            let (name, source, missing) = expected;
            let expected = ChatModel { name: some(name), source, missing: some(missing) };
            let decided = decide(candidates, is_newer, |name| here.contains(&name));
            assert_eq!(decided, expected, "{row:?}");
        }
        fn check(row: [&str; 3], here: &[&str], expected: Expected<'_>) {
            check_with(row, true, here, expected);
        }
        let all = ["a", "b", "c"];
        check(["a", "b", "c"], &all, ("a", Chat, ""));
        check(["", "b", "c"], &all, ("b", Answer, ""));
        check(["", "", "c"], &all, ("c", Folder, ""));
        check(["", "", ""], &all, ("", App, ""));
        check(["a", "b", "c"], &["b", "c"], ("b", Answer, "a"));
        check(["a", "b", "c"], &["c"], ("c", Folder, "a"));
        check(["", "b", "c"], &["c"], ("c", Folder, "b"));
        check(["a", "a", ""], &["b"], ("", App, "a"));
        check(["", "", "c"], &[], ("", App, "c"));
        // Asked since: the one that answered is what the chat is with.
        check_with(["a", "b", "c"], false, &["b", "c"], ("b", Answer, ""));
        check_with(["a", "b", "c"], false, &["c"], ("c", Folder, "b"));
        check_with(["a", "b", ""], false, &[], ("", App, "b"));
        check_with(["a", "", "c"], false, &["c"], ("c", Folder, "a"));
    }
}
