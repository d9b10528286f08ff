//! Messages that name the message they follow, in any order, as a tree of questions and answers.

use std::collections::HashMap;

use cairn_chat::Role;
use cairn_store::{ImportedMessage, MessageStatus};

use crate::answer_segment::AnswerSegment;

/// A message of another program.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) parent: Option<String>,
    /// None: it is left out, and what follows it follows the message before it.
    pub(crate) role: Option<Role>,
    pub(crate) segments: Vec<AnswerSegment>,
    pub(crate) error: Option<String>,
    pub(crate) created_at_ms: i64,
}

/// The messages of a tree, each after the one that it follows; and where each node went.
#[derive(Debug, Default)]
pub(crate) struct Branches {
    messages: Vec<Built>,
    places: HashMap<String, Option<usize>>,
}

#[derive(Debug)]
struct Built {
    parent: Option<usize>,
    role: Role,
    segments: Vec<AnswerSegment>,
    error: Option<String>,
    created_at_ms: i64,
}

/// A node that is still to be placed.
struct Open {
    node: usize,
    /// The message that it follows.
    after: Option<usize>,
    /// Nothing else follows that message.
    is_only: bool,
}

impl Branches {
    /// Places the nodes. Parts of one answer that follow each other, as around a tool call, become one
    /// message. A node that follows itself in the end is left out.
    pub(crate) fn of(nodes: Vec<Node>) -> Branches {
        let places: HashMap<&str, usize> =
            nodes.iter().enumerate().map(|(place, node)| (node.id.as_str(), place)).collect();
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
        let mut roots = Vec::new();
        for (place, node) in nodes.iter().enumerate() {
            match node.parent.as_deref().and_then(|parent| places.get(parent)) {
                Some(parent) => children[*parent].push(place),
                None => roots.push(place),
            }
        }
        for all in &mut children {
            all.sort_by_key(|place| nodes[*place].created_at_ms);
        }
        let mut nodes: Vec<Option<Node>> = nodes.into_iter().map(Some).collect();
        let mut built = Branches::default();
        let is_only = roots.len() == 1;
        let mut open: Vec<Open> =
            roots.into_iter().rev().map(|node| Open { node, after: None, is_only }).collect();
        while let Some(Open { node: place, after, is_only }) = open.pop() {
            let Some(node) = nodes[place].take() else { continue };
            let is_left_out = node.role.is_none() || node.segments.is_empty();
            let at = built.put(node, after, is_only);
            let is_only = children[place].len() == 1 && (is_only || !is_left_out);
            let next = children[place].iter().rev();
            open.extend(next.map(|node| Open { node: *node, after: at, is_only }));
        }
        built
    }

    /// Returns the place of the message that the node went to.
    fn put(&mut self, node: Node, after: Option<usize>, is_only: bool) -> Option<usize> {
        let Node { id, role, segments, error, created_at_ms, .. } = node;
        let place = match (role, after) {
            (None, _) => after,
            _ if segments.is_empty() && error.is_none() => after,
            (Some(role), Some(after)) if is_only && self.messages[after].role == role => {
                self.messages[after].segments.extend(segments);
                self.messages[after].error = error;
                Some(after)
            }
            (Some(role), parent) => {
                self.messages.push(Built { parent, role, segments, error, created_at_ms });
                Some(self.messages.len() - 1)
            }
        };
        self.places.insert(id, place);
        place
    }

    /// The place of the message that a node went to.
    pub(crate) fn place(&self, id: &str) -> Option<usize> {
        self.places.get(id).copied().flatten()
    }

    /// The messages.
    pub(crate) fn into_messages(self) -> Vec<ImportedMessage> {
        self.messages.into_iter().map(Built::into_message).collect()
    }
}

impl Built {
    fn into_message(self) -> ImportedMessage {
        let is_text = |segment: &AnswerSegment| matches!(segment, AnswerSegment::Text { .. });
        let texts: Vec<&str> = self
            .segments
            .iter()
            .filter_map(|segment| match segment {
                AnswerSegment::Text { text } => Some(text.as_str()),
                _ => None,
            })
            .collect();
        let text = texts.join("\n\n");
        let has_more = self.role == Role::Assistant && !self.segments.iter().all(is_text);
        ImportedMessage {
            status: match self.error {
                Some(_) => MessageStatus::Failed,
                None => MessageStatus::Complete,
            },
            // Plain texts and numbers always serialize.
            segments: has_more.then(|| serde_json::to_string(&self.segments).ok()).flatten(),
            error: self.error,
            ..ImportedMessage::new(self.parent, self.role, text, self.created_at_ms)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, parent: &str, role: Option<Role>, text: &str) -> Node {
        Node {
            id: id.to_owned(),
            parent: Some(parent.to_owned()),
            role,
            segments: match text {
                "" => Vec::new(),
                text => vec![AnswerSegment::Text { text: text.to_owned() }],
            },
            error: None,
            created_at_ms: 0,
        }
    }

    #[test]
    fn nodes_become_a_tree_of_questions_and_answers() {
        const USER: Option<Role> = Some(Role::User);
        const ANSWER: Option<Role> = Some(Role::Assistant);
        fn check(nodes: &[Node], expected: &[(Option<usize>, &str)]) {
            let built = Branches::of(nodes.to_vec()).into_messages();
            let built: Vec<(Option<usize>, &str)> =
                built.iter().map(|message| (message.parent, message.text.as_str())).collect();
            assert_eq!(built, expected);
        }
        // A root without a text is left out, and the order of the file does not matter.
        check(
            &[
                node("b", "a", ANSWER, "yes"),
                node("a", "r", USER, "is it?"),
                node("r", "", None, ""),
            ],
            &[(None, "is it?"), (Some(0), "yes")],
        );
        // An answer around a tool call is one; two answers to one question are two.
        check(
            &[
                node("a", "", USER, "q"),
                node("b", "a", ANSWER, "let me see"),
                node("t", "b", None, "tool"),
                node("c", "t", ANSWER, "yes"),
                node("d", "a", ANSWER, "no"),
            ],
            &[(None, "q"), (Some(0), "let me see\n\nyes"), (Some(0), "no")],
        );
        // Two answers that follow one are no parts of it.
        check(
            &[
                node("a", "", ANSWER, "hello"),
                node("b", "a", ANSWER, "x"),
                node("c", "a", ANSWER, "y"),
            ],
            &[(None, "hello"), (Some(0), "x"), (Some(0), "y")],
        );
        check(&[node("a", "b", USER, "q"), node("b", "a", ANSWER, "a")], &[]);
        let long: Vec<Node> = (0..20_000)
            .map(|place: usize| {
                let role = if place.is_multiple_of(2) { USER } else { ANSWER };
                node(&place.to_string(), &place.wrapping_sub(1).to_string(), role, "t")
            })
            .collect();
        assert_eq!(Branches::of(long).into_messages().len(), 20_000);
    }
}
