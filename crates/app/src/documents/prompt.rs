//! How documents stand in a prompt: before the text of their message, each between two marks that name
//! it. Where they end there is a breakpoint, so that what was read ahead is continued.

use std::borrow::Cow;
use std::collections::HashMap;

use cairn_chat::{Message, PromptEnd, Role, TextPlace, Turn, TurnsPrompt};
use cairn_engine::PromptInput;
use cairn_store::{ContextCut, NewDocument, Store};

use crate::chat::beginning::{Beginning, ReadPart};
use crate::chat::prompt::unsent_question;
use crate::documents::placement::before;
use crate::wire::Failure;

/// A branch as the model sees it.
pub(crate) struct WithDocuments<'a> {
    /// With the documents of a message at the beginning of its text.
    rows: Cow<'a, [cairn_store::Message]>,
    /// Where the documents of the last question end in its text, in bytes, unless its tokens are known:
    /// then their ends are too.
    ends: Vec<usize>,
}

impl<'a> WithDocuments<'a> {
    /// A branch with the documents that its messages were sent with.
    pub(crate) async fn of(
        store: &Store,
        conversation_id: &str,
        branch: &'a [cairn_store::Message],
    ) -> Result<Self, Failure> {
        Self::with_draft(store, conversation_id, branch, &[]).await
    }

    /// The same with documents of a draft, which the last message of the branch would be sent with.
    pub(crate) async fn with_draft(
        store: &Store,
        conversation_id: &str,
        branch: &'a [cairn_store::Message],
        draft: &[NewDocument],
    ) -> Result<Self, Failure> {
        let mut documents = store.document_texts_of(conversation_id).await?;
        if let (Some(last), false) = (branch.last(), draft.is_empty()) {
            documents.insert(last.id.clone(), draft.to_vec());
        }
        Ok(Self::with(branch, &documents))
    }

    fn with(
        branch: &'a [cairn_store::Message],
        documents: &HashMap<String, Vec<NewDocument>>,
    ) -> Self {
        if documents.is_empty() {
            return WithDocuments { rows: Cow::Borrowed(branch), ends: Vec::new() };
        }
        let mut ends = Vec::new();
        let with_documents = |row: &cairn_store::Message| {
            if row.role == Role::User {
                ends.clear();
            }
            let Some(documents) = documents.get(&row.id) else { return row.clone() };
            let (text, places) = before(documents, &row.text);
            if row.token_ids.is_none() {
                ends = places;
            }
            cairn_store::Message { text, ..row.clone() }
        };
        WithDocuments { rows: branch.iter().map(with_documents).collect(), ends }
    }

    /// The messages, with the documents of each at the beginning of its text.
    pub(crate) fn rows(&self) -> &[cairn_store::Message] {
        &self.rows
    }

    /// The prompt of a part of these messages behind a beginning, with breakpoints where the documents of
    /// the beginning and of the question end. Behind a starting point there are none.
    pub(crate) fn prompt(&self, beginning: &Beginning, part: ReadPart<'_>) -> PromptInput {
        let messages = match beginning.with(part) {
            PromptInput::Messages(messages) => messages,
            prompt => return prompt,
        };
        match self.breakpoints(beginning, &messages) {
            breakpoints if breakpoints.is_empty() => PromptInput::Messages(messages),
            breakpoints => PromptInput::Turns(turns(messages, breakpoints)),
        }
    }

    fn breakpoints(&self, beginning: &Beginning, messages: &[Message]) -> Vec<TextPlace> {
        beginning.breakpoints(messages).into_iter().chain(self.question_ends(messages)).collect()
    }

    /// The ends of the last question's documents in the last message, which may have earlier questions
    /// before it.
    fn question_ends(&self, messages: &[Message]) -> Vec<TextPlace> {
        let question = self.rows.iter().rfind(|row| row.role == Role::User);
        let (Some(question), Some(last)) = (question, messages.last()) else { return Vec::new() };
        if last.role != Role::User {
            return Vec::new();
        }
        let num_before = last.content.len().saturating_sub(question.text.len());
        let place =
            |end: &usize| TextPlace { turn: messages.len() - 1, num_bytes: num_before + end };
        self.ends.iter().map(place).collect()
    }
}

/// The prompt of a draft: of a question that nobody has asked yet. What is read of it ends at its last
/// breakpoint, so the words behind that do not matter, if only they are words.
pub(crate) fn of_draft(
    beginning: &Beginning,
    branch: &[cairn_store::Message],
    cuts: &HashMap<String, ContextCut>,
    sent: &HashMap<String, Vec<NewDocument>>,
    draft: Vec<NewDocument>,
) -> Option<TurnsPrompt> {
    const QUESTION: &str = "Question";
    let question = unsent_question("", QUESTION);
    let mut documents = sent.clone();
    documents.insert(question.id.clone(), draft);
    let mut rows = branch.to_vec();
    rows.push(question);
    let with_documents = WithDocuments::with(&rows, &documents);
    match with_documents.prompt(beginning, ReadPart::of(with_documents.rows(), cuts)) {
        PromptInput::Turns(prompt) => Some(prompt),
        // Behind a starting point, or without documents.
        _ => None,
    }
}

fn turns(messages: Vec<Message>, breakpoints: Vec<TextPlace>) -> TurnsPrompt {
    TurnsPrompt {
        turns: messages.into_iter().map(Turn::Message).collect(),
        tools: Vec::new(),
        end: PromptEnd::NewAnswer,
        breakpoints,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // in a test a panic is the report
mod tests {
    use cairn_store::DocumentKind;

    use super::*;

    fn document(name: &str, text: &str) -> NewDocument {
        NewDocument { name: name.to_owned(), kind: DocumentKind::Text, text: text.to_owned() }
    }

    fn row(id: &str, role: Role, text: &str, token_ids: Option<Vec<u32>>) -> cairn_store::Message {
        cairn_store::Message { id: id.to_owned(), role, token_ids, ..unsent_question("", text) }
    }

    fn beginning(documents: &[NewDocument]) -> Beginning {
        Beginning::Own { system_prompt: "S".to_owned(), documents: documents.to_vec() }
    }

    #[test]
    fn documents_stand_before_their_question_and_name_themselves() {
        let (text, ends) =
            before(&[document("a.txt", "One"), document("b\"\n.md", "Two")], "\n Why?");
        assert_eq!(
            text,
            "<document name=\"a.txt\">\nOne\n</document>\n\n\
             <document name=\"b' .md\">\nTwo\n</document>\n\nWhy?"
        );
        let parts: Vec<&str> = ends.iter().map(|&end| &text[end..]).collect();
        assert_eq!(parts, [&text[ends[0]..], "Why?"]);
        assert_eq!(before(&[], " Why?"), (" Why?".to_owned(), Vec::new()));
    }

    #[test]
    fn breakpoints_are_where_the_documents_of_a_new_question_end() {
        let documents = HashMap::from([("q2".to_owned(), vec![document("a", "x")])]);
        let check = |rows: &[cairn_store::Message], expected: Option<&str>| {
            let branch = WithDocuments::with(rows, &documents);
            let cuts = HashMap::new();
            let prompt = branch.prompt(&beginning(&[]), ReadPart::of(branch.rows(), &cuts));
            let found = match &prompt {
                PromptInput::Turns(prompt) => {
                    let [place] = prompt.breakpoints[..] else { panic!("{prompt:?}") };
                    let Turn::Message(message) = &prompt.turns[place.turn] else { panic!() };
                    Some(message.content[place.num_bytes..].to_owned())
                }
                _ => None,
            };
            assert_eq!(found.as_deref(), expected, "{prompt:?}");
        };
        let asked = |ids| {
            vec![
                row("q1", Role::User, "One", Some(vec![1])),
                row("a1", Role::Assistant, "1", Some(vec![2])),
                row("q2", Role::User, "Two", ids),
            ]
        };
        check(&asked(None), Some("Two"));
        // Its tokens are known.
        check(&asked(Some(vec![3])), None);
        // Two questions without an answer between are one message.
        let [q1, _, q2] = asked(None).try_into().unwrap();
        check(&[q1, q2], Some("Two"));
        // Another question has no documents.
        let later = row("q3", Role::User, "Three", None);
        let answer = row("a2", Role::Assistant, "2", Some(vec![4]));
        check(&asked(None).into_iter().chain([answer, later]).collect::<Vec<_>>(), None);
    }

    #[test]
    fn a_draft_is_the_beginning_of_the_question_that_follows() {
        let branch = [
            row("q1", Role::User, "One", Some(vec![1])),
            row("a1", Role::Assistant, "1", Some(vec![2])),
        ];
        let (cuts, sent) = (HashMap::new(), HashMap::new());
        let draft = vec![document("a", "x")];
        let draft = of_draft(&beginning(&[]), &branch, &cuts, &sent, draft).unwrap();
        let [place] = draft.breakpoints[..] else { panic!("{draft:?}") };
        let Turn::Message(last) = draft.turns.last().unwrap() else { panic!() };
        let read = &last.content[..place.num_bytes];
        assert_eq!(place.turn, 3);
        assert!(before(&[document("a", "x")], "  Why?").0.starts_with(read));
    }

    #[test]
    fn the_documents_of_a_folder_stand_before_the_first_message_that_is_read() {
        let of_folder = [document("f", "F")];
        let with = beginning(&of_folder);
        let told = |prompt: PromptInput| match prompt {
            PromptInput::Messages(messages) => (messages, Vec::new()),
            PromptInput::Turns(prompt) => {
                let text = |turn: &Turn| match turn {
                    Turn::Message(message) => message.clone(),
                    other => panic!("{other:?}"),
                };
                let messages: Vec<Message> = prompt.turns.iter().map(text).collect();
                let behind =
                    |place: &TextPlace| messages[place.turn].content[place.num_bytes..].to_owned();
                let places = prompt.breakpoints.iter().map(behind).collect();
                (messages, places)
            }
            other => panic!("{other:?}"),
        };
        let check = |rows: &[cairn_store::Message],
                     cut: Option<&str>,
                     expected: &[(&str, bool)],
                     ends: &[&str]| {
            let cut = cut.map(|id| (id.to_owned(), ContextCut { summary: None }));
            let (cuts, documents) = (
                cut.into_iter().collect(),
                HashMap::from([("q2".to_owned(), vec![document("a", "A")])]),
            );
            let branch = WithDocuments::with(rows, &documents);
            let (messages, places) = told(branch.prompt(&with, ReadPart::of(branch.rows(), &cuts)));
            let seen: Vec<(&str, bool)> = messages[1..]
                .iter()
                .map(|message| (message.content.as_str(), message.token_ids.is_some()))
                .collect();
            assert_eq!(
                (seen.as_slice(), places),
                (expected, ends.iter().map(|end| (*end).to_owned()).collect())
            );
        };
        let child = |parent: &str, row: cairn_store::Message| cairn_store::Message {
            parent_id: Some(parent.to_owned()),
            ..row
        };
        const F: &str = "<document name=\"f\">\nF\n</document>\n\n";
        let first = |rest: &str| format!("{F}{rest}");
        let q1 = row("q1", Role::User, " One", None);
        check(std::slice::from_ref(&q1), None, &[(&first("One"), false)], &["One"]);
        // Its tokens are those of a prompt with the documents, so the ends are known.
        let q1 = row("q1", Role::User, "One", Some(vec![1]));
        let a1 = child("q1", row("a1", Role::Assistant, "1", Some(vec![2])));
        let q2 = child("a1", row("q2", Role::User, "Two", None));
        let own = "<document name=\"a\">\nA\n</document>\n\nTwo";
        let rows = [q1, a1, q2];
        check(&rows, None, &[(&first("One"), true), ("1", true), (own, false)], &["Two"]);
        // Behind a cut they stand before another question.
        check(&rows, Some("q2"), &[(&first(own), false)], &[own, "Two"]);
        // The first question was deleted.
        check(&rows[1..2], None, &[(F, false), ("1", true)], &[""]);
    }
}
