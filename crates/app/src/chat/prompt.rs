//! Chooses the messages of a branch that the model sees; pure.

use cairn_chat::{Message, Role};
use cairn_store::MessageStatus;

/// A question that nobody has sent yet, for prompts that are built before there is one.
pub(crate) fn unsent_question(conversation_id: &str, text: &str) -> cairn_store::Message {
    cairn_store::Message {
        id: String::new(),
        conversation_id: conversation_id.to_owned(),
        parent_id: None,
        role: Role::User,
        status: MessageStatus::Complete,
        text: text.to_owned(),
        segments: None,
        token_ids: None,
        error: None,
        error_kind: None,
        stats: None,
        model: None,
        created_at_ms: 0,
        seq: 0,
    }
}

/// The messages for an answer at the end of a branch. The streaming answer itself is left out, and
/// so are answers that failed or stayed empty. Questions that become neighbours that way, or because
/// what stood between was deleted, are joined, and so are answers: many templates require alternating
/// turns.
pub(crate) fn messages_for(system_prompt: &str, branch: &[cairn_store::Message]) -> Vec<Message> {
    let mut messages = Vec::with_capacity(branch.len() + 1);
    if !system_prompt.is_empty() {
        messages.push(Message {
            role: Role::System,
            content: system_prompt.to_owned(),
            token_ids: None,
        });
    }
    for row in read_rows(branch) {
        match messages.last_mut() {
            Some(Message { role, content, token_ids }) if row.role == *role => {
                content.push_str("\n\n");
                content.push_str(&row.text);
                *token_ids = None;
            }
            _ => messages.push(Message {
                role: row.role,
                content: row.text.clone(),
                token_ids: row.token_ids.clone(),
            }),
        }
    }
    messages
}

/// The rows of a branch that [`messages_for`] gives to the model.
pub(crate) fn read_rows(
    branch: &[cairn_store::Message],
) -> impl Iterator<Item = &cairn_store::Message> {
    let is_read = |index: usize, row: &cairn_store::Message| match (row.role, row.status) {
        (Role::Assistant, MessageStatus::Streaming | MessageStatus::Failed) => false,
        (Role::Assistant, _) => !row.text.is_empty(),
        // A question that only led to a failure, perhaps because it is too long, must not cause
        // it again in every later turn.
        (Role::User, _) => !has_failed(branch, index),
        _ => true,
    };
    let rows = branch.iter().enumerate();
    rows.filter(move |(index, row)| is_read(*index, row)).map(|(_, row)| row)
}

/// Whether the answer to the message at `index` failed without text, and the conversation continued
/// after it.
fn has_failed(branch: &[cairn_store::Message], index: usize) -> bool {
    match branch.get(index + 1..) {
        Some([answer, _, ..]) => leads_to_failure(&branch[index], answer),
        _ => false,
    }
}

/// Whether a question has got no word of an answer because that failed.
pub(crate) fn leads_to_failure(
    question: &cairn_store::Message,
    answer: &cairn_store::Message,
) -> bool {
    let has_failed = answer.status == MessageStatus::Failed && answer.text.is_empty();
    (question.role, answer.role, has_failed) == (Role::User, Role::Assistant, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use MessageStatus::{Complete, Failed, Interrupted, Stopped, Streaming};
    use Role::{Assistant, System, User};

    #[test]
    fn the_model_sees_questions_and_answers_that_are_not_empty() {
        fn check(
            system_prompt: &str,
            branch: &[(Role, MessageStatus, &str)],
            expected: &[(Role, &str, bool)],
        ) {
            let rows: Vec<_> = branch
                .iter()
                .map(|(role, status, text)| cairn_store::Message {
                    role: *role,
                    status: *status,
                    token_ids: Some(vec![1]),
                    ..unsent_question("", text)
                })
                .collect();
            let messages = messages_for(system_prompt, &rows);
            let seen: Vec<_> = messages
                .iter()
                .map(|m| (m.role, m.content.as_str(), m.token_ids.is_some()))
                .collect();
            assert_eq!(seen, expected, "for {branch:?}");
        }
        check("", &[], &[]);
        check("", &[(User, Complete, "q"), (Assistant, Streaming, "")], &[(User, "q", true)]);
        check(
            "be brief",
            &[(User, Complete, "q")],
            &[(System, "be brief", false), (User, "q", true)],
        );
        check(
            "",
            &[
                (User, Complete, "1"),
                (Assistant, Stopped, "a"),
                (User, Complete, "2"),
                (Assistant, Interrupted, "b"),
            ],
            &[(User, "1", true), (Assistant, "a", true), (User, "2", true), (Assistant, "b", true)],
        );
        check(
            "",
            &[
                (User, Complete, "1"),
                (Assistant, Failed, "half"),
                (User, Complete, "2"),
                (Assistant, Streaming, ""),
            ],
            &[(User, "1\n\n2", false)],
        );
        check(
            "",
            &[
                (User, Complete, "far too long"),
                (Assistant, Failed, ""),
                (User, Complete, "2"),
                (Assistant, Streaming, ""),
            ],
            &[(User, "2", true)],
        );
        check("", &[(User, Complete, "again"), (Assistant, Failed, "")], &[(User, "again", true)]);
        check(
            "",
            &[
                (User, Complete, "1"),
                (Assistant, Complete, "a"),
                (Assistant, Complete, "b"),
                (User, Complete, "2"),
            ],
            &[(User, "1", true), (Assistant, "a\n\nb", false), (User, "2", true)],
        );
        check(
            "",
            &[(User, Complete, "1"), (Assistant, Stopped, ""), (User, Complete, "2")],
            &[(User, "1\n\n2", false)],
        );
    }
}
