//! What the prompts of a chat begin with, and the part of its branch that is read behind that.

use std::collections::HashMap;

use cairn_chat::{Message, Role, TextPlace};
use cairn_engine::{LoadedModelStatus, PromptInput, PromptPrefix};
use cairn_store::{ContextCut, NewDocument, Store};

use crate::app::App;
use crate::cache::prefix;
use crate::chat::prompt::{leads_to_failure, messages_for};
use crate::documents::placement::before;
use crate::wire::Failure;

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
    pub(crate) fn before_next_question(self) -> ReadPart<'a> {
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

    /// The same without documents.
    pub(crate) fn without_documents(&self) -> Beginning {
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

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use super::*;
    use crate::chat::prompt::unsent_question;

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
