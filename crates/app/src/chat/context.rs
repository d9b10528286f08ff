//! What of a chat its model reads: the whole branch, or the part behind the last cut; and how much room
//! that leaves in the model's context.

use std::collections::HashMap;
use std::sync::Arc;

use cairn_chat::{Message, Role};
use cairn_engine::{EngineError, LoadedModelStatus, PromptInput, PromptPrefix};
use cairn_store::{ContextCut, Store};
use serde_json::Map;

use crate::app::App;
use crate::cache::prefix;
use crate::chat::answering::loaded_status;
use crate::chat::prompt::{messages_for, unsent_question};
use crate::documents::prompt::WithDocuments;
use crate::settings::{Settings, commands as settings};
use crate::wire::{ChatContext, Event, Failure, Reply};
use crate::{convert, models};

/// What the summary of earlier messages answers in a prompt.
const BEFORE_SUMMARY: &str = "What have we said so far?";

/// The part of a branch that is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadPart<'a> {
    pub(crate) messages: &'a [cairn_store::Message],
    /// What stands for the messages before.
    pub(crate) summary: Option<&'a str>,
}

impl<'a> ReadPart<'a> {
    /// Of a branch with these cuts, by message.
    pub(crate) fn of(
        branch: &'a [cairn_store::Message],
        cuts: &'a HashMap<String, ContextCut>,
    ) -> ReadPart<'a> {
        let cut = branch.iter().enumerate().rev().find_map(|(index, message)| {
            cuts.get(&message.id).map(|cut| (index, cut.summary.as_deref()))
        });
        let (first, summary) = cut.unwrap_or((0, None));
        ReadPart { messages: &branch[first..], summary }
    }

    /// What the model is given of it.
    pub(crate) fn to_messages(self, system_prompt: &str) -> Vec<Message> {
        let mut messages = messages_for(system_prompt, self.messages);
        if let Some(summary) = self.summary {
            let message = |role, content: &str| Message {
                role,
                content: content.to_owned(),
                token_ids: None,
            };
            let pair = [message(Role::User, BEFORE_SUMMARY), message(Role::Assistant, summary)];
            let behind_system = usize::from(!system_prompt.is_empty());
            messages.splice(behind_system..behind_system, pair);
        }
        messages
    }
}

/// What the prompts of a chat begin with.
#[derive(Debug, Clone)]
pub(crate) enum Beginning {
    /// Empty where there is none.
    SystemPrompt(String),
    StartingPoint(PromptPrefix),
}

impl Beginning {
    /// Of a conversation that this model answers.
    pub(crate) async fn of(
        app: &App,
        store: &Store,
        conversation_id: &str,
        model: Option<&LoadedModelStatus>,
    ) -> Result<Beginning, Failure> {
        let row = store.conversation(conversation_id).await?;
        let (system_prompt, prefix) =
            row.map(|row| (row.system_prompt, row.prefix)).unwrap_or_default();
        let Some(prefix) = prefix else { return Ok(Beginning::SystemPrompt(system_prompt)) };
        let fingerprint = model.map(|model| model.fingerprint.clone());
        let prefix = prefix::checked(app, conversation_id, prefix, fingerprint).await?;
        Ok(Beginning::StartingPoint(prefix))
    }

    /// How many of its tokens are unknown.
    pub(crate) fn num_opaque(&self) -> usize {
        match self {
            Beginning::StartingPoint(prefix) if prefix.token_ids.is_none() => prefix.num_tokens,
            Beginning::StartingPoint(_) | Beginning::SystemPrompt(_) => 0,
        }
    }

    /// The prompt with a part of the branch behind it.
    pub(crate) fn with(&self, part: ReadPart<'_>) -> PromptInput {
        match self {
            Beginning::SystemPrompt(prompt) => PromptInput::Messages(part.to_messages(prompt)),
            Beginning::StartingPoint(prefix) => {
                PromptInput::After { prefix: prefix.clone(), messages: part.to_messages("") }
            }
        }
    }
}

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

/// How much of the loaded model's context a chat takes; none while nothing is loaded that could read
/// it. Without a chat, what a new one would find.
pub(crate) async fn get(app: &Arc<App>, conversation_id: Option<&str>) -> Result<Reply, Failure> {
    let nothing = Reply::Context { context: None };
    let model = models::loaded_name(app).and_then(|name| loaded_status(app, &name));
    let Some(model) = model else { return Ok(nothing) };
    let own_system_prompt = app.engine.own_system_prompt(&model.name).await.unwrap_or_default();
    let context = match conversation_id {
        Some(id) => {
            let store = app.store_of(id).await;
            store.listed_conversation(id).await?;
            let settings = settings::for_answer(app, store, id, Some(&model.name)).await?;
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
    let (branch, cuts) = (store.branch(id).await?, store.context_cuts(id).await?);
    let branch = WithDocuments::of(store, id, &branch).await?;
    let part = ReadPart::of(branch.rows(), &cuts);
    let Ok(beginning) = Beginning::of(app, store, id, Some(model)).await else { return Ok(None) };
    let tokens = |prompt| app.engine.prompt_tokens(Some(&model.name), prompt, Map::new());
    let question = |text: &str| unsent_question(id, text);
    // What all chats with this beginning have before their first question.
    let (one, other) = ([question("a")], [question("b")]);
    let alone = |messages| beginning.with(ReadPart { messages, summary: None });
    let measure = async {
        let (one, other) = (tokens(alone(&one)).await?, tokens(alone(&other)).await?);
        let num_shared = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
        let has_turns = !part.to_messages("").is_empty();
        let used = if has_turns { tokens(beginning.with(part)).await?.len() } else { num_shared };
        let summary = match part.summary {
            Some(_) => {
                let without = ReadPart { summary: None, ..part };
                used.saturating_sub(tokens(beginning.with(without)).await?.len())
            }
            None => 0,
        };
        Ok::<_, EngineError>((num_shared.min(used), summary, used))
    };
    let Ok((beginning, summary, used)) = measure.await else { return Ok(None) };
    Ok(Some(ChatContext {
        used_tokens: convert::tokens(used),
        beginning_tokens: convert::tokens(beginning),
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
    let mut versions = store.versions(conversation_id).await?;
    if let Some(mut message) = convert::message(row) {
        message.versions = versions.remove(message_id).unwrap_or_default();
        message.cut = cuts.remove(message_id).map(convert::context_cut);
        app.emit(Event::Message { message });
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;

    fn row(id: &str, role: Role) -> cairn_store::Message {
        cairn_store::Message { id: id.to_owned(), role, ..unsent_question("c", id) }
    }

    #[test]
    fn a_branch_is_read_from_its_last_cut_on() {
        fn check(cuts: &[(&str, Option<&str>)], system_prompt: &str, expected: &str) {
            let branch: Vec<_> = ["Q1", "A1", "Q2", "A2", "Q3"]
                .map(|id| row(id, if id.starts_with('Q') { Role::User } else { Role::Assistant }))
                .into();
            let cuts = cuts.iter().map(|(id, summary)| {
                ((*id).to_owned(), ContextCut { summary: summary.map(str::to_owned) })
            });
            let cuts: HashMap<_, _> = cuts.collect();
            let messages = ReadPart::of(&branch, &cuts).to_messages(system_prompt);
            let read: Vec<_> = messages.iter().map(|message| message.content.as_str()).collect();
            assert_eq!(read.join(" "), expected, "{cuts:?}");
        }
        check(&[], "", "Q1 A1 Q2 A2 Q3");
        check(&[("Q2", None)], "", "Q2 A2 Q3");
        check(&[("Q2", None)], "Be brief.", "Be brief. Q2 A2 Q3");
        check(&[("Q2", Some("S")), ("Q3", None)], "", "Q3");
        check(&[("Q2", Some("S"))], "", "What have we said so far? S Q2 A2 Q3");
        check(&[("Q3", Some("S"))], "Be brief.", "Be brief. What have we said so far? S Q3");
        // A cut of another branch.
        check(&[("Q9", None)], "", "Q1 A1 Q2 A2 Q3");
    }
}
