//! What of a chat its model reads: the whole branch, or the part behind the last cut; and how much room
//! that leaves in the model's context.

use std::collections::HashMap;
use std::sync::Arc;

use cairn_chat::{Message, Role, TextPlace};
use cairn_engine::{EngineError, LoadedModelStatus, PromptInput, PromptPrefix};
use cairn_store::{ContextCut, NewDocument, Store};
use serde_json::Map;

use crate::app::App;
use crate::cache::prefix;
use crate::chat::model;
use crate::chat::prompt::{leads_to_failure, messages_for, unsent_question};
use crate::convert;
use crate::documents::prompt::{WithDocuments, before};
use crate::models::loaded::{loaded_name, loaded_status};
use crate::settings::{Settings, commands as settings};
use crate::wire::{ChatContext, Event, Failure, Reply};

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

    /// What of it is read with what is asked next: a question at its end that only led to a failure
    /// is left out then.
    fn before_next_question(self) -> ReadPart<'a> {
        match self.messages {
            [rest @ .., question, answer] if leads_to_failure(question, answer) => {
                ReadPart { messages: rest, ..self }
            }
            _ => self,
        }
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
    Own {
        /// Empty where there is none.
        system_prompt: String,
        /// Those of its folder, which stand before the first message that is read.
        documents: Vec<NewDocument>,
    },
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
        let Some(prefix) = prefix else {
            let documents = store.beginning_texts(conversation_id).await?;
            return Ok(Beginning::Own { system_prompt, documents });
        };
        let fingerprint = model.map(|model| model.fingerprint.clone());
        let prefix = prefix::checked(app, conversation_id, prefix, fingerprint).await?;
        Ok(Beginning::StartingPoint(prefix))
    }

    /// How many of its tokens are unknown.
    pub(crate) fn num_opaque(&self) -> usize {
        match self {
            Beginning::StartingPoint(prefix) if prefix.token_ids.is_none() => prefix.num_tokens,
            Beginning::StartingPoint(_) | Beginning::Own { .. } => 0,
        }
    }

    /// The prompt with a part of the branch behind it.
    pub(crate) fn with(&self, part: ReadPart<'_>) -> PromptInput {
        match self {
            Beginning::Own { system_prompt, documents } => {
                let mut messages = part.to_messages(system_prompt);
                if !documents.is_empty() {
                    let is_whole = part.messages.first().is_none_or(|row| row.parent_id.is_none());
                    put_before(documents, &mut messages, is_whole && part.summary.is_none());
                }
                PromptInput::Messages(messages)
            }
            Beginning::StartingPoint(prefix) => {
                PromptInput::After { prefix: prefix.clone(), messages: part.to_messages("") }
            }
        }
    }

    /// Where its documents end in messages of [`Beginning::with`], unless the tokens of the one that has
    /// them are known: then their ends are too.
    pub(crate) fn breakpoints(&self, messages: &[Message]) -> Vec<TextPlace> {
        let Beginning::Own { documents, .. } = self else { return Vec::new() };
        let first = messages.iter().position(|message| message.role == Role::User);
        let Some(turn) = first.filter(|&turn| messages[turn].token_ids.is_none()) else {
            return Vec::new();
        };
        let ends = before(documents, "").1.into_iter();
        ends.map(|num_bytes| TextPlace { turn, num_bytes }).collect()
    }

    fn has_documents(&self) -> bool {
        matches!(self, Beginning::Own { documents, .. } if !documents.is_empty())
    }

    /// The same without documents.
    fn without_documents(&self) -> Beginning {
        match self {
            Beginning::Own { system_prompt, .. } => {
                let (system_prompt, documents) = (system_prompt.clone(), Vec::new());
                Beginning::Own { system_prompt, documents }
            }
            Beginning::StartingPoint(_) => self.clone(),
        }
    }
}

/// Puts documents before the first question. Its token ids are those of a prompt with them, if it has
/// always been the first.
fn put_before(documents: &[NewDocument], messages: &mut Vec<Message>, is_first: bool) {
    let behind_system = messages.iter().take_while(|message| message.role == Role::System).count();
    match messages.get_mut(behind_system) {
        Some(Message { role: Role::User, content, token_ids }) => {
            *content = before(documents, content).0;
            if !is_first {
                *token_ids = None;
            }
        }
        // The first question was deleted.
        Some(_) => {
            let content = before(documents, "").0;
            messages.insert(behind_system, Message { role: Role::User, content, token_ids: None });
        }
        None => {}
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
    let mut versions = store.versions(conversation_id).await?;
    let documents = store.documents_of(conversation_id).await?.remove(message_id);
    if let Some(mut message) = convert::message(row) {
        message.documents =
            documents.unwrap_or_default().into_iter().map(convert::document).collect();
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
