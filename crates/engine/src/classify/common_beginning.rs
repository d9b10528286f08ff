//! What all rows of a request have in common. Pure.

use cairn_chat::{Message, common_beginning as common_text};

use super::ClassifyRow;
use crate::request::PromptInput;

/// A common text shorter than this is not worth a pass of its own.
const MIN_TEXT_BYTES: usize = 64;

/// The prefix that rows share: messages, an open turn, a text or tokens; none if they are of
/// different kinds, or have too little in common.
pub(super) fn common_beginning(rows: &[ClassifyRow]) -> Option<PromptInput> {
    let (first, others) = rows.split_first()?;
    if others.is_empty() {
        return None;
    }
    let others = others.iter().map(|row| &row.prompt);
    match &first.prompt {
        PromptInput::Messages(first) => {
            let others = others.map(|prompt| match prompt {
                PromptInput::Messages(messages) => Some(messages.as_slice()),
                _ => None,
            });
            common_messages(first, &others.collect::<Option<Vec<_>>>()?)
        }
        PromptInput::Text(first) => {
            let mut common = first.as_str();
            for prompt in others {
                let PromptInput::Text(text) = prompt else { return None };
                common = common_text(common, text);
            }
            (common.len() >= MIN_TEXT_BYTES).then(|| PromptInput::Text(common.to_owned()))
        }
        PromptInput::Tokens(first) => {
            let mut common = first.as_slice();
            for prompt in others {
                let PromptInput::Tokens(tokens) = prompt else { return None };
                let same = std::iter::zip(common, tokens).take_while(|(a, b)| a == b).count();
                // A row has at least one token of its own.
                common = &common[..same.min(tokens.len().saturating_sub(1))];
            }
            common = &common[..common.len().min(first.len().saturating_sub(1))];
            (!common.is_empty()).then(|| PromptInput::Tokens(common.to_vec()))
        }
        _ => None,
    }
}

/// The messages that all have, at least one fewer than the shortest; and the common text of those
/// that follow, if it is long.
fn common_messages(first: &[Message], others: &[&[Message]]) -> Option<PromptInput> {
    let all = || std::iter::once(first).chain(others.iter().copied());
    let shortest = all().map(<[Message]>::len).min()?.checked_sub(1)?;
    let is_common = |index: &usize| {
        all().all(|row| {
            row[*index].role == first[*index].role && row[*index].content == first[*index].content
        })
    };
    let num_common = (0..shortest).take_while(is_common).count();
    let next = &first[num_common];
    let has_role = all().all(|row| row[num_common].role == next.role);
    let mut text = next.content.as_str();
    for row in others {
        text = common_text(text, &row[num_common].content);
    }
    // It ends with a whole word: templates remove blanks at the end of a text.
    let text = text.rsplit_once(char::is_whitespace).map_or("", |(words, _)| words).trim_end();
    if has_role && text.len() >= MIN_TEXT_BYTES {
        let open = Message { content: text.to_owned(), token_ids: None, role: next.role };
        return Some(PromptInput::OpenTurn([&first[..num_common], &[open]].concat()));
    }
    (num_common > 0).then(|| PromptInput::Messages(first[..num_common].to_vec()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cairn_chat::Role;

    use super::*;

    fn check(prompts: Vec<PromptInput>, expected: Option<PromptInput>) {
        let rows: Vec<ClassifyRow> = prompts
            .into_iter()
            .map(|prompt| ClassifyRow { prompt, options: Arc::from([]) })
            .collect();
        assert_eq!(common_beginning(&rows), expected, "{rows:?}");
    }

    fn messages(contents: &[&str]) -> Vec<Message> {
        let roles = [Role::System, Role::User, Role::Assistant, Role::User];
        let message = |(role, content): (Role, &&str)| Message {
            role,
            content: (*content).to_owned(),
            token_ids: None,
        };
        std::iter::zip(roles, contents).map(message).collect()
    }

    #[test]
    fn messages_have_messages_in_common() {
        let chat = |contents: &[&str]| PromptInput::Messages(messages(contents));
        let (a, b) = (chat(&["s", "one"]), chat(&["s", "two"]));
        check(vec![a.clone(), b.clone()], Some(chat(&["s"])));
        check(vec![a.clone(), b, chat(&["other", "one"])], None);
        check(vec![a.clone()], None);
        // Equal rows keep a message of their own.
        check(vec![a.clone(), a], Some(chat(&["s"])));
        let few_shot = ["s", "q", "a"];
        let row = |last: &str| chat(&[few_shot.as_slice(), &[last]].concat());
        check(vec![row("x"), row("y")], Some(chat(&few_shot)));
    }

    #[test]
    fn a_long_common_text_is_an_open_turn() {
        let state = "word ".repeat(20);
        let row = |question: &str| {
            PromptInput::Messages(messages(&["s", &format!("{state}\n\nWas it {question}?")]))
        };
        let common = format!("{state}\n\nWas it");
        let expected = PromptInput::OpenTurn(messages(&["s", &common]));
        check(vec![row("late"), row("light")], Some(expected));
    }

    #[test]
    fn texts_and_tokens() {
        let state = "word ".repeat(20);
        let text = |end: &str| PromptInput::Text(format!("{state}{end}"));
        check(vec![text("é"), text("è")], Some(text("")));
        check(vec![PromptInput::Text("ab".into()), PromptInput::Text("ac".into())], None);
        let tokens = |ids: &[u32]| PromptInput::Tokens(ids.to_vec());
        check(vec![tokens(&[1, 2, 3]), tokens(&[1, 2, 4, 5])], Some(tokens(&[1, 2])));
        check(vec![tokens(&[1, 2]), tokens(&[1, 2, 3])], Some(tokens(&[1])));
        check(vec![tokens(&[1]), tokens(&[1])], None);
        check(vec![tokens(&[1]), text("")], None);
    }
}
